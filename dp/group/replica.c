/* Memory of a replica, counted copies and the update: what engine and functional parts share. */
#include "replica.h"
#include "../base/text.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>

size_t dp_dtype_size(dp_dtype t)
{
    static const uint8_t size[] = {
        [DP_F32] = 4, [DP_U8] = 1, [DP_I32] = 4, [DP_I64] = 8, [DP_U16] = 2, [DP_F16] = 2, [DP_BF16] = 2};
    return (size_t)t < sizeof size ? size[t] : 0;
}

static dp_status floats(dp_replica *r, int mem_class, int64_t n, const char *what, float **p, dp_error *err)
{
    void *mem;
    size_t bytes = (size_t)n * 4;
    DP_TRY(r->b->alloc(r->w->be, mem_class, bytes, what, &mem, err));
    *p = mem;
    dp_status status = r->b->fill(r->w->stream, mem, 0, bytes);
    return status ? dp_fail(err, status, "Clearing device memory failed.") : DP_OK;
}

static dp_status bytes_of(dp_replica *r, int mem_class, size_t bytes, const char *what, void **p, dp_error *err)
{
    return r->b->alloc(r->w->be, mem_class, bytes, what, p, err);
}

/* The largest power-of-two part of the capacity that does fit, for the message of P04. */
static int64_t fitting_rows(dp_replica *r, int64_t capacity)
{
    for (int64_t rows = capacity / 2; rows >= 1; rows /= 2) {
        dp_plan *p = NULL;
        dp_status status = dp_plan_open(&p, r->b, r->w->be, r->graph, r->params, rows, r->slots > 0, NULL);
        dp_plan_close(p);
        if (!status) return rows;
    }
    return 0;
}

static dp_status open_plans(dp_replica *r, dp_error *err)
{
    int64_t rows = r->capacity;
    dp_status status = dp_plan_open(&r->plan, r->b, r->w->be, r->graph, r->params, rows, r->slots > 0, err);
    r->eval_plan = r->plan;
    if (!status && r->eval_capacity > r->capacity) {
        r->eval_plan = NULL;
        rows = r->eval_capacity;
        status = dp_plan_open(&r->eval_plan, r->b, r->w->be, r->graph, r->params, rows, 0, err);
    }
    if (!status) {
        dp_plan_watch(r->plan, dp_phase_layer, r->w);
        dp_plan_watch(r->eval_plan, dp_phase_layer, r->w);
    }
    if (status == DP_ENOMEM && err) {
        size_t at = strlen(err->text);
        int64_t fit = fitting_rows(r, rows);
        if (fit)
            dp_format(err->text + at, sizeof err->text - at,
                      " %s wants %lld rows on this device; %lld fit: make %s smaller or use more devices.",
                      rows == r->capacity ? "Training" : "Evaluation", (long long)rows, (long long)fit,
                      rows == r->capacity ? "data.batch_size" : "eval.batch_size");
        else
            dp_format(err->text + at, sizeof err->text - at, " Not even one row fits beside the parameters.");
    }
    return status;
}

