/* Phases of a worker: where one ends, the next begins. */
#include "group.h"
#include "../base/text.h"
#include <math.h>
#include <string.h>

static int in_line(const dp_worker *w)
{
    return w->group->backend->in_line;
}

static void write_record(dp_timeline *t, dp_record *r)
{
    t->record[t->written++ % DP_RECORDS] = *r;
    r->phase = -1;
}

/* An event at this point of the lane. 0: the ring is full of marks that nobody has read. */
static int leave_mark(dp_worker *w, int lane, uint64_t *mark)
{
    dp_timeline *t = &w->timeline;
    if (t->marks[lane] - t->free[lane] >= DP_MARKS) return 0;
    dp_status status = w->group->backend->record(w->lane_stream[lane], t->event[lane][t->marks[lane] % DP_MARKS]);
    if (status) {
        t->failed = status;
        return 0;
    }
    *mark = t->marks[lane]++;
    return 1;
}

int dp_marks_left(const dp_worker *w, int n)
{
    const dp_timeline *t = &w->timeline;
    return t->marks[w->lane] - t->free[w->lane] + (uint64_t)n <= DP_MARKS;
}

static dp_record begun(const dp_worker *w, int lane, int phase, double now)
{
    const dp_timeline *t = &w->timeline;
    return (dp_record){
        .lane = lane, .phase = phase, .bucket = -1, .job = t->job, .step = t->step, .begin = now, .end = now, .layer = ""};
}

static void begin_in_line(dp_worker *w, int phase, double now)
{
    dp_timeline *t = &w->timeline;
    for (int lane = 0; lane < DP_LANES; lane++) { /* one thread is in one place */
        dp_record *r = &t->current[lane];
        if (r->phase < 0) continue;
        r->end = now;
        write_record(t, r);
    }
    if (phase >= 0) t->current[w->lane] = begun(w, w->lane, phase, now);
}

static void begin_in_stream(dp_worker *w, int lane, int phase, double now)
{
    dp_timeline *t = &w->timeline;
    dp_record *r = &t->current[lane];
    uint64_t mark;
    if (r->phase < 0 && phase < 0) return;
    if (!leave_mark(w, lane, &mark)) return;
    if (r->phase >= 0) {
        r->mark[1] = mark;
        write_record(t, r);
    }
    if (phase < 0) return;
    *r = begun(w, lane, phase, now);
    r->mark[0] = mark;
}

static void range(const dp_worker *w, int level, const char *name, int number)
{
    const dp_backend *b = w->group->backend;
    if (b->range) b->range(w->be, level, name, number);
}

static void publish(dp_worker *w, int phase, double now)
{
    atomic_store_explicit(&w->phase, phase, memory_order_relaxed);
    atomic_store_explicit(&w->since, now, memory_order_relaxed);
    atomic_store_explicit(&w->progress, now, memory_order_relaxed);
}

void dp_phase_begin(dp_worker *w, int phase)
{
    double now = dp_now();
    if (in_line(w))
        begin_in_line(w, phase, now);
    else
        begin_in_stream(w, w->lane, phase, now);
    publish(w, phase, now);
    range(w, DP_RANGE_PHASE, phase < 0 ? NULL : dp_phase_name(phase), -1);
}

void dp_phase_idle(dp_worker *w)
{
    if (in_line(w)) return; /* if the thread has to wait, dp_wait_begins says so */
    double now = dp_now();
    begin_in_stream(w, w->lane, DP_PHASE_IDLE, now);
    publish(w, DP_PHASE_IDLE, now);
    range(w, DP_RANGE_PHASE, NULL, -1);
}

dp_record dp_wait_begins(dp_worker *w, double now)
{
    dp_record before = w->timeline.current[w->lane];
    if (!in_line(w)) return before;
    begin_in_line(w, DP_PHASE_IDLE, now);
    publish(w, DP_PHASE_IDLE, now);
    return before;
}

void dp_wait_ends(dp_worker *w, const dp_record *before, double now)
{
    dp_record *r = &w->timeline.current[w->lane];
    if (!in_line(w)) {
        if (r->phase != before->phase) dp_stream_goes_on(w, before); /* the watchdog looked meanwhile */
        r->waited += now - before->end;
        return;
    }
    begin_in_line(w, before->phase, now);
    if (before->phase >= 0) publish(w, before->phase, now);
    r->bucket = before->bucket, r->layer = before->layer;
}

int dp_stream_waits(dp_worker *w, dp_record *before)
{
    *before = w->timeline.current[w->lane];
    if (in_line(w) || before->phase < 0 || before->phase == DP_PHASE_IDLE) return 0;
    begin_in_stream(w, w->lane, DP_PHASE_IDLE, dp_now());
    return 1;
}

