/* What comes back: the end of a job, its result, and where its time went. */
#include "internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- where time went ---- */

/* Seconds of [begin, end) in which no lane before `lane` worked. */
static double alone(const dp_timeline *t, uint64_t from, uint64_t to, int lane, double begin, double end)
{
    for (uint64_t i = from; i < to && begin < end; i++) {
        const dp_record *r = &t->record[i % DP_RECORDS];
        if (r->lane >= lane || r->phase == DP_PHASE_IDLE || r->begin >= end || r->end <= begin) continue;
        double before = r->begin > begin ? alone(t, i + 1, to, lane, begin, r->begin) : 0;
        double after = r->end < end ? alone(t, i + 1, to, lane, r->end, end) : 0;
        return before + after;
    }
    return end - begin;
}

/* Every moment of a device belongs to one phase: that of the first lane which works; when none does it idles. What communicates under
 * something else is counted apart. */
static void book_device(dp_engine *e, int d, uint64_t end)
{
    const dp_timeline *t = &e->group->worker[d].timeline;
    dp_replica *rep = &e->replica[d];
    dp_device_stats *s = &e->stats[d];
    int in_line = e->group->backend->in_line;
    uint64_t from = rep->booked;
    double last = rep->booked_to ? rep->booked_to : e->opened_at, busy = 0;
    if (end <= from) return; /* booked with a later job */
    if (end - from > DP_RECORDS) from = end - DP_RECORDS;
    for (uint64_t i = from; i < end; i++) {
        const dp_record *r = &t->record[i % DP_RECORDS];
        double seconds = r->end - r->begin, under = 0;
        if (r->phase != DP_PHASE_IDLE) {
            if (r->lane != DP_LANE_COMPUTE && !in_line) under = seconds - alone(t, from, end, r->lane, r->begin, r->end);
            s->phase[r->phase] += seconds - under;
            s->hidden += under;
            s->busy += seconds - under - r->waited;
            busy += seconds - under;
        }
        if (r->end > rep->booked_to) rep->booked_to = r->end;
        s->wait += r->phase == DP_PHASE_IDLE ? 0 : r->waited;
        s->bytes_in += r->received;
        s->host_in += r->host_in;
        s->host_out += r->host_out;
    }
    double idle = rep->booked_to - last - busy;
    if (idle > 0) s->phase[DP_PHASE_IDLE] += idle, s->wait += idle;
    rep->booked = end;
}

void dp_engine_book(dp_engine *e, uint64_t job)
{
    for (int d = 0; d < e->n; d++) book_device(e, d, e->group->worker[d].timeline.mark[job % 8]);
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

/* ---- results ---- */

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

dp_status dp_wait_once(dp_engine *e, dp_result *result, dp_error *err)
{
    dp_result r = {0};
    int finite = 1;
    const dp_step *s = &e->step[e->waited % DP_STEPS];
    dp_status status = dp_group_wait(e->group, s->job, err);
    if (status) {
        e->failed = 1;
        dp_error_place(err, -1, -1, -1, NULL, s->index, NULL);
        return status;
    }
    e->waited++;
    if (s->snapshot) dp_snapshot_taken(e);
    dp_graphs_warn(e);
    dp_engine_book(e, s->job);
    for (int d = 0; d < e->n; d++) {
        e->stats[d].steps++;
        for (int i = s->split.begin[d]; i < s->split.begin[d + 1]; i++) e->measured[d].rows += s->split.leaf[i].rows;
    }
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
        const dp_verdict *seen = &s->verdict[e->on.early];
        r.grad_norm = seen->norm;
        e->updates = e->on.early ? e->updates + 1 : seen->steps; /* an early update is never skipped */
        finite = seen->finite;
    } else if (s->last_of_window) {
        r.skipped = 1;
        dp_log(e->config, DP_LOG_WARN, "Batch %lld: no target counted in this window; nothing was updated.",
               (long long)s->index + 1);
    }
    r.updates = e->updates;
    if (!finite || !isfinite(r.loss_sum)) DP_TRY(non_finite(e, s, &r, err));
    if (e->check_every && e->updates >= e->checked + e->check_every) DP_TRY(dp_check_replicas(e, err));
    if (result) *result = r;
    return DP_OK;
}

dp_status dp_engine_wait(dp_engine *e, dp_result *result, dp_error *err)
{
    dp_error why;
    DP_TRY(dp_engine_check(e, "dp_engine_wait", err));
    if (e->submitted == e->waited) return dp_fail(err, DP_EARGUMENT, "Nothing is in flight; call dp_engine_submit first.");
    int64_t wanted = e->first_batch + (int64_t)e->waited;
    dp_status status = dp_wait_once(e, result, &why);
    if (status && dp_recovered(e, &status, wanted, result, &why)) return DP_OK;
    if (status && err) *err = why;
    return status;
}

dp_status dp_engine_step(dp_engine *e, const dp_batch *b, dp_result *r, dp_error *err)
{
    DP_TRY(dp_engine_check(e, "dp_engine_step", err));
    if (e->submitted != e->waited)
        return dp_fail(err, DP_EARGUMENT, "A batch is in flight; call dp_engine_wait before dp_engine_step.");
    DP_TRY(dp_engine_submit(e, b, err));
    return dp_engine_wait(e, r, err);
}
