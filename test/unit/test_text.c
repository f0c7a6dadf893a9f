/* Numbers and names as text, errors as text: the same in every locale, whole text or nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../dp/base/error.h"
#include "../../dp/base/text.h"

static void whole_numbers(void **state)
{
    static const struct {
        const char *text;
        int ok;
        int64_t value;
    } v[] = {{"0", 1, 0},
             {" 12\t", 1, 12},
             {"-7", 1, -7},
             {"+7", 1, 7},
             {"9223372036854775807", 1, INT64_MAX},
             {"-9223372036854775808", 1, INT64_MIN},
             {"9223372036854775808", -1, 0},
             {"", 0, 0},
             {" ", 0, 0},
             {"-", 0, 0},
             {"+-1", 0, 0},
             {"1.0", 0, 0},
             {"1e3", 0, 0},
             {"0x10", 0, 0},
             {"12x", 0, 0},
             {"1 2", 0, 0},
             {"1,000", 0, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        int64_t n = 0;
        assert_int_equal(dp_parse_int(v[i].text, &n), v[i].ok);
        if (v[i].ok == 1) assert_true(n == v[i].value);
    }
}

static void check_numbers(void)
{
    static const struct {
        const char *text;
        int ok;
        double value;
    } v[] = {{"1e-3", 1, 1e-3},   {"2.5E-4", 1, 2.5e-4}, {".5", 1, 0.5},   {"5.", 1, 5},      {"-0.25", 1, -0.25},
             {" 3.14 ", 1, 3.14}, {"1e308", 1, 1e308},   {"1e309", -1, 0}, {"-1e309", -1, 0}, {"1e-3x", 0, 0},
             {"0,001", 0, 0},     {"nan", 0, 0},         {"inf", 0, 0},    {"0x1p3", 0, 0},   {"", 0, 0},
             {"e5", 0, 0},        {".", 0, 0},           {"1e", 0, 0},     {"1.2.3", 0, 0},   {"1 2", 0, 0}};
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        double x = 0;
        assert_int_equal(dp_parse_double(v[i].text, &x), v[i].ok);
        if (v[i].ok == 1) assert_true(x == v[i].value);
    }
}

static void numbers(void **state)
{
    (void)state;
    check_numbers();
}

/* Under a locale that writes 3,14: parsing, printing and error texts do not move, and the host's locale stays. */
static void comma_locale(void **state)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8",  "de_DE",       "fr_FR.UTF-8",
                                        "fr_FR.utf8",  "es_ES.UTF-8", "it_IT.UTF-8", "ru_RU.UTF-8"};
    const char *found = NULL;
    char text[32];
    dp_error err;
    (void)state;
    for (size_t i = 0; !found && i < sizeof names / sizeof *names; i++)
        if (setlocale(LC_ALL, names[i]) && snprintf(text, sizeof text, "%.1f", 0.5) > 0 && strchr(text, ',')) found = names[i];
    if (!found) {
        setlocale(LC_ALL, "C");
        skip();
    }
    check_numbers();
    dp_format(text, sizeof text, "%.2f", 3.14);
    assert_string_equal(text, "3.14");
    dp_fail(&err, DP_ECONFIG, "lr %g", 0.001);
    assert_string_equal(err.text, "lr 0.001");
    snprintf(text, sizeof text, "%.1f", 0.5);
    assert_string_equal(text, "0,5");
    setlocale(LC_ALL, "C");
}

/* The same with a thread's own locale, which setlocale does not show: it is put back after each call. */
static void thread_locale(void **state)
{
    locale_t mine = newlocale(LC_ALL_MASK, "C.UTF-8", (locale_t)0);
    char text[32];
    (void)state;
    if (!mine) skip();
    locale_t before = uselocale(mine);
    dp_format(text, sizeof text, "%.2f", 3.14);
    assert_ptr_equal(uselocale((locale_t)0), mine);
    uselocale(before);
    freelocale(mine);
    assert_string_equal(text, "3.14");
}

static void quoting(void **state)
{
    char q[64], small[20];
    (void)state;
    assert_string_equal(dp_quote(q, sizeof q, "a b"), "\"a b\"");
    assert_string_equal(dp_quote(q, sizeof q, "lr\r"), "\"lr\\x0D\"");
    assert_string_equal(dp_quote(q, sizeof q, "a\x01\x7f"), "\"a\\x01\\x7F\"");
    assert_string_equal(dp_quote(q, sizeof q, ""), "\"\"");
    dp_quote(small, sizeof small, "a text that is far too long");
    assert_true(strlen(small) < sizeof small);
    assert_non_null(strstr(small, "...\""));
    assert_int_equal(strncmp(small, "\"a text", 7), 0);
}

static void nearest(void **state)
{
    static const char *const names[] = {"momentum", "batch_size", "lr"};
    (void)state;
    assert_int_equal(dp_nearest("momentun", names, 3), 0);
    assert_int_equal(dp_nearest("batchsize", names, 3), 1);
    assert_int_equal(dp_nearest("lr_", names, 3), 2);
    assert_int_equal(dp_nearest("something_else", names, 3), -1);
    assert_int_equal(dp_nearest("", names, 3), -1);
    assert_int_equal(dp_nearest("a_name_that_is_longer_than_sixty_three_bytes_is_near_to_nothing_at_all", names, 3), -1);
}

