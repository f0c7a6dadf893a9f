/* reduce: gradient sums over devices, one bucket at a time, always in the halving tree over devices, so that every route gives equal
 * bytes.
 *
 * sliced: device d adds slice d of the bucket over all devices, in place in its own array (nobody else reads that slice); who needs the
 * whole sum (the master, or with update = replicated everybody) collects the slices. master: the master reads every device's array.
 * tree: each device adds the sums of the subtrees to its right, nearest first, and is then read by the one to its left. */
#include "internal.h"

const float *dp_given(const dp_walk *k, int d)
{
    return k->step->gives >> d & 1 ? dp_summed(k, d) : NULL;
}

float *dp_summed(const dp_walk *k, int d)
{
    dp_replica *r = &k->e->replica[d];
    return k->step->windowed ? r->window : r->grad[0];
}

float *dp_final(const dp_engine *e, const dp_step *s, int d)
{
    dp_replica *r = &e->replica[d];
    return s->windowed || s->keeps ? r->window : r->grad[0];
}

/* Devices first .. first + n - 1 as a node of the tree: the roots of the right subtrees that `d` adds, nearest first. */
static int children(int first, int n, int d, int *child)
{
    int half = (n + 1) / 2, at = 0;
    if (n == 1) return 0;
    if (d >= first + half) return children(first + half, n - half, d, child);
    at = children(first, half, d, child);
    if (d == first) child[at++] = first + half;
    return at;
}

static int gives_any(const dp_walk *k, int first, int n)
{
    uint64_t mask = n == 64 ? ~(uint64_t)0 : (((uint64_t)1 << n) - 1) << first;
    return (k->step->gives & mask) != 0;
}

static int right_subtree(int first, int n, int root) /* the largest node that begins at root and is a right half */
{
    int half = (n + 1) / 2;
    if (first + half == root) return n - half;
    return root > first + half ? right_subtree(first + half, n - half, root) : right_subtree(first, half, root);
}

/* What others add of this device's gradient, for those who cannot read it here. */
int dp_offer_ready(const dp_walk *k, int b)
{
    return dp_signal_ready(&k->e->at[k->me].gradient[b], k->step->reduction);
}

dp_status dp_offer_bucket(dp_walk *k, int b, dp_error *err)
{
    dp_engine *e = k->e;
    dp_worker *w = k->r->w;
    const float *given = dp_given(k, k->me);
    const dp_bucket *bucket = &e->params->bucket[b];
    dp_lane_enter(w, DP_LANE_REDUCE);
    dp_phase_idle(w);
    DP_TRY(dp_signal_wait(&e->at[k->me].gradient[b], w, k->step->reduction, "its own gradient", err));
    dp_phase_begin(w, DP_PHASE_REDUCE);
    dp_phase_bucket(w, b);
    if (given && e->on.reduce == DP_REDUCE_MASTER && k->me != 0)
        DP_TRY(dp_publish(e, w, given + bucket->offset, (size_t)bucket->count * 4, 1, err));
    for (int d = 0; given && e->on.reduce == DP_REDUCE_SLICED && d < e->n; d++) /* the slice of each who wants it from there */
        if (!dp_reaches(e->group, d, k->me))
            DP_TRY(dp_publish(e, w, given + dp_slice_at(e, b, d), (size_t)dp_slice_size(e, b) * 4, 1, err));
    return dp_signal_raise(&e->at[k->me].offered[b], w, k->step->reduction, err);
}

/* The signal behind which device d's contribution can be taken here. */
static dp_signal *given_signal(const dp_walk *k, int d, int b)
{
    return dp_reaches(k->e->group, k->me, d) ? &k->e->at[d].gradient[b] : &k->e->at[d].offered[b];
}

int dp_sum_ready(const dp_walk *k, int b)
{
    const dp_engine *e = k->e;
    int child[8], n;
    if (!k->step->reduce) return 1;
    if (e->on.reduce == DP_REDUCE_TREE) {
        n = children(0, e->n, k->me, child);
        for (int i = 0; i < n; i++)
            if (!dp_signal_ready(&e->at[child[i]].sum[b], k->step->reduction)) return 0;
        return 1;
    }
    for (int d = 0; d < e->n; d++)
        if (d != k->me && !dp_signal_ready(given_signal(k, d, b), k->step->reduction)) return 0;
    return 1;
}

static dp_status sum_all(dp_walk *k, int b, int64_t at, int64_t count, dp_error *err)
{
    dp_engine *e = k->e;
    const float *src[DP_MAX_DEVICES];
    for (int d = 0; d < e->n; d++) {
        src[d] = dp_given(k, d);
        if (src[d]) src[d] += at;
        if (d != k->me) DP_TRY(dp_signal_wait(given_signal(k, d, b), k->r->w, k->step->reduction, "a device's gradient", err));
    }
    dp_phase_begin(k->r->w, DP_PHASE_REDUCE);
    dp_phase_bucket(k->r->w, b);
    for (int d = 0, slot = 0; d < e->n; d++)
        if (d != k->me) DP_TRY(dp_bring(e, k->r, &src[d], d, count, slot++, err));
    return dp_sum(k->r->w, dp_summed(k, k->me) + at, src, e->n, count, err);
}

