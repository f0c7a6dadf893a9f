/* The training loop. It runs in stretches: between two steps at which something must happen with nothing in flight (an
 * evaluation, a save, an epoch's end, the end, a stop) it keeps two batches in flight; at such a step it pauses and does
 * what is due. All of that is a function of the step number, so that a resumed run does the same things at the same
 * steps. */
#include "trainer.h"
#include "../base/clock.h"
#include "../base/file.h"
#include "../base/text.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int stopping(const dp_trainer *t)
{
    return atomic_load(&t->stop);
}

/* ---- evaluation ---- */
dp_status dp_trainer_eval(dp_trainer *t, dp_result *r, dp_error *err)
{
    if (!t || !r) return dp_fail(err, DP_EARGUMENT, "dp_trainer_eval: trainer or result is NULL.");
    if (!t->eval_loader)
        return dp_fail(err, DP_ECONFIG, "There is no evaluation set: set data.eval = PATH or data.eval = last 10%%.");
    memset(r, 0, sizeof *r);
    for (;;) {
        dp_batch b;
        DP_TRY(dp_loader_next(t->eval_loader, &b, err));
        if (b.x.n == 0) return DP_OK;
        dp_status s = stopping(t) ? dp_fail(err, DP_ESTOPPED, "Stopped during the evaluation.")
                                  : dp_engine_eval(t->engine, &b, r, err);
        dp_loader_release(t->eval_loader, &b);
        if (s == DP_ESTOPPED) DP_TRY(dp_loader_seek(t->eval_loader, 0, 0, err));
        DP_TRY(s);
    }
}

/* More hits are better; the lower loss decides between equals, and alone where hits say little: numbers, tokens. */
static int is_better(const dp_trainer *t, const dp_result *r)
{
    const dp_progress *p = &t->now;
    double loss = r->targets ? r->loss_sum / (double)r->targets : INFINITY;
    if (!isfinite(loss)) return 0;
    if (p->best_step < 0) return 1;
    if (t->info.classes > 0 && t->info.y_width == 1) {
        double is = (double)r->correct / (double)r->targets, was = (double)p->best_correct / (double)p->best_targets;
        if (is < was || is > was) return is > was;
    }
    return loss < p->best_loss;
}

/* on_save_error = warn: the run goes on, the next interval tries again. */
static dp_status save_failed(dp_trainer *t, dp_status s, const dp_error *why, dp_error *err)
{
    if (t->save_may_fail && (s == DP_EIO || s == DP_ENOSPACE)) {
        dp_report_warn(t, "Not saved at step %lld: %s", (long long)t->now.step, why->text);
        return DP_OK;
    }
    if (err) *err = *why;
    return s;
}

static dp_status evaluate(dp_trainer *t, dp_error *err)
{
    dp_result r;
    dp_error why;
    double begin = dp_now();
    dp_report_pause(t);
    dp_status s = dp_trainer_eval(t, &r, err);
    dp_report_go_on(t);
    if (s == DP_ESTOPPED) return DP_OK; /* the resumed run evaluates */
    DP_TRY(s);
    t->now.eval_step = t->now.step;
    DP_TRY(dp_report_eval(t, &r, dp_now() - begin, err));
    if (!is_better(t, &r)) return DP_OK;
    t->now.best_step = t->now.step, t->now.best_correct = r.correct, t->now.best_targets = r.targets;
    t->now.best_loss = r.loss_sum / (double)r.targets;
    dp_report_pause(t);
    s = dp_checkpoint_weights(t->engine, t->dir.path, "best.safetensors", &t->now, &t->facts, &why);
    dp_report_go_on(t);
    return s ? save_failed(t, s, &why, err) : DP_OK;
}

