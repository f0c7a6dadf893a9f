/* The table of ops, and the helpers their families share. */
#include "ops.h"
#include "../../dp/base/text.h"
#include <string.h>

static const dp_op *const ops[] = {
    &dp_op_conv2d,  &dp_op_linear,    &dp_op_batchnorm2d, &dp_op_layernorm,     &dp_op_relu,    &dp_op_gelu, &dp_op_sigmoid,
    &dp_op_tanh,    &dp_op_maxpool2d, &dp_op_avgpool2d,   &dp_op_globalavgpool, &dp_op_flatten, &dp_op_add,  &dp_op_concat,
    &dp_op_dropout, &dp_op_embedding, &dp_op_position,    &dp_op_attention,     &dp_op_softmax,
};

const dp_op *dp_op_at(int i)
{
    return i >= 0 && i < DP_COUNT_OF(ops) ? ops[i] : NULL;
}

const dp_op *dp_op_find(const char *name)
{
    for (int i = 0; i < DP_COUNT_OF(ops); i++)
        if (!strcmp(ops[i]->name, name)) return ops[i];
    return NULL;
}

int64_t dp_shape_count(int rank, const int64_t *shape)
{
    const int64_t limit = (int64_t)1 << 40;
    int64_t count = 1;
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 1 || shape[i] > limit / count) return -1;
        count *= shape[i];
    }
    return count;
}

const char *dp_shape_text(char *buf, size_t size, const dp_node *n)
{
    const int64_t *s = n->shape;
    if (n->rank == 3)
        dp_format(buf, size, "%lld x %lld x %lld", (long long)s[2], (long long)s[0], (long long)s[1]);
    else if (n->rank == 2)
        dp_format(buf, size, "%lld x %lld", (long long)s[0], (long long)s[1]);
    else
        dp_format(buf, size, n->dtype == DP_I32 ? "tokens %lld" : "%lld", (long long)s[0]);
    return buf;
}

dp_status dp_node_set_shape(dp_node *n, int rank, const int64_t *shape, dp_error *err)
{
    char text[80];
    n->rank = rank;
    memcpy(n->shape, shape, (size_t)rank * sizeof *shape);
    n->width = dp_shape_count(rank, shape);
    if (n->width < 0)
        return dp_fail(err, DP_ECONFIG, "the shape %s has more elements than a sample may have (2^40); make it smaller",
                       dp_shape_text(text, sizeof text, n));
    return DP_OK;
}

dp_status dp_infer_same(dp_graph *g, dp_node *n, dp_error *err)
{
    const dp_node *in = dp_node_in(g, n, 0);
    return dp_node_set_shape(n, in->rank, in->shape, err);
}

dp_status dp_want_picture(const dp_graph *g, const dp_node *n, dp_error *err)
{
    const dp_node *in = dp_node_in(g, n, 0);
    char text[80];
    if (in->rank == 3) return DP_OK;
    return dp_fail(err, DP_ECONFIG,
                   "%s wants a picture C x H x W, but \"%s\" gives %s; check the order of the layers or `input`", n->op->name,
                   in->name, dp_shape_text(text, sizeof text, in));
}

dp_status dp_window(int64_t *out, int64_t side, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation,
                    const dp_node *in, dp_error *err)
{
    int64_t span = dilation * (kernel - 1) + 1, room = side + 2 * pad - span;
    char text[80];
    if (room < 0)
        return dp_fail(err, DP_ECONFIG,
                       "a window of %lld does not fit into the input %s with pad=%lld; use a smaller kernel or more pad",
                       (long long)span, dp_shape_text(text, sizeof text, in), (long long)pad);
    *out = room / stride + 1;
    return DP_OK;
}

double dp_touched(const dp_graph *g, const dp_node *n)
{
    double elements = (double)n->width;
    for (int i = 0; i < n->n_in; i++) elements += (double)dp_node_in(g, n, i)->width;
    for (int i = 0; i < n->n_tensors; i++) elements += (double)g->tensor[n->first_tensor + i].count;
    return 4.0 * elements;
}

void dp_node_cost(const dp_graph *g, const dp_node *n, double *flops, double *bytes)
{
    *flops = *bytes = 0;
    if (n->op->kind == DP_OP_INPUT) return;
    if (n->op->cost) {
        n->op->cost(g, n, flops, bytes);
        return;
    }
    *flops = (double)n->width;
    *bytes = dp_touched(g, n);
}
