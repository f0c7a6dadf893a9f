/* Memory of devices to the host and back, as jobs of their workers: they run behind every batch in flight. */
#include "internal.h"

/* ---- all parameters everywhere ---- */

static dp_status run_settle(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    const dp_pass_job *j = user;
    dp_engine *e = j->engine;
    dp_arrival in = {0};
    if (w->device || e->on.update != DP_UPDATE_MASTER) dp_arrival_begin(&in, j->version, seq, j->brought);
    DP_TRY(dp_arrive(e, &e->replica[w->device], &in, -1, err));
    return dp_finish_stream(w, err);
}

dp_status dp_engine_settle(dp_engine *e, dp_error *err)
{
    dp_pass_job *j = &e->pass;
    if (!dp_engine_brings(e, 0, &j->brought)) return DP_OK;
    j->version = e->version;
    return dp_engine_job(e, (dp_job){.run = run_settle, .user = j}, err);
}

/* ---- one stretch of memory ---- */

typedef struct transfer {
    dp_engine *engine; /* first, as in every job */
    int device;
    void *to;
    const void *from;
    size_t bytes;
    int to_host;
} transfer;

static dp_status run_transfer(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    const transfer *t = user;
    (void)seq;
    if (w->device != t->device) return DP_OK;
    DP_TRY(dp_finish_stream(w, err)); /* whatever lane wrote it */
    dp_phase_begin(w, DP_PHASE_SHARE);
    DP_TRY(t->to_host ? dp_send(w, t->to, t->from, t->bytes, err) : dp_fetch(w, t->to, t->from, t->bytes, -1, err));
    return dp_finish_stream(w, err);
}

dp_status dp_engine_pull(dp_engine *e, int device, void *host, const void *memory, size_t bytes, dp_error *err)
{
    transfer t = {e, device, host, memory, bytes, 1};
    return dp_engine_job(e, (dp_job){.run = run_transfer, .user = &t}, err);
}

dp_status dp_engine_push(dp_engine *e, int device, void *memory, const void *host, size_t bytes, dp_error *err)
{
    transfer t = {e, device, memory, host, bytes, 0};
    return dp_engine_job(e, (dp_job){.run = run_transfer, .user = &t}, err);
}

/* ---- flat arrays of which each device holds its slices ---- */

typedef struct slices {
    dp_engine *engine;
    float *host;
    int state; /* 0, 1: optimizer state m, v; -1: the gradient */
    int out;
} slices;

static dp_status run_slices(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    const slices *x = user;
    dp_engine *e = x->engine;
    dp_replica *r = &e->replica[w->device];
    float *state = x->state == 1 ? r->v : r->m;
    (void)seq;
    DP_TRY(dp_finish_stream(w, err));
    dp_phase_begin(w, DP_PHASE_SHARE);
    for (int b = 0; b < e->params->n_buckets; b++) {
        int64_t at = dp_slice_at(e, b, w->device);
        size_t bytes = (size_t)dp_slice_size(e, b) * 4;
        float *memory = state + e->params->bucket[b].offset / e->n;
        if (x->state < 0) memory = (e->last.in_window ? r->window : r->grad[0]) + at;
        DP_TRY(x->out ? dp_send(w, x->host + at, memory, bytes, err) : dp_fetch(w, memory, x->host + at, bytes, -1, err));
    }
    return dp_finish_stream(w, err);
}

/* The optimizer's state is where the update runs: whole on the master, on every device, or in slices. */
dp_status dp_engine_move_state(dp_engine *e, int i, float *host, int out, dp_error *err)
{
    size_t bytes = (size_t)e->params->count * 4;
    slices x = {e, host, i, out};
    if (e->on.update == DP_UPDATE_SLICED) return dp_engine_job(e, (dp_job){.run = run_slices, .user = &x}, err);
    for (int d = 0; d < (e->on.update == DP_UPDATE_REPLICATED && !out ? e->n : 1); d++) {
        float *memory = i ? e->replica[d].v : e->replica[d].m;
        DP_TRY(out ? dp_engine_pull(e, d, host, memory, bytes, err) : dp_engine_push(e, d, memory, host, bytes, err));
    }
    return DP_OK;
}

dp_status dp_engine_pull_gradient(dp_engine *e, float *host, dp_error *err)
{
    const dp_replica *master = &e->replica[0];
    slices x = {e, host, -1, 1};
    if (!e->last.there) return dp_fail(err, DP_EARGUMENT, "There is no gradient yet: no window has closed.");
    if (e->on.reduce == DP_REDUCE_SLICED) return dp_engine_job(e, (dp_job){.run = run_slices, .user = &x}, err);
    return dp_engine_pull(e, 0, host, e->last.in_window ? master->window : master->grad[0], (size_t)e->params->count * 4, err);
}

/* ---- new values ---- */

/* Nothing is in flight: the master's values are still, and nobody reads anybody's. First it gives them to those who cannot read it. */
static dp_status run_give(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    dp_engine *e = *(dp_engine **)user;
    const dp_replica *r = &e->replica[0];
    (void)seq;
    if (w->device) return DP_OK;
    dp_lane_enter(w, DP_LANE_SHARE);
    DP_TRY(dp_publish(e, w, r->param, (size_t)e->params->count * 4, 1, err));
    DP_TRY(dp_publish(e, w, r->buffer, (size_t)e->params->buffer_count * 4, 1, err));
    DP_TRY(dp_publish(e, w, r->verdict, 2 * sizeof *r->verdict, 0, err));
    return dp_finish_stream(w, err);
}

static dp_status run_renew(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    dp_engine *e = *(dp_engine **)user;
    dp_replica *r = &e->replica[w->device];
    const dp_replica *master = &e->replica[0];
    (void)seq;
    dp_lane_enter(w, DP_LANE_SHARE);
    dp_phase_begin(w, DP_PHASE_REPLICATE);
    if (w->device) {
        DP_TRY(dp_take(e, w, r->param, 0, master->param, (size_t)e->params->count * 4, err));
        DP_TRY(dp_take(e, w, r->verdict, 0, master->verdict, 2 * sizeof *r->verdict, err));
    }
    for (int b = 0; b < e->params->n_buckets; b++) {
        DP_TRY(dp_signal_raise(&e->at[w->device].param[b], w, e->version, err));
        DP_TRY(dp_signal_raise(&e->at[w->device].here[b], w, e->version, err));
    }
    return dp_finish_stream(w, err);
}

dp_status dp_engine_renew(dp_engine *e, dp_error *err)
{
    transfer t = {.engine = e};
    if (!dp_all_reach(e->group)) DP_TRY(dp_engine_job(e, (dp_job){.run = run_give, .user = &t}, err));
    e->version++;
    e->pulled_version = e->version;
    e->stats_version++;
    if (e->keep && !e->keep->replaying) e->keep->stale = 1;
    return dp_engine_job(e, (dp_job){.run = run_renew, .user = &t}, err);
}
