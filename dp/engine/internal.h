/* Internal to dp/engine: what an engine consists of, and who calls whom in a step. */
#ifndef DP_ENGINE_INTERNAL_H
#define DP_ENGINE_INTERNAL_H
#include "../base/config.h"
#include "../group/links.h"
#include "../group/replica.h"
#include "../group/signal.h"
#include "../group/split.h"
#include "engine.h"

enum { DP_SMALL_DROP, DP_SMALL_MERGE, DP_SMALL_ERROR };
enum { DP_STEPS = DP_JOBS };
enum { DP_REDUCE_SLICED, DP_REDUCE_TREE, DP_REDUCE_MASTER };       /* in the order of keys.c */
enum { DP_UPDATE_MASTER, DP_UPDATE_SLICED, DP_UPDATE_REPLICATED }; /* " */
enum { DP_OVERLAP_OFF, DP_OVERLAP_REDUCE, DP_OVERLAP_ALL };        /* " */
enum { DP_BN_PRIMARY, DP_BN_MERGED, DP_BN_SYNC };                  /* " */

typedef struct dp_switches { /* [devices], read once (switches.c) */
    int scatter_on_master, loss_on_master, broadcast_always, reduce, update, overlap, thread_per_step;
    int shards, small_batch, stop_on_nan, bn_stats;
    int early; /* the update of a bucket need not wait for the norm of all: overlap = all, no clipping, on_nan = stop */
} dp_switches;

/* One submitted batch. Written by the caller before it is posted; then the workers read it and write only what is marked, until the
 * caller has waited for it. */
typedef struct dp_step {
    dp_engine *engine;
    dp_batch batch;
    dp_split split;
    int64_t index;    /* training batches before it */
    uint64_t job;     /* group's number */
    dp_run run;       /* what all leaves share */
    uint64_t version; /* of the parameters it needs */
    int arrives;      /* they have to be brought to the replicas first */
    int fresh;        /* ... or were changed since the job before */
    uint64_t brought; /* broadcast = always: last job before it that brought some; 0: none */
    int first_of_window, last_of_window;
    int windowed;       /* micro-batches are added up in `window` before the reduction */
    int reduce;         /* gradients are summed over the devices after this batch */
    int reduced_before; /* shards: `window` holds sums of this window's earlier batches */
    int keeps;          /* shards: sums are kept in `window` */
    int update;         /* the optimizer steps: a target was counted in the window */
    uint64_t reduction; /* number of that reduction */
    uint64_t reads;     /* wait until reduction `reads` has read the gradients; 0: implied by the parameters' arrival */
    uint64_t gives;     /* bit d: device d has something to add to the reduction */
    uint64_t gave;      /* bit d: its window holds something from before */
    uint64_t scatter;   /* scatter = master: number of its batch, among those with rows */
    int stats;          /* it gives running statistics */
    uint64_t committed; /* job before it that did so last; 0: none */
    uint64_t pooled;    /* number of pooled statistics before it (bn_stats = merged, sync); its own is one more */
    uint64_t part;      /* exchanges of batchnorm parts before it (bn_stats = sync) */
    double posted_at;
    uint64_t *ids;                /* (max rows) used when the batch has none; pinned */
    struct dp_snapshot *snapshot; /* the state after it goes there, too; NULL: nowhere */
    /* By the workers: */
    dp_run *leaf_run;    /* (leaves, and of all: the caller's `run`) pinned; the worker of a leaf */
    dp_loss_sums *sums;  /* (leaves) pinned; the worker of a leaf, by copy */
    dp_verdict *verdict; /* (2) pinned; the master, by copy: of the update, of the report */
} dp_step;

/* Evaluation and prediction: leaves of a fixed row count, cut by sample index whatever the number of devices. */
typedef struct dp_pass_job {
    dp_engine *engine;
    dp_rows x, y;  /* y.data NULL: predict */
    int64_t first; /* row of leaf 0 of this job */
    int leaves;    /* leaf i runs on device i % N */
    dp_run run;
    uint64_t version;
    int arrives, fresh, buffers; /* parameters, running statistics have to be brought first */
    uint64_t brought;            /* as in dp_step */
    uint64_t stats;              /* job that committed those statistics; 0: they are the loaded ones */
    dp_run *leaf_run;            /* (DP_MAX_LEAVES) pinned */
    dp_loss_sums *sums;          /* (DP_MAX_LEAVES) pinned */
    float *out;                  /* predict: rows of leaf 0 of this job */
} dp_pass_job;

