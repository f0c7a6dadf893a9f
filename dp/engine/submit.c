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

static int64_t target_at(dp_rows y, int64_t i)
{
    switch (y.dtype) {
    case DP_U8: return ((const uint8_t *)y.data)[i];
    case DP_U16: return ((const uint16_t *)y.data)[i];
    case DP_I32: return ((const int32_t *)y.data)[i];
    default: return ((const int64_t *)y.data)[i];
    }
}

/* Targets that count, so that the window's divisor is known before backward; labels are checked on the way (P57). */
dp_status dp_count_targets(const dp_engine *e, dp_rows y, const uint64_t *ids, int64_t *targets, dp_error *err)
{
    int64_t n = y.n * y.width, counted = 0;
    *targets = n;
    if (e->loss.kind == DP_LOSS_MSE) return DP_OK;
    for (int64_t i = 0; i < n; i++) {
        int64_t t = target_at(y, i);
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

int dp_engine_replicates(dp_engine *e, int always, uint64_t *before)
{
    if (e->n == 1 || (!always && e->pulled_version == e->version)) return 0;
    *before = e->replicated;
    e->replicated = dp_group_next(e->group);
    e->pulled_version = e->version;
    return 1;
}

static void set_numbers(dp_engine *e, dp_step *s)
{
    int rows = 0;
    for (int i = 0; i < s->split.leaves; i++) rows |= s->split.leaf[i].rows > 0;
    s->version = e->version;
    s->replicate = rows && dp_engine_replicates(e, e->on.broadcast_always, &s->replicated);
    s->first_of_window = !e->window_open;
    s->last_of_window = s->batch.last_of_window != 0;
    s->update = s->last_of_window && e->window_targets > 0;
    s->reduce = e->on.shards ? rows : s->update;
    s->reduced = e->reductions;
    if (s->reduce && e->n > 1) e->reductions++;
    s->reduction = e->reductions;
    s->run = (dp_run){.seed = e->seed,
                      .epoch = s->batch.ids ? s->batch.epoch : (uint64_t)s->index,
                      .param_version = e->version,
                      .inv_count = e->window_targets > 0 ? 1.0 / (double)e->window_targets : 0,
                      .lr = e->lr,
                      .train = 1};
    e->window_open = !s->last_of_window;
    if (s->last_of_window) {
        e->window_targets = 0;
        e->version++;
    }
}

dp_status dp_engine_submit(dp_engine *e, const dp_batch *b, dp_error *err)
{
    int64_t targets;
    int drop;
    DP_TRY(dp_engine_check(e, "dp_engine_submit", err));
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
    dp_split_plan(&s->split, &e->splitter, b->x.n);
    DP_TRY(check_leaves(e, s, &drop, err));
    if (drop) {
        for (int i = 0; i < s->split.leaves; i++) s->split.leaf[i].rows = 0;
        s->split.rounds = 0;
        targets = 0;
    }
    e->window_targets += targets;
    set_numbers(e, s);
    if (e->params->buffer_count && s->split.leaf[0].rows) {
        e->stats_version++;
        e->stats_job = dp_group_next(e->group);
    }
    s->posted_at = dp_now();
    s->job = dp_group_next(e->group); /* before the workers see it */
    dp_group_post(e->group, (dp_job){.run = dp_step_run, .finished = dp_step_finished, .user = s});
    e->submitted++;
    return DP_OK;
}

/* ---- wait ---- */

void dp_engine_book(dp_engine *e, uint64_t job)
{
    for (int d = 0; d < e->n; d++) {
        dp_timeline *t = &e->group->worker[d].timeline;
        dp_device_stats *s = &e->stats[d];
        uint64_t end = t->mark[job % 8];
        if (end <= e->replica[d].booked) continue; /* booked with a later job */
        if (end - e->replica[d].booked > DP_RECORDS) e->replica[d].booked = end - DP_RECORDS;
        for (; e->replica[d].booked < end; e->replica[d].booked++) {
            const dp_record *r = &t->record[e->replica[d].booked % DP_RECORDS];
            double seconds = r->end - r->begin, waited = r->phase == DP_PHASE_IDLE ? seconds : r->waited;
            s->phase[r->phase] += seconds;
            s->wait += waited;
            s->busy += seconds - waited;
            s->bytes_in += r->received;
            s->host_in += r->host_in;
            s->host_out += r->host_out;
        }
    }
}

dp_status dp_engine_job(dp_engine *e, dp_job job, dp_error *err)
{
    uint64_t seq = dp_group_post(e->group, job);
    dp_status status = dp_group_wait(e->group, seq, err);
    if (status)
        e->failed = 1;
    else
        dp_engine_book(e, seq);
    return status;
}

/* First tensor of the last gradient that holds a NaN or infinity; NULL: none is left to see. */
static const char *bad_tensor(dp_engine *e)
{
    float *g = dp_calloc((size_t)e->params->count, 4);
    const char *name = NULL;
    if (g && !dp_engine_pull_gradient(e, g, NULL)) {
        for (int i = 0; i < e->params->n_params && !name; i++) {
            const dp_param *p = &e->params->param[i];
            for (int64_t k = 0; p->bucket >= 0 && k < p->count; k++)
                if (!isfinite(g[p->offset + k])) {
                    name = e->graph->tensor[i].name;
                    break;
                }
        }
    }
    free(g);
    return name;
}

static dp_status non_finite(dp_engine *e, const dp_step *s, dp_result *r, dp_error *err)
{
    int device = -1;
    for (int d = e->n - 1; d >= 0; d--)
        for (int i = s->split.begin[d]; i < s->split.begin[d + 1]; i++)
            if (s->split.leaf[i].rows && !isfinite(s->sums[i].loss)) device = d;
    if (!e->on.stop_on_nan) {
        r->skipped = s->update;
        dp_log(e->config, DP_LOG_WARN, "Batch %lld: %s is not finite; the update is skipped.", (long long)s->index + 1,
               device >= 0 ? "the loss" : "the gradient");
        return DP_OK;
    }
    /* The other batch in flight runs to its end first, since the gradient is fetched behind it. */
    const char *tensor = s->update ? bad_tensor(e) : NULL;
    dp_fail(err, DP_ENONFINITE,
            "Batch %lld: %s is NaN or infinite%s%s. Lower optimizer.lr, set optimizer.clip_norm, or look at the data; %s.",
            (long long)s->index + 1, device >= 0 ? "the loss" : "the gradient", tensor ? "; first bad gradient: " : "",
            tensor ? tensor : "", "run.on_nan = warn skips such updates");
    dp_error_place(err, device >= 0 ? device : 0, device >= 0 ? device : 0, DP_PHASE_LOSS, dp_phase_name(DP_PHASE_LOSS),
                   s->index, tensor);
    e->failed = 1;
    return DP_ENONFINITE;
}

dp_status dp_engine_wait(dp_engine *e, dp_result *result, dp_error *err)
{
    dp_result r = {0};
    int finite = 1;
    DP_TRY(dp_engine_check(e, "dp_engine_wait", err));
    if (e->submitted == e->waited) return dp_fail(err, DP_EARGUMENT, "Nothing is in flight; call dp_engine_submit first.");
    const dp_step *s = &e->step[e->waited % DP_STEPS];
    dp_status status = dp_group_wait(e->group, s->job, err);
    if (status) {
        e->failed = 1;
        dp_error_place(err, -1, -1, -1, NULL, s->index, NULL);
        return status;
    }
    e->waited++;
    dp_engine_book(e, s->job);
    r.step = s->index;
    r.lr = s->run.lr;
    r.seconds = dp_now() - s->posted_at;
    for (int i = 0; i < s->split.leaves; i++) {
        if (!s->split.leaf[i].rows) continue;
        r.samples += s->split.leaf[i].rows;
        r.targets += s->sums[i].targets;
        r.correct += s->sums[i].correct;
        r.loss_sum += s->sums[i].loss;
    }
    r.dropped = s->batch.x.n - r.samples;
    if (s->update) {
        r.grad_norm = s->verdict->norm;
        e->updates = s->verdict->steps;
        finite = s->verdict->finite;
    } else if (s->last_of_window) {
        r.skipped = 1;
        dp_log(e->config, DP_LOG_WARN, "Batch %lld: no target counted in this window; nothing was updated.",
               (long long)s->index + 1);
    }
    r.updates = e->updates;
    if (!finite || !isfinite(r.loss_sum)) DP_TRY(non_finite(e, s, &r, err));
    if (result) *result = r;
    return DP_OK;
}

dp_status dp_engine_step(dp_engine *e, const dp_batch *b, dp_result *r, dp_error *err)
{
    DP_TRY(dp_engine_check(e, "dp_engine_step", err));
    if (e->submitted != e->waited)
        return dp_fail(err, DP_EARGUMENT, "A batch is in flight; call dp_engine_wait before dp_engine_step.");
    DP_TRY(dp_engine_submit(e, b, err));
    return dp_engine_wait(e, r, err);
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
