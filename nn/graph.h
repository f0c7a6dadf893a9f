/* Internal: the finished graph, a list of nodes in execution order (every input stands before its consumer). One node is one op;
 * a line of [model] with pipes is several nodes. Node 0 is the input. Activations lie as N,H,W,C | N,T,C | N,C. */
#ifndef DP_NN_GRAPH_H
#define DP_NN_GRAPH_H
#include "../dp/base/config.h"
#include "../dp/base/error.h"
#include "nn.h"

enum { DP_MAX_IN = 4, DP_MAX_RANK = 3, DP_MAX_OPTIONS = 12, DP_NAME = 128 };

typedef enum dp_op_kind {
    DP_OP_INPUT,
    DP_OP_CONV2D,
    DP_OP_LINEAR,
    DP_OP_BATCHNORM2D,
    DP_OP_LAYERNORM,
    DP_OP_RELU,
    DP_OP_GELU,
    DP_OP_SIGMOID,
    DP_OP_TANH,
    DP_OP_MAXPOOL2D,
    DP_OP_AVGPOOL2D,
    DP_OP_GLOBALAVGPOOL,
    DP_OP_FLATTEN,
    DP_OP_ADD,
    DP_OP_CONCAT,
    DP_OP_DROPOUT,
    DP_OP_EMBEDDING,
    DP_OP_POSITION,
    DP_OP_ATTENTION,
    DP_OP_SOFTMAX,
    DP_OP_KINDS
} dp_op_kind;

/* Options by position in dp_node.opt, per op, in the order of the op's option table. Absent optional pairs are resolved by
 * infer (stride of a pool = its kernel). `out` and friends are whole numbers; double holds them exactly. */
enum { DP_CONV_OUT, DP_CONV_KERNEL, DP_CONV_STRIDE, DP_CONV_PAD, DP_CONV_DILATION, DP_CONV_GROUPS, DP_CONV_BIAS };
enum { DP_LINEAR_OUT, DP_LINEAR_BIAS };
enum { DP_NORM_EPS, DP_NORM_MOMENTUM };               /* batchnorm2d both; layernorm eps */
enum { DP_GELU_TANH };                                /* approximate: 0 none (erf), 1 tanh */
enum { DP_POOL_KERNEL, DP_POOL_STRIDE, DP_POOL_PAD }; /* avgpool counts padding, as PyTorch's default does */
enum { DP_DROPOUT_P };
enum { DP_EMBEDDING_VOCAB, DP_EMBEDDING_DIM };
enum { DP_ATTENTION_HEADS, DP_ATTENTION_CAUSAL };

typedef struct dp_node dp_node;
typedef struct dp_tensor dp_tensor;

typedef struct dp_option {
    const char *key;
    double def, min, max; /* def NAN = must be given; whole = 1: an integer */
    int whole;
    const char *words; /* "none|tanh": a choice, the value is the index; NULL otherwise */
    const char *help;
} dp_option;

/* ops/: one row an op. What backward reads decides liveness. */
typedef struct dp_op {
    const char *name;
    dp_op_kind kind;
    const dp_option *options;
    int n_options;
    int n_in;               /* 1; 2 = two or more (add, concat) */
    unsigned pointwise : 1; /* out[i] depends on in[i] of the same position only */
    unsigned draws : 1;     /* random numbers in training */
    /* Sets rank, shape, dtype, min_rows of the node from its inputs and options; adds tensors with dp_graph_add_tensor. */
    dp_status (*infer)(dp_graph *g, dp_node *n, dp_error *err);
    /* Forward flops and bytes touched by one sample; NULL = one flop an element. */
    void (*cost)(const dp_graph *g, const dp_node *n, double *flops, double *bytes);
} dp_op;
const dp_op *dp_op_find(const char *name); /* NULL: unknown */
const dp_op *dp_op_at(int i);              /* NULL past the last */

struct dp_node {
    char name[DP_NAME];
    const dp_op *op;
    int n_in, in[DP_MAX_IN]; /* node indices */
    int rank;
    int64_t shape[DP_MAX_RANK]; /* of one sample: {H,W,C} | {T,C} | {C}; tokens {T} */
    int64_t width;              /* elements of one sample */
    dp_dtype dtype;             /* DP_F32; DP_I32 for token input */
    int first_tensor, n_tensors;
    uint32_t key; /* low half of dp_hash(name): stable under device count and resume */
    double opt[DP_MAX_OPTIONS];
    int min_rows;      /* 2 for a batchnorm on 1 x 1 maps in training, else 1 */
    int live;          /* reaches the output */
    int consumers;     /* live nodes that read it (an input twice counts twice) */
    int to_file_order; /* flatten: 1 = transposes to C,H,W order, 0 = keeps memory order */
};

/* Parameters and buffers. In memory: conv (O,H,W,I/groups), linear (out,in) with `in` in memory order; in files PyTorch's. */
typedef enum dp_init {
    DP_INIT_ZERO,
    DP_INIT_ONE,
    DP_INIT_KAIMING, /* uniform +-1/sqrt(fan_in): PyTorch's conv and linear default (kaiming_uniform, a = sqrt 5), weight and bias */
    DP_INIT_NORMAL, /* N(0, 1): embedding */
    DP_INIT_XAVIER  /* uniform +-sqrt(6 / (fan_in + fan_out)): MultiheadAttention's in_proj_weight */
} dp_init;
struct dp_tensor {
    char name[DP_NAME]; /* "conv1.weight" */
    int rank;
    int64_t shape[4]; /* PyTorch's */
    int64_t count;
    int node;
    int buffer; /* 0 parameter, 1 float buffer, 2 num_batches_tracked (a float here, int64 scalar in files) */
    dp_init init;
    double fan_in, fan_out;
    int64_t flat_hwc
        [3]; /* linear behind a flatten that keeps memory order: columns are (h,w,c) here, (c,h,w) in files; h = 0: no */
};

struct dp_graph {
    dp_node *node;
    int n_nodes;
    dp_tensor *tensor;
    int n_tensors;
    int out; /* node whose output goes into the loss: the last line */
    int finished;
    int min_rows;                     /* largest of the live nodes */
    struct dp_graph_builder *builder; /* lines, symbols, first error; gone after finish */
};
/* For infer: tensor `suffix` of the node ("weight" -> "conv1.weight"); shape as PyTorch's. */
dp_status dp_graph_add_tensor(dp_graph *g, dp_node *n, const char *suffix, int rank, const int64_t *shape, int buffer,
                              dp_init init, double fan_in, double fan_out, dp_error *err);
int dp_graph_find_tensor(const dp_graph *g, const char *name); /* -1: none */
#endif
