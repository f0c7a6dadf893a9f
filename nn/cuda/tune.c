/* Measured choices and their cache: a file for each kind of GPU and versions of its libraries, in $XDG_CACHE_HOME/dp or ~/.cache/dp, a line
 * for each choice. A lock beside it is held from the look until the line is there: devices of one kind wait for the one that measures,
 * and then do as it does. A file that is not whole is not believed, and written anew. */
#include "tune.h"
#include "../../dp/base/text.h"
#include "conv.h"
#include "lt.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RUNS = 5, LONGEST = 1 << 20 };
static const char head[] = "dp tune 1\n";

/* ---- the file ---- */

static int make_folder(const char *path)
{
    return !mkdir(path, 0777) || errno == EEXIST;
}

/* 0: there is no place for it. */
static int place(dp_be_device *d, char *path, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char folder[512], model[64];
    int driver = 0, n;
    if (cache && *cache == '/')
        n = dp_format(folder, sizeof folder, "%s", cache);
    else if (home && *home == '/')
        n = dp_format(folder, sizeof folder, "%s/.cache", home);
    else
        return 0;
    if (n >= (int)sizeof folder - 4 || !make_folder(folder)) return 0;
    dp_format(folder + n, sizeof folder - (size_t)n, "/dp");
    if (!make_folder(folder)) return 0;
    dp_format(model, sizeof model, "%s", d->model);
    for (char *c = model; *c; c++)
        if (!isalnum((unsigned char)*c)) *c = '_';
    if (dp_cuda_check(d, cudaDriverGetVersion(&driver), "cudaDriverGetVersion", NULL)) return 0;
    n = dp_format(path, size, "%s/tune-%s-%d-%d-lt%zu-dnn%zu-driver%d.txt", folder, model, d->arch, d->sms, dp_lt_version(),
                  dp_dnn_version(), driver);
    return n < (int)size;
}

static int lock(const char *path)
{
    char name[768];
    dp_format(name, sizeof name, "%s.lock", path);
    const int fd = open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0666);
    if (fd < 0 || !flock(fd, LOCK_EX)) return fd; /* no signal interrupts a worker */
    (void)close(fd);
    return -1;
}

/* "key<tab>choice/candidates" */
static int read_line(const char *line, const char *end, int *choice, int *n)
{
    char text[48];
    int used = 0;
    const char *tab = memchr(line, '\t', (size_t)(end - line));
    if (!tab || tab == line || end - tab > (ptrdiff_t)sizeof text) return 0;
    memcpy(text, tab + 1, (size_t)(end - tab - 1));
    text[end - tab - 1] = 0;
    return sscanf(text, "%d/%d%n", choice, n, &used) == 2 && !text[used] && *choice >= 0 && *choice < *n;
}

/* Lines behind the head; "": there is nothing, or it is broken. NULL: out of memory. */
static char *load(const char *path)
{
    char *text = dp_calloc(1, LONGEST + 1);
    const int fd = text ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    size_t bytes = 0;
    ssize_t got;
    if (fd < 0) return text;
    while (bytes < LONGEST && (got = read(fd, text + bytes, LONGEST - bytes)) > 0) bytes += (size_t)got;
    (void)close(fd);
    const size_t skip = sizeof head - 1;
    int whole = bytes >= skip && bytes < LONGEST && !memcmp(text, head, skip), choice, n;
    if (whole) memmove(text, text + skip, bytes - skip + 1);
    for (const char *at = text; whole && *at;) {
        const char *end = strchr(at, '\n');
        whole = end && read_line(at, end, &choice, &n);
        at = whole ? end + 1 : at;
    }
    if (!whole) *text = 0;
    return text;
}

/* The line of a key; NULL: there is none. */
static char *line_of(char *text, const char *key)
{
    const size_t length = strlen(key);
    for (char *at = text; *at; at = strchr(at, '\n') + 1)
        if (!strncmp(at, key, length) && at[length] == '\t') return at;
    return NULL;
}

static int put(int fd, const char *text, size_t bytes)
{
    while (bytes) {
        const ssize_t n = write(fd, text, bytes);
        if (n <= 0) return 0;
        text += n, bytes -= (size_t)n;
    }
    return 1;
}

static int save(const char *path, char *text, const char *key, int choice, int n)
{
    char name[768], line[384];
    char *old = line_of(text, key);
    dp_format(name, sizeof name, "%s.XXXXXX", path);
    const int length = dp_format(line, sizeof line, "%s\t%d/%d\n", key, choice, n), fd = mkostemp(name, O_CLOEXEC);
    if (fd < 0) return 0;
    const char *rest = old ? strchr(old, '\n') + 1 : "";
    int ok = length < (int)sizeof line && put(fd, head, sizeof head - 1) &&
             put(fd, text, old ? (size_t)(old - text) : strlen(text)) && put(fd, rest, strlen(rest)) &&
             put(fd, line, (size_t)length) && !fsync(fd);
    ok = !close(fd) && ok && !rename(name, path);
    if (!ok) (void)unlink(name);
    return ok;
}

/* ---- measuring ---- */

