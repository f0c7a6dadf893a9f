/* A leaf's computation as one launch (devices.graphs). Forward, loss and backward of a kind of leaf run piece by piece the first time, which
 * loads all kernels; the second time they are captured; from then on they are launched whole. What changes from step to step is in
 * device memory (the run block, rows, targets) or an event, which each launch is given anew. Whatever concerns other devices stays outside: what
 * a leaf needs of them comes before, and they are told of its buckets behind the launch, though each bucket's event passes inside. Of a device that is alone there is no such thing: its optimizer
 * steps in the graph too. */
#include "internal.h"
#include <string.h>

enum { MARKS = 4 }; /* of the timeline, inside: forward, loss, backward and update begin */

void dp_graphs_open(dp_engine *e)
{
    int wanted = dp_config_choice(e->config, "devices.graphs") == 0 && e->backend->capture;
    const char *why = e->n_bn && e->on.bn_stats == DP_BN_SYNC         ? "devices.bn_stats = sync"
                      : dp_config_flag(e->config, "run.debug_sync")   ? "run.debug_sync = 1"
                      : dp_config_choice(e->config, "run.trace") == 2 ? "run.trace = layer"
                      : e->on.loss_on_master                          ? "devices.loss = master"
                                                                      : NULL;
    if (wanted && why) dp_log(e->config, DP_LOG_INFO, "Layers are launched one by one, not as a graph: %s.", why);
    for (int d = 0; d < e->n; d++) e->graphs[d].on = wanted && !why;
}

void dp_graphs_warn(dp_engine *e)
{
    for (int d = 0; d < e->n; d++) {
        dp_status status = e->graphs[d].failed;
        if (status && !e->graphs[d].warned++)
            dp_log(e->config, DP_LOG_WARN,
                   "Device %d cannot make a graph of its work (%s): its layers are launched one by one.", d,
                   dp_status_name(status));
    }
}

int dp_graphs_on(const dp_engine *e, int device)
{
    return e->graphs[device].on;
}

void dp_graphs_close(dp_engine *e, dp_worker *w)
{
    dp_graphs *g = &e->graphs[w->device];
    for (int i = 0; i < g->n; i++)
        if (g->of[i].graph) e->backend->graph_close(g->of[i].graph);
    g->n = 0;
}

/* ---- any kind of leaf ---- */

/* What goes into a graph. work: all of it. aim: the same phases and records of events, without what is launched. */
typedef struct body {
    dp_status (*work)(void *arg, dp_error *err);
    dp_status (*aim)(void *arg, dp_error *err);
    void *arg;
} body;

/* The place of that kind of leaf; -1: none, and the table is full. */
static int find(dp_graphs *g, const dp_leaf_kind *kind)
{
    for (int i = 0; i < g->n; i++)
        if (!memcmp(&g->of[i].kind, kind, sizeof *kind)) return i;
    return -1;
}

static dp_status capture(const dp_backend *b, dp_worker *w, const body *what, dp_be_graph **graph)
{
    dp_timeline *t = &w->timeline;
    dp_status before = t->failed;
    dp_error unused;
    DP_TRY(b->capture(w->stream));
    dp_status status = what->work(what->arg, &unused);
    if (!status) status = t->failed; /* a mark is missing */
    t->failed = before;
    dp_status ended = b->captured(w->stream, status ? NULL : graph);
    return status ? status : ended;
}

/* launched = 0: it has to run piece by piece. */
static dp_status run(dp_engine *e, dp_worker *w, const dp_leaf_kind *kind, const body *what, int *launched, dp_error *err)
{
    dp_graphs *g = &e->graphs[w->device];
    const dp_backend *b = e->backend;
    int at = find(g, kind);
    *launched = 0;
    if (at < 0 && g->n < DP_GRAPHS) g->of[g->n++].kind = *kind;
    if (at < 0 || !dp_marks_left(w, MARKS)) return DP_OK;
    if (g->of[at].graph) {
        b->graph_aim(w->stream);
        DP_TRY(what->aim(what->arg, err));
    } else {
        dp_status status = capture(b, w, what, &g->of[at].graph);
        if (status == DP_EDEVICE_LOST) return dp_fail(err, status, "The device was lost while its work was captured.");
        if (status) {
            g->on = 0, g->failed = status;
            return DP_OK;
        }
    }
    dp_status status = b->graph_launch(w->stream, g->of[at].graph);
    if (status) return dp_fail(err, status, "Launching a graph failed (%s).", dp_status_name(status));
    *launched = 1;
    return DP_OK;
}

/* ---- of a training batch ---- */

typedef struct train {
    dp_walk *k;
    dp_pass *pass;
    const dp_fold *f;
    int last;
} train;

/* A device that is alone steps right behind backward, unless a copy of the state is wanted, which follows its own lanes. */
int dp_graph_steps(const dp_walk *k, int last)
{
    return last && k->e->n == 1 && k->offers && k->step->update && !k->step->keeps && !k->step->snapshot;
}

static int offers(const dp_walk *k, int last)
{
    return last && k->offers && k->e->on.overlap != DP_OVERLAP_OFF && !dp_graph_steps(k, last);
}

