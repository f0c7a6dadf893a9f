/* safetensors: a file of the reference implementation byte by byte, round trips, and files that must be refused. */
#include "../../nn/safetensors.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/dp-st-XXXXXX", path[64];

static int make_dir(void **state)
{
    (void)state;
    if (!mkdtemp(dir)) return -1;
    snprintf(path, sizeof path, "%s/x.safetensors", dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir);
}

static void put(const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* A file from a header and `n` bytes of data 0, 1, 2, ... */
static size_t make(uint8_t *file, const char *header, size_t n)
{
    size_t h = strlen(header);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)h >> (8 * i));
    memcpy(file + 8, header, h);
    for (size_t i = 0; i < n; i++) file[8 + h + i] = (uint8_t)i;
    return 8 + h + n;
}

/* What safetensors.torch.save gives for w = [[1, -2.5], [3, 0]] (float32), n = 7 (int64), h = [1.5, -6e-5] (float16),
 * b = [1.5, -3e38] (bfloat16), metadata {"k": "v"}. */
static const char torch_header[] = "{\"__metadata__\":{\"k\":\"v\"},\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,"
                                   "8]},\"w\":{\"dtype\":\"F32\",\"shape\":[2,2],"
                                   "\"data_offsets\":[8,24]},\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[24,28]},"
                                   "\"h\":{\"dtype\":\"F16\",\"shape\":[2],"
                                   "\"data_offsets\":[28,32]}}   ";
static const uint8_t torch_data[32] = "\x07\0\0\0\0\0\0\0\0\0\x80?\0\0 \xc0\0\0@@\0\0\0\0\xc0?b\xff\0>\xef\x83";

static size_t torch_file(uint8_t *file)
{
    size_t n = make(file, torch_header, 32);
    memcpy(file + n - 32, torch_data, 32);
    return n;
}

static void test_read_torch(void **state)
{
    (void)state;
    uint8_t file[512];
    size_t n = torch_file(file);
    dp_st_in *in;
    dp_st_tensor t;
    dp_error err;
    float v[4];
    assert_int_equal(n, 288);
    put(file, n);
    if (dp_st_open(&in, path, &err)) fail_msg("%s", err.text);
    assert_string_equal(dp_st_meta_get(in, "k"), "v");
    assert_null(dp_st_meta_get(in, "K"));
    assert_true(dp_st_find(in, "w", &t));
    assert_int_equal(t.type, DP_ST_F32);
    assert_int_equal(t.rank, 2);
    assert_int_equal(t.shape[1], 2);
    assert_true(dp_st_to_f32(&t, v));
    assert_true(v[0] == 1 && v[1] == -2.5f && v[2] == 3 && v[3] == 0);
    assert_true(dp_st_find(in, "n", &t));
    assert_int_equal(t.rank, 0);
    assert_true(dp_st_to_f32(&t, v));
    assert_true(v[0] == 7);
    assert_true(dp_st_find(in, "h", &t));
    assert_true(dp_st_to_f32(&t, v));
    assert_true(v[0] == 1.5f && v[1] == -0x1.f78p-15f); /* -6e-5 in half precision, a subnormal */
    assert_true(dp_st_find(in, "b", &t));
    assert_true(dp_st_to_f32(&t, v));
    assert_true(v[0] == 1.5f && fabsf(v[1] + 3e38f) < 3e38f / 256);
    assert_false(dp_st_find(in, "x", &t));
    assert_true(dp_st_get(in, 3, &t));
    assert_false(dp_st_get(in, 4, &t));
    assert_false(dp_st_get(in, -1, &t));
    dp_st_close(in);
}

/* The writer gives the same bytes as the reference for the same tensors, up to the order of equal widths: n and w here. */
static void test_write_like_torch(void **state)
{
    (void)state;
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"v\"},\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
        "\"w\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[8,24]}}";
    float w[4] = {1, -2.5f, 3, 0};
    int64_t n = 7;
    uint8_t file[512], want[512];
    dp_error err;
    dp_st_out *o = dp_st_out_new();
    assert_non_null(o);
    assert_int_equal(dp_st_add(o, "w", DP_ST_F32, 2, (int64_t[]){2, 2}, w, 1, &err), DP_OK);
    assert_int_equal(dp_st_add(o, "n", DP_ST_I64, 0, NULL, &n, 0, &err), DP_OK);
    assert_int_equal(dp_st_meta(o, "k", "old", &err), DP_OK);
    assert_int_equal(dp_st_meta(o, "k", "v", &err), DP_OK);
    w[0] = 5; /* was copied */
    if (dp_st_commit(o, path, &err)) fail_msg("%s", err.text);
    dp_st_out_free(o);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t got = fread(file, 1, sizeof file, f), h = (strlen(header) + 7) / 8 * 8;
    fclose(f);
    make(want, header, 0);
    want[0] = (uint8_t)h;
    memset(want + 8 + strlen(header), ' ', h - strlen(header));
    memcpy(want + 8 + h, torch_data, 24);
    assert_int_equal(got, 8 + h + 24);
    assert_memory_equal(file, want, got);
}

