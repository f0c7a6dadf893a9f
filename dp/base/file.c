/* Whole files in, whole files out. A file that is read is either complete or an error; a file that is written appears under its
 * name by rename, after its bytes are on the disk, so that a failure at any point leaves the earlier file as it was. */
#include "file.h"
#include "text.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { SHOWN = 400 };

static int no_space(int errnum)
{
    return errnum == ENOSPC || errnum == EDQUOT || errnum == EFBIG;
}

/* ---- reading ---- */

/* A growing array of bytes; one byte beyond `room` is always there, for the zero at the end. */
typedef struct buffer {
    uint8_t *data;
    size_t bytes, room;
} buffer;

static int grow(buffer *b, size_t room)
{
    uint8_t *more = room < SIZE_MAX / 2 ? realloc(b->data, room + 1) : NULL;
    if (!more) return 0;
    b->data = more, b->room = room;
    return 1;
}

static int is_gzip(const buffer *b)
{
    return b->bytes >= 2 && b->data[0] == 0x1f && b->data[1] == 0x8b;
}

static dp_status too_large(const char *path, int64_t max, const char *how, dp_error *err)
{
    char shown[SHOWN], size[32];
    return dp_fail(err, DP_EDATA, "%s %s more than the limit of %s.", dp_quote(shown, sizeof shown, path), how,
                   dp_bytes_text(size, sizeof size, max));
}

static dp_status no_memory(const char *path, size_t bytes, dp_error *err)
{
    char shown[SHOWN], size[32];
    return dp_fail(err, DP_ENOMEM, "Out of memory: reading %s wants %s.", dp_quote(shown, sizeof shown, path),
                   dp_bytes_text(size, sizeof size, (int64_t)bytes));
}

/* Reads to the end whatever the file's size is said to be: pipes and files of /proc have none. */
static dp_status read_all(int fd, const char *path, int gunzip, int64_t max, buffer *b, dp_error *err)
{
    char shown[SHOWN];
    struct stat st;
    size_t hint = 0;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        return dp_fail(err, DP_EIO, "%s is a directory; a file is wanted.", dp_quote(shown, sizeof shown, path));
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) hint = (size_t)st.st_size;
    if (max > 0 && hint > (size_t)max) hint = (size_t)max;
    if (!grow(b, hint + 1)) return no_memory(path, hint + 1, err);
    for (;;) {
        if (b->bytes == b->room && !grow(b, b->room + b->room / 2 + 65536)) return no_memory(path, b->room + b->room / 2, err);
        ssize_t n = read(fd, b->data + b->bytes, b->room - b->bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return dp_fail_errno(err, DP_EIO, errno, "Cannot read %s", dp_quote(shown, sizeof shown, path));
        if (n == 0) return DP_OK;
        b->bytes += (size_t)n;
        if (max > 0 && b->bytes > (size_t)max && !(gunzip && is_gzip(b))) return too_large(path, max, "holds", err);
    }
}

static dp_status damaged(const char *path, const char *what, dp_error *err)
{
    char shown[SHOWN];
    return dp_fail(err, DP_EDATA, "The gzip file %s %s; fetch it again.", dp_quote(shown, sizeof shown, path), what);
}

/* How much one inflate call may see: zlib counts in 32 bits. */
static uInt piece(size_t bytes)
{
    return (uInt)(bytes < (1u << 30) ? bytes : 1u << 30);
}

/* All members one after the other, as gzip reads them; anything else behind a member is an error. */
static dp_status unpack(const buffer *in, const char *path, int64_t max, buffer *out, dp_error *err)
{
    z_stream z;
    size_t at = 0;
    dp_status s = DP_OK;
    memset(&z, 0, sizeof z);
    if (!grow(out, 3 * in->bytes + 4096)) return no_memory(path, 3 * in->bytes, err);
    if (inflateInit2(&z, 16 + MAX_WBITS) != Z_OK) return no_memory(path, 1 << 16, err);
    while (at < in->bytes) {
        if (out->bytes == out->room && !grow(out, 2 * out->room)) {
            s = no_memory(path, 2 * out->room, err);
            break;
        }
        uInt given = piece(in->bytes - at), room = piece(out->room - out->bytes);
        z.next_in = in->data + at, z.avail_in = given;
        z.next_out = out->data + out->bytes, z.avail_out = room;
        int r = inflate(&z, Z_NO_FLUSH);
        at += given - z.avail_in;
        out->bytes += room - z.avail_out;
        if (max > 0 && out->bytes > (size_t)max)
            s = too_large(path, max, "unpacks to", err);
        else if (r == Z_MEM_ERROR)
            s = no_memory(path, 1 << 16, err);
        else if (r == Z_DATA_ERROR || r == Z_NEED_DICT)
            s = damaged(path, z.msg && strstr(z.msg, "check") ? "has a wrong checksum" : "is damaged", err);
        else if (r == Z_STREAM_END && at == in->bytes)
            break;
        else if (r == Z_STREAM_END && (in->bytes - at < 2 || in->data[at] != 0x1f || in->data[at + 1] != 0x8b))
            s = damaged(path, "has other bytes behind its end", err);
        else if (r == Z_STREAM_END)
            inflateReset(&z);
        else if (at == in->bytes && z.avail_out)
            s = damaged(path, "is cut off", err);
        if (s) break;
    }
    inflateEnd(&z);
    return s;
}

