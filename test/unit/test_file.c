/* Whole files in (plain, gzip of one or many members, damaged ones) and out (nothing half-written, the earlier file kept). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include "../../dp/base/file.h"

static char dir[256];

static int make_dir(void **state)
{
    const char *tmp = getenv("TMPDIR");
    (void)state;
    snprintf(dir, sizeof dir, "%s/dp-test-file-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    return mkdtemp(dir) ? 0 : -1;
}

/* Names in the directory besides . and .. */
static int entries(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static int remove_dir(void **state)
{
    char path[600];
    DIR *d = opendir(dir);
    (void)state;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        unlink(path);
    }
    if (d) closedir(d);
    return rmdir(dir);
}

static const char *at(char *buf, const char *name)
{
    snprintf(buf, 400, "%s/%s", dir, name);
    return buf;
}

static void put(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static size_t pack(uint8_t *out, size_t room, const void *data, size_t bytes)
{
    z_stream z;
    memset(&z, 0, sizeof z);
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)data, z.avail_in = (uInt)bytes;
    z.next_out = out, z.avail_out = (uInt)room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return room - z.avail_out;
}

static void expect(const char *path, int gunzip, int64_t max, const void *want, size_t want_bytes)
{
    uint8_t *data = NULL;
    size_t bytes = 0;
    dp_error err;
    if (dp_file_read(path, gunzip, max, &data, &bytes, &err)) fail_msg("%s", err.text);
    assert_int_equal(bytes, want_bytes);
    if (want_bytes) assert_memory_equal(data, want, want_bytes);
    assert_int_equal(data[bytes], 0);
    free(data);
}

static void refused(const char *path, int gunzip, int64_t max, dp_status code, const char *word)
{
    uint8_t *data = NULL;
    size_t bytes = 0;
    dp_error err;
    assert_int_equal(dp_file_read(path, gunzip, max, &data, &bytes, &err), code);
    assert_null(data);
    assert_int_equal(err.code, code);
    if (!strstr(err.text, word)) fail_msg("\"%s\" is not in \"%s\"", word, err.text);
    const char *name = strrchr(path, '/');
    assert_non_null(strstr(err.text, name ? name + 1 : path));
}

static void plain(void **state)
{
    char p[400];
    (void)state;
    put(at(p, "plain"), "hello", 5);
    expect(p, 0, 0, "hello", 5);
    expect(p, 1, 0, "hello", 5);
    expect(p, 1, 5, "hello", 5); /* the limit itself is allowed */
    refused(p, 0, 4, DP_EDATA, "more than");
    put(at(p, "empty"), "", 0);
    expect(p, 1, 0, "", 0);
    put(at(p, "one byte"), "\x1f", 1);
    expect(p, 1, 0, "\x1f", 1);
    refused(at(p, "missing"), 0, 0, DP_EIO, "No such file");
    refused(dir, 0, 0, DP_EIO, "directory");
    refused("/dev/zero", 0, 100000, DP_EDATA, "more than");
    assert_int_equal(dp_file_read(at(p, "missing"), 0, 0, &(uint8_t *){NULL}, &(size_t){0}, NULL), DP_EIO);
}

static void gzip(void **state)
{
    static char text[100000];
    static uint8_t z[210000];
    char p[400];
    (void)state;
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)(i * i % 251);
    size_t n = pack(z, sizeof z, text, 50000);
    put(at(p, "one.gz"), z, n);
    expect(p, 1, 0, text, 50000);
    expect(p, 1, 50000, text, 50000);
    expect(p, 0, 0, z, n); /* not asked to unpack */
    refused(p, 1, 49999, DP_EDATA, "more than");

    size_t m = pack(z + n, sizeof z - n, text + 50000, 50000);
    put(at(p, "two members.gz"), z, n + m);
    expect(p, 1, 0, text, sizeof text);

    put(at(p, "cut.gz"), z, n - 9);
    refused(p, 1, 0, DP_EDATA, "cut off");
    put(at(p, "cut trailer.gz"), z, n - 1);
    refused(p, 1, 0, DP_EDATA, "cut off");
    put(at(p, "cut in the second.gz"), z, n + m / 2);
    refused(p, 1, 0, DP_EDATA, "cut off");
    put(at(p, "header only.gz"), z, 2);
    refused(p, 1, 0, DP_EDATA, "cut off");

    memcpy(z + n, "junk", 4);
    put(at(p, "garbage.gz"), z, n + 4);
    refused(p, 1, 0, DP_EDATA, "behind its end");

    z[n - 6] ^= 1; /* a byte of the checksum */
    put(at(p, "crc.gz"), z, n);
    refused(p, 1, 0, DP_EDATA, "checksum");
    z[n - 6] ^= 1, z[n / 2] ^= 0x55;
    put(at(p, "damaged.gz"), z, n);
    refused(p, 1, 0, DP_EDATA, "fetch it again");
}

