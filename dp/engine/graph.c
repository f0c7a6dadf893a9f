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

/* The place of that kind of leaf; -1: none, and the table is full. */
static int find(dp_graphs *g, const dp_leaf_kind *kind)
{
    for (int i = 0; i < g->n; i++)
        if (!memcmp(&g->of[i].kind, kind, sizeof *kind)) return i;
    return -1;
}

static dp_status capture(dp_walk *k, dp_pass *pass, const dp_fold *f, int last, dp_be_graph **graph)
{
    dp_be_stream *s = k->r->w->stream;
    dp_timeline *t = &k->r->w->timeline;
    dp_status before = t->failed;
    dp_error unused;
    DP_TRY(k->r->b->capture(s));
    k->in_graph = 1;
    dp_status status = dp_leaf_compute(k, pass, f, last, &unused);
    if (!status && dp_graph_steps(k, last)) {
        dp_phase_begin(k->r->w, DP_PHASE_UPDATE);
        status = dp_replica_update(k->r, dp_final(k->e, k->step, k->me), &k->e->optimizer, &unused);
    }
    k->in_graph = 0;
    if (!status) status = t->failed; /* a mark is missing */
    t->failed = before;
    dp_status ended = k->r->b->captured(s, status ? NULL : graph);
    return status ? status : ended;
}

/* The same events as in the capture, those of this step. */
static dp_status aim(dp_walk *k, int last, dp_error *err)
{
    dp_worker *w = k->r->w;
    k->r->b->graph_aim(w->stream);
    dp_phase_begin(w, DP_PHASE_FORWARD);
    dp_phase_begin(w, DP_PHASE_LOSS);
    dp_phase_begin(w, DP_PHASE_BACKWARD);
    if (dp_graph_steps(k, last)) dp_phase_begin(w, DP_PHASE_UPDATE);
    for (int i = 0; offers(k, last) && i < k->e->params->n_buckets; i++)
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

dp_status dp_graph_run(dp_walk *k, dp_pass *pass, const dp_fold *f, int last, int *launched, dp_error *err)
{
    dp_graphs *g = &k->e->graphs[k->me];
    dp_worker *w = k->r->w;
    dp_leaf_kind kind = kind_of(k, pass, f, last);
    int at = find(g, &kind);
    *launched = 0;
    if (at < 0 && g->n < DP_GRAPHS) g->of[g->n++].kind = kind;
    if (at < 0 || !dp_marks_left(w, MARKS)) return DP_OK;
    if (dp_graph_steps(k, last)) DP_TRY(wait_for_last_job(k, err));
    if (g->of[at].graph) {
        DP_TRY(aim(k, last, err));
    } else {
        dp_status status = capture(k, pass, f, last, &g->of[at].graph);
        if (status == DP_EDEVICE_LOST) return dp_fail(err, status, "The device was lost while its work was captured.");
        if (status) {
            g->on = 0, g->failed = status;
            return DP_OK;
        }
    }
    dp_status status = k->r->b->graph_launch(w->stream, g->of[at].graph);
    if (status) return dp_fail(err, status, "Launching a graph failed (%s).", dp_status_name(status));
    *launched = 1;
    return launched_leaf(k, f, last, err);
}
