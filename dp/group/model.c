/* Models: a master with its settings and optimizer, and replicas made from it. */
#include "../base/config.h"
#include "parts.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- open and close ---- */

dp_status dp_model_new(dp_model **out, dp_group *g, int device, dp_model *master, int64_t max_rows, dp_error *err)
{
    void *p;
    dp_status status;
    dp_model *m = dp_calloc(1, sizeof *m);
    if (!m) return dp_fail(err, DP_ENOMEM, "Out of host memory for a model.");
    m->group = g;
    m->w = &g->worker[device];
    m->users = 1;
    m->version = 1;
    m->max_rows = max_rows;
    m->master = m;
    if ((status = g->backend->alloc_pinned(sizeof *m->host, &p, err))) goto fail;
    m->host = memset(p, 0, sizeof *m->host);
    if ((status = g->backend->alloc_pinned((size_t)max_rows * 8, &p, err))) goto fail;
    m->ids = p;
    if (master) {
        m->master = master;
        master->users++;
    }
    *out = m;
    return DP_OK;
fail:
    dp_model_close(m);
    return status;
}

static size_t stage_bytes(const dp_model *m)
{
    return (size_t)(m->master->params->count + m->master->params->buffer_count) * 4;
}

dp_status dp_model_stage(dp_model *m, dp_error *err)
{
    void *p;
    if (m->stage) return DP_OK;
    DP_TRY(dp_group_pinned(m->group, stage_bytes(m), &p, err));
    m->stage = p;
    return DP_OK;
}

dp_status dp_model_allocate(dp_model *m, dp_error *err)
{
    const dp_model *master = m->master;
    dp_replica_options o = {.graph = master->graph,
                            .params = master->params,
                            .capacity = master->max_rows,
                            .slots = 1,
                            .sums = 1,
                            .states = m == master ? dp_optimizer_states(&master->optimizer) : -1};
    return dp_replica_open(&m->r, m->w, &o, err);
}

typedef struct start_call {
    dp_model *model;
    const float *param, *buffer;
} start_call;

static dp_status run_start(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    const start_call call = *(const start_call *)user;
    (void)seq;
    if (w != call.model->w) return DP_OK;
    dp_phase_begin(w, DP_PHASE_UPLOAD);
    DP_TRY(dp_model_allocate(call.model, err));
    dp_status status = dp_replica_put(&call.model->r, call.param, call.buffer, err);
    if (status) dp_finish_stream(w, NULL); /* what did start still reads the caller's arrays */
    return status;
}

static dp_status start_values(dp_model *m, dp_error *err)
{
    dp_status status = DP_ENOMEM;
    start_call call = {.model = m};
    float *param = dp_calloc((size_t)m->params->count, 4), *buffer = dp_calloc((size_t)m->params->buffer_count, 4);
    if (!param || !buffer) {
        dp_fail(err, DP_ENOMEM, "Out of host memory for %lld parameters.", (long long)m->params->count);
        goto done;
    }
    dp_params_init(m->params, m->graph, m->seed, param, buffer);
    call.param = param, call.buffer = buffer;
    status = dp_group_call(m->group, (dp_job){.run = run_start, .user = &call}, err);
done:
    free(param);
    free(buffer);
    return status;
}

dp_status dp_model_open(dp_model **out, dp_group *g, int device, const dp_graph *net, const dp_config *c, int64_t max_rows,
                        dp_error *err)
{
    dp_status status;
    dp_model *m = NULL;
    if (!out || !g || !net || !c)
        return dp_fail(err, DP_EARGUMENT, "dp_model_open wants a place for the model, a group, a graph and a config.");
    *out = NULL;
    DP_TRY(dp_config_ok(c, err));
    if (device < 0 || device >= g->n)
        return dp_fail(err, DP_EARGUMENT, "dp_model_open wants a device from 0 to %d, not %d.", g->n - 1, device);
    if (max_rows < 1 || max_rows > INT32_MAX)
        return dp_fail(err, DP_EARGUMENT, "dp_model_open wants max_rows from 1 to %d, not %lld.", INT32_MAX,
                       (long long)max_rows);
    if (!net->finished) return dp_fail(err, DP_EARGUMENT, "dp_model_open wants a graph after dp_graph_finish.");
    DP_TRY(dp_model_new(&m, g, device, NULL, max_rows, err));
    m->graph = net;
    m->seed = (uint64_t)dp_config_int(c, "run.seed");
    status = DP_ENOMEM;
    if (!(m->config = dp_config_copy(c))) {
        dp_fail(err, DP_ENOMEM, "Out of host memory for a copy of the settings.");
        goto fail;
    }
    if ((status = dp_optimizer_config(&m->optimizer, c, err))) goto fail;
    if ((status = dp_loss_config(&m->loss, c, net, err))) goto fail;
    m->targets_per_row = m->loss.kind == DP_LOSS_MSE ? m->loss.classes : m->loss.groups;
    if ((status = dp_params_open(&m->params, net, c, g->n, err))) goto fail;
    if ((status = start_values(m, err))) goto fail;
    *out = m;
    return DP_OK;
fail:
    dp_model_close(m);
    return status;
}

