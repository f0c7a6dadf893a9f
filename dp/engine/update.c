/* The optimizer's step, bucket by bucket, where [devices] update says: on the master, on each device for its slice, on each for all.
 *
 * Normally the norm of the whole gradient comes first: it decides on clipping and on skipping. `early` (overlap = all, no clipping,
 * on_nan = stop): a bucket steps as soon as it is summed, under the rest of backward; then the norm is only reported. */
#include "internal.h"

/* A slice steps in the lane in which it was summed, so that nothing stands between; else after what was collected. */
int dp_update_lane(const dp_engine *e)
{
    return e->on.early && e->on.update == DP_UPDATE_SLICED ? DP_LANE_REDUCE : DP_LANE_SHARE;
}
static int whole(const dp_walk *k) /* this device steps all of a bucket */
{
    return k->e->on.update != DP_UPDATE_SLICED;
}

/* Chunk sums of the slices that other devices added; each chunk stands where its elements stand. */
static dp_status take_chunk_sums(dp_walk *k, dp_error *err)
{
    dp_engine *e = k->e;
    int parity = (int)(k->step->reduction % 2), n = e->params->n_buckets;
    if (e->on.reduce != DP_REDUCE_SLICED) return DP_OK;
    for (int d = 0; d < e->n; d++) {
        if (d == k->me) continue;
        for (int b = 0; b < n; b++) {
            int64_t at = dp_slice_at(e, b, d) / DP_CHUNK;
            size_t bytes = (size_t)(dp_slice_size(e, b) / DP_CHUNK) * sizeof(double);
            dp_status status = k->r->b->copy(k->r->w->stream, k->r->chunk_sums[parity] + at,
                                             dp_seen(e, k->me, d, e->replica[d].chunk_sums[parity] + at), bytes);
            if (status) return dp_fail(err, status, "Copying the norm's parts failed.");
        }
    }
    return DP_OK;
}

int dp_norm_ready(const dp_walk *k, int b)
{
    const dp_engine *e = k->e;
    (void)b;
    if (e->on.reduce != DP_REDUCE_SLICED) return 1;
    for (int d = 0; d < e->n; d++)
        for (int i = 0; i < e->params->n_buckets; i++)
            if (d != k->me && !dp_signal_ready(&e->at[d].sum[i], k->step->reduction)) return 0;
    return 1;
}

/* The run block of the step in this lane: the compute lane may be at the next one already. */
static dp_status prepare(dp_walk *k, dp_error *err)
{
    if (k->prepared) return DP_OK;
    k->prepared = 1;
    return dp_fetch(k->r->w, &k->r->update_run[k->step->reduction % 2], &k->step->leaf_run[DP_MAX_LEAVES], sizeof k->step->run,
                    -1, err);
}

static dp_status judge(dp_walk *k, int64_t chunks, dp_verdict *verdict, dp_error *err)
{
    dp_replica *r = k->r;
    int parity = (int)(k->step->reduction % 2);
    dp_status status = r->b->norm(r->w->stream, r->chunk_sums[parity], chunks, &r->update_run[parity], &k->e->optimizer,
                                  verdict);
    return status ? dp_fail(err, status, "The norm of the gradient failed (%s).", dp_status_name(status)) : DP_OK;
}

static dp_status norm(dp_walk *k, dp_verdict *verdict, dp_error *err)
{
    dp_engine *e = k->e;
    dp_lane_enter(k->r->w, DP_LANE_SHARE);
    dp_phase_idle(k->r->w);
    for (int d = 0; d < e->n; d++)
        for (int b = 0; (d == k->me || e->on.reduce == DP_REDUCE_SLICED) && b < e->params->n_buckets; b++)
            DP_TRY(dp_signal_wait(&e->at[d].sum[b], k->r->w, k->step->reduction, "a device's slice", err));
    for (int b = 0; e->on.early && b < e->params->n_buckets; b++) /* the run block came with the first update */
        DP_TRY(dp_signal_wait(&e->at[k->me].param[b], k->r->w, k->step->version + 1, "its own update", err));
    dp_phase_begin(k->r->w, DP_PHASE_UPDATE);
    DP_TRY(prepare(k, err));
    DP_TRY(take_chunk_sums(k, err));
    return judge(k, e->params->count / DP_CHUNK, verdict, err);
}

dp_status dp_norm_all(dp_walk *k, int b, dp_error *err)
{
    (void)b;
    DP_TRY(norm(k, &k->r->verdict[0], err));
    if (k->me != 0) return DP_OK;
    return dp_send(k->r->w, &k->step->verdict[0], &k->r->verdict[0], sizeof *k->r->verdict, err);
}

dp_status dp_report_all(dp_walk *k, int b, dp_error *err)
{
    (void)b;
    DP_TRY(norm(k, &k->r->verdict[1], err));
    return dp_send(k->r->w, &k->step->verdict[1], &k->r->verdict[1], sizeof *k->r->verdict,
                   err); /* [0] may be the next step's */
}

dp_status dp_update_bucket(dp_walk *k, int b, dp_error *err)
{
    dp_engine *e = k->e;
    dp_replica *r = k->r;
    const dp_params *p = e->params;
    int64_t at = whole(k) ? p->bucket[b].offset : dp_slice_at(e, b, k->me);
    int64_t count = whole(k) ? p->bucket[b].count : dp_slice_size(e, b);
    int64_t state = whole(k) ? at : p->bucket[b].offset / e->n;
    uint64_t version = k->step->version + 1;
    dp_lane_enter(r->w, dp_update_lane(e));
    if (e->on.early && dp_update_lane(e) != DP_LANE_REDUCE) {
        dp_phase_idle(r->w);
        DP_TRY(dp_signal_wait(&e->at[k->me].sum[b], r->w, k->step->reduction, "its own sum", err));
    }
    dp_phase_begin(r->w, DP_PHASE_UPDATE);
    dp_phase_bucket(r->w, b);
    if (e->on.early && !k->prepared) {
        DP_TRY(prepare(k, err));
        DP_TRY(judge(k, 0, &r->verdict[0], err)); /* of nothing: finite, no clipping */
    }
    dp_status status = r->b->update(r->w->stream, &e->optimizer, p->range, p->n_ranges, at, count, r->param + at,
                                    dp_final(e, k->step, k->me) + at, r->m ? r->m + state : NULL, r->v ? r->v + state : NULL,
                                    &r->update_run[k->step->reduction % 2], &r->verdict[0]);
    if (status) return dp_fail(err, status, "The optimizer step failed (%s).", dp_status_name(status));
    if (e->on.update != DP_UPDATE_REPLICATED) DP_TRY(dp_publish(e, r->w, r->param + at, (size_t)count * 4, 1, err));
    DP_TRY(dp_signal_raise(&e->at[k->me].param[b], r->w, version, err));
    return whole(k) || e->n == 1 ? dp_signal_raise(&e->at[k->me].here[b], r->w, version, err) : DP_OK;
}

int dp_gather_ready(const dp_walk *k, int b)
{
    for (int d = 0; d < k->e->n; d++)
        if (d != k->me && !dp_signal_ready(&k->e->at[d].param[b], k->step->version + 1)) return 0;
    return 1;
}

dp_status dp_gather_bucket(dp_walk *k, int b, dp_error *err)
{
    dp_arrival a;
    dp_arrival_begin(&a, k->step->version + 1, 0, 0);
    a.mine = a.here = k->e->params->n_buckets - 1 - b; /* just this one */
    return dp_arrive(k->e, k->r, &a, b, err);
}
