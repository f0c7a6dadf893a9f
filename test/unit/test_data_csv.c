/* CSV tables: what is accepted, and line and column of what is not. */
#include "data_test.h"
#include <locale.h>

#define HOSTILE "test/hostile/csv/"

static dp_config *hostile(const char *file)
{
    return test_config("[data]\nformat = csv\ntrain = " HOSTILE "%s\n", file);
}

/* A set from the text of a file, with more lines for [data] and [loss]. */
static dp_config *table(char path[64], const char *text, size_t bytes, const char *more)
{
    test_write(path, ".csv", text, bytes);
    return test_config("[data]\nformat = csv\ntrain = %s\n%s", path, more);
}

static void refused(const char *text, const char *more, const char *phrase)
{
    char path[64];
    dp_config *c = table(path, text, strlen(text), more);
    test_refused(c, 1, DP_EDATA, phrase);
    unlink(path);
}

static void broken_files_are_refused(void **state)
{
    static const struct {
        const char *file, *phrase;
    } cases[] = {
        {"nan.csv", "line 1, column 2"},
        {"inf.csv", "line 1, column 2"},
        {"empty-field.csv", "line 1, column 2"},
        {"ragged-short.csv", "line 2 has 2 fields, the first line has 3"},
        {"semicolon.csv", "line 1, column 1"},
        {"quoted-newline.csv", "line 1, column 1: a quote"},
        {"label-negative.csv", "loss.ignore_label = -1"},
        {"label-text.csv", "line 1, column 3"},
        {"hex.csv", "line 1, column 1"},
        {"1e999.csv", "out of the range"},
        {"nul-byte.csv", "NUL"},
        {"empty.csv", "is empty"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        test_refused(hostile(cases[i].file), 1, DP_EDATA, cases[i].phrase);
}

/* Two lines each, (1 2 0) and (3 4 1), in all spellings. */
static void good_files_give_equal_samples(void **state)
{
    static const char *const files[] = {"ok.csv",   "no-header.csv",   "bom.csv",         "cr-only.csv", "no-final-newline.csv",
                                        "tabs.tsv", "label-float.csv", "gz-named-csv.csv"};
    static const float x[4] = {1, 2, 3, 4};
    static const int32_t y[2] = {0, 1};
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        dp_batch b;
        dp_data *d = test_open(hostile(files[i]), 1);
        dp_data_info f = test_facts(d);
        assert_int_equal(f.samples, 2);
        assert_int_equal(f.x_shape[0], 2);
        assert_int_equal(f.classes, 2);
        dp_loader *l = test_whole(d, &b);
        assert_memory_equal(b.x.data, x, sizeof x);
        assert_memory_equal(b.y.data, y, sizeof y);
        test_close_loader(l, &b);
        dp_data_close(d);
    }
}

static void more_errors_have_their_place(void **state)
{
    (void)state;
    refused("a,b,c\r\n1,2,0\r\n\r\n1,x,0\r\n", "", "line 4, column 2: \"x\" is not a finite number");
    refused("1,2,0\n3,4,1,\n", "", "line 2 has 4 fields, the first line has 3");
    refused("1,2,0\n3,4,1.5\n", "", "line 2, column 3: \"1.5\" is not a class number");
    refused("1,2,0\n3,1e39,1\n", "", "line 2, column 2: \"1e39\" is out of the range of 32-bit floats");
    refused("1,2,0\n3,4,7\n", "classes = 7\n", "line 2, column 3: \"7\" label 7, allowed are 0..6");
    refused("1,2,0\n3,,1\n", "", "line 2, column 2: \"\" is empty");
    refused("a,b,c\n", "", "no lines of numbers");
    refused("1\n2\n", "", "one column");
    refused("1,2,0\n", "label = b\n", "no header");
    refused("a,b,c\n1,2,0\n", "label = d\n", "called \"d\"");
    refused("150,4,setosa,versicolor\n5.1,3.5,1.4,0\n", "", "line 1, column 3"); /* scikit-learn's first line is no header */
    refused("<!DOCTYPE html>\n", "", "HTML");
    refused("\xFF\xFE"
            "1,",
            "", "UTF-16");
    refused("1,2,0\n3 4,4,1\n", "", "line 2, column 1");
    refused("1,2,0\n\"3\"x,4,1\n", "", "line 2, column 1");
    refused("1,2,-1\n3,4,-1\n", "[loss]\nignore_label = -1\n", "nothing to learn from");
}

/* Every spelling must give strtof's value; the last digits go through the exact and the slow path. */
static void numbers_are_read_exactly(void **state)
{
    static const char *const numbers[] = {"0.1",
                                          "-1e-3",
                                          "3.4028235e38",
                                          "16777217",
                                          "1.17549435e-38",
                                          "7.000000000000000000e+00",
                                          ".5",
                                          "+2.",
                                          "1e22",
                                          "1e23",
                                          "123456789012345678901234567890",
                                          "0.30000001192092896"};
    char path[64], text[1024] = "";
    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        strcat(text, numbers[i]);
        strcat(text, ",");
    }
    strcat(text, "3\n");
    dp_batch b;
    dp_data *d = test_open(table(path, text, strlen(text), ""), 1);
    unlink(path);
    dp_loader *l = test_whole(d, &b);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        float want = strtof(numbers[i], NULL);
        assert_true(((const float *)b.x.data)[i] == want);
    }
    assert_int_equal(((const int32_t *)b.y.data)[0], 3);
    assert_int_equal(test_facts(d).classes, 4);
    test_close_loader(l, &b);
    dp_data_close(d);
}