typedef struct trial {
    dp_be_device *device;
    dp_tune_run run;
    void *user, *memory;
    dp_be_stream *stream;
    cudaEvent_t begin, end;
} trial;

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Milliseconds, the median of some runs behind one that loads what is needed. */
static dp_status time_of(const trial *t, int i, float *ms)
{
    float run[RUNS];
    DP_TRY(t->run(t->user, i, t->stream, t->memory));
    for (int k = 0; k < RUNS; k++) {
        DP_CUDA_TRY(t->device, cudaEventRecord(t->begin, t->stream->stream), NULL);
        DP_TRY(t->run(t->user, i, t->stream, t->memory));
        DP_CUDA_TRY(t->device, cudaEventRecord(t->end, t->stream->stream), NULL);
        DP_CUDA_TRY(t->device, cudaEventSynchronize(t->end), NULL);
        DP_CUDA_TRY(t->device, cudaEventElapsedTime(&run[k], t->begin, t->end), NULL);
    }
    qsort(run, RUNS, sizeof *run, by_value);
    *ms = run[RUNS / 2];
    return DP_OK;
}

/* The library's choice stays unless another one is faster by more than what two runs of the same differ. */
static dp_status fastest(const trial *t, int n, int *choice, float *ms, float *first)
{
    float now = 0;
    *choice = 0, *ms = *first = -1;
    for (int i = 0; i < n; i++) {
        const dp_status status = time_of(t, i, &now);
        if (status == DP_EDEVICE_LOST) return status;
        if (status) continue;
        if (!i) *first = now;
        if (*ms < 0 || now < *ms * 0.97f) *choice = i, *ms = now;
    }
    return DP_OK;
}

static dp_status measure(trial *t, int n, size_t memory, int *choice, float *ms, float *first, dp_error *err)
{
    dp_be_device *d = t->device;
    *choice = 0, *ms = *first = -1;
    dp_status status = dp_cuda_alloc(d, DP_MEM_WORKSPACE, memory, "measuring", &t->memory, err);
    if (!status) status = dp_cuda_stream_open(d, 0, &t->stream, err);
    if (!status)
        status = dp_cuda_check(d, cudaEventCreateWithFlags(&t->begin, cudaEventDefault), "cudaEventCreateWithFlags", err);
    if (!status)
        status = dp_cuda_check(d, cudaEventCreateWithFlags(&t->end, cudaEventDefault), "cudaEventCreateWithFlags", err);
    if (!status) status = dp_cuda_fill(t->stream, t->memory, 0, memory);
    if (!status) status = fastest(t, n, choice, ms, first);
    if (t->end && !dp_cuda_lost(d)) (void)dp_cuda_check(d, cudaEventDestroy(t->end), "cudaEventDestroy", NULL);
    if (t->begin && !dp_cuda_lost(d)) (void)dp_cuda_check(d, cudaEventDestroy(t->begin), "cudaEventDestroy", NULL);
    if (t->stream && !dp_cuda_lost(d)) /* a run that failed may have left work */
        (void)dp_cuda_check(d, cudaStreamSynchronize(t->stream->stream), "cudaStreamSynchronize", NULL);
    dp_cuda_stream_close(t->stream);
    dp_dnn_forget_stream(d);
    dp_cuda_free(d, DP_MEM_WORKSPACE, t->memory, memory);
    if (dp_cuda_lost(d)) return dp_cuda_gone(d, err);
    return DP_OK; /* else not having been measured is no failure: candidate 0 */
}

/* ---- choosing ---- */

static void note(dp_be_device *d, const char *key, int choice, int n, float ms, float first, int from_cache)
{
    char line[512];
    const size_t before = d->notes ? strlen(d->notes) : 0;
    if (from_cache)
        dp_format(line, sizeof line, "%s: way %d of %d, from the cache\n", key, choice + 1, n);
    else if (ms < 0)
        dp_format(line, sizeof line, "%s: way 1 of %d, there is no memory to measure in\n", key, n);
    else
        dp_format(line, sizeof line, "%s: way %d of %d, %.3g ms where the first takes %.3g ms\n", key, choice + 1, n,
                  (double)ms, (double)first);
    if (d->notes && strstr(d->notes, line)) return;
    char *more = realloc(d->notes, before + strlen(line) + 1);
    if (!more) return; /* a note less */
    memcpy(more + before, line, strlen(line) + 1);
    d->notes = more;
}

const char *dp_tune_notes(const dp_be_device *d)
{
    return d->notes ? d->notes : "";
}

void dp_tune_close(dp_be_device *d)
{
    free(d->notes);
    d->notes = NULL;
}

dp_status dp_tune_pick(dp_be_device *d, const char *key, int n, dp_tune_run run, void *user, size_t memory, int *choice,
                       dp_error *err)
{
    char path[700];
    int known_n, fd;
    float ms = -1, first = -1;
    dp_status status = DP_OK;
    trial t = {.device = d, .run = run, .user = user};
    *choice = 0;
    if (n < 2 || !d->options.tune_measure || d->options.deterministic || !place(d, path, sizeof path)) return DP_OK;
    if ((fd = lock(path)) < 0) return DP_OK;
    char *text = load(path), *line = text ? line_of(text, key) : NULL;
    if (!text) goto done;
    if (line && read_line(line, strchr(line, '\n'), choice, &known_n) && known_n == n) {
        note(d, key, *choice, n, 0, 0, 1);
        goto done;
    }
    status = measure(&t, n, memory, choice, &ms, &first, err);
    if (!status && save(path, text, key, *choice, n))
        note(d, key, *choice, n, ms, first, 0);
    else
        *choice = 0;
done:
    free(text);
    (void)close(fd); /* unlocks */
    return status;
}
