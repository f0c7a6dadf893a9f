/* Internal: the seam to a kind of device. A backend is one constant table of functions.
 *
 * Threads: enumerate from any thread; every other call on a device comes from the one thread that `bind` was called on.
 * Order: all work goes to a stream; calls return at once (they may run late), so whatever a call is given by pointer must stay
 * valid until the stream has passed it, except where "at call time" stands. Nothing may assume that a stream runs in line. */
#ifndef DP_NN_BACKEND_H
#define DP_NN_BACKEND_H
#include "../dp/base/memory.h"
#include "graph.h"
#include "params.h"

enum { DP_BACKEND_ABI = 4 };
typedef struct dp_be_device dp_be_device;
typedef struct dp_be_stream dp_be_stream;
typedef struct dp_be_event dp_be_event;
typedef struct dp_kernel dp_kernel;
typedef struct dp_be_graph dp_be_graph;

/* What changes from step to step. Once in host memory (read at call time: rows and switches decide what is launched) and once in
 * device memory (read when the work runs: a captured graph must find the new values there). Uploaded with the batch. */
typedef struct dp_run {
    int64_t rows; /* of this leaf; >= 1, <= capacity */
    uint64_t seed, epoch;
    const uint64_t *ids;    /* (rows) device memory */
    uint64_t param_version; /* derived copies of weights are remade when it changes; 0 never occurs */
    double inv_count;       /* 1 / targets of the whole window; 0: nothing counted, the update is skipped */
    double lr;
    int32_t train; /* dropout draws, batchnorm uses the leaf's statistics */
    int32_t stats; /* DP_STATS_: what batchnorm writes to io->stats */
    int32_t reserved;
    int64_t batch_rows; /* of all leaves that io->whole stands for (bn_stats = sync) */
} dp_run;
enum {
    DP_STATS_NONE,
    DP_STATS_RUNNING, /* new running statistics, PyTorch's rule (leaf 0 under bn_stats = primary; every leaf under sync) */
    DP_STATS_LEAF     /* mean and biased variance that this leaf was normalised with, raw; `merge` pools them */
};

/* A head op and the pointwise followers that run in the same kernel. Inputs of a kernel: the head's inputs, then for each
 * follower with two inputs (add) the one that is not the chain. */
enum { DP_MAX_CHAIN = 4 };
typedef struct dp_chain {
    const dp_graph *graph;
    const dp_node *node[DP_MAX_CHAIN];
    int n;
} dp_chain;

/* What a kernel needs for `capacity` rows, and what its backward reads: liveness follows from it. */
typedef struct dp_need {
    size_t saved;                /* bytes kept from forward to backward of the same leaf */
    size_t workspace;            /* bytes, scratch inside one call; shared by all kernels of the plan */
    size_t derived;              /* bytes of derived weights, kept between steps */
    uint8_t reads_in[DP_MAX_IN]; /* backward reads input k */
    uint8_t reads_out;           /* backward reads the output */
    uint8_t in_place;            /* forward may run with out == in[0] (then backward must not read in[0]) */
    uint8_t passes[DP_MAX_IN];   /* backward accepts d_in[k] == d_out, same buffer */
    int64_t part; /* floats of a part that sync exchanges between the leaves of a batch, a multiple of 16; 0: none */
} dp_need;

/* Everything a kernel may touch, all on its device. The struct is read at call time; the memory when the work runs.
 * Backward OVERWRITES grad and d_in (sums over several consumers are the plan's); it may use d_out as scratch.
 * d_in[k] NULL: that gradient is not wanted. grad[t] NULL: frozen. */
enum { DP_MAX_TENSORS = 5 }; /* of one head op: batchnorm has weight, bias, mean, var, num_batches_tracked */
typedef struct dp_io {
    const void *in[DP_MAX_IN]; /* (rows, width) f32; i32 for embedding */
    void *out;
    void *saved, *workspace, *derived;
    const float *param[DP_MAX_TENSORS]; /* the head's tensors in the graph's order; buffers (running statistics) among them */
    float *grad[DP_MAX_TENSORS];        /* NULL for buffers */
    float *stats[DP_MAX_TENSORS];       /* run->stats: written here (a shadow of the buffers); NULL for parameters */
    void *d_out;
    void *d_in[DP_MAX_IN];
    float *part;        /* `partial` writes this leaf's part here */
    const float *whole; /* NULL: a leaf's own statistics; else forward and backward take these, of run->batch_rows rows */
} dp_io;

