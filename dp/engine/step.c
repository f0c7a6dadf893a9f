/* One training batch on one worker, phase by phase. Every line of the walk in dp/README.md is one call here. */
#include "internal.h"
#include <string.h>

typedef struct walk { /* one worker's way through a batch */
    dp_engine *e;
    dp_step *step;
    dp_replica *r;
    int round; /* leaves done */
} walk;

static dp_rows part(dp_rows rows, dp_leaf leaf)
{
    rows.data = (const char *)rows.data + (size_t)(leaf.first * rows.width) * dp_dtype_size(rows.dtype);
    rows.n = leaf.rows;
    return rows;
}

dp_status dp_phase_upload(dp_engine *e, dp_replica *r, const dp_run *run, dp_rows x, dp_rows y, const uint64_t *ids,
                          dp_error *err)
{
    (void)e;
    dp_phase_begin(r->w, DP_PHASE_UPLOAD);
    DP_TRY(dp_fetch(r->w, r->run, run, sizeof *run, -1, err));
    DP_TRY(dp_fetch(r->w, r->x, x.data, (size_t)(x.n * x.width) * dp_dtype_size(x.dtype), -1, err));
    if (y.data) DP_TRY(dp_fetch(r->w, r->y, y.data, (size_t)(y.n * y.width) * dp_dtype_size(y.dtype), -1, err));
    if (ids) DP_TRY(dp_fetch(r->w, r->ids, ids, (size_t)x.n * 8, -1, err));
    return DP_OK;
}

static uint64_t round_value(const walk *k, int round) /* counts up over rounds and jobs */
{
    return k->step->job * DP_MAX_LEAVES + (uint64_t)round;
}

static int leaf_of_round(const dp_split *s, int device, int round)
{
    for (int i = s->begin[device]; i < s->begin[device + 1]; i++)
        if (s->leaf[i].rows > 0 && round-- == 0) return i;
    return -1;
}

static dp_status loss(walk *k, int leaf, const float *output, const void *target, float *gradient, dp_error *err)
{
    dp_replica *r = k->r;
    int slot = leaf % r->n_sums;
    dp_status status = r->b->loss(r->w->stream, &k->e->loss, k->step->split.leaf[leaf].rows, output, target,
                                  k->step->batch.y.dtype, gradient, &r->sums[slot]);
    if (status) return dp_fail(err, status, "The loss failed (%s).", dp_status_name(status));
    return dp_send(r->w, &k->step->sums[leaf], &r->sums[slot], sizeof *r->sums, err);
}

/* loss = master, the master's part of a round: outputs in, loss of each leaf, gradients ready. */
static dp_status serve_round(walk *k, int round, dp_error *err)
{
    dp_engine *e = k->e;
    dp_step *step = k->step;
    dp_worker *w = k->r->w;
    int64_t width = e->graph->node[e->graph->out].width;
    for (int d = 0; d < e->n; d++) {
        int leaf = leaf_of_round(&step->split, d, round);
        dp_gathered *at = &e->gathered[d];
        if (leaf < 0) continue;
        const dp_leaf *l = &step->split.leaf[leaf];
        dp_rows y = part(step->batch.y, *l);
        dp_phase_begin(w, DP_PHASE_GATHER);
        const float *output = dp_plan_output(e->replica[d].plan);
        if (d != 0) {
            DP_TRY(dp_signal_wait(&e->has_output[d], w, round_value(k, round), "a device's outputs", err));
            DP_TRY(dp_fetch(w, at->output, output, (size_t)(l->rows * width) * 4, d, err));
            output = at->output;
        }
        DP_TRY(dp_fetch(w, at->target, y.data, (size_t)(y.n * y.width) * dp_dtype_size(y.dtype), -1, err));
        dp_phase_begin(w, DP_PHASE_LOSS);
        DP_TRY(loss(k, leaf, output, at->target, d ? at->gradient : dp_plan_output_grad(k->r->plan), err));
        if (d != 0) DP_TRY(dp_signal_raise(&e->loss_ready[d], w, round_value(k, round), err));
    }
    return DP_OK;
}

