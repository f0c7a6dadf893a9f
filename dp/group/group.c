/* Workers, jobs and waits. Waiting: spin for a moment when every thread has a core, then park on one condition variable. Whoever
 * raises a counter looks whether somebody is parked; both sides use sequentially consistent order, so that either the waiter sees
 * the counter or the raiser sees the waiter. */
#include "links.h"
#include "../base/config.h"
#include "../base/text.h"
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- waiting ---- */

static void wake(dp_group *g, int room)
{
    if (!atomic_load(&g->room[room].parked)) return;
    pthread_mutex_lock(&g->lock);
    pthread_cond_broadcast(&g->room[room].moved);
    pthread_mutex_unlock(&g->lock);
}

void dp_raise(dp_group *g, _Atomic uint64_t *counter, uint64_t value)
{
    atomic_store(counter, value);
    wake(g, DP_ROOM_WORKERS);
}

static void wake_all(dp_group *g) /* under the lock */
{
    for (int i = 0; i < 2; i++) pthread_cond_broadcast(&g->room[i].moved);
}

static int abort_group(dp_group *g) /* 1: nobody had before */
{
    pthread_mutex_lock(&g->lock);
    int first = !atomic_exchange(&g->aborted, 1);
    wake_all(g);
    pthread_mutex_unlock(&g->lock);
    return first;
}

typedef struct wish { /* what a wait is for: a counter, or whatever `ready` says */
    const _Atomic uint64_t *counter;
    uint64_t value;
    int (*ready)(void *);
    void *arg;
} wish;

static int granted(const wish *x)
{
    return x->ready ? x->ready(x->arg) : atomic_load(x->counter) >= x->value;
}

/* Parks for at most `limit` seconds; returns at once when the wish is granted, the group stops or, unless idle, was aborted. */
static void park(dp_group *g, int room, const wish *x, double limit, int idle)
{
    dp_room *r = &g->room[room];
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double whole = floor(limit);
    t.tv_sec += (time_t)whole;
    t.tv_nsec += (long)((limit - whole) * 1e9);
    if (t.tv_nsec >= 1000000000L) t.tv_sec++, t.tv_nsec -= 1000000000L;
    pthread_mutex_lock(&g->lock);
    atomic_fetch_add(&r->parked, 1);
    if (!granted(x) && (idle || !atomic_load(&g->aborted)) && !atomic_load(&g->stopping))
        pthread_cond_timedwait(&r->moved, &g->lock, &t);
    atomic_fetch_sub(&r->parked, 1);
    pthread_mutex_unlock(&g->lock);
}

static double last_progress(const dp_group *g)
{
    double last = 0;
    for (int d = 0; d < g->n; d++) {
        double at = atomic_load_explicit(&g->worker[d].progress, memory_order_relaxed);
        if (at > last) last = at;
    }
    return last;
}

/* Long enough that it may become a time-out. */
static int is_quiet(const dp_group *g)
{
    return dp_now() - last_progress(g) > g->list.timeout_s / 4;
}

typedef struct place { /* where a device is: its thread, or when that has launched all, its streams */
    int phase, stands; /* stands: 2 in a call, 1 in work of its own, 0 waits for others or has nothing to do */
    double since;
    const char *layer;
} place;

static place place_of(dp_worker *w)
{
    int launching = atomic_load(&w->launching), streams = atomic_load(&w->stream_phase);
    place p = {.phase = atomic_load(&w->phase), .since = atomic_load(&w->since), .layer = atomic_load(&w->layer)};
    if (launching && !atomic_load(&w->waits)) {
        p.stands = 2;
    } else if (streams != DP_PHASE_IDLE) {
        p = (place){streams, 1, atomic_load(&w->stream_since), atomic_load(&w->stream_layer)};
    } else {
        p.phase = DP_PHASE_IDLE;
    }
    return p;
}

