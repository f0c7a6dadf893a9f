/* Late streams over the CPU backend.
 *
 * A call is copied by value into its stream's queue and carried out by the stream's thread. The queue is a list with one writer and one
 * reader and a semaphore beside it: the only order that it makes between threads is "the call before the work", so that
 * ThreadSanitizer sees a missing event as a race. What else makes order, and may: events (release when a record is carried out, acquire in
 * a wait or in done), draining before kernel_prepare, and closing. How often an event was recorded is a plain number on purpose: an event
 * that is recorded anew while a peer still issues its wait is a race, and is reported as one. */
#include "../../dp/base/clock.h"
#include "internal.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Of the test's thread, which writes them while nothing is in flight. */
static late_options options;
static late_fault faults[LATE_FAULTS];
static _Atomic int n_faults; /* entries below it are complete */
static _Atomic int released, hanging;

static const dp_backend *cpu(void)
{
    return dp_backend_cpu();
}

const char *late_kind_name(late_kind k)
{
    static const char *const name[LATE_KINDS] = {"copy",  "fill",        "convert",    "forward",     "backward", "loss",
                                                 "sum",   "sumsq",       "norm",       "update",      "partial",  "pool",
                                                 "merge", "checksum",    "record",     "wait",        "open",     "alloc",
                                                 "pin",   "stream_open", "event_open", "kernel_open", "prepare"};
    return name[k];
}

void late_arm(const late_fault *f)
{
    int n = atomic_load_explicit(&n_faults, memory_order_relaxed), at = n;
    for (int i = 0; i < n; i++)
        if (__atomic_load_n(&faults[i].nth, __ATOMIC_RELAXED) <= 0) at = i; /* one that has been met makes room */
    if (at < LATE_FAULTS) faults[at] = *f;
    if (at == n && at < LATE_FAULTS) atomic_store_explicit(&n_faults, n + 1, memory_order_release);
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
    int n = atomic_load_explicit(&n_faults, memory_order_acquire);
    for (int i = 0; i < n; i++)
        if ((int)faults[i].kind == kind && faults[i].device == o->index &&
            __atomic_sub_fetch(&faults[i].nth, 1, __ATOMIC_RELAXED) == 0)
            hit = &faults[i];
    return hit;
}

static void nap(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

/* What hangs on a device that dies goes on to fail. */
static void hang(const dp_be_options *o)
{
    atomic_fetch_add(&hanging, 1);
    while (!atomic_load_explicit(&released, memory_order_relaxed) && !late_dead(o->index)) nap(500);
}

static dp_status gone(const dp_be_options *o, dp_error *err)
{
    return dp_fail(err, DP_EDEVICE_LOST, "Device %d is gone.", o->index);
}

dp_status late_met(const dp_be_options *o, int kind, dp_error *err)
{
    const late_fault *f = fault(o, kind);
    if (f && f->hang) hang(o);
    if (f && f->kill) late_kill(o->index);
    if (late_dead(o->index)) return gone(o, err);
    if (f && f->status == DP_EDEVICE_LOST) late_lose(o->index);
    return f && f->status ? dp_fail(err, f->status, "Injected: %s failed.", late_kind_name((late_kind)kind)) : DP_OK;
}

void late_forget(const late_options *o)
{
    options = *o;
    n_faults = 0;
}

const late_options *late_now(void)
{
    return &options;
}

/* ---- work ---- */

void late_let_go(late_state *s)
{
    if (atomic_fetch_sub_explicit(&s->users, 1, memory_order_acq_rel) == 1) free(s);
}

/* A failed device waits too, so that what its peers order by its events stays in order. */
static void await_event(const late_work *w)
{
    for (int i = 0; atomic_load_explicit(&w->u.event.event->passed, memory_order_acquire) < w->u.event.generation; i++) {
        if (i < 20)
            sched_yield();
        else
            nap(50);
    }
}

static dp_status carry_out(dp_be_stream *s, late_work *w)
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
    case LATE_PARTIAL:
        return b->partial(w->u.kernel.kernel->inner, s->inner, &w->u.kernel.run, w->u.kernel.run_device, &w->u.kernel.io,
                          w->u.kernel.backward);
    case LATE_POOL:
        return b->pool(s->inner, w->u.pool.whole, w->u.pool.leaves->from, w->u.pool.leaves->rows, w->u.pool.n,
                       w->u.pool.channels);
    case LATE_MERGE:
        return b->merge(s->inner, w->u.merge.shadow, w->u.merge.buffer, w->u.merge.layers, w->u.merge.n_layers,
                        w->u.merge.leaves->from, w->u.merge.leaves->rows, w->u.merge.n);
    case LATE_SUMSQ: return b->sumsq(s->inner, w->u.chunks.x, w->u.chunks.count, w->u.chunks.chunk_sums);
    case LATE_CHECKSUM: return b->checksum(s->inner, w->u.chunks.x, w->u.chunks.count, w->u.chunks.chunk_sums);
    case LATE_NORM: return b->norm(s->inner, w->u.norm.chunk_sums, w->u.norm.n, w->u.norm.run, w->u.norm.o, w->u.norm.verdict);
    case LATE_UPDATE:
        return b->update(s->inner, w->u.update.o, w->u.update.ranges, w->u.update.n, w->u.update.first, w->u.update.count,
                         w->u.update.p, w->u.update.g, w->u.update.m, w->u.update.v, w->u.update.run, w->u.update.verdict);
    default: return DP_OK;
    }
}

