/* What a run tells: events to the caller, lines to log.jsonl. A line that cannot be written is treated as a save that
 * fails. */
#include "../base/clock.h"
#include "../base/text.h"
#include "trainer.h"
#include <math.h>
#include <string.h>

static void send(dp_trainer *t, int kind, const dp_result *r, const char *text, double rate, int64_t epoch, int64_t batch)
{
    dp_event ev;
    if (!t->fn) return;
    memset(&ev, 0, sizeof ev);
    ev.kind = kind;
    ev.step = t->now.step, ev.steps = t->steps;
    ev.epoch = epoch, ev.epochs = t->epochs;
    ev.batch = batch, ev.batches = t->now.epoch_batches;
    ev.result = r, ev.text = text, ev.samples_per_s = rate;
    if (t->fn(t->user, &ev)) atomic_store(&t->stop, 1);
}

/* The epoch that was trained last, counted from 1: at an epoch's end the position already stands in the next. */
static void place(const dp_trainer *t, int64_t *epoch, int64_t *batch)
{
    int at_end = t->now.batch == 0 && t->now.step > 0;
    *epoch = at_end ? t->now.epoch : t->now.epoch + 1;
    *batch = at_end ? t->now.epoch_batches : t->now.batch;
}

static double rate_of(int64_t samples, double seconds)
{
    return seconds > 0 ? (double)samples / seconds : 0;
}

static double mean_loss(const dp_result *r)
{
    return r->targets ? r->loss_sum / (double)r->targets : 0;
}

static dp_status write_line(dp_trainer *t, dp_error *err)
{
    dp_error why;
    dp_status s = dp_log_write(&t->log, &why);
    if (!s) return DP_OK;
    if (t->save_may_fail) {
        dp_log(t->config, DP_LOG_WARN, "%s", why.text);
        return DP_OK;
    }
    if (err) *err = why;
    return s;
}

/* Seconds by phase since open, and of them those in which a device stood still for another: means over the devices. */
static void phases_of(const dp_trainer *t, dp_phases *p)
{
    dp_device_stats s;
    int n = dp_engine_devices(t->engine);
    memset(p, 0, sizeof *p);
    for (int d = 0; d < n; d++) {
        if (!dp_engine_stats(t->engine, d, &s)) continue;
        for (int i = 0; i < DP_PHASES; i++) p->seconds[i] += s.phase[i] / n;
        p->waited += (s.wait - s.phase[DP_PHASE_IDLE]) / n;
        p->hidden += s.hidden / n;
    }
}

static void add_difference(dp_phases *sum, const dp_phases *now, const dp_phases *then)
{
    for (int i = 0; i < DP_PHASES; i++) sum->seconds[i] += now->seconds[i] - then->seconds[i];
    sum->waited += now->waited - then->waited;
    sum->hidden += now->hidden - then->hidden;
}

static double sum_of(const dp_phases *p)
{
    double sum = 0;
    for (int i = 0; i < DP_PHASES; i++) sum += p->seconds[i];
    return sum;
}

/* What the devices did since the meter's begin, up to the end of the last step that was waited for; returns how long
 * that was: with a batch in flight it is not the time of this thread. Every moment has a phase, so the phases add up to
 * it. What the devices idled while this thread waited for data is called data_wait. */
static double interval(const dp_trainer *t, const dp_meter *m, double now, dp_phases *p)
{
    dp_phases all;
    phases_of(t, &all);
    memset(p, 0, sizeof *p);
    add_difference(p, &all, &m->since);
    double *idle = &p->seconds[DP_PHASE_IDLE], *data = &p->seconds[DP_PHASE_DATA_WAIT];
    if (m->from_rest)
        *idle -= fmax(0, sum_of(p) - (now - m->begin)); /* booked with the first step, but lies before the begin */
    *idle = fmax(0, *idle);
    *data = fmin(*idle, m->data_wait);
    *idle -= *data;
    return sum_of(p);
}