static void the_locale_does_not_matter(void **state)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"};
    static const float x[4] = {1.5f, 2.5f, 3.5f, 4.5f};
    (void)state;
    for (size_t i = 0; i < 3 && !setlocale(LC_NUMERIC, names[i]); i++)
        continue; /* where none is installed, the plain locale serves */
    dp_batch b;
    dp_data *d = test_open(hostile("locale.csv"), 1);
    dp_loader *l = test_whole(d, &b);
    assert_memory_equal(b.x.data, x, sizeof x);
    test_close_loader(l, &b);
    dp_data_close(d);
    setlocale(LC_NUMERIC, "C");
}

static void labels_are_found(void **state)
{
    static const struct {
        const char *text, *more;
        int32_t label;
        float first;
    } cases[] = {
        {"a,b,c\n1,2,3\n", "", 3, 1},
        {"a,b,c\n1,2,3\n", "label = first\n", 1, 2},
        {"a,\"b\",c\n1,2,3\n", "label = b\n", 2, 1},
        {"1;2;3\n", "label = first\n", 1, 2},
        {"\"1\", 2 ,3\n", "", 3, 1},
        {"1,2,-1\n4,5,0\n", "[loss]\nignore_label = -1\n", -1, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[64];
        dp_batch b;
        dp_data *d = test_open(table(path, cases[i].text, strlen(cases[i].text), cases[i].more), 1);
        dp_loader *l = test_whole(d, &b);
        unlink(path);
        assert_int_equal(((const int32_t *)b.y.data)[0], cases[i].label);
        assert_true(((const float *)b.x.data)[0] == cases[i].first);
        test_close_loader(l, &b);
        dp_data_close(d);
    }
}

static void mse_has_numbers_as_targets(void **state)
{
    char path[64];
    dp_batch b;
    (void)state;
    const char *text = "1,2,0.25\n3,4,-7.5\n";
    dp_data *d = test_open(table(path, text, strlen(text), "[loss]\nkind = mse\n"), 1);
    unlink(path);
    assert_int_equal(test_facts(d).classes, 0);
    assert_int_equal(test_facts(d).y_dtype, DP_F32);
    dp_loader *l = test_whole(d, &b);
    assert_true(((const float *)b.y.data)[0] == 0.25f && ((const float *)b.y.data)[1] == -7.5f);
    test_close_loader(l, &b);
    dp_data_close(d);
}

static void the_digits_that_ship(void **state)
{
    static const int want[10] = {178, 182, 177, 183, 181, 182, 181, 179, 174, 180};
    int count[10] = {0};
    dp_batch b;
    (void)state;
    const char *ini = "[data]\nformat = csv\ntrain = data/samples/digits.csv.gz\n";
    dp_data *d = test_open(test_config("%s", ini), 1);
    dp_loader *l = test_whole(d, &b);
    assert_int_equal(b.x.n, 1797);
    assert_int_equal(b.x.width, 64);
    for (int64_t i = 0; i < b.x.n; i++) count[((const int32_t *)b.y.data)[i]]++;
    assert_memory_equal(count, want, sizeof want);
    assert_true(((const float *)b.x.data)[2] == 5.0f && ((const float *)b.x.data)[3] == 13.0f);
    test_close_loader(l, &b);
    dp_data_close(d);
    d = test_open(test_config("%seval = last 20%%\n", ini), 1);
    assert_int_equal(test_facts(d).samples, 1437);
    dp_data_close(d);
    d = test_open(test_config("%seval = last 20%%\n", ini), 0);
    assert_int_equal(test_facts(d).samples, 360);
    dp_data_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_files_are_refused),     cmocka_unit_test(good_files_give_equal_samples),
        cmocka_unit_test(more_errors_have_their_place), cmocka_unit_test(numbers_are_read_exactly),
        cmocka_unit_test(the_locale_does_not_matter),   cmocka_unit_test(labels_are_found),
        cmocka_unit_test(mse_has_numbers_as_targets),   cmocka_unit_test(the_digits_that_ship),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
