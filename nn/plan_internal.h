/* Internal to nn/plan*.c: what a plan consists of. */
#ifndef DP_NN_PLAN_INTERNAL_H
#define DP_NN_PLAN_INTERNAL_H
#include "plan.h"

typedef struct dp_value {     /* what one kernel writes and others read; value 0 is the input */
    const dp_node *node;      /* the chain's last node: shape */
    int wanted;               /* its gradient leads to something that trains */
    int data_span, grad_span; /* in the arena; -1: none. Values that share memory share a span. */
    float *data, *grad;
} dp_value;

typedef struct dp_plan_link { /* one kernel in execution order */
    dp_chain chain;
    dp_kernel *kernel;
    dp_need need;
    int n_in, in[DP_MAX_IN], out; /* values */
    int trains;                   /* backward has something to do */
    int adds[DP_MAX_IN];          /* this gradient is added to one that is already there */
    int d_in_span[DP_MAX_IN], saved_span;
    float *d_in[DP_MAX_IN];
    void *saved, *derived;
} dp_plan_link;

typedef struct dp_bucket_stop {
    int bucket, link; /* forward: the first that reads it; backward: it is complete once this one has run */
} dp_bucket_stop;

/* DP_ARENA=split (tests): every span has memory of its own, so that whoever writes beyond it is seen, and is filled with NaN once nobody
 * should read it any more. */
typedef struct dp_lone_span {
    void *memory;
    size_t bytes;
    int last; /* when it is used last */
} dp_lone_span;

enum { DP_PLAN_PREPARED = 64 };
struct dp_plan {
    const dp_backend *backend;
    dp_be_device *device;
    const dp_graph *graph;
    const dp_params *params;
    int64_t capacity;
    int train;
    dp_value *value;
    int n_values, output;
    float *input; /* where converted rows go; value[0] points there or at the caller's */
    dp_plan_link *link;
    int n_links;
    dp_bucket_stop *reads, *bucket; /* in the order of forward; in the order of completion */
    dp_lone_span *lone;             /* NULL: all spans lie in the arena */
    int n_lone;
    void *arena, *workspace, *derived, *parts;
    size_t arena_bytes, workspace_bytes, derived_bytes, parts_bytes;
    float *part[2], *whole; /* in `parts`; NULL: no batchnorm that trains */
    int64_t prepared[DP_PLAN_PREPARED];
    int n_prepared;
    int walks;                                    /* forward has begun */
    int next, next_bucket;                        /* where forward or backward stands: the next link, the next stop */
    int given;                                    /* the part of that link is given */
    uint64_t exchanges;                           /* parts given in this direction */
    void (*enter)(void *user, const char *layer); /* dp_plan_watch; NULL: nobody looks */
    void *watcher;
};
#endif