static void reset(dp_trainer *t, dp_meter *m, int from_rest)
{
    memset(m, 0, sizeof *m);
    m->begin = dp_now(), m->from_rest = from_rest;
    phases_of(t, &m->since);
}

void dp_report_meters(dp_trainer *t)
{
    reset(t, &t->line_meter, 1);
    reset(t, &t->epoch_meter, 1);
    t->step_begin = t->line_meter.begin;
}

void dp_report_pause(dp_trainer *t)
{
    t->paused_at = dp_now();
    phases_of(t, &t->paused);
}

void dp_report_go_on(dp_trainer *t)
{
    double seconds = dp_now() - t->paused_at;
    dp_phases now;
    phases_of(t, &now);
    now.seconds[DP_PHASE_IDLE] += seconds - (sum_of(&now) - sum_of(&t->paused)); /* will be booked with the next step */
    t->step_begin += seconds, t->line_meter.begin += seconds, t->epoch_meter.begin += seconds;
    add_difference(&t->line_meter.since, &now, &t->paused);
    add_difference(&t->epoch_meter.since, &now, &t->paused);
}

static void warn_line(dp_trainer *t, const char *text)
{
    if (!t->log.path) return;
    dp_line_begin(&t->log.line, "warn");
    dp_line_int(&t->log.line, "step", t->now.step);
    dp_line_text(&t->log.line, "text", text);
    dp_log_write(&t->log, NULL); /* the warning may be about this very disk */
}

void dp_report_warn(dp_trainer *t, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    dp_vformat(text, sizeof text, fmt, ap);
    va_end(ap);
    dp_log(t->config, DP_LOG_WARN, "%s", text);
    warn_line(t, text);
}

/* ---- hints: each once a run, after enough steps to know ---- */
enum { HINT_DATA = 1, HINT_COMMUNICATION = 2, HINT_STEPS = 10 };

static void hint(dp_trainer *t, const dp_meter *m, const dp_phases *p, double seconds)
{
    const double *s = p->seconds;
    char text[400];
    double compute = s[DP_PHASE_FORWARD] + s[DP_PHASE_LOSS] + s[DP_PHASE_BACKWARD] + s[DP_PHASE_UPDATE];
    double moved = s[DP_PHASE_REPLICATE] + s[DP_PHASE_GATHER] + s[DP_PHASE_SCATTER] + s[DP_PHASE_REDUCE] + s[DP_PHASE_SHARE] -
                   p->waited; /* for a slower device: no fault of the links */
    if (m->steps < HINT_STEPS) return;
    if (!(t->hinted & HINT_DATA) && m->data_wait > 0.2 * seconds) {
        t->hinted |= HINT_DATA;
        dp_report_warn(t, "Waiting for data took %.0f %% of the last %lld steps: raise data.workers or data.prefetch.",
                       100 * m->data_wait / seconds, (long long)m->steps);
    }
    if (!(t->hinted & HINT_COMMUNICATION) && dp_engine_devices(t->engine) > 1 && moved > compute) {
        t->hinted |= HINT_COMMUNICATION;
        dp_format(
            text, sizeof text,
            "Communication took longer than computation in the last %lld steps (%.3f s, %.3f s): a larger data.batch_size or "
            "fewer devices train faster.",
            (long long)m->steps, moved, compute);
        dp_log(t->config, DP_LOG_INFO, "note: %s", text);
        warn_line(t, text);
    }
}

