/* trace.json: what every device did when, in the Chrome trace format that ui.perfetto.dev and chrome://tracing open. A
 * device is a process, each of its lanes a thread; arrows show who read whose memory. During the steps spans are only
 * copied to memory, so that watching does not change what is watched; the file is written after the first
 * DP_TRACE_BATCHES batches, or at the run's end. */
#include "trace.h"
#include "../base/clock.h"
#include "../base/file.h"
#include "../base/text.h"
#include "trainer.h"
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 16 }; /* bytes that go to the file at once */

static void keep_span(void *user, const dp_span *s)
{
    dp_trace *t = user;
    if (t->n == t->room) {
        int64_t room = t->room ? 2 * t->room : 1024;
        dp_span *more = realloc(t->span, (size_t)room * sizeof *more);
        if (!more) {
            t->lost = 1;
            return;
        }
        t->span = more, t->room = room;
    }
    t->span[t->n++] = *s;
}

/* ---- the file ---- */

typedef struct writer {
    dp_file_out *file;
    dp_line line; /* a piece of the file: objects with ",\n" between */
    dp_status status;
    dp_error *err;
    int first;
    const dp_span **by_device[DP_TRACE_DEVICES]; /* in order of begin */
    int64_t count[DP_TRACE_DEVICES];
    int64_t arrows;
} writer;

static void flush(writer *w, int all)
{
    if (w->status || (!all && w->line.size < PIECE)) return;
    if (w->line.failed)
        w->status = dp_fail(w->err, DP_ENOMEM, "Out of memory while writing trace.json.");
    else
        w->status = dp_file_write(w->file, w->line.text, w->line.size, w->err);
    w->line.size = 0;
}

static dp_line *event(writer *w, const char *kind, const char *name, int device, int lane)
{
    dp_line *l = &w->line;
    flush(w, 0);
    dp_line_raw(l, w->first ? "\n" : ",\n");
    w->first = 0, l->comma = 0;
    dp_line_open(l, NULL, '{');
    dp_line_text(l, "name", name);
    dp_line_text(l, "ph", kind);
    dp_line_int(l, "pid", device);
    dp_line_int(l, "tid", lane);
    return l;
}

static void name_of(writer *w, const char *what, int device, int lane, const char *name)
{
    dp_line *l = event(w, "M", what, device, lane);
    dp_line_open(l, "args", '{');
    dp_line_text(l, "name", name);
    dp_line_close(l, '}');
    dp_line_close(l, '}');
}

/* The span of a device that was running, or had just ended, at a time: what it did then is what was read. */
static const dp_span *at(const writer *w, int device, double time)
{
    int64_t low = 0, high = w->count[device];
    while (low < high) {
        int64_t mid = (low + high) / 2;
        if (w->by_device[device][mid]->begin <= time)
            low = mid + 1;
        else
            high = mid;
    }
    return low ? w->by_device[device][low - 1] : NULL;
}

static void arrow(writer *w, const char *kind, double time, int device, int lane)
{
    dp_line *l = event(w, kind, "copy", device, lane);
    dp_line_text(l, "cat", "copy");
    if (*kind == 'f') dp_line_text(l, "bp", "e");
    dp_line_int(l, "id", w->arrows);
    dp_line_fixed(l, "ts", 1e6 * time);
    dp_line_close(l, '}');
}

static void arrows_to(writer *w, const dp_span *s)
{
    double ready = s->begin + s->waited; /* it waits first, then it reads */
    for (int d = 0; d < DP_TRACE_DEVICES; d++) {
        if (!(s->peers >> d & 1)) continue;
        const dp_span *from = at(w, d, ready);
        if (!from) continue;
        w->arrows++;
        arrow(w, "s", from->end < ready ? from->end : ready, d, from->lane);
        arrow(w, "f", ready, s->device, s->lane);
    }
}

static void write_span(writer *w, const dp_span *s)
{
    char name[80];
    if (s->phase == DP_PHASE_IDLE) return; /* a gap says it */
    dp_format(name, sizeof name, s->layer[0] ? "%s %s" : "%s%s", dp_phase_name(s->phase), s->layer);
    dp_line *l = event(w, "X", name, s->device, s->lane);
    dp_line_text(l, "cat", dp_phase_name(s->phase));
    dp_line_fixed(l, "ts", 1e6 * s->begin);
    dp_line_fixed(l, "dur", 1e6 * (s->end - s->begin));
    dp_line_open(l, "args", '{');
    if (s->step >= 0) dp_line_int(l, "step", s->step);
    if (s->bucket >= 0) dp_line_int(l, "bucket", s->bucket);
    if (s->layer[0]) dp_line_text(l, "layer", s->layer);
    if (s->bytes_in) dp_line_int(l, "bytes", s->bytes_in);
    if (s->host_in) dp_line_int(l, "bytes_from_host", s->host_in);
    if (s->host_out) dp_line_int(l, "bytes_to_host", s->host_out);
    if (s->waited > 0) dp_line_fixed(l, "waited_us", 1e6 * s->waited);
    dp_line_close(l, '}');
    dp_line_close(l, '}');
    arrows_to(w, s);
}