/* A relative name is only half of what was looked for. */
static dp_status cannot_open(const char *path, int errnum, dp_error *err)
{
    char shown[SHOWN], cwd[PATH_MAX];
    dp_quote(shown, sizeof shown, path);
    if (*path == '/' || !getcwd(cwd, sizeof cwd)) return dp_fail_errno(err, DP_EIO, errnum, "Cannot open %s", shown);
    return dp_fail_errno(err, DP_EIO, errnum, "Cannot open %s in the directory %s", shown, cwd);
}

dp_status dp_file_read(const char *path, int gunzip, int64_t max, uint8_t **data, size_t *bytes, dp_error *err)
{
    buffer b = {NULL, 0, 0}, plain = {NULL, 0, 0};
    dp_status s;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return cannot_open(path, errno, err);
    s = read_all(fd, path, gunzip, max, &b, err);
    close(fd);
    if (!s && gunzip && is_gzip(&b)) {
        s = unpack(&b, path, max, &plain, err);
        free(b.data);
        b = plain;
    }
    if (s) {
        free(b.data);
        return s;
    }
    grow(&b, b.bytes); /* giving memory back; where that fails the larger block serves as well */
    b.data[b.bytes] = 0;
    *data = b.data, *bytes = b.bytes;
    return DP_OK;
}

/* ---- writing ---- */

struct dp_file_out {
    int fd;
    int lent;        /* the caller's descriptor: nothing to replace */
    int failed;      /* a write failed: nothing is committed any more */
    int64_t written; /* bytes so far */
    char *path, *temporary, *directory;
};

static dp_status write_failed(dp_file_out *f, int errnum, const char *doing, dp_error *err)
{
    char shown[SHOWN], size[32];
    f->failed = 1;
    return dp_fail_errno(err, no_space(errnum) ? DP_ENOSPACE : DP_EIO, errnum,
                         "Cannot %s %s after %s; what was there before is kept", doing, dp_quote(shown, sizeof shown, f->path),
                         dp_bytes_text(size, sizeof size, f->written));
}

void dp_file_discard(dp_file_out **file)
{
    dp_file_out *f = *file;
    if (!f) return;
    if (f->fd >= 0 && !f->lent) {
        close(f->fd);
        unlink(f->temporary);
    }
    free(f->path);
    free(f->temporary);
    free(f->directory);
    free(f);
    *file = NULL;
}

/* Where the file really lies: a link is written through, and what is no regular file (a device, a pipe) is never replaced. */
static dp_status find_target(dp_file_out *f, const char *path, dp_error *err)
{
    char shown[SHOWN];
    struct stat st;
    int exists = lstat(path, &st) == 0;
    f->path = exists && S_ISLNK(st.st_mode) ? realpath(path, NULL) : strdup(path);
    if (!f->path)
        return dp_fail_errno(err, errno == ENOMEM ? DP_ENOMEM : DP_EIO, errno, "Cannot write %s",
                             dp_quote(shown, sizeof shown, path));
    if (exists && stat(f->path, &st) == 0 && !S_ISREG(st.st_mode))
        return dp_fail(err, DP_EIO, "Cannot write %s: it is no regular file. Name another one.",
                       dp_quote(shown, sizeof shown, path));
    const char *slash = strrchr(f->path, '/');
    f->directory = !slash ? strdup(".") : slash == f->path ? strdup("/") : strndup(f->path, (size_t)(slash - f->path));
    size_t size = strlen(f->path) + 48;
    f->temporary = malloc(size);
    return f->directory && f->temporary ? DP_OK : dp_fail(err, DP_ENOMEM, "Out of memory for the name of a file.");
}

