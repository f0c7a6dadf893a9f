/* Internal to dp/engine: what an engine consists of. */
#ifndef DP_ENGINE_INTERNAL_H
#define DP_ENGINE_INTERNAL_H
#include "../base/config.h"
#include "../group/replica.h"
#include "../group/signal.h"
#include "../group/split.h"
#include "engine.h"

enum { DP_SMALL_DROP, DP_SMALL_MERGE, DP_SMALL_ERROR };
enum { DP_STEPS = DP_JOBS };

typedef struct dp_switches { /* [devices], read once */
    int loss_on_master, broadcast_always, reduce_on_master, shards, small_batch, stop_on_nan;
} dp_switches;

/* One submitted batch. Written by the caller before it is posted; then the workers read it and write only what is marked, until the
 * caller has waited for it. */
typedef struct dp_step {
    dp_engine *engine;
    dp_batch batch;
    dp_split split;
    int64_t index;       /* training batches before it */
    uint64_t job;        /* group's number */
    dp_run run;          /* what all leaves share */
    uint64_t version;    /* of the parameters it needs */
    int replicate;       /* they changed since the replicas got them (or broadcast = always) */
    uint64_t replicated; /* last job before it in which they did; 0: none */
    int first_of_window, last_of_window;
    int reduce;         /* gradients are summed over the devices after this batch */
    int update;         /* ... and the optimizer steps: a target was counted in the window */
    uint64_t reduction; /* number of that reduction */
    uint64_t reduced;   /* number of the last one before it: nobody may overwrite a gradient until that has been read */
    double posted_at;
    int64_t window_updates; /* updates before it */
    uint64_t *ids;          /* (max rows) used when the batch has none; pinned */
    /* By the workers: */
    dp_run *leaf_run;    /* (leaves) pinned; the worker of a leaf */
    dp_loss_sums *sums;  /* (leaves) pinned; the worker of a leaf, by copy */
    dp_verdict *verdict; /* pinned; the master, by copy */
} dp_step;

/* Evaluation and prediction: leaves of a fixed row count, cut by sample index whatever the number of devices. */
typedef struct dp_pass_job {
    dp_engine *engine;
    dp_rows x, y;  /* y.data NULL: predict */
    int64_t first; /* row of leaf 0 of this job */
    int leaves;    /* leaf i runs on device i % N */
    dp_run run;
    uint64_t version;
    int replicate, buffers; /* pull parameters, running statistics first */
    uint64_t replicated;    /* as in dp_step */
    uint64_t stats;         /* job that committed those statistics; 0: they are the loaded ones */
    dp_run *leaf_run;       /* (DP_MAX_LEAVES) pinned */
    dp_loss_sums *sums;     /* (DP_MAX_LEAVES) pinned */
    float *out;             /* predict: rows of leaf 0 of this job */
} dp_pass_job;

typedef struct dp_gathered {  /* loss = master: on the master, of every device */
    float *output, *gradient; /* (capacity, width) of the network's output */
    void *target;
} dp_gathered;

struct dp_engine {
    dp_config *config;
    const dp_graph *graph;
    dp_params *params;
    dp_group *group;
    int n; /* devices */
    dp_replica *replica;
    dp_switches on;
    dp_optimizer optimizer;
    dp_loss loss;
    int64_t targets_per_row;
    dp_splitter splitter;
    int64_t max_rows, eval_rows; /* of a training batch; of an evaluation leaf */
    dp_gathered *gathered;
    /* One signal per device: the owner is that device's worker. */
    dp_signal *has_gradient; /* value = reduction: its gradient sum is complete */
    dp_signal *has_sum;      /* value = reduction: its slice is summed over all devices (reduce = sliced) */
    dp_signal *has_slice;    /* value = job: it has pulled its slice of the new parameters */
    dp_signal *has_params;   /* value = job: it has pulled all of them, and reads no other device's any more */
    dp_signal *has_output;   /* value = round counter: outputs of its leaf (loss = master) */
    dp_signal params_ready;  /* master; value = version */
    dp_signal reduced;       /* master; value = reduction: all gradients have been read */
    dp_signal *loss_ready;   /* [device] the master's; value = round counter of a round in which the device has a leaf */
    dp_signal stats_ready;   /* master; value = job that committed running statistics */
    dp_be_event **ended;     /* [device][DP_JOBS]: end of a job's work */
    /* The caller's thread only: */
    dp_step step[DP_STEPS];
    dp_pass_job pass;
    uint64_t submitted, waited;
    uint64_t version, pulled_version;                /* of the parameters; last that the replicas got */
    uint64_t replicated;                             /* job in which they did */
    uint64_t stats_version, pulled_stats, stats_job; /* stats_job: last that committed; 0: none */
    int64_t first_batch;                             /* training batches before this engine was opened (resume) */
    uint64_t reductions;
    int64_t window_targets;
    int window_open, failed;
    double lr;
    uint64_t seed;
    int64_t updates; /* optimizer steps, as far as waited for */
    dp_device_stats *stats;
};

/* open.c: dp_engine_open with a backend of the caller's (NULL: by the names) and a forced number of leaves (0: by the settings). */
dp_status dp_engine_open_on(dp_engine **e, const dp_graph *g, const dp_config *c, const dp_backend *backend, int leaves,
                            dp_error *err);

/* step.c, replicate.c, reduce.c, evaluate.c: what workers do in a job. */
dp_status dp_step_run(void *user, dp_worker *w, uint64_t seq, dp_error *err);
int dp_step_finished(void *user, dp_worker *w, uint64_t seq);
dp_status dp_phase_upload(dp_engine *e, dp_replica *r, const dp_run *run, dp_rows x, dp_rows y, const uint64_t *ids,
                          dp_error *err);
dp_status dp_phase_replicate(dp_engine *e, dp_replica *r, uint64_t version, uint64_t job, uint64_t before, dp_error *err);
dp_status dp_phase_reduce(dp_engine *e, dp_replica *r, uint64_t reduction, dp_error *err);
dp_status dp_job_ended(dp_engine *e, dp_worker *w, uint64_t seq, dp_error *err);

/* submit.c */
int dp_engine_replicates(dp_engine *e, int always,
                         uint64_t *before); /* does the next job? Then it is booked as the one that did. */
dp_status dp_engine_check(dp_engine *e, const char *call, dp_error *err); /* DP_EFAILED after a failure */
dp_status dp_engine_job(dp_engine *e, dp_job job, dp_error *err);         /* post, wait, book the timeline; failure sticks */
void dp_engine_book(dp_engine *e, uint64_t job);                          /* timelines up to the end of that job into stats */
dp_status dp_count_targets(const dp_engine *e, dp_rows y, const uint64_t *ids, int64_t *targets, dp_error *err);
dp_status dp_check_rows(const dp_engine *e, dp_rows x, dp_rows y, dp_error *err);

/* transfer.c: between the master's memory and the host, behind everything in flight. */
dp_status dp_engine_pull(dp_engine *e, void *host, const void *device, size_t bytes, dp_error *err);
dp_status dp_engine_push(dp_engine *e, void *device, const void *host, size_t bytes, dp_error *err);
dp_status dp_engine_pull_gradient(dp_engine *e, float *host, dp_error *err); /* of the last reduction; DP_EARGUMENT: none yet */
dp_status dp_engine_renew(dp_engine *e,
                          dp_error *err); /* the master's values were changed from outside: replicas take them next */
#endif
