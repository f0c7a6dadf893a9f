/* Internal: a graph on one device for up to `capacity` rows: one arena, planned by liveness, kernels prepared per row count.
 * It runs in stops, so that the engine can act between them (nothing in it waits). Owner: one worker thread. */
#ifndef DP_NN_PLAN_H
#define DP_NN_PLAN_H
#include "backend.h"
#include <stdatomic.h>

typedef struct dp_plan dp_plan;
typedef enum dp_stop {
    DP_STOP_END,   /* forward: the output is there, the loss comes next; backward: everything has run */
    DP_STOP_BUCKET /* backward: `which` = a bucket whose gradients are now complete */
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
    float *stats; /* shadow of the buffers */
} dp_pass;

/* train = 0: a plan that never runs backward (less memory). */
dp_status dp_plan_open(dp_plan **p, const dp_backend *b, dp_be_device *d, const dp_graph *g, const dp_params *params,
                       int64_t capacity, int train, dp_error *err);
dp_status dp_plan_prepare(dp_plan *p, int64_t rows, dp_error *err); /* create what this row count needs */
dp_status dp_plan_forward(dp_plan *p, dp_be_stream *s, const dp_pass *pass, dp_error *err); /* x to output */
float *dp_plan_output(const dp_plan *p);      /* (capacity, width of the output node) device memory, valid after forward */
float *dp_plan_output_grad(const dp_plan *p); /* to be filled by the loss before backward; not the output's memory */
/* Backward from the output's gradient, up to the next stop. Call until DP_STOP_END. */
dp_status dp_plan_backward(dp_plan *p, dp_be_stream *s, const dp_pass *pass, dp_stop *stop, int *which, dp_error *err);
/* Where the plan publishes, before each launch, the layer and the time (CLOCK_MONOTONIC, seconds): for errors and the watchdog. */
void dp_plan_watch(dp_plan *p, _Atomic(const char *) *layer, _Atomic double *progress);
void dp_plan_close(dp_plan *p);
#endif
