/* Internal: where each parameter lies in a replica's flat arrays, and how values travel between memory and file order.
 *
 * A replica has three flat float arrays: parameters and gradients (same layout, `count` elements) and buffers.
 * Parameters stand in the order in which backward completes them (last layer first), grouped in buckets: bucket 0 is complete
 * first. A bucket is closed when it has reached its limit and never splits a tensor; its borders do not depend on the number
 * of devices. It starts on a chunk of DP_CHUNK elements and is zero-padded to a multiple of `slices` chunks, so that each of
 * `slices` devices owns an equal slice of every bucket. Tensors start at 64-byte offsets. */
#ifndef DP_NN_PARAMS_H
#define DP_NN_PARAMS_H
#include "graph.h"

enum { DP_CHUNK = 4096 };

typedef struct dp_param {
    int tensor;            /* in graph */
    int64_t offset, count; /* in the flat arrays (parameters or buffers) */
    int bucket;            /* -1 for buffers */
    int decay;             /* 0: no_decay matched */
    int frozen;            /* freeze matched: no gradient, no update */
} dp_param;
typedef struct dp_bucket {
    int64_t offset, count; /* padded */
    int last_node;         /* complete when backward of this node (the lowest with tensors in it) has run */
} dp_bucket;
typedef struct dp_range { /* for the update: parameters that step, with one rule */
    int64_t offset, count;
    int decay;
} dp_range;
typedef struct dp_params {
    dp_param *param; /* one per tensor of the graph, same index */
    int n_params;
    dp_bucket *bucket;
    int n_buckets;
    dp_range *range; /* sorted by offset, neighbours of equal rule joined across gaps, frozen left out */
    int n_ranges;
    int64_t count;        /* elements of the flat parameter array, padded */
    int64_t buffer_count; /* elements of the flat buffer array */
    int slices;
} dp_params;
/* Reads optimizer.no_decay, optimizer.freeze, devices.bucket_mb. A pattern that matches nothing is an error. */
dp_status dp_params_open(dp_params **p, const dp_graph *g, const dp_config *c, int slices, dp_error *err);
void dp_params_free(dp_params *p);
/* Initial values of everything (parameters and buffers) into host arrays: PyTorch's rules, drawn by Philox with the seed and the
 * tensor's name, so that a layer's start does not depend on the others. */
void dp_params_init(const dp_params *p, const dp_graph *g, uint64_t seed, float *param, float *buffer);
/* One tensor between its place in memory order (dst/src at the tensor's first element) and PyTorch's order. */
void dp_tensor_to_file(const dp_tensor *t, const float *memory, float *file);
/* The same where it lies; scratch: dp_tensor_row elements (those that change places among themselves; 0: none do). */
int64_t dp_tensor_row(const dp_tensor *t);
void dp_tensor_to_file_here(const dp_tensor *t, float *memory, float *scratch);
void dp_tensor_from_file(const dp_tensor *t, const float *file, float *memory);
#endif
