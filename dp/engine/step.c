/* One training batch on one worker, phase by phase. Every line of the walk in dp/README.md is one call here. */
#include "internal.h"
#include <pthread.h>
#include <string.h>

dp_rows dp_rows_part(dp_rows rows, int64_t first, int64_t n)
{
    rows.data = (const char *)rows.data + (size_t)(first * rows.width) * dp_dtype_size(rows.dtype);
    rows.n = n;
    return rows;
}

dp_status dp_phase_upload(dp_replica *r, const dp_run *run, dp_rows x, dp_rows y, const uint64_t *ids, dp_error *err)
{
    dp_phase_begin(r->w, DP_PHASE_UPLOAD);
    DP_TRY(dp_fetch(r->w, r->run, run, sizeof *run, -1, err));
    if (x.data) DP_TRY(dp_fetch(r->w, r->x, x.data, (size_t)(x.n * x.width) * dp_dtype_size(x.dtype), -1, err));
    if (y.data) DP_TRY(dp_fetch(r->w, r->y, y.data, (size_t)(y.n * y.width) * dp_dtype_size(y.dtype), -1, err));
    if (ids) DP_TRY(dp_fetch(r->w, r->ids, ids, (size_t)run->rows * 8, -1, err));
    return DP_OK;
}

dp_status dp_leaf_loss(dp_walk *k, int leaf, const float *output, const void *target, float *gradient, dp_error *err)
{
    dp_replica *r = k->r;
    dp_status status = r->b->loss(r->w->stream, &k->e->loss, k->step->split.leaf[leaf].rows, output, target,
                                  k->step->batch.y.dtype, gradient, &r->sums[leaf % r->n_sums]);
    return status ? dp_fail(err, status, "The loss failed (%s).", dp_status_name(status)) : DP_OK;
}

dp_status dp_leaf_sums(dp_walk *k, int leaf, dp_error *err)
{
    dp_replica *r = k->r;
    return dp_send(r->w, &k->step->sums[leaf], &r->sums[leaf % r->n_sums], sizeof *r->sums, err);
}

/* ---- a leaf ---- */

static int plan_folds(const dp_split *s, int first, int n, int slot, dp_fold *f, int at)
{
    int half = (n + 1) / 2, begin = at;
    if (n == 1) {
        if (s->leaf[first].rows) f[at++] = (dp_fold){first, slot, 0};
        return at;
    }
    at = plan_folds(s, first, half, slot, f, at);
    int left = at > begin, middle = at;
    at = plan_folds(s, first + half, n - half, left ? slot + 1 : slot, f, at);
    if (left && at > middle) f[at - 1].merges++;
    return at;
}

static float *slot_memory(const dp_walk *k, int slot)
{
    /* The first sum of a window is made where the window's sum stands. */
    return slot == 0 && k->step->windowed && k->opens_window ? k->r->window : k->r->grad[slot];
}

static dp_status add(dp_walk *k, float *to, const float *from, int64_t at, int64_t count, dp_error *err)
{
    const float *pair[2] = {to + at, from + at};
    return dp_sum(k->r->w, to + at, pair, 2, count, err);
}

/* Bucket b of a leaf's gradient is there: fold it, and when it was the device's last leaf, offer it. */
static dp_status bucket_complete(dp_walk *k, const dp_fold *f, int b, int last, dp_error *err)
{
    const dp_bucket *bucket = &k->e->params->bucket[b];
    int slot = f->slot;
    for (int i = 0; i < f->merges; i++, slot--)
        DP_TRY(add(k, slot_memory(k, slot - 1), slot_memory(k, slot), bucket->offset, bucket->count, err));
    if (!last) return DP_OK;
    if (k->step->windowed && !k->opens_window) DP_TRY(add(k, k->r->window, k->r->grad[0], bucket->offset, bucket->count, err));
    if (!k->offers || k->e->on.overlap == DP_OVERLAP_OFF) return DP_OK;
    if (k->in_graph && dp_graph_steps(k, last)) return DP_OK;
    dp_signal *gradient = &k->e->at[k->me].gradient[b];
    DP_TRY(dp_signal_record(gradient, k->r->w, k->step->reduction, err));
    if (k->in_graph) return DP_OK; /* told when it has been launched */
    dp_signal_tell(gradient, k->r->w, k->step->reduction);
    DP_TRY(dp_communicate(k, 0, err));
    dp_lane_enter(k->r->w, DP_LANE_COMPUTE);
    dp_phase_begin(k->r->w, DP_PHASE_BACKWARD);
    return DP_OK;
}

