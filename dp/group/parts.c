/* The parts of a training step as calls of their own: what torch.nn.parallel offers as functions. Each is one job; no worker waits
 * for another inside one, since everything that it reads was finished by the job before. Where a device does not reach another, a job
 * before that brings to the host what it wants. */
#include "parts.h"

/* All replicas are of one master, in device order. */
static dp_status check_replicas(const dp_group *g, dp_model *const *replica, const char *call, dp_error *err)
{
    for (int d = 0; d < g->n; d++)
        if (!replica[d] || replica[d]->w != &g->worker[d] || replica[d]->master != replica[0]->master)
            return dp_on_device(err, d,
                                dp_fail(err, DP_EARGUMENT, "%s wants the models that dp_replicate gave; entry %d is %s.", call,
                                        d, replica[d] ? "of another device or master" : "NULL"));
    return DP_OK;
}

/* ---- replicate ---- */

typedef struct replicate_call {
    dp_model *master, **replica;
} replicate_call;

static dp_status run_give_values(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    const dp_model *m = user;
    int64_t count = m->params->count;
    (void)seq;
    if (w != m->w) return DP_OK;
    dp_phase_begin(w, DP_PHASE_REPLICATE);
    DP_TRY(dp_send(w, m->stage, m->r.param, (size_t)count * 4, err));
    if (m->params->buffer_count) DP_TRY(dp_send(w, m->stage + count, m->r.buffer, (size_t)m->params->buffer_count * 4, err));
    return dp_finish_stream(w, err);
}

static dp_status run_replicate(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    const replicate_call *call = user;
    const dp_model *master = call->master;
    dp_model *m = call->replica[w->device];
    size_t param = (size_t)master->params->count * 4, buffer = (size_t)master->params->buffer_count * 4;
    int from = master->w->device, reaches = dp_reaches(w->group, w->device, from);
    (void)seq;
    dp_phase_begin(w, DP_PHASE_REPLICATE);
    if (m == master) return DP_OK;
    if (!m->r.w) DP_TRY(dp_model_allocate(m, err));
    DP_TRY(dp_fetch(w, m->r.param, reaches ? master->r.param : master->stage, param, from, err));
    if (buffer)
        DP_TRY(dp_fetch(w, m->r.buffer, reaches ? master->r.buffer : master->stage + master->params->count, buffer, from, err));
    m->version = master->version;
    m->rows = 0; /* other parameters than those of the last forward pass */
    return dp_finish_stream(w, err);
}

dp_status dp_replicate(dp_group *g, dp_model *master, dp_model **replica, dp_error *err)
{
    if (!g || !master || !replica)
        return dp_fail(err, DP_EARGUMENT, "dp_replicate wants a group, a master and room for a model per device.");
    if (master->master != master || master->group != g)
        return dp_fail(err, DP_EARGUMENT, "dp_replicate wants a master that dp_model_open made in this group.");
    for (int d = 0; d < g->n; d++) {
        if (replica[d]) continue;
        if (d != master->w->device) {
            DP_TRY(dp_model_new(&replica[d], g, d, master, master->max_rows, err));
        } else {
            replica[d] = master;
            master->users++;
        }
    }
    DP_TRY(check_replicas(g, replica, "dp_replicate", err));
    if (replica[0]->master != master)
        return dp_fail(err, DP_EARGUMENT,
                       "dp_replicate was given the replicas of another master; close them and start from NULL.");
    replicate_call call = {master, replica};
    if (!dp_reached(g, master->w->device)) {
        DP_TRY(dp_model_stage(master, err));
        DP_TRY(dp_group_call(g, (dp_job){.run = run_give_values, .user = master}, err));
    }
    return dp_group_call(g, (dp_job){.run = run_replicate, .user = &call}, err);
}

/* ---- apply ---- */

typedef struct apply_call {
    dp_model **replica;
    dp_array **x, **y;
    uint64_t epoch;
    int train;
} apply_call;