/* Loss over rows on a device. Sums, so that they add up; written to device memory. */
typedef struct dp_loss_sums {
    double loss;     /* sum over targets (elements for mse), label smoothing included */
    int64_t targets; /* not ignored (elements for mse) */
    int64_t correct; /* arg max equals the target; 0 for mse */
    int64_t bad;     /* 0, else 1 + index of the first target outside 0..classes-1 that is not ignore_label */
} dp_loss_sums;
typedef enum dp_loss_kind { DP_LOSS_CROSS_ENTROPY, DP_LOSS_MSE } dp_loss_kind;
typedef struct dp_loss {
    dp_loss_kind kind;
    int64_t groups;  /* predictions per row: 1, or T for (N,T) targets */
    int64_t classes; /* width of a prediction (cross entropy), elements per row (mse; groups = 1) */
    double smoothing;
    int64_t ignore_label; /* INT64_MIN: none */
} dp_loss;

typedef enum dp_optimizer_kind { DP_SGD, DP_ADAM, DP_ADAMW } dp_optimizer_kind;
typedef struct dp_optimizer {
    dp_optimizer_kind kind;
    int nesterov;
    double momentum, beta1, beta2, eps, weight_decay;
    double clip_norm; /* 0: off */
} dp_optimizer;
/* Outcome of a window's gradient, in device memory with the optimizer's state: written by `norm`, read by `update`. */
typedef struct dp_verdict {
    double norm;    /* of the mean gradient (after the division by the count, before clipping) */
    double scale;   /* what the update multiplies gradients with: inv_count, times the clip factor */
    int64_t steps;  /* optimizer steps taken, this one included when it is taken */
    int32_t finite; /* 0: NaN or infinity in the gradient */
    int32_t take;   /* 1: the update steps; 0: skipped (not finite, or nothing counted) */
} dp_verdict;

typedef struct dp_bn_layer {    /* for `merge`: where a batchnorm's tensors lie in the flat buffers */
    int64_t mean, var, tracked; /* offsets, elements */
    int64_t channels, pixels;   /* pixels of one sample */
    double momentum;
} dp_bn_layer;

typedef struct dp_be_options {
    int index;   /* of the device */
    int threads; /* CPU: of one device */
    int pin;     /* CPU: pin the worker's threads to cores first_core .. */
    int first_core;
    int conv_direct; /* devices.conv = direct */
    int deterministic;
    int64_t memory_limit; /* bytes, 0 = none */
    int tf32;             /* CUDA: 0 off, 1 convolutions, 2 matrix products too */
    int conv_own;         /* CUDA: devices.conv = own */
    int no_epilogue;      /* CUDA: matrix products without fused bias, relu, gelu (tests) */
    int tune_measure;     /* CUDA: devices.tune = measure */
    int debug_sync;       /* CUDA: run.debug_sync: every call waits for what it has launched */
    int64_t workspace;    /* CUDA: most bytes that a library may take for one call, 0 = default */
} dp_be_options;

