/* Internal to nn/cpu: the pieces of the CPU backend. A family (conv, linear, norm, ...) is one row of functions; backend.c looks the
 * row up by the head op of a chain and forwards to it. Streams run in line: a call has done its work when it returns. */
#ifndef DP_NN_CPU_H
#define DP_NN_CPU_H
#include "../backend.h"
#include "vec.h"
#include <sched.h>

struct dp_be_device {
    dp_be_options options;
    cpu_set_t cores; /* options.pin: where its thread runs */
    dp_memory memory;
    const struct dp_vec *vec; /* loops for this processor's instruction set */
    int64_t created;          /* primitives, streams, events made since open */
    struct dp_dnnl *dnnl;     /* oneDNN's engine and stream of this device (onednn.c) */
};
struct dp_be_stream {
    dp_be_device *device;
};

typedef struct dp_family {
    /* May `next` join? NULL = never. */
    int (*fuses)(const dp_chain *chain, const dp_node *next);
    /* Fill need, allocate *state (malloc'd, family's own). */
    dp_status (*open)(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state, dp_error *err);
    dp_status (*prepare)(void *state, int64_t rows, dp_error *err); /* NULL = nothing to make */
    dp_status (*forward)(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io);
    dp_status (*backward)(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io);
    dp_status (*partial)(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io,
                         int backward); /* NULL = need.part is 0 */
    void (*close)(void *state);         /* NULL = free(state) */
} dp_family;

extern const dp_family dp_cpu_conv2d, dp_cpu_linear, dp_cpu_attention; /* conv.c, linear.c, attention.c (oneDNN) */
extern const dp_family dp_cpu_batchnorm2d, dp_cpu_layernorm;           /* norm.c */
extern const dp_family dp_cpu_pointwise;                               /* pointwise.c: relu, gelu, sigmoid, tanh, add */
extern const dp_family dp_cpu_maxpool2d, dp_cpu_avgpool2d, dp_cpu_globalavgpool; /* pool.c */
extern const dp_family dp_cpu_flatten, dp_cpu_concat;                            /* shape.c */
extern const dp_family dp_cpu_dropout, dp_cpu_embedding, dp_cpu_position,
    dp_cpu_softmax; /* dropout.c, embedding.c, softmax.c */

/* Of the backend's table; flat.c, statistics.c, loss.c, convert.c, optimizer.c. Same contracts as in backend.h. */
dp_status dp_cpu_sum(dp_be_stream *s, float *dst, const float *const *src, int n, int64_t count);
dp_status dp_cpu_pool(dp_be_stream *s, float *whole, const float *const *part, const int64_t *rows, int n, int64_t channels);
dp_status dp_cpu_merge(dp_be_stream *s, float *shadow, const float *buffer, const dp_bn_layer *layers, int n_layers,
                       const float *const *leaf, const int64_t *rows, int n);
dp_status dp_cpu_checksum(dp_be_stream *s, const float *x, int64_t count, uint64_t *chunk_sums);
dp_status dp_cpu_sumsq(dp_be_stream *s, const float *x, int64_t count, double *chunk_sums);
dp_status dp_cpu_norm(dp_be_stream *s, const double *chunk_sums, int64_t n, const dp_run *run_device, const dp_optimizer *o,
                      dp_verdict *v);
dp_status dp_cpu_update(dp_be_stream *s, const dp_optimizer *o, const dp_range *ranges, int n_ranges, int64_t first,
                        int64_t count, float *p, const float *g, float *m, float *v, const dp_run *run_device,
                        const dp_verdict *verdict);
dp_status dp_cpu_loss(dp_be_stream *s, const dp_loss *l, int64_t rows, const float *logits, const void *targets,
                      dp_dtype target_type, float *d_logits, dp_loss_sums *sums);
dp_status dp_cpu_convert(dp_be_stream *s, const dp_run *run, void *dst, dp_dtype dst_type, const void *src, dp_dtype src_type,
                         dp_layout src_layout, const int64_t shape[3], const float *mean, const float *inv_std);
#endif