static dp_status check_input(const dp_model *m, const dp_array *x, int train, dp_error *err)
{
    const dp_graph *g = m->master->graph;
    const dp_node *in = &g->node[0];
    int tokens = in->dtype == DP_I32;
    int fits = tokens ? x->dtype == DP_U8 || x->dtype == DP_U16 || x->dtype == DP_I32 || x->dtype == DP_I64
                      : x->dtype == DP_F32 || x->dtype == DP_U8;
    if (!x->rows) return DP_OK;
    if (x->width != in->width)
        return dp_fail(err, DP_EARGUMENT, "A row of x has %lld elements; the model's input takes %lld.", (long long)x->width,
                       (long long)in->width);
    if (!fits)
        return dp_fail(err, DP_EARGUMENT, "x is of a type the input cannot take; wanted %s.",
                       tokens ? "u8, u16, i32 or i64 tokens" : "f32 or u8");
    if (x->rows > m->master->max_rows)
        return dp_fail(err, DP_EARGUMENT, "Device %d has %lld rows; the model was opened for max_rows = %lld.", m->w->device,
                       (long long)x->rows, (long long)m->master->max_rows);
    if (train && x->rows < g->min_rows)
        return dp_fail(err, DP_EARGUMENT,
                       "Device %d has %lld row; a batchnorm on 1 x 1 maps sees one value per channel then and needs %d rows.",
                       m->w->device, (long long)x->rows, g->min_rows);
    return DP_OK;
}

/* The run block and the ids of a pass onto the device. */
static dp_status upload_run(dp_model *m, const dp_array *x, uint64_t epoch, int train, dp_error *err)
{
    dp_replica *r = &m->r;
    dp_phase_begin(m->w, DP_PHASE_UPLOAD);
    m->host->run = (dp_run){.rows = x->rows,
                            .seed = m->master->seed,
                            .epoch = epoch,
                            .ids = r->ids,
                            .param_version = m->version,
                            .train = train,
                            .stats = train && m->master == m ? DP_STATS_RUNNING
                                                             : DP_STATS_NONE}; /* the master's rows, as PyTorch's replica 0 */
    for (int64_t i = 0; i < x->rows; i++) m->ids[i] = (uint64_t)(x->first + i);
    DP_TRY(dp_fetch(m->w, r->run, &m->host->run, sizeof *r->run, -1, err));
    return dp_fetch(m->w, r->ids, m->ids, (size_t)x->rows * 8, -1, err);
}

static dp_status run_apply(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    const apply_call call = *(const apply_call *)user;
    dp_model *m = call.replica[w->device];
    const dp_array *x = call.x[w->device];
    dp_array *y = call.y[w->device];
    dp_replica *r = &m->r;
    const dp_node *out = &r->graph->node[r->graph->out];
    dp_stop stop;
    int which;
    (void)seq;
    m->rows = 0;
    DP_TRY(dp_array_fit(y, dp_view(NULL, DP_F32, x->rows, out->width), x->first, err));
    if (!x->rows) return DP_OK;
    DP_TRY(upload_run(m, x, call.epoch, call.train, err));
    m->pass = (dp_pass){.run = m->host->run,
                        .run_device = r->run,
                        .x = x->data,
                        .x_type = x->dtype,
                        .x_layout = x->layout,
                        .param = r->param,
                        .grad = call.train ? r->grad[0] : NULL,
                        .buffer = r->buffer,
                        .stats = m->host->run.stats ? r->shadow : NULL};
    dp_phase_begin(w, DP_PHASE_FORWARD);
    DP_TRY(dp_plan_forward(r->plan, w->stream, &m->pass, &stop, &which, err));
    dp_status status = r->b->copy(w->stream, y->data, dp_plan_output(r->plan), (size_t)(x->rows * out->width) * 4);
    if (!status && m->pass.stats) status = r->b->copy(w->stream, r->buffer, r->shadow, (size_t)r->params->buffer_count * 4);
    if (status) return dp_fail(err, status, "Copying outputs and running statistics failed.");
    DP_TRY(dp_finish_stream(w, err));
    m->rows = call.train ? x->rows : 0;
    return DP_OK;
}

dp_status dp_parallel_apply(dp_group *g, dp_model **replica, dp_array **x, dp_array **y, int train, dp_error *err)
{
    if (!g || !replica || !x || !y)
        return dp_fail(err, DP_EARGUMENT,
                       "dp_parallel_apply wants a group and, per device, a replica, input rows and room for an array.");
    DP_TRY(check_replicas(g, replica, "dp_parallel_apply", err));
    DP_TRY(dp_arrays_check(g, x, "input", err));
    for (int d = 0; d < g->n; d++) {
        dp_status status = check_input(replica[d], x[d], train, err);
        if (status) return dp_on_device(err, d, status);
    }
    DP_TRY(dp_arrays_make(g, y, err));
    apply_call call = {replica, x, y, replica[0]->master->applies, train != 0};
    replica[0]->master->applies += train != 0;
    return dp_group_call(g, (dp_job){.run = run_apply, .user = &call}, err);
}

/* ---- backward ---- */

