/* Whole files in and out. A file that is written appears under its name only when all of it is on the disk. */
#include "file.h"
#include "memory.h"
#include "text.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

/* ---- reading ---- */

static dp_status cannot_read(const char *path, int errnum, dp_error *err)
{
    char cwd[PATH_MAX], q[400];
    dp_quote(q, sizeof q, path);
    if (*path != '/' && errnum == ENOENT && getcwd(cwd, sizeof cwd))
        return dp_fail(err, DP_EIO, "Cannot read %s: there is no such file in %s.", q, cwd);
    return dp_fail_errno(err, DP_EIO, errnum, "Cannot read %s", q);
}

static dp_status read_all(const char *path, int64_t max, uint8_t **data, size_t *bytes, dp_error *err)
{
    struct stat st;
    uint8_t *p = NULL;
    size_t room = 0, n = 0;
    dp_status status = DP_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return cannot_read(path, errno, err);
    if (fstat(fd, &st)) {
        status = cannot_read(path, errno, err);
        goto fail;
    }
    if (S_ISDIR(st.st_mode)) {
        status = dp_fail(err, DP_EIO, "Cannot read %s: it is a directory, a file is wanted.", path);
        goto fail;
    }
    room = S_ISREG(st.st_mode) && st.st_size > 0 ? (size_t)st.st_size : 65536;
    for (;;) {
        if (max && (int64_t)n > max) {
            status = dp_fail(err, DP_EDATA, "%s is larger than the %lld bytes that are taken here.", path, (long long)max);
            goto fail;
        }
        if (!p || n == room) {
            if (p) room *= 2;
            uint8_t *more = realloc(p, room + 1);
            if (!more) {
                status = dp_fail(err, DP_ENOMEM, "Out of memory while reading %s (%zu bytes so far).", path, n);
                goto fail;
            }
            p = more;
        }
        ssize_t got = read(fd, p + n, room - n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            status = cannot_read(path, errno, err);
            goto fail;
        }
        if (got == 0) break;
        n += (size_t)got;
        if (n == room && S_ISREG(st.st_mode) && (off_t)n == st.st_size) break;
    }
    close(fd);
    p[n] = 0;
    *data = p, *bytes = n;
    return DP_OK;
fail:
    free(p);
    close(fd);
    return status;
}

/* gzip of one or several members (RFC 1952). */
static dp_status unpack(const char *path, const uint8_t *in, size_t in_bytes, int64_t max, uint8_t **data, size_t *bytes, dp_error *err)
{
    z_stream z = {0};
    size_t room = in_bytes * 4 + 65536, n = 0, used = 0;
    uint8_t *p = malloc(room + 1);
    dp_status status;
    if (!p || inflateInit2(&z, 15 + 16) != Z_OK) {
        free(p);
        return dp_fail(err, DP_ENOMEM, "Out of memory while unpacking %s.", path);
    }
    for (;;) {
        if (max && (int64_t)n > max) {
            status = dp_fail(err, DP_EDATA, "%s unpacks to more than the %lld bytes that are taken here.", path, (long long)max);
            goto fail;
        }
        if (n == room) {
            uint8_t *more = realloc(p, 2 * room + 1);
            if (!more) {
                status = dp_fail(err, DP_ENOMEM, "Out of memory while unpacking %s (%zu bytes so far).", path, n);
                goto fail;
            }
            p = more, room *= 2;
        }
        size_t want_in = in_bytes - used < UINT_MAX / 2 ? in_bytes - used : UINT_MAX / 2;
        size_t want_out = room - n < UINT_MAX / 2 ? room - n : UINT_MAX / 2;
        z.next_in = (Bytef *)(uintptr_t)(in + used), z.avail_in = (uInt)want_in;
        z.next_out = p + n, z.avail_out = (uInt)want_out;
        int r = inflate(&z, Z_NO_FLUSH);
        used += want_in - z.avail_in;
        n += want_out - z.avail_out;
        if (r == Z_STREAM_END) {
            if (used == in_bytes) break;
            if (in_bytes - used < 2 || in[used] != 0x1f || in[used + 1] != 0x8b) {
                status = dp_fail(err, DP_EDATA, "%s: %zu bytes that are not gzip follow after the packed data.", path, in_bytes - used);
                goto fail;
            }
            inflateReset(&z);
        } else if (r == Z_BUF_ERROR && used == in_bytes) {
            status = dp_fail(err, DP_EDATA, "%s: the gzip data ends too early (truncated after %zu bytes); fetch it again.", path, in_bytes);
            goto fail;
        } else if (r != Z_OK && r != Z_BUF_ERROR) {
            status = dp_fail(err, DP_EDATA, "%s: the gzip data is damaged (%s); fetch it again.", path, z.msg ? z.msg : "wrong data");
            goto fail;
        }
    }
    inflateEnd(&z);
    p[n] = 0;
    *data = p, *bytes = n;
    return DP_OK;
fail:
    inflateEnd(&z);
    free(p);
    return status;
}

