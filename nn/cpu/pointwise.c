/* Elementwise ops: relu, gelu, sigmoid, tanh, add; and add | relu in one pass. */
#include "cpu.h"
#include <stdlib.h>
#include <string.h>

typedef struct pointwise {
    const dp_vec *vec;
    dp_op_kind op;
    int n_in, relu, tanh_form;
    int64_t width;
} pointwise;

static int fuses(const dp_chain *chain, const dp_node *next)
{
    return chain->n == 1 && chain->node[0]->op->kind == DP_OP_ADD && next->op->kind == DP_OP_RELU;
}

static dp_status open_(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state, dp_error *err)
{
    const dp_node *n = chain->node[0];
    pointwise *s = dp_calloc(1, sizeof *s);
    (void)capacity;
    if (!s) return dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
    s->vec = d->vec;
    s->op = n->op->kind;
    s->n_in = n->n_in;
    s->relu = s->op == DP_OP_RELU || chain->n == 2;
    s->tanh_form = n->opt[DP_GELU_TANH] != 0;
    s->width = n->width;
    need->in_place = 1;
    need->reads_in[0] = s->op == DP_OP_GELU;
    need->reads_out = s->relu || s->op == DP_OP_SIGMOID || s->op == DP_OP_TANH;
    for (int k = 0; k < n->n_in; k++) need->passes[k] = 1;
    *state = s;
    return DP_OK;
}

static void add_all(const pointwise *s, float *out, const void *const *in, int64_t n)
{
    const dp_vec *v = s->vec;
    if (s->n_in == 2 && s->relu) {
        v->pointwise->add_relu(out, in[0], in[1], n);
        return;
    }
    v->flat->add(out, in[0], in[1], n);
    for (int k = 2; k < s->n_in; k++) v->flat->add(out, out, in[k], n);
    if (s->relu) v->pointwise->relu(out, out, n);
}

static dp_status forward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const pointwise *s = state;
    const dp_vec_pointwise *v = s->vec->pointwise;
    const float *x = io->in[0];
    float *y = io->out;
    int64_t n = run->rows * s->width;
    (void)run_device;
    switch (s->op) {
    case DP_OP_GELU: (s->tanh_form ? v->gelu_tanh : v->gelu_erf)(y, x, n); break;
    case DP_OP_SIGMOID: v->sigmoid(y, x, n); break;
    case DP_OP_TANH: v->tanh(y, x, n); break;
    case DP_OP_ADD: add_all(s, y, io->in, n); break;
    default: v->relu(y, x, n);
    }
    return DP_OK;
}

static dp_status backward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const pointwise *s = state;
    const dp_vec_pointwise *v = s->vec->pointwise;
    const float *dy = io->d_out, *y = io->out;
    int64_t n = run->rows * s->width;
    (void)run_device;
    for (int k = 0; k < s->n_in; k++) {
        float *dx = io->d_in[k];
        if (!dx) continue;
        if (s->relu)
            v->relu_backward(dx, dy, y, n); /* masking what is masked already changes nothing */
        else if (s->op == DP_OP_GELU)
            (s->tanh_form ? v->gelu_tanh_backward : v->gelu_erf_backward)(dx, dy, io->in[0], n);
        else if (s->op == DP_OP_SIGMOID)
            v->sigmoid_backward(dx, dy, y, n);
        else if (s->op == DP_OP_TANH)
            v->tanh_backward(dx, dy, y, n);
        else if (dx != dy)
            memcpy(dx, dy, (size_t)n * sizeof *dx);
    }
    return DP_OK;
}

const dp_family dp_cpu_pointwise = {.fuses = fuses, .open = open_, .forward = forward, .backward = backward};