static dp_status save(dp_trainer *t, dp_error *err)
{
    dp_error why;
    char *path = NULL;
    dp_report_pause(t);
    dp_status s = dp_checkpoint_save(t->engine, t->dir.path, &t->now, &t->facts, t->keep, &path, &why);
    dp_report_go_on(t);
    if (s) return save_failed(t, s, &why, err);
    t->saved_step = t->now.step;
    s = dp_report_save(t, path, err);
    free(path);
    return s;
}

/* ---- when ---- */
static int64_t in_steps(const dp_trainer *t, const dp_rhythm *r)
{
    return r->epochs ? r->every * t->windows : r->every;
}

static int due(const dp_trainer *t, const dp_rhythm *r)
{
    int64_t n = in_steps(t, r);
    return n > 0 && t->now.step > 0 && t->now.step % n == 0;
}

/* The next step, after now, at which the run pauses. */
static int64_t next_pause(const dp_trainer *t)
{
    int64_t each[3], next = t->steps;
    each[0] = t->windows, each[1] = in_steps(t, &t->save_every), each[2] = t->eval_loader ? in_steps(t, &t->eval_every) : 0;
    for (int i = 0; i < 3; i++) {
        int64_t at = each[i] > 0 ? (t->now.step / each[i] + 1) * each[i] : next;
        if (at < next) next = at;
    }
    return next;
}

/* Nothing is in flight: evaluate, close the epoch, save. */
static dp_status pause_here(dp_trainer *t, dp_error *err)
{
    int last = t->now.step >= t->steps;
    if (t->eval_loader && t->now.eval_step != t->now.step && !stopping(t) && (last || due(t, &t->eval_every)))
        DP_TRY(evaluate(t, err));
    if (t->epoch_open && t->now.batch == 0) dp_report_epoch(t);
    if (t->saved_step != t->now.step && (last || stopping(t) || due(t, &t->save_every))) DP_TRY(save(t, err));
    return DP_OK;
}

/* ---- a stretch ---- */
typedef struct flight { /* batches submitted and not waited for; the oldest first */
    dp_batch batch[2];
    double data_wait[2];
    int n, closing; /* closing: how many of them end a window */
} flight;

static dp_status fetch(dp_trainer *t, dp_batch *b, dp_error *err)
{
    DP_TRY(dp_loader_next(t->train_loader, b, err));
    if (b->x.n == 0) DP_TRY(dp_loader_next(t->train_loader, b, err)); /* the end of the epoch before */
    return b->x.n ? DP_OK
                  : dp_fail(err, DP_EDATA, "The training set gave no batch for epoch %lld.", (long long)t->now.epoch + 1);
}

static void add_result(dp_result *sum, const dp_result *r)
{
    sum->samples += r->samples, sum->targets += r->targets, sum->correct += r->correct, sum->loss_sum += r->loss_sum;
    sum->seconds += r->seconds, sum->data_wait += r->data_wait, sum->dropped += r->dropped;
    sum->step = r->step, sum->updates = r->updates, sum->grad_norm = r->grad_norm, sum->lr = r->lr, sum->skipped = r->skipped;
}

/* The engine went on without a device: the others have new numbers. */
static void fewer_devices(dp_trainer *t)
{
    t->now.devices = dp_engine_devices(t->engine);
    t->trace.n = 0;
    dp_report_meters(t);
    dp_report_warn(t, "From step %lld on the run goes on with %lld device%s.", (long long)t->now.step,
                   (long long)t->now.devices, t->now.devices == 1 ? "" : "s");
}

