/* conv2d, with a relu behind it: oneDNN's direct convolutions on N,H,W,C. Weights lie as O,H,W,I and are reordered to what the
 * primitive likes: once per parameter version for forward (evaluation and several leaves of one step share that copy), in each call
 * for backward (a step rarely calls it twice, and the copy would be kept all the time). */
#include "by_rows.h"
#include "onednn.h"
#include <stdlib.h>

typedef struct conv {
    dp_be_device *device;
    dp_dnnl_conv shape; /* rows is set per row count */
    int first;          /* reads the model's input, whose gradient nobody wants */
    dp_by_rows table;
    dp_spare workspace, derived;
    uint64_t version;            /* of the parameters in the derived copy; 0: nothing there */
    const dp_dnnl_op *in_layout; /* the copy lies as this op likes it */
} conv;
typedef struct part {         /* one pass */
    dp_dnnl_op *op, *reorder; /* reorder NULL: the op takes O,H,W,I */
} part;
typedef struct passes {
    part part[3];             /* by dp_dnnl_pass */
    const dp_dnnl_op *layout; /* of the forward weights: the first op that had it */
} passes;

static size_t padded(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Workspace of a call: scratch, then the reordered weights (forward keeps those in its derived copy), then the gradient of a frozen
 * bias, which the primitive computes all the same. */
static size_t workspace_of(const conv *c, dp_dnnl_pass pass, dp_dnnl_sizes s)
{
    return padded(s.scratch) + (pass == DP_DNNL_FORWARD ? 0 : padded(s.weights)) +
           (pass == DP_DNNL_BACKWARD_WEIGHTS ? (size_t)c->shape.out[2] * sizeof(float) : 0);
}

static int conv_fuses(const dp_chain *chain, const dp_node *next)
{
    return chain->n == 1 && next->op->kind == DP_OP_RELU;
}

static void passes_free(void *entry)
{
    passes *p = entry;
    for (int i = 0; i < 3; i++) {
        dp_dnnl_op_free(p->part[i].op);
        dp_dnnl_op_free(p->part[i].reorder);
    }
    free(p);
}

static void conv_close(void *state)
{
    conv *c = state;
    dp_by_rows_free(&c->table, passes_free);
    dp_spare_free(&c->workspace);
    dp_spare_free(&c->derived);
    free(c);
}

static dp_status conv_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state, dp_error *err)
{
    const dp_node *n = chain->node[0], *in = &chain->graph->node[n->in[0]];
    conv *c = dp_calloc(1, sizeof *c);
    if (!c) return dp_fail(err, DP_ENOMEM, "Out of memory: layer %s", n->name);
    c->device = d;
    c->first = in->op->kind == DP_OP_INPUT;
    c->shape = (dp_dnnl_conv){
        .rows = capacity,
        .in = {in->shape[0], in->shape[1], in->shape[2]},
        .out = {n->shape[0], n->shape[1], n->shape[2]},
        .kernel = (int64_t)n->opt[DP_CONV_KERNEL],
        .stride = (int64_t)n->opt[DP_CONV_STRIDE],
        .pad = (int64_t)n->opt[DP_CONV_PAD],
        .dilation = (int64_t)n->opt[DP_CONV_DILATION],
        .groups = (int64_t)n->opt[DP_CONV_GROUPS],
        .bias = n->opt[DP_CONV_BIAS] != 0,
        .relu = chain->n > 1,
    };
    need->reads_in[0] = 1;
    need->reads_out = (uint8_t)c->shape.relu;
    for (int pass = DP_DNNL_FORWARD; pass <= DP_DNNL_BACKWARD_WEIGHTS; pass++) {
        dp_dnnl_sizes sizes;
        if (pass == DP_DNNL_BACKWARD_DATA && c->first) continue;
        const dp_status status = dp_dnnl_conv_sizes(d->dnnl, &c->shape, pass, &sizes, err);
        if (status) {
            free(c);
            return status;
        }
        need->workspace = larger(need->workspace, workspace_of(c, pass, sizes));
        if (pass == DP_DNNL_FORWARD) need->derived = sizes.weights;
    }
    c->workspace = (dp_spare){.device = d, .what = n->name, .reserved = need->workspace};
    c->derived = (dp_spare){.device = d, .what = n->name, .reserved = need->derived};
    *state = c;
    return DP_OK;
}

static dp_status make(conv *c, int64_t rows, dp_dnnl_pass pass, part *p, dp_error *err)
{
    dp_dnnl_conv shape = c->shape;
    if (p->op) return DP_OK;
    shape.rows = rows;
    DP_TRY(dp_dnnl_conv_make(c->device->dnnl, &shape, pass, &p->op, err));
    DP_TRY(dp_dnnl_weights_reorder(p->op, &p->reorder, err));
    return dp_spare_fit(&c->workspace, workspace_of(c, pass, dp_dnnl_op_sizes(p->op)), err);
}

