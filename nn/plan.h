/* Internal: a graph on one device for up to `capacity` rows: one arena, planned by liveness, kernels prepared per row count.
 * It runs in stops, so that the engine can act between them (nothing in it waits). Owner: one worker thread. */
#ifndef DP_NN_PLAN_H
#define DP_NN_PLAN_H
#include "backend.h"

typedef struct dp_plan dp_plan;
typedef enum dp_stop {
    DP_STOP_END,    /* forward: the output is there, the loss comes next; backward: everything has run */
    DP_STOP_BUCKET, /* forward (pass->by_bucket): the next layer is the first to read bucket `which` of the parameters;
                       backward: `which` = a bucket whose gradients are now complete */
    DP_STOP_PART /* forward and backward (pass->sync): a dp_plan_part is written, dp_plan_whole wanted; `which` = its channels */
} dp_stop;

typedef struct dp_pass {      /* one leaf */
    dp_run run;               /* host copy */
    const dp_run *run_device; /* the same in device memory */
    const void *x;            /* raw rows in device memory, aligned; read until backward has run */
    dp_dtype x_type;
    dp_layout x_layout;
    const float *mean, *inv_std; /* (channels) device memory; NULL: none */
    const float *param;          /* flat arrays of the replica */
    float *grad;                 /* NULL: no backward follows */
    const float *buffer;
    float *stats;  /* shadow of the buffers */
    int by_bucket; /* forward stops at buckets */
    int sync;      /* batchnorm stops for the statistics of all leaves */
    uint64_t part; /* sync: exchanges before this forward or backward, on all devices alike */
} dp_pass;

/* train = 0: a plan that never runs backward (less memory). */
dp_status dp_plan_open(dp_plan **p, const dp_backend *b, dp_be_device *d, const dp_graph *g, const dp_params *params,
                       int64_t capacity, int train, dp_error *err);
dp_status dp_plan_prepare(dp_plan *p, int64_t rows, dp_error *err); /* create what this row count needs */
/* x to output, up to the next stop. The first call of a leaf begins it; call until DP_STOP_END. Every bucket stops once. */
dp_status dp_plan_forward(dp_plan *p, dp_be_stream *s, const dp_pass *pass, dp_stop *stop, int *which, dp_error *err);
float *dp_plan_output(const dp_plan *p);      /* (capacity, width of the output node) device memory, valid after forward */
float *dp_plan_output_grad(const dp_plan *p); /* to be filled by the loss before backward; not the output's memory */
/* Backward from the output's gradient, up to the next stop. Call until DP_STOP_END. */
dp_status dp_plan_backward(dp_plan *p, dp_be_stream *s, const dp_pass *pass, dp_stop *stop, int *which, dp_error *err);
int dp_plan_completed(const dp_plan *p, int i); /* the bucket that backward completes as number i */
/* At DP_STOP_PART number n, counted from pass->part + 1: this leaf's part (2, channels) lies in buffer n % 2, so that peers may still read
 * the one of the stop before; and where the pooled one must be put, by work in the same stream. NULL: the network has no
 * batchnorm, or the plan never trains. */
const float *dp_plan_part(const dp_plan *p, uint64_t n);
size_t dp_plan_part_bytes(const dp_plan *p); /* of one buffer */
int dp_plan_exchanges(const dp_plan *p);     /* parts of one forward and backward */
float *dp_plan_whole(const dp_plan *p);
/* enter(user, layer) is called before each launch: for errors, watchdog and timeline. */
void dp_plan_watch(dp_plan *p, void (*enter)(void *user, const char *layer), void *user);
void dp_plan_close(dp_plan *p);
void dp_plan_leave(dp_plan *p); /* of a device that is lost: frees what is on the host, touches nothing else */
/* The batchnorms that reach the output, as `merge` wants them; list: room for one per node. Returns how many. */
int dp_batchnorms(const dp_graph *g, const dp_params *p, dp_bn_layer *list);
#endif