static int by_begin(const void *a, const void *b)
{
    const dp_span *const *x = a, *const *y = b;
    return ((*x)->begin > (*y)->begin) - ((*x)->begin < (*y)->begin);
}

static void sort_spans(writer *w, const dp_trace *t, int devices, const dp_span **place)
{
    for (int64_t i = 0; i < t->n; i++)
        if (t->span[i].phase != DP_PHASE_IDLE) w->count[t->span[i].device]++;
    for (int d = 0; d < devices; d++) w->by_device[d] = place, place += w->count[d], w->count[d] = 0;
    for (int64_t i = 0; i < t->n; i++) {
        int d = t->span[i].device;
        if (t->span[i].phase != DP_PHASE_IDLE) w->by_device[d][w->count[d]++] = &t->span[i];
    }
    for (int d = 0; d < devices; d++) qsort(w->by_device[d], (size_t)w->count[d], sizeof *place, by_begin);
}

static dp_status write_file(dp_trainer *t, dp_error *err)
{
    static const char *const lanes[DP_LANES] = {"compute", "reduce", "share"};
    dp_trace *tr = &t->trace;
    writer w = {.err = err, .first = 1};
    int devices = dp_engine_devices(t->engine);
    char *path = dp_rundir_file(t->dir.path, "trace.json"), name[64];
    const dp_span **place = malloc((size_t)(tr->n + 1) * sizeof *place);
    if (!path || !place || tr->lost) {
        w.status = dp_fail(err, DP_ENOMEM, "Out of memory for trace.json; run.trace = off trains without it.");
        goto done;
    }
    sort_spans(&w, tr, devices, place);
    if ((w.status = dp_file_create(&w.file, path, err))) goto done;
    dp_line_raw(&w.line, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (int d = 0; d < devices; d++) {
        dp_device_stats s;
        dp_engine_stats(t->engine, d, &s);
        dp_format(name, sizeof name, "%s%s", s.name, d ? "" : " (master)");
        name_of(&w, "process_name", d, 0, name);
        for (int lane = 0; lane < DP_LANES; lane++) name_of(&w, "thread_name", d, lane, lanes[lane]);
    }
    for (int d = 0; d < devices; d++)
        for (int64_t i = 0; i < w.count[d]; i++) write_span(&w, w.by_device[d][i]);
    dp_line_raw(&w.line, "\n]}\n");
    flush(&w, 1);
    if (!w.status) w.status = dp_file_commit(&w.file, err);
done:
    dp_file_discard(&w.file);
    dp_line_free(&w.line);
    free(place);
    free(path);
    return w.status;
}

/* ---- when ---- */

void dp_trace_begin(dp_trainer *t)
{
    dp_trace *tr = &t->trace;
    free(tr->span);
    memset(tr, 0, sizeof *tr);
    tr->on = dp_config_choice(t->config, "run.trace") > 0;
}

void dp_trace_batch(dp_trainer *t)
{
    dp_trace *tr = &t->trace;
    if (!tr->on) return;
    dp_engine_trace(t->engine, keep_span, tr, NULL);
    if (++tr->batches == DP_TRACE_BATCHES) dp_trace_end(t);
}

/* A trace that cannot be written is no reason to lose the run. */
void dp_trace_end(dp_trainer *t)
{
    dp_trace *tr = &t->trace;
    dp_error why;
    if (!tr->on) return;
    tr->on = 0;
    dp_report_pause(t);
    if (write_file(t, &why)) dp_report_warn(t, "%s", why.text);
    dp_report_go_on(t);
}

dp_status dp_trainer_trace(dp_trainer *t, dp_span_fn fn, void *user, dp_error *err)
{
    if (!t || !fn) return dp_fail(err, DP_EARGUMENT, "dp_trainer_trace wants a trainer and a function.");
    for (int64_t i = 0; i < t->trace.n; i++) fn(user, &t->trace.span[i]);
    return dp_engine_trace(t->engine, fn, user, err);
}
