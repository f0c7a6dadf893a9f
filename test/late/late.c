/* Late streams over the CPU backend.
 *
 * A call is copied by value into its stream's queue and carried out by the stream's thread. The queue is a list with one writer and one
 * reader and a semaphore beside it: the only order that it makes between threads is "the call before the work", so that
 * ThreadSanitizer sees a missing event as a race. What else makes order, and may: events (release when a record is carried out, acquire in
 * a wait or in done), draining before kernel_prepare, and closing. How often an event was recorded is a plain number on purpose: an event
 * that is recorded anew while a peer still issues its wait is a race, and is reported as one. */
#include "late.h"
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_SOURCES = 64, MAX_STREAMS = 8, STOP = LATE_KINDS, DRAIN };

typedef struct state { /* of an event; lives until event and queued work have let go of it */
    _Atomic int users;
    uint64_t recorded;       /* calls of record */
    _Atomic uint64_t passed; /* the last that was carried out */
} state;

typedef struct work {
    struct work *next;
    int kind;
    dp_status fails; /* injected */
    int hangs;
    union {
        struct {
            void *dst;
            const void *src;
            size_t bytes;
            int byte;
        } copy;
        struct {
            dp_run run;
            void *dst;
            dp_dtype dst_type;
            const void *src;
            dp_dtype src_type;
            dp_layout layout;
            int64_t shape[3];
            const float *mean, *inv_std;
        } convert;
        struct {
            dp_kernel *kernel;
            dp_run run;
            const dp_run *run_device;
            dp_io io;
        } kernel;
        struct {
            const dp_loss *loss;
            int64_t rows;
            const float *logits;
            const void *targets;
            dp_dtype type;
            float *d_logits;
            dp_loss_sums *sums;
        } loss;
        struct {
            float *dst;
            const float *src[MAX_SOURCES];
            int n;
            int64_t count;
        } sum;
        struct {
            const float *x;
            int64_t count;
            double *chunk_sums;
        } sumsq;
        struct {
            const double *chunk_sums;
            int64_t n;
            const dp_run *run;
            const dp_optimizer *o;
            dp_verdict *verdict;
        } norm;
        struct {
            const dp_optimizer *o;
            const dp_range *ranges;
            int n;
            int64_t first, count;
            float *p;
            const float *g;
            float *m, *v;
            const dp_run *run;
            const dp_verdict *verdict;
        } update;
        struct {
            state *event;
            uint64_t generation;
        } event;
        sem_t *drained;
    } u;
} work;

struct dp_be_device {
    dp_be_device *inner;
    dp_be_options options;
    late_options how;
    _Atomic int failed; /* dp_status, for good */
    dp_be_stream *stream[MAX_STREAMS];
    int n_streams;
};
struct dp_be_stream {
    dp_be_device *device;
    dp_be_stream *inner;
    pthread_t thread;
    sem_t queued;
    work *head; /* the reader's: already done; what follows it is next */
    work *tail; /* the writer's */
    uint64_t random;
};
struct dp_be_event {
    dp_be_device *device;
    dp_be_event *inner;
    state *state;
};
struct dp_kernel {
    dp_be_device *device;
    dp_kernel *inner;
};

/* Of the test's thread, which writes them while nothing is in flight. */
static late_options options;
static late_fault faults[LATE_FAULTS];
static int n_faults;
static _Atomic int released, hanging;

static const dp_backend *cpu(void)
{
    return dp_backend_cpu();
}

const char *late_kind_name(late_kind k)
{
    static const char *const name[LATE_KINDS] = {"copy", "fill",  "convert",     "forward",    "backward",    "loss",
                                                 "sum",  "sumsq", "norm",        "update",     "record",      "wait",
                                                 "open", "alloc", "stream_open", "event_open", "kernel_open", "prepare"};
    return name[k];
}

void late_arm(const late_fault *f)
{
    if (n_faults < LATE_FAULTS) faults[n_faults++] = *f;
    atomic_store(&released, 0);
    atomic_store(&hanging, 0);
}

void late_meet(int n)
{
    while (atomic_load(&hanging) < n) sched_yield();
    late_release();
}

void late_release(void)
{
    atomic_store(&released, 1);
}

/* The fault that this call meets; counts down on the device's worker, which makes all calls on it. */
static const late_fault *fault(const dp_be_options *o, int kind)
{
    const late_fault *hit = NULL;
    for (int i = 0; i < n_faults; i++)
        if ((int)faults[i].kind == kind && faults[i].device == o->index && --faults[i].nth == 0) hit = &faults[i];
    return hit;
}