/* Who is where, and for how long (P40). The one to blame stands in a call, or in work of its own; the longest. */
static void timed_out(dp_group *g, const char *what, dp_error *err)
{
    char list[512] = "";
    int slow = -1;
    double now = dp_now();
    place worst = {.stands = 0};
    for (int d = 0; d < g->n; d++) {
        place p = place_of(&g->worker[d]);
        size_t at = strlen(list);
        int named = p.stands && *p.layer;
        dp_format(list + at, sizeof list - at, "%sdevice %d: %s%s%s %.1f s", d ? "; " : "", d, dp_phase_name(p.phase),
                  named ? " of " : "", named ? p.layer : "", now - p.since);
        if (p.stands > worst.stands || (p.stands && p.stands == worst.stands && p.since < worst.since)) worst = p, slow = d;
    }
    dp_fail(err, DP_ETIMEOUT, "No device moved for %.3g s (devices.timeout_s) while waiting for %s. %s.", g->list.timeout_s,
            what, list);
    if (slow >= 0) dp_error_place(err, slow, slow, worst.phase, dp_phase_name(worst.phase), -1, worst.layer);
}

static dp_status aborted(dp_error *err)
{
    return dp_fail(err, DP_EFAILED, "Another device failed.");
}

static dp_status await(dp_group *g, dp_worker *w, const wish *x, const char *what, double begin, dp_error *err)
{
    int room = w ? DP_ROOM_WORKERS : DP_ROOM_CALLER;
    while (dp_now() - begin < g->spin_s)
        if (granted(x)) return DP_OK;
    for (;;) {
        if (granted(x)) return DP_OK;
        if (atomic_load(&g->aborted)) return aborted(err);
        double quiet = dp_now() - fmax(last_progress(g), begin);
        if (quiet > g->list.timeout_s) {
            timed_out(g, what, err);
            return abort_group(g) ? DP_ETIMEOUT : aborted(err); /* one hang is one failure, whoever else waits for it */
        }
        if (w && is_quiet(g)) dp_timeline_look(w);
        park(g, room, x, fmin(fmin(0.25, g->list.timeout_s / 8), g->list.timeout_s - quiet + 0.001), 0);
    }
}

static dp_status await_as(dp_group *g, dp_worker *w, const wish *x, const char *what, dp_error *err)
{
    double begin = dp_now();
    dp_record before = {0};
    if (w) {
        atomic_store_explicit(&w->waits, 1, memory_order_relaxed);
        before = dp_wait_begins(w, begin);
        before.end = begin;
    }
    dp_status status = await(g, w, x, what, begin, err);
    if (!w) return status;
    if (!status) atomic_store_explicit(&w->waits, 0, memory_order_relaxed); /* who gave up still counts as waiting */
    dp_wait_ends(w, &before, dp_now());
    return status;
}

dp_status dp_await(dp_group *g, dp_worker *w, const _Atomic uint64_t *counter, uint64_t value, const char *what, dp_error *err)
{
    if (atomic_load_explicit(counter, memory_order_acquire) >= value) return DP_OK;
    return await_as(g, w, &(wish){.counter = counter, .value = value}, what, err);
}

dp_status dp_await_any(dp_group *g, dp_worker *w, int (*ready)(void *), void *arg, const char *what, dp_error *err)
{
    if (ready(arg)) return DP_OK;
    return await_as(g, w, &(wish){.ready = ready, .arg = arg}, what, err);
}

/* ---- worker ---- */

static void note_failure(dp_worker *w, dp_status status, const dp_error *error)
{
    dp_group *g = w->group;
    pthread_mutex_lock(&g->lock);
    int tells = status == DP_EDEVICE_LOST ? DP_FAILED_LOST : status == DP_EFAILED ? DP_FAILED_AFTER_OTHERS : DP_FAILED_SELF;
    if (status == DP_EDEVICE_LOST) atomic_store(&w->lost, 1);
    if (tells > w->failed) { /* who read the memory of a device that died fails too, maybe before that one says so */
        w->failed = tells;
        w->error = *error;
        w->error.code = status;
        w->error.device = w->error.device < 0 ? w->device : w->error.device;
        w->error.replica = w->error.replica < 0 ? w->device : w->error.replica;
        if (tells == DP_FAILED_LOST) dp_timeline_lost(w, &w->error);
        if (w->error.phase < 0) {
            int phase = atomic_load_explicit(&w->phase, memory_order_relaxed);
            dp_error_place(&w->error, -1, -1, phase, dp_phase_name(phase), -1, NULL);
        }
    }
    pthread_mutex_unlock(&g->lock);
    abort_group(g);
}