/* Ends the oldest batch and books it. */
static dp_status collect(dp_trainer *t, flight *f, dp_error *err)
{
    dp_progress *p = &t->now;
    dp_batch b = f->batch[0];
    dp_result r;
    DP_TRY(dp_engine_wait(t->engine, &r, err));
    if (dp_engine_devices(t->engine) != p->devices) fewer_devices(t);
    dp_trace_batch(t);
    r.data_wait = f->data_wait[0];
    dp_loader_release(t->train_loader, &b);
    f->n--, f->closing -= b.last_of_window;
    f->batch[0] = f->batch[1], f->data_wait[0] = f->data_wait[1];

    int64_t epoch = p->epoch + 1, batch = p->batch + 1;
    if (batch == p->epoch_batches)
        p->epoch++, p->batch = 0;
    else
        p->batch++;
    p->samples += r.samples;
    if (isfinite(r.loss_sum)) { /* with on_nan = warn one bad batch must not hide the epoch's loss */
        p->epoch_samples += r.samples, p->epoch_targets += r.targets, p->epoch_correct += r.correct;
        p->epoch_loss += r.loss_sum;
    }
    t->epoch_open = 1;
    add_result(&t->window, &r);
    if (!b.last_of_window) return DP_OK;
    dp_result window = t->window;
    memset(&t->window, 0, sizeof t->window);
    p->step++, p->updates = r.updates;
    if (dp_engine_snapshot(t->engine) == r.step + 1) t->snapshot = *p;
    return dp_report_step(t, &window, epoch, batch, err);
}

static dp_status stretch(dp_trainer *t, int64_t until, dp_error *err)
{
    flight f;
    dp_status s = DP_OK;
    int in_window = 0; /* a window once begun is finished, so that the state has no half gradient in it */
    memset(&f, 0, sizeof f);
    for (;;) {
        dp_batch b;
        while (!s && (f.n == 2 || (t->one_in_flight && f.closing))) s = collect(t, &f, err);
        if (s || t->now.step + f.closing >= until || (stopping(t) && !in_window)) break;
        double begin = dp_now();
        if ((s = fetch(t, &b, err))) break;
        double waited = dp_now() - begin;
        if (b.last_of_window) s = dp_engine_set_lr(t->engine, dp_schedule_lr(&t->schedule, t->now.updates + f.closing + 1));
        if (!s) s = dp_engine_submit(t->engine, &b, err);
        if (s) {
            dp_loader_release(t->train_loader, &b);
            break;
        }
        f.batch[f.n] = b, f.data_wait[f.n] = waited;
        f.n++, f.closing += b.last_of_window;
        in_window = !b.last_of_window;
    }
    while (!s && f.n) s = collect(t, &f, err);
    for (int i = 0; i < f.n; i++) { /* after a failure: the devices must be done with a batch before its slot is filled again */
        dp_result ignored;
        dp_engine_wait(t->engine, &ignored, NULL);
        dp_loader_release(t->train_loader, &f.batch[i]);
    }
    return s;
}

/* ---- the run ---- */
static dp_status write_config(dp_trainer *t, dp_error *err)
{
    dp_file_out *f = NULL;
    char *path = dp_rundir_file(t->dir.path, "config.ini"), *text = dp_config_dump(t->config);
    dp_status s = path && text ? DP_OK : dp_fail(err, DP_ENOMEM, "Out of memory while writing config.ini.");
    if (!s) s = dp_file_create(&f, path, err);
    if (!s) s = dp_file_write(f, text, strlen(text), err);
    if (!s) s = dp_file_commit(&f, err);
    dp_file_discard(&f);
    free(path);
    free(text);
    return s;
}

static dp_status begin(dp_trainer *t, dp_error *err)
{
    DP_TRY(dp_rundir_enter(&t->dir, err));
    DP_TRY(write_config(t, err));
    char *path = dp_rundir_file(t->dir.path, "log.jsonl");
    dp_status s = path ? dp_log_open(&t->log, path, t->dir.resuming, err)
                       : dp_fail(err, DP_ENOMEM, "Out of memory while opening the log.");
    free(path);
    DP_TRY(s);
    if (dp_engine_snapshot(t->engine) < 0) t->snapshot = t->now;
    t->run_begin = dp_now();
    dp_setup_notes(t);
    DP_TRY(dp_report_start(t, err));
    dp_report_meters(t);
    dp_trace_begin(t);
    return DP_OK;
}