typedef struct dp_gathered {  /* loss = master: on the master, of every device */
    float *output, *gradient; /* (capacity, width) of the network's output */
    void *target;
} dp_gathered;

/* mirror.c: what others read of a device, in host memory. */
typedef struct dp_mirrored {
    const void *memory; /* of the device */
    char *host;
    size_t bytes;
    int own, locked; /* it has its host memory to itself; page-locked */
} dp_mirrored;
typedef struct dp_mirror {
    dp_mirrored *range; /* none: all can read the device */
    int n, room;
    _Atomic int64_t published; /* bytes that went to the host for others; by its worker */
} dp_mirror;

/* One device's share of the communication of a step: stages, each over all buckets in its own order (comm.c). */
typedef enum dp_stage_kind { DP_OFFER, DP_SUM, DP_COLLECT, DP_NORM, DP_UPDATE, DP_GATHER, DP_REPORT, DP_STAGES } dp_stage_kind;
typedef struct dp_stage {
    dp_stage_kind kind;
    int after_all; /* begins when the stage before is through, not bucket by bucket behind it */
    int forward;   /* buckets in the order in which forward wants them: the last first */
    int reads;     /* the last stage that reads peers' gradients */
    int early;     /* may run under backward from this overlap on */
} dp_stage;

/* Signals of one device. The owner is that device's worker; the value of each says what has been reached. */
typedef struct dp_device_signals {
    dp_signal *gradient; /* [bucket] reduction: its own contribution is complete */
    dp_signal *offered;  /* [bucket] reduction: ... and lies in host memory for those who cannot read it on the device */
    dp_signal *sum;      /* [bucket] reduction: its part of the sum is there, and what that needed of others has been read */
    dp_signal *param;    /* [bucket] version: its part of the new parameters is there (update = master: the master's, all) */
    dp_signal *slice;    /* [bucket] job: it has taken its slice from the master (broadcast by scatter and all-gather) */
    dp_signal *here;     /* [bucket] version: its replica has all of it. For its own lanes only */
    dp_signal read;      /* reduction: it reads no other device's gradients any more */
    dp_signal taken;     /* job: it has brought all parameters (broadcast = always) */
    dp_signal
        rows; /* number of the scatter: it has taken its rows from the master (scatter = master); the master: they are there */
    dp_signal output;  /* round counter: outputs of its leaf (loss = master) */
    dp_signal loss;    /* the master's, for this device: its output's gradient of that round */
    dp_signal part;    /* exchange number: its part of batchnorm's statistics (bn_stats = sync) */
    dp_signal buffers; /* job: it has taken the running statistics. For its own lanes only */
    dp_signal stats;   /* number: its leaves' statistics are there (bn_stats = merged, sync) */
} dp_device_signals;

typedef struct dp_last_sum { /* where the last reduction's result lies */
    int there, in_window;
} dp_last_sum;
typedef struct dp_measured { /* for balance.c */
    int64_t rows, rows_before;
    double busy_before;
} dp_measured;
typedef struct dp_job_end { /* events; that of the last lane stands for all */
    dp_be_event *lane[DP_LANES];
} dp_job_end;

/* devices.on_device_failure = continue: what it takes to go back (snapshot.c). All of it is the caller's, but for a set that workers write
 * until the batch that it belongs to has been waited for. */
typedef struct dp_snapshot { /* the state between two windows, on the host; flat arrays as the engine's params lay them out */
    float *param, *buffer, *m, *v;
    dp_verdict *verdict;
    int64_t batches; /* training batches before it */
} dp_snapshot;
typedef struct dp_kept_batch { /* the copy of a batch since then */
    dp_batch batch;            /* points into memory */
    double lr;
    char *memory;
    size_t room;
} dp_kept_batch;
typedef struct dp_keep {
    const dp_backend *backend; /* that the sets came from */
    dp_snapshot set[2];
    size_t param_bytes, buffer_bytes;
    int valid;     /* set[valid] can be gone back to; none yet while `stale` */
    int taking;    /* a batch in flight writes the other one */
    int stale;     /* values came from outside: a new one before the next batch */
    int replaying; /* batches come from here; the results of those up to `returned` are known already */
    int64_t returned;
    int64_t every, windows; /* run.snapshot_every; windows closed since the last one was begun */
    dp_kept_batch *batch;   /* ring: number set[valid].batches + i at (first + i) % room */
    int room, first, n;
    double *mean, *deviation; /* dp_engine_set_normalize's */
    int channels;
} dp_keep;