static void test_round_trip(void **state)
{
    (void)state;
    static float big[1000];
    static const uint8_t odd[3] = {1, 2, 3};
    static const char strange[] = "a\"\\\n\xc3\xa9";
    double d = 0.1;
    dp_st_in *in;
    dp_st_tensor t;
    dp_error err;
    float v;
    for (int i = 0; i < 1000; i++) big[i] = (float)i / 7;
    dp_st_out *o = dp_st_out_new();
    assert_int_equal(dp_st_add(o, "odd", DP_ST_U8, 1, (int64_t[]){3}, odd, 0, &err), DP_OK);
    assert_int_equal(dp_st_add(o, strange, DP_ST_F32, 3, (int64_t[]){10, 10, 10}, big, 0, &err), DP_OK);
    assert_int_equal(dp_st_add(o, "d", DP_ST_F64, 0, NULL, &d, 1, &err), DP_OK);
    assert_int_equal(dp_st_add(o, "none", DP_ST_F32, 2, (int64_t[]){0, 4}, NULL, 1, &err), DP_OK);
    assert_int_equal(dp_st_meta(o, strange, strange, &err), DP_OK);
    if (dp_st_commit(o, path, &err)) fail_msg("%s", err.text);
    dp_st_out_free(o);
    if (dp_st_open(&in, path, &err)) fail_msg("%s", err.text);
    assert_string_equal(dp_st_meta_get(in, strange), strange);
    assert_true(dp_st_find(in, strange, &t));
    assert_int_equal(t.bytes, sizeof big);
    assert_memory_equal(t.data, big, sizeof big);
    assert_true(dp_st_find(in, "d", &t));
    assert_true(dp_st_to_f32(&t, &v));
    assert_true(v == 0.1f);
    assert_true(dp_st_find(in, "odd", &t));
    assert_false(dp_st_to_f32(&t, &v));
    assert_memory_equal(t.data, odd, 3);
    assert_true(dp_st_find(in, "none", &t));
    assert_int_equal(t.bytes, 0);
    dp_st_close(in);
    dp_st_close(NULL);
    dp_st_out_free(NULL);
}

/* Other writers may put a wide type at an odd place. */
static void test_unaligned(void **state)
{
    (void)state;
    uint8_t file[256];
    dp_st_in *in;
    dp_st_tensor t;
    dp_error err;
    size_t n = make(file,
                    "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
                    "\"data_offsets\":[1,5]}}",
                    5);
    put(file, n);
    if (dp_st_open(&in, path, &err)) fail_msg("%s", err.text);
    assert_true(dp_st_find(in, "b", &t));
    assert_int_equal((uintptr_t)t.data % 4, 0);
    assert_memory_equal(t.data, "\1\2\3\4", 4);
    dp_st_close(in);
}

static void refuse(const void *file, size_t n, const char *want)
{
    dp_st_in *in;
    dp_error err;
    memset(&err, 0, sizeof err);
    put(file, n);
    assert_int_equal(dp_st_open(&in, path, &err), DP_EDATA);
    assert_null(in);
    if (!strstr(err.text, want)) fail_msg("'%s' misses '%s'", err.text, want);
    if (!strstr(err.text, path)) fail_msg("'%s' does not name the file", err.text);
}

static void test_cut_anywhere(void **state)
{
    (void)state;
    uint8_t file[512];
    size_t n = torch_file(file);
    for (size_t cut = 0; cut < n; cut++) refuse(file, cut, cut < 10 ? "not a safetensors file" : "truncated");
    refuse(file, n - 1, "wanted 288 bytes, has 287");
    file[n] = 0;
    refuse(file, n + 1, "1 bytes follow the last tensor");
}