static dp_status loss_by_master(walk *k, int leaf, dp_error *err)
{
    dp_engine *e = k->e;
    dp_replica *r = k->r;
    int me = r->w->device;
    int64_t rows = k->step->split.leaf[leaf].rows, width = e->graph->node[e->graph->out].width;
    if (me == 0) return serve_round(k, k->round, err);
    dp_phase_begin(r->w, DP_PHASE_SCATTER);
    DP_TRY(dp_signal_raise(&e->has_output[me], r->w, round_value(k, k->round), err));
    DP_TRY(dp_signal_wait(&e->loss_ready[me], r->w, round_value(k, k->round), "the master's loss", err));
    return dp_fetch(r->w, dp_plan_output_grad(r->plan), e->gathered[me].gradient, (size_t)(rows * width) * 4, 0, err);
}

/* Forward, loss, backward of one leaf: its gradient sum lands in `grad`. */
static dp_status run_leaf(walk *k, int leaf, float *grad, dp_error *err)
{
    dp_engine *e = k->e;
    dp_step *step = k->step;
    dp_replica *r = k->r;
    dp_worker *w = r->w;
    const dp_leaf *l = &step->split.leaf[leaf];
    dp_run *run = &step->leaf_run[leaf];
    const uint64_t *ids = (step->batch.ids ? step->batch.ids : step->ids) + l->first;
    dp_rows x = part(step->batch.x, *l), y = part(step->batch.y, *l);
    dp_stop stop = DP_STOP_BUCKET;
    int bucket;

    *run = step->run;
    run->rows = l->rows;
    run->ids = r->ids;
    run->update_stats = leaf == 0; /* bn_stats = primary: PyTorch's replica 0 */
    if (e->on.loss_on_master) y.data = NULL;
    DP_TRY(dp_phase_upload(e, r, run, x, y, ids, err));

    dp_pass pass = {.run = *run,
                    .run_device = r->run,
                    .x = r->x,
                    .x_type = x.dtype,
                    .x_layout = x.layout,
                    .mean = r->normalize ? r->mean : NULL,
                    .inv_std = r->normalize ? r->inv_std : NULL,
                    .param = r->param,
                    .grad = grad,
                    .buffer = r->buffer,
                    .stats = run->update_stats ? r->shadow : NULL};
    dp_phase_begin(w, DP_PHASE_FORWARD);
    DP_TRY(dp_plan_forward(r->plan, w->stream, &pass, err));
    if (e->on.loss_on_master) {
        DP_TRY(loss_by_master(k, leaf, err));
    } else {
        dp_phase_begin(w, DP_PHASE_LOSS);
        DP_TRY(loss(k, leaf, dp_plan_output(r->plan), r->y, dp_plan_output_grad(r->plan), err));
    }
    dp_phase_begin(w, DP_PHASE_BACKWARD);
    while (stop != DP_STOP_END) DP_TRY(dp_plan_backward(r->plan, w->stream, &pass, &stop, &bucket, err));
    k->round++;
    return DP_OK;
}

/* Leaves first .. first + n - 1, a node of the halving tree: their sum into grad[slot]; *there = 0 when all are empty. Two sums are
 * added as soon as both are there, so that depth + 1 arrays are enough. */
static dp_status fold(walk *k, int first, int n, int slot, int *there, dp_error *err)
{
    dp_replica *r = k->r;
    int left = 0, right = 0, half = (n + 1) / 2;
    *there = 0;
    if (n == 1) {
        if (!k->step->split.leaf[first].rows) return DP_OK;
        *there = 1;
        return run_leaf(k, first, r->grad[slot], err);
    }
    DP_TRY(fold(k, first, half, slot, &left, err));
    DP_TRY(fold(k, first + half, n - half, left ? slot + 1 : slot, &right, err));
    *there = left || right;
    if (!left || !right) return DP_OK;
    const float *pair[2] = {r->grad[slot], r->grad[slot + 1]};
    dp_phase_begin(r->w, DP_PHASE_BACKWARD);
    return dp_sum(r->w, r->grad[slot], pair, 2, r->params->count, err);
}

/* Adds a sum to the window's, or begins it: the array of the first is kept aside by exchange. */
static dp_status add_to_window(walk *k, float **sum, int *open, dp_error *err)
{
    dp_replica *r = k->r;
    if (!*sum) {
        *sum = *open ? r->window : NULL;
        return DP_OK;
    }
    if (!*open) {
        for (int i = 0; i < r->slots; i++)
            if (r->grad[i] == *sum) r->grad[i] = r->window;
        r->window = *sum;
        *open = 1;
        return DP_OK;
    }
    const float *pair[2] = {r->window, *sum};
    DP_TRY(dp_sum(r->w, r->window, pair, 2, r->params->count, err));
    *sum = r->window;
    return DP_OK;
}

