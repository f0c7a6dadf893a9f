/* A device's share of the communication of a step, in stages over buckets. Under backward the worker looks at each complete bucket what
 * can go on, here and with buckets before, and never waits; when it has nothing left to launch it does the rest. */
#include "internal.h"

typedef struct stage_row {
    int once;                              /* not by bucket */
    int (*ready)(const dp_walk *k, int b); /* NULL: always */
    dp_status (*run)(dp_walk *k, int b, dp_error *err);
} stage_row;

static const stage_row rows[DP_STAGES] = {
    [DP_OFFER] = {0, dp_offer_ready, dp_offer_bucket},
    [DP_SUM] = {0, dp_sum_ready, dp_sum_bucket},
    [DP_COLLECT] = {0, dp_collect_ready, dp_collect_bucket},
    [DP_NORM] = {1, dp_norm_ready, dp_norm_all},
    [DP_UPDATE] = {0, NULL, dp_update_bucket},
    [DP_GATHER] = {0, dp_gather_ready, dp_gather_bucket},
    [DP_REPORT] = {1, dp_norm_ready, dp_report_all},
};

void dp_stages_plan(dp_engine *e)
{
    const dp_switches *on = &e->on;
    for (int i = 0; i < 2; i++) { /* the master, another device */
        dp_stage *s = e->stage[i];
        int n = 0, master = i == 0, steps = master || on->update != DP_UPDATE_MASTER;
        int collects = on->reduce == DP_REDUCE_SLICED && e->n > 1 &&
                       (on->update == DP_UPDATE_REPLICATED || (on->update == DP_UPDATE_MASTER && master));
        int sums = on->reduce != DP_REDUCE_MASTER || master;
        if (!dp_all_reach(e->group) && on->reduce != DP_REDUCE_TREE)
            s[n++] = (dp_stage){.kind = DP_OFFER, .early = DP_OVERLAP_REDUCE};
        if (sums) s[n++] = (dp_stage){.kind = DP_SUM, .reads = !collects, .early = DP_OVERLAP_REDUCE};
        if (collects) s[n++] = (dp_stage){.kind = DP_COLLECT, .reads = 1, .early = DP_OVERLAP_REDUCE};
        if (steps && !on->early) s[n++] = (dp_stage){.kind = DP_NORM, .after_all = 1, .early = DP_OVERLAP_ALL};
        if (steps)
            s[n++] = (dp_stage){.kind = DP_UPDATE, .after_all = !on->early, .forward = !on->early, .early = DP_OVERLAP_ALL};
        if (steps && on->early && on->update == DP_UPDATE_SLICED && e->n > 1)
            s[n++] = (dp_stage){.kind = DP_GATHER, .early = DP_OVERLAP_ALL};
        if (master && on->early) s[n++] = (dp_stage){.kind = DP_REPORT, .after_all = 1, .early = DP_OVERLAP_ALL};
        e->n_stages[i] = n;
    }
}

static int count(const dp_walk *k, int i)
{
    return rows[k->stage[i].kind].once ? 1 : k->e->params->n_buckets;
}

/* The next bucket of stage i; -1: it is through, or has to wait for the stage before. */
static int next(const dp_walk *k, int i)
{
    int n = count(k, i), done = k->done[i];
    if (done == n) return -1;
    if (i > 0 && k->stage[i].after_all && k->done[i - 1] < count(k, i - 1)) return -1;
    if (i > 0 && !k->stage[i].after_all && done >= k->done[i - 1]) return -1;
    return k->stage[i].forward ? n - 1 - done : done;
}

static int ready(const dp_walk *k, int i, int b)
{
    /* My own gradients come in the order of buckets; a sum of a later one would stop the lane. */
    if (k->stage[i].kind == DP_SUM && !dp_signal_ready(&k->e->at[k->me].gradient[b], k->step->reduction)) return 0;
    return !rows[k->stage[i].kind].ready || rows[k->stage[i].kind].ready(k, b);
}

static dp_status run(dp_walk *k, int i, int b, dp_error *err)
{
    DP_TRY(rows[k->stage[i].kind].run(k, b, err));
    k->done[i]++;
    int reads = k->stage[i].reads || (!k->step->update && i == k->n_stages - 1); /* only summed: nobody collects */
    if (!reads || k->done[i] < count(k, i)) return DP_OK;
    return dp_signal_raise(&k->e->at[k->me].read, k->r->w, k->step->reduction, err);
}

static int through(const dp_walk *k)
{
    for (int i = 0; i < k->n_stages; i++)
        if (k->done[i] < count(k, i)) return 0;
    return 1;
}

/* The latest stage that can go on: what is begun is finished before the next is begun, or it would stand behind it in a lane. */
static int choose(const dp_walk *k, int all, int *bucket)
{
    for (int i = k->n_stages - 1; i >= 0; i--) {
        if (!all && k->e->on.overlap < k->stage[i].early) continue;
        *bucket = next(k, i);
        if (*bucket >= 0 && ready(k, i, *bucket)) return i;
    }
    return -1;
}

static int something_ready(void *arg)
{
    int b;
    return choose(arg, 1, &b) >= 0;
}

void dp_stages_done(dp_walk *k)
{
    for (int i = 0; i < k->n_stages; i++) k->done[i] = count(k, i);
}

dp_status dp_communicate(dp_walk *k, int all, dp_error *err)
{
    int b;
    while (!through(k)) {
        int i = choose(k, all, &b);
        if (i >= 0) {
            DP_TRY(run(k, i, b, err));
            continue;
        }
        if (!all) break;
        dp_lane_enter(k->r->w, DP_LANE_REDUCE);
        dp_phase_idle(k->r->w);
        DP_TRY(dp_await_any(k->e->group, k->r->w, something_ready, k, "the gradients of other devices", err));
    }
    return DP_OK;
}
