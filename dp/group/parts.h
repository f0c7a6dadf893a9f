/* Internal: models and arrays, what the functional parts work on. One job is in flight at a time: while it runs, a device's model and
 * array belong to its worker, else to the caller. A worker reads the caller's part of a job (its arguments) only before it launches
 * anything, since a caller whose wait timed out is gone; what it uses later belongs to a model or an array, which are freed on their
 * worker or, when that is stuck, not at all. */
#ifndef DP_GROUP_PARTS_H
#define DP_GROUP_PARTS_H
#include "links.h"
#include "replica.h"

struct dp_array {
    dp_worker *w;
    void *data;      /* (rows, width) on the device */
    size_t capacity; /* bytes of data */
    dp_dtype dtype;
    dp_layout layout;
    int64_t rows, width;
    int64_t first; /* position of row 0 in the whole batch: keys the random draws */
};

typedef enum dp_gradient {
    DP_GRADIENT_NONE,
    DP_GRADIENT_OWN, /* of this model's rows */
    DP_GRADIENT_SUM  /* of all replicas' rows */
} dp_gradient;

typedef struct dp_model_host { /* pinned: copies go to and from here */
    dp_run run;
    dp_loss_sums sums;
    dp_verdict verdict;
} dp_model_host;

struct dp_model {
    dp_group *group;
    dp_worker *w;
    dp_model *master; /* the model that this is a replica of; its own for a master */
    int users;        /* handles of the caller, and a master's replicas, which need its tables: the last close frees */
    dp_replica r;
    dp_model_host *host;
    uint64_t *ids; /* (max_rows) pinned */
    float *
        stage; /* pinned: parameters and buffers, or gradients, on their way to a device that does not reach this one; NULL: none yet */
    uint64_t version; /* of the parameters */
    dp_pass pass;     /* the last forward pass */
    int64_t rows;     /* of the training pass that a backward may follow; 0: none */
    dp_gradient gradient;
    /* A master's: */
    dp_config *config;
    const dp_graph *graph;
    dp_params *params;
    dp_optimizer optimizer;
    dp_loss loss;
    int64_t targets_per_row;
    int64_t max_rows;
    uint64_t seed;
    uint64_t applies; /* training passes so far: the epoch of the random draws */
    float *inbox;     /* (n - 1, DP_INBOX) gradients that its kernels do not read where they are; NULL: none yet */
};

/* model.c */
enum { DP_INBOX = 1 << 18 };                          /* floats at a time */
dp_status dp_model_stage(dp_model *m, dp_error *err); /* there is one afterwards */
dp_status dp_model_new(dp_model **m, dp_group *g, int device, dp_model *master, int64_t max_rows,
                       dp_error *err);                   /* master NULL: it is one */
dp_status dp_model_allocate(dp_model *m, dp_error *err); /* on its worker: the device's memory */

/* array.c: every entry is there and of its device, NULL ones made (empty). */
dp_status dp_arrays_make(dp_group *g, dp_array **a, dp_error *err);
dp_status dp_arrays_check(const dp_group *g, dp_array *const *a, const char *what, dp_error *err);
/* On its worker: memory for the rows, kept when it suffices. */
dp_status dp_array_fit(dp_array *a, dp_rows shape, int64_t first, dp_error *err);

/* "return dp_on_device(err, d, dp_fail(err, ...))": a failure that the caller's thread found about one device. */
static inline dp_status dp_on_device(dp_error *err, int device, dp_status status)
{
    dp_error_place(err, device, device, -1, NULL, -1, NULL);
    return status;
}
#endif