static dp_status forward(dp_walk *k, dp_pass *pass, dp_error *err)
{
    dp_worker *w = k->r->w;
    dp_stop stop;
    int which;
    dp_phase_begin(w, DP_PHASE_FORWARD);
    for (;;) {
        DP_TRY(dp_plan_forward(k->r->plan, w->stream, pass, &stop, &which, err));
        if (stop == DP_STOP_END) return DP_OK;
        if (stop == DP_STOP_PART) {
            DP_TRY(dp_sync_part(k, which, 0, err));
            continue;
        }
        int brought = k->in.active;
        DP_TRY(dp_arrive(k->e, k->r, &k->in, which, err));
        DP_TRY(dp_arrived(k->e, k->r, k->step->version, which, err));
        if (brought) dp_phase_begin(w, DP_PHASE_FORWARD);
    }
}

/* All buckets at once: of a device without rows, or with overlap = off, where nothing may begin before backward has ended. */
static dp_status offer_all(dp_walk *k, dp_error *err)
{
    dp_phase_idle(k->r->w);
    for (int b = 0; k->offers && b < k->e->params->n_buckets; b++)
        DP_TRY(dp_signal_raise(&k->e->at[k->me].gradient[b], k->r->w, k->step->reduction, err));
    return DP_OK;
}

static dp_status backward(dp_walk *k, const dp_pass *pass, const dp_fold *f, int last, dp_error *err)
{
    dp_worker *w = k->r->w;
    dp_stop stop;
    int which;
    dp_phase_begin(w, DP_PHASE_BACKWARD);
    for (;;) {
        DP_TRY(dp_plan_backward(k->r->plan, w->stream, pass, &stop, &which, err));
        if (stop == DP_STOP_END) return DP_OK;
        DP_TRY(stop == DP_STOP_PART ? dp_sync_part(k, which, 1, err) : bucket_complete(k, f, which, last, err));
    }
}

/* The arrays about to be written have been read: by whoever sums, and by whoever collects what was summed here. */
static dp_status wait_for_readers(dp_walk *k, dp_error *err)
{
    dp_engine *e = k->e;
    int all = e->on.reduce == DP_REDUCE_SLICED; /* else the master is through only when everybody is */
    if (!k->step->reads) return DP_OK;
    dp_phase_idle(k->r->w);
    for (int d = 0; d < (all ? e->n : 1); d++)
        DP_TRY(dp_signal_wait(&e->at[d].read, k->r->w, k->step->reads, "the last reduction", err));
    return DP_OK;
}

static int stats_of(const dp_walk *k, int leaf)
{
    if (!k->e->n_bn) return DP_STATS_NONE;
    if (k->e->on.bn_stats != DP_BN_PRIMARY) return DP_STATS_LEAF;
    return leaf == 0 ? DP_STATS_RUNNING : DP_STATS_NONE;
}

dp_status dp_leaf_compute(dp_walk *k, dp_pass *pass, const dp_fold *f, int last, dp_error *err)
{
    dp_engine *e = k->e;
    dp_replica *r = k->r;
    DP_TRY(forward(k, pass, err));
    if (last && !k->in_graph) DP_TRY(dp_statistics_given(k, err));
    if (e->on.loss_on_master) {
        DP_TRY(dp_loss_by_master(k, f->leaf, err));
    } else {
        dp_phase_begin(r->w, DP_PHASE_LOSS);
        DP_TRY(dp_leaf_loss(k, f->leaf, dp_plan_output(r->plan), r->y, dp_plan_output_grad(r->plan), err));
        if (!k->in_graph) DP_TRY(dp_leaf_sums(k, f->leaf, err));
    }
    if (k->round == 0 && !k->in_graph) DP_TRY(wait_for_readers(k, err));
    pass->part = k->step->part + (uint64_t)k->part;
    return backward(k, pass, f, last, err);
}