static void run_job(dp_worker *w, uint64_t seq)
{
    dp_group *g = w->group;
    const dp_job *job = &g->job[seq % DP_JOBS];
    dp_error error;
    dp_status status;
    dp_fail(&error, DP_EFAILED, "A job failed without saying why.");
    if (atomic_load(&g->aborted) && !job->always) return;
    atomic_store_explicit(&w->waits, 0, memory_order_relaxed);
    dp_timeline_job(w, seq);
    atomic_store_explicit(&w->launching, 1, memory_order_relaxed);
    status = job->run(job->user, w, seq, &error);
    dp_error late;
    dp_status booked = dp_timeline_launched(w, &late);
    atomic_store_explicit(&w->launching, 0, memory_order_relaxed);
    if (!status && booked) status = booked, error = late;
    if (status) note_failure(w, status, &error);
}

dp_status dp_finish_stream(dp_worker *w, dp_error *err)
{
    dp_group *g = w->group;
    const dp_backend *b = g->backend;
    double begin = dp_now(), limit = g->list.timeout_s;
    dp_status status = DP_OK;
    unsigned looks = 0;
    if (dp_lost(w)) return dp_fail(err, DP_EDEVICE_LOST, "Device %d is lost.", w->device);
    dp_phases_end(w);
    for (int lane = 0; lane < DP_LANES; lane++) { /* after a failure too: the other lane may still be at work */
        int done = 0;
        dp_status here = b->record(w->lane_stream[lane], w->finish);
        atomic_store_explicit(&w->waits, 1, memory_order_relaxed);
        while (!here && (done = b->done(w->finish)) == 0 && dp_now() - begin < limit && !atomic_load(&g->leaving)) {
            if (++looks % 256 == 0 && is_quiet(g)) dp_timeline_look(w);
            sched_yield();
        }
        if (!here && done < 0) here = (dp_status)-done;
        if (!here && !done) here = DP_ETIMEOUT;
        if (here != DP_ETIMEOUT) atomic_store_explicit(&w->waits, 0, memory_order_relaxed);
        if (!status) status = here;
    }
    return status ? dp_fail(err, status, "The device did not finish its work (%s).", dp_status_name(status)) : DP_OK;
}

static int job_ended(dp_worker *w, uint64_t seq)
{
    dp_group *g = w->group;
    const dp_job *job = &g->job[seq % DP_JOBS];
    dp_error error;
    if (atomic_load(&g->aborted) && !job->always) { /* what was launched still reads the caller's memory */
        dp_status status = dp_finish_stream(w, &error);
        if (status && status != DP_ETIMEOUT) note_failure(w, status, &error);
        return 1;
    }
    if (!job->finished) return 1;
    int r = job->finished(job->user, w, seq);
    if (r >= 0) return r;
    dp_fail(&error, (dp_status)-r, "The device reported: %s.", dp_status_name((dp_status)-r));
    note_failure(w, (dp_status)-r, &error);
    return 1;
}

static void serve(dp_worker *w)
{
    dp_group *g = w->group;
    uint64_t started = 0, ended = 0;
    unsigned looks = 0;
    while (!atomic_load(&g->stopping)) {
        uint64_t posted = atomic_load_explicit(&g->posted, memory_order_acquire);
        if (started > ended && job_ended(w, ended + 1)) {
            ended++;
            dp_timeline_ended(w, ended);
            atomic_store(&w->done, ended);
            wake(g, DP_ROOM_CALLER);
        } else if (started < posted && started - ended < DP_RUN_AHEAD) {
            run_job(w, ++started);
        } else if (started == ended) { /* nothing to do: wait for the next job, for ever or until close */
            atomic_store_explicit(&w->phase, DP_PHASE_IDLE, memory_order_relaxed);
            double begin = dp_now();
            while (dp_now() - begin < g->spin_s)
                if (atomic_load_explicit(&g->posted, memory_order_acquire) > started) break;
            if (atomic_load(&g->posted) == started)
                park(g, DP_ROOM_WORKERS, &(wish){.counter = &g->posted, .value = started + 1}, 1.0, 1);
        } else {
            dp_timeline_seen(w);
            if (++looks % 256 == 0 && is_quiet(g)) dp_timeline_look(w);
            sched_yield(); /* the device works: look again */
        }
    }
}

