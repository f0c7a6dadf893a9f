/* Internal: what the op families share. A family says which options an op has, what shape it gives, which tensors it owns and
 * what it costs; it does no arithmetic. Shapes are kept as H,W,C and shown as C x H x W. */
#ifndef DP_NN_OPS_H
#define DP_NN_OPS_H
#include "../graph.h"
#include <math.h>

#define DP_COUNT_OF(a) ((int)(sizeof(a) / sizeof((a)[0])))
#define DP_DIM_MAX     2147483647.0 /* of one option or side: products of two stay inside int64_t */

extern const dp_op dp_op_input; /* not in the table: it is no op of a line */
extern const dp_op dp_op_conv2d, dp_op_linear, dp_op_batchnorm2d, dp_op_layernorm, dp_op_relu, dp_op_gelu, dp_op_sigmoid,
    dp_op_tanh, dp_op_maxpool2d, dp_op_avgpool2d, dp_op_globalavgpool, dp_op_flatten, dp_op_add, dp_op_concat, dp_op_dropout,
    dp_op_embedding, dp_op_position, dp_op_attention, dp_op_softmax;

/* Elements of a shape; -1 when a side is below 1 or the product passes 2^40 (no device holds that; sums of a few stay in range). */
int64_t dp_shape_count(int rank, const int64_t *shape);
/* Gives the node this shape (memory order); refuses what dp_shape_count refuses. */
dp_status dp_node_set_shape(dp_node *n, int rank, const int64_t *shape, dp_error *err);
/* "64 x 32 x 32" as PyTorch writes it. Returns buf. */
const char *dp_shape_text(char *buf, size_t size, const dp_node *n);
/* The output has the first input's shape: for everything pointwise and for norms. */
dp_status dp_infer_same(dp_graph *g, dp_node *n, dp_error *err);
/* The input is a picture, or DP_ECONFIG. */
dp_status dp_want_picture(const dp_graph *g, const dp_node *n, dp_error *err);
/* Positions of a square window over `side`; DP_ECONFIG when it does not fit. */
dp_status dp_window(int64_t *out, int64_t side, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation,
                    const dp_node *in, dp_error *err);
/* Forward flops and bytes of one sample: the op's own, or one flop an element. */
void dp_node_cost(const dp_graph *g, const dp_node *n, double *flops, double *bytes);
/* Bytes of inputs, output and tensors, each touched once. */
double dp_touched(const dp_graph *g, const dp_node *n);

static inline const dp_node *dp_node_in(const dp_graph *g, const dp_node *n, int k)
{
    return &g->node[n->in[k]];
}
static inline int64_t dp_opt(const dp_node *n, int i)
{
    return (int64_t)n->opt[i];
}
#endif
