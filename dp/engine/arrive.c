/* New parameters onto a replica, bucket by bucket in the order in which forward wants them (the last bucket first).
 *
 * update = sliced: each slice from the device that stepped it. update = master, reduce = sliced: by scatter and all-gather, each device
 * its own slice from the master and every other slice from the device that has it, so that the master sends its parameters once, not
 * N - 1 times. Otherwise, or through the host, every device takes all from the master. A device's slice is read by the others, so with broadcast = always,
 * where no reduction need lie between two arrivals, it takes a new one only when they have all of the last. */
#include "internal.h"

static int bucket_at(const dp_engine *e, int i)
{
    return e->params->n_buckets - 1 - i;
}

void dp_arrival_begin(dp_arrival *a, uint64_t version, uint64_t job, uint64_t brought)
{
    *a = (dp_arrival){.version = version, .job = job, .brought = brought, .active = 1};
}

static int from_master(const dp_engine *e)
{
    return e->on.update != DP_UPDATE_SLICED;
}
static int by_slices(const dp_engine *e) /* scatter and all-gather */
{
    return from_master(e) && e->on.reduce == DP_REDUCE_SLICED && e->n > 1 && dp_all_reach(e->group);
}

static dp_status take(dp_engine *e, dp_replica *r, int from, int64_t at, int64_t count, dp_error *err)
{
    return dp_take(e, r->w, r->param + at, from, e->replica[from].param + at, (size_t)count * 4, err);
}

static void begin(dp_engine *e, dp_replica *r, int b)
{
    dp_phase_begin(r->w, from_master(e) ? DP_PHASE_REPLICATE : DP_PHASE_SHARE);
    dp_phase_bucket(r->w, b);
}

/* My slice of the next bucket, from the master. */
static int mine_ready(const dp_engine *e, const dp_replica *r, const dp_arrival *a)
{
    if (!dp_signal_ready(&e->at[0].param[bucket_at(e, a->mine)], a->version)) return 0;
    for (int d = 1; a->brought && d < e->n; d++)
        if (d != r->w->device && !dp_signal_ready(&e->at[d].taken, a->brought)) return 0;
    return 1;
}

static dp_status take_mine(dp_engine *e, dp_replica *r, dp_arrival *a, dp_error *err)
{
    int b = bucket_at(e, a->mine), me = r->w->device;
    dp_phase_idle(r->w);
    for (int d = 1; a->brought && d < e->n; d++)
        if (d != me) DP_TRY(dp_signal_wait(&e->at[d].taken, r->w, a->brought, "a device's last parameters", err));
    a->brought = 0;
    DP_TRY(dp_signal_wait(&e->at[0].param[b], r->w, a->version, "the master's parameters", err));
    begin(e, r, b);
    DP_TRY(take(e, r, 0, dp_slice_at(e, b, me), dp_slice_size(e, b), err));
    a->mine++;
    return dp_signal_raise(&e->at[me].slice[b], r->w, a->job, err);
}

/* The rest of the next bucket. */
static int rest_ready(const dp_engine *e, const dp_replica *r, const dp_arrival *a)
{
    int b = bucket_at(e, a->here);
    if (by_slices(e) && a->mine <= a->here) return 0;
    for (int d = 0; d < e->n; d++) {
        if (d == r->w->device) continue;
        if (from_master(e) && d == 0) {
            if (!dp_signal_ready(&e->at[0].param[b], a->version)) return 0;
        } else if (from_master(e)) {
            if (by_slices(e) && !dp_signal_ready(&e->at[d].slice[b], a->job)) return 0;
        } else if (!dp_signal_ready(&e->at[d].param[b], a->version)) {
            return 0;
        }
    }
    return 1;
}

