/* Matrix product with the last axis, as torch.nn.Linear. */
#include "ops.h"

static const dp_option options[] = {
    [DP_LINEAR_OUT] = {"out", NAN, 1, DP_DIM_MAX, 1, NULL, "output features"},
    [DP_LINEAR_BIAS] = {"bias", 1, 0, 1, 1, NULL, "1 = adds a bias per feature"},
};

static dp_status infer(dp_graph *g, dp_node *n, dp_error *err)
{
    const dp_node *in = dp_node_in(g, n, 0);
    int64_t out = dp_opt(n, DP_LINEAR_OUT);
    char text[80];
    if (in->rank == 3)
        return dp_fail(err, DP_ECONFIG, "linear wants C or T x C, but \"%s\" gives the picture %s; put `flatten |` before it",
                       in->name, dp_shape_text(text, sizeof text, in));
    int64_t features = in->shape[in->rank - 1];
    DP_TRY(dp_node_set_shape(n, in->rank, in->rank == 2 ? (int64_t[]){in->shape[0], out} : (int64_t[]){out, 0}, err));
    DP_TRY(dp_graph_add_tensor(g, n, "weight", 2, (int64_t[]){out, features}, 0, DP_INIT_KAIMING, (double)features, 0, err));
    if (dp_opt(n, DP_LINEAR_BIAS))
        DP_TRY(dp_graph_add_tensor(g, n, "bias", 1, &out, 0, DP_INIT_KAIMING, (double)features, 0, err));
    return DP_OK;
}

static void cost(const dp_graph *g, const dp_node *n, double *flops, double *bytes)
{
    const dp_node *in = dp_node_in(g, n, 0);
    *flops = (double)n->width * (2 * (double)in->shape[in->rank - 1] + n->opt[DP_LINEAR_BIAS]);
    *bytes = dp_touched(g, n);
}

const dp_op dp_op_linear = {.name = "linear",
                            .kind = DP_OP_LINEAR,
                            .options = options,
                            .n_options = DP_COUNT_OF(options),
                            .n_in = 1,
                            .infer = infer,
                            .cost = cost};
