/* 2-d convolution over H,W,C pictures with square windows, as torch.nn.Conv2d. */
#include "ops.h"

static const dp_option options[] = {
    [DP_CONV_OUT] = {"out", NAN, 1, DP_DIM_MAX, 1, NULL, "output channels"},
    [DP_CONV_KERNEL] = {"kernel", NAN, 1, DP_DIM_MAX, 1, NULL, "side of the window"},
    [DP_CONV_STRIDE] = {"stride", 1, 1, DP_DIM_MAX, 1, NULL, "step of the window"},
    [DP_CONV_PAD] = {"pad", 0, 0, DP_DIM_MAX, 1, NULL, "zeros around the picture"},
    [DP_CONV_DILATION] = {"dilation", 1, 1, DP_DIM_MAX, 1, NULL, "distance of the window's points"},
    [DP_CONV_GROUPS] = {"groups", 1, 1, DP_DIM_MAX, 1, NULL, "independent groups of channels"},
    [DP_CONV_BIAS] = {"bias", 1, 0, 1, 1, NULL, "1 = adds a bias per channel"},
};

static dp_status infer(dp_graph *g, dp_node *n, dp_error *err)
{
    const dp_node *in = dp_node_in(g, n, 0);
    int64_t out = dp_opt(n, DP_CONV_OUT), kernel = dp_opt(n, DP_CONV_KERNEL), stride = dp_opt(n, DP_CONV_STRIDE);
    int64_t pad = dp_opt(n, DP_CONV_PAD), dilation = dp_opt(n, DP_CONV_DILATION), groups = dp_opt(n, DP_CONV_GROUPS), side[2];
    DP_TRY(dp_want_picture(g, n, err));
    int64_t channels = in->shape[2];
    if (channels % groups || out % groups)
        return dp_fail(err, DP_ECONFIG, "groups=%lld must divide the %lld input channels and out=%lld", (long long)groups,
                       (long long)channels, (long long)out);
    for (int i = 0; i < 2; i++) DP_TRY(dp_window(&side[i], in->shape[i], kernel, stride, pad, dilation, in, err));
    DP_TRY(dp_node_set_shape(n, 3, (int64_t[]){side[0], side[1], out}, err));
    int64_t weight[] = {out, channels / groups, kernel, kernel};
    double fan_in = (double)weight[1] * (double)kernel * (double)kernel;
    DP_TRY(dp_graph_add_tensor(g, n, "weight", 4, weight, 0, DP_INIT_KAIMING, fan_in, 0, err));
    if (dp_opt(n, DP_CONV_BIAS)) DP_TRY(dp_graph_add_tensor(g, n, "bias", 1, &out, 0, DP_INIT_KAIMING, fan_in, 0, err));
    return DP_OK;
}

static void cost(const dp_graph *g, const dp_node *n, double *flops, double *bytes)
{
    double kernel = n->opt[DP_CONV_KERNEL],
           taps = (double)dp_node_in(g, n, 0)->shape[2] / n->opt[DP_CONV_GROUPS] * kernel * kernel;
    *flops = (double)n->width * (2 * taps + n->opt[DP_CONV_BIAS]);
    *bytes = dp_touched(g, n);
}

const dp_op dp_op_conv2d = {.name = "conv2d",
                            .kind = DP_OP_CONV2D,
                            .options = options,
                            .n_options = DP_COUNT_OF(options),
                            .n_in = 1,
                            .infer = infer,
                            .cost = cost};