enum { DP_RANGE_PHASE, DP_RANGE_BUCKET, DP_RANGE_LAYER, DP_RANGES };
typedef struct dp_backend {
    uint32_t abi;     /* DP_BACKEND_ABI */
    const char *kind; /* "cpu", "cuda" */
    size_t alignment; /* of tensors, bytes */
    int in_line;      /* 1: work has ended when the call that gave it to a stream returns */

    /* -- devices -- */
    int (*enumerate)(int i, dp_device_info *info);                              /* 0 past the last; opens nothing */
    dp_status (*open)(dp_be_device **d, const dp_be_options *o, dp_error *err); /* on the worker's thread; binds it */
    void (*close)(dp_be_device *d);
    void (*bind)(dp_be_device *d); /* the calling thread becomes the device's; the one before makes no call meanwhile */
    /* -- memory: at open and close time only -- */
    dp_status (*alloc)(dp_be_device *d, int mem_class, size_t bytes, const char *what, void **p,
                       dp_error *err);                                   /* not zeroed */
    void (*free)(dp_be_device *d, int mem_class, void *p, size_t bytes); /* NULL ok */
    const dp_memory *(*memory)(const dp_be_device *d);                   /* counters, readable from any thread */
    dp_status (*alloc_pinned)(size_t bytes, void **p, dp_error *err);    /* page-aligned host memory; any thread */
    void (*free_pinned)(void *p, size_t bytes);
    /* Memory of alloc_pinned, for all devices: page-locked by a worker at open, released by a worker before free_pinned and before the
     * devices close. A failed pin leaves memory that works, only slower. NULL: the backend has no need of it. */
    dp_status (*pin)(dp_be_device *d, void *p, size_t bytes, dp_error *err);
    void (*unpin)(dp_be_device *d, void *p);
    /* -- order -- */
    dp_status (*stream_open)(dp_be_device *d, int priority, dp_be_stream **s, dp_error *err);
    void (*stream_close)(dp_be_stream *s);
    dp_status (*event_open)(dp_be_device *d, dp_be_event **e, dp_error *err);
    void (*event_close)(dp_be_event *e);
    dp_status (*record)(dp_be_stream *s, dp_be_event *e);
    dp_status (*wait)(dp_be_stream *s, dp_be_event *e); /* of any device; only after a host flag said that it was recorded */
    int (*done)(dp_be_event *e);    /* host: 1 = passed, 0 = not yet, < 0 = the device failed (a dp_status, negated) */
    double (*when)(dp_be_event *e); /* of an event that has passed: at what time, seconds of CLOCK_MONOTONIC */
    /* -- many launches as one; NULL where the device has no such thing --
     * capture .. captured: what s is given meanwhile does not run but becomes a graph, memory and arguments as they are; it may neither wait
     * for an event nor create anything. A failure leaves no graph, the stream as before, and events recorded meanwhile as passed.
     * launch: all of it runs on s, and records the events that it was captured with; or others: `record` between aim and launch says
     * which, one for each, in the same order. */
    dp_status (*capture)(dp_be_stream *s);
    dp_status (*captured)(dp_be_stream *s, dp_be_graph **g); /* g NULL: give it up */
    void (*graph_aim)(dp_be_stream *s);
    dp_status (*graph_launch)(dp_be_stream *s, dp_be_graph *g);
    void (*graph_close)(dp_be_graph *g); /* NULL ok; before its device closes */
    /* -- moving -- */
    dp_status (*copy)(dp_be_stream *s, void *dst, const void *src,
                      size_t bytes); /* host and device, device and readable peer */
    dp_status (*fill)(dp_be_stream *s, void *dst, int byte, size_t bytes);
    int (*reads_peer)(const dp_be_device *d, const dp_be_device *peer); /* 0: the group stages through pinned memory */
    /* Raw rows as they came from the host to the input node's tensor: f32 (value / 255 for u8, then (v - mean[c]) * inv_std[c]),
     * channels last; or i32 tokens. shape {h,w,c} (rank < 3: {1,1,c}); mean, inv_std (c) device memory or NULL. */
    dp_status (*convert)(dp_be_stream *s, const dp_run *run, void *dst, dp_dtype dst_type, const void *src, dp_dtype src_type,
                         dp_layout src_layout, const int64_t shape[3], const float *mean, const float *inv_std);
    /* -- kernels -- */
    int (*fuses)(const dp_chain *chain, const dp_node *next); /* 1: next (a pointwise op) may join the chain */
    dp_status (*kernel_open)(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, dp_kernel **k,
                             dp_error *err);
    dp_status (*kernel_prepare)(dp_kernel *k, int64_t rows,
                                dp_error *err); /* first use of a row count; a known one creates nothing */
    dp_status (*forward)(dp_kernel *k, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io);
    dp_status (*backward)(dp_kernel *k, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io);
    void (*kernel_close)(dp_kernel *k);
    /* bn_stats = sync, kernels with need.part: what one leaf adds, before forward (backward = 0: mean, biased variance, by channel) and
     * before backward (1: sum of dy, sum of dy (x - mean); the gradients of weight and bias, and of what a follower added, are written here,
     * and the relu's mask is applied). Zero-padded to need.part. Then forward or backward runs with the same io and io->whole. */
    dp_status (*partial)(dp_kernel *k, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io,
                         int backward);
    /* Sums over `rows` predictions x groups, and with d_logits not NULL their gradient (of the SUM; zero where ignored or bad). */
    dp_status (*loss)(dp_be_stream *s, const dp_loss *l, int64_t rows, const float *logits, const void *targets,
                      dp_dtype target_type, float *d_logits, dp_loss_sums *sums);
    /* -- flat arrays; counts are multiples of 16 -- */
    dp_status (*sum)(
        dp_be_stream *s, float *dst, const float *const *src, int n,
        int64_t count); /* halving tree over index, NULL = skipped; dst may be one of src; src array read at call time */
    /* Mean and biased variance (2, channels) over n leaves of rows[i] rows each, in double, in index order (Chan, Golub, LeVeque 1979);
     * those without rows are not read. part and rows arrays read at call time. */
    dp_status (*pool)(dp_be_stream *s, float *whole, const float *const *part, const int64_t *rows, int n, int64_t channels);
    /* bn_stats = merged: shadow = new running statistics of every layer from `buffer`, the running ones, and n leaves' flat arrays
     * (DP_STATS_LEAF) of rows[i] rows; unbiased variance over all of them. layers live as long as the engine; leaf and rows
     * arrays read at call time. */
    dp_status (*merge)(dp_be_stream *s, float *shadow, const float *buffer, const dp_bn_layer *layers, int n_layers,
                       const float *const *leaf, const int64_t *rows, int n);
    dp_status (*sumsq)(dp_be_stream *s, const float *x, int64_t count,
                       double *chunk_sums); /* one per DP_CHUNK elements, in double, 8 lanes folded in fixed order */
    dp_status (*norm)(dp_be_stream *s, const double *chunk_sums, int64_t n, const dp_run *run_device, const dp_optimizer *o,
                      dp_verdict *v); /* chunks added in order */
    /* Optimizer over ranges that lie in [first, first + count) of the flat arrays; p, g, m, v point at element `first`. m, v NULL
     * where the kind has none. Rules are PyTorch's, see nn/optim.h. ranges: host memory, lives as long as the engine. */
    dp_status (*update)(dp_be_stream *s, const dp_optimizer *o, const dp_range *ranges, int n_ranges, int64_t first,
                        int64_t count, float *p, const float *g, float *m, float *v, const dp_run *run_device,
                        const dp_verdict *verdict);
    /* One per DP_CHUNK elements: sum over i of bits(x[i]) * (2 i + 1), modulo 2^64, i from the chunk's begin. Any changed bit shows. */
    dp_status (*checksum)(dp_be_stream *s, const float *x, int64_t count, uint64_t *chunk_sums);
    /* Things created since open (kernels' primitives, threads, streams, events): tests see that a second epoch creates none. */
    int64_t (*created)(const dp_be_device *d);
    /* -- sight; NULL where the kind has no such thing -- */
    int (*health)(dp_be_device *d, dp_device_health *h); /* any thread, asks the system only; 0: not known */
    /* For profilers, on the worker's thread: what it launches from now on. Ends the ranges of this level and of higher ones, then begins this one;
     * name NULL: only that. number < 0: none. */
    void (*range)(dp_be_device *d, int level, const char *name, int number);
    const char *(*notes)(const dp_be_device *d); /* what it chose for its kernels, a line each; while its thread has no job */
    dp_status (*failure)(const dp_be_device *d, dp_error *err); /* any thread: how it was lost; DP_OK: it is not */
} dp_backend;

const dp_backend *dp_backend_cpu(void);
#endif