dp_status dp_file_read(const char *path, int gunzip, int64_t max, uint8_t **data, size_t *bytes, dp_error *err)
{
    DP_TRY(read_all(path, max, data, bytes, err));
    if (!gunzip || *bytes < 2 || (*data)[0] != 0x1f || (*data)[1] != 0x8b) return DP_OK;
    uint8_t *packed = *data;
    dp_status status = unpack(path, packed, *bytes, max, data, bytes, err);
    free(packed);
    if (status) *data = NULL;
    return status;
}

/* ---- writing ---- */

struct dp_file_out {
    int fd;
    int64_t written;
    char path[PATH_MAX], temporary[PATH_MAX];
};

static const char suffix[] = ".writing-";

int dp_file_is_temporary(const char *name)
{
    const char *at = strstr(name, suffix);
    return at && at[sizeof suffix - 1] && strspn(at + sizeof suffix - 1, "0123456789") == strlen(at + sizeof suffix - 1);
}

static dp_status cannot_write(const dp_file_out *f, int errnum, size_t bytes, dp_error *err)
{
    int full = errnum == ENOSPC || errnum == EDQUOT || errnum == EFBIG;
    if (full)
        return dp_fail_errno(err, DP_ENOSPACE, errnum, "No room for %s (%lld bytes written, %zu more wanted)", f->path, (long long)f->written, bytes);
    return dp_fail_errno(err, DP_EIO, errnum, "Cannot write %s", f->path);
}

dp_status dp_file_create(dp_file_out **out, const char *path, dp_error *err)
{
    dp_file_out *f = dp_calloc(1, sizeof *f);
    *out = NULL;
    if (!f) return dp_fail(err, DP_ENOMEM, "Out of memory while writing %s.", path);
    if (dp_format(f->path, sizeof f->path, "%s", path) >= (int)sizeof f->path ||
        dp_format(f->temporary, sizeof f->temporary, "%s%s%ld", path, suffix, (long)getpid()) >= (int)sizeof f->temporary) {
        free(f);
        return dp_fail(err, DP_EIO, "The path %.100s... is too long.", path);
    }
    f->fd = open(f->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (f->fd < 0) {
        dp_status status = cannot_write(f, errno, 0, err);
        free(f);
        return status;
    }
    *out = f;
    return DP_OK;
}

dp_status dp_file_write(dp_file_out *f, const void *data, size_t bytes, dp_error *err)
{
    const char *p = data;
    while (bytes) {
        ssize_t n = write(f->fd, p, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return cannot_write(f, n < 0 ? errno : EIO, bytes, err);
        f->written += n;
        p += n, bytes -= (size_t)n;
    }
    return DP_OK;
}

static void sync_directory(const char *path)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    dp_format(dir, sizeof dir, "%.*s", slash ? (slash == path ? 1 : (int)(slash - path)) : 1, slash ? path : ".");
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd); /* some file systems cannot; the rename stands all the same */
    close(fd);
}

dp_status dp_file_commit(dp_file_out **out, dp_error *err)
{
    dp_file_out *f = *out;
    int fd = f->fd;
    if (fsync(fd)) {
        dp_status status = cannot_write(f, errno, 0, err);
        dp_file_discard(out);
        return status;
    }
    f->fd = -1;
    if (close(fd) || rename(f->temporary, f->path)) {
        dp_status status = cannot_write(f, errno, 0, err);
        dp_file_discard(out);
        return status;
    }
    sync_directory(f->path);
    free(f);
    *out = NULL;
    return DP_OK;
}

void dp_file_discard(dp_file_out **out)
{
    dp_file_out *f = *out;
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    unlink(f->temporary);
    free(f);
    *out = NULL;
}
