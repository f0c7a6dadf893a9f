/* The run directory. Kinds of content: config.ini, log.jsonl, state-N.safetensors, last and best.safetensors, the lock,
 * and temporaries of saves that were killed. Nothing else in a directory is ever touched. */
#include "rundir.h"
#include "../base/file.h"
#include "../base/text.h"
#include "lock.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char state_prefix[] = "state-", state_suffix[] = ".safetensors";

char *dp_rundir_file(const char *dir, const char *name)
{
    size_t size = strlen(dir) + strlen(name) + 2;
    char *p = malloc(size);
    if (p) dp_format(p, size, "%s%s%s", dir, dir[0] && dir[strlen(dir) - 1] == '/' ? "" : "/", name);
    return p;
}

char *dp_rundir_state_file(const char *dir, int64_t step)
{
    char name[64]; /* eight digits sort as text, too; more digits still sort here, by number */
    dp_format(name, sizeof name, "%s%08lld%s", state_prefix, (long long)step, state_suffix);
    return dp_rundir_file(dir, name);
}

static int is_state(const char *name, int64_t *step)
{
    char digits[24];
    size_t n = strlen(name), a = sizeof state_prefix - 1, b = sizeof state_suffix - 1;
    if (n <= a + b || n - a - b >= sizeof digits || strncmp(name, state_prefix, a) || strcmp(name + n - b, state_suffix))
        return 0;
    memcpy(digits, name + a, n - a - b);
    digits[n - a - b] = 0;
    return strspn(digits, "0123456789") == n - a - b && dp_parse_int(digits, step) == 1;
}

static int is_result(const char *name)
{
    static const char *const names[] = {"config.ini",       "log.jsonl",  "last.safetensors",
                                        "best.safetensors", "trace.json", "report.html"};
    int64_t step;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return 1;
    return is_state(name, &step);
}