/* A graph waits for nobody: whatever a leaf needs of others comes first. */
static dp_status all_is_there(dp_walk *k, dp_error *err)
{
    if (k->round) return DP_OK;
    DP_TRY(dp_arrive(k->e, k->r, &k->in, -1, err));
    if (k->step->arrives || k->step->fresh) DP_TRY(dp_arrived(k->e, k->r, k->step->version, -1, err));
    dp_lane_enter(k->r->w, DP_LANE_COMPUTE);
    return wait_for_readers(k, err);
}

static dp_status run_leaf(dp_walk *k, const dp_fold *f, int last, dp_error *err)
{
    dp_engine *e = k->e;
    dp_step *step = k->step;
    dp_replica *r = k->r;
    const dp_leaf *l = &step->split.leaf[f->leaf];
    dp_run *run = &step->leaf_run[f->leaf];
    const uint64_t *ids = (step->batch.ids ? step->batch.ids : step->ids) + l->first;
    dp_rows x = dp_rows_part(step->batch.x, l->first, l->rows), y = dp_rows_part(step->batch.y, l->first, l->rows), none = {0};

    *run = step->run;
    run->rows = l->rows;
    run->batch_rows = step->batch.x.n;
    run->ids = r->ids;
    run->stats = stats_of(k, f->leaf);
    DP_TRY(dp_phase_upload(r, run, e->on.scatter_on_master ? none : x, e->on.loss_on_master ? none : y, ids, err));
    if (e->on.scatter_on_master) DP_TRY(dp_scatter_take(k, f->leaf, x, err));
    if (last && e->on.scatter_on_master) DP_TRY(dp_scatter_done(k, err));

    dp_pass pass = {.run = *run,
                    .run_device = r->run,
                    .x = r->x,
                    .x_type = x.dtype,
                    .x_layout = x.layout,
                    .mean = r->normalize ? r->mean : NULL,
                    .inv_std = r->normalize ? r->inv_std : NULL,
                    .param = r->param,
                    .grad = slot_memory(k, f->slot),
                    .buffer = r->buffer,
                    .stats = run->stats ? dp_leaf_statistics(k, f->leaf) : NULL,
                    .by_bucket = k->round == 0 && (k->in.active || (step->fresh && !r->b->in_line)),
                    .sync = e->n_bn && e->on.bn_stats == DP_BN_SYNC,
                    .part = step->part + (uint64_t)k->part};
    int launched = 0;
    if (dp_graphs_on(e, k->me)) {
        DP_TRY(all_is_there(k, err));
        pass.by_bucket = 0;
        DP_TRY(dp_graph_train(k, &pass, f, last, &launched, err));
    }
    if (!launched) DP_TRY(dp_leaf_compute(k, &pass, f, last, err));
    k->round++;
    return last && e->on.overlap == DP_OVERLAP_OFF && !k->stepped ? offer_all(k, err) : DP_OK;
}

/* A device without rows: it takes the new parameters and has nothing to give but what its window holds. */
static dp_status run_idle(dp_walk *k, dp_error *err)
{
    DP_TRY(dp_arrive(k->e, k->r, &k->in, -1, err));
    if (k->step->fresh || k->step->arrives) DP_TRY(dp_arrived(k->e, k->r, k->step->version, -1, err));
    dp_lane_enter(k->r->w, DP_LANE_COMPUTE);
    DP_TRY(wait_for_readers(k, err));
    return offer_all(k, err);
}