static dp_status perform(dp_be_stream *s, late_work *w)
{
    if (w->kind >= LATE_RECORD) return DP_OK;
    dp_be_device *d = s->device;
    dp_status status = late_begin(d, w);
    atomic_fetch_add(&d->working, 1); /* before the look: see late_failed */
    if (!status && !atomic_load(&d->failed)) status = carry_out(s, w);
    atomic_fetch_sub(&d->working, 1);
    late_end();
    return status;
}

static void finish(late_work *w)
{
    late_state *e = w->kind == LATE_RECORD || w->kind == LATE_WAIT ? w->u.event.event : NULL;
    if (w->kind == LATE_RECORD) {
        atomic_store_explicit(&e->when, dp_now(), memory_order_relaxed);
        atomic_store_explicit(&e->passed, w->u.event.generation, memory_order_release);
    }
    if (e) late_let_go(e);
    if (w->kind == LATE_POOL) free(w->u.pool.leaves);
    if (w->kind == LATE_MERGE) free(w->u.merge.leaves);
    if (w->kind == DRAIN) sem_post(w->u.drained);
}

/* A failed device passes its work over; its events pass, so that peers' streams do not wait for ever for what will not come. */
static void run(dp_be_stream *s, late_work *w)
{
    dp_be_device *d = s->device;
    s->random = s->random * 6364136223846793005u + 1442695040888963407u;
    if (d->how.delay_us && (s->random >> 60) < 4) nap((long)((s->random >> 33) % (uint64_t)d->how.delay_us));
    if (d->how.kernel_us && (w->kind == LATE_FORWARD || w->kind == LATE_BACKWARD)) nap(d->how.kernel_us);
    dp_status status = w->fails;
    if (w->hangs) hang(&d->options);
    if (w->kills) late_kill(d->options.index);
    if (w->kind == LATE_WAIT) await_event(w);
    if (!status && !atomic_load_explicit(&d->failed, memory_order_relaxed)) status = perform(s, w);
    int none = DP_OK;
    if (status) atomic_compare_exchange_strong(&d->failed, &none, (int)status);
    while (w->kind == LATE_RECORD && atomic_load(&d->failed) && atomic_load(&d->working)) sched_yield(); /* as late_failed */
    finish(w);
}

void *late_stream_main(void *stream)
{
    dp_be_stream *s = stream;
    cpu()->bind(s->device->inner); /* it works in the worker's place */
    for (int kind = DRAIN; kind != STOP;) {
        while (sem_wait(&s->queued)) continue; /* a signal */
        late_work *w = s->head->next;
        free(s->head);
        s->head = w;
        kind = w->kind;
        run(s, w);
    }
    return NULL;
}

int late_failed(const dp_be_device *d)
{
    int failed = atomic_load(&d->failed);
    return failed && !late_dead(d->options.index) && atomic_load(&d->working) ? DP_OK : failed;
}

dp_status late_enqueue(dp_be_stream *s, const late_work *w)
{
    dp_be_device *d = s->device;
    const int counted = w->kind < LATE_KINDS;
    const late_fault *f = counted ? fault(&d->options, w->kind) : NULL;
    int failed = late_failed(d);
    if (counted && failed) return (dp_status)failed;
    if (f && f->at_once) {
        if (f->hang) hang(&d->options);
        if (f->kill) late_kill(d->options.index);
        if (late_dead(d->options.index)) return DP_EDEVICE_LOST;
        if (f->status == DP_EDEVICE_LOST) late_lose(d->options.index);
        if (f->status) return f->status;
        f = NULL;
    }
    late_work *copy = malloc(sizeof *copy);
    if (!copy) return DP_ENOMEM;
    *copy = *w;
    copy->next = NULL;
    if (f) copy->fails = f->status, copy->hangs = f->hang, copy->kills = f->kill;
    s->tail->next = copy;
    s->tail = copy;
    sem_post(&s->queued);
    return DP_OK;
}

dp_status late_drain(dp_be_device *d)
{
    sem_t drained;
    if (sem_init(&drained, 0, 0)) return DP_EDEVICE;
    dp_status status = DP_OK;
    for (int i = 0; i < d->n_streams && !status; i++) {
        status = late_enqueue(d->stream[i], &(late_work){.kind = DRAIN, .u.drained = &drained});
        while (!status && sem_wait(&drained)) continue;
    }
    sem_destroy(&drained);
    return status;
}

/* ---- ends ---- */

void late_destroy_stream(dp_be_stream *s)
{
    dp_be_device *d = s->device;
    if (late_enqueue(s, &(late_work){.kind = STOP}) == DP_OK) pthread_join(s->thread, NULL);
    for (int i = 0; i < d->n_streams; i++)
        if (d->stream[i] == s) d->stream[i] = d->stream[--d->n_streams];
    free(s->head);
    sem_destroy(&s->queued);
    cpu()->stream_close(s->inner);
    free(s);
}

void late_destroy_event(dp_be_event *e)
{
    cpu()->event_close(e->inner);
    late_link_out(&e->of_device);
    late_let_go(e->state);
    free(e);
}

void late_destroy_kernel(dp_kernel *k)
{
    cpu()->kernel_close(k->inner);
    late_link_out(&k->of_device);
    free(k);
}