static int by_step(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

dp_status dp_rundir_states(const char *path, int64_t **steps, int *n, dp_error *err)
{
    struct dirent *e;
    int room = 0;
    DIR *d = opendir(path);
    *steps = NULL, *n = 0;
    if (!d) return errno == ENOENT ? DP_OK : dp_fail_errno(err, DP_EIO, errno, "Cannot read the run directory %s", path);
    while ((e = readdir(d))) {
        int64_t step;
        if (!is_state(e->d_name, &step)) continue;
        if (*n == room) {
            int64_t *p = realloc(*steps, sizeof *p * (size_t)(room = room * 2 + 16));
            if (!p) {
                free(*steps);
                closedir(d);
                *steps = NULL, *n = 0;
                return dp_fail(err, DP_ENOMEM, "Out of memory while listing %s.", path);
            }
            *steps = p;
        }
        (*steps)[(*n)++] = step;
    }
    closedir(d);
    if (*n) qsort(*steps, (size_t)*n, sizeof **steps, by_step);
    return DP_OK;
}

/* What lies in the directory: 0 nothing of ours (or no directory), 1 a lock only, 2 a run. */
static int content(const char *path)
{
    struct dirent *e;
    int found = 0;
    DIR *d = opendir(path);
    if (!d) return 0;
    while (found < 2 && (e = readdir(d)))
        if (is_result(e->d_name))
            found = 2;
        else if (!strcmp(e->d_name, "lock"))
            found = 1;
    closedir(d);
    return found;
}

/* Whether the directory can be made and written to, found without making it: the nearest ancestor that exists decides. */
static dp_status check_writable(const char *path, dp_error *err)
{
    dp_status s = DP_OK;
    struct stat st;
    char *p = strdup(path);
    if (!p) return dp_fail(err, DP_ENOMEM, "Out of memory while checking %s.", path);
    for (;;) {
        if (!stat(p, &st)) break;
        if (errno != ENOENT) {
            s = dp_fail_errno(err, DP_EIO, errno, "The run directory %s cannot be used", path);
            goto done;
        }
        char *slash = strrchr(p, '/');
        if (!slash)
            strcpy(p, "."); /* a relative path: at least one character long */
        else if (slash == p)
            p[1] = 0;
        else
            *slash = 0;
    }
    if (!S_ISDIR(st.st_mode))
        s = dp_fail_errno(err, DP_EIO, ENOTDIR, "The run directory %s cannot be used: %s", path, p);
    else if (access(p, W_OK | X_OK))
        s = dp_fail_errno(err, DP_EIO, errno, "The run directory %s cannot be written: %s", path, p);
done:
    free(p);
    return s;
}

static dp_status make_path(const char *path, dp_error *err)
{
    char *p = strdup(path);
    if (!p) return dp_fail(err, DP_ENOMEM, "Out of memory while making %s.", path);
    for (char *s = p + 1;; s++) {
        if (*s && *s != '/') continue;
        char keep = *s;
        *s = 0;
        if (mkdir(p, 0777) && errno != EEXIST) {
            dp_status code = dp_fail_errno(err, DP_EIO, errno, "Cannot make the run directory %s: %s", path, p);
            free(p);
            return code;
        }
        if (!(*s = keep)) break;
    }
    free(p);
    return DP_OK;
}

/* runs/NAME, runs/NAME-2, ...: number k of the series, malloc'd. */
static char *series_name(const char *base, int64_t k)
{
    size_t size = strlen(base) + 24;
    char *p = malloc(size);
    if (p) dp_format(p, size, k < 2 ? "%s" : "%s-%lld", base, (long long)k);
    return p;
}

/* The highest number of the series that holds a state; 0: none. */
static int64_t newest_of_series(const char *base)
{
    const char *name = strrchr(base, '/') + 1;
    int64_t best = 0, k;
    struct dirent *e;
    char *parent = strndup(base, (size_t)(name - 1 - base));
    DIR *d = parent ? opendir(parent) : NULL;
    while (d && (e = readdir(d))) {
        size_t len = strlen(name);
        if (strncmp(e->d_name, name, len)) continue;
        if (!e->d_name[len])
            k = 1;
        else if (e->d_name[len] != '-' || dp_parse_int(e->d_name + len + 1, &k) != 1 || k < 2)
            continue;
        char *path = series_name(base, k);
        int64_t *steps = NULL;
        int n = 0;
        if (k > best && path && !dp_rundir_states(path, &steps, &n, NULL) && n) best = k;
        free(steps);
        free(path);
    }
    if (d) closedir(d);
    free(parent);
    return best;
}

/* "runs/mlp" for configs/mlp.ini; malloc'd. */
static char *derived_base(const dp_config *c)
{
    const char *file = dp_config_file(c), *slash = strrchr(file, '/');
    if (slash) file = slash + 1;
    const char *dot = strrchr(file, '.');
    size_t len = dot && dot > file ? (size_t)(dot - file) : strlen(file);
    char *base = malloc(len + 16);
    if (base) dp_format(base, len + 16, "runs/%.*s", len ? (int)len : 3, len ? file : "run");
    return base;
}

static dp_status next_free(char **path, const char *base, dp_error *err)
{
    struct stat st;
    for (int64_t k = 1;; k++) {
        free(*path);
        *path = series_name(base, k);
        if (!*path) return dp_fail(err, DP_ENOMEM, "Out of memory while naming the run directory.");
        if (lstat(*path, &st) || (S_ISDIR(st.st_mode) && content(*path) == 0)) return DP_OK;
    }
}

static dp_status choose_path(dp_rundir *d, const dp_config *c, int automatic, dp_error *err)
{
    dp_status s = DP_OK;
    if (*dp_config_text(c, "run.dir")) {
        d->path = strdup(dp_config_text(c, "run.dir"));
        return d->path ? DP_OK : dp_fail(err, DP_ENOMEM, "Out of memory while naming the run directory.");
    }
    char *base = derived_base(c);
    if (!base) return dp_fail(err, DP_ENOMEM, "Out of memory while naming the run directory.");
    int64_t k = d->overwrite ? 1 : automatic ? newest_of_series(base) : 0;
    if (k)
        d->path = series_name(base, k);
    else
        s = next_free(&d->path, base, err);
    if (k)
        free(base);
    else
        d->series = base;
    if (!s && !d->path) s = dp_fail(err, DP_ENOMEM, "Out of memory while naming the run directory.");
    return s;
}

/* With resume = auto the newest state of the directory, if there is one. */
static dp_status choose_resume(dp_rundir *d, const char *file, int automatic, dp_error *err)
{
    int64_t *steps;
    int n;
    if (!automatic) {
        d->resume = strdup(file);
        return d->resume ? DP_OK : dp_fail(err, DP_ENOMEM, "Out of memory while resuming.");
    }
    DP_TRY(dp_rundir_states(d->path, &steps, &n, err));
    if (n) d->resume = dp_rundir_state_file(d->path, steps[n - 1]);
    free(steps);
    return !n || d->resume ? DP_OK : dp_fail(err, DP_ENOMEM, "Out of memory while resuming.");
}

dp_status dp_rundir_choose(dp_rundir *d, const dp_config *c, dp_error *err)
{
    const char *resume = dp_config_text(c, "run.resume");
    int never = !strcmp(resume, "never") || !*resume, automatic = !strcmp(resume, "auto");
    memset(d, 0, sizeof *d);
    d->lock_fd = -1;
    d->resuming = !never;
    d->overwrite = dp_config_flag(c, "run.overwrite");
    if (d->resuming && d->overwrite)
        return dp_fail(err, DP_ECONFIG,
                       "run.resume = %s goes on with a run, run.overwrite = 1 deletes it: give one of the two.", resume);
    DP_TRY(choose_path(d, c, automatic, err));
    DP_TRY(check_writable(d->path, err));
    DP_TRY(dp_lock_look(d->path, err));
    if (d->resuming)
        DP_TRY(choose_resume(d, resume, automatic, err));
    else if (!d->overwrite && content(d->path) == 2)
        return dp_fail(err, DP_ECONFIG,
                       "The run directory %s already holds a run: give another run.dir, run.resume = auto (--resume) to "
                       "go on with it, or run.overwrite = 1 to delete it.",
                       d->path);
    return DP_OK;
}

/* Removes what the filter names. */
static dp_status sweep(const char *dir, int (*filter)(const char *name), dp_error *err)
{
    dp_status s = DP_OK;
    struct dirent *e;
    DIR *d = opendir(dir);
    if (!d) return dp_fail_errno(err, DP_EIO, errno, "Cannot read the run directory %s", dir);
    while (!s && (e = readdir(d)))
        if (filter(e->d_name) && unlinkat(dirfd(d), e->d_name, 0) && errno != ENOENT)
            s = dp_fail_errno(err, DP_EIO, errno, "Cannot remove %s of an earlier run from %s", e->d_name, dir);
    closedir(d);
    return s;
}

static dp_status take(dp_rundir *d, dp_error *err)
{
    DP_TRY(make_path(d->path, err));
    DP_TRY(dp_lock_take(d->path, &d->lock, &d->lock_fd, err));
    if (d->resuming || d->overwrite || content(d->path) < 2) return DP_OK;
    dp_rundir_leave(d); /* another run came and went since dp_rundir_choose looked */
    return dp_fail(err, DP_ECONFIG, "The run directory %s holds a run by now: give another run.dir.", d->path);
}

dp_status dp_rundir_enter(dp_rundir *d, dp_error *err)
{
    dp_status s = take(d, err);
    while (s == DP_ECONFIG && d->series) { /* two runs that start together choose the same free name */
        DP_TRY(next_free(&d->path, d->series, err));
        s = take(d, err);
    }
    if (!s) s = sweep(d->path, dp_file_is_temporary, err);
    if (!s && d->overwrite) s = sweep(d->path, is_result, err);
    if (s) dp_rundir_leave(d);
    return s;
}

void dp_rundir_leave(dp_rundir *d)
{
    dp_lock_drop(&d->lock, &d->lock_fd);
}

void dp_rundir_free(dp_rundir *d)
{
    dp_rundir_leave(d);
    free(d->path);
    free(d->resume);
    free(d->series);
    memset(d, 0, sizeof *d);
    d->lock_fd = -1;
}
