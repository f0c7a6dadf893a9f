/* A small training in a fresh directory, for the tests of trainer and checkpoints. */
#ifndef DP_TEST_TRAIN_RIG_H
#define DP_TEST_TRAIN_RIG_H
#include "../../dp/dp.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char rig_home[64];

static int rig_setup(void **state)
{
    (void)state;
    strcpy(rig_home, "/tmp/dp-train-XXXXXX");
    return mkdtemp(rig_home) && !chdir(rig_home) ? 0 : -1;
}

static int rig_teardown(void **state)
{
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", rig_home);
    return chdir("/") || system(cmd);
}

static void rig_put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* 100 samples in batches of 16: 7 batches an epoch, the last of 4; dropout, so that the draws are part of what must agree. */
static const char rig_ini[] = "[run]\nepochs = 3\nlog_every = 1\n"
                              "[devices]\nuse = cpu:0,cpu:1\nthreads = 1\n"
                              "[data]\nformat = synthetic\nsamples = 100\nclasses = 4\nbatch_size = 16\nworkers = 2\n"
                              "[model]\ninput = 12\nfc1 = linear out=10 | relu | dropout p=0.3\nfc2 = linear out=classes\n"
                              "[optimizer]\nlr = 0.05\n"
                              "[schedule]\nkind = cosine\nwarmup_steps = 4\n";

/* settings: "key=value" ..., NULL at the end */
static dp_config *rig_config(const char *const *settings)
{
    dp_error err;
    dp_config *c = dp_config_new(NULL, NULL);
    assert_non_null(c);
    rig_put("rig.ini", rig_ini);
    if (dp_config_load(c, "rig.ini", &err)) fail_msg("%s", err.text);
    for (; settings && *settings; settings++) {
        char key[64];
        const char *equal = strchr(*settings, '=');
        snprintf(key, sizeof key, "%.*s", (int)(equal - *settings), *settings);
        if (dp_config_set(c, key, equal + 1)) fail_msg("cannot set %s", *settings);
    }
    return c;
}

static inline char *rig_read(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("cannot open %s", path);
    char *p = malloc(1 << 20);
    assert_non_null(p);
    *bytes = fread(p, 1, (1 << 20) - 1, f);
    p[*bytes] = 0;
    fclose(f);
    return p;
}

static inline int rig_same(const char *a, const char *b)
{
    size_t m, n;
    char *p = rig_read(a, &m), *q = rig_read(b, &n);
    int same = m == n && m > 0 && !memcmp(p, q, n);
    free(p);
    free(q);
    return same;
}
#endif