typedef struct opening {
    dp_worker *w;
    const dp_be_options *options;
    dp_status status;
    dp_error error;
    _Atomic int ready;
} opening;

static void *worker_main(void *arg)
{
    opening *o = arg;
    dp_worker *w = o->w;
    const dp_backend *b = w->group->backend;
    o->status = b->open(&w->be, o->options, &o->error);
    for (int lane = 0; lane < DP_LANES && !o->status; lane++) /* communication goes first where both could */
        o->status = b->stream_open(w->be, lane != DP_LANE_COMPUTE, &w->lane_stream[lane], &o->error);
    if (!o->status) o->status = b->event_open(w->be, &w->finish, &o->error);
    if (!o->status) o->status = dp_timeline_open(w, &o->error);
    dp_lane_enter(w, DP_LANE_COMPUTE);
    int failed = o->status != DP_OK;
    if (o->status == DP_EDEVICE_LOST) atomic_store(&w->lost, 1);
    atomic_store(&o->ready, 1); /* *o is the opener's again */
    if (!failed) serve(w);
    if (atomic_load(&w->group->leaving)) return NULL;
    dp_pinned_end(w);
    if (dp_lost(w)) return NULL;
    dp_timeline_close(w);
    if (w->finish) b->event_close(w->finish);
    for (int lane = 0; lane < DP_LANES; lane++)
        if (w->lane_stream[lane]) b->stream_close(w->lane_stream[lane]);
    if (w->be) b->close(w->be);
    return NULL;
}

