/* reduce: gradient sums of all devices onto the master, in the halving tree over devices whatever the route, so that both give equal
 * bytes. reduce = master: the master reads every device's array. reduce = sliced: device d adds slice d of every bucket over all
 * devices, in place in its own array (nobody else reads that slice), and the master collects the slices. */
#include "internal.h"

static void count_received(dp_replica *r, const float *const *src, int n, int64_t count)
{
    for (int d = 0; d < n; d++)
        if (d != r->w->device && src[d]) dp_phase_bytes(r->w, count * 4, d);
}

/* Where device d's own part of a reduction lies: its result, or, idle, its first array. */
static float *place_of(dp_replica *r)
{
    return r->result ? r->result : r->grad[0];
}

static dp_status sum_range(dp_engine *e, dp_replica *r, int64_t offset, int64_t count, dp_error *err)
{
    const float *src[DP_MAX_DEVICES];
    for (int d = 0; d < e->n; d++) src[d] = e->replica[d].result ? e->replica[d].result + offset : NULL;
    count_received(r, src, e->n, count);
    return dp_sum(r->w, place_of(r) + offset, src, e->n, count, err);
}

static dp_status await_gradients(dp_engine *e, dp_replica *r, uint64_t reduction, dp_error *err)
{
    for (int d = 0; d < e->n; d++)
        if (d != r->w->device) DP_TRY(dp_signal_wait(&e->has_gradient[d], r->w, reduction, "a device's gradient", err));
    return DP_OK;
}

dp_status dp_phase_reduce(dp_engine *e, dp_replica *r, uint64_t reduction, dp_error *err)
{
    const dp_params *p = e->params;
    int me = r->w->device;
    dp_phase_begin(r->w, DP_PHASE_REDUCE);
    if (e->n == 1) return DP_OK;
    DP_TRY(dp_signal_raise(&e->has_gradient[me], r->w, reduction, err));
    if (e->on.reduce_on_master) {
        if (me != 0) return DP_OK;
        DP_TRY(await_gradients(e, r, reduction, err));
        DP_TRY(sum_range(e, r, 0, p->count, err));
    } else {
        DP_TRY(await_gradients(e, r, reduction, err));
        for (int b = 0; b < p->n_buckets; b++) {
            int64_t size = p->bucket[b].count / e->n;
            DP_TRY(sum_range(e, r, p->bucket[b].offset + me * size, size, err));
        }
        DP_TRY(dp_signal_raise(&e->has_sum[me], r->w, reduction, err));
        if (me != 0) return DP_OK;
        for (int d = 1; d < e->n; d++) {
            const float *from = place_of(&e->replica[d]);
            DP_TRY(dp_signal_wait(&e->has_sum[d], r->w, reduction, "a device's slice", err));
            for (int b = 0; b < p->n_buckets; b++) {
                int64_t size = p->bucket[b].count / e->n, at = p->bucket[b].offset + d * size;
                DP_TRY(dp_fetch(r->w, place_of(r) + at, from + at, (size_t)size * 4, d, err));
            }
        }
    }
    r->result = place_of(r);
    return dp_signal_raise(&e->reduced, r->w, reduction, err);
}
