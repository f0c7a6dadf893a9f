/* Multi-head self-attention with its two projections; names and starting values of torch.nn.MultiheadAttention. */
#include "ops.h"

static const dp_option options[] = {
    [DP_ATTENTION_HEADS] = {"heads", NAN, 1, DP_DIM_MAX, 1, NULL, "number of heads; divides the width"},
    [DP_ATTENTION_CAUSAL] = {"causal", 0, 0, 1, 1, NULL, "1 = a position sees only itself and those before it"},
};

static dp_status infer(dp_graph *g, dp_node *n, dp_error *err)
{
    const dp_node *in = dp_node_in(g, n, 0);
    int64_t heads = dp_opt(n, DP_ATTENTION_HEADS);
    char text[80];
    if (in->rank != 2)
        return dp_fail(err, DP_ECONFIG, "attention wants T x C, but \"%s\" gives %s", in->name,
                       dp_shape_text(text, sizeof text, in));
    int64_t width = in->shape[1], width3 = 3 * width;
    if (width % heads)
        return dp_fail(err, DP_ECONFIG, "heads=%lld must divide the width %lld of \"%s\"", (long long)heads, (long long)width,
                       in->name);
    DP_TRY(dp_infer_same(g, n, err));
    DP_TRY(dp_graph_add_tensor(g, n, "in_proj_weight", 2, (int64_t[]){width3, width}, 0, DP_INIT_XAVIER, (double)width,
                               (double)width3, err));
    DP_TRY(dp_graph_add_tensor(g, n, "in_proj_bias", 1, &width3, 0, DP_INIT_ZERO, 0, 0, err));
    DP_TRY(
        dp_graph_add_tensor(g, n, "out_proj.weight", 2, (int64_t[]){width, width}, 0, DP_INIT_KAIMING, (double)width, 0, err));
    return dp_graph_add_tensor(g, n, "out_proj.bias", 1, &width, 0, DP_INIT_ZERO, 0, 0, err);
}

static void cost(const dp_graph *g, const dp_node *n, double *flops, double *bytes)
{
    double t = (double)n->shape[0], d = (double)n->shape[1];
    double pairs = n->opt[DP_ATTENTION_CAUSAL] != 0 ? t * (t + 1) / 2 : t * t;
    /* four projections' worth of products, scores and their sum with the values, and a softmax per head */
    *flops = 8 * t * d * d + 4 * pairs * d + 8 * pairs * n->opt[DP_ATTENTION_HEADS];
    *bytes = dp_touched(g, n) + 4 * 4 * t * d;
}

const dp_op dp_op_attention = {.name = "attention",
                               .kind = DP_OP_ATTENTION,
                               .options = options,
                               .n_options = DP_COUNT_OF(options),
                               .n_in = 1,
                               .infer = infer,
                               .cost = cost};