void dp_stream_goes_on(dp_worker *w, const dp_record *before)
{
    dp_record *r = &w->timeline.current[w->lane];
    begin_in_stream(w, w->lane, before->phase, dp_now());
    r->bucket = before->bucket, r->layer = before->layer;
}

/* The first record of a lane whose end has not been reached; NULL: there is none. */
static const dp_record *stands_at(dp_worker *w, int lane)
{
    const dp_timeline *t = &w->timeline;
    const dp_backend *b = w->group->backend;
    uint64_t first = t->written - t->read > DP_RECORDS ? t->written - DP_RECORDS : t->read;
    for (; first < t->written; first++) {
        const dp_record *r = &t->record[first % DP_RECORDS];
        if (r->lane == lane && b->done(t->event[lane][r->mark[1] % DP_MARKS]) != 1) return r;
    }
    return NULL;
}

void dp_timeline_look(dp_worker *w)
{
    const dp_backend *b = w->group->backend;
    double since = INFINITY;
    const char *layer = "";
    int phase = DP_PHASE_IDLE;
    if (in_line(w) || dp_lost(w)) return;
    for (int lane = 0; lane < DP_LANES; lane++) /* the thread launches nothing now: behind this mark the lane is empty */
        if (w->timeline.current[lane].phase >= 0 && w->timeline.current[lane].phase != DP_PHASE_IDLE)
            begin_in_stream(w, lane, DP_PHASE_IDLE, dp_now());
    for (int lane = 0; lane < DP_LANES; lane++) {
        const dp_record *r = stands_at(w, lane);
        dp_be_event *begin = r && r->phase != DP_PHASE_IDLE ? w->timeline.event[lane][r->mark[0] % DP_MARKS] : NULL;
        if (!begin || b->done(begin) != 1 || b->when(begin) >= since) continue;
        since = b->when(begin), phase = r->phase, layer = r->layer;
    }
    atomic_store_explicit(&w->stream_since, since, memory_order_relaxed);
    atomic_store_explicit(&w->stream_layer, layer, memory_order_relaxed);
    atomic_store_explicit(&w->stream_phase, phase, memory_order_relaxed);
}

/* ---- a device that is lost ----
 * Where it was is known from marks that were seen to pass before: the thread asks between jobs and while it waits for one to end, one query a
 * lane. A marker that the device itself stores in host memory would be newer by what passes during one launch of a job, but is a call
 * more for every phase and bucket, and time of the stream it is in. */

void dp_timeline_seen(dp_worker *w)
{
    dp_timeline *t = &w->timeline;
    const dp_backend *b = w->group->backend;
    if (in_line(w) || dp_lost(w)) return;
    for (int lane = 0; lane < DP_LANES; lane++) {
        while (t->seen[lane] < t->marks[lane] && b->done(t->event[lane][t->seen[lane] % DP_MARKS]) == 1) t->seen[lane]++;
    }
}

/* What the last mark that was seen of a lane began; NULL: nothing, or idling. */
static const dp_record *seen_at(const dp_timeline *t, int lane)
{
    const dp_record *r = &t->current[lane];
    uint64_t first = t->written > DP_RECORDS ? t->written - DP_RECORDS : 0, last = t->seen[lane] - 1;
    if (!t->seen[lane]) return NULL;
    for (uint64_t i = t->written; (r->lane != lane || r->phase < 0 || r->mark[0] != last) && i > first; i--)
        r = &t->record[(i - 1) % DP_RECORDS];
    return r->lane == lane && r->phase >= 0 && r->phase != DP_PHASE_IDLE && r->mark[0] == last ? r : NULL;
}

void dp_timeline_lost(dp_worker *w, dp_error *err)
{
    const dp_backend *b = w->group->backend;
    const int exact = in_line(w) || w->group->list.debug_sync;
    dp_error why;
    int n = 0;
    if (b->failure && b->failure(w->be, &why)) {
        char before[sizeof err->text] = "";
        if (exact) dp_format(before, sizeof before, "%s ", err->text);
        dp_format(err->text, sizeof err->text, "%s%s", before, why.text);
    }
    if (exact) return;
    err->layer[0] = 0;
    for (int lane = 0; lane < DP_LANES; lane++) {
        const dp_record *r = seen_at(&w->timeline, lane);
        size_t at = strlen(err->text);
        if (!r) continue;
        dp_format(err->text + at, sizeof err->text - at, "%s%s", n++ ? ", " : " Last seen at work: ", dp_phase_name(r->phase));
        at = strlen(err->text);
        if (r->bucket >= 0) dp_format(err->text + at, sizeof err->text - at, " of bucket %d", r->bucket);
        at = strlen(err->text);
        if (r->step >= 0) dp_format(err->text + at, sizeof err->text - at, " (batch %lld)", (long long)r->step + 1);
        if (n == 1) dp_error_place(err, -1, -1, r->phase, dp_phase_name(r->phase), -1, NULL);
    }
}