static dp_status conv_prepare(void *state, int64_t rows, dp_error *err)
{
    conv *c = state;
    if (dp_by_rows_find(&c->table, rows)) return DP_OK;
    passes *p = dp_calloc(1, sizeof *p);
    if (!p) return dp_fail(err, DP_ENOMEM, "Out of memory: convolutions for %lld rows", (long long)rows);
    dp_status status = DP_OK;
    for (int pass = DP_DNNL_FORWARD; pass <= DP_DNNL_BACKWARD_WEIGHTS && !status; pass++) {
        if (pass == DP_DNNL_BACKWARD_DATA && c->first) continue;
        status = make(c, rows, pass, &p->part[pass], err);
    }
    if (!status) status = dp_spare_fit(&c->derived, dp_dnnl_op_sizes(p->part[DP_DNNL_FORWARD].op).weights, err);
    if (!status) {
        p->layout = p->part[DP_DNNL_FORWARD].op;
        for (int i = 0; i < c->table.n; i++) {
            const passes *other = c->table.item[i].entry;
            if (dp_dnnl_same_weights(other->layout, p->layout)) p->layout = other->layout;
        }
        status = dp_by_rows_add(&c->table, rows, p, err);
    }
    c->version = 0; /* the derived copy may have moved */
    if (status) passes_free(p);
    return status;
}

/* `weights` holds O,H,W,I, `copy` the op's layout; what an op reads or writes is one of them. */
static dp_status reorder(const part *p, const void *from, void *to)
{
    const void *const arg[DP_DNNL_ARGS] = {from, to};
    return dp_dnnl_run(p->reorder, arg, NULL);
}

static dp_status conv_forward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    (void)run_device;
    conv *c = state;
    const passes *p = dp_by_rows_find(&c->table, run->rows);
    if (!p) return DP_EARGUMENT;
    const part *f = &p->part[DP_DNNL_FORWARD];
    const dp_dnnl_sizes sizes = dp_dnnl_op_sizes(f->op);
    const void *weights = io->param[0];
    if (f->reorder) {
        void *copy = dp_spare_use(&c->derived, io->derived, sizes.weights);
        if (c->version != run->param_version || c->in_layout != p->layout) {
            DP_TRY(reorder(f, weights, copy));
            c->version = run->param_version;
            c->in_layout = p->layout;
        }
        weights = copy;
    }
    const void *const arg[DP_DNNL_ARGS] = {io->in[0], weights, io->out, io->param[1]};
    return dp_dnnl_run(f->op, arg, dp_spare_use(&c->workspace, io->workspace, workspace_of(c, DP_DNNL_FORWARD, sizes)));
}

static dp_status backward_data(const conv *c, const part *p, const dp_io *io)
{
    const dp_dnnl_sizes sizes = dp_dnnl_op_sizes(p->op);
    char *scratch = dp_spare_use(&c->workspace, io->workspace, workspace_of(c, DP_DNNL_BACKWARD_DATA, sizes));
    void *copy = scratch + padded(sizes.scratch);
    if (p->reorder) DP_TRY(reorder(p, io->param[0], copy));
    const void *const arg[DP_DNNL_ARGS] = {io->d_out, p->reorder ? copy : io->param[0], io->d_in[0]};
    return dp_dnnl_run(p->op, arg, scratch);
}

static dp_status backward_weights(const conv *c, const part *p, const dp_io *io)
{
    const dp_dnnl_sizes sizes = dp_dnnl_op_sizes(p->op);
    char *scratch = dp_spare_use(&c->workspace, io->workspace, workspace_of(c, DP_DNNL_BACKWARD_WEIGHTS, sizes));
    char *copy = scratch + padded(sizes.scratch);
    const void *bias = io->grad[1] ? (void *)io->grad[1] : copy + padded(sizes.weights);
    const void *const arg[DP_DNNL_ARGS] = {io->in[0], io->d_out, p->reorder ? copy : (void *)io->grad[0], bias};
    DP_TRY(dp_dnnl_run(p->op, arg, scratch));
    return p->reorder ? reorder(p, copy, io->grad[0]) : DP_OK;
}

static dp_status conv_backward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    (void)run_device;
    conv *c = state;
    const dp_vec *vec = c->device->vec;
    passes *p = dp_by_rows_find(&c->table, run->rows);
    if (!p) return DP_EARGUMENT;
    const int64_t pixels = run->rows * c->shape.out[0] * c->shape.out[1], channels = c->shape.out[2];
    if (c->shape.relu) vec->pointwise->relu_backward(io->d_out, io->d_out, io->out, pixels * channels);
    if (io->grad[0])
        DP_TRY(backward_weights(c, &p->part[DP_DNNL_BACKWARD_WEIGHTS], io));
    else if (c->shape.bias && io->grad[1])
        vec->flat->columns(io->grad[1], io->d_out, pixels, channels);
    if (!io->d_in[0]) return DP_OK;
    DP_TRY(make(c, run->rows, DP_DNNL_BACKWARD_DATA, &p->part[DP_DNNL_BACKWARD_DATA], NULL));
    return backward_data(c, &p->part[DP_DNNL_BACKWARD_DATA], io);
}

const dp_family dp_cpu_conv2d = {.fuses = conv_fuses,
                                 .open = conv_open,
                                 .prepare = conv_prepare,
                                 .forward = conv_forward,
                                 .backward = conv_backward,
                                 .close = conv_close};