dp_status dp_trainer_run(dp_trainer *t, dp_error *err)
{
    dp_error why;
    char reason[900] = "done";
    if (!t) return dp_fail(err, DP_EARGUMENT, "dp_trainer_run: trainer is NULL.");
    dp_status s = begin(t, &why);
    while (!s) {
        s = pause_here(t, &why);
        if (s || stopping(t) || t->now.step >= t->steps) break;
        s = stretch(t, next_pause(t), &why);
    }
    if (!s && stopping(t) && (t->now.step < t->steps || (t->eval_loader && t->now.eval_step != t->now.step)))
        s = dp_fail(&why, DP_ESTOPPED, "Stopped at step %lld of %lld%s.", (long long)t->now.step, (long long)t->steps,
                    t->saved_step == t->now.step ? ", state saved" : "");
    if (s) {
        dp_error_place(&why, -1, -1, -1, NULL, why.step < 0 ? t->now.step : -1, NULL);
        dp_format(reason, sizeof reason, "%s", why.text);
        if (err) *err = why;
    }
    dp_trace_end(t);
    if (t->log.path) {
        dp_status end = dp_report_end(t, reason, &why);
        if (!s && end) {
            if (err) *err = why;
            s = end;
        }
    }
    dp_log_close(&t->log);
    dp_rundir_leave(&t->dir);
    atomic_store(&t->stop, 0);
    return s;
}

/* ---- life ---- */
dp_status dp_trainer_open(dp_trainer **out, const dp_graph *g, dp_data *train, dp_data *eval, const dp_config *c,
                          dp_event_fn fn, void *user, dp_error *err)
{
    dp_status s;
    dp_trainer *t = NULL;
    if (!out || !c) return dp_fail(err, DP_EARGUMENT, "dp_trainer_open: trainer or config is NULL.");
    *out = NULL;
    if (eval && !train) return dp_fail(err, DP_EARGUMENT, "dp_trainer_open: an evaluation set without a training set.");
    DP_TRY(dp_config_ok(c, err));
    t = calloc(1, sizeof *t);
    if (!t || !(t->config = dp_config_copy(c))) {
        s = dp_fail(err, DP_ENOMEM, "Out of memory while opening the trainer.");
        goto fail;
    }
    t->fn = fn, t->user = user;
    atomic_init(&t->stop, 0);
    if ((s = dp_rundir_choose(&t->dir, c, err))) goto fail;
    if ((s = dp_setup_data(t, g, train, eval, err))) goto fail;
    if ((s = dp_setup_engine(t, err))) goto fail;
    if ((s = dp_setup_weights(t, err))) goto fail;
    *out = t;
    return DP_OK;
fail:
    dp_trainer_close(t, NULL);
    return s;
}

void dp_trainer_stop(dp_trainer *t)
{
    if (t) atomic_store(&t->stop, 1); /* lock-free: safe in a signal handler */
}

dp_engine *dp_trainer_engine(dp_trainer *t)
{
    return t ? t->engine : NULL;
}

const dp_graph *dp_trainer_graph(const dp_trainer *t)
{
    return t ? t->graph : NULL;
}

const char *dp_trainer_dir(const dp_trainer *t)
{
    return t ? t->dir.path : "";
}

dp_status dp_trainer_close(dp_trainer *t, dp_error *err)
{
    if (!t) return DP_OK;
    dp_log_close(&t->log);
    dp_rundir_free(&t->dir);
    dp_loader_close(t->train_loader);
    dp_loader_close(t->eval_loader);
    dp_status s = dp_engine_close(t->engine, err); /* after the loaders: their slots are the engine's memory */
    dp_data_close(t->own_train);
    dp_data_close(t->own_eval);
    dp_graph_free(t->own_graph);
    dp_config_free(t->config);
    free(t->trace.span);
    free(t);
    return s;
}