dp_status dp_report_start(dp_trainer *t, dp_error *err)
{
    dp_line *l = &t->log.line;
    dp_layer_info layer;
    dp_tensor_info tensor;
    dp_device_stats s;
    int64_t rows[64], parameters = 0, flops = 0;
    int n = dp_engine_split(t->engine, t->now.batch_size, rows, 64);
    for (int i = 0; dp_graph_layer(t->graph, i, &layer); i++) flops += layer.flops;
    for (int i = 0; dp_graph_tensor(t->graph, i, &tensor); i++) parameters += tensor.is_buffer ? 0 : tensor.count;

    dp_line_begin(l, "start");
    dp_line_text(l, "version", dp_version_text());
    dp_line_int(l, "step", t->now.step);
    dp_line_int(l, "epoch", t->now.epoch + 1);
    dp_line_int(l, "steps", t->steps);
    dp_line_int(l, "steps_per_epoch", t->windows);
    if (t->dir.resume) dp_line_text(l, "resumed_from", t->dir.resume);
    dp_line_text(l, "mode", dp_config_get(t->config, "devices.mode"));
    dp_line_open(l, "devices", '[');
    for (int i = 0; dp_engine_stats(t->engine, i, &s); i++) dp_line_text(l, NULL, s.name);
    dp_line_close(l, ']');
    dp_line_int(l, "batch_size", t->now.batch_size);
    dp_line_int(l, "accumulate", t->now.accumulate);
    dp_line_open(l, "split", '[');
    for (int i = 0; i < n && i < 64; i++) dp_line_int(l, NULL, rows[i]);
    dp_line_close(l, ']');
    dp_line_number(l, "lr", t->schedule.lr);
    dp_line_int(l, "seed", t->now.seed);
    dp_line_int(l, "parameters", parameters);
    dp_line_int(l, "flops_per_sample", flops);
    DP_TRY(write_line(t, err));
    send(t, DP_EVENT_START, NULL, t->start_text, 0, t->now.epoch + 1, t->now.batch);
    return DP_OK;
}

static dp_status step_line(dp_trainer *t, const dp_result *r, int64_t epoch, int64_t batch, double now, dp_error *err)
{
    dp_line *l = &t->log.line;
    dp_meter *m = &t->line_meter;
    dp_phases p;
    double seconds = interval(t, m, now, &p);
    dp_line_begin(l, "step");
    dp_line_int(l, "step", t->now.step);
    dp_line_int(l, "epoch", epoch);
    dp_line_int(l, "batch", batch);
    dp_line_number(l, "loss", mean_loss(r));
    dp_line_number(l, "lr", r->lr);
    dp_line_number(l, "grad_norm", r->grad_norm);
    if (r->skipped) dp_line_int(l, "skipped", r->skipped);
    dp_line_number(l, "samples_per_s", rate_of(m->samples, now - m->begin));
    dp_line_number(l, "seconds", seconds);
    dp_line_number(l, "data_wait_s", m->data_wait);
    dp_line_open(l, "phases", '{');
    for (int i = 0; i < DP_PHASES; i++) dp_line_number(l, dp_phase_name(i), p.seconds[i]);
    dp_line_close(l, '}');
    if (p.hidden > 0) dp_line_number(l, "hidden_s", p.hidden);
    dp_status status = write_line(t, err);
    hint(t, m, &p, seconds);
    reset(t, m, 0);
    return status;
}

dp_status dp_report_step(dp_trainer *t, const dp_result *r, int64_t epoch, int64_t batch, dp_error *err)
{
    double now = dp_now(), rate = rate_of(r->samples, now - t->step_begin);
    t->line_meter.samples += r->samples, t->line_meter.data_wait += r->data_wait, t->line_meter.steps++;
    t->epoch_meter.samples += r->samples, t->epoch_meter.data_wait += r->data_wait, t->epoch_meter.steps++;
    t->run_samples += r->samples;
    t->step_begin = now;
    if (t->log_every > 0 && (t->now.step % t->log_every == 0 || t->now.step == t->steps))
        DP_TRY(step_line(t, r, epoch, batch, now, err));
    if (r->skipped) /* the engine has told the log callback */
        warn_line(t, r->targets ? "The update was skipped: loss or gradient is not finite."
                                : "The update was skipped: no target counts.");
    send(t, DP_EVENT_STEP, r, "", rate, epoch, batch);
    return DP_OK;
}

