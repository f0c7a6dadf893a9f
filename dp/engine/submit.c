/* The caller's side of a training step: checks, window and versions before, results after. Nothing here touches a device. */
#include "internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

dp_status dp_engine_check(dp_engine *e, const char *call, dp_error *err)
{
    if (!e) return dp_fail(err, DP_EARGUMENT, "%s wants an engine.", call);
    if (e->failed) return dp_fail(err, DP_EFAILED, "The engine failed before; close it and open a new one.");
    return DP_OK;
}

/* ---- checks of a batch ---- */

static int64_t integer_at(dp_rows r, int64_t i)
{
    switch (r.dtype) {
    case DP_U8: return ((const uint8_t *)r.data)[i];
    case DP_U16: return ((const uint16_t *)r.data)[i];
    case DP_I32: return ((const int32_t *)r.data)[i];
    default: return ((const int64_t *)r.data)[i];
    }
}

/* Tokens that an embedding has no row for are found before any device sees them, as labels are. */
static dp_status check_tokens(const dp_engine *e, dp_rows x, dp_error *err)
{
    const dp_graph *g = e->graph;
    for (int i = 1; i < g->n_nodes; i++) {
        const dp_node *n = &g->node[i];
        if (!n->live || n->op->kind != DP_OP_EMBEDDING || n->in[0] != 0) continue;
        int64_t vocabulary = (int64_t)n->opt[DP_EMBEDDING_VOCAB], tokens = x.n * x.width;
        if (x.dtype == DP_U8 && vocabulary > UINT8_MAX) continue;
        for (int64_t k = 0; k < tokens; k++) {
            int64_t token = integer_at(x, k);
            if (token >= 0 && token < vocabulary) continue;
            return dp_fail(err, DP_EDATA, "Row %lld of x, position %lld: token %lld; layer %s has %lld tokens (0 to %lld).",
                           (long long)(k / x.width), (long long)(k % x.width), (long long)token, n->name, (long long)vocabulary,
                           (long long)vocabulary - 1);
        }
    }
    return DP_OK;
}

dp_status dp_check_rows(const dp_engine *e, dp_rows x, dp_rows y, dp_error *err)
{
    const dp_node *in = &e->graph->node[0];
    if (!x.data || x.n < 1) return dp_fail(err, DP_EARGUMENT, "The batch is empty; wanted at least one row of x.");
    if (x.width != in->width)
        return dp_fail(err, DP_EARGUMENT, "A row of x has %lld elements; the model's input takes %lld.", (long long)x.width,
                       (long long)in->width);
    int tokens = in->dtype == DP_I32;
    int fits = tokens ? x.dtype == DP_U8 || x.dtype == DP_U16 || x.dtype == DP_I32 || x.dtype == DP_I64
                      : x.dtype == DP_F32 || x.dtype == DP_U8;
    if (!fits)
        return dp_fail(err, DP_EARGUMENT, "x is of a type the input cannot take; wanted %s.",
                       tokens ? "u8, u16, i32 or i64 tokens" : "f32 or u8");
    if (tokens) DP_TRY(check_tokens(e, x, err));
    if (!y.data) return DP_OK;
    if (y.n != x.n)
        return dp_fail(err, DP_EARGUMENT, "x has %lld rows and y has %lld; wanted one row of targets per sample.",
                       (long long)x.n, (long long)y.n);
    if (y.width != e->targets_per_row)
        return dp_fail(err, DP_EARGUMENT, "A row of y has %lld targets; the loss takes %lld per sample.", (long long)y.width,
                       (long long)e->targets_per_row);
    int numbers = e->loss.kind == DP_LOSS_MSE;
    fits = numbers ? y.dtype == DP_F32 : y.dtype == DP_U8 || y.dtype == DP_U16 || y.dtype == DP_I32 || y.dtype == DP_I64;
    if (!fits)
        return dp_fail(err, DP_EARGUMENT, "y is of a type the loss cannot take; wanted %s.",
                       numbers ? "f32 (mse)" : "u8, u16, i32 or i64 class numbers");
    return DP_OK;
}

