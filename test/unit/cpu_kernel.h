/* For tests of CPU kernels: one layer behind an input, opened by hand with memory of exactly the size that it asked for, numbers to
 * fill it, and comparison with references in double. */
#ifndef CPU_KERNEL_H
#define CPU_KERNEL_H
#include "../../nn/cpu/cpu.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

typedef struct bed {
    const char *spec;
    const dp_backend *be;
    dp_be_device *device;
    dp_be_stream *stream;
    dp_graph *graph;
    dp_chain chain;
    dp_need need;
    dp_kernel *kernel;
    const dp_node *in_node, *out_node;
    int64_t capacity;
    int n;            /* tensors */
    int64_t count[4]; /* elements of each */
    float *param[4], *grad[4];
    float *in, *out, *d_out, *d_in;
    unsigned char *saved, *workspace, *derived; /* canaries behind each */
    uint64_t version;
} bed;

enum { CANARY = 64, CANARY_BYTE = 0xC5 };
static const float untouched = 12345.5f;

/* Even in (-1, 1), the same each time. */
static inline void fill(float *x, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t h = ((uint32_t)i + seed * 7919u) * 2654435761u;
        h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
        x[i] = (float)(int32_t)(h >> 8) / 8388608.0f - 1.0f;
    }
}

static inline float *floats(int64_t n)
{
    float *x = aligned_alloc(64, ((size_t)n * sizeof *x + 63) & ~(size_t)63);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) x[i] = untouched;
    return x;
}

static inline unsigned char *guarded(size_t bytes)
{
    unsigned char *p = aligned_alloc(64, (bytes + CANARY + 63) & ~(size_t)63);
    assert_non_null(p);
    memset(p, CANARY_BYTE, bytes + CANARY);
    return p;
}

static inline void guarded_free(unsigned char *p, size_t bytes)
{
    for (int i = 0; i < CANARY; i++) assert_int_equal(p[bytes + (size_t)i], CANARY_BYTE);
    free(p);
}

static inline void bed_open(bed *b, const char *input, const char *spec, int64_t capacity)
{
    dp_error err = {0};
    const dp_be_options options = {.threads = 1};
    memset(b, 0, sizeof *b);
    b->spec = spec;
    b->be = dp_backend_cpu();
    b->capacity = capacity;
    b->graph = dp_graph_new();
    dp_layer(b->graph, "input", input);
    dp_layer(b->graph, "x", spec);
    if (dp_graph_finish(b->graph, &err)) fail_msg("%s", err.text);
    assert_int_equal(b->be->open(&b->device, &options, &err), DP_OK);
    assert_int_equal(b->be->stream_open(b->device, 0, &b->stream, &err), DP_OK);
    b->chain.graph = b->graph;
    for (int i = 1; i < b->graph->n_nodes; i++) {
        if (i > 1) assert_int_equal(b->be->fuses(&b->chain, &b->graph->node[i]), 1);
        b->chain.node[b->chain.n++] = &b->graph->node[i];
    }
    if (b->be->kernel_open(b->device, &b->chain, capacity, &b->need, &b->kernel, &err)) fail_msg("%s", err.text);
    b->in_node = &b->graph->node[0];
    b->out_node = &b->graph->node[b->graph->n_nodes - 1];
    b->n = b->graph->n_tensors;
    for (int i = 0; i < b->n; i++) {
        b->count[i] = b->graph->tensor[i].count;
        b->param[i] = floats(b->count[i]);
        b->grad[i] = floats(b->count[i]);
        fill(b->param[i], b->count[i], 10u + (uint32_t)i);
    }
    b->in = floats(capacity * b->in_node->width);
    b->d_in = floats(capacity * b->in_node->width);
    b->out = floats(capacity * b->out_node->width);
    b->d_out = floats(capacity * b->out_node->width);
    fill(b->in, capacity * b->in_node->width, 1);
    b->saved = guarded(b->need.saved);
    b->workspace = guarded(b->need.workspace);
    b->derived = guarded(b->need.derived);
    b->version = 1;
}

static inline dp_run bed_run(const bed *b, int64_t rows)
{
    return (dp_run){.rows = rows, .param_version = b->version, .train = 1};
}

static inline dp_io bed_io(const bed *b)
{
    dp_io io = {.in = {b->in}, .out = b->out, .saved = b->saved, .workspace = b->workspace, .derived = b->derived};
    for (int i = 0; i < b->n; i++) io.param[i] = b->param[i], io.grad[i] = b->grad[i];
    io.d_out = b->d_out;
    io.d_in[0] = b->d_in;
    return io;
}

static inline void bed_prepare(const bed *b, int64_t rows)
{
    dp_error err = {0};
    if (b->be->kernel_prepare(b->kernel, rows, &err)) fail_msg("%s", err.text);
}

static inline void bed_forward(const bed *b, int64_t rows)
{
    const dp_run run = bed_run(b, rows);
    const dp_io io = bed_io(b);
    assert_int_equal(b->be->forward(b->kernel, b->stream, &run, &run, &io), DP_OK);
}

/* d_out is drawn anew (backward may have scribbled on it); frozen: bit i = tensor i; d_in: wanted. */
static inline void bed_backward(const bed *b, int64_t rows, unsigned frozen, int d_in)
{
    const dp_run run = bed_run(b, rows);
    dp_io io = bed_io(b);
    fill(b->d_out, rows * b->out_node->width, 3);
    for (int i = 0; i < b->n; i++) {
        if (frozen & 1u << i) io.grad[i] = NULL;
    }
    if (!d_in) io.d_in[0] = NULL;
    assert_int_equal(b->be->backward(b->kernel, b->stream, &run, &run, &io), DP_OK);
}

static inline void bed_close(bed *b)
{
    b->be->kernel_close(b->kernel);
    b->be->stream_close(b->stream);
    b->be->close(b->device);
    for (int i = 0; i < b->n; i++) free(b->param[i]), free(b->grad[i]);
    free(b->in), free(b->out), free(b->d_in), free(b->d_out);
    guarded_free(b->saved, b->need.saved);
    guarded_free(b->workspace, b->need.workspace);
    guarded_free(b->derived, b->need.derived);
    dp_graph_free(b->graph);
}

/* Norm of the difference over norm of what is wanted. Sums of k products of floats differ from those of doubles by about
 * sqrt(k) 2^-24 of their size, 2e-6 for k = 1000; one wrong element in 100,000 would give 3e-3. */
static inline void assert_near(const bed *b, const char *what, const float *got, const double *want, int64_t n,
                               double tolerance)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)got[i] - want[i];
        difference += d * d;
        size += want[i] * want[i];
    }
    if (!(sqrt(difference) <= tolerance * sqrt(size) + 1e-30)) {
        fail_msg("%s: relative difference %g of the %s over %lld elements", b->spec, sqrt(difference / size), what,
                 (long long)n);
    }
}

static inline void assert_untouched(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) assert_true(x[i] == untouched);
}

static inline void forget(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = untouched;
}

static inline double *doubles(int64_t n)
{
    double *x = calloc((size_t)n, sizeof *x);
    assert_non_null(x);
    return x;
}
#endif