void dp_phase_bucket(dp_worker *w, int bucket)
{
    w->timeline.current[w->lane].bucket = bucket;
    range(w, DP_RANGE_BUCKET, "bucket", bucket);
}

void dp_phase_layer(void *worker, const char *layer)
{
    dp_worker *w = worker;
    dp_timeline *t = &w->timeline;
    atomic_store_explicit(&w->layer, layer, memory_order_relaxed);
    if (t->by_layer) {
        dp_phase_begin(w, t->current[w->lane].phase);
        t->current[w->lane].layer = layer;
    } else {
        atomic_store_explicit(&w->progress, dp_now(), memory_order_relaxed);
    }
    range(w, DP_RANGE_LAYER, layer, -1);
}

void dp_lane_enter(dp_worker *w, int lane)
{
    w->lane = lane;
    w->stream = w->lane_stream[lane];
}

void dp_phase_bytes(dp_worker *w, int64_t bytes, int peer)
{
    dp_record *r = &w->timeline.current[w->lane];
    if (peer < 0) {
        r->host_in += bytes;
        return;
    }
    r->received += bytes;
    r->peers |= (uint64_t)1 << peer;
    int64_t sum = atomic_load_explicit(&w->received[peer], memory_order_relaxed) + bytes; /* one writer */
    atomic_store_explicit(&w->received[peer], sum, memory_order_relaxed);
}

void dp_phase_sent(dp_worker *w, int64_t bytes)
{
    w->timeline.current[w->lane].host_out += bytes;
}

dp_status dp_timeline_open(dp_worker *w, dp_error *err)
{
    dp_timeline *t = &w->timeline;
    for (int lane = 0; lane < DP_LANES; lane++)
        for (int i = 0; !in_line(w) && i < DP_MARKS; i++) DP_TRY(w->group->backend->event_open(w->be, &t->event[lane][i], err));
    return DP_OK;
}

void dp_timeline_close(dp_worker *w)
{
    for (int lane = 0; lane < DP_LANES; lane++)
        for (int i = 0; i < DP_MARKS; i++)
            if (w->timeline.event[lane][i]) w->group->backend->event_close(w->timeline.event[lane][i]);
}

void dp_timeline_job(dp_worker *w, uint64_t job)
{
    dp_timeline *t = &w->timeline;
    double now = dp_now();
    if (in_line(w)) begin_in_line(w, -1, now); /* the idling since the last job */
    dp_timeline_seen(w);
    t->job = job;
    t->step = -1;
    dp_lane_enter(w, DP_LANE_COMPUTE);
}

void dp_phases_end(dp_worker *w)
{
    double now = dp_now();
    range(w, DP_RANGE_PHASE, NULL, -1);
    if (in_line(w)) begin_in_line(w, -1, now);
    for (int lane = 0; !in_line(w) && lane < DP_LANES; lane++) begin_in_stream(w, lane, -1, now);
}

dp_status dp_timeline_launched(dp_worker *w, dp_error *err)
{
    dp_timeline *t = &w->timeline;
    dp_phases_end(w);
    dp_lane_enter(w, DP_LANE_COMPUTE);
    if (in_line(w)) begin_in_line(w, DP_PHASE_IDLE, dp_now());
    dp_status status = t->failed;
    t->failed = DP_OK;
    return status ? dp_fail(err, status, "Recording an event failed.") : DP_OK;
}

/* Times of what the job has left; its events have passed. Records of later jobs stand behind them. */
void dp_timeline_ended(dp_worker *w, uint64_t job)
{
    dp_timeline *t = &w->timeline;
    const dp_backend *b = w->group->backend;
    if (t->written - t->read > DP_RECORDS) t->read = t->written - DP_RECORDS;
    for (; t->read < t->written && t->record[t->read % DP_RECORDS].job <= job; t->read++) {
        dp_record *r = &t->record[t->read % DP_RECORDS];
        if (in_line(w) || dp_lost(w)) continue;
        r->begin = b->when(t->event[r->lane][r->mark[0] % DP_MARKS]);
        r->end = b->when(t->event[r->lane][r->mark[1] % DP_MARKS]);
        t->free[r->lane] = r->mark[1] + 1;
        if (t->seen[r->lane] < t->free[r->lane]) t->seen[r->lane] = t->free[r->lane];
    }
    t->mark[job % 8] = t->read;
}
