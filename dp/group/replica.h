/* Internal: one device's copy of the model: flat arrays, plan, and the memory that a leaf travels through. Owner: the device's worker;
 * peers read `param`, `result` and `sums` under the rules of dp/README.md. */
#ifndef DP_GROUP_REPLICA_H
#define DP_GROUP_REPLICA_H
#include "../../nn/optim.h"
#include "../../nn/plan.h"
#include "group.h"

enum { DP_MAX_SLOTS = 10 };
typedef struct dp_replica {
    dp_worker *w;
    const dp_backend *b;
    const dp_graph *graph;
    const dp_params *params;
    dp_plan *plan, *eval_plan;                      /* the same when a training leaf is as large as an evaluation leaf */
    int64_t capacity, eval_capacity, rows_capacity; /* rows of a training leaf, an evaluation leaf, the larger */
    float *param, *buffer, *shadow;                 /* shadow: new running statistics of the step */
    float *grad[DP_MAX_SLOTS];                      /* gradient arrays: a stack for folding leaves */
    int slots;
    float *window;      /* sum over the micro-batches of a window; NULL without accumulation */
    float **leaf_stats; /* (2, leaves) flat buffers: statistics of each leaf, of two steps in turn (bn_stats = merged, sync) */
    int n_leaf_stats;
    float *inbox[DP_LANES];                              /* copies of what this device cannot read on others: slots of ... */
    int64_t inbox_slot[DP_LANES], inbox_slots[DP_LANES]; /* ... so many floats, so many of them */
    /* A leaf on the device. */
    void *x, *y;
    size_t x_bytes, y_bytes;
    uint64_t *ids;
    dp_run *run, *update_run; /* of a leaf; (2) of the optimizer's step, which runs in other lanes, of two in turn */
    dp_loss_sums *sums;       /* (leaves of a job) */
    int n_sums;
    float *mean, *inv_std; /* (channels) */
    int channels, normalize;
    float *m, *v; /* (states): of all parameters, or of the slices of this device, bucket by bucket */
    int64_t states;
    double *chunk_sums[2];   /* of the gradient by chunk, of two reductions in turn */
    uint64_t *check_sums;    /* of the parameters by chunk (devices.check_replicas) */
    dp_verdict *verdict;     /* (2): what the update obeys; what is reported, when that is known later */
    uint64_t booked;         /* timeline records that the caller has added up (the caller's) */
    double booked_to;        /* ... and the end of the last of them */
    _Atomic int64_t created; /* backend's counter at the end of the last job */
} dp_replica;

typedef struct dp_replica_options {
    const dp_graph *graph;
    const dp_params *params;
    int64_t capacity, eval_capacity;
    int slots;  /* gradient arrays; 0: a replica that is never trained */
    int window; /* with an array for accumulation */
    int sums;
    int states;                                          /* optimizer arrays per parameter; 0: none, or no update here */
    int state_slices;                                    /* they hold one of so many slices of every bucket; 0, 1: all */
    int64_t inbox_slot[DP_LANES], inbox_slots[DP_LANES]; /* 0: none */
    int leaf_stats;                                      /* leaves whose statistics are kept apart */
    int64_t targets_per_row;
} dp_replica_options;

/* On the worker's thread. DP_ENOMEM's text says which batch rows would fit. */
dp_status dp_replica_open(dp_replica *r, dp_worker *w, const dp_replica_options *o, dp_error *err);
void dp_replica_close(dp_replica *r);
/* Host values into the flat arrays; returns when they are there. */
dp_status dp_replica_put(dp_replica *r, const float *param, const float *buffer, dp_error *err);

/* Copies of device memory in this worker's stream, counted; peer -1 = the host. `*_now` return when the copy has ended. */
dp_status dp_fetch(dp_worker *w, void *dst, const void *src, size_t bytes, int peer, dp_error *err);
dp_status dp_send(dp_worker *w, void *host, const void *src, size_t bytes, dp_error *err); /* to the host */

/* sum over n arrays in the halving tree; NULL entries are skipped; counted as received from the devices they belong to. */
dp_status dp_sum(dp_worker *w, float *dst, const float *const *src, int n, int64_t count, dp_error *err);
/* Norm, clip and optimizer step of a whole flat gradient; the verdict stays on the device. */
dp_status dp_replica_update(dp_replica *r, const float *grad, const dp_optimizer *o, dp_error *err);
size_t dp_dtype_size(dp_dtype t);
#endif
