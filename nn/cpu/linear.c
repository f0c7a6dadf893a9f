/* linear, with a relu behind it. */
#include "affine.h"
#include <stdlib.h>

typedef struct linear {
    dp_affine affine;
    int64_t positions; /* T of a (T, C) input, else 1 */
} linear;

static int linear_fuses(const dp_chain *chain, const dp_node *next)
{
    return chain->n == 1 && next->op->kind == DP_OP_RELU;
}

static dp_status linear_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state,
                             dp_error *err)
{
    const dp_graph *g = chain->graph;
    const dp_node *n = chain->node[0];
    const int64_t *shape = g->tensor[n->first_tensor].shape;
    linear *l = dp_calloc(1, sizeof *l);
    if (!l) return dp_fail(err, DP_ENOMEM, "Out of memory: layer %s", n->name);
    l->positions = n->width / shape[0];
    l->affine = (dp_affine){
        .device = d,
        .in = shape[1],
        .out = shape[0],
        .bias = n->opt[DP_LINEAR_BIAS] != 0,
        .relu = chain->n > 1,
        .no_dx = g->node[n->in[0]].op->kind == DP_OP_INPUT,
    };
    need->reads_in[0] = 1;
    need->reads_out = (uint8_t)l->affine.relu;
    need->workspace = dp_affine_workspace(&l->affine, capacity * l->positions);
    l->affine.workspace = (dp_spare){.device = d, .what = n->name, .reserved = need->workspace};
    *state = l;
    return DP_OK;
}

static dp_status linear_prepare(void *state, int64_t rows, dp_error *err)
{
    linear *l = state;
    return dp_affine_prepare(&l->affine, rows * l->positions, err);
}

static dp_status linear_forward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    (void)run_device;
    linear *l = state;
    return dp_affine_forward(&l->affine, run->rows * l->positions, io->in[0], io->param[0], io->param[1], io->out,
                             io->workspace);
}

static dp_status linear_backward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    (void)run_device;
    linear *l = state;
    return dp_affine_backward(&l->affine, run->rows * l->positions, io->in[0], io->param[0], io->out, io->d_out, io->d_in[0],
                              io->grad[0], io->grad[1], io->workspace);
}

static void linear_close(void *state)
{
    linear *l = state;
    dp_affine_free(&l->affine);
    free(l);
}

const dp_family dp_cpu_linear = {.fuses = linear_fuses,
                                 .open = linear_open,
                                 .prepare = linear_prepare,
                                 .forward = linear_forward,
                                 .backward = linear_backward,
                                 .close = linear_close};