/* graph.c: the graphs of a device, each of a kind of leaf. Its worker's alone, but for what is marked. */
typedef struct dp_leaf_kind { /* all that is fixed in a graph */
    const void *mean;
    float *grad, *stats;
    const float *steps; /* the optimizer steps with this gradient; NULL: it does not, here */
    dp_loss_sums *sums;
    int64_t rows;
    int32_t x_type, x_layout, y_type, run_stats, slot, merges, last, joins, offers, eval;
} dp_leaf_kind;
enum { DP_GRAPHS = 32 };
typedef struct dp_graphs {
    int on, n;
    _Atomic int failed; /* a dp_status: why no more are made */
    int warned;         /* the caller's */
    struct {
        dp_leaf_kind kind;
        dp_be_graph *graph; /* NULL: such a leaf has run once, piece by piece, so that all its kernels are loaded */
    } of[DP_GRAPHS];
} dp_graphs;

struct dp_engine {
    dp_config *config;
    const dp_graph *graph;
    int leaves;    /* that dp_engine_open_on was given */
    dp_keep *keep; /* NULL: a failure ends the engine */
    dp_params *params;
    dp_group *group;
    const dp_backend *backend; /* the group's */
    int n;                     /* devices */
    dp_replica *replica;
    dp_switches on;
    dp_optimizer optimizer;
    dp_loss loss;
    int64_t targets_per_row;
    dp_splitter splitter;
    int64_t max_rows, eval_rows; /* of a training batch; of an evaluation leaf */
    dp_gathered *gathered;
    dp_mirror *mirror; /* [device] */
    dp_graphs *graphs; /* [device] */
    void *all_rows;    /* scatter = master: the whole batch on the master */
    size_t all_bytes;
    dp_bn_layer *bn;
    int n_bn, n_parts;            /* batchnorms; exchanges of a training step under sync */
    dp_device_signals *at;        /* [device] */
    dp_signal committed;          /* master; value = job that committed running statistics */
    dp_signal merged;             /* master; value = number of pooled statistics: the leaves' have been read */
    dp_job_end *ended;            /* [device][DP_JOBS]: end of a job's work */
    dp_stage stage[2][DP_STAGES]; /* [0] of the master, [1] of the others */
    int n_stages[2];
    /* The caller's thread only: */
    dp_step step[DP_STEPS];
    dp_pass_job pass;
    uint64_t submitted, waited;
    uint64_t version, pulled_version,
        used_version; /* of the parameters; last that the replicas have; last that a forward saw */
    uint64_t brought; /* job in which they got it */
    uint64_t stats_version, pulled_stats, stats_job; /* stats_job: last that committed; 0: none */
    uint64_t pooled, parts;                          /* statistics pooled, parts exchanged so far */
    int64_t first_batch;                             /* training batches before this engine was opened (resume) */
    uint64_t reductions;
    int reads_over;    /* nobody reads the gradients of the last reduction, or the next job finds out */
    uint64_t scatters; /* batches with rows */
    int64_t window_targets;
    uint64_t window_gives;
    int window_open, window_reduced, failed;
    dp_last_sum last;
    double lr;
    uint64_t seed;
    int64_t updates; /* optimizer steps, as far as waited for */
    double opened_at;
    dp_measured *measured; /* [device] */
    uint64_t epoch;        /* of the last batch */
    int epoch_seen, warned_weak, warned_unlocked;
    int64_t check_every, checked; /* updates between two checks of the replicas; at the last */
    int64_t *link_before;         /* [from][to] bytes that moved before the engine went back to a snapshot */
    uint64_t *traced;             /* [device] records given out by dp_engine_trace */
    dp_device_stats *stats;
};

/* Gradient arrays of a device are a stack: leaf `leaf` is written to `slot`, then `merges` times the top is added to the one below. So the
 * leaves are folded along their halving tree with depth + 1 arrays. */
typedef struct dp_fold {
    int leaf, slot, merges;
} dp_fold;