/* 64 MB of zeros in 64 KB: the limit stops it long before. */
static void bomb(void **state)
{
    static uint8_t z[200000], zeros[1 << 20];
    z_stream s;
    char p[400];
    (void)state;
    memset(&s, 0, sizeof s);
    assert_int_equal(deflateInit2(&s, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    s.next_out = z, s.avail_out = sizeof z;
    for (int i = 0; i < 64; i++) {
        s.next_in = zeros, s.avail_in = sizeof zeros;
        assert_int_equal(deflate(&s, i == 63 ? Z_FINISH : Z_NO_FLUSH), i == 63 ? Z_STREAM_END : Z_OK);
    }
    deflateEnd(&s);
    put(at(p, "bomb.gz"), z, sizeof z - s.avail_out);
    refused(p, 1, 1000000, DP_EDATA, "more than the limit of 1.0 MB");
}

static void written(void **state)
{
    char p[400], link_name[400], big[100000];
    dp_file_out *f = NULL;
    dp_error err;
    (void)state;
    memset(big, 'b', sizeof big);
    at(p, "out");
    assert_int_equal(dp_file_create(&f, p, &err), DP_OK);
    assert_int_equal(access(p, F_OK), -1); /* nothing under the name before the commit */
    assert_int_equal(dp_file_write(f, "ab", 2, &err), DP_OK);
    assert_int_equal(dp_file_write(f, big, sizeof big, &err), DP_OK);
    assert_int_equal(dp_file_write(f, "", 0, &err), DP_OK);
    assert_int_equal(dp_file_commit(&f, &err), DP_OK);
    assert_null(f);
    uint8_t *data;
    size_t bytes;
    assert_int_equal(dp_file_read(p, 0, 0, &data, &bytes, &err), DP_OK);
    assert_int_equal(bytes, 2 + sizeof big);
    assert_memory_equal(data, "abb", 3);
    free(data);
    int before = entries();

    assert_int_equal(dp_file_create(&f, p, &err), DP_OK);
    assert_int_equal(dp_file_write(f, "new", 3, &err), DP_OK);
    dp_file_discard(&f);
    assert_null(f);
    dp_file_discard(&f);
    assert_int_equal(entries(), before); /* no temporary is left */
    assert_int_equal(dp_file_read(p, 0, 0, &data, &bytes, &err), DP_OK);
    assert_int_equal(bytes, 2 + sizeof big);
    free(data);

    /* Two writers of one name: each has its own temporary, the last commit stays. */
    dp_file_out *g = NULL;
    assert_int_equal(dp_file_create(&f, p, &err), DP_OK);
    assert_int_equal(dp_file_create(&g, p, &err), DP_OK);
    assert_int_equal(dp_file_write(f, "first", 5, &err), DP_OK);
    assert_int_equal(dp_file_write(g, "second", 6, &err), DP_OK);
    assert_int_equal(dp_file_commit(&f, &err), DP_OK);
    expect(p, 0, 0, "first", 5);
    assert_int_equal(dp_file_commit(&g, &err), DP_OK);
    expect(p, 0, 0, "second", 6);

    /* A link stays one. */
    assert_int_equal(symlink("out", at(link_name, "link")), 0);
    assert_int_equal(dp_file_create(&f, link_name, &err), DP_OK);
    assert_int_equal(dp_file_write(f, "through", 7, &err), DP_OK);
    assert_int_equal(dp_file_commit(&f, &err), DP_OK);
    expect(p, 0, 0, "through", 7);
    struct stat st;
    assert_int_equal(lstat(link_name, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
}

static void not_written(void **state)
{
    char p[400];
    dp_file_out *f = (dp_file_out *)1;
    dp_error err;
    (void)state;
    assert_int_equal(dp_file_create(&f, at(p, "none/out"), &err), DP_EIO);
    assert_null(f);
    assert_non_null(strstr(err.text, "No such file or directory"));
    /* What is no file is never replaced by one, whoever runs this. */
    assert_int_equal(dp_file_create(&f, "/dev/null", &err), DP_EIO);
    assert_int_equal(dp_file_create(&f, dir, &err), DP_EIO);
    assert_null(f);
}

/* No room, played by a limit of the size of files: the signal that comes with it must not end the process. */
static void no_space(void **state)
{
    static char big[100000];
    char p[400];
    dp_file_out *f = NULL;
    dp_error err;
    struct rlimit was, small;
    sigset_t pending;
    (void)state;
    put(at(p, "kept"), "old", 3);
    int before = entries();
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = was, small.rlim_cur = 50000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    dp_status created = dp_file_create(&f, p, &err), wrote = DP_OK, committed = DP_OK;
    if (!created) wrote = dp_file_write(f, big, sizeof big, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(created, DP_OK);
    assert_int_equal(wrote, DP_ENOSPACE);
    assert_int_equal(err.code, DP_ENOSPACE);
    assert_non_null(strstr(err.text, "kept"));
    assert_non_null(strstr(err.text, "50.0 kB"));
    assert_non_null(strstr(err.text, "File too large"));
    sigpending(&pending);
    assert_int_equal(sigismember(&pending, SIGXFSZ), 0);
    /* A commit after a failed write cannot put half a file in place. */
    committed = dp_file_commit(&f, &err);
    assert_int_not_equal(committed, DP_OK);
    assert_null(f);
    expect(p, 0, 0, "old", 3);
    assert_int_equal(entries(), before);
}

static void temporary_names(void **state)
{
    char p[400];
    dp_file_out *f = NULL;
    int found = 0;
    (void)state;
    assert_int_equal(dp_file_create(&f, at(p, "state-5.safetensors"), NULL), DP_OK);
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        found += dp_file_is_temporary(e->d_name) && !strncmp(e->d_name, "state-5", 7);
    closedir(d);
    dp_file_discard(&f);
    assert_int_equal(found, 1);
    assert_false(dp_file_is_temporary("state-5.safetensors"));
    assert_false(dp_file_is_temporary("config.ini"));
    assert_false(dp_file_is_temporary(""));
    assert_false(dp_file_is_temporary("x.tmp-"));
    assert_false(dp_file_is_temporary("x.tmp-12-"));
    assert_false(dp_file_is_temporary("x.tmp-12-3.txt"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain),       cmocka_unit_test(gzip),     cmocka_unit_test(bomb),           cmocka_unit_test(written),
        cmocka_unit_test(not_written), cmocka_unit_test(no_space), cmocka_unit_test(temporary_names)};
    return cmocka_run_group_tests_name("file", tests, make_dir, remove_dir);
}
