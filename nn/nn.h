/* The network: a static graph of layers. Text in, PyTorch's names out. Knows no devices. */
#ifndef DP_NN_H
#define DP_NN_H
#include "../dp/base/base.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct dp_graph dp_graph;

typedef struct dp_layer_info {
    const char *name, *op; /* "conv1", "conv2d"; a follower of a pipe is named "conv1|relu" */
    int32_t rank;
    int64_t shape[4];          /* of one sample as PyTorch writes it: C x H x W | T x C | C */
    int64_t parameters, flops; /* flops of one sample, forward; multiply and add count as two */
    int64_t reserved[4];
} dp_layer_info;

typedef struct dp_tensor_info {
    const char *name; /* as in PyTorch's state_dict: "conv1.weight" */
    int32_t rank;
    int64_t shape[4]; /* as in PyTorch */
    int64_t count;
    int32_t is_buffer; /* running statistics: not trained */
    int64_t reserved[4];
} dp_tensor_info;

DP_API dp_graph *dp_graph_new_version(int header_version);
static inline dp_graph *dp_graph_new(void) /* NULL: out of memory */
{
    return dp_graph_new_version(DP_VERSION);
}
/* One line of [model]: dp_layer(g, "input", "1x28x28"), dp_layer(g, "conv1", "conv2d out=32 kernel=3 pad=1 | relu").
 * The first error sticks and is returned by dp_graph_finish. */
DP_API void dp_layer(dp_graph *g, const char *name, const char *spec);
/* Text with [model] and [block NAME ...] sections. */
DP_API void dp_graph_text(dp_graph *g, const char *ini);
/* The [model] and [block] lines of a loaded config. */
DP_API void dp_graph_config(dp_graph *g, const dp_config *c);
/* A name that option values may use: dp_graph_symbol(g, "classes", 10) makes `linear out=classes` legal. Before finish. */
DP_API void dp_graph_symbol(dp_graph *g, const char *name, int64_t value);
/* Shapes, names, order. Needed before use; the graph is read-only afterwards and may serve several engines. */
DP_API dp_status dp_graph_finish(dp_graph *g, dp_error *err);
DP_API int dp_graph_layer(const dp_graph *g, int i, dp_layer_info *info);   /* 0 past the last */
DP_API int dp_graph_tensor(const dp_graph *g, int i, dp_tensor_info *info); /* 0 past the last; file order */
DP_API void dp_graph_free(dp_graph *g);

#ifdef __cplusplus
}
#endif
#endif