/* A worker's way through a batch. */
typedef struct dp_arrival { /* parameters on their way to one device (arrive.c) */
    uint64_t version, job, brought;
    int active, mine, here; /* buckets of which my slice, all is taken, in forward order */
} dp_arrival;
typedef struct dp_walk {
    dp_engine *e;
    dp_step *step;
    dp_replica *r;
    int me, round; /* leaves done */
    int part;      /* exchanges done */
    dp_arrival in;
    const dp_stage *stage;
    int n_stages, done[DP_STAGES]; /* buckets done, by position in `stage` */
    int stepped;                   /* the graph of its last leaf held the optimizer's step */
    int in_graph;                  /* what is launched becomes a graph: others are told and asked before and after */
    int prepared;                  /* the update's run block and verdict are there */
    int opens_window, offers;      /* its window holds nothing yet; its gradient takes part in a reduction or update */
} dp_walk;

/* open.c: dp_engine_open with a backend of the caller's (NULL: by the names) and a forced number of leaves (0: by the settings). */
dp_status dp_engine_open_on(dp_engine **e, const dp_graph *g, const dp_config *c, const dp_backend *backend, int leaves,
                            dp_error *err);
/* Its two halves, for recover.c: devices with all that is on them, by config, graph and leaves; start leaves nothing when it fails. stop
 * leaves params, and everything when a device hangs (DP_ETIMEOUT). */
dp_status dp_engine_start(dp_engine *e, const dp_backend *backend, dp_error *err);
dp_status dp_engine_stop(dp_engine *e, dp_error *err);
/* switches.c */
dp_status dp_switches_read(dp_engine *e, dp_error *err);
void dp_stages_plan(dp_engine *e);
/* signals.c: on the device's worker */
dp_status dp_signals_open(dp_engine *e, dp_worker *w, dp_error *err);
void dp_signals_close(dp_engine *e, dp_worker *w);

/* step.c: the walk. */
dp_status dp_step_run(void *user, dp_worker *w, uint64_t seq, dp_error *err);
int dp_step_finished(void *user, dp_worker *w, uint64_t seq);
dp_status dp_job_ended(dp_engine *e, dp_worker *w, uint64_t seq, dp_error *err);
dp_status dp_phase_upload(dp_replica *r, const dp_run *run, dp_rows x, dp_rows y, const uint64_t *ids, dp_error *err);
dp_rows dp_rows_part(dp_rows rows, int64_t first, int64_t n);
dp_status dp_leaf_loss(dp_walk *k, int leaf, const float *output, const void *target, float *gradient, dp_error *err);
dp_status dp_leaf_sums(dp_walk *k, int leaf, dp_error *err); /* ... to the host */
/* Forward, loss and backward of a leaf, bucket by bucket with all that goes on between. */
dp_status dp_leaf_compute(dp_walk *k, dp_pass *pass, const dp_fold *f, int last, dp_error *err);

/* graph.c: the same as one launch, where the backend can. launched = 0: this one has to run piece by piece. */
void dp_choices_say(const dp_engine *e); /* stats.c: which ways were measured to be the fastest (devices.tune) */
void dp_graphs_open(dp_engine *e);       /* by the settings */
void dp_graphs_warn(dp_engine *e);       /* once for each device that gave up */
int dp_graphs_on(const dp_engine *e, int device);
dp_status dp_graph_train(dp_walk *k, dp_pass *pass, const dp_fold *f, int last, int *launched, dp_error *err);
dp_status dp_graph_eval(dp_engine *e, dp_replica *r, dp_pass *pass, dp_rows y, int *launched, dp_error *err);
void dp_graphs_close(dp_engine *e, dp_worker *w);
int dp_graph_steps(const dp_walk *k, int last); /* the optimizer's step is in the graph */

/* scatter.c: what goes through the master (scatter = master, loss = master). */
dp_status dp_scatter_rows(dp_walk *k, dp_error *err);                      /* the master's part: the batch onto it */
dp_status dp_scatter_take(dp_walk *k, int leaf, dp_rows x, dp_error *err); /* rows of a leaf from it */
dp_status dp_scatter_done(dp_walk *k, dp_error *err);
dp_status dp_loss_by_master(dp_walk *k, int leaf, dp_error *err);
dp_status dp_loss_serve(dp_walk *k, int round, dp_error *err); /* a round in which the master has no leaf */