dp_status dp_replica_open(dp_replica *r, dp_worker *w, const dp_replica_options *o, dp_error *err)
{
    const dp_node *in = &o->graph->node[0];
    int64_t n = o->params->count, buffers = o->params->buffer_count;
    memset(r, 0, sizeof *r);
    r->w = w, r->b = w->group->backend, r->graph = o->graph, r->params = o->params;
    r->capacity = o->capacity, r->eval_capacity = o->eval_capacity;
    r->rows_capacity = o->eval_capacity > o->capacity ? o->eval_capacity : o->capacity;
    r->n_sums = o->sums;
    r->channels = in->dtype == DP_F32 ? (int)in->shape[in->rank - 1] : 0;
    DP_TRY(floats(r, DP_MEM_PARAMETERS, n, "parameters", &r->param, err));
    if (buffers) {
        DP_TRY(floats(r, DP_MEM_PARAMETERS, buffers, "buffers", &r->buffer, err));
        DP_TRY(floats(r, DP_MEM_PARAMETERS, buffers, "new running statistics", &r->shadow, err));
    }
    for (; r->slots < o->slots; r->slots++) DP_TRY(floats(r, DP_MEM_GRADIENTS, n, "gradients", &r->grad[r->slots], err));
    if (o->window) DP_TRY(floats(r, DP_MEM_GRADIENTS, n, "accumulated gradients", &r->window, err));
    for (int lane = 0; lane < DP_LANES; lane++) {
        r->inbox_slot[lane] = o->inbox_slot[lane], r->inbox_slots[lane] = o->inbox_slots[lane];
        int64_t floats_of = o->inbox_slot[lane] * o->inbox_slots[lane];
        if (floats_of) DP_TRY(floats(r, DP_MEM_STAGING, floats_of, "what comes through the host", &r->inbox[lane], err));
    }
    r->leaf_stats = dp_calloc((size_t)o->leaf_stats * 2 + 1, sizeof *r->leaf_stats);
    if (!r->leaf_stats) return dp_fail(err, DP_ENOMEM, "Out of host memory while opening device %d.", w->device);
    for (int i = 0; buffers && i < 2 * o->leaf_stats; i++)
        DP_TRY(floats(r, DP_MEM_STAGING, buffers, "statistics of a leaf", &r->leaf_stats[i], err));
    r->n_leaf_stats = 2 * o->leaf_stats;
    r->states = n / (o->state_slices ? o->state_slices : 1);
    if (o->states >= 1) DP_TRY(floats(r, DP_MEM_OPTIMIZER, r->states, "optimizer state", &r->m, err));
    if (o->states >= 2) DP_TRY(floats(r, DP_MEM_OPTIMIZER, r->states, "optimizer state", &r->v, err));
    for (int i = 0; i < 2; i++) {
        void *p;
        DP_TRY(bytes_of(r, DP_MEM_WORKSPACE, (size_t)(n / DP_CHUNK + 1) * 8, "partial sums", &p, err));
        r->chunk_sums[i] = p;
    }
    void *check;
    DP_TRY(bytes_of(r, DP_MEM_WORKSPACE, (size_t)(n / DP_CHUNK + 1) * 8, "checksums", &check, err));
    r->check_sums = check;
    void *verdict;
    DP_TRY(bytes_of(r, DP_MEM_OPTIMIZER, 2 * sizeof *r->verdict, "verdict", &verdict, err));
    r->verdict = verdict;
    dp_status status = r->b->fill(w->stream, verdict, 0, 2 * sizeof *r->verdict);
    if (status) return dp_fail(err, status, "Clearing device memory failed.");
    r->x_bytes = (size_t)(r->rows_capacity * in->width) * (in->dtype == DP_F32 ? 4 : 8);
    r->y_bytes = (size_t)(r->rows_capacity * o->targets_per_row) * 8;
    void *p;
    DP_TRY(bytes_of(r, DP_MEM_STAGING, r->x_bytes, "input rows", &r->x, err));
    DP_TRY(bytes_of(r, DP_MEM_STAGING, r->y_bytes, "targets", &r->y, err));
    DP_TRY(bytes_of(r, DP_MEM_STAGING, (size_t)r->rows_capacity * 8, "sample ids", &p, err));
    r->ids = p;
    DP_TRY(bytes_of(r, DP_MEM_STAGING, sizeof *r->run, "run block", &p, err));
    r->run = p;
    DP_TRY(bytes_of(r, DP_MEM_STAGING, 2 * sizeof *r->run, "run block of the update", &p, err));
    r->update_run = p;
    DP_TRY(bytes_of(r, DP_MEM_STAGING, sizeof *r->sums * (size_t)o->sums, "loss sums", &p, err));
    r->sums = p;
    if (r->channels) {
        DP_TRY(floats(r, DP_MEM_STAGING, r->channels, "normalisation", &r->mean, err));
        DP_TRY(floats(r, DP_MEM_STAGING, r->channels, "normalisation", &r->inv_std, err));
    }
    return open_plans(r, err);
}

