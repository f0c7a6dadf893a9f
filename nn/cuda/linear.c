/* linear, with a relu or a gelu (its tanh form) behind it, or another tensor added.
 *
 * Where a linear layer with an activation feeds only another one, the second one's dx product applies the gradient of that activation as it
 * stores: a pass over the tensor less. The first leaves a gate with the device, the second finds it by the node it reads. */
#include "affine.h"

typedef struct dp_gate {
    const dp_graph *graph;
    int node; /* the activation */
    dp_act act;
    void *kept; /* by the latest forward pass */
    struct dp_gate *next;
} dp_gate;

typedef struct linear {
    dp_cuda_affine affine;
    int64_t positions; /* T of a (T, C) input, else 1 */
    dp_gate gate;      /* affine.after: in the device's list */
    dp_gate *before;   /* affine.before: of the layer before, in the same plan */
} linear;

static dp_act act_of(const dp_node *n)
{
    if (n->op->kind == DP_OP_RELU) return DP_ACT_RELU;
    return n->op->kind == DP_OP_GELU && n->opt[DP_GELU_TANH] != 0 ? DP_ACT_GELU : DP_ACT_NONE;
}

static int linear_fuses(const dp_chain *chain, const dp_node *next)
{
    if (chain->n > 1) return 0;
    if (next->op->kind == DP_OP_ADD) return next->n_in == 2 && next->in[0] != next->in[1];
    return act_of(next) != DP_ACT_NONE;
}

/* The linear layer that alone reads a node; NULL: there is none. */
static const dp_node *only_linear(const dp_graph *g, const dp_node *n)
{
    const int self = (int)(n - g->node);
    if (n->consumers != 1 || self == g->out) return NULL;
    for (int i = self + 1; i < g->n_nodes; i++)
        for (int k = 0; k < g->node[i].n_in; k++)
            if (g->node[i].live && g->node[i].in[k] == self) return g->node[i].op->kind == DP_OP_LINEAR ? &g->node[i] : NULL;
    return NULL;
}

static dp_cuda_affine affine_of(dp_be_device *d, const dp_graph *g, const dp_node *n)
{
    const int64_t *shape = g->tensor[n->first_tensor].shape;
    return (dp_cuda_affine){.device = d,
                            .in = shape[1],
                            .out = shape[0],
                            .bias = n->opt[DP_LINEAR_BIAS] != 0,
                            .tf32 = d->options.tf32 > 1,
                            .no_dx = g->node[n->in[0]].op->kind == DP_OP_INPUT};
}

/* The latest one: layers of a plan are opened one after the other. */
static dp_gate *find_gate(dp_be_device *d, const dp_graph *g, int node)
{
    for (dp_gate *t = d->gates; t; t = t->next)
        if (t->graph == g && t->node == node) return t;
    return NULL;
}

static void linear_close(void *state)
{
    linear *l = state;
    for (dp_gate **t = &l->affine.device->gates; *t; t = &(*t)->next) {
        if (*t != &l->gate) continue;
        *t = l->gate.next;
        break;
    }
    dp_cuda_affine_close(&l->affine);
    free(l);
}

static dp_status open_chain(linear *l, const dp_chain *chain, int64_t capacity, dp_error *err)
{
    dp_be_device *d = l->affine.device;
    const dp_graph *g = chain->graph;
    const dp_node *n = chain->node[0], *last = chain->node[chain->n - 1], *reader = only_linear(g, last);
    const int64_t m = capacity * l->positions;
    l->affine.add = last->op->kind == DP_OP_ADD;
    l->affine.act = act_of(last);
    if (l->affine.act && reader) {
        dp_cuda_affine next = affine_of(d, g, reader);
        next.before = l->affine.act;
        DP_TRY(dp_cuda_affine_passes(&next, m, &l->affine.after, err));
    }
    l->before = find_gate(d, g, n->in[0]);
    if (l->before) l->affine.before = l->before->act;
    DP_TRY(dp_cuda_affine_open(&l->affine, m, err));
    if (!l->affine.after) return DP_OK;
    l->gate = (dp_gate){g, (int)(last - g->node), l->affine.act, NULL, d->gates};
    d->gates = &l->gate;
    return DP_OK;
}

static dp_status linear_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state,
                             dp_error *err)
{
    const dp_node *n = chain->node[0];
    linear *l = dp_calloc(1, sizeof *l);
    if (!l) return dp_fail(err, DP_ENOMEM, "Out of memory: layer %s", n->name);
    l->affine = affine_of(d, chain->graph, n);
    l->positions = n->width / l->affine.out;
    const dp_status status = open_chain(l, chain, capacity, err);
    if (status) {
        linear_close(l);
        return status;
    }
    need->saved = dp_cuda_affine_saved(&l->affine, capacity * l->positions);
    need->workspace = l->affine.workspace;
    need->reads_in[0] = 1;
    need->reads_out = (uint8_t)dp_cuda_affine_reads_out(&l->affine);
    need->passes[1] = (uint8_t)l->affine.add;
    *state = l;
    return DP_OK;
}

static dp_status linear_prepare(void *state, int64_t rows, dp_error *err)
{
    linear *l = state;
    return dp_cuda_affine_prepare(&l->affine, rows * l->positions, err);
}

static dp_status linear_forward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    linear *l = state;
    (void)run_device;
    l->gate.kept = io->saved;
    return dp_cuda_affine_forward(&l->affine, s, run->rows * l->positions, io->in[0], io->param[0], io->param[1], io->in[1],
                                  io->out, io->saved, io->workspace);
}

static dp_status linear_backward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    linear *l = state;
    const int64_t m = run->rows * l->positions;
    (void)run_device;
    if (l->affine.add && io->d_in[1] && io->d_in[1] != io->d_out)
        DP_TRY(dp_cuda_copy(s, io->d_in[1], io->d_out, (size_t)(m * l->affine.out) * sizeof(float)));
    return dp_cuda_affine_backward(&l->affine, s, m, io->in[0], io->param[0], io->out, io->saved, io->d_out, io->d_in[0],
                                   io->grad[0], io->grad[1], l->before ? l->before->kept : NULL, io->workspace);
}

const dp_family dp_cuda_linear = {.fuses = linear_fuses,
                                  .open = linear_open,
                                  .prepare = linear_prepare,
                                  .forward = linear_forward,
                                  .backward = linear_backward,
                                  .close = linear_close};