static dp_leaf_kind kind_of(const dp_walk *k, const dp_pass *pass, const dp_fold *f, int last)
{
    dp_leaf_kind kind;
    memset(&kind, 0, sizeof kind); /* compared as bytes */
    kind.mean = pass->mean;
    kind.grad = pass->grad;
    kind.stats = pass->stats;
    kind.steps = dp_graph_steps(k, last) ? dp_final(k->e, k->step, k->me) : NULL;
    kind.sums = &k->r->sums[f->leaf % k->r->n_sums];
    kind.rows = pass->run.rows;
    kind.x_type = (int32_t)pass->x_type, kind.x_layout = (int32_t)pass->x_layout;
    kind.y_type = (int32_t)k->step->batch.y.dtype;
    kind.run_stats = pass->run.stats;
    kind.slot = f->slot, kind.merges = f->merges;
    kind.last = last;
    kind.joins = last && k->step->windowed ? 1 + k->opens_window : 0;
    kind.offers = offers(k, last);
    return kind;
}

static dp_status train_work(void *arg, dp_error *err)
{
    const train *t = arg;
    dp_walk *k = t->k;
    k->in_graph = 1;
    dp_status status = dp_leaf_compute(k, t->pass, t->f, t->last, err);
    k->in_graph = 0;
    if (status || !dp_graph_steps(k, t->last)) return status;
    dp_phase_begin(k->r->w, DP_PHASE_UPDATE);
    return dp_replica_update(k->r, dp_final(k->e, k->step, k->me), &k->e->optimizer, err);
}

static dp_status train_aim(void *arg, dp_error *err)
{
    const train *t = arg;
    dp_walk *k = t->k;
    dp_worker *w = k->r->w;
    dp_phase_begin(w, DP_PHASE_FORWARD);
    dp_phase_begin(w, DP_PHASE_LOSS);
    dp_phase_begin(w, DP_PHASE_BACKWARD);
    if (dp_graph_steps(k, t->last)) dp_phase_begin(w, DP_PHASE_UPDATE);
    for (int i = 0; offers(k, t->last) && i < k->e->params->n_buckets; i++)
        DP_TRY(dp_signal_record(&k->e->at[k->me].gradient[dp_plan_completed(k->r->plan, i)], w, k->step->reduction, err));
    return DP_OK;
}

/* What the lanes of the step before still read, the graph writes. */
static dp_status wait_for_last_job(dp_walk *k, dp_error *err)
{
    uint64_t before = k->step->job - 1;
    if (!before) return DP_OK;
    dp_status status = k->r->b->wait(k->r->w->stream,
                                     k->e->ended[k->me * DP_JOBS + (int)(before % DP_JOBS)].lane[DP_LANES - 1]);
    return status ? dp_fail(err, status, "Waiting for an event failed.") : DP_OK;
}

/* All that the stages of the step would have raised. */
static dp_status stepped(dp_walk *k, dp_error *err)
{
    dp_engine *e = k->e;
    dp_worker *w = k->r->w;
    dp_device_signals *at = &e->at[k->me];
    DP_TRY(dp_send(w, &k->step->verdict[e->on.early], k->r->verdict, sizeof *k->r->verdict, err));
    for (int b = 0; b < e->params->n_buckets; b++) {
        DP_TRY(dp_signal_raise(&at->gradient[b], w, k->step->reduction, err));
        DP_TRY(dp_signal_raise(&at->sum[b], w, k->step->reduction, err));
        DP_TRY(dp_signal_raise(&at->param[b], w, k->step->version + 1, err));
        DP_TRY(dp_signal_raise(&at->here[b], w, k->step->version + 1, err));
    }
    dp_stages_done(k);
    k->stepped = 1;
    return dp_signal_raise(&at->read, w, k->step->reduction, err);
}

static dp_status launched_leaf(dp_walk *k, const dp_fold *f, int last, dp_error *err)
{
    DP_TRY(dp_leaf_sums(k, f->leaf, err));
    if (last) DP_TRY(dp_statistics_given(k, err));
    for (int b = 0; offers(k, last) && b < k->e->params->n_buckets; b++)
        dp_signal_tell(&k->e->at[k->me].gradient[b], k->r->w, k->step->reduction);
    return dp_graph_steps(k, last) ? stepped(k, err) : DP_OK;
}

dp_status dp_graph_train(dp_walk *k, dp_pass *pass, const dp_fold *f, int last, int *launched, dp_error *err)
{
    dp_leaf_kind kind = kind_of(k, pass, f, last);
    train t = {k, pass, f, last};
    if (dp_graph_steps(k, last)) DP_TRY(wait_for_last_job(k, err));
    DP_TRY(run(k->e, k->r->w, &kind, &(body){train_work, train_aim, &t}, launched, err));
    return *launched ? launched_leaf(k, f, last, err) : DP_OK;
}

/* ---- of an evaluation ---- */

typedef struct look {
    dp_engine *e;
    dp_replica *r;
    dp_pass *pass;
    const dp_rows *y;
} look;

static dp_status look_work(void *arg, dp_error *err)
{
    const look *l = arg;
    return dp_eval_compute(l->e, l->r, l->pass, *l->y, err);
}

static dp_status look_aim(void *arg, dp_error *err)
{
    const look *l = arg;
    (void)err;
    dp_phase_begin(l->r->w, DP_PHASE_FORWARD);
    dp_phase_begin(l->r->w, DP_PHASE_LOSS);
    return DP_OK;
}

dp_status dp_graph_eval(dp_engine *e, dp_replica *r, dp_pass *pass, dp_rows y, int *launched, dp_error *err)
{
    dp_leaf_kind kind;
    look l = {e, r, pass, &y};
    memset(&kind, 0, sizeof kind);
    kind.mean = pass->mean;
    kind.rows = pass->run.rows;
    kind.x_type = (int32_t)pass->x_type, kind.x_layout = (int32_t)pass->x_layout;
    kind.y_type = y.data ? (int32_t)y.dtype : -1;
    kind.eval = 1;
    return run(e, r->w, &kind, &(body){look_work, look_aim, &l}, launched, err);
}