/* Targets that count, so that the window's divisor is known before backward; labels are checked on the way (P57). */
dp_status dp_count_targets(const dp_engine *e, dp_rows y, const uint64_t *ids, int64_t *targets, dp_error *err)
{
    int64_t n = y.n * y.width, counted = 0;
    *targets = n;
    if (e->loss.kind == DP_LOSS_MSE) return DP_OK;
    for (int64_t i = 0; i < n; i++) {
        int64_t t = integer_at(y, i);
        if (t == e->loss.ignore_label) continue;
        if (t < 0 || t >= e->loss.classes)
            return dp_fail(
                err, DP_EDATA,
                "Sample %lld (row %lld of the batch) has the label %lld; the model has %lld classes, wanted 0 to %lld.",
                (long long)(ids ? (int64_t)ids[i / y.width] : i / y.width), (long long)(i / y.width), (long long)t,
                (long long)e->loss.classes, (long long)e->loss.classes - 1);
        counted++;
    }
    *targets = counted;
    return DP_OK;
}

/* A leaf that a batchnorm on 1 x 1 maps cannot train on (P31, P32). *drop = 1: the batch is left out. */
static dp_status check_leaves(const dp_engine *e, const dp_step *s, int *drop, dp_error *err)
{
    *drop = 0;
    for (int i = 0; i < s->split.leaves; i++) {
        int64_t rows = s->split.leaf[i].rows;
        if (!rows || rows >= e->graph->min_rows) continue;
        if (e->on.small_batch == DP_SMALL_DROP && s->batch.x.n < e->graph->min_rows) {
            *drop = 1;
            return DP_OK;
        }
        const char *layer = "a batchnorm";
        for (int k = 0; k < e->graph->n_nodes; k++)
            if (e->graph->node[k].live && e->graph->node[k].min_rows > rows) layer = e->graph->node[k].name;
        dp_fail(err, DP_EARGUMENT,
                "Batch %lld: layer %s sees one value per channel in a part of %lld row; it needs at least %d rows. "
                "Set devices.small_batch = drop or merge, data.drop_last = 1, or another devices.split.",
                (long long)s->index + 1, layer, (long long)rows, e->graph->min_rows);
        dp_error_place(err, -1, i, -1, NULL, s->index, layer);
        return DP_EARGUMENT;
    }
    return DP_OK;
}

/* ---- submit ---- */

int dp_engine_brings(dp_engine *e, int always, uint64_t *brought)
{
    if (e->n == 1 || (!always && e->pulled_version == e->version)) return 0;
    *brought = always ? e->brought : 0;
    e->brought = dp_group_next(e->group);
    e->pulled_version = e->version;
    return 1;
}

/* Which devices add to the sum: those with rows, and without shards those whose window holds something. */
static void set_givers(dp_engine *e, dp_step *s)
{
    s->gave = s->windowed && !s->first_of_window ? e->window_gives : 0;
    s->gives = s->gave;
    for (int d = 0; d < e->n; d++)
        for (int i = s->split.begin[d]; i < s->split.begin[d + 1]; i++)
            if (s->split.leaf[i].rows) s->gives |= (uint64_t)1 << d;
    e->window_gives = s->gives;
}

/* Somebody may still read the gradients of the last reduction, unless the new parameters that it led to came in between. */
static void set_reduction(dp_engine *e, dp_step *s, int rows)
{
    s->reduce = e->on.shards ? rows || s->update : s->update;
    s->reads = e->reads_over ? 0 : e->reductions;
    e->reads_over = 1;
    if (s->reduce) {
        e->reductions++;
        e->reads_over = s->update && e->on.update != DP_UPDATE_REPLICATED;
    }
    s->reduction = e->reductions;
    s->keeps = e->on.shards && !(s->first_of_window && s->last_of_window);
    s->reduced_before = s->keeps && e->window_reduced;
    e->window_reduced = !s->last_of_window && (s->reduced_before || s->reduce);
    if (s->reduce) e->last = (dp_last_sum){1, s->windowed || s->keeps};
}

static void set_statistics(dp_engine *e, dp_step *s, int rows)
{
    int all = e->on.bn_stats != DP_BN_PRIMARY;
    s->stats = e->n_bn && (all ? rows : s->split.leaf[0].rows > 0);
    s->committed = e->stats_job;
    s->pooled = e->pooled;
    s->part = e->parts;
    if (!s->stats) return;
    e->stats_version++;
    e->stats_job = dp_group_next(e->group);
    if (all) e->pooled++;
    if (e->on.bn_stats == DP_BN_SYNC) e->parts += (uint64_t)e->n_parts;
}