/* statistics.c: batchnorm over several leaves. */
dp_status dp_sync_part(dp_walk *k, int channels, int backward, dp_error *err); /* at DP_STOP_PART */
float *dp_leaf_statistics(dp_walk *k, int leaf);                               /* where a leaf's go; NULL: nowhere */
dp_status dp_statistics_given(dp_walk *k, dp_error *err);                      /* all leaves of the device have run forward */
dp_status dp_statistics_commit(dp_walk *k, dp_error *err);                     /* the master, at the end */

/* mirror.c. publish: memory of this device that others are about to read, before the signal that says so, in its lane; counted: as bytes
 * out. seen: where a reader finds it. take: copy from there. bring: a pointer that a kernel here should read, by a copy into slot `slot` of
 * the lane's inbox if need be; counted as received. */
dp_status dp_mirror_open(dp_engine *e, dp_worker *w, dp_error *err);
void dp_mirror_close(dp_engine *e, dp_worker *w);
dp_status dp_publish(dp_engine *e, dp_worker *w, const void *memory, size_t bytes, int counted, dp_error *err);
const void *dp_seen(const dp_engine *e, int reader, int owner, const void *memory);
dp_status dp_take(dp_engine *e, dp_worker *w, void *dst, int owner, const void *memory, size_t bytes, dp_error *err);
dp_status dp_bring(dp_engine *e, dp_replica *r, const float **memory, int owner, int64_t count, int slot, dp_error *err);
int64_t dp_engine_sent(const dp_engine *e, int device); /* bytes out */

/* arrive.c: new parameters onto a replica, in the communication lane. */
dp_status dp_arrive_buffers(dp_engine *e, dp_replica *r, uint64_t job, uint64_t committed, dp_error *err);
/* The compute lane goes on only when `bucket` of this version is here. */
dp_status dp_arrived(dp_engine *e, dp_replica *r, uint64_t version, int bucket, dp_error *err);
void dp_arrival_begin(dp_arrival *a, uint64_t version, uint64_t job, uint64_t brought);
dp_status dp_arrive(dp_engine *e, dp_replica *r, dp_arrival *a, int bucket,
                    dp_error *err); /* until `bucket` is here; -1: all */

/* comm.c: as far as it goes without waiting under `overlap`, or (all = 1) to the end. */
dp_status dp_communicate(dp_walk *k, int all, dp_error *err);
void dp_stages_done(dp_walk *k); /* all of it has been done elsewhere */
/* reduce.c, update.c: stages. ready: 1 when no wait would stop the thread. */
int dp_offer_ready(const dp_walk *k, int b);
dp_status dp_offer_bucket(dp_walk *k, int b, dp_error *err);
int dp_sum_ready(const dp_walk *k, int b);
dp_status dp_sum_bucket(dp_walk *k, int b, dp_error *err);
int dp_collect_ready(const dp_walk *k, int b);
dp_status dp_collect_bucket(dp_walk *k, int b, dp_error *err);
int dp_norm_ready(const dp_walk *k, int b);
dp_status dp_norm_all(dp_walk *k, int b, dp_error *err);
dp_status dp_report_all(dp_walk *k, int b, dp_error *err);
dp_status dp_update_bucket(dp_walk *k, int b, dp_error *err);
int dp_update_lane(const dp_engine *e); /* in which a device steps */
int dp_gather_ready(const dp_walk *k, int b);
dp_status dp_gather_bucket(dp_walk *k, int b, dp_error *err);
/* Where device d's contribution to a reduction lies (NULL: it has none), where its part of the sum, where the result of a window. */
const float *dp_given(const dp_walk *k, int d);
float *dp_summed(const dp_walk *k, int d);
float *dp_final(const dp_engine *e, const dp_step *s, int d);
/* The part of bucket b that device d works on when it is cut in slices. */
static inline int64_t dp_slice_size(const dp_engine *e, int b)
{
    return e->params->bucket[b].count / e->n;
}
static inline int64_t dp_slice_at(const dp_engine *e, int b, int d)
{
    return e->params->bucket[b].offset + d * dp_slice_size(e, b);
}

/* open.c */
void dp_engine_warn_unlocked(dp_engine *e); /* once: host memory could not be page-locked (P25) */
/* balance.c */
void dp_balance_warn(dp_engine *e);                  /* at open */
void dp_balance_epoch(dp_engine *e, uint64_t epoch); /* before a batch of that epoch is cut */

