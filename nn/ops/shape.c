/* The input, and ops that join or reshape: flatten, add, concat. */
#include "ops.h"
#include <string.h>

const dp_op dp_op_input = {.name = "input", .kind = DP_OP_INPUT};

static dp_status infer_flatten(dp_graph *g, dp_node *n, dp_error *err)
{
    return dp_node_set_shape(n, 1, &dp_node_in(g, n, 0)->width, err);
}

static void cost_flatten(const dp_graph *g, const dp_node *n, double *flops, double *bytes)
{
    *flops = 0;
    *bytes = n->to_file_order ? dp_touched(g, n) : 0;
}

static dp_status infer_add(dp_graph *g, dp_node *n, dp_error *err)
{
    const dp_node *a = dp_node_in(g, n, 0);
    char text[80], text_k[80];
    for (int k = 1; k < n->n_in; k++) {
        const dp_node *b = dp_node_in(g, n, k);
        if (a->rank != b->rank || memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape))
            return dp_fail(err, DP_ECONFIG, "add wants equal shapes, but \"%s\" gives %s and \"%s\" gives %s", a->name,
                           dp_shape_text(text, sizeof text, a), b->name, dp_shape_text(text_k, sizeof text_k, b));
    }
    return dp_infer_same(g, n, err);
}

static void cost_add(const dp_graph *g, const dp_node *n, double *flops, double *bytes)
{
    *flops = (double)n->width * (n->n_in - 1);
    *bytes = dp_touched(g, n);
}

static dp_status infer_concat(dp_graph *g, dp_node *n, dp_error *err)
{
    const dp_node *a = dp_node_in(g, n, 0);
    int64_t shape[DP_MAX_RANK];
    int last = a->rank - 1;
    char text[80], text_k[80];
    memcpy(shape, a->shape, sizeof shape);
    for (int k = 1; k < n->n_in; k++) {
        const dp_node *b = dp_node_in(g, n, k);
        if (a->rank != b->rank || memcmp(a->shape, b->shape, (size_t)last * sizeof *a->shape))
            return dp_fail(err, DP_ECONFIG,
                           "concat joins channels and wants all else equal, but \"%s\" gives %s and \"%s\" gives %s", a->name,
                           dp_shape_text(text, sizeof text, a), b->name, dp_shape_text(text_k, sizeof text_k, b));
        shape[last] += b->shape[last];
    }
    return dp_node_set_shape(n, a->rank, shape, err);
}

static void cost_concat(const dp_graph *g, const dp_node *n, double *flops, double *bytes)
{
    *flops = 0;
    *bytes = dp_touched(g, n);
}

const dp_op dp_op_flatten = {.name = "flatten", .kind = DP_OP_FLATTEN, .n_in = 1, .infer = infer_flatten, .cost = cost_flatten};
const dp_op dp_op_add = {.name = "add", .kind = DP_OP_ADD, .n_in = 2, .pointwise = 1, .infer = infer_add, .cost = cost_add};
const dp_op dp_op_concat = {.name = "concat", .kind = DP_OP_CONCAT, .n_in = 2, .infer = infer_concat, .cost = cost_concat};
