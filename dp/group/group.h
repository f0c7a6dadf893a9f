/* Internal: devices and their threads. One persistent worker per device runs jobs in the order in which they were posted; at most
 * DP_JOBS are in flight. A job's `run` launches work; `finished` (optional) asks whether what it launched has ended, so that the
 * host side can run ahead of the device.
 *
 * Who owns what: the job ring's slot seq % DP_JOBS is written by the caller before it raises `posted` and belongs to the workers
 * until all of them have passed seq. A worker's fields are its own; others read only what is atomic here, or what a flag that
 * the worker raised afterwards covers. */
#ifndef DP_GROUP_GROUP_H
#define DP_GROUP_GROUP_H
#include "../base/clock.h"
#include "devices.h"
#include "timeline.h"
#include <pthread.h>
#include <stdatomic.h>

enum { DP_JOBS = 4, DP_RUN_AHEAD = 2 };

typedef struct dp_worker dp_worker;
typedef struct dp_job {
    dp_status (*run)(void *user, dp_worker *w, uint64_t seq, dp_error *err);
    int (*finished)(void *user, dp_worker *w, uint64_t seq); /* 1, 0, or a negated dp_status; NULL: with run's return */
    void *user;
    int always; /* runs even after an abort: closing */
} dp_job;

struct dp_worker {
    dp_group *group;
    int device; /* position in the group; 0 is the master */
    dp_be_device *be;
    dp_be_stream *lane_stream[DP_LANES];
    int lane;             /* where it is now: DP_LANE_ */
    dp_be_stream *stream; /* ... and the stream of that */
    dp_be_event *finish;  /* of dp_finish_stream */
    pthread_t thread;
    int has_thread;
    dp_timeline timeline;
    _Atomic int phase;           /* DP_PHASE_, for the watchdog */
    _Atomic double since;        /* begin of that phase */
    _Atomic double progress;     /* last sign of life */
    _Atomic(const char *) layer; /* last launched */
    _Atomic int launching;       /* the thread is inside a job */
    _Atomic int waits;           /* ... and waits there for another device, or for its own streams */
    _Atomic int stream_phase;    /* when nothing moves: what its streams stand at that is its own work; idle: nothing */
    _Atomic double stream_since; /* ... since then */
    _Atomic(const char *) stream_layer;
    _Atomic int64_t received[DP_MAX_DEVICES]; /* bytes from each device; written by this worker */
    _Atomic uint64_t done;                    /* jobs that have ended here */
    _Atomic int lost;                         /* the device is gone: it is not touched any more, what it held is left behind */
    int failed;                               /* DP_FAILED_: how much `error` tells; under the group's lock, as error */
    dp_error error;
};

enum { DP_FAILED_NOT, DP_FAILED_AFTER_OTHERS, DP_FAILED_SELF, DP_FAILED_LOST }; /* more replaces less */

typedef struct dp_pinned dp_pinned;
typedef struct dp_links dp_links;
typedef struct dp_room {  /* where threads park: apart, so that what concerns one side does not wake the other */
    pthread_cond_t moved; /* some counter was raised while somebody was parked */
    _Atomic int parked;
} dp_room;
enum { DP_ROOM_WORKERS, DP_ROOM_CALLER };

struct dp_group {
    const dp_backend *backend;
    dp_device_list list;
    int n;
    dp_worker *worker;
    dp_job job[DP_JOBS];
    _Atomic uint64_t posted;
    _Atomic int aborted;  /* a worker failed or a wait passed its limit: everybody leaves */
    _Atomic int stopping; /* close */
    _Atomic int leaving;  /* ... while some device hangs: threads end and touch nothing */
    double spin_s;        /* how long a wait spins before it parks: 0 when cores do not suffice */
    pthread_mutex_t lock; /* of the errors and of parking */
    dp_links *links;      /* who gets at whose memory (links.h); workers read it */
    dp_pinned *pinned;    /* page-locked host memory (pinned.c) */
    size_t unlocked;      /* bytes that could not be */
    dp_room room[2];      /* the workers', who wait for jobs and for each other; the caller's, who waits for the end of jobs */
};

