/* Internal to nn/cuda: the pieces of the CUDA backend. A family (conv, linear, norm, ...) is one row of functions; backend.c looks the
 * row up by the head op of a chain and forwards to it. Host-only files are C; files with kernels are .cu, compiled by nvcc, or as C++ for
 * the simulator of test/cusim. Everything shared between them has C linkage.
 *
 * Rules: runtime calls only on a worker's thread, after dp_backend.open or bind; no allocation, creation or blocking call in forward,
 * backward and the flat functions; never the legacy default stream. A call that fails returns dp_cuda_check(...), so that the device's
 * state (alive, lost) and the last failed call are known. */
#ifndef DP_NN_CUDA_H
#define DP_NN_CUDA_H
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __cplusplus
extern "C" {
#endif
#include "../backend.h"

enum { DP_CUDA_ALIGNMENT = 256 };

struct dp_be_device {
    dp_be_options options; /* index, deterministic, tf32, conv_own, ... */
    dp_memory memory;
    char name[32], pci[16], model[64]; /* "cuda:0" */
    int gpu;                           /* the runtime's index */
    int sms;                           /* multiprocessors */
    int arch;                          /* compute capability, 10 * major + minor */
    size_t shared_max;                 /* bytes of shared memory that a block may ask for */
    int64_t created;                   /* plans, descriptors, streams, events made since open: families add theirs */
    struct dp_lt *lt;                  /* cublasLt's handle and choices (lt.c) */
    struct dp_dnn *dnn;                /* cuDNN's handle and descriptors (dnn.c); NULL until a convolution wants it */
    struct dp_gate *gates;             /* of linear layers: what their consumers' gradients pass (linear.c) */
    struct {
        void *domain; /* NULL: no tool listens */
        int depth, level[DP_RANGES];
    } ranges;                    /* nvtx.c */
    char *notes;                 /* choices that were measured, a line each (tune.c) */
    struct dp_nvml *nvml;        /* NULL: not installed (nvml.h) */
    struct dp_cuda_clock *clock; /* events against CLOCK_MONOTONIC (event.c) */
    int lost;                    /* __atomic: the context is gone, no call may touch it */
    int error;                   /* __atomic: cudaError_t of the last failed call, 0: none */
    const char *call;            /* __atomic: its name */
};
/* Partial results of kernels that end in one number: at most DP_CUDA_PARTS of DP_CUDA_PART bytes, and tickets by which the last block, or
 * the last one of a group, knows itself. Of a stream, since two streams may run such kernels at once. */
enum { DP_CUDA_PARTS = 1024, DP_CUDA_PART = 32, DP_CUDA_TICKETS = 64 };
enum { DP_CUDA_MARKS = 256, DP_CUDA_CAPTURES = 1, DP_CUDA_AIMS };
struct dp_be_stream {
    dp_be_device *device;
    cudaStream_t stream;
    void *parts;                       /* device memory */
    unsigned *ticket;                  /* (DP_CUDA_TICKETS) device memory, 0 between kernels */
    int marking;                       /* graph.c: DP_CUDA_CAPTURES, DP_CUDA_AIMS; 0: records are records */
    cudaEvent_t marked[DP_CUDA_MARKS]; /* the events that it was told to record since */
    int n_marked;
};
struct dp_be_event {
    dp_be_device *device;
    cudaEvent_t event;
};

typedef struct dp_family {
    /* May `next` join? NULL = never. */
    int (*fuses)(const dp_chain *chain, const dp_node *next);
    /* Fill need (zeroed before), allocate *state (malloc'd, family's own). All choices (algorithm, epilogue) are made here. */
    dp_status (*open)(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state, dp_error *err);
    dp_status (*prepare)(void *state, int64_t rows, dp_error *err); /* NULL = nothing to make */
    dp_status (*forward)(void *state, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io);
    dp_status (*backward)(void *state, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io);
    dp_status (*partial)(void *state, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io,
                         int backward); /* NULL where need.part is 0 */
    void (*close)(void *state);         /* NULL = free(state) */
} dp_family;

extern const dp_family dp_cuda_conv2d, dp_cuda_linear, dp_cuda_attention; /* conv.c, linear.c, attention.c */
extern const dp_family dp_cuda_batchnorm2d, dp_cuda_layernorm;            /* norm.cu, layernorm.cu */
extern const dp_family dp_cuda_pointwise;                                 /* pointwise.cu: relu, gelu, sigmoid, tanh, add */
extern const dp_family dp_cuda_maxpool2d, dp_cuda_avgpool2d, dp_cuda_globalavgpool; /* pool.cu */
extern const dp_family dp_cuda_flatten, dp_cuda_concat;                             /* shape.cu */
extern const dp_family dp_cuda_dropout, dp_cuda_embedding, dp_cuda_position,
    dp_cuda_softmax; /* dropout.cu, embedding.cu, softmax.cu */

/* One file talks to each library. Opening one that is open does nothing; closing one that is not, too. lt is opened with the device, dnn by
 * the first convolution. Both set d->lt / d->dnn. */
dp_status dp_lt_open(dp_be_device *d, dp_error *err);
void dp_lt_close(dp_be_device *d);
dp_status dp_dnn_open(dp_be_device *d, dp_error *err);
void dp_dnn_close(dp_be_device *d);
void dp_dnn_forget_stream(dp_be_device *d); /* one that it was used on has been closed */
size_t dp_lt_version(void);
size_t dp_dnn_version(void);

/* -- failure (status.c) --
 * dp_cuda_check: DP_OK for success; DP_ENOMEM and DP_EDEVICE leave the context alive; DP_EDEVICE_LOST is for good. `call` is a constant,
 * the call as it is written, of which messages show the name; err may be NULL (calls in a step have none). Takes back the runtime's last error. */
dp_status dp_cuda_check(dp_be_device *d, cudaError_t e, const char *call, dp_error *err);
dp_status dp_cuda_failed(dp_be_device *d, dp_status status, int code, const char *call, const char *code_name,
                         dp_error *err); /* the same for a library's code: cublasLt, cuDNN */
int dp_cuda_hard(cudaError_t e);         /* 1: ends the process' use of the device */
static inline int dp_cuda_lost(const dp_be_device *d)
{
    return __atomic_load_n(&d->lost, __ATOMIC_RELAXED);
}
dp_status dp_cuda_gone(const dp_be_device *d, dp_error *err); /* DP_EDEVICE_LOST and the call that found it */
dp_status dp_cuda_settle(
    dp_be_stream *s); /* run.debug_sync: until the stream has ended, so that a failure comes back where it arose */
#define DP_CUDA_TRY(d, call, err)                                                                                              \
    do {                                                                                                                       \
        if (dp_cuda_lost(d)) return dp_cuda_gone(d, err);                                                                      \
        const dp_status dp_cuda_status_ = dp_cuda_check(d, call, #call, err);                                                  \
        if (dp_cuda_status_) return dp_cuda_status_;                                                                           \
    } while (0)

/* -- of the backend's table; same contracts as in backend.h -- */
int dp_cuda_enumerate(int i, dp_device_info *info); /* device.c */
dp_status dp_cuda_open(dp_be_device **d, const dp_be_options *o, dp_error *err);
void dp_cuda_close(dp_be_device *d);
void dp_cuda_bind(dp_be_device *d);
int dp_cuda_health(dp_be_device *d, dp_device_health *h);
dp_status dp_cuda_alloc(dp_be_device *d, int mem_class, size_t bytes, const char *what, void **p, dp_error *err); /* memory.c */
void dp_cuda_free(dp_be_device *d, int mem_class, void *p, size_t bytes);
dp_status dp_cuda_alloc_pinned(size_t bytes, void **p, dp_error *err);
void dp_cuda_free_pinned(void *p, size_t bytes);
dp_status dp_cuda_pin(dp_be_device *d, void *p, size_t bytes, dp_error *err);
void dp_cuda_unpin(dp_be_device *d, void *p);
int dp_cuda_reads_peer(const dp_be_device *d, const dp_be_device *peer);
/* Device memory that libraries took since the mark, beyond what was allocated through dp_cuda_alloc meanwhile: booked as class library. */
typedef struct dp_cuda_mark {
    size_t free;
    int64_t held;
} dp_cuda_mark;
dp_cuda_mark dp_cuda_mark_memory(dp_be_device *d);
dp_status dp_cuda_book_library(dp_be_device *d, const dp_cuda_mark *before, const char *what, dp_error *err);
dp_status dp_cuda_stream_open(dp_be_device *d, int priority, dp_be_stream **s, dp_error *err); /* event.c */
void dp_cuda_stream_close(dp_be_stream *s);
dp_status dp_cuda_event_open(dp_be_device *d, dp_be_event **e, dp_error *err);
void dp_cuda_event_close(dp_be_event *e);
dp_status dp_cuda_record(dp_be_stream *s, dp_be_event *e);
dp_status dp_cuda_wait(dp_be_stream *s, dp_be_event *e);
int dp_cuda_done(dp_be_event *e);
double dp_cuda_when(dp_be_event *e);
dp_status dp_cuda_capture(dp_be_stream *s); /* graph.c */
dp_status dp_cuda_captured(dp_be_stream *s, dp_be_graph **g);
void dp_cuda_graph_aim(dp_be_stream *s);
dp_status dp_cuda_graph_launch(dp_be_stream *s, dp_be_graph *g);
void dp_cuda_graph_close(dp_be_graph *g);
dp_status dp_cuda_mark_event(dp_be_stream *s, dp_be_event *e); /* a record while the stream is marking */
dp_status dp_cuda_clock_open(dp_be_device *d, dp_error *err);
void dp_cuda_clock_close(dp_be_device *d);
dp_status dp_cuda_copy(dp_be_stream *s, void *dst, const void *src, size_t bytes); /* memory.c */
dp_status dp_cuda_fill(dp_be_stream *s, void *dst, int byte, size_t bytes);
dp_status dp_cuda_convert(dp_be_stream *s, const dp_run *run, void *dst, dp_dtype dst_type, const void *src, dp_dtype src_type,
                          dp_layout src_layout, const int64_t shape[3], const float *mean,
                          const float *inv_std); /* convert.cu */
dp_status dp_cuda_loss(dp_be_stream *s, const dp_loss *l, int64_t rows, const float *logits, const void *targets,
                       dp_dtype target_type, float *d_logits, dp_loss_sums *sums);                 /* loss.cu */
dp_status dp_cuda_sum(dp_be_stream *s, float *dst, const float *const *src, int n, int64_t count); /* flat.cu */
dp_status dp_cuda_sumsq(dp_be_stream *s, const float *x, int64_t count, double *chunk_sums);
dp_status dp_cuda_norm(dp_be_stream *s, const double *chunk_sums, int64_t n, const dp_run *run_device, const dp_optimizer *o,
                       dp_verdict *v);
dp_status dp_cuda_checksum(dp_be_stream *s, const float *x, int64_t count, uint64_t *chunk_sums);
dp_status dp_cuda_pool(dp_be_stream *s, float *whole, const float *const *part, const int64_t *rows, int n,
                       int64_t channels); /* stats.cu */
dp_status dp_cuda_merge(dp_be_stream *s, float *shadow, const float *buffer, const dp_bn_layer *layers, int n_layers,
                        const float *const *leaf, const int64_t *rows, int n);
dp_status dp_cuda_update(dp_be_stream *s, const dp_optimizer *o, const dp_range *ranges, int n_ranges, int64_t first,
                         int64_t count, float *p, const float *g, float *m, float *v, const dp_run *run_device,
                         const dp_verdict *verdict); /* optimizer.cu */
const dp_backend *dp_backend_cuda(void);             /* backend.c */
#ifdef __cplusplus
}
#endif
#endif