void dp_report_epoch(dp_trainer *t)
{
    dp_progress *p = &t->now;
    dp_result sum;
    int64_t epoch, batch;
    place(t, &epoch, &batch);
    memset(&sum, 0, sizeof sum);
    sum.step = p->step, sum.updates = p->updates;
    sum.samples = p->epoch_samples, sum.targets = p->epoch_targets, sum.correct = p->epoch_correct,
    sum.loss_sum = p->epoch_loss;
    sum.seconds = dp_now() - t->epoch_meter.begin;
    sum.data_wait = t->epoch_meter.data_wait;
    dp_phases phases;
    double seconds = interval(t, &t->epoch_meter, dp_now(), &phases);
    hint(t, &t->epoch_meter, &phases, seconds);
    send(t, DP_EVENT_EPOCH, &sum, "", rate_of(t->epoch_meter.samples, sum.seconds), epoch, batch);
    p->epoch_samples = p->epoch_targets = p->epoch_correct = 0, p->epoch_loss = 0;
    t->epoch_open = 0;
    dp_report_meters(t);
}

dp_status dp_report_eval(dp_trainer *t, const dp_result *r, double seconds, dp_error *err)
{
    dp_line *l = &t->log.line;
    int64_t epoch, batch;
    place(t, &epoch, &batch);
    dp_line_begin(l, "eval");
    dp_line_int(l, "step", t->now.step);
    dp_line_int(l, "epoch", epoch);
    dp_line_number(l, "loss", mean_loss(r));
    if (t->info.classes > 0) dp_line_number(l, "accuracy", r->targets ? (double)r->correct / (double)r->targets : 0);
    dp_line_int(l, "samples", r->samples);
    DP_TRY(write_line(t, err));
    send(t, DP_EVENT_EVAL, r, "", rate_of(r->samples, seconds), epoch, batch);
    return DP_OK;
}

dp_status dp_report_save(dp_trainer *t, const char *path, dp_error *err)
{
    dp_line *l = &t->log.line;
    int64_t epoch, batch;
    place(t, &epoch, &batch);
    dp_line_begin(l, "save");
    dp_line_int(l, "step", t->now.step);
    dp_line_text(l, "path", path);
    DP_TRY(write_line(t, err));
    send(t, DP_EVENT_SAVE, NULL, path, 0, epoch, batch);
    return DP_OK;
}

static void device_object(dp_line *l, const dp_device_stats *s)
{
    dp_line_open(l, NULL, '{');
    dp_line_text(l, "name", s->name);
    dp_line_number(l, "busy_s", s->busy);
    dp_line_number(l, "wait_s", s->wait);
    dp_line_number(l, "hidden_s", s->hidden);
    dp_line_open(l, "peak_bytes", '{');
    for (int i = 0; i < DP_MEM_CLASSES; i++) dp_line_int(l, dp_memory_class_name(i), s->peak[i]);
    dp_line_close(l, '}');
    dp_line_int(l, "bytes_in", s->bytes_in + s->host_in);
    dp_line_int(l, "bytes_out", s->bytes_out + s->host_out);
    dp_line_close(l, '}');
}

dp_status dp_report_end(dp_trainer *t, const char *reason, dp_error *err)
{
    dp_line *l = &t->log.line;
    dp_device_stats s;
    int64_t epoch, batch;
    double seconds = dp_now() - t->run_begin;
    place(t, &epoch, &batch);
    dp_line_begin(l, "end");
    dp_line_text(l, "reason", reason);
    dp_line_int(l, "step", t->now.step);
    dp_line_number(l, "seconds", seconds);
    dp_line_number(l, "samples_per_s", rate_of(t->run_samples, seconds));
    dp_line_open(l, "devices", '[');
    for (int i = 0; dp_engine_stats(t->engine, i, &s); i++) device_object(l, &s);
    dp_line_close(l, ']');
    dp_status code = write_line(t, err);
    send(t, DP_EVENT_END, NULL, reason, rate_of(t->run_samples, seconds), epoch, batch);
    return code;
}
