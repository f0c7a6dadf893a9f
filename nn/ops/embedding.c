/* Token and position tables, as torch.nn.Embedding: T tokens to T x D, and a learned row added to each position. */
#include "ops.h"

static const dp_option options[] = {
    [DP_EMBEDDING_VOCAB] = {"vocab", NAN, 1, DP_DIM_MAX, 1, NULL, "number of tokens"},
    [DP_EMBEDDING_DIM] = {"dim", NAN, 1, DP_DIM_MAX, 1, NULL, "width of a row"},
};

static dp_status infer(dp_graph *g, dp_node *n, dp_error *err)
{
    const dp_node *in = dp_node_in(g, n, 0);
    char text[80];
    if (in->dtype != DP_I32)
        return dp_fail(err, DP_ECONFIG, "embedding wants token numbers (`input = tokens T`), but \"%s\" gives %s", in->name,
                       dp_shape_text(text, sizeof text, in));
    int64_t weight[] = {dp_opt(n, DP_EMBEDDING_VOCAB), dp_opt(n, DP_EMBEDDING_DIM)};
    DP_TRY(dp_node_set_shape(n, 2, (int64_t[]){in->shape[0], weight[1]}, err));
    return dp_graph_add_tensor(g, n, "weight", 2, weight, 0, DP_INIT_NORMAL, 0, 0, err);
}

static dp_status infer_position(dp_graph *g, dp_node *n, dp_error *err)
{
    const dp_node *in = dp_node_in(g, n, 0);
    char text[80];
    if (in->rank != 2)
        return dp_fail(err, DP_ECONFIG, "position wants T x C, but \"%s\" gives %s", in->name,
                       dp_shape_text(text, sizeof text, in));
    DP_TRY(dp_infer_same(g, n, err));
    return dp_graph_add_tensor(g, n, "weight", 2, n->shape, 0, DP_INIT_NORMAL, 0, 0, err);
}

static void cost(const dp_graph *g, const dp_node *n, double *flops, double *bytes)
{
    *flops = 0;
    *bytes = 4 * ((double)dp_node_in(g, n, 0)->width + 2 * (double)n->width); /* only the rows that are looked up */
}

const dp_op dp_op_embedding = {.name = "embedding",
                               .kind = DP_OP_EMBEDDING,
                               .options = options,
                               .n_options = DP_COUNT_OF(options),
                               .n_in = 1,
                               .infer = infer,
                               .cost = cost};
const dp_op dp_op_position = {.name = "position", .kind = DP_OP_POSITION, .n_in = 1, .infer = infer_position};
