/* Texts and token files: windows, vocabularies, the evaluation part, broken files. */
#include "data_test.h"

#define HOSTILE "test/hostile/bin/"

static dp_config *text_config(char path[64], const char *text, size_t bytes, const char *more)
{
    test_write(path, ".txt", text, bytes);
    return test_config("[data]\nformat = tokens\ntrain = %s\n%s", path, more);
}

static void broken_files_are_refused(void **state)
{
    static const struct {
        const char *file, *more, *phrase;
    } cases[] = {
        {"odd-bytes.bin", "", "has 3 bytes: 16-bit tokens need an even number"},
        {"llmc-short.bin", "", "its header says 2000 tokens = 5024 bytes, it has 3024: the file is cut off"},
        {"llmc-badmagic.bin", "", "the magic is 1, wanted 20240520"},
        {"token-out-of-vocab.bin", "classes = 50257\n", "token 65535 at position 2, allowed are 0..50256"},
        {"nanogpt-uint16.bin", "classes = 500\n", "token 500 at position 500"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        test_refused(
            test_config("[data]\nformat = tokens\nwindow = 2\ntrain = " HOSTILE "%s\n%s", cases[i].file, cases[i].more), 1,
            DP_EDATA, cases[i].phrase);
    }
}

static void token_files(void **state)
{
    uint8_t file[1024 + 2 * 9] = {0x88, 0xD8, 0x34, 0x01, 1, 0, 0, 0, 9};
    char path[64];
    dp_batch b;
    (void)state;
    dp_data *d = test_open(
        test_config("[data]\nformat = tokens\ntrain = " HOSTILE "nanogpt-uint16.bin\n[model]\ninput = tokens 64\n"), 1);
    dp_data_info f = test_facts(d);
    assert_int_equal(f.samples, 15); /* 999 / 64 */
    assert_int_equal(f.classes, 1000);
    assert_int_equal(f.x_dtype, DP_I32);
    assert_int_equal(f.y_width, 64);
    assert_null(dp_data_vocab(d));
    dp_loader *l = test_whole(d, &b);
    for (int i = 0; i < 15 * 64; i++) {
        assert_int_equal(((const int32_t *)b.x.data)[i], i);
        assert_int_equal(((const int32_t *)b.y.data)[i], i + 1);
    }
    test_close_loader(l, &b);
    dp_data_close(d);

    for (int i = 0; i < 9; i++) file[1024 + 2 * i] = (uint8_t)i, file[1025 + 2 * i] = 1;
    test_write(path, ".bin", file, sizeof file); /* llm.c's header */
    d = test_open(test_config("[data]\nformat = tokens\nwindow = 4\nclasses = 300\ntrain = %s\n", path), 1);
    assert_int_equal(test_facts(d).samples, 2);
    assert_int_equal(test_facts(d).classes, 300);
    l = test_whole(d, &b);
    assert_int_equal(((const int32_t *)b.x.data)[0], 256);
    assert_int_equal(((const int32_t *)b.y.data)[7], 264);
    test_close_loader(l, &b);
    dp_data_close(d);
    unlink(path);
}

/* T tokens are too few, T + 1 give one window, 100 tokens of windows of 8 give 12. */
static void windows_are_counted(void **state)
{
    static const struct {
        size_t bytes;
        int64_t windows;
    } cases[] = {{9, 1}, {16, 1}, {17, 2}, {100, 12}};
    char path[64], text[100];
    (void)state;
    memset(text, 'a', sizeof text);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dp_data *d = test_open(text_config(path, text, cases[i].bytes, "window = 8\n"), 1);
        assert_int_equal(test_facts(d).samples, cases[i].windows);
        assert_int_equal(test_facts(d).classes, 256);
        dp_data_close(d);
        unlink(path);
    }
    test_refused(text_config(path, text, 8, "window = 8\n"), 1, DP_EDATA,
                 "8 tokens for training, a window of 8 needs at least T+1 = 9");
    unlink(path);
    test_refused(text_config(path, text, 0, "window = 8\n"), 1, DP_EDATA, "holds no tokens");
    unlink(path);
    test_refused(text_config(path, text, 50, ""), 1, DP_ECONFIG, "data.window");
    unlink(path);
    test_refused(text_config(path, text, 50, "window = 8\n[model]\ninput = tokens 16\n"), 1, DP_ECONFIG, "input = tokens 16");
    unlink(path);
}