static dp_status start_worker(dp_group *g, int d, dp_error *err)
{
    const dp_device_list *l = &g->list;
    dp_be_options options = {.index = l->index[d],
                             .threads = l->threads,
                             .pin = l->pin,
                             .first_core = d * l->threads,
                             .memory_limit = l->memory_limit,
                             .workspace = l->workspace,
                             .deterministic = l->deterministic,
                             .tf32 = l->tf32,
                             .conv_direct = l->conv_direct,
                             .conv_own = l->conv_own,
                             .tune_measure = l->tune_measure,
                             .debug_sync = l->debug_sync};
    opening o = {.w = &g->worker[d], .options = &options};
    sigset_t all, before;
    g->worker[d].group = g;
    g->worker[d].device = d;
    for (int lane = 0; lane < DP_LANES; lane++) g->worker[d].timeline.current[lane].phase = -1;
    atomic_init(&g->worker[d].layer, "");
    atomic_init(&g->worker[d].stream_layer, "");
    atomic_init(&g->worker[d].stream_phase, DP_PHASE_IDLE);
    atomic_init(&g->worker[d].phase, DP_PHASE_IDLE);
    atomic_init(&g->worker[d].since, dp_now());
    sigfillset(&all); /* signals are the program's: they must not land on our threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&g->worker[d].thread, NULL, worker_main, &o);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r) return dp_fail_errno(err, DP_ENOMEM, r, "Cannot start the thread of device %d", d);
    g->worker[d].has_thread = 1;
    while (!atomic_load(&o.ready)) sched_yield();
    if (o.status && err) *err = o.error, err->device = err->replica = d;
    return o.status;
}

/* ---- group ---- */

dp_status dp_group_open_on(dp_group **out, const dp_config *c, const dp_backend *backend, int64_t batch, dp_error *err)
{
    dp_status status;
    pthread_condattr_t clock;
    dp_device_list list;
    DP_TRY(dp_devices_choose(&list, c, backend, batch, err));
    dp_group *g = dp_calloc(1, sizeof *g);
    if (!g) return dp_fail(err, DP_ENOMEM, "Out of host memory while opening devices.");
    g->list = list;
    g->backend = list.backend;
    g->n = list.n;
    g->spin_s = list.n * list.threads <= dp_cores() ? 20e-6 : 0;
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    for (int i = 0; i < 2; i++) pthread_cond_init(&g->room[i].moved, &clock);
    pthread_condattr_destroy(&clock);
    g->worker = dp_calloc((size_t)g->n, sizeof *g->worker);
    status = DP_ENOMEM;
    if (!g->worker) {
        g->n = 0;
        dp_fail(err, DP_ENOMEM, "Out of host memory while opening devices.");
        goto fail;
    }
    for (int d = 0; d < g->n; d++)
        if ((status = start_worker(g, d, err))) goto fail;
    if ((status = dp_links_open(g, c, err))) goto fail;
    *out = g;
    return DP_OK;
fail:
    dp_group_close(g, NULL);
    return status;
}

dp_status dp_group_open(dp_group **g, const dp_config *c, dp_error *err)
{
    if (!g || !c) return dp_fail(err, DP_EARGUMENT, "dp_group_open wants a place for the group and a config.");
    *g = NULL;
    DP_TRY(dp_config_ok(c, err));
    return dp_group_open_on(g, c, NULL, dp_config_int(c, "data.batch_size"), err);
}

int dp_group_size(const dp_group *g)
{
    return g ? g->n : 0;
}

int dp_group_device(const dp_group *g, int device, dp_device_info *info)
{
    if (!g || !info || device < 0 || device >= g->n) return 0;
    if (g->backend->enumerate(g->list.index[device], info)) return 1;
    memset(info, 0, sizeof *info); /* more CPU devices than cores */
    dp_format(info->name, sizeof info->name, "%s:%d", g->backend->kind, g->list.index[device]);
    return 1;
}

uint64_t dp_group_next(const dp_group *g)
{
    return atomic_load_explicit(&g->posted, memory_order_relaxed) + 1;
}

uint64_t dp_group_post(dp_group *g, dp_job job)
{
    uint64_t seq = dp_group_next(g);
    double now = dp_now();
    g->job[seq % DP_JOBS] = job;
    for (int d = 0; d < g->n; d++) /* an idle worker has no progress to show until now */
        if (atomic_load_explicit(&g->worker[d].done, memory_order_acquire) + 1 == seq)
            atomic_store_explicit(&g->worker[d].progress, now, memory_order_relaxed);
    dp_raise(g, &g->posted, seq);
    return seq;
}

/* Of the failures that tell most, that of the lowest device. */
static dp_status first_failure(dp_group *g, dp_error *err)
{
    int best = -1, count = 0;
    pthread_mutex_lock(&g->lock);
    for (int d = 0; d < g->n; d++)
        if (g->worker[d].failed && (best < 0 || g->worker[d].failed > g->worker[best].failed)) best = d;
    for (int d = 0; best >= 0 && d < g->n; d++) count += g->worker[d].failed == g->worker[best].failed;
    if (best >= 0 && g->worker[best].failed == DP_FAILED_AFTER_OTHERS) count = 1;
    dp_status status = best < 0 ? DP_OK : (dp_status)g->worker[best].error.code;
    if (best >= 0 && err) {
        *err = g->worker[best].error;
        err->more = count > 1 ? count - 1 : 0;
        size_t at = strlen(err->text);
        if (count > 1) snprintf(err->text + at, sizeof err->text - at, " (and %d more)", count - 1);
    }
    pthread_mutex_unlock(&g->lock);
    return status;
}

dp_status dp_group_wait(dp_group *g, uint64_t seq, dp_error *err)
{
    dp_status status = DP_OK;
    dp_error late;
    for (int d = 0; d < g->n && !status; d++) status = dp_await(g, NULL, &g->worker[d].done, seq, "the step to end", &late);
    if (!status && !atomic_load(&g->aborted)) return DP_OK;
    /* Who failed first tells in a moment; peers leave their waits at once, and let go of what else is in flight. */
    double begin = dp_now();
    dp_status cause = first_failure(g, err);
    while (dp_now() - begin < 0.5) {
        int all = 1;
        for (int d = 0; d < g->n; d++) all &= atomic_load(&g->worker[d].done) >= atomic_load(&g->posted);
        cause = first_failure(g, err);
        if (all) break;
        sched_yield();
    }
    if (cause && (cause != DP_EFAILED || !status)) return cause;
    if (!status) return dp_fail(err, DP_EFAILED, "The devices failed in an earlier call.");
    if (err) *err = late;
    return status;
}

dp_status dp_group_call(dp_group *g, dp_job job, dp_error *err)
{
    return dp_group_wait(g, dp_group_post(g, job), err);
}

dp_status dp_group_closing(dp_group *g, dp_job job, dp_error *err)
{
    double begin = dp_now();
    if (atomic_load(&g->leaving)) return dp_fail(err, DP_ETIMEOUT, "Devices of this group hang; all of it was left behind.");
    job.always = 1;
    uint64_t seq = dp_group_post(g, job);
    for (int d = 0; d < g->n; d++)
        while (g->worker[d].has_thread && g->worker[d].be && atomic_load(&g->worker[d].done) < seq) {
            if (dp_now() - begin > 5)
                return dp_fail(err, DP_ETIMEOUT,
                               "Device %d does not return from its work; its thread and memory are left behind.", d);
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL); /* after an abort nobody is woken */
        }
    return DP_OK;
}

