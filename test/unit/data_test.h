/* Shared by the tests of data/: configs from text with paths relative to the repository, and errors that must name their cause.
 */
#ifndef DATA_TEST_H
#define DATA_TEST_H
#include "../../data/loader.h"
#include "../../dp/base/config.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static inline const char *test_root(void)
{
    const char *root = getenv("DP_ROOT");
    return root && *root ? root : ".";
}

/* A config from the printf-like text of an ini file. */
static inline __attribute__((format(printf, 1, 2))) dp_config *test_config(const char *fmt, ...)
{
    char text[2048];
    dp_error e;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    assert_true(n > 0 && (size_t)n < sizeof text);
    dp_config *c = dp_config_new(NULL, NULL);
    assert_non_null(c);
    if (dp_config_parse(c, text, (size_t)n, "test.ini", test_root(), &e)) fail_msg("config: %s", e.text);
    return c;
}

static inline dp_data *test_open(dp_config *c, int train)
{
    dp_data *d = NULL;
    dp_error e;
    if (dp_data_open(&d, c, train, &e)) fail_msg("dp_data_open: %s", e.text);
    dp_config_free(c);
    return d;
}

/* The open must fail with this code and a text that has `phrase`. */
static inline void test_refused(dp_config *c, int train, dp_status code, const char *phrase)
{
    dp_data *d = NULL;
    dp_error e;
    dp_status s = dp_data_open(&d, c, train, &e);
    dp_config_free(c);
    dp_data_close(d);
    if (s != code) fail_msg("wanted an error of kind %d with \"%s\", found %d %s", (int)code, phrase, (int)s, s ? e.text : "");
    if (!strstr(e.text, phrase)) fail_msg("wanted \"%s\" in: %s", phrase, e.text);
}

static inline dp_data_info test_facts(const dp_data *d)
{
    dp_data_info f;
    assert_int_equal(dp_data_facts(d, &f), DP_OK);
    return f;
}

/* A file in a temporary directory of this process; removed by test_remove. */
static inline void test_write(char path[64], const char *ending, const void *data, size_t bytes)
{
    snprintf(path, 64, "/tmp/dp-test-XXXXXX%s", ending);
    int fd = mkstemps(path, (int)strlen(ending));
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), (ssize_t)bytes);
    close(fd);
}

/* One batch of the whole set in file order, in memory that lasts until test_close_loader. */
static inline dp_loader *test_whole(dp_data *d, dp_batch *b)
{
    dp_loader *l;
    dp_error e;
    dp_loader_options o = {.batch_size = test_facts(d).samples, .accumulate = 1, .prefetch = 1, .timeout_s = 10};
    if (dp_loader_open(&l, d, &o, NULL, &e) || dp_loader_next(l, b, &e)) fail_msg("loader: %s", e.text);
    return l;
}

static inline void test_close_loader(dp_loader *l, const dp_batch *b)
{
    dp_loader_release(l, b);
    dp_loader_close(l);
}
#endif