dp_status dp_file_create(dp_file_out **file, const char *path, dp_error *err)
{
    char shown[SHOWN];
    dp_file_out *f = calloc(1, sizeof *f);
    *file = NULL;
    if (!f) return dp_fail(err, DP_ENOMEM, "Out of memory for writing %s.", dp_quote(shown, sizeof shown, path));
    f->fd = -1;
    dp_status s = find_target(f, path, err);
    /* Another thread may be writing the same name: each gets a temporary of its own. */
    for (int k = 0; !s && f->fd < 0; k++) {
        dp_format(f->temporary, strlen(f->path) + 48, "%s.tmp-%ld-%d", f->path, (long)getpid(), k);
        f->fd = open(f->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (f->fd < 0 && (errno != EEXIST || k == 999)) s = write_failed(f, errno, "create", err);
    }
    if (s) dp_file_discard(&f);
    *file = f;
    return s;
}

dp_status dp_file_into(dp_file_out **file, int fd, dp_error *err)
{
    dp_file_out *f = calloc(1, sizeof *f);
    char name[48];
    dp_format(name, sizeof name, "descriptor %d", fd);
    *file = f;
    if (f) f->fd = fd, f->lent = 1, f->path = strdup(name);
    if (f && f->path) return DP_OK;
    dp_file_discard(file);
    return dp_fail(err, DP_ENOMEM, "Out of memory for writing to %s.", name);
}

/* write(2) over a size limit raises SIGXFSZ, which would end the host's process: it is held back on this thread for the call. */
static ssize_t write_quietly(int fd, const void *data, size_t bytes)
{
    sigset_t limit, before, pending;
    struct timespec now = {0, 0};
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &limit, &before);
    int was_pending = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
    ssize_t n = write(fd, data, bytes);
    int errnum = errno;
    if (n < 0 && errnum == EFBIG && !was_pending) sigtimedwait(&limit, NULL, &now);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = errnum;
    return n;
}

dp_status dp_file_write(dp_file_out *f, const void *data, size_t bytes, dp_error *err)
{
    const char *at = data;
    while (bytes) {
        ssize_t n = write_quietly(f->fd, at, bytes < (1u << 30) ? bytes : 1u << 30);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return write_failed(f, errno, "write", err);
        at += n, bytes -= (size_t)n, f->written += n;
    }
    return DP_OK;
}

/* Some file systems have no fsync for what it is asked for and say EINVAL: there is nothing to wait for then. */
static int sync_fd(int fd)
{
    int r;
    do r = fsync(fd);
    while (r && errno == EINTR);
    return r && errno != EINVAL && errno != ENOTSUP ? -1 : 0;
}

dp_status dp_file_commit(dp_file_out **file, dp_error *err)
{
    char shown[SHOWN];
    dp_file_out *f = *file;
    dp_status s = DP_OK;
    if (f->lent) {
        dp_file_discard(file);
        return DP_OK;
    }
    int dir = open(f->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->failed)
        s = dp_fail(err, DP_EIO, "%s was not written: an earlier write to it failed.", dp_quote(shown, sizeof shown, f->path));
    else if (sync_fd(f->fd))
        s = write_failed(f, errno, "write", err);
    if (!s) {
        int r = close(f->fd), errnum = errno;
        f->fd = -1;
        if (r && errnum != EINTR)
            s = write_failed(f, errnum, "write", err);
        else if (rename(f->temporary, f->path))
            s = write_failed(f, errno, "replace", err);
        if (s) unlink(f->temporary);
    }
    /* Directories that may be written but not read cannot be synced; the rename itself has happened. */
    if (!s && dir >= 0 && sync_fd(dir))
        s = dp_fail_errno(err, DP_EIO, errno, "%s is written, but its directory cannot be brought to the disk",
                          dp_quote(shown, sizeof shown, f->path));
    if (dir >= 0) close(dir);
    dp_file_discard(file);
    return s;
}

int dp_file_is_temporary(const char *name)
{
    const char *at = NULL;
    for (const char *p = name; (p = strstr(p, ".tmp-")) != NULL; p += 5) at = p + 5;
    if (!at) return 0;
    size_t pid = strspn(at, "0123456789");
    if (!pid || at[pid] != '-') return 0;
    size_t k = strspn(at + pid + 1, "0123456789");
    return k > 0 && !at[pid + 1 + k];
}