static void test_hostile(void **state)
{
    (void)state;
#define T(name, type, shape, from, to)                                                                                         \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":[" shape "],\"data_offsets\":[" #from "," #to "]}"
    static const struct {
        const char *header, *want;
    } bad[] = {
        {"{" T("a", "F32", "1", 0, 4) "," T("b", "F32", "1", 2, 6) "," T("c", "U8", "2", 6, 8) "}", "overlap"},
        {"{" T("a", "F32", "1", 0, 4) "," T("b", "U8", "3", 5, 8) "}", "leave a gap"},
        {"{" T("a", "F32", "1", 4, 8) "}", "leave a gap"},
        {"{" T("a", "F32", "1", 0, 4) "," T("a", "F32", "1", 4, 8) "}", "two tensors are named \"a\""},
        {"{" T("a", "F32", "3", 0, 8) "}", "take 12 bytes"},
        {"{" T("a", "F32", "2", 8, 0) "}", "data_offsets"},
        {"{" T("a", "F8_E4M3", "8", 0, 8) "}", "has the type \"F8_E4M3\""},
        {"{" T("a", "F32", "-2", 0, 8) "}", "whole numbers"},
        {"{" T("a", "F32", "2.5", 0, 8) "}", "whole numbers"},
        {"{" T("a", "F32", "4294967296,4294967296", 0, 8) "}", "whole numbers"},
        {"{" T("a", "F32", "1,1,1,1,1,1,1,1,2", 0, 8) "}", "at most 8"},
        {"{" T("a", "F32", "1,0", 0, 8) "}", "take 0 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "three fields"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "three fields"},
        {"{\"a\":{\"dtype\":4,\"shape\":[2],\"data_offsets\":[0,8]}}", "three fields"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4,8]}}", "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[\"0\",\"8\"]}}", "data_offsets"},
        {"{\"a\":[0,8]}", "three fields"},
        {"{\"__metadata__\":{\"k\":1}," T("a", "F32", "2", 0, 8) "}", "texts only"},
        {"{\"__metadata__\":7," T("a", "F32", "2", 0, 8) "}", "texts only"},
        {"{}", "8 bytes follow"},
        {"{\"a\":", "not JSON"},
        {"{" T("a", "F32", "2", 0, 8) "} x", "not JSON"},
        {"{" T("a", "F32", "2", 0, 800) "}", "truncated"},
    };
#undef T
    uint8_t file[512];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) refuse(file, make(file, bad[i].header, 8), bad[i].want);
    /* header lengths from nothing to everything */
    static const uint64_t lengths[] = {0, 1, 300, 1000000, 100000001, (uint64_t)1 << 63, UINT64_MAX};
    size_t n = torch_file(file);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (int b = 0; b < 8; b++) file[b] = (uint8_t)(lengths[i] >> (8 * b));
        refuse(file, n, lengths[i] == 300 || lengths[i] == 1000000 ? "truncated" : "not a safetensors file");
    }
}

static void test_guesses(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *want;
    } is[] = {
        {"PK\3\4xxxxxxxxxxxxxxxx", "safetensors.torch.save_file"},
        {"\x80\x02}q\x00xxxxxxxxxxxxxxxxxx", "pickle"},
        {"\x1f\x8b\x08xxxxxxxxxxxxxxxxxx", "gzip"},
        {"<!DOCTYPE html><html><body>", "web page"},
        {"<html><head></head></html>", "web page"},
        {"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"},
        {"hello, this is some text", "not a safetensors file"},
        {"", "not a safetensors file (0 bytes"},
    };
    for (size_t i = 0; i < sizeof is / sizeof *is; i++) refuse(is[i].bytes, i == 1 ? 20 : strlen(is[i].bytes), is[i].want);
}

static void test_argument_errors(void **state)
{
    (void)state;
    dp_error err;
    float x = 0;
    dp_st_in *in;
    dp_st_out *o = dp_st_out_new();
    assert_int_equal(dp_st_add(o, "__metadata__", DP_ST_F32, 0, NULL, &x, 0, &err), DP_EARGUMENT);
    assert_int_equal(dp_st_add(o, "a", DP_ST_F32, 1, (int64_t[]){-1}, &x, 0, &err), DP_EARGUMENT);
    assert_int_equal(dp_st_add(o, "a", DP_ST_F32, 0, NULL, &x, 0, &err), DP_OK);
    assert_int_equal(dp_st_add(o, "a", DP_ST_F32, 0, NULL, &x, 0, &err), DP_OK);
    assert_int_equal(dp_st_commit(o, path, &err), DP_EARGUMENT);
    assert_non_null(strstr(err.text, "\"a\""));
    dp_st_out_free(o);
    unlink(path);
    assert_int_equal(dp_st_open(&in, path, &err), DP_EIO);
    put("", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_torch), cmocka_unit_test(test_write_like_torch), cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_unaligned),  cmocka_unit_test(test_cut_anywhere),     cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_guesses),    cmocka_unit_test(test_argument_errors),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
