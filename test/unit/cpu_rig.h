/* For tests of one CPU kernel: builds a graph of inputs, a head and followers by hand, runs it both ways in every build of
 * the vector loops, and compares with a reference in double: values directly, gradients with its central differences. */
#ifndef DP_TEST_CPU_RIG_H
#define DP_TEST_CPU_RIG_H
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../dp/base/memory.h"
#include "../../nn/cpu/cpu.h"

enum { RIG_NODES = 8, RIG_ROWS = 3 };

typedef struct rig rig;
typedef void (*rig_ref)(const rig *r, double *const *in, double *const *param, double *out);
struct rig {
    const char *name;
    const dp_family *family;
    rig_ref ref;
    dp_op op[RIG_NODES];
    dp_node node[RIG_NODES];
    dp_tensor tensor[DP_MAX_TENSORS];
    dp_graph graph;
    dp_chain chain;
    int n_in, n_param, no_input_gradient;
    int64_t rows;
    double tolerance; /* of values and gradients, times the largest */
    int64_t in_width[DP_MAX_IN], out_width, param_count[DP_MAX_TENSORS];
    float *in[DP_MAX_IN], *param[DP_MAX_TENSORS], *d_out; /* what a test starts from; filled with random numbers */
    uint64_t ids[16];
    dp_run run;
};

/* What a run left behind. */
typedef struct rig_result {
    float *out, *d_in[DP_MAX_IN], *grad[DP_MAX_TENSORS], *stats[DP_MAX_TENSORS];
    dp_need need;
} rig_result;
enum { RIG_PLAIN, RIG_IN_PLACE, RIG_PASS, RIG_MISALIGNED, RIG_WAYS };

static inline float rig_random(uint64_t *state) /* in (-1, 1), never within 1e-3 of 0: away from the kink of relu */
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    float u = (float)(*state >> 40) * (2.0f / 16777216.0f) - 1.0f;
    return u + (u < 0 ? -1e-3f : 1e-3f);
}
static inline float *rig_array(int64_t n, uint64_t seed)
{
    float *x = dp_calloc((size_t)n, sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) x[i] = rig_random(&seed);
    return x;
}