static void patterns(void **state)
{
    (void)state;
    assert_true(dp_match_list("*.bias,bn*", "fc1.bias"));
    assert_true(dp_match_list("*.bias , bn*", "bn1.weight"));
    assert_false(dp_match_list("*.bias,bn*", "fc1.weight"));
    assert_false(dp_match_list("*.bias,bn*", "a.bias.x"));
    assert_true(dp_match_list("l?.w", "l1.w"));
    assert_false(dp_match_list("l?.w", "l12.w"));
    assert_true(dp_match_list("*", ""));
    assert_false(dp_match_list("", ""));
    assert_false(dp_match_list(",", "x"));
    assert_true(dp_match_list("a*b*c", "a-b-b-c"));
    assert_false(dp_match_list("a*b*c", "a-b-b-d"));
    assert_true(dp_match_list("**a", "ba"));
    /* Backtracking stays cheap: each further star once multiplied the work by the length of the name. */
    char name[128];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_false(dp_match_list("*a*a*a*a*a*a*a*a*a*a*a*a*b", name));
}

static void hashes(void **state)
{
    (void)state; /* the vectors of the FNV authors */
    assert_true(dp_hash("", 0) == 0xcbf29ce484222325u);
    assert_true(dp_hash("a", 1) == 0xaf63dc4c8601ec8cu);
    assert_true(dp_hash("foobar", 6) == 0x85944171f73967e8u);
}

static void sizes(void **state)
{
    char b[32];
    (void)state;
    assert_string_equal(dp_bytes_text(b, sizeof b, 0), "0 B");
    assert_string_equal(dp_bytes_text(b, sizeof b, 999), "999 B");
    assert_string_equal(dp_bytes_text(b, sizeof b, 8400000), "8.4 MB");
    assert_string_equal(dp_bytes_text(b, sizeof b, -1500), "-1.5 kB");
}

static void errors(void **state)
{
    dp_error err;
    char big[2000];
    (void)state;
    assert_int_equal(sizeof err, 1024);
    memset(&err, 0x55, sizeof err);
    assert_int_equal(dp_fail(&err, DP_EDATA, "%s is %d", "x", 3), DP_EDATA);
    assert_int_equal(err.code, DP_EDATA);
    assert_int_equal(err.device, -1);
    assert_int_equal(err.replica, -1);
    assert_int_equal(err.phase, -1);
    assert_int_equal(err.step, -1);
    assert_int_equal(err.more, 0);
    assert_string_equal(err.layer, "");
    assert_string_equal(err.text, "x is 3");
    /* Wrapping an error in itself keeps its text. */
    dp_fail(&err, DP_EDATA, "a.ini: %s", err.text);
    assert_string_equal(err.text, "a.ini: x is 3");
    assert_int_equal(dp_fail(NULL, DP_EIO, "nobody asks"), DP_EIO);
    memset(big, 'y', sizeof big - 1);
    big[sizeof big - 1] = 0;
    dp_fail(&err, DP_EIO, "%s", big);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_string_equal(err.text + sizeof err.text - 5, "y...");
    dp_fail_errno(&err, DP_EIO, ENOENT, "Cannot open %s", "x");
    assert_string_equal(err.text, "Cannot open x: No such file or directory");
    dp_error_place(&err, 2, -1, 3, "forward", 17, "conv1");
    dp_error_place(&err, -1, 4, -1, NULL, -1, NULL);
    assert_int_equal(err.device, 2);
    assert_int_equal(err.replica, 4);
    assert_int_equal(err.phase, 3);
    assert_int_equal(err.step, 17);
    assert_string_equal(err.phase_name, "forward");
    assert_string_equal(err.layer, "conv1");
    dp_error_place(NULL, 1, 1, 1, "x", 1, "x");
}

static void names(void **state)
{
    (void)state;
    assert_int_equal(dp_version(), DP_VERSION);
    assert_string_equal(dp_version_text(), DP_VERSION_TEXT);
    for (int s = DP_OK; s <= DP_EVERSION; s++)
        for (int k = DP_OK; k < s; k++) assert_string_not_equal(dp_status_name((dp_status)s), dp_status_name((dp_status)k));
    assert_string_equal(dp_status_name(DP_ENOMEM), "out of memory");
    assert_string_equal(dp_status_name((dp_status)99), "unknown status");
    assert_string_equal(dp_status_name((dp_status)-1), "unknown status");
    assert_string_equal(dp_memory_class_name(DP_MEM_PARAMETERS), "parameters");
    assert_string_equal(dp_memory_class_name(DP_MEM_LIBRARY), "library");
    assert_string_equal(dp_memory_class_name(DP_MEM_CLASSES), "");
    assert_string_equal(dp_memory_class_name(-1), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_numbers), cmocka_unit_test(numbers), cmocka_unit_test(comma_locale),
        cmocka_unit_test(thread_locale), cmocka_unit_test(quoting), cmocka_unit_test(nearest),
        cmocka_unit_test(patterns),      cmocka_unit_test(hashes),  cmocka_unit_test(sizes),
        cmocka_unit_test(errors),        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests_name("text", tests, NULL, NULL);
}
