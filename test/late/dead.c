/* Memory of late devices, and how they die.
 *
 * An allocation is a mapping of its own, so that what a dead device held can be made inaccessible; a page in front tells its size, a page
 * behind it cannot be touched. Who dies waits until no work is under way, and none begins meanwhile: a lock that all work holds
 * for reading, which makes no order between two readers. */
#include "internal.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes)   ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

enum { PAGE = 4096, PINS = 1024 };
typedef struct block {
    late_link of_device; /* first member */
    size_t bytes, room;  /* room: in whole pages */
} block;

static pthread_rwlock_t working = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static pthread_mutex_t lists = PTHREAD_MUTEX_INITIALIZER; /* of devices and pins */
static late_link *devices;
static _Atomic uint64_t killed; /* by index */
static _Atomic int touched;
static void *pin[PINS];
static int n_pins;

static dp_be_device *device_of(late_link *l)
{
    return (dp_be_device *)(void *)l;
}

static block *block_of(late_link *l)
{
    return (block *)(void *)l;
}

static char *memory_of(block *b)
{
    return (char *)b + PAGE;
}

int late_dead(int device)
{
    return device < 64 && atomic_load(&killed) >> device & 1;
}

int late_touches(const dp_be_device *d)
{
    if (!late_dead(d->options.index)) return 0;
    atomic_fetch_add(&touched, 1);
    return 1;
}

int late_touched_dead(void)
{
    return atomic_load(&touched);
}

/* ---- memory ---- */

dp_status late_map(dp_be_device *d, int mem_class, size_t bytes, const char *what, void **p, dp_error *err)
{
    size_t room = (bytes + PAGE - 1) / PAGE * PAGE;
    DP_TRY(dp_memory_add(&d->memory, mem_class, (int64_t)bytes, what, err));
    char *at = mmap(NULL, room + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(at + PAGE + room, PAGE, PROT_NONE)) {
        if (at != MAP_FAILED) munmap(at, room + 2 * PAGE);
        dp_memory_sub(&d->memory, mem_class, (int64_t)bytes);
        return dp_fail(err, DP_ENOMEM, "Out of memory: %s wants %zu bytes, the system has not got them.", what, bytes);
    }
    block *b = (void *)at;
    b->bytes = bytes, b->room = room;
    memset(memory_of(b), 0xff, room); /* what reads memory before it was written shall find NaN */
    ASAN_POISON_MEMORY_REGION(memory_of(b) + bytes, room - bytes);
    pthread_mutex_lock(&d->lock);
    int gone = late_dead(d->options.index);
    late_link_in(&d->blocks, &b->of_device);
    pthread_mutex_unlock(&d->lock);
    if (gone) return dp_fail(err, DP_EDEVICE_LOST, "Device %d is gone.", d->options.index);
    *p = memory_of(b);
    return DP_OK;
}

static void unmap(block *b)
{
    ASAN_UNPOISON_MEMORY_REGION(memory_of(b), b->room);
    munmap(b, b->room + 2 * PAGE);
}

void late_unmap(dp_be_device *d, int mem_class, void *p, size_t bytes)
{
    if (!p || late_touches(d)) return;
    block *b = (void *)((char *)p - PAGE);
    pthread_mutex_lock(&d->lock);
    late_link_out(&b->of_device);
    pthread_mutex_unlock(&d->lock);
    unmap(b);
    dp_memory_sub(&d->memory, mem_class, (int64_t)bytes);
}

/* ---- page-locked host memory: only who has locked what ---- */

dp_status late_pin(dp_be_device *d, void *p, size_t bytes, dp_error *err)
{
    (void)bytes;
    DP_TRY(late_met(&d->options, LATE_PIN, err));
    pthread_mutex_lock(&lists);
    int full = n_pins == PINS;
    if (!full) pin[n_pins++] = p;
    pthread_mutex_unlock(&lists);
    return full ? dp_fail(err, DP_EARGUMENT, "More than %d ranges are page-locked.", PINS) : DP_OK;
}

void late_unpin(dp_be_device *d, void *p)
{
    if (late_touches(d)) return;
    pthread_mutex_lock(&lists);
    for (int i = 0; i < n_pins; i++)
        if (pin[i] == p) {
            pin[i] = pin[--n_pins];
            break;
        }
    pthread_mutex_unlock(&lists);
}

int late_pinned(void)
{
    pthread_mutex_lock(&lists);
    int n = n_pins;
    pthread_mutex_unlock(&lists);
    return n;
}

/* ---- life and death ---- */

static void die(dp_be_device *d)
{
    atomic_store_explicit(&d->failed, DP_EDEVICE_LOST, memory_order_release);
    pthread_mutex_lock(&d->lock);
    for (late_link *l = d->blocks; l; l = l->next) mprotect(memory_of(block_of(l)), block_of(l)->room, PROT_NONE);
    pthread_mutex_unlock(&d->lock);
}

void late_device_in(dp_be_device *d)
{
    pthread_mutex_lock(&lists);
    late_link_in(&devices, &d->all);
    if (late_dead(d->options.index)) die(d);
    pthread_mutex_unlock(&lists);
}

