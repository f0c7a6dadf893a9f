/* Statistics of batchnorm over the leaves of a batch.
 *
 * primary: leaf 0 alone writes the new running statistics, as PyTorch's replica 0 does. merged: every leaf keeps its mean and variance,
 * the master pools them by their counts. sync: before each batchnorm goes on, forward and backward, the devices exchange their parts,
 * and every one pools them alike; devices without rows take no part. The new running statistics lie in a shadow until the step's end. */
#include "internal.h"

/* ---- sync ---- */

static int leaf_of(const dp_split *s, int device) /* sync has one leaf a device; -1: no rows */
{
    int i = s->begin[device];
    return i < s->begin[device + 1] && s->leaf[i].rows ? i : -1;
}

dp_status dp_sync_part(dp_walk *k, int channels, int backward, dp_error *err)
{
    dp_engine *e = k->e;
    dp_worker *w = k->r->w;
    const float *part[DP_MAX_DEVICES];
    int64_t rows[DP_MAX_DEVICES], floats = (2 * channels + 15) / 16 * 16;
    uint64_t number = k->step->part + (uint64_t)++k->part;
    int phase = backward ? DP_PHASE_BACKWARD : DP_PHASE_FORWARD, n = 0;
    DP_TRY(dp_publish(e, w, dp_plan_part(k->r->plan, number), (size_t)floats * 4, 1, err));
    DP_TRY(dp_signal_raise(&e->at[k->me].part, w, number, err));
    dp_phase_idle(w);
    for (int d = 0; d < e->n; d++)
        if (d != k->me && leaf_of(&k->step->split, d) >= 0)
            DP_TRY(dp_signal_wait(&e->at[d].part, w, number, "a device's part of the statistics", err));
    dp_phase_begin(w, DP_PHASE_SHARE);
    for (int d = 0; d < e->n; d++) {
        int leaf = leaf_of(&k->step->split, d);
        if (leaf < 0) continue;
        rows[n] = k->step->split.leaf[leaf].rows;
        part[n] = dp_plan_part(e->replica[d].plan, number);
        DP_TRY(dp_bring(e, k->r, &part[n], d, floats, n, err));
        n++;
    }
    float *whole = dp_plan_whole(k->r->plan);
    dp_status status = backward ? dp_sum(w, whole, part, n, floats, err)
                                : k->r->b->pool(w->stream, whole, part, rows, n, channels);
    if (status) return dp_fail(err, status, "Pooling statistics failed (%s).", dp_status_name(status));
    dp_phase_begin(w, phase);
    return DP_OK;
}

/* ---- running statistics ---- */

/* Two sets of arrays take turns, so that leaves go on while the master still reads the last ones. */
float *dp_leaf_statistics(dp_walk *k, int leaf)
{
    int first = k->step->split.begin[k->me];
    if (!k->e->n_bn) return NULL;
    if (k->e->on.bn_stats == DP_BN_PRIMARY) return leaf == 0 ? k->r->shadow : NULL;
    return k->r->leaf_stats[2 * (leaf - first) + (int)(k->step->pooled % 2)];
}

dp_status dp_statistics_given(dp_walk *k, dp_error *err)
{
    if (!k->e->n_bn || k->e->on.bn_stats == DP_BN_PRIMARY) return DP_OK;
    const dp_split *s = &k->step->split;
    for (int i = s->begin[k->me]; k->me && i < s->begin[k->me + 1]; i++)
        if (s->leaf[i].rows)
            DP_TRY(dp_publish(k->e, k->r->w, dp_leaf_statistics(k, i), (size_t)k->e->params->buffer_count * 4, 1, err));
    return dp_signal_raise(&k->e->at[k->me].stats, k->r->w, k->step->pooled + 1, err);
}

static dp_status merge(dp_walk *k, dp_error *err)
{
    dp_engine *e = k->e;
    dp_replica *r = k->r;
    const dp_split *s = &k->step->split;
    const float *leaf[DP_MAX_LEAVES];
    int64_t rows[DP_MAX_LEAVES];
    int n = 0;
    for (int d = 0; d < e->n; d++) {
        int there = 0;
        for (int i = s->begin[d]; i < s->begin[d + 1]; i++) {
            if (!s->leaf[i].rows) continue;
            if (d && !there++) DP_TRY(dp_signal_wait(&e->at[d].stats, r->w, k->step->pooled + 1, "a device's statistics", err));
            rows[n] = s->leaf[i].rows;
            leaf[n] = e->replica[d].leaf_stats[2 * (i - s->begin[d]) + (int)(k->step->pooled % 2)];
            DP_TRY(dp_bring(e, r, &leaf[n], d, e->params->buffer_count, n, err));
            n++;
        }
    }
    if (!n) return DP_OK;
    dp_status status = r->b->merge(r->w->stream, r->shadow, r->buffer, e->bn, e->n_bn, leaf, rows, n);
    return status ? dp_fail(err, status, "Merging running statistics failed (%s).", dp_status_name(status)) : DP_OK;
}

dp_status dp_statistics_commit(dp_walk *k, dp_error *err)
{
    dp_engine *e = k->e;
    dp_replica *r = k->r;
    int primary = e->on.bn_stats == DP_BN_PRIMARY;
    if (!e->n_bn || !k->step->stats) return DP_OK;
    dp_lane_enter(r->w, DP_LANE_COMPUTE);
    dp_phase_begin(r->w, DP_PHASE_UPDATE);
    if (!primary) DP_TRY(merge(k, err));
    for (int d = 1; e->on.broadcast_always && k->step->arrives && d < e->n; d++) /* they have read the old ones */
        DP_TRY(dp_signal_wait(&e->at[d].taken, r->w, k->step->job, "a device's running statistics", err));
    dp_status status = r->b->copy(r->w->stream, r->buffer, r->shadow, (size_t)e->params->buffer_count * 4);
    if (status) return dp_fail(err, status, "Committing running statistics failed.");
    DP_TRY(dp_publish(e, r->w, r->buffer, (size_t)e->params->buffer_count * 4, 1, err));
    if (!primary) DP_TRY(dp_signal_raise(&e->merged, r->w, k->step->pooled + 1, err));
    return dp_signal_raise(&e->committed, r->w, k->step->job, err);
}
