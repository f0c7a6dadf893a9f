/* Memory of the master to the host and back, as jobs of its worker: they run behind every batch in flight. */
#include "internal.h"

typedef struct transfer {
    dp_engine *engine; /* first, as in every job */
    void *to;
    const void *from;
    size_t bytes;
    int to_host;
} transfer;

static dp_status run_transfer(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    const transfer *t = user;
    (void)seq;
    if (w->device != 0) return DP_OK;
    dp_phase_begin(w, DP_PHASE_SHARE);
    DP_TRY(t->to_host ? dp_send(w, t->to, t->from, t->bytes, err) : dp_fetch(w, t->to, t->from, t->bytes, -1, err));
    return dp_finish_stream(w, err);
}

dp_status dp_engine_pull(dp_engine *e, void *host, const void *device, size_t bytes, dp_error *err)
{
    transfer t = {e, host, device, bytes, 1};
    return dp_engine_job(e, (dp_job){.run = run_transfer, .user = &t}, err);
}

dp_status dp_engine_push(dp_engine *e, void *device, const void *host, size_t bytes, dp_error *err)
{
    transfer t = {e, device, host, bytes, 0};
    return dp_engine_job(e, (dp_job){.run = run_transfer, .user = &t}, err);
}

static dp_status run_gradient(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    transfer *t = user;
    const dp_replica *master = &t->engine->replica[0];
    if (w->device != 0 || !master->result) return DP_OK;
    t->from = master->result;
    return run_transfer(t, w, seq, err);
}

dp_status dp_engine_pull_gradient(dp_engine *e, float *host, dp_error *err)
{
    transfer t = {e, host, NULL, (size_t)e->params->count * 4, 1};
    DP_TRY(dp_engine_job(e, (dp_job){.run = run_gradient, .user = &t}, err));
    return t.from ? DP_OK : dp_fail(err, DP_EARGUMENT, "There is no gradient yet: no window has closed.");
}

static dp_status run_renew(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    dp_engine *e = *(dp_engine **)user;
    (void)seq;
    return w->device == 0 ? dp_signal_raise(&e->params_ready, w, e->version, err) : DP_OK;
}

dp_status dp_engine_renew(dp_engine *e, dp_error *err)
{
    transfer t = {.engine = e};
    e->version++;
    e->stats_version++;
    return dp_engine_job(e, (dp_job){.run = run_renew, .user = &t}, err);
}