void late_device_out(dp_be_device *d)
{
    pthread_mutex_lock(&lists);
    late_link_out(&d->all);
    pthread_mutex_unlock(&lists);
}

void late_lose(int device)
{
    int none = DP_OK;
    pthread_mutex_lock(&lists);
    for (late_link *l = devices; l; l = l->next, none = DP_OK)
        if (device_of(l)->options.index == device)
            atomic_compare_exchange_strong(&device_of(l)->failed, &none, (int)DP_EDEVICE_LOST);
    pthread_mutex_unlock(&lists);
}

void late_kill(int device)
{
    pthread_rwlock_wrlock(&working);
    pthread_mutex_lock(&lists);
    atomic_fetch_or(&killed, (uint64_t)1 << device);
    for (late_link *l = devices; l; l = l->next)
        if (device_of(l)->options.index == device) die(device_of(l));
    pthread_mutex_unlock(&lists);
    pthread_rwlock_unlock(&working);
}

/* What a piece of work touches beside its own device's kernels. */
static int pointers(const late_work *w, const void **p)
{
    int n = 0;
    switch (w->kind) {
    case LATE_COPY: p[n++] = w->u.copy.src; /* fall through */
    case LATE_FILL: p[n++] = w->u.copy.dst; break;
    case LATE_LOSS:
        p[n++] = w->u.loss.logits, p[n++] = w->u.loss.targets, p[n++] = w->u.loss.d_logits, p[n++] = w->u.loss.sums;
        break;
    case LATE_SUM:
        for (int i = 0; i < w->u.sum.n; i++) p[n++] = w->u.sum.src[i];
        p[n++] = w->u.sum.dst;
        break;
    case LATE_POOL:
        for (int i = 0; i < w->u.pool.n; i++) p[n++] = w->u.pool.leaves->from[i];
        break;
    case LATE_MERGE:
        for (int i = 0; i < w->u.merge.n; i++) p[n++] = w->u.merge.leaves->from[i];
        break;
    case LATE_SUMSQ:
    case LATE_CHECKSUM: p[n++] = w->u.chunks.x, p[n++] = w->u.chunks.chunk_sums; break;
    case LATE_NORM: p[n++] = w->u.norm.chunk_sums, p[n++] = w->u.norm.verdict; break;
    case LATE_UPDATE: p[n++] = w->u.update.p, p[n++] = w->u.update.g, p[n++] = w->u.update.verdict; break;
    default: break;
    }
    return n;
}

static int within(const block *b, const void *const *p, int n)
{
    uintptr_t begin = (uintptr_t)b + PAGE, end = begin + b->room;
    for (int i = 0; i < n; i++)
        if ((uintptr_t)p[i] >= begin && (uintptr_t)p[i] < end) return 1;
    return 0;
}

/* Work on the memory of a dead device fails, and with no_peer_reads on that of any other. */
dp_status late_begin(const dp_be_device *by, const late_work *w)
{
    const void *p[MAX_LEAVES + 4];
    int hit = 0, apart = by->how.no_peer_reads;
#ifdef __SANITIZE_THREAD__
    apart = 0; /* the locks below would make order between streams */
#endif
    pthread_rwlock_rdlock(&working);
    if (!atomic_load_explicit(&killed, memory_order_relaxed) && !apart) return DP_OK;
    int n = pointers(w, p);
    pthread_mutex_lock(&lists);
    for (late_link *l = devices; l; l = l->next) {
        dp_be_device *d = device_of(l);
        if (!late_dead(d->options.index) && !(apart && d != by)) continue;
        pthread_mutex_lock(&d->lock);
        for (late_link *b = d->blocks; b; b = b->next) hit |= within(block_of(b), p, n);
        pthread_mutex_unlock(&d->lock);
    }
    pthread_mutex_unlock(&lists);
    return hit ? DP_EDEVICE : DP_OK;
}

void late_end(void)
{
    pthread_rwlock_unlock(&working);
}

static void bury(dp_be_device *d)
{
    late_link *next;
    while (d->n_streams) late_destroy_stream(d->stream[0]);
    for (late_link *l = d->events; l; l = next) {
        next = l->next;
        late_destroy_event((dp_be_event *)(void *)l);
    }
    for (late_link *l = d->kernels; l; l = next) {
        next = l->next;
        late_destroy_kernel((dp_kernel *)(void *)l);
    }
    for (late_link *l = d->blocks; l; l = next) {
        next = l->next;
        unmap(block_of(l));
    }
    dp_backend_cpu()->close(d->inner);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

/* Those too that were left alone because an injected status said that they are lost. */
void late_bury(void)
{
    late_link *next;
    for (late_link *l = devices; l; l = next) {
        dp_be_device *d = device_of(l);
        next = l->next;
        if (atomic_load(&d->failed) != DP_EDEVICE_LOST) continue;
        late_device_out(d);
        bury(d);
    }
    atomic_store(&killed, 0);
    atomic_store(&touched, 0);
    pthread_mutex_lock(&lists);
    n_pins = 0;
    pthread_mutex_unlock(&lists);
}
