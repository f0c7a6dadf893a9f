/* The table of the late backend: calls that copy their arguments into a stream's queue, and those that go through to the CPU's. */
#include "internal.h"
#include <stdlib.h>
#include <string.h>

static const dp_backend *cpu(void)
{
    return dp_backend_cpu();
}

/* ---- devices and memory ---- */

static int late_enumerate(int i, dp_device_info *info)
{
    return cpu()->enumerate(i, info);
}

static dp_status late_open(dp_be_device **out, const dp_be_options *o, dp_error *err)
{
    DP_TRY(late_met(o, LATE_OPEN, err));
    dp_be_device *d = dp_calloc(1, sizeof *d);
    if (!d) return dp_fail(err, DP_ENOMEM, "Out of memory: late device");
    d->options = *o;
    d->how = *late_now();
    d->memory.limit = o->memory_limit;
    dp_status status = cpu()->open(&d->inner, o, err);
    if (status) {
        free(d);
        return status;
    }
    pthread_mutex_init(&d->lock, NULL);
    late_device_in(d);
    *out = d;
    return DP_OK;
}

static void late_close(dp_be_device *d)
{
    if (!d || late_touches(d)) return;
    late_device_out(d);
    cpu()->close(d->inner);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static void late_bind(dp_be_device *d)
{
    cpu()->bind(d->inner);
}

static dp_status late_alloc(dp_be_device *d, int mem_class, size_t bytes, const char *what, void **p, dp_error *err)
{
    DP_TRY(late_met(&d->options, LATE_ALLOC, err));
    return late_map(d, mem_class, bytes, what, p, err);
}

static const dp_memory *late_memory(const dp_be_device *d)
{
    return &d->memory;
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
    if (s && !late_touches(s->device)) late_destroy_stream(s);
}

static dp_status late_stream_open(dp_be_device *d, int priority, dp_be_stream **out, dp_error *err)
{
    DP_TRY(late_met(&d->options, LATE_STREAM_OPEN, err));
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
    if (pthread_create(&s->thread, NULL, late_stream_main, s)) {
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
    DP_TRY(late_met(&d->options, LATE_EVENT_OPEN, err));
    dp_be_event *e = dp_calloc(1, sizeof *e);
    late_state *s = dp_calloc(1, sizeof *s);
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
    late_link_in(&d->events, &e->of_device);
    *out = e;
    return DP_OK;
}

static void late_event_close(dp_be_event *e)
{
    if (e && !late_touches(e->device)) late_destroy_event(e);
}

static dp_status event_work(dp_be_stream *s, int kind, dp_be_event *e)
{
    atomic_fetch_add_explicit(&e->state->users, 1, memory_order_relaxed);
    dp_status status = late_enqueue(s, &(late_work){.kind = kind, .u.event = {e->state, e->state->recorded}});
    if (status) late_let_go(e->state);
    return status;
}

static dp_status late_record(dp_be_stream *s, dp_be_event *e)
{
    if (s->device != e->device) return DP_EARGUMENT;
    e->state->recorded++;
    dp_status status = event_work(s, LATE_RECORD, e);
    if (status) e->state->recorded--;
    return status;
}

/* Of the most recent record at the time of the call; an event that was never recorded has passed. */
static dp_status late_wait(dp_be_stream *s, dp_be_event *e)
{
    return event_work(s, LATE_WAIT, e);
}

static int late_done(dp_be_event *e)
{
    /* In this order: a record that fails passes too, after the device has failed. */
    int passed = atomic_load_explicit(&e->state->passed, memory_order_acquire) >= e->state->recorded;
    int failed = late_failed(e->device);
    return failed ? -failed : passed;
}

static double late_when(dp_be_event *e)
{
    return atomic_load_explicit(&e->state->when, memory_order_relaxed);
}

/* ---- work of a stream ---- */

static dp_status late_copy(dp_be_stream *s, void *dst, const void *src, size_t bytes)
{
    return late_enqueue(s, &(late_work){.kind = LATE_COPY, .u.copy = {.dst = dst, .src = src, .bytes = bytes}});
}

static dp_status late_fill(dp_be_stream *s, void *dst, int byte, size_t bytes)
{
    return late_enqueue(s, &(late_work){.kind = LATE_FILL, .u.copy = {.dst = dst, .bytes = bytes, .byte = byte}});
}

static dp_status late_convert(dp_be_stream *s, const dp_run *r, void *dst, dp_dtype dst_type, const void *src,
                              dp_dtype src_type, dp_layout src_layout, const int64_t shape[3], const float *mean,
                              const float *inv_std)
{
    return late_enqueue(
        s, &(late_work){
               .kind = LATE_CONVERT,
               .u.convert = {*r, dst, dst_type, src, src_type, src_layout, {shape[0], shape[1], shape[2]}, mean, inv_std}});
}

static int late_fuses(const dp_chain *chain, const dp_node *next)
{
    return cpu()->fuses(chain, next);
}

static dp_status late_kernel_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, dp_kernel **out,
                                  dp_error *err)
{
    DP_TRY(late_met(&d->options, LATE_KERNEL_OPEN, err));
    dp_kernel *k = dp_calloc(1, sizeof *k);
    if (!k) return dp_fail(err, DP_ENOMEM, "Out of memory: late kernel");
    k->device = d;
    dp_status status = cpu()->kernel_open(d->inner, chain, capacity, need, &k->inner, err);
    if (status) {
        free(k);
        return status;
    }
    late_link_in(&d->kernels, &k->of_device);
    *out = k;
    return DP_OK;
}

/* A CPU kernel's own state is not made for two threads: what is queued runs first. Plans prepare a row count once. */
static dp_status late_kernel_prepare(dp_kernel *k, int64_t rows, dp_error *err)
{
    DP_TRY(late_met(&k->device->options, LATE_PREPARE, err));
    dp_status status = late_drain(k->device);
    return status ? dp_fail(err, status, "Draining a late device failed.") : cpu()->kernel_prepare(k->inner, rows, err);
}

static void late_kernel_close(dp_kernel *k)
{
    if (k && !late_touches(k->device)) late_destroy_kernel(k);
}

static dp_status late_forward(dp_kernel *k, dp_be_stream *s, const dp_run *r, const dp_run *run_device, const dp_io *io)
{
    return late_enqueue(s, &(late_work){.kind = LATE_FORWARD, .u.kernel = {k, *r, run_device, *io, 0}});
}

static dp_status late_backward(dp_kernel *k, dp_be_stream *s, const dp_run *r, const dp_run *run_device, const dp_io *io)
{
    return late_enqueue(s, &(late_work){.kind = LATE_BACKWARD, .u.kernel = {k, *r, run_device, *io, 0}});
}

static dp_status late_partial(dp_kernel *k, dp_be_stream *s, const dp_run *r, const dp_run *run_device, const dp_io *io,
                              int backward)
{
    return late_enqueue(s, &(late_work){.kind = LATE_PARTIAL, .u.kernel = {k, *r, run_device, *io, backward}});
}

static dp_status late_loss(dp_be_stream *s, const dp_loss *l, int64_t rows, const float *logits, const void *targets,
                           dp_dtype type, float *d_logits, dp_loss_sums *sums)
{
    return late_enqueue(s, &(late_work){.kind = LATE_LOSS, .u.loss = {l, rows, logits, targets, type, d_logits, sums}});
}

static dp_status late_sum(dp_be_stream *s, float *dst, const float *const *src, int n, int64_t count)
{
    late_work w = {.kind = LATE_SUM, .u.sum = {.dst = dst, .n = n, .count = count}};
    if (n > MAX_SOURCES) return DP_EARGUMENT;
    memcpy(w.u.sum.src, src, sizeof *src * (size_t)n);
    return late_enqueue(s, &w);
}

static dp_status copy_leaves(late_leaves **copy, const float *const *from, const int64_t *rows, int n)
{
    if (n > MAX_LEAVES) return DP_EARGUMENT;
    *copy = dp_calloc(1, sizeof **copy);
    if (!*copy) return DP_ENOMEM;
    memcpy((*copy)->from, from, sizeof *from * (size_t)n);
    memcpy((*copy)->rows, rows, sizeof *rows * (size_t)n);
    return DP_OK;
}

static dp_status late_pool(dp_be_stream *s, float *whole, const float *const *part, const int64_t *rows, int n,
                           int64_t channels)
{
    late_work w = {.kind = LATE_POOL, .u.pool = {.whole = whole, .n = n, .channels = channels}};
    DP_TRY(copy_leaves(&w.u.pool.leaves, part, rows, n));
    dp_status status = late_enqueue(s, &w);
    if (status) free(w.u.pool.leaves);
    return status;
}

static dp_status late_merge(dp_be_stream *s, float *shadow, const float *buffer, const dp_bn_layer *layers, int n_layers,
                            const float *const *leaf, const int64_t *rows, int n)
{
    late_work w = {.kind = LATE_MERGE, .u.merge = {shadow, buffer, layers, n_layers, NULL, n}};
    DP_TRY(copy_leaves(&w.u.merge.leaves, leaf, rows, n));
    dp_status status = late_enqueue(s, &w);
    if (status) free(w.u.merge.leaves);
    return status;
}

static dp_status late_sumsq(dp_be_stream *s, const float *x, int64_t count, double *chunk_sums)
{
    return late_enqueue(s, &(late_work){.kind = LATE_SUMSQ, .u.chunks = {x, count, chunk_sums}});
}

static dp_status late_checksum(dp_be_stream *s, const float *x, int64_t count, uint64_t *chunk_sums)
{
    return late_enqueue(s, &(late_work){.kind = LATE_CHECKSUM, .u.chunks = {x, count, chunk_sums}});
}

static dp_status late_norm(dp_be_stream *s, const double *chunk_sums, int64_t n, const dp_run *run_device,
                           const dp_optimizer *o, dp_verdict *v)
{
    return late_enqueue(s, &(late_work){.kind = LATE_NORM, .u.norm = {chunk_sums, n, run_device, o, v}});
}

static dp_status late_update(dp_be_stream *s, const dp_optimizer *o, const dp_range *ranges, int n_ranges, int64_t first,
                             int64_t count, float *p, const float *g, float *m, float *v, const dp_run *run_device,
                             const dp_verdict *verdict)
{
    return late_enqueue(
        s, &(late_work){.kind = LATE_UPDATE, .u.update = {o, ranges, n_ranges, first, count, p, g, m, v, run_device, verdict}});
}

const dp_backend *late_backend(const late_options *o)
{
    static const dp_backend table = {
        .abi = DP_BACKEND_ABI,
        .kind = "late",
        .alignment = 64,
        .in_line = 0,
        .enumerate = late_enumerate,
        .open = late_open,
        .close = late_close,
        .bind = late_bind,
        .alloc = late_alloc,
        .free = late_unmap,
        .memory = late_memory,
        .alloc_pinned = late_alloc_pinned,
        .free_pinned = late_free_pinned,
        .pin = late_pin,
        .unpin = late_unpin,
        .stream_open = late_stream_open,
        .stream_close = late_stream_close,
        .event_open = late_event_open,
        .event_close = late_event_close,
        .record = late_record,
        .wait = late_wait,
        .done = late_done,
        .when = late_when,
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
        .partial = late_partial,
        .loss = late_loss,
        .sum = late_sum,
        .pool = late_pool,
        .merge = late_merge,
        .sumsq = late_sumsq,
        .norm = late_norm,
        .update = late_update,
        .checksum = late_checksum,
        .created = late_created,
    };
    late_bury();
    late_forget(o);
    return &table;
}
