/* What PyTorch's DataParallel sends through its master, as switches: the batch (scatter = master), and outputs and their gradient
 * (loss = master). */
#include "internal.h"

static uint64_t round_value(const dp_walk *k, int round) /* counts up over rounds and jobs */
{
    return k->step->job * DP_MAX_LEAVES + (uint64_t)round;
}

static int leaf_of_round(const dp_split *s, int device, int round)
{
    for (int i = s->begin[device]; i < s->begin[device + 1]; i++)
        if (s->leaf[i].rows > 0 && round-- == 0) return i;
    return -1;
}

static size_t row_bytes(dp_rows x)
{
    return (size_t)x.width * dp_dtype_size(x.dtype);
}

dp_status dp_scatter_rows(dp_walk *k, dp_error *err)
{
    dp_engine *e = k->e;
    dp_rows x = k->step->batch.x;
    dp_phase_idle(k->r->w);
    for (int d = 1; d < e->n; d++) /* the rows of the batch before have been taken */
        DP_TRY(dp_signal_wait(&e->at[d].rows, k->r->w, k->step->scatter - 1, "a device's rows", err));
    dp_phase_begin(k->r->w, DP_PHASE_UPLOAD);
    DP_TRY(dp_fetch(k->r->w, e->all_rows, x.data, (size_t)x.n * row_bytes(x), -1, err));
    DP_TRY(dp_publish(e, k->r->w, e->all_rows, (size_t)x.n * row_bytes(x), 1, err));
    return dp_signal_raise(&e->at[0].rows, k->r->w, k->step->scatter, err);
}

dp_status dp_scatter_take(dp_walk *k, int leaf, dp_rows x, dp_error *err)
{
    dp_engine *e = k->e;
    dp_worker *w = k->r->w;
    const char *from = (const char *)e->all_rows + (size_t)k->step->split.leaf[leaf].first * row_bytes(x);
    size_t bytes = (size_t)x.n * row_bytes(x);
    dp_phase_begin(w, DP_PHASE_SCATTER);
    if (k->me != 0) {
        DP_TRY(dp_signal_wait(&e->at[0].rows, w, k->step->scatter, "the master's batch", err));
        return dp_take(e, w, k->r->x, 0, from, bytes, err);
    }
    dp_status status = k->r->b->copy(w->stream, k->r->x, from, bytes);
    return status ? dp_fail(err, status, "A copy of %zu bytes failed.", bytes) : DP_OK;
}

dp_status dp_scatter_done(dp_walk *k, dp_error *err)
{
    return k->me ? dp_signal_raise(&k->e->at[k->me].rows, k->r->w, k->step->scatter, err) : DP_OK;
}

/* loss = master, the master's part of a round: outputs in, loss of each leaf, gradients ready. */
dp_status dp_loss_serve(dp_walk *k, int round, dp_error *err)
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
        dp_rows y = dp_rows_part(step->batch.y, l->first, l->rows);
        dp_phase_begin(w, DP_PHASE_GATHER);
        const float *output = dp_plan_output(e->replica[d].plan);
        if (d != 0) {
            DP_TRY(dp_signal_wait(&e->at[d].output, w, round_value(k, round), "a device's outputs", err));
            DP_TRY(dp_take(e, w, at->output, d, output, (size_t)(l->rows * width) * 4, err));
            output = at->output;
        }
        DP_TRY(dp_fetch(w, at->target, y.data, (size_t)(y.n * y.width) * dp_dtype_size(y.dtype), -1, err));
        dp_phase_begin(w, DP_PHASE_LOSS);
        DP_TRY(dp_leaf_loss(k, leaf, output, at->target, d ? at->gradient : dp_plan_output_grad(k->r->plan), err));
        DP_TRY(dp_leaf_sums(k, leaf, err));
        if (d == 0) continue;
        DP_TRY(dp_publish(e, w, at->gradient, (size_t)(l->rows * width) * 4, 1, err));
        DP_TRY(dp_signal_raise(&e->at[d].loss, w, round_value(k, round), err));
    }
    return DP_OK;
}

dp_status dp_loss_by_master(dp_walk *k, int leaf, dp_error *err)
{
    dp_engine *e = k->e;
    dp_replica *r = k->r;
    int64_t rows = k->step->split.leaf[leaf].rows, width = e->graph->node[e->graph->out].width;
    if (k->me == 0) return dp_loss_serve(k, k->round, err);
    dp_phase_begin(r->w, DP_PHASE_SCATTER);
    DP_TRY(dp_publish(e, r->w, dp_plan_output(r->plan), (size_t)(rows * width) * 4, 1, err));
    DP_TRY(dp_signal_raise(&e->at[k->me].output, r->w, round_value(k, k->round), err));
    DP_TRY(dp_signal_wait(&e->at[k->me].loss, r->w, round_value(k, k->round), "the master's loss", err));
    return dp_take(e, r->w, dp_plan_output_grad(r->plan), 0, e->gathered[k->me].gradient, (size_t)(rows * width) * 4, err);
}
