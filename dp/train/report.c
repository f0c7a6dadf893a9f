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

static void phases_of(const dp_trainer *t, double *phase)
{
    dp_device_stats s;
    int n = dp_engine_devices(t->engine);
    memset(phase, 0, sizeof *phase * DP_PHASES);
    for (int d = 0; d < n; d++)
        if (dp_engine_stats(t->engine, d, &s))
            for (int i = 0; i < DP_PHASES; i++) phase[i] += s.phase[i] / n;
}

static void reset(dp_trainer *t, dp_meter *m, int with_phases)
{
    memset(m, 0, sizeof *m);
    m->begin = dp_now();
    if (with_phases) phases_of(t, m->phase);
}

void dp_report_meters(dp_trainer *t)
{
    reset(t, &t->step_meter, 0);
    reset(t, &t->line_meter, 1);
    reset(t, &t->epoch_meter, 0);
}

void dp_report_pause(dp_trainer *t, double seconds)
{
    t->step_meter.begin += seconds, t->line_meter.begin += seconds, t->epoch_meter.begin += seconds;
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
    double phase[DP_PHASES];
    phases_of(t, phase);
    dp_line_begin(l, "step");
    dp_line_int(l, "step", t->now.step);
    dp_line_int(l, "epoch", epoch);
    dp_line_int(l, "batch", batch);
    dp_line_number(l, "loss", mean_loss(r));
    dp_line_number(l, "lr", r->lr);
    dp_line_number(l, "grad_norm", r->grad_norm);
    if (r->skipped) dp_line_int(l, "skipped", r->skipped);
    dp_line_number(l, "samples_per_s", rate_of(m->samples, now - m->begin));
    dp_line_number(l, "data_wait_s", m->data_wait);
    dp_line_open(l, "phases", '{');
    for (int i = 0; i < DP_PHASES; i++) /* the trainer's own wait for data stands in data_wait_s */
        if (i != DP_PHASE_DATA_WAIT) dp_line_number(l, dp_phase_name(i), phase[i] - m->phase[i]);
    dp_line_close(l, '}');
    reset(t, m, 0);
    memcpy(m->phase, phase, sizeof phase);
    return write_line(t, err);
}

dp_status dp_report_step(dp_trainer *t, const dp_result *r, int64_t epoch, int64_t batch, dp_error *err)
{
    double now = dp_now(), rate = rate_of(r->samples, now - t->step_meter.begin);
    t->line_meter.samples += r->samples, t->line_meter.data_wait += r->data_wait;
    t->epoch_meter.samples += r->samples, t->epoch_meter.data_wait += r->data_wait;
    t->run_samples += r->samples;
    t->step_meter.begin = now;
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
    if (!t->hinted && sum.data_wait > 0.2 * sum.seconds) {
        dp_report_warn(t, "The devices waited for data %.0f %% of epoch %lld: raise data.workers or data.prefetch.",
                       100 * sum.data_wait / sum.seconds, (long long)epoch);
        t->hinted = 1;
    }
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
