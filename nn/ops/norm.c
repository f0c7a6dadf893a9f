/* Normalisations: batchnorm2d over a channel of all samples, layernorm over the last axis of each position. */
#include "ops.h"

static const dp_option batch_options[] = {
    [DP_NORM_EPS] = {"eps", 1e-5, 0, 1, 0, NULL, "added to the variance"},
    [DP_NORM_MOMENTUM] = {"momentum", 0.1, 0, 1, 0, NULL, "share of a batch in the running statistics"},
};
static const dp_option layer_options[] = {
    [DP_NORM_EPS] = {"eps", 1e-5, 0, 1, 0, NULL, "added to the variance"},
};

static dp_status infer_batch(dp_graph *g, dp_node *n, dp_error *err)
{
    DP_TRY(dp_want_picture(g, n, err));
    DP_TRY(dp_infer_same(g, n, err));
    int64_t channels = n->shape[2];
    /* one sample of a 1 x 1 map has no variance: PyTorch refuses it, the splits here avoid it */
    if (n->shape[0] * n->shape[1] == 1) n->min_rows = 2;
    DP_TRY(dp_graph_add_tensor(g, n, "weight", 1, &channels, 0, DP_INIT_ONE, 0, 0, err));
    DP_TRY(dp_graph_add_tensor(g, n, "bias", 1, &channels, 0, DP_INIT_ZERO, 0, 0, err));
    DP_TRY(dp_graph_add_tensor(g, n, "running_mean", 1, &channels, 1, DP_INIT_ZERO, 0, 0, err));
    DP_TRY(dp_graph_add_tensor(g, n, "running_var", 1, &channels, 1, DP_INIT_ONE, 0, 0, err));
    return dp_graph_add_tensor(g, n, "num_batches_tracked", 0, NULL, 2, DP_INIT_ZERO, 0, 0, err);
}

static dp_status infer_layer(dp_graph *g, dp_node *n, dp_error *err)
{
    const dp_node *in = dp_node_in(g, n, 0);
    char text[80];
    if (in->rank == 3)
        return dp_fail(err, DP_ECONFIG,
                       "layernorm wants C or T x C, but \"%s\" gives the picture %s; put `flatten` on a line before it",
                       in->name, dp_shape_text(text, sizeof text, in));
    DP_TRY(dp_infer_same(g, n, err));
    int64_t features = n->shape[n->rank - 1];
    DP_TRY(dp_graph_add_tensor(g, n, "weight", 1, &features, 0, DP_INIT_ONE, 0, 0, err));
    return dp_graph_add_tensor(g, n, "bias", 1, &features, 0, DP_INIT_ZERO, 0, 0, err);
}

/* mean, variance, and scaling: two passes of three operations and one of two */
static void cost(const dp_graph *g, const dp_node *n, double *flops, double *bytes)
{
    *flops = 8 * (double)n->width;
    *bytes = dp_touched(g, n);
}

const dp_op dp_op_batchnorm2d = {.name = "batchnorm2d",
                                 .kind = DP_OP_BATCHNORM2D,
                                 .options = batch_options,
                                 .n_options = DP_COUNT_OF(batch_options),
                                 .n_in = 1,
                                 .infer = infer_batch,
                                 .cost = cost};
const dp_op dp_op_layernorm = {.name = "layernorm",
                               .kind = DP_OP_LAYERNORM,
                               .options = layer_options,
                               .n_options = DP_COUNT_OF(layer_options),
                               .n_in = 1,
                               .infer = infer_layer,
                               .cost = cost};