/* stats.c */
const char *dp_engine_device_name(const dp_engine *e, int device, char *buf, size_t size); /* "cpu:0"; returns buf */

/* snapshot.c */
dp_status dp_keep_open(dp_engine *e, dp_error *err); /* by the settings: e->keep may stay NULL */
void dp_keep_close(dp_keep *k);
dp_status dp_keep_renew(dp_engine *e, dp_error *err);                    /* before a batch: a snapshot, if the last is stale */
dp_status dp_keep_batch(dp_engine *e, const dp_batch *b, dp_error *err); /* a copy of it */
const dp_kept_batch *dp_kept(const dp_keep *k, int64_t number);          /* training batch since the snapshot */
dp_status dp_keep_normalize(dp_engine *e, const double *mean, const double *deviation, int n, dp_error *err);
dp_snapshot *dp_snapshot_begin(dp_engine *e, int64_t batches, int last_of_window);      /* NULL: this batch takes none */
dp_status dp_snapshot_take(dp_engine *e, dp_replica *r, dp_snapshot *s, dp_error *err); /* on the worker, behind the update */
void dp_snapshot_taken(dp_engine *e);
dp_status dp_keep_fit(dp_engine *e, const dp_params *before, dp_error *err); /* the snapshot into the layout of e->params */

/* recover.c */
/* After a failure that the config lets it survive: without that device, back at the snapshot, all batches since submitted again. 1: done,
 * and the call can be repeated; *r (may be NULL) = the result of batch `wanted` (-1: all that were waited for, none is wanted). 0: *status and *err say why not. */
int dp_recovered(dp_engine *e, dp_status *status, int64_t wanted, dp_result *r, dp_error *err);
/* devices.use, .weights, .threads for the devices of e without one; c may be e's own */
dp_status dp_config_without(dp_config *c, const dp_engine *e, int device, dp_error *err);

/* check.c: devices.check_replicas */
dp_status dp_check_replicas(dp_engine *e, dp_error *err);

/* evaluate.c: forward of a leaf, and with targets its loss into the first of the device's sums. */
dp_status dp_eval_compute(dp_engine *e, dp_replica *r, dp_pass *pass, dp_rows y, dp_error *err);

/* submit.c */
int dp_engine_brings(dp_engine *e, int always,
                     uint64_t *brought); /* must the next job? Then it is booked as the one that did. */
dp_status dp_engine_check(dp_engine *e, const char *call, dp_error *err); /* DP_EFAILED after a failure */
dp_status dp_count_targets(const dp_engine *e, dp_rows y, const uint64_t *ids, int64_t *targets, dp_error *err);
dp_status dp_check_rows(const dp_engine *e, dp_rows x, dp_rows y, dp_error *err);
/* result.c */
dp_status dp_engine_job(dp_engine *e, dp_job job, dp_error *err);       /* post, wait, book the timeline; failure sticks */
void dp_engine_book(dp_engine *e, uint64_t job);                        /* timelines up to the end of that job into stats */
dp_status dp_wait_once(dp_engine *e, dp_result *result, dp_error *err); /* dp_engine_wait without a way back */

/* weights.c: the whole state between the host and wherever it lies; `out`: from the devices. NULL arrays are left out. */
typedef struct dp_host_state {
    float *param, *buffer, *m, *v;
    dp_verdict verdict;
} dp_host_state;
dp_status dp_engine_move(dp_engine *e, dp_host_state *h, int out, int with_state, dp_error *err);

/* transfer.c: between devices' memory and the host, behind everything in flight. */
dp_status dp_engine_settle(dp_engine *e, dp_error *err); /* all replicas get the newest parameters */
dp_status dp_engine_pull(dp_engine *e, int device, void *host, const void *memory, size_t bytes, dp_error *err);
dp_status dp_engine_push(dp_engine *e, int device, void *memory, const void *host, size_t bytes, dp_error *err);
dp_status dp_engine_pull_gradient(dp_engine *e, float *host, dp_error *err); /* of the last reduction; DP_EARGUMENT: none yet */
/* Optimizer state number i (0: m, 1: v), whole, wherever its slices lie. */
dp_status dp_engine_move_state(dp_engine *e, int i, float *host, int out, dp_error *err);
dp_status dp_engine_renew(dp_engine *e, dp_error *err); /* the master's values were changed from outside: all get them */
#endif