static dp_status take_rest(dp_engine *e, dp_replica *r, dp_arrival *a, dp_error *err)
{
    int b = bucket_at(e, a->here), me = r->w->device;
    dp_phase_idle(r->w);
    if (!by_slices(e) && from_master(e)) {
        DP_TRY(dp_signal_wait(&e->at[0].param[b], r->w, a->version, "the master's parameters", err));
        begin(e, r, b);
        DP_TRY(take(e, r, 0, e->params->bucket[b].offset, e->params->bucket[b].count, err));
    } else {
        for (int d = 0; d < e->n; d++) {
            if (d == me && from_master(e)) continue; /* its own slice stepped in another lane */
            dp_signal *s = from_master(e) && d ? &e->at[d].slice[b] : &e->at[d].param[b];
            uint64_t value = from_master(e) && d ? a->job : a->version;
            DP_TRY(dp_signal_wait(s, r->w, value, "a slice of the parameters", err));
        }
        begin(e, r, b);
        for (int i = 1; i < e->n; i++) {
            int d = (me + i) % e->n; /* not all from the same one at once */
            DP_TRY(take(e, r, d, dp_slice_at(e, b, d), dp_slice_size(e, b), err));
        }
    }
    a->here++;
    return dp_signal_raise(&e->at[me].here[b], r->w, a->version, err);
}

typedef struct question {
    const dp_engine *e;
    const dp_replica *r;
    const dp_arrival *a;
} question;

static int something_ready(void *arg)
{
    const question *q = arg;
    int n = q->e->params->n_buckets;
    if (by_slices(q->e) && q->a->mine < n && mine_ready(q->e, q->r, q->a)) return 1;
    return q->a->here < n && rest_ready(q->e, q->r, q->a);
}

dp_status dp_arrive(dp_engine *e, dp_replica *r, dp_arrival *a, int bucket, dp_error *err)
{
    int n = e->params->n_buckets, wanted = bucket < 0 ? n : n - bucket; /* so many in forward order */
    question q = {e, r, a};
    if (!a->active || a->here >= wanted) return DP_OK;
    dp_lane_enter(r->w, DP_LANE_SHARE);
    while (a->here < wanted) {
        int before = a->mine + a->here;
        while (by_slices(e) && a->mine < n && mine_ready(e, r, a)) DP_TRY(take_mine(e, r, a, err));
        while (a->here < wanted && rest_ready(e, r, a)) DP_TRY(take_rest(e, r, a, err));
        if (a->mine + a->here > before || a->here >= wanted) continue;
        dp_phase_idle(r->w);
        DP_TRY(dp_await_any(e->group, r->w, something_ready, &q, "new parameters", err));
    }
    if (a->here < n) return DP_OK;
    a->active = 0;
    return e->on.broadcast_always ? dp_signal_raise(&e->at[r->w->device].taken, r->w, a->job, err) : DP_OK;
}

dp_status dp_arrive_buffers(dp_engine *e, dp_replica *r, uint64_t job, uint64_t committed, dp_error *err)
{
    size_t bytes = (size_t)e->params->buffer_count * 4;
    if (r->w->device == 0 || !bytes) return DP_OK;
    dp_lane_enter(r->w, DP_LANE_SHARE);
    dp_phase_begin(r->w, DP_PHASE_REPLICATE);
    if (committed) DP_TRY(dp_signal_wait(&e->committed, r->w, committed, "running statistics", err));
    DP_TRY(dp_take(e, r->w, r->buffer, 0, e->replica[0].buffer, bytes, err));
    return dp_signal_raise(&e->at[r->w->device].buffers, r->w, job, err);
}

dp_status dp_arrived(dp_engine *e, dp_replica *r, uint64_t version, int bucket, dp_error *err)
{
    int first = bucket < 0 ? 0 : bucket, last = bucket < 0 ? e->params->n_buckets - 1 : bucket;
    dp_lane_enter(r->w, DP_LANE_COMPUTE);
    for (int b = first; b <= last; b++)
        DP_TRY(dp_signal_wait(&e->at[r->w->device].here[b], r->w, version, "its own parameters", err));
    return DP_OK;
}