static dp_status accumulate(walk *k, dp_error *err)
{
    dp_replica *r = k->r;
    int whole = k->step->first_of_window && k->step->last_of_window;
    if (k->step->first_of_window) r->window_open = 0;
    return whole ? DP_OK : add_to_window(k, &r->result, &r->window_open, err);
}

static dp_status update(walk *k, dp_error *err)
{
    dp_replica *r = k->r;
    dp_phase_begin(r->w, DP_PHASE_UPDATE);
    if (!k->round) DP_TRY(dp_fetch(r->w, r->run, &k->step->run, sizeof *r->run, -1, err)); /* no leaf brought it */
    DP_TRY(dp_replica_update(r, r->result, &k->e->optimizer, err));
    return dp_send(r->w, k->step->verdict, r->verdict, sizeof *r->verdict, err);
}

static dp_status commit_statistics(walk *k, uint64_t seq, dp_error *err)
{
    dp_replica *r = k->r;
    if (!k->step->split.leaf[0].rows || !r->params->buffer_count) return DP_OK;
    dp_phase_begin(r->w, DP_PHASE_UPDATE);
    dp_status status = r->b->copy(r->w->stream, r->buffer, r->shadow, (size_t)r->params->buffer_count * 4);
    if (status) return dp_fail(err, status, "Committing running statistics failed.");
    return dp_signal_raise(&k->e->stats_ready, r->w, seq, err);
}

dp_status dp_step_run(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    dp_step *step = user;
    dp_engine *e = step->engine;
    dp_replica *r = &e->replica[w->device];
    walk k = {.e = e, .step = step, .r = r};
    const dp_split *split = &step->split;
    int there, me = w->device;

    if (step->replicate) DP_TRY(dp_phase_replicate(e, r, step->version, seq, step->replicated, err));
    /* The arrays about to be written are read by peers until the last reduction is over. */
    dp_phase_begin(w, DP_PHASE_IDLE);
    if (e->n > 1 && step->reduced && me != 0) DP_TRY(dp_signal_wait(&e->reduced, w, step->reduced, "the last reduction", err));
    DP_TRY(fold(&k, split->begin[me], split->begin[me + 1] - split->begin[me], 0, &there, err));
    for (int i = k.round; e->on.loss_on_master && me == 0 && i < split->rounds; i++) DP_TRY(serve_round(&k, i, err));
    r->result = there ? r->grad[0] : NULL;
    /* With shards every batch is summed over the devices, then added on the master; else each device adds its own first. */
    if (!e->on.shards) DP_TRY(accumulate(&k, err));
    if (step->reduce) DP_TRY(dp_phase_reduce(e, r, step->reduction, err));
    if (me == 0) {
        if (e->on.shards) DP_TRY(accumulate(&k, err));
        DP_TRY(commit_statistics(&k, seq, err));
        if (step->update) DP_TRY(update(&k, err));
        if (step->last_of_window) DP_TRY(dp_signal_raise(&e->params_ready, w, step->version + 1, err));
    }
    return dp_job_ended(e, w, seq, err);
}

dp_status dp_job_ended(dp_engine *e, dp_worker *w, uint64_t seq, dp_error *err)
{
    dp_status status = e->group->backend->record(w->stream, e->ended[w->device * DP_JOBS + (int)(seq % DP_JOBS)]);
    e->replica[w->device].given[seq % DP_JOBS] = atomic_load_explicit(&e->has_gradient[w->device].count, memory_order_relaxed);
    atomic_store_explicit(&e->replica[w->device].created, e->group->backend->created(w->be), memory_order_relaxed);
    return status ? dp_fail(err, status, "Recording an event failed.") : DP_OK;
}

int dp_step_finished(void *user, dp_worker *w, uint64_t seq)
{
    dp_engine *e = *(dp_engine **)user; /* first member of every job */
    const dp_backend *b = e->group->backend;
    int done = b->done(e->ended[w->device * DP_JOBS + (int)(seq % DP_JOBS)]);
    if (done == 0) { /* for the watchdog: does this device still work, or wait for another? */
        uint64_t given = e->replica[w->device].given[seq % DP_JOBS];
        int over = b->done(e->has_gradient[w->device].event[given % DP_SIGNAL_RING]) == 1;
        atomic_store_explicit(&w->waits, over, memory_order_relaxed);
    }
    return done;
}