static dp_status run_close(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    dp_model *m = user;
    (void)seq;
    if (w != m->w) return DP_OK;
    if (dp_finish_stream(w, err) == DP_ETIMEOUT) return DP_ETIMEOUT; /* something may still use it */
    if (!dp_lost(w)) w->group->backend->free(w->be, DP_MEM_STAGING, m->inbox, (size_t)(w->group->n - 1) * DP_INBOX * 4);
    dp_replica_close(&m->r);
    return DP_OK;
}

void dp_model_close(dp_model *m)
{
    if (!m || --m->users) return;
    dp_model *master = m->master;
    const dp_backend *b = m->group->backend;
    if (dp_group_closing(m->group, (dp_job){.run = run_close, .user = m}, NULL))
        return; /* a worker is stuck in there: all of this stays */
    if (m->stage) dp_group_unpinned(m->group, m->stage, stage_bytes(m));
    b->free_pinned(m->host, sizeof *m->host);
    b->free_pinned(m->ids, (size_t)m->max_rows * 8);
    dp_params_free(m->params);
    dp_config_free(m->config);
    free(m);
    if (master != m) dp_model_close(master);
}

/* ---- update ---- */

static dp_status run_update(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    dp_model *m = user;
    dp_replica *r = &m->r;
    (void)seq;
    if (w != m->w) return DP_OK;
    dp_phase_begin(w, DP_PHASE_UPDATE);
    DP_TRY(dp_fetch(w, r->run, &m->host->run, sizeof *r->run, -1, err));
    DP_TRY(dp_replica_update(r, r->grad[0], &m->optimizer, err));
    DP_TRY(dp_send(w, &m->host->verdict, r->verdict, sizeof *r->verdict, err));
    return dp_finish_stream(w, err);
}

dp_status dp_model_update(dp_model *m, double lr, double divide_by, dp_error *err)
{
    if (!m) return dp_fail(err, DP_EARGUMENT, "dp_model_update wants a model.");
    if (m->master != m)
        return dp_fail(err, DP_EARGUMENT,
                       "dp_model_update wants the master; a replica has no optimizer, it gets its values by dp_replicate.");
    if (!isfinite(lr) || lr < 0 || !isfinite(divide_by) || divide_by < 0)
        return dp_fail(err, DP_EARGUMENT,
                       "dp_model_update wants a learning rate and a count of targets that are 0 or more, not %g and %g.", lr,
                       divide_by);
    if (m->gradient == DP_GRADIENT_NONE)
        return dp_fail(err, DP_EARGUMENT, "The master has no gradient; call dp_parallel_backward and dp_reduce first.");
    if (divide_by == 0) {
        dp_log(m->config, DP_LOG_WARN, "No target counted in this batch; nothing was updated.");
        return DP_OK;
    }
    m->rows = 0; /* other parameters than those of the last forward pass */
    m->version++;
    m->host->run = (dp_run){.param_version = m->version, .inv_count = 1.0 / divide_by, .lr = lr};
    DP_TRY(dp_group_call(m->group, (dp_job){.run = run_update, .user = m}, err));
    if (m->host->verdict.finite) return DP_OK;
    if (dp_config_choice(m->config, "run.on_nan") != 0) {
        dp_log(m->config, DP_LOG_WARN, "The gradient is not finite; the update is skipped.");
        return DP_OK;
    }
    return dp_on_device(
        err, m->w->device,
        dp_fail(err, DP_ENONFINITE,
                "The gradient is NaN or infinite; nothing was updated. Lower the learning rate or look at the data; "
                "run.on_nan = warn skips such updates."));
}

/* ---- values ---- */

typedef struct get_call {
    const dp_model *model;
    const float *from;
    float *to;
    size_t bytes;
} get_call;

static dp_status run_get(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    const get_call call = *(const get_call *)user;
    (void)seq;
    if (w != call.model->w) return DP_OK;
    dp_phase_begin(w, DP_PHASE_SHARE);
    DP_TRY(dp_send(w, call.to, call.from, call.bytes, err));
    return dp_finish_stream(w, err);
}

dp_status dp_model_get(dp_model *m, const char *tensor, float *dst, int64_t count, dp_error *err)
{
    if (!m || !tensor || !dst)
        return dp_fail(err, DP_EARGUMENT, "dp_model_get wants a model, the name of a tensor and room for its values.");
    const dp_graph *g = m->master->graph;
    int i = dp_graph_find_tensor(g, tensor);
    if (i < 0) return dp_fail(err, DP_EARGUMENT, "The model has no tensor \"%s\"; dp_graph_tensor lists them.", tensor);
    const dp_tensor *t = &g->tensor[i];
    if (t->count != count)
        return dp_fail(err, DP_EARGUMENT, "Tensor %s has %lld elements; room for %lld was given.", tensor, (long long)t->count,
                       (long long)count);
    float *memory = dp_calloc((size_t)count, 4);
    if (!memory) return dp_fail(err, DP_ENOMEM, "Out of host memory for %s.", tensor);
    const float *flat = t->buffer ? m->r.buffer : m->r.param;
    get_call call = {m, flat + m->master->params->param[i].offset, memory, (size_t)count * 4};
    dp_status status = dp_group_call(m->group, (dp_job){.run = run_get, .user = &call}, err);
    if (!status) dp_tensor_to_file(t, memory, dst);
    free(memory);
    return status;
}
