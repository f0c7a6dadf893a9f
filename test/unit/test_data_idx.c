/* IDX files: the set that ships, pairs and directories, the evaluation part, and every broken file with its message. */
#include "data_test.h"

#define HOSTILE "test/hostile/idx/"
#define MEAN    0.286448676971 /* of the 2,000 images, /255 */
#define STD     0.354434604616

static dp_config *pair(const char *images, const char *labels)
{
    return test_config("[data]\nformat = idx\nclasses = 10\ntrain = " HOSTILE "%s, " HOSTILE "%s\n", images, labels);
}

static void broken_images_are_refused(void **state)
{
    static const struct {
        const char *file, *phrase; /* the reading of gzip has its own words: only the name is compared there */
    } cases[] = {
        {"html-page.gz", "looks like an HTML page"},
        {"empty.gz", "is empty"},
        {"header-only-3-bytes", "has 3 bytes, the header alone of IDX images takes 16"},
        {"no-body", "has 16 bytes"},
        {"short-by-one", "has 15695 bytes (unpacked), its header says 20 images of 28 x 28 = 15696 bytes: it is cut off"},
        {"short.gz", "short.gz"},
        {"bad-crc.gz", "bad-crc.gz"},
        {"flipped-byte.gz", "flipped-byte.gz"},
        {"magic-label-as-image", "this is a file of labels"},
        {"little-endian-header", "bytes reversed"},
        {"magic-zero-violated", "wanted 2051"},
        {"type-int16", "int16"},
        {"type-int32", "int32"},
        {"type-float64", "float64"},
        {"type-unknown", "unknown"},
        {"rows-zero", "is 0: nothing to train on"},
        {"dims-overflow32", "it is cut off"},
        {"count-huge", "2147483647 images"},
        {"ndim-zero", "wanted 2051"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        test_refused(pair(cases[i].file, "ok-labels"), 1, DP_EDATA, cases[i].phrase);
}

static void broken_labels_are_refused(void **state)
{
    (void)state;
    test_refused(pair("ok-images", "labels-19-for-20-images"), 1, DP_EDATA, "has 20 images and ");
    test_refused(pair("ok-images", "labels-19-for-20-images"), 1, DP_EDATA, "has 19 labels");
    test_refused(pair("ok-images", "label-out-of-range"), 1, DP_EDATA, "label 10, allowed are 0..9");
    test_refused(pair("ok-images", "labels-1-based"), 1, DP_EDATA, "record 0: label 10, allowed are 0..9");
    test_refused(pair("ok-images", "ok-images"), 1, DP_EDATA, "this is a file of images");
    test_refused(pair("ok-images", "not-there"), 1, DP_EIO, "not-there");
}

/* 0, 7, one too few, one too many bytes: four messages with the wanted and the found size; and sizes beyond 64 bits. */
static void sizes_are_compared_with_the_header(void **state)
{
    uint8_t file[16 + 2 * 3 * 4 + 1] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4};
    static const uint8_t huge[16] = {0, 0, 8, 3, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
    static const struct {
        size_t bytes;
        const char *phrase;
    } cases[] = {{0, "is empty"},
                 {7, "has 7 bytes, the header alone"},
                 {39, "has 39 bytes (unpacked), its header says 2 images of 3 x 4 = 40 bytes: it is cut off"},
                 {41, "has 41 bytes (unpacked), its header says 2 images of 3 x 4 = 40 bytes: it is too long"}};
    char path[64], root[512];
    (void)state;
    assert_non_null(realpath(test_root(), root));
    for (size_t i = 0; i < 5; i++) {
        test_write(path, "", i < 4 ? file : huge, i < 4 ? cases[i].bytes : sizeof huge);
        test_refused(test_config("[data]\nformat = idx\ntrain = %s,%s/" HOSTILE "ok-labels\n", path, root), 1, DP_EDATA,
                     i < 4 ? cases[i].phrase : "overflow 64 bits");
        unlink(path);
    }
}

static void good_files_give_equal_samples(void **state)
{
    static const char *const files[] = {"ok-images", "ok-images.gz", "ok-gz-without-suffix", "gz-suffix-but-plain.gz"};
    static uint8_t want[20 * 784];
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        dp_batch b;
        dp_data *d = test_open(pair(files[i], "ok-labels"), 1);
        dp_data_info f = test_facts(d);
        assert_int_equal(f.samples, 20);
        assert_int_equal(f.x_rank, 3);
        assert_int_equal(f.x_shape[0], 1);
        assert_int_equal(f.x_shape[1], 28);
        assert_int_equal(f.x_shape[2], 28);
        assert_int_equal(f.x_dtype, DP_U8);
        assert_int_equal(f.y_dtype, DP_U8);
        assert_int_equal(f.classes, 10);
        dp_loader *l = test_whole(d, &b);
        if (i == 0) memcpy(want, b.x.data, sizeof want);
        assert_memory_equal(b.x.data, want, sizeof want);
        test_close_loader(l, &b);
        dp_data_close(d);
    }
}

static void log_warning(void *user, dp_level level, const char *text)
{
    if (level == DP_LOG_WARN && strstr(text, "all labels are")) ++*(int *)user;
}

static void one_class_only_is_a_warning(void **state)
{
    int warnings = 0;
    dp_data *d;
    dp_error e;
    char text[256];
    (void)state;
    dp_config *c = dp_config_new(log_warning, &warnings);
    int n = snprintf(text, sizeof text, "[data]\nformat = idx\ntrain = " HOSTILE "ok-images," HOSTILE "labels-all-same\n");
    assert_int_equal(dp_config_parse(c, text, (size_t)n, "test.ini", test_root(), &e), DP_OK);
    assert_int_equal(dp_data_open(&d, c, 1, &e), DP_OK);
    assert_int_equal(warnings, 1);
    dp_data_close(d);
    dp_config_free(c);
}

/* The set that ships: 2,000 and 400 images, balanced; mean and deviation as numpy gives them. */
static void the_sample_set(void **state)
{
    const char *ini = "[data]\nformat = idx\ntrain = data/samples/fashion-mnist-mini\n";
    double mean, std;
    dp_error e;
    dp_batch b;
    (void)state;
    dp_data *train = test_open(test_config("%s", ini), 1), *eval = test_open(test_config("%s", ini), 0);
    assert_non_null(eval);
    assert_int_equal(test_facts(train).samples, 2000);
    assert_int_equal(test_facts(eval).samples, 400);
    assert_int_equal(test_facts(train).classes, 10);
    for (int k = 0; k < 2; k++) {
        int count[256] = {0};
        dp_loader *l = test_whole(k ? eval : train, &b);
        for (int64_t i = 0; i < b.y.n; i++) count[((const uint8_t *)b.y.data)[i]]++;
        for (int i = 0; i < 10; i++) assert_int_equal(count[i], k ? 40 : 200);
        test_close_loader(l, &b);
    }
    assert_int_equal(dp_data_moments(train, &mean, &std, 1, &e), DP_OK);
    assert_true(mean > MEAN - 1e-9 && mean < MEAN + 1e-9);
    assert_true(std > STD - 1e-9 && std < STD + 1e-9);
    dp_data_close(train);
    dp_data_close(eval);

    dp_data *same = test_open(test_config("%seval = data/samples/fashion-mnist-mini\n", ini), 0);
    assert_int_equal(test_facts(same).samples, 400);
    dp_data_close(same);
}

/* eval = last 10%: the training set ends where the evaluation set begins; classes are those of the whole file. */
static void the_last_part_is_cut_off(void **state)
{
    const char *ini = "[data]\nformat = idx\ntrain = data/samples/fashion-mnist-mini\neval = last 12.5%\n";
    dp_batch all, head, tail;
    (void)state;
    dp_data *whole = test_open(test_config("[data]\nformat = idx\ntrain = data/samples/fashion-mnist-mini\n"), 1);
    dp_data *train = test_open(test_config("%s", ini), 1), *eval = test_open(test_config("%s", ini), 0);
    assert_int_equal(test_facts(train).samples, 1750);
    assert_int_equal(test_facts(eval).samples, 250);
    dp_loader *a = test_whole(whole, &all), *t = test_whole(train, &head), *v = test_whole(eval, &tail);
    assert_memory_equal(head.x.data, all.x.data, 1750 * 784);
    assert_memory_equal(tail.x.data, (const uint8_t *)all.x.data + 1750 * 784, 250 * 784);
    assert_memory_equal(tail.y.data, (const uint8_t *)all.y.data + 1750, 250);
    test_close_loader(a, &all);
    test_close_loader(t, &head);
    test_close_loader(v, &tail);
    dp_data_close(whole);
    dp_data_close(train);
    dp_data_close(eval);
}

static void paths_are_explained(void **state)
{
    (void)state;
    test_refused(test_config("[data]\nformat = idx\n"), 1, DP_ECONFIG, "data.train");
    test_refused(test_config("[data]\nformat = idx\ntrain = nowhere\n"), 1, DP_EIO, "IMAGES,LABELS");
    test_refused(test_config("[data]\nformat = idx\ntrain = data\n"), 1, DP_EIO, "train-images-idx3-ubyte");
    test_refused(test_config("[data]\nformat = idx\ntrain = data\neval = last 0%%\n"), 1, DP_ECONFIG, "0 < P < 100");
    test_refused(test_config("[data]\nformat = idx\ntrain = data/samples/fashion-mnist-mini\neval = last 99.99%%\n"), 1,
                 DP_EDATA, "empty");
    dp_data *none = test_open(pair("ok-images", "ok-labels"), 0);
    assert_null(none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_images_are_refused),          cmocka_unit_test(broken_labels_are_refused),
        cmocka_unit_test(sizes_are_compared_with_the_header), cmocka_unit_test(good_files_give_equal_samples),
        cmocka_unit_test(one_class_only_is_a_warning),        cmocka_unit_test(the_sample_set),
        cmocka_unit_test(the_last_part_is_cut_off),           cmocka_unit_test(paths_are_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