static dp_status walk(dp_walk *k, dp_error *err)
{
    dp_engine *e = k->e;
    dp_step *step = k->step;
    dp_worker *w = k->r->w;
    const dp_split *split = &step->split;
    dp_fold f[DP_MAX_LEAVES];
    int n = plan_folds(split, split->begin[k->me], split->begin[k->me + 1] - split->begin[k->me], 0, f, 0);

    if (step->arrives) dp_arrival_begin(&k->in, step->version, step->job, step->brought);
    if (step->arrives && (k->me == 0 && e->on.update == DP_UPDATE_MASTER)) k->in.active = 0;
    if (k->in.active && e->on.broadcast_always) DP_TRY(dp_arrive_buffers(e, k->r, step->job, step->committed, err));
    dp_lane_enter(w, DP_LANE_COMPUTE);
    if (e->on.scatter_on_master && k->me == 0 && split->rounds) DP_TRY(dp_scatter_rows(k, err));
    if (e->on.scatter_on_master && !n && split->rounds) DP_TRY(dp_scatter_done(k, err));
    for (int i = 0; i < n; i++) DP_TRY(run_leaf(k, &f[i], i == n - 1, err));
    if (!n) DP_TRY(run_idle(k, err));
    for (int i = n; e->on.loss_on_master && k->me == 0 && i < split->rounds; i++) DP_TRY(dp_loss_serve(k, i, err));
    if (k->in.active) DP_TRY(dp_arrive(e, k->r, &k->in, -1, err));
    if (k->offers) DP_TRY(dp_communicate(k, 1, err));
    if (k->me == 0) DP_TRY(dp_statistics_commit(k, err));
    return DP_OK;
}

static dp_status run_step(dp_step *step, dp_worker *w, dp_error *err)
{
    dp_engine *e = step->engine;
    dp_walk k = {.e = e, .step = step, .r = &e->replica[w->device], .me = w->device};
    int role = k.me != 0;
    k.opens_window = !(step->gave >> k.me & 1);
    k.offers = step->reduce || step->update;
    k.stage = e->stage[role];
    while (k.n_stages < e->n_stages[role] && (step->update || k.stage[k.n_stages].kind <= DP_SUM)) k.n_stages++;
    w->timeline.step = step->index;
    DP_TRY(walk(&k, err));
    return step->snapshot ? dp_snapshot_take(e, k.r, step->snapshot, err) : DP_OK;
}

/* ---- mode = classic: a thread per device and step, as PyTorch's DataParallel starts them ---- */

typedef struct errand {
    dp_step *step;
    dp_worker *w;
    dp_status status;
    dp_error *err;
} errand;

static void *run_errand(void *arg)
{
    errand *x = arg;
    x->w->group->backend->bind(x->w->be);
    x->status = run_step(x->step, x->w, x->err);
    return NULL;
}

static dp_status run_in_thread(dp_step *step, dp_worker *w, dp_error *err)
{
    errand x = {.step = step, .w = w, .err = err};
    pthread_t thread;
    int r = pthread_create(&thread, NULL, run_errand, &x);
    if (r) return dp_fail_errno(err, DP_ENOMEM, r, "Cannot start a thread of device %d", w->device);
    pthread_join(thread, NULL);
    w->group->backend->bind(w->be);
    return x.status;
}

dp_status dp_step_run(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    dp_step *step = user;
    DP_TRY(step->engine->on.thread_per_step ? run_in_thread(step, w, err) : run_step(step, w, err));
    return dp_job_ended(step->engine, w, seq, err);
}

/* ---- the end ---- */

/* One lane waits for the other, in the order in which work goes through them. */
dp_status dp_job_ended(dp_engine *e, dp_worker *w, uint64_t seq, dp_error *err)
{
    const dp_backend *b = e->group->backend;
    dp_replica *r = &e->replica[w->device];
    dp_job_end *end = &e->ended[w->device * DP_JOBS + (int)(seq % DP_JOBS)];
    dp_phases_end(w);
    dp_status status = DP_OK;
    for (int lane = 0; lane < DP_LANES && !status; lane++) {
        if (lane) status = b->wait(w->lane_stream[lane], end->lane[lane - 1]);
        if (!status) status = b->record(w->lane_stream[lane], end->lane[lane]);
    }
    atomic_store_explicit(&r->created, b->created(w->be), memory_order_relaxed);
    return status ? dp_fail(err, status, "Recording an event failed.") : DP_OK;
}

int dp_step_finished(void *user, dp_worker *w, uint64_t seq)
{
    dp_engine *e = *(dp_engine **)user; /* first member of every job */
    return e->group->backend->done(e->ended[w->device * DP_JOBS + (int)(seq % DP_JOBS)].lane[DP_LANES - 1]);
}