static dp_status sum_tree(dp_walk *k, int b, int64_t at, int64_t count, dp_error *err)
{
    dp_engine *e = k->e;
    int child[8], n = children(0, e->n, k->me, child), mine = dp_given(k, k->me) != NULL;
    float *sum = dp_summed(k, k->me) + at;
    for (int i = 0; i < n; i++) {
        int c = child[i];
        DP_TRY(dp_signal_wait(&e->at[c].sum[b], k->r->w, k->step->reduction, "the sum of a subtree", err));
        dp_phase_begin(k->r->w, DP_PHASE_REDUCE);
        dp_phase_bucket(k->r->w, b);
        if (!gives_any(k, c, right_subtree(0, e->n, c))) continue;
        const float *pair[2] = {mine ? sum : NULL, dp_summed(k, c) + at};
        DP_TRY(dp_bring(e, k->r, &pair[1], c, count, 0, err));
        DP_TRY(dp_sum(k->r->w, sum, pair, 2, count, err));
        mine = 1;
    }
    if (mine || k->me != 0) return DP_OK;
    return dp_sum(k->r->w, sum, &(const float *){NULL}, 1, count, err); /* nobody gave: zero */
}

/* shards with accumulation: the sum of this batch joins those of the window, where the sum is. */
static dp_status keep(dp_walk *k, int64_t at, int64_t count, dp_error *err)
{
    const float *pair[2] = {k->step->reduced_before ? k->r->window + at : NULL, dp_summed(k, k->me) + at};
    return k->step->keeps ? dp_sum(k->r->w, k->r->window + at, pair, 2, count, err) : DP_OK;
}

dp_status dp_sum_bucket(dp_walk *k, int b, dp_error *err)
{
    dp_engine *e = k->e;
    dp_replica *r = k->r;
    int sliced = e->on.reduce == DP_REDUCE_SLICED, final = sliced || k->me == 0;
    int64_t at = sliced ? dp_slice_at(e, b, k->me) : e->params->bucket[b].offset;
    int64_t count = sliced ? dp_slice_size(e, b) : e->params->bucket[b].count;
    dp_lane_enter(r->w, DP_LANE_REDUCE);
    dp_phase_idle(r->w);
    DP_TRY(dp_signal_wait(&e->at[k->me].gradient[b], r->w, k->step->reduction, "its own gradient", err));
    if (k->step->reduce)
        DP_TRY(e->on.reduce == DP_REDUCE_TREE ? sum_tree(k, b, at, count, err) : sum_all(k, b, at, count, err));
    if (final && k->step->reduce) DP_TRY(keep(k, at, count, err));
    if (final && k->step->update) {
        dp_phase_begin(r->w, DP_PHASE_UPDATE);
        double *sums = r->chunk_sums[k->step->reduction % 2] + at / DP_CHUNK;
        dp_status status = r->b->sumsq(r->w->stream, dp_final(e, k->step, k->me) + at, count, sums);
        if (status) return dp_fail(err, status, "The norm of the gradient failed (%s).", dp_status_name(status));
        if (sliced) DP_TRY(dp_publish(e, r->w, sums, (size_t)(count / DP_CHUNK) * 8, 0, err));
    }
    if (e->on.reduce == DP_REDUCE_TREE && k->me != 0)
        DP_TRY(dp_publish(e, r->w, dp_summed(k, k->me) + at, (size_t)count * 4, 1, err));
    int collected = e->on.update == DP_UPDATE_REPLICATED || (e->on.update == DP_UPDATE_MASTER && k->me != 0);
    if (sliced && collected && k->step->update)
        DP_TRY(dp_publish(e, r->w, dp_final(e, k->step, k->me) + at, (size_t)count * 4, 1, err));
    return dp_signal_raise(&e->at[k->me].sum[b], r->w, k->step->reduction, err);
}

int dp_collect_ready(const dp_walk *k, int b)
{
    for (int d = 0; d < k->e->n; d++)
        if (d != k->me && !dp_signal_ready(&k->e->at[d].sum[b], k->step->reduction)) return 0;
    return 1;
}

dp_status dp_collect_bucket(dp_walk *k, int b, dp_error *err)
{
    dp_engine *e = k->e;
    dp_worker *w = k->r->w;
    size_t bytes = (size_t)dp_slice_size(e, b) * 4;
    dp_lane_enter(w, DP_LANE_SHARE);
    dp_phase_idle(w);
    for (int d = 0; d < e->n; d++) DP_TRY(dp_signal_wait(&e->at[d].sum[b], w, k->step->reduction, "a device's slice", err));
    dp_phase_begin(w, DP_PHASE_REDUCE);
    dp_phase_bucket(w, b);
    for (int i = 1; i < e->n; i++) {
        int d = (k->me + i) % e->n; /* not all from the same one at once */
        int64_t at = dp_slice_at(e, b, d);
        DP_TRY(dp_take(e, w, dp_final(e, k->step, k->me) + at, d, dp_final(e, k->step, d) + at, bytes, err));
    }
    return DP_OK;
}
