/* Pooling over square windows of H,W,C pictures, and the mean over a whole picture. */
#include "ops.h"

static const dp_option options[] = {
    [DP_POOL_KERNEL] = {"kernel", NAN, 1, DP_DIM_MAX, 1, NULL, "side of the window"},
    [DP_POOL_STRIDE] = {"stride", 0, 1, DP_DIM_MAX, 1, NULL, "step of the window; absent = kernel"},
    [DP_POOL_PAD] = {"pad", 0, 0, DP_DIM_MAX, 1, NULL, "border, at most half the kernel; avgpool2d counts it as zeros"},
};

static dp_status infer(dp_graph *g, dp_node *n, dp_error *err)
{
    const dp_node *in = dp_node_in(g, n, 0);
    int64_t kernel = dp_opt(n, DP_POOL_KERNEL), pad = dp_opt(n, DP_POOL_PAD), side[2];
    if (n->opt[DP_POOL_STRIDE] == 0) n->opt[DP_POOL_STRIDE] = n->opt[DP_POOL_KERNEL];
    DP_TRY(dp_want_picture(g, n, err));
    if (pad > kernel / 2)
        return dp_fail(err, DP_ECONFIG, "pad=%lld must be at most half of kernel=%lld", (long long)pad, (long long)kernel);
    for (int i = 0; i < 2; i++) DP_TRY(dp_window(&side[i], in->shape[i], kernel, dp_opt(n, DP_POOL_STRIDE), pad, 1, in, err));
    return dp_node_set_shape(n, 3, (int64_t[]){side[0], side[1], in->shape[2]}, err);
}

static void cost(const dp_graph *g, const dp_node *n, double *flops, double *bytes)
{
    *flops = (double)n->width * n->opt[DP_POOL_KERNEL] * n->opt[DP_POOL_KERNEL];
    *bytes = dp_touched(g, n);
}

/* C x 1 x 1, as torch.nn.AdaptiveAvgPool2d(1) */
static dp_status infer_global(dp_graph *g, dp_node *n, dp_error *err)
{
    DP_TRY(dp_want_picture(g, n, err));
    return dp_node_set_shape(n, 3, (int64_t[]){1, 1, dp_node_in(g, n, 0)->shape[2]}, err);
}

static void cost_global(const dp_graph *g, const dp_node *n, double *flops, double *bytes)
{
    *flops = (double)dp_node_in(g, n, 0)->width;
    *bytes = dp_touched(g, n);
}

const dp_op dp_op_maxpool2d = {.name = "maxpool2d",
                               .kind = DP_OP_MAXPOOL2D,
                               .options = options,
                               .n_options = DP_COUNT_OF(options),
                               .n_in = 1,
                               .infer = infer,
                               .cost = cost};
const dp_op dp_op_avgpool2d = {.name = "avgpool2d",
                               .kind = DP_OP_AVGPOOL2D,
                               .options = options,
                               .n_options = DP_COUNT_OF(options),
                               .n_in = 1,
                               .infer = infer,
                               .cost = cost};
const dp_op dp_op_globalavgpool = {
    .name = "globalavgpool", .kind = DP_OP_GLOBALAVGPOOL, .n_in = 1, .infer = infer_global, .cost = cost_global};
