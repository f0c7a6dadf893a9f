/* The lock of a run directory: a file with the holder's pid and start time, and flock on it. flock decides between
 * processes of one machine and ends with its holder, however that dies. The pid names the holder in messages and decides
 * where flock is not carried (network file systems); the start time tells the holder from a later process that got its
 * pid. */
#include "lock.h"
#include "../base/text.h"
#include "rundir.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct holder {
    int64_t pid;   /* 0: none */
    int64_t start; /* clock ticks after boot; 0: not known */
} holder;

static size_t read_text(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, size - 1);
    if (fd >= 0) close(fd);
    if (n < 0) n = 0;
    text[n] = 0;
    return (size_t)n;
}

/* Field 22 of /proc/PID/stat; the name in field 2 may hold blanks and brackets, so the count starts behind the last
 * bracket. */
static int64_t start_of(int64_t pid)
{
    char path[64], text[1024], *p;
    int64_t start = 0;
    dp_format(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    if (!read_text(path, text, sizeof text) || !(p = strrchr(text, ')'))) return 0;
    for (int field = 2; field < 22 && p; field++) p = strchr(p + 1, ' ');
    if (!p) return 0;
    p[1 + strcspn(p + 1, " \n")] = 0;
    return dp_parse_int(p + 1, &start) == 1 ? start : 0;
}

static holder read_holder(const char *path)
{
    char text[64], *blank;
    holder h = {0, 0};
    read_text(path, text, sizeof text);
    text[strcspn(text, "\n")] = 0;
    blank = strchr(text, ' ');
    if (blank) *blank = 0;
    if (dp_parse_int(text, &h.pid) != 1 || h.pid <= 0) h.pid = 0;
    if (!blank || dp_parse_int(blank + 1, &h.start) != 1) h.start = 0;
    return h;
}

static int alive(holder h)
{
    if (!h.pid || h.pid == getpid()) return 0; /* within this process flock decides */
    if (kill((pid_t)h.pid, 0) && errno != EPERM) return 0;
    return !h.start || h.start == start_of(h.pid);
}

static dp_status held(const char *dir, const char *path, holder h, dp_error *err)
{
    return dp_fail(err, DP_ECONFIG, "%s is in use by process %lld (lock file %s): wait for it to end, or give another run.dir.",
                   dir, (long long)h.pid, path);
}

dp_status dp_lock_look(const char *dir, dp_error *err)
{
    dp_status s = DP_OK;
    char *path = dp_rundir_file(dir, "lock");
    if (!path) return dp_fail(err, DP_ENOMEM, "Out of memory while looking at the lock of %s.", dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        holder h = read_holder(path);
        if ((flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK) || alive(h)) s = held(dir, path, h, err);
        close(fd);
    }
    free(path);
    return s;
}

dp_status dp_lock_take(const char *dir, char **lock, int *lock_fd, dp_error *err)
{
    dp_status s = DP_OK;
    struct stat mine, there;
    char text[64];
    int fd = -1;
    char *path = dp_rundir_file(dir, "lock");
    if (!path) return dp_fail(err, DP_ENOMEM, "Out of memory while locking %s.", dir);
    for (;;) {
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0) {
            s = dp_fail_errno(err, DP_EIO, errno, "Cannot create the lock file %s", path);
            goto fail;
        }
        if ((flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) || alive(read_holder(path))) {
            s = held(dir, path, read_holder(path), err);
            goto fail;
        }
        /* The holder may have removed the file between our open and our flock: then this lock is on a file without a
         * name. */
        if (!fstat(fd, &mine) && !stat(path, &there) && mine.st_ino == there.st_ino && mine.st_dev == there.st_dev) break;
        close(fd);
    }
    int n = dp_format(text, sizeof text, "%lld %lld\n", (long long)getpid(), (long long)start_of(getpid()));
    if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) != n) {
        s = dp_fail_errno(err, DP_EIO, errno, "Cannot write the lock file %s", path);
        goto fail;
    }
    *lock = path, *lock_fd = fd;
    return DP_OK;
fail:
    if (fd >= 0) close(fd);
    free(path);
    return s;
}

void dp_lock_drop(char **lock, int *lock_fd)
{
    if (!*lock) return;
    unlink(*lock); /* before the flock ends, see dp_lock_take */
    close(*lock_fd);
    free(*lock);
    *lock = NULL, *lock_fd = -1;
}