typedef struct backward_call {
    dp_model **replica;
    dp_array **target;
} backward_call;

static dp_status run_backward(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    const backward_call *call = user;
    dp_model *m = call->replica[w->device];
    const dp_array *t = call->target[w->device];
    dp_replica *r = &m->r;
    int64_t rows = m->rows;
    dp_stop stop = DP_STOP_BUCKET;
    int bucket;
    (void)seq;
    m->rows = 0; /* the activations are used up */
    m->gradient = DP_GRADIENT_NONE;
    if (!rows) return DP_OK;
    dp_phase_begin(w, DP_PHASE_LOSS);
    dp_status status = r->b->loss(w->stream, &m->master->loss, rows, dp_plan_output(r->plan), t->data, t->dtype,
                                  dp_plan_output_grad(r->plan), r->sums);
    if (status) return dp_fail(err, status, "The loss failed (%s).", dp_status_name(status));
    DP_TRY(dp_send(w, &m->host->sums, r->sums, sizeof *r->sums, err));
    dp_phase_begin(w, DP_PHASE_BACKWARD);
    while (stop != DP_STOP_END) DP_TRY(dp_plan_backward(r->plan, w->stream, &m->pass, &stop, &bucket, err));
    DP_TRY(dp_finish_stream(w, err));
    m->gradient = DP_GRADIENT_OWN;
    return DP_OK;
}

static dp_status check_target(const dp_model *m, const dp_array *t, dp_error *err)
{
    const dp_loss *l = &m->master->loss;
    int numbers = l->kind == DP_LOSS_MSE;
    int fits = numbers ? t->dtype == DP_F32
                       : t->dtype == DP_U8 || t->dtype == DP_U16 || t->dtype == DP_I32 || t->dtype == DP_I64;
    if (t->rows != m->rows)
        return dp_fail(
            err, DP_EARGUMENT,
            "Device %d has %lld rows of targets for %lld rows of a training pass; call dp_parallel_apply with train = 1 "
            "before each dp_parallel_backward, and cut both alike.",
            m->w->device, (long long)t->rows, (long long)m->rows);
    if (!t->rows) return DP_OK;
    if (t->width != m->master->targets_per_row)
        return dp_fail(err, DP_EARGUMENT, "A row has %lld targets; the loss takes %lld per sample.", (long long)t->width,
                       (long long)m->master->targets_per_row);
    if (!fits)
        return dp_fail(err, DP_EARGUMENT, "The targets are of a type the loss cannot take; wanted %s.",
                       numbers ? "f32 (mse)" : "u8, u16, i32 or i64 class numbers");
    return DP_OK;
}

/* Labels lie on the devices, so a wrong one is found by the loss; nothing may be made of that gradient. */
static dp_status wrong_label(dp_group *g, dp_model **replica, dp_array **target, int d, dp_error *err)
{
    const dp_loss *l = &replica[d]->master->loss;
    int64_t row = target[d]->first + (replica[d]->host->sums.bad - 1) / l->groups;
    for (int k = 0; k < g->n; k++) replica[k]->gradient = DP_GRADIENT_NONE;
    return dp_on_device(err, d,
                        dp_fail(err, DP_EDATA, "Row %lld of the batch has a label outside 0 to %lld, the model's classes.",
                                (long long)row, (long long)l->classes - 1));
}

dp_status dp_parallel_backward(dp_group *g, dp_model **replica, dp_array **target, dp_result *sum, dp_error *err)
{
    dp_result total = {0};
    if (!g || !replica || !target || !sum)
        return dp_fail(err, DP_EARGUMENT,
                       "dp_parallel_backward wants a group, a replica and targets per device, and room for the sums.");
    DP_TRY(check_replicas(g, replica, "dp_parallel_backward", err));
    DP_TRY(dp_arrays_check(g, target, "target", err));
    for (int d = 0; d < g->n; d++) {
        dp_status status = check_target(replica[d], target[d], err);
        if (status) return dp_on_device(err, d, status);
    }
    double begin = dp_now();
    backward_call call = {replica, target};
    DP_TRY(dp_group_call(g, (dp_job){.run = run_backward, .user = &call}, err));
    for (int d = 0; d < g->n; d++) {
        const dp_loss_sums *s = &replica[d]->host->sums;
        if (!target[d]->rows) continue;
        if (s->bad) return wrong_label(g, replica, target, d, err);
        total.samples += target[d]->rows;
        total.targets += s->targets;
        total.correct += s->correct;
        total.loss_sum += s->loss;
    }
    total.seconds = dp_now() - begin;
    *sum = total;
    return DP_OK;
}