static void set_numbers(dp_engine *e, dp_step *s)
{
    int rows = s->split.rounds > 0;
    s->first_of_window = !e->window_open;
    s->last_of_window = s->batch.last_of_window != 0;
    s->windowed = !e->on.shards && !(s->first_of_window && s->last_of_window);
    s->update = s->last_of_window && e->window_targets > 0;
    s->version = e->version;
    s->arrives = rows && dp_engine_brings(e, e->on.broadcast_always, &s->brought);
    s->fresh = rows && e->used_version != e->version;
    if (rows) e->used_version = e->version;
    set_givers(e, s);
    set_reduction(e, s, rows);
    set_statistics(e, s, rows);
    s->scatter = e->scatters += rows > 0;
    s->run = (dp_run){.seed = e->seed,
                      .epoch = s->batch.ids ? s->batch.epoch : (uint64_t)s->index,
                      .param_version = e->version,
                      .inv_count = e->window_targets > 0 ? 1.0 / (double)e->window_targets : 0,
                      .lr = e->lr,
                      .train = 1};
    s->leaf_run[DP_MAX_LEAVES] = s->run;
    e->window_open = !s->last_of_window;
    if (s->last_of_window) e->window_targets = 0;
    if (!s->update) return;
    e->version++;
    if (e->on.update == DP_UPDATE_REPLICATED || e->on.early) e->pulled_version = e->version;
}

dp_status dp_engine_submit(dp_engine *e, const dp_batch *b, dp_error *err)
{
    int64_t targets;
    int drop;
    DP_TRY(dp_engine_check(e, "dp_engine_submit", err));
    DP_TRY(dp_keep_renew(e, err));
    if (!b) return dp_fail(err, DP_EARGUMENT, "dp_engine_submit wants a batch.");
    if (e->submitted - e->waited >= DP_RUN_AHEAD)
        return dp_fail(err, DP_EARGUMENT, "Two batches are in flight; call dp_engine_wait first.");
    DP_TRY(dp_check_rows(e, b->x, b->y, err));
    if (!b->y.data) return dp_fail(err, DP_EARGUMENT, "A training batch wants targets; y has no data.");
    if (b->x.n > e->max_rows)
        return dp_fail(err, DP_EARGUMENT, "The batch has %lld rows; the engine was opened for data.batch_size = %lld.",
                       (long long)b->x.n, (long long)e->max_rows);
    if ((!b->last_of_window || e->window_open) && dp_config_int(e->config, "data.accumulate") < 2)
        return dp_fail(err, DP_EARGUMENT, "last_of_window = 0 wants data.accumulate above 1 when the engine is opened.");
    DP_TRY(dp_count_targets(e, b->y, b->ids, &targets, err));

    dp_step *s = &e->step[e->submitted % DP_STEPS];
    s->batch = *b;
    s->index = e->first_batch + (int64_t)e->submitted;
    if (b->ids) dp_balance_epoch(e, b->epoch);
    dp_split_plan(&s->split, &e->splitter, b->x.n);
    DP_TRY(check_leaves(e, s, &drop, err));
    if (drop) {
        for (int i = 0; i < s->split.leaves; i++) s->split.leaf[i].rows = 0;
        s->split.rounds = 0;
        targets = 0;
    }
    DP_TRY(dp_keep_batch(e, b, err));
    e->window_targets += targets;
    set_numbers(e, s);
    s->snapshot = dp_snapshot_begin(e, s->index + 1, s->last_of_window);
    s->posted_at = dp_now();
    s->job = dp_group_next(e->group); /* before the workers see it */
    dp_group_post(e->group, (dp_job){.run = dp_step_run, .finished = dp_step_finished, .user = s});
    e->submitted++;
    return DP_OK;
}

dp_status dp_engine_set_lr(dp_engine *e, double lr)
{
    if (!e || !isfinite(lr) || lr < 0) return DP_EARGUMENT;
    e->lr = lr;
    return DP_OK;
}

int64_t dp_engine_batches(const dp_engine *e)
{
    return e ? e->first_batch + (int64_t)e->submitted : 0;
}