static void nap(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

static void hang(void)
{
    atomic_fetch_add(&hanging, 1);
    while (!atomic_load_explicit(&released, memory_order_relaxed)) nap(500);
}

/* A call that is no stream's. */
static dp_status met(const dp_be_options *o, int kind, dp_error *err)
{
    const late_fault *f = fault(o, kind);
    if (f && f->hang) hang();
    return f && f->status ? dp_fail(err, f->status, "Injected: %s failed.", late_kind_name((late_kind)kind)) : DP_OK;
}

/* ---- work ---- */

static void let_go(state *s)
{
    if (atomic_fetch_sub_explicit(&s->users, 1, memory_order_acq_rel) == 1) free(s);
}

static void await_event(const dp_be_stream *s, const work *w)
{
    for (int i = 0; atomic_load_explicit(&w->u.event.event->passed, memory_order_acquire) < w->u.event.generation; i++) {
        if (atomic_load_explicit(&s->device->failed, memory_order_relaxed)) return;
        if (i < 20)
            sched_yield();
        else
            nap(50);
    }
}

static dp_status carry_out(dp_be_stream *s, work *w)
{
    const dp_backend *b = cpu();
    switch (w->kind) {
    case LATE_COPY: return b->copy(s->inner, w->u.copy.dst, w->u.copy.src, w->u.copy.bytes);
    case LATE_FILL: return b->fill(s->inner, w->u.copy.dst, w->u.copy.byte, w->u.copy.bytes);
    case LATE_CONVERT:
        return b->convert(s->inner, &w->u.convert.run, w->u.convert.dst, w->u.convert.dst_type, w->u.convert.src,
                          w->u.convert.src_type, w->u.convert.layout, w->u.convert.shape, w->u.convert.mean,
                          w->u.convert.inv_std);
    case LATE_FORWARD:
        return b->forward(w->u.kernel.kernel->inner, s->inner, &w->u.kernel.run, w->u.kernel.run_device, &w->u.kernel.io);
    case LATE_BACKWARD:
        return b->backward(w->u.kernel.kernel->inner, s->inner, &w->u.kernel.run, w->u.kernel.run_device, &w->u.kernel.io);
    case LATE_LOSS:
        return b->loss(s->inner, w->u.loss.loss, w->u.loss.rows, w->u.loss.logits, w->u.loss.targets, w->u.loss.type,
                       w->u.loss.d_logits, w->u.loss.sums);
    case LATE_SUM: return b->sum(s->inner, w->u.sum.dst, w->u.sum.src, w->u.sum.n, w->u.sum.count);
    case LATE_SUMSQ: return b->sumsq(s->inner, w->u.sumsq.x, w->u.sumsq.count, w->u.sumsq.chunk_sums);
    case LATE_NORM: return b->norm(s->inner, w->u.norm.chunk_sums, w->u.norm.n, w->u.norm.run, w->u.norm.o, w->u.norm.verdict);
    case LATE_UPDATE:
        return b->update(s->inner, w->u.update.o, w->u.update.ranges, w->u.update.n, w->u.update.first, w->u.update.count,
                         w->u.update.p, w->u.update.g, w->u.update.m, w->u.update.v, w->u.update.run, w->u.update.verdict);
    case LATE_WAIT: await_event(s, w); return DP_OK;
    default: return DP_OK;
    }
}

/* A failed device passes its work over; its events pass, so that peers' streams do not wait for ever for what will not come. */
static void run(dp_be_stream *s, work *w)
{
    dp_be_device *d = s->device;
    s->random = s->random * 6364136223846793005u + 1442695040888963407u;
    if (d->how.delay_us && (s->random >> 60) < 4) nap((long)((s->random >> 33) % (uint64_t)d->how.delay_us));
    dp_status status = w->fails;
    if (w->hangs) hang();
    if (!status && !atomic_load_explicit(&d->failed, memory_order_relaxed)) status = carry_out(s, w);
    int none = DP_OK; /* release: who sees the failure knows that nothing is under way */
    if (status)
        atomic_compare_exchange_strong_explicit(&d->failed, &none, (int)status, memory_order_release, memory_order_relaxed);
    if (w->kind == LATE_RECORD) atomic_store_explicit(&w->u.event.event->passed, w->u.event.generation, memory_order_release);
    if (w->kind == LATE_RECORD || w->kind == LATE_WAIT) let_go(w->u.event.event);
    if (w->kind == DRAIN) sem_post(w->u.drained);
}

static void *stream_main(void *arg)
{
    dp_be_stream *s = arg;
    omp_set_num_threads(s->device->options.threads); /* of this thread, as cpu_open does for the worker */
    for (int kind = DRAIN; kind != STOP;) {
        while (sem_wait(&s->queued)) continue; /* a signal */
        work *w = s->head->next;
        free(s->head);
        s->head = w;
        kind = w->kind;
        run(s, w);
    }
    return NULL;
}

static dp_status enqueue(dp_be_stream *s, const work *w)
{
    dp_be_device *d = s->device;
    const int counted = w->kind < LATE_KINDS;
    const late_fault *f = counted ? fault(&d->options, w->kind) : NULL;
    int failed = atomic_load_explicit(&d->failed, memory_order_acquire);
    if (counted && failed) return (dp_status)failed;
    if (f && f->at_once) {
        if (f->hang) hang();
        if (f->status) return f->status;
        f = NULL;
    }
    work *copy = malloc(sizeof *copy);
    if (!copy) return DP_ENOMEM;
    *copy = *w;
    copy->next = NULL;
    if (f) copy->fails = f->status, copy->hangs = f->hang;
    s->tail->next = copy;
    s->tail = copy;
    sem_post(&s->queued);
    return DP_OK;
}

static dp_status drain(dp_be_device *d)
{
    sem_t drained;
    if (sem_init(&drained, 0, 0)) return DP_EDEVICE;
    dp_status status = DP_OK;
    for (int i = 0; i < d->n_streams && !status; i++) {
        status = enqueue(d->stream[i], &(work){.kind = DRAIN, .u.drained = &drained});
        while (!status && sem_wait(&drained)) continue;
    }
    sem_destroy(&drained);
    return status;
}

/* ---- the table: devices and memory ---- */

static int late_enumerate(int i, dp_device_info *info)
{
    return cpu()->enumerate(i, info);
}

static dp_status late_open(dp_be_device **out, const dp_be_options *o, dp_error *err)
{
    DP_TRY(met(o, LATE_OPEN, err));
    dp_be_device *d = dp_calloc(1, sizeof *d);
    if (!d) return dp_fail(err, DP_ENOMEM, "Out of memory: late device");
    d->options = *o;
    if (d->options.threads < 1) d->options.threads = 1;
    d->how = options;
    dp_status status = cpu()->open(&d->inner, o, err);
    if (status)
        free(d);
    else
        *out = d;
    return status;
}

static void late_close(dp_be_device *d)
{
    if (!d) return;
    cpu()->close(d->inner);
    free(d);
}

/* Not zeroed is not enough: what reads memory before it was written shall find NaN. */
static dp_status late_alloc(dp_be_device *d, int mem_class, size_t bytes, const char *what, void **p, dp_error *err)
{
    DP_TRY(met(&d->options, LATE_ALLOC, err));
    DP_TRY(cpu()->alloc(d->inner, mem_class, bytes, what, p, err));
    memset(*p, 0xff, bytes);
    return DP_OK;
}

static void late_free(dp_be_device *d, int mem_class, void *p, size_t bytes)
{
    cpu()->free(d->inner, mem_class, p, bytes);
}

static const dp_memory *late_memory(const dp_be_device *d)
{
    return cpu()->memory(d->inner);
}

static dp_status late_alloc_pinned(size_t bytes, void **p, dp_error *err)
{
    return cpu()->alloc_pinned(bytes, p, err);
}

static void late_free_pinned(void *p, size_t bytes)
{
    cpu()->free_pinned(p, bytes);
}

static int64_t late_created(const dp_be_device *d)
{
    return cpu()->created(d->inner);
}

static int late_reads_peer(const dp_be_device *d, const dp_be_device *peer)
{
    return d == peer || !d->how.no_peer_reads;
}

/* ---- order ---- */

static void late_stream_close(dp_be_stream *s)
{
    if (!s) return;
    dp_be_device *d = s->device;
    if (enqueue(s, &(work){.kind = STOP}) == DP_OK) pthread_join(s->thread, NULL);
    for (int i = 0; i < d->n_streams; i++)
        if (d->stream[i] == s) d->stream[i] = d->stream[--d->n_streams];
    free(s->head);
    sem_destroy(&s->queued);
    cpu()->stream_close(s->inner);
    free(s);
}

static dp_status late_stream_open(dp_be_device *d, int priority, dp_be_stream **out, dp_error *err)
{
    DP_TRY(met(&d->options, LATE_STREAM_OPEN, err));
    if (d->n_streams == MAX_STREAMS) return dp_fail(err, DP_EARGUMENT, "A late device has at most %d streams.", MAX_STREAMS);
    dp_be_stream *s = dp_calloc(1, sizeof *s);
    if (!s) return dp_fail(err, DP_ENOMEM, "Out of memory: late stream");
    s->device = d;
    s->random = d->how.seed * 1000003u + (uint64_t)d->options.index * 101u + (uint64_t)d->n_streams;
    s->head = s->tail = dp_calloc(1, sizeof *s->head);
    dp_status status = s->head ? cpu()->stream_open(d->inner, priority, &s->inner, err)
                               : dp_fail(err, DP_ENOMEM, "Out of memory: late stream");
    if (status) goto fail;
    sem_init(&s->queued, 0, 0);
    if (pthread_create(&s->thread, NULL, stream_main, s)) {
        status = dp_fail(err, DP_ENOMEM, "Cannot start the thread of a late stream.");
        goto fail;
    }
    d->stream[d->n_streams++] = s;
    *out = s;
    return DP_OK;
fail:
    if (s->inner) cpu()->stream_close(s->inner);
    free(s->head);
    free(s);
    return status;
}

static dp_status late_event_open(dp_be_device *d, dp_be_event **out, dp_error *err)
{
    DP_TRY(met(&d->options, LATE_EVENT_OPEN, err));
    dp_be_event *e = dp_calloc(1, sizeof *e);
    state *s = dp_calloc(1, sizeof *s);
    dp_status status = e && s ? cpu()->event_open(d->inner, &e->inner, err)
                              : dp_fail(err, DP_ENOMEM, "Out of memory: late event");
    if (status) {
        free(e);
        free(s);
        return status;
    }
    atomic_store_explicit(&s->users, 1, memory_order_relaxed);
    e->device = d;
    e->state = s;
    *out = e;
    return DP_OK;
}

static void late_event_close(dp_be_event *e)
{
    if (!e) return;
    cpu()->event_close(e->inner);
    let_go(e->state);
    free(e);
}

static dp_status enqueue_event(dp_be_stream *s, int kind, dp_be_event *e)
{
    atomic_fetch_add_explicit(&e->state->users, 1, memory_order_relaxed);
    dp_status status = enqueue(s, &(work){.kind = kind, .u.event = {e->state, e->state->recorded}});
    if (status) let_go(e->state);
    return status;
}

static dp_status late_record(dp_be_stream *s, dp_be_event *e)
{
    if (s->device != e->device) return DP_EARGUMENT;
    e->state->recorded++;
    dp_status status = enqueue_event(s, LATE_RECORD, e);
    if (status) e->state->recorded--;
    return status;
}

/* Of the most recent record at the time of the call; an event that was never recorded has passed. */
static dp_status late_wait(dp_be_stream *s, dp_be_event *e)
{
    return enqueue_event(s, LATE_WAIT, e);
}

static int late_done(dp_be_event *e)
{
    /* In this order: a record that fails passes too, after the device has failed. */
    int passed = atomic_load_explicit(&e->state->passed, memory_order_acquire) >= e->state->recorded;
    int failed = atomic_load_explicit(&e->device->failed, memory_order_acquire);
    return failed ? -failed : passed;
}

/* ---- work of a stream ---- */

static dp_status late_copy(dp_be_stream *s, void *dst, const void *src, size_t bytes)
{
    return enqueue(s, &(work){.kind = LATE_COPY, .u.copy = {.dst = dst, .src = src, .bytes = bytes}});
}

static dp_status late_fill(dp_be_stream *s, void *dst, int byte, size_t bytes)
{
    return enqueue(s, &(work){.kind = LATE_FILL, .u.copy = {.dst = dst, .bytes = bytes, .byte = byte}});
}

static dp_status late_convert(dp_be_stream *s, const dp_run *r, void *dst, dp_dtype dst_type, const void *src,
                              dp_dtype src_type, dp_layout src_layout, const int64_t shape[3], const float *mean,
                              const float *inv_std)
{
    return enqueue(
        s, &(work){.kind = LATE_CONVERT,
                   .u.convert = {*r, dst, dst_type, src, src_type, src_layout, {shape[0], shape[1], shape[2]}, mean, inv_std}});
}

static int late_fuses(const dp_chain *chain, const dp_node *next)
{
    return cpu()->fuses(chain, next);
}

static dp_status late_kernel_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, dp_kernel **out,
                                  dp_error *err)
{
    DP_TRY(met(&d->options, LATE_KERNEL_OPEN, err));
    dp_kernel *k = dp_calloc(1, sizeof *k);
    if (!k) return dp_fail(err, DP_ENOMEM, "Out of memory: late kernel");
    k->device = d;
    dp_status status = cpu()->kernel_open(d->inner, chain, capacity, need, &k->inner, err);
    if (status)
        free(k);
    else
        *out = k;
    return status;
}