/* ---- reduce ---- */

typedef struct reduce_call {
    dp_model *master;
    const float *src[DP_MAX_DEVICES]; /* NULL: had no rows */
    float *stage[DP_MAX_DEVICES];     /* where it comes through the host; NULL: it does not */
} reduce_call;

static dp_status run_give_gradients(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    const reduce_call *call = user;
    float *stage = call->stage[w->device];
    (void)seq;
    if (!stage) return DP_OK;
    dp_phase_begin(w, DP_PHASE_REDUCE);
    DP_TRY(dp_send(w, stage, call->src[w->device], (size_t)call->master->params->count * 4, err));
    return dp_finish_stream(w, err);
}

/* Some gradients are first copied here, so much at a time: the stream that has added them may overwrite them. */
static dp_status add_copied(const reduce_call *call, dp_error *err)
{
    dp_model *m = call->master;
    dp_worker *w = m->w;
    const dp_group *g = w->group;
    int64_t all = m->params->count;
    void *p = m->inbox;
    if (!p)
        DP_TRY(g->backend->alloc(w->be, DP_MEM_STAGING, (size_t)(g->n - 1) * DP_INBOX * 4, "gradients of replicas", &p, err));
    m->inbox = p;
    for (int64_t at = 0; at < all; at += DP_INBOX) {
        const float *src[DP_MAX_DEVICES];
        int64_t count = all - at < DP_INBOX ? all - at : DP_INBOX;
        for (int d = 0, slot = 0; d < g->n; d++) {
            src[d] = call->src[d] ? call->src[d] + at : NULL;
            if (!src[d] || d == w->device) continue;
            if (dp_route(g, w->device, d) == DP_ROUTE_PEER) {
                dp_phase_bytes(w, count * 4, d);
                continue;
            }
            float *here = m->inbox + DP_INBOX * slot++;
            DP_TRY(dp_fetch(w, here, call->stage[d] ? call->stage[d] + at : src[d], (size_t)count * 4, d, err));
            src[d] = here;
        }
        DP_TRY(dp_sum(w, m->r.grad[0] + at, src, g->n, count, err));
    }
    return DP_OK;
}

static dp_status run_reduce(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    const reduce_call call = *(const reduce_call *)user;
    dp_replica *r = &call.master->r;
    int copies = 0;
    (void)seq;
    if (w != call.master->w) return DP_OK;
    dp_phase_begin(w, DP_PHASE_REDUCE);
    for (int d = 0; d < w->group->n; d++) copies |= call.src[d] && dp_route(w->group, w->device, d) != DP_ROUTE_PEER;
    if (copies) {
        DP_TRY(add_copied(&call, err));
    } else {
        for (int d = 0; d < w->group->n; d++)
            if (call.src[d] && d != w->device) dp_phase_bytes(w, r->params->count * 4, d);
        DP_TRY(dp_sum(w, r->grad[0], call.src, w->group->n, r->params->count, err));
    }
    return dp_finish_stream(w, err);
}

dp_status dp_reduce(dp_group *g, dp_model **replica, dp_model *master, dp_error *err)
{
    reduce_call call = {.master = master};
    int n = 0, through_host = 0;
    if (!g || !replica || !master)
        return dp_fail(err, DP_EARGUMENT, "dp_reduce wants a group, a replica per device and their master.");
    DP_TRY(check_replicas(g, replica, "dp_reduce", err));
    if (replica[0]->master != master) return dp_fail(err, DP_EARGUMENT, "dp_reduce wants the master of these replicas.");
    for (int d = 0; d < g->n; d++) {
        if (replica[d]->gradient != DP_GRADIENT_OWN) continue;
        call.src[d] = replica[d]->r.grad[0];
        n++;
        if (dp_reaches(g, master->w->device, d)) continue;
        through_host = 1;
        DP_TRY(dp_model_stage(replica[d], err));
        call.stage[d] = replica[d]->stage;
    }
    if (!n)
        return dp_fail(err, DP_EARGUMENT,
                       "No replica has a gradient that was not reduced yet; call dp_parallel_backward first.");
    if (through_host) DP_TRY(dp_group_call(g, (dp_job){.run = run_give_gradients, .user = &call}, err));
    DP_TRY(dp_group_call(g, (dp_job){.run = run_reduce, .user = &call}, err));
    for (int d = 0; d < g->n; d++) replica[d]->gradient = DP_GRADIENT_NONE;
    master->gradient = DP_GRADIENT_SUM;
    return DP_OK;
}
