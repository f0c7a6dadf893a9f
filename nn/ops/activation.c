/* Activations: pointwise ones, and softmax over the last axis in memory (the channels of a picture). */
#include "ops.h"

static const dp_option gelu_options[] = {
    [DP_GELU_TANH] = {"approximate", 0, 0, 1, 1, "none|tanh", "none = with erf, tanh = the cheaper formula"},
};

static void cost_exp(const dp_graph *g, const dp_node *n, double *flops, double *bytes)
{
    *flops = 8 * (double)n->width; /* an exponential, counted as the polynomial of about 8 operations that it is */
    *bytes = dp_touched(g, n);
}

const dp_op dp_op_relu = {.name = "relu", .kind = DP_OP_RELU, .n_in = 1, .pointwise = 1, .infer = dp_infer_same};
const dp_op dp_op_gelu = {.name = "gelu",
                          .kind = DP_OP_GELU,
                          .options = gelu_options,
                          .n_options = DP_COUNT_OF(gelu_options),
                          .n_in = 1,
                          .pointwise = 1,
                          .infer = dp_infer_same,
                          .cost = cost_exp};
const dp_op dp_op_sigmoid = {
    .name = "sigmoid", .kind = DP_OP_SIGMOID, .n_in = 1, .pointwise = 1, .infer = dp_infer_same, .cost = cost_exp};
const dp_op dp_op_tanh = {
    .name = "tanh", .kind = DP_OP_TANH, .n_in = 1, .pointwise = 1, .infer = dp_infer_same, .cost = cost_exp};
const dp_op dp_op_softmax = {.name = "softmax", .kind = DP_OP_SOFTMAX, .n_in = 1, .infer = dp_infer_same, .cost = cost_exp};