/* A CPU kernel's own state is not made for two threads: what is queued runs first. Plans prepare a row count once. */
static dp_status late_kernel_prepare(dp_kernel *k, int64_t rows, dp_error *err)
{
    DP_TRY(met(&k->device->options, LATE_PREPARE, err));
    dp_status status = drain(k->device);
    return status ? dp_fail(err, status, "Draining a late device failed.") : cpu()->kernel_prepare(k->inner, rows, err);
}

static void late_kernel_close(dp_kernel *k)
{
    if (!k) return;
    cpu()->kernel_close(k->inner);
    free(k);
}

static dp_status late_forward(dp_kernel *k, dp_be_stream *s, const dp_run *r, const dp_run *run_device, const dp_io *io)
{
    return enqueue(s, &(work){.kind = LATE_FORWARD, .u.kernel = {k, *r, run_device, *io}});
}

static dp_status late_backward(dp_kernel *k, dp_be_stream *s, const dp_run *r, const dp_run *run_device, const dp_io *io)
{
    return enqueue(s, &(work){.kind = LATE_BACKWARD, .u.kernel = {k, *r, run_device, *io}});
}

static dp_status late_loss(dp_be_stream *s, const dp_loss *l, int64_t rows, const float *logits, const void *targets,
                           dp_dtype type, float *d_logits, dp_loss_sums *sums)
{
    return enqueue(s, &(work){.kind = LATE_LOSS, .u.loss = {l, rows, logits, targets, type, d_logits, sums}});
}