static void give_back(dp_replica *r)
{
    dp_be_device *d = r->w->be;
    int64_t n = r->params->count, buffers = r->params->buffer_count;
    if (r->eval_plan != r->plan) dp_plan_close(r->eval_plan);
    dp_plan_close(r->plan);
#define FREE(mem_class, p, bytes) r->b->free(d, mem_class, p, (size_t)(bytes))
    FREE(DP_MEM_PARAMETERS, r->param, n * 4);
    FREE(DP_MEM_PARAMETERS, r->buffer, buffers * 4);
    FREE(DP_MEM_PARAMETERS, r->shadow, buffers * 4);
    for (int i = 0; i < DP_MAX_SLOTS; i++) FREE(DP_MEM_GRADIENTS, r->grad[i], n * 4);
    FREE(DP_MEM_GRADIENTS, r->window, n * 4);
    for (int i = 0; r->leaf_stats && i < r->n_leaf_stats; i++) FREE(DP_MEM_STAGING, r->leaf_stats[i], buffers * 4);
    FREE(DP_MEM_OPTIMIZER, r->m, r->states * 4);
    FREE(DP_MEM_OPTIMIZER, r->v, r->states * 4);
    FREE(DP_MEM_OPTIMIZER, r->verdict, 2 * sizeof *r->verdict);
    FREE(DP_MEM_WORKSPACE, r->check_sums, (n / DP_CHUNK + 1) * 8);
    for (int i = 0; i < 2; i++) FREE(DP_MEM_WORKSPACE, r->chunk_sums[i], (n / DP_CHUNK + 1) * 8);
    FREE(DP_MEM_STAGING, r->x, r->x_bytes);
    FREE(DP_MEM_STAGING, r->y, r->y_bytes);
    FREE(DP_MEM_STAGING, r->ids, r->rows_capacity * 8);
    FREE(DP_MEM_STAGING, r->run, sizeof *r->run);
    FREE(DP_MEM_STAGING, r->update_run, 2 * sizeof *r->run);
    FREE(DP_MEM_STAGING, r->sums, sizeof *r->sums * (size_t)r->n_sums);
    FREE(DP_MEM_STAGING, r->mean, r->channels * 4);
    FREE(DP_MEM_STAGING, r->inv_std, r->channels * 4);
    for (int lane = 0; lane < DP_LANES; lane++)
        FREE(DP_MEM_STAGING, r->inbox[lane], r->inbox_slot[lane] * r->inbox_slots[lane] * 4);
#undef FREE
}

void dp_replica_close(dp_replica *r)
{
    if (!r->w) return;
    if (dp_lost(r->w)) {
        if (r->eval_plan != r->plan) dp_plan_leave(r->eval_plan);
        dp_plan_leave(r->plan);
    } else {
        give_back(r);
    }
    free(r->leaf_stats);
    memset(r, 0, sizeof *r);
}

dp_status dp_replica_put(dp_replica *r, const float *param, const float *buffer, dp_error *err)
{
    size_t n = (size_t)r->params->count * 4, buffers = (size_t)r->params->buffer_count * 4;
    DP_TRY(dp_fetch(r->w, r->param, param, n, -1, err));
    if (buffers) {
        DP_TRY(dp_fetch(r->w, r->buffer, buffer, buffers, -1, err));
        DP_TRY(dp_fetch(r->w, r->shadow, buffer, buffers, -1, err));
    }
    return dp_finish_stream(r->w, err);
}

dp_status dp_fetch(dp_worker *w, void *dst, const void *src, size_t bytes, int peer, dp_error *err)
{
    dp_status status = w->group->backend->copy(w->stream, dst, src, bytes);
    if (status) return dp_fail(err, status, "A copy of %zu bytes failed.", bytes);
    dp_phase_bytes(w, (int64_t)bytes, peer);
    return DP_OK;
}

dp_status dp_send(dp_worker *w, void *host, const void *src, size_t bytes, dp_error *err)
{
    dp_status status = w->group->backend->copy(w->stream, host, src, bytes);
    if (status) return dp_fail(err, status, "A copy of %zu bytes failed.", bytes);
    dp_phase_sent(w, (int64_t)bytes);
    return DP_OK;
}

dp_status dp_sum(dp_worker *w, float *dst, const float *const *src, int n, int64_t count, dp_error *err)
{
    int others = 0, own = 0;
    for (int i = 0; i < n; i++) {
        others += src[i] && src[i] != dst;
        own |= src[i] == dst;
    }
    if (!others && own) return DP_OK;
    dp_status status = w->group->backend->sum(w->stream, dst, src, n, count);
    return status ? dp_fail(err, status, "Adding gradients failed.") : DP_OK;
}

dp_status dp_replica_update(dp_replica *r, const float *grad, const dp_optimizer *o, dp_error *err)
{
    const dp_params *p = r->params;
    dp_be_stream *s = r->w->stream;
    dp_status status = r->b->sumsq(s, grad, p->count, r->chunk_sums[0]);
    if (!status) status = r->b->norm(s, r->chunk_sums[0], p->count / DP_CHUNK, r->run, o, r->verdict);
    if (!status)
        status = r->b->update(s, o, p->range, p->n_ranges, 0, p->count, r->param, grad, r->m, r->v, r->run, r->verdict);
    return status ? dp_fail(err, status, "The optimizer step failed (%s).", dp_status_name(status)) : DP_OK;
}