static void characters_are_numbered_in_order(void **state)
{
    static const struct {
        const char *text, *vocab;
        int32_t first, classes;
    } cases[] = {
        {"hello\n", "\\x0aehlo", 2, 5},
        {"b\\a", "\\x5cab", 2, 3},
        {"z\xC3\xA4"
         "a\xE2\x82\xAC\xF0\x9F\x98\x80z",
         "az\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80", 1, 5}, /* code points */
        {"b\xFF"
         "a\xC3",
         "ab\\xc3\\xff", 1, 4},                      /* not UTF-8: bytes */
        {"b\xED\xA0\x80", "b\\x80\\xa0\\xed", 0, 4}, /* a surrogate is not UTF-8 */
        {"b\xC0\xAF", "b\\xaf\\xc0", 0, 3},          /* too long a form neither */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[64];
        dp_batch b;
        dp_data *d = test_open(text_config(path, cases[i].text, strlen(cases[i].text), "window = 1\nvocab = chars\n"), 1);
        unlink(path);
        assert_int_equal(test_facts(d).classes, cases[i].classes);
        assert_string_equal(dp_data_vocab(d), cases[i].vocab);
        dp_loader *l = test_whole(d, &b);
        assert_int_equal(((const int32_t *)b.x.data)[0], cases[i].first);
        test_close_loader(l, &b);
        dp_data_close(d);
    }
}

static void evaluation_texts_use_the_training_vocabulary(void **state)
{
    char train[64], eval[64];
    dp_batch b;
    (void)state;
    test_write(train, ".txt", "abcabcxyz", 9);
    test_write(eval, ".txt", "zzcc", 4);
    const char *ini = "[data]\nformat = tokens\nvocab = chars\nwindow = 2\ntrain = %s\neval = %s\n";
    dp_data *d = test_open(test_config(ini, train, eval), 0);
    assert_int_equal(test_facts(d).classes, 6);
    dp_loader *l = test_whole(d, &b);
    assert_int_equal(((const int32_t *)b.x.data)[0], 5);
    assert_int_equal(((const int32_t *)b.y.data)[1], 2);
    test_close_loader(l, &b);
    dp_data_close(d);
    unlink(eval);
    test_write(eval, ".txt", "abcq", 4);
    test_refused(test_config(ini, train, eval), 0, DP_EDATA,
                 "character 'q' at byte 3 does not occur in the training text (6 characters)");
    unlink(eval);
    unlink(train);
}

/* last 10% by token position, as nanoGPT cuts: the first floor(0.9 n) are for training. */
static void the_last_part_is_cut_off(void **state)
{
    char path[64], text[105];
    dp_batch b;
    (void)state;
    for (int i = 0; i < 105; i++) text[i] = (char)('!' + i % 90);
    dp_data *train = test_open(text_config(path, text, 105, "window = 2\neval = last 10%\n"), 1);
    unlink(path);
    dp_data *eval = test_open(text_config(path, text, 105, "window = 2\neval = last 10%\n"), 0);
    unlink(path);
    assert_int_equal(test_facts(train).samples, 46); /* 94 tokens */
    assert_int_equal(test_facts(eval).samples, 5);   /* 11 tokens */
    dp_loader *l = test_whole(eval, &b);
    assert_int_equal(((const int32_t *)b.x.data)[0], text[94]);
    test_close_loader(l, &b);
    dp_data_close(train);
    dp_data_close(eval);
    test_refused(text_config(path, text, 105, "window = 11\neval = last 10%\n"), 0, DP_EDATA, "11 tokens for evaluation");
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_files_are_refused),
        cmocka_unit_test(token_files),
        cmocka_unit_test(windows_are_counted),
        cmocka_unit_test(characters_are_numbered_in_order),
        cmocka_unit_test(evaluation_texts_use_the_training_vocabulary),
        cmocka_unit_test(the_last_part_is_cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