static inline dp_node *rig_node(rig *r, dp_op_kind kind, int rank, const int64_t *shape)
{
    int i = r->graph.n_nodes++;
    dp_node *n = &r->node[i];
    r->op[i].kind = kind;
    r->op[i].name = "op";
    n->op = &r->op[i];
    n->rank = rank;
    n->width = 1;
    for (int k = 0; k < rank; k++) n->shape[k] = shape[k], n->width *= shape[k];
    n->key = 0x1234567u + (uint32_t)i;
    n->live = n->consumers = 1;
    snprintf(n->name, sizeof n->name, "node%d", i);
    return n;
}
static inline void rig_start(rig *r, const char *name, const dp_family *family, rig_ref ref)
{
    memset(r, 0, sizeof *r);
    r->name = name;
    r->family = family;
    r->ref = ref;
    r->rows = RIG_ROWS;
    r->tolerance = 2e-6;
    r->graph.node = r->node;
    r->graph.tensor = r->tensor;
    r->chain.graph = &r->graph;
}
static inline void rig_input(rig *r, int rank, const int64_t *shape)
{
    rig_node(r, DP_OP_INPUT, rank, shape);
    r->in_width[r->n_in++] = r->node[r->graph.n_nodes - 1].width;
}
/* Head over the inputs so far, or a follower; an add takes the newest input too. */
static inline dp_node *rig_op(rig *r, dp_op_kind kind, int rank, const int64_t *shape)
{
    dp_node *n = rig_node(r, kind, rank, shape);
    if (r->chain.n == 0) {
        for (int k = 0; k < r->n_in; k++) n->in[n->n_in++] = k;
        if (kind == DP_OP_BATCHNORM2D) n->n_in = 1; /* a second input is for the add behind it */
    } else {
        n->in[n->n_in++] = (int)(r->chain.node[r->chain.n - 1] - r->node);
        if (kind == DP_OP_ADD) n->in[n->n_in++] = r->n_in - 1;
    }
    if (r->chain.n) assert_true(r->family->fuses && r->family->fuses(&r->chain, n));
    r->chain.node[r->chain.n++] = n;
    r->out_width = n->width;
    return n;
}
static inline void rig_param(rig *r, int64_t count, int buffer)
{
    dp_tensor *t = &r->tensor[r->n_param];
    t->count = count;
    t->buffer = buffer;
    r->param_count[r->n_param++] = count;
    r->graph.n_tensors = r->n_param;
}
static inline void rig_fill(rig *r)
{
    for (int k = 0; k < r->n_in; k++) r->in[k] = rig_array(r->rows * r->in_width[k], 11 + (uint64_t)k);
    for (int t = 0; t < r->n_param; t++) r->param[t] = rig_array(r->param_count[t], 101 + (uint64_t)t);
    r->d_out = rig_array(r->rows * r->out_width, 7);
    for (int i = 0; i < 16; i++) r->ids[i] = 0x100000005u * (uint64_t)(i + 3);
    r->run = (dp_run){
        .rows = r->rows, .seed = 42, .epoch = 3, .ids = r->ids, .param_version = 1, .train = 1, .stats = DP_STATS_RUNNING};
}
static inline void rig_end(rig *r)
{
    for (int k = 0; k < r->n_in; k++) free(r->in[k]);
    for (int t = 0; t < r->n_param; t++) free(r->param[t]);
    free(r->d_out);
}
static inline void rig_result_free(rig_result *x)
{
    free(x->out);
    for (int k = 0; k < DP_MAX_IN; k++) free(x->d_in[k]);
    for (int t = 0; t < DP_MAX_TENSORS; t++) free(x->grad[t]), free(x->stats[t]);
}

/* A copy that starts `shift` floats into a buffer with guards before and after it. */
typedef struct rig_buffer {
    float *base, *at;
    int64_t n;
} rig_buffer;
static inline rig_buffer rig_copy(const float *from, int64_t n, int shift)
{
    rig_buffer b = {dp_calloc((size_t)n + 48, sizeof(float)), NULL, n};
    assert_non_null(b.base);
    for (int64_t i = 0; i < n + 48; i++) b.base[i] = 12345.0f;
    b.at = b.base + 16 + shift;
    if (from) memcpy(b.at, from, (size_t)n * sizeof(float));
    return b;
}
static inline float *rig_take(rig_buffer *b) /* the values; frees the buffer, checks the guards */
{
    float *x = dp_calloc((size_t)b->n, sizeof *x);
    assert_non_null(x);
    memcpy(x, b->at, (size_t)b->n * sizeof *x);
    for (int i = 0; i < 15; i++) {
        assert_true(b->at[-1 - i] == 12345.0f);
        assert_true(b->at[b->n + i] == 12345.0f);
    }
    free(b->base);
    return x;
}

