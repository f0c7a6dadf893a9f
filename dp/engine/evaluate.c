/* Evaluation and prediction: leaves of eval.batch_size rows cut by sample index, leaf i of a job on device i % N, results taken in leaf
 * order. So loss, accuracy and every prediction are equal by bytes on any number of devices. */
#include "internal.h"
#include <string.h>

static int64_t rows_of(const dp_pass_job *j, int64_t first)
{
    int64_t left = j->x.n - first, most = j->engine->eval_rows;
    return left < most ? left : most;
}

dp_status dp_eval_compute(dp_engine *e, dp_replica *r, dp_pass *pass, dp_rows y, dp_error *err)
{
    dp_worker *w = r->w;
    dp_stop stop;
    int which;
    dp_phase_begin(w, DP_PHASE_FORWARD);
    DP_TRY(dp_plan_forward(r->eval_plan, w->stream, pass, &stop, &which, err));
    dp_phase_begin(w, DP_PHASE_LOSS);
    if (!y.data) return DP_OK;
    dp_status status = r->b->loss(w->stream, &e->loss, pass->run.rows, dp_plan_output(r->eval_plan), r->y, y.dtype, NULL,
                                  r->sums);
    return status ? dp_fail(err, status, "The loss failed (%s).", dp_status_name(status)) : DP_OK;
}

static dp_status run_leaf(dp_engine *e, dp_replica *r, int leaf, dp_error *err)
{
    dp_pass_job *j = &e->pass;
    dp_worker *w = r->w;
    dp_run *run = &j->leaf_run[leaf];
    int64_t first = j->first + leaf * e->eval_rows, rows = rows_of(j, first), width = e->graph->node[e->graph->out].width;
    dp_rows x = dp_rows_part(j->x, first, rows), y = j->y;
    if (y.data) y = dp_rows_part(y, first, rows);
    *run = j->run;
    run->rows = rows;
    run->ids = r->ids;
    DP_TRY(dp_phase_upload(r, run, x, y, NULL, err));
    dp_pass pass = {.run = *run,
                    .run_device = r->run,
                    .x = r->x,
                    .x_type = x.dtype,
                    .x_layout = x.layout,
                    .mean = r->normalize ? r->mean : NULL,
                    .inv_std = r->normalize ? r->inv_std : NULL,
                    .param = r->param,
                    .buffer = r->buffer};
    int launched = 0;
    if (dp_graphs_on(e, w->device)) DP_TRY(dp_graph_eval(e, r, &pass, y, &launched, err));
    if (!launched) DP_TRY(dp_eval_compute(e, r, &pass, y, err));
    if (y.data) return dp_send(w, &j->sums[leaf], r->sums, sizeof *r->sums, err);
    return dp_send(w, j->out + leaf * e->eval_rows * width, dp_plan_output(r->eval_plan), (size_t)(rows * width) * 4, err);
}

static dp_status run_pass(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    dp_pass_job *j = user;
    dp_engine *e = j->engine;
    dp_replica *r = &e->replica[w->device];
    dp_arrival in = {0};
    if (j->arrives && (w->device || e->on.update != DP_UPDATE_MASTER)) dp_arrival_begin(&in, j->version, seq, j->brought);
    DP_TRY(dp_arrive(e, r, &in, -1, err));
    if (j->buffers) DP_TRY(dp_arrive_buffers(e, r, seq, j->stats, err));
    dp_lane_enter(w, DP_LANE_COMPUTE);
    if (j->fresh) DP_TRY(dp_arrived(e, r, j->version, -1, err));
    if (j->buffers && w->device) DP_TRY(dp_signal_wait(&e->at[w->device].buffers, w, seq, "its own running statistics", err));
    for (int i = w->device; i < j->leaves; i += e->n) DP_TRY(run_leaf(e, r, i, err));
    return dp_job_ended(e, w, seq, err);
}

/* All rows, DP_MAX_LEAVES leaves a job. Per job: into(leaf sums) in order. */
static dp_status run_all(dp_engine *e, dp_rows x, dp_rows y, float *out, dp_result *r, dp_error *err)
{
    dp_pass_job *j = &e->pass;
    int64_t width = e->graph->node[e->graph->out].width;
    j->x = x, j->y = y;
    for (j->first = 0; j->first < x.n; j->first += (int64_t)j->leaves * e->eval_rows) {
        int64_t leaves = (x.n - j->first + e->eval_rows - 1) / e->eval_rows;
        j->leaves = leaves < DP_MAX_LEAVES ? (int)leaves : DP_MAX_LEAVES;
        j->out = out ? out + j->first * width : NULL;
        j->run = (dp_run){.seed = e->seed, .param_version = e->version};
        j->version = e->version;
        j->arrives = dp_engine_brings(e, 0, &j->brought);
        j->fresh = e->used_version != e->version;
        e->used_version = e->version;
        j->buffers = e->n > 1 && e->params->buffer_count && e->pulled_stats != e->stats_version;
        j->stats = e->stats_job;
        e->pulled_stats = e->stats_version;
        DP_TRY(dp_engine_job(e, (dp_job){.run = run_pass, .finished = dp_step_finished, .user = j}, err));
        for (int i = 0; r && i < j->leaves; i++) {
            r->samples += rows_of(j, j->first + i * e->eval_rows);
            r->targets += j->sums[i].targets;
            r->correct += j->sums[i].correct;
            r->loss_sum += j->sums[i].loss;
        }
    }
    return DP_OK;
}

dp_status dp_engine_eval(dp_engine *e, const dp_batch *b, dp_result *r, dp_error *err)
{
    int64_t targets;
    DP_TRY(dp_engine_check(e, "dp_engine_eval", err));
    if (!b || !r) return dp_fail(err, DP_EARGUMENT, "dp_engine_eval wants a batch and a result that it adds to.");
    DP_TRY(dp_check_rows(e, b->x, b->y, err));
    if (!b->y.data) return dp_fail(err, DP_EARGUMENT, "An evaluation batch wants targets; y has no data.");
    DP_TRY(dp_count_targets(e, b->y, b->ids, &targets, err));
    double begin = dp_now();
    dp_error why;
    const dp_result before = *r;
    dp_status status = run_all(e, b->x, b->y, NULL, r, &why);
    while (status && dp_recovered(e, &status, -1, NULL, &why)) {
        *r = before;
        status = run_all(e, b->x, b->y, NULL, r, &why);
    }
    if (status && err) *err = why;
    if (!status) r->seconds += dp_now() - begin;
    return status;
}

dp_status dp_engine_predict(dp_engine *e, dp_rows x, float *out, size_t bytes, dp_error *err)
{
    DP_TRY(dp_engine_check(e, "dp_engine_predict", err));
    dp_rows none = {0};
    DP_TRY(dp_check_rows(e, x, none, err));
    size_t wanted = (size_t)(x.n * e->graph->node[e->graph->out].width) * 4;
    if (!out || bytes != wanted)
        return dp_fail(err, DP_EARGUMENT, "dp_engine_predict wants room for %zu bytes of output and got %zu.", wanted, bytes);
    dp_error why;
    dp_status status = run_all(e, x, none, out, NULL, &why);
    while (status && dp_recovered(e, &status, -1, NULL, &why)) status = run_all(e, x, none, out, NULL, &why);
    if (status && err) *err = why;
    return status;
}