static dp_status late_sum(dp_be_stream *s, float *dst, const float *const *src, int n, int64_t count)
{
    work w = {.kind = LATE_SUM, .u.sum = {.dst = dst, .n = n, .count = count}};
    if (n > MAX_SOURCES) return DP_EARGUMENT;
    memcpy(w.u.sum.src, src, sizeof *src * (size_t)n);
    return enqueue(s, &w);
}

static dp_status late_sumsq(dp_be_stream *s, const float *x, int64_t count, double *chunk_sums)
{
    return enqueue(s, &(work){.kind = LATE_SUMSQ, .u.sumsq = {x, count, chunk_sums}});
}

static dp_status late_norm(dp_be_stream *s, const double *chunk_sums, int64_t n, const dp_run *run_device,
                           const dp_optimizer *o, dp_verdict *v)
{
    return enqueue(s, &(work){.kind = LATE_NORM, .u.norm = {chunk_sums, n, run_device, o, v}});
}

static dp_status late_update(dp_be_stream *s, const dp_optimizer *o, const dp_range *ranges, int n_ranges, int64_t first,
                             int64_t count, float *p, const float *g, float *m, float *v, const dp_run *run_device,
                             const dp_verdict *verdict)
{
    return enqueue(
        s, &(work){.kind = LATE_UPDATE, .u.update = {o, ranges, n_ranges, first, count, p, g, m, v, run_device, verdict}});
}

const dp_backend *late_backend(const late_options *o)
{
    static const dp_backend table = {
        .abi = DP_BACKEND_ABI,
        .kind = "late",
        .alignment = 64,
        .enumerate = late_enumerate,
        .open = late_open,
        .close = late_close,
        .alloc = late_alloc,
        .free = late_free,
        .memory = late_memory,
        .alloc_pinned = late_alloc_pinned,
        .free_pinned = late_free_pinned,
        .stream_open = late_stream_open,
        .stream_close = late_stream_close,
        .event_open = late_event_open,
        .event_close = late_event_close,
        .record = late_record,
        .wait = late_wait,
        .done = late_done,
        .copy = late_copy,
        .fill = late_fill,
        .reads_peer = late_reads_peer,
        .convert = late_convert,
        .fuses = late_fuses,
        .kernel_open = late_kernel_open,
        .kernel_prepare = late_kernel_prepare,
        .forward = late_forward,
        .backward = late_backward,
        .kernel_close = late_kernel_close,
        .loss = late_loss,
        .sum = late_sum,
        .sumsq = late_sumsq,
        .norm = late_norm,
        .update = late_update,
        .created = late_created,
    };
    options = *o;
    n_faults = 0;
    return &table;
}