static inline rig_result rig_once(rig *r, const dp_vec *vec, int way)
{
    dp_be_device device = {.vec = vec};
    rig_result x = {0};
    void *state = NULL;
    dp_error err;
    int shift = way == RIG_MISALIGNED ? 1 : 0;
    assert_int_equal(r->family->open(&device, &r->chain, r->rows, &x.need, &state, &err), DP_OK);
    if (r->family->prepare) assert_int_equal(r->family->prepare(state, r->rows, &err), DP_OK);
    void *saved = dp_calloc(x.need.saved + 1, 1), *workspace = dp_calloc(x.need.workspace + 1, 1);
    rig_buffer in[DP_MAX_IN], d_in[DP_MAX_IN] = {0}, grad[DP_MAX_TENSORS], stats[DP_MAX_TENSORS];
    rig_buffer out = rig_copy(NULL, r->rows * r->out_width, shift),
               d_out = rig_copy(r->d_out, r->rows * r->out_width, 2 * shift);
    dp_io io = {.out = out.at, .saved = saved, .workspace = workspace, .d_out = d_out.at};
    assert_true(saved && workspace);
    for (int k = 0; k < r->n_in; k++) {
        in[k] = rig_copy(r->in[k], r->rows * r->in_width[k], 3 * shift);
        io.in[k] = in[k].at;
    }
    int in_place = way == RIG_IN_PLACE && x.need.in_place && (!x.need.reads_in[0] || !r->run.train);
    if (in_place) {
        memcpy(out.at, r->in[0], (size_t)(r->rows * r->in_width[0]) * sizeof(float));
        io.in[0] = out.at;
    }
    for (int t = 0; t < r->n_param; t++) {
        io.param[t] = r->param[t];
        grad[t] = rig_copy(NULL, r->param_count[t], shift);
        stats[t] = rig_copy(NULL, r->param_count[t], 0);
        if (r->tensor[t].buffer)
            io.stats[t] = stats[t].at;
        else
            io.grad[t] = grad[t].at;
    }
    assert_int_equal(r->family->forward(state, &r->run, &r->run, &io), DP_OK);
    x.out = dp_calloc((size_t)(r->rows * r->out_width), sizeof(float));
    assert_non_null(x.out);
    memcpy(x.out, out.at, (size_t)(r->rows * r->out_width) * sizeof(float));
    /* what backward says it does not read is made unreadable */
    for (int k = 0; k < r->n_in; k++)
        if (!x.need.reads_in[k] && !in_place) memset(in[k].at, 0xFF, (size_t)(r->rows * r->in_width[k]) * sizeof(float));
    if (!x.need.reads_out) memset(out.at, 0xFF, (size_t)(r->rows * r->out_width) * sizeof(float));
    if (workspace) memset(workspace, 0xFF, x.need.workspace);
    int passed = 0;
    for (int k = 0; k < r->n_in && !r->no_input_gradient; k++) {
        d_in[k] = rig_copy(NULL, r->rows * r->in_width[k], 2 * shift);
        io.d_in[k] = d_in[k].at;
        if (way == RIG_PASS && x.need.passes[k] && !passed) io.d_in[k] = io.d_out, passed = 1;
    }
    if (r->run.train) assert_int_equal(r->family->backward(state, &r->run, &r->run, &io), DP_OK);
    for (int k = 0; k < r->n_in && !r->no_input_gradient; k++) {
        if (io.d_in[k] == io.d_out) memcpy(d_in[k].at, io.d_out, (size_t)(r->rows * r->in_width[k]) * sizeof(float));
        x.d_in[k] = rig_take(&d_in[k]);
    }
    for (int k = 0; k < r->n_in; k++) free(rig_take(&in[k]));
    for (int t = 0; t < r->n_param; t++) x.grad[t] = rig_take(&grad[t]), x.stats[t] = rig_take(&stats[t]);
    free(rig_take(&out));
    free(rig_take(&d_out));
    if (r->family->close)
        r->family->close(state);
    else
        free(state);
    free(saved);
    free(workspace);
    return x;
}