dp_status dp_group_open_on(dp_group **g, const dp_config *c, const dp_backend *backend, int64_t batch, dp_error *err);
/* Post a job for every worker; never waits (the caller keeps at most DP_JOBS - 1 in flight). Returns its number, 1, 2, ... */
uint64_t dp_group_post(dp_group *g, dp_job job);
uint64_t dp_group_next(const dp_group *g); /* the number that the next post will give */
/* Until every worker has ended job seq, or one failed: then the first failure by device index, err->more = the others. */
dp_status dp_group_wait(dp_group *g, uint64_t seq, dp_error *err);
dp_status dp_group_call(dp_group *g, dp_job job, dp_error *err); /* post and wait */
/* The last job: runs after an abort too. DP_ETIMEOUT when a worker does not get there within 5 s: it is stuck. */
dp_status dp_group_closing(dp_group *g, dp_job job, dp_error *err);
/* After that: what hangs may go on at any time, so all memory stays. Threads that can end do; those that are stuck are left. */
void dp_group_leave(dp_group *g);
/* For a worker's closing: 1 = its device is lost, nothing of it is freed. */
static inline int dp_lost(const dp_worker *w)
{
    return atomic_load_explicit(&w->lost, memory_order_relaxed);
}

/* Counters that one side raises and others wait for. Raise with dp_raise only: it wakes the workers that are parked. */
void dp_raise(dp_group *g, _Atomic uint64_t *counter, uint64_t value);
/* Until *counter >= value. DP_EFAILED when the group was aborted, DP_ETIMEOUT when no worker has shown life for timeout_s: then
 * err lists the phase of every device. w: the waiting worker, NULL for the caller's thread. */
dp_status dp_await(dp_group *g, dp_worker *w, const _Atomic uint64_t *counter, uint64_t value, const char *what, dp_error *err);

/* The same for whatever `ready` says, asked again whenever some counter moved. */
dp_status dp_await_any(dp_group *g, dp_worker *w, int (*ready)(void *), void *arg, const char *what, dp_error *err);

/* pinned.c, on the caller's thread: host memory that copies read fast, for all devices. */
dp_status dp_group_pinned(dp_group *g, size_t bytes, void **p, dp_error *err);
void dp_group_unpinned(dp_group *g, void *p, size_t bytes);
void dp_pinned_end(dp_worker *w); /* the worker ends: unlocks what is left */

/* Polls until everything launched here, in all lanes, has ended; DP_ETIMEOUT after timeout_s. */
dp_status dp_finish_stream(dp_worker *w, dp_error *err);

/* timeline.c. What follows goes to that lane: launches, copies, sums, signals, phases. Begin a phase after entering. */
void dp_lane_enter(dp_worker *w, int lane);
void dp_phase_begin(dp_worker *w, int phase); /* ends the lane's phase before; < 0: only that */
/* Waits for others come next: idle for the watchdog, and in the timeline of a stream. In line, time counts as idle only where the
 * thread really stands still: between these two. */
void dp_phase_idle(dp_worker *w);
int dp_marks_left(const dp_worker *w, int n);       /* 1: so many phases can begin in this lane, each with its mark */
dp_record dp_wait_begins(dp_worker *w, double now); /* what goes on afterwards */
void dp_wait_ends(dp_worker *w, const dp_record *before, double now);
/* A wait of the stream alone: apart from the phase it is in. 1: goes_on has to follow. */
int dp_stream_waits(dp_worker *w, dp_record *before);
void dp_stream_goes_on(dp_worker *w, const dp_record *before);
void dp_timeline_look(dp_worker *w); /* where its streams stand, for the watchdog */
/* Asks what has passed since: a lost device's events tell nothing any more. For a thread that has time, and captures nothing. */
void dp_timeline_seen(dp_worker *w);
/* The device is lost: err gets its own words, and instead of the layer whose launch found that, where its streams were seen last. */
void dp_timeline_lost(dp_worker *w, dp_error *err);
void dp_phases_end(dp_worker *w); /* in all lanes: before what tells that a job has ended, so that their ends come before it */
void dp_phase_bucket(dp_worker *w, int bucket);             /* that this phase is about */
void dp_phase_layer(void *worker, const char *layer);       /* about to be launched; as dp_plan_watch wants it */
void dp_phase_bytes(dp_worker *w, int64_t bytes, int peer); /* received from device `peer` (-1: the host) in this phase */
void dp_phase_sent(dp_worker *w, int64_t bytes);            /* to the host */
dp_status dp_timeline_open(dp_worker *w, dp_error *err);
void dp_timeline_close(dp_worker *w);
void dp_timeline_job(dp_worker *w, uint64_t job);            /* a job begins to launch */
dp_status dp_timeline_launched(dp_worker *w, dp_error *err); /* it has launched everything */
void dp_timeline_ended(dp_worker *w, uint64_t job);          /* what it launched has ended */
#endif