void dp_group_leave(dp_group *g)
{
    pthread_mutex_lock(&g->lock);
    atomic_store(&g->leaving, 1);
    atomic_store(&g->stopping, 1);
    wake_all(g);
    pthread_mutex_unlock(&g->lock);
    for (int d = 0; d < g->n; d++) {
        struct timespec t;
        if (!g->worker[d].has_thread) continue;
        g->worker[d].has_thread = 0;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_sec += 1;
        if (pthread_timedjoin_np(g->worker[d].thread, NULL, &t)) pthread_detach(g->worker[d].thread);
    }
}

typedef struct user_call {
    int (*fn)(void *user, int device);
    void *user;
} user_call;

static dp_status run_user(void *arg, dp_worker *w, uint64_t seq, dp_error *err)
{
    const user_call *call = arg;
    (void)seq;
    int r = call->fn(call->user, w->device);
    return r ? dp_fail(err, DP_EDEVICE, "The function given to dp_group_run returned %d on device %d.", r, w->device) : DP_OK;
}

dp_status dp_group_run(dp_group *g, int (*fn)(void *user, int device), void *user, dp_error *err)
{
    if (!g || !fn) return dp_fail(err, DP_EARGUMENT, "dp_group_run wants a group and a function.");
    user_call call = {fn, user};
    return dp_group_call(g, (dp_job){.run = run_user, .user = &call}, err);
}

dp_status dp_group_close(dp_group *g, dp_error *err)
{
    int stuck = 0;
    if (!g) return DP_OK;
    if (atomic_load(&g->leaving)) return dp_fail(err, DP_ETIMEOUT, "Devices of this group hang; all of it was left behind.");
    pthread_mutex_lock(&g->lock);
    atomic_store(&g->stopping, 1);
    atomic_store(&g->aborted, 1);
    wake_all(g);
    pthread_mutex_unlock(&g->lock);
    for (int d = 0; g->worker && d < g->n; d++) {
        struct timespec t;
        if (!g->worker[d].has_thread) continue;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_sec += 5;
        if (pthread_timedjoin_np(g->worker[d].thread, NULL, &t))
            stuck++;
        else
            g->worker[d].has_thread = 0;
    }
    if (stuck) { /* its thread may still touch all of this: leave it */
        dp_group_leave(g);
        return dp_fail(err, DP_ETIMEOUT, "%d of %d workers do not return; their threads and memory are left behind.", stuck,
                       g->n);
    }
    for (int i = 0; i < 2; i++) pthread_cond_destroy(&g->room[i].moved);
    pthread_mutex_destroy(&g->lock);
    free(g->links);
    free(g->worker);
    free(g);
    return DP_OK;
}