static inline double rig_objective(const rig *r, double *const *in, double *const *param, double *out)
{
    double sum = 0;
    r->ref(r, in, param, out);
    for (int64_t i = 0; i < r->rows * r->out_width; i++) sum += out[i] * (double)r->d_out[i];
    return sum;
}
static inline double *rig_double(const float *x, int64_t n)
{
    double *d = dp_calloc((size_t)n + 1, sizeof *d);
    assert_non_null(d);
    for (int64_t i = 0; i < n; i++) d[i] = (double)x[i];
    return d;
}
static inline void rig_compare(const rig *r, const char *isa, const char *what, const float *x, const double *want, int64_t n)
{
    double largest = 1;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)x[i] - want[i]) <= r->tolerance * largest))
            fail_msg("%s (%s): %s[%lld] is %.9g, wanted %.9g", r->name, isa, what, (long long)i, (double)x[i], want[i]);
}
static inline void rig_differences(const rig *r, double *const *in, double *const *param, double *x, int64_t n, double *slope)
{
    double *out = dp_calloc((size_t)(r->rows * r->out_width), sizeof *out);
    const double h = 1e-5;
    assert_non_null(out);
    for (int64_t i = 0; i < n; i++) {
        double keep = x[i];
        x[i] = keep + h;
        double up = rig_objective(r, in, param, out);
        x[i] = keep - h;
        slope[i] = (up - rig_objective(r, in, param, out)) / (2 * h);
        x[i] = keep;
    }
    free(out);
}
static inline void rig_same(const rig *r, const char *isa, int way, const char *what, const float *a, const float *b, int64_t n)
{
    if (a && memcmp(a, b, (size_t)n * sizeof *a))
        fail_msg("%s (%s): %s differs in way %d of placing arrays", r->name, isa, what, way);
}

/* All builds, all ways of placing the arrays; each build's first way against the reference, the others against it by bits. */
static inline void rig_check(rig *r)
{
    double *in[DP_MAX_IN] = {0}, *param[DP_MAX_TENSORS] = {0}, *slope_in[DP_MAX_IN] = {0}, *slope[DP_MAX_TENSORS] = {0};
    double *out = dp_calloc((size_t)(r->rows * r->out_width), sizeof *out);
    assert_non_null(out);
    for (int k = 0; k < r->n_in; k++) in[k] = rig_double(r->in[k], r->rows * r->in_width[k]);
    for (int t = 0; t < r->n_param; t++) param[t] = rig_double(r->param[t], r->param_count[t]);
    for (int k = 0; k < r->n_in && !r->no_input_gradient && r->run.train; k++) {
        slope_in[k] = rig_double(r->in[k], r->rows * r->in_width[k]);
        rig_differences(r, in, param, in[k], r->rows * r->in_width[k], slope_in[k]);
    }
    for (int t = 0; t < r->n_param && r->run.train; t++) {
        slope[t] = rig_double(r->param[t], r->param_count[t]);
        rig_differences(r, in, param, param[t], r->param_count[t], slope[t]);
    }
    r->ref(r, in, param, out);
    for (int i = 0; dp_vec_at(i); i++) {
        const char *isa = dp_vec_at(i)->isa;
        rig_result first = rig_once(r, dp_vec_at(i), RIG_PLAIN);
        rig_compare(r, isa, "out", first.out, out, r->rows * r->out_width);
        for (int k = 0; k < r->n_in; k++)
            if (slope_in[k]) rig_compare(r, isa, "d_in", first.d_in[k], slope_in[k], r->rows * r->in_width[k]);
        for (int t = 0; t < r->n_param; t++)
            if (slope[t] && !r->tensor[t].buffer) rig_compare(r, isa, "grad", first.grad[t], slope[t], r->param_count[t]);
        for (int way = 1; way < RIG_WAYS; way++) {
            rig_result other = rig_once(r, dp_vec_at(i), way);
            rig_same(r, isa, way, "out", first.out, other.out, r->rows * r->out_width);
            for (int k = 0; k < r->n_in && r->run.train; k++)
                rig_same(r, isa, way, "d_in", first.d_in[k], other.d_in[k], r->rows * r->in_width[k]);
            for (int t = 0; t < r->n_param && r->run.train; t++)
                rig_same(r, isa, way, "grad", first.grad[t], other.grad[t], r->param_count[t]);
            rig_result_free(&other);
        }
        rig_result_free(&first);
    }
    for (int k = 0; k < DP_MAX_IN; k++) free(in[k]), free(slope_in[k]);
    for (int t = 0; t < DP_MAX_TENSORS; t++) free(param[t]), free(slope[t]);
    free(out);
}
#endif
