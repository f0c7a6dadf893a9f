/* Internal to nn/cpu: oneDNN as this project uses it. onednn.c holds every call and speaks the v2 and the v3 interface. All data are
 * f32. An op is one created primitive; it keeps no memory but its own code: operands and scratch come with each run. */
#ifndef DP_NN_CPU_ONEDNN_H
#define DP_NN_CPU_ONEDNN_H
#include "../../dp/base/error.h"

typedef struct dp_dnnl dp_dnnl;       /* engine and stream of one device */
typedef struct dp_dnnl_op dp_dnnl_op; /* a primitive */

dp_status dp_dnnl_open(dp_dnnl **x, int64_t *created, dp_error *err); /* *created counts the primitives made */
void dp_dnnl_close(dp_dnnl *x);
void dp_dnnl_op_free(dp_dnnl_op *op);

/* C(m,n) = A(m,k) B(k,n) + bias(n), then relu. Element (i,j) of A lies at A[i * a_row + j * a_col], of B alike; C is dense. */
typedef struct dp_dnnl_matmul {
    int64_t m, n, k;
    int64_t a_row, a_col, b_row, b_col;
    int bias, relu;
} dp_dnnl_matmul;
dp_status dp_dnnl_matmul_make(dp_dnnl *x, const dp_dnnl_matmul *mm, dp_dnnl_op **op, dp_error *err); /* runs {A, B, C, bias} */
size_t dp_dnnl_matmul_scratch(dp_dnnl *x, const dp_dnnl_matmul *mm); /* what it would need, without making it */

/* C(m,n) = A'(m,k) B'(k,n) + beta C, row-major, X' = X or its transpose. For thousands of rows in k; its first call is slow. */
dp_status dp_dnnl_sgemm(int a_transposed, int b_transposed, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                        const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

/* Activations N,H,W,C. Weights lie in the layout that the primitive likes best; `weights` reorders between that and O,H,W,I. */
typedef struct dp_dnnl_conv {
    int64_t rows, in[3], out[3]; /* {H,W,C} of one sample */
    int64_t kernel, stride, pad, dilation, groups;
    int bias, relu; /* relu: forward only */
} dp_dnnl_conv;
typedef enum dp_dnnl_pass {
    DP_DNNL_FORWARD,         /* runs {src, weights, dst, bias} */
    DP_DNNL_BACKWARD_DATA,   /* runs {d_dst, weights, d_src} */
    DP_DNNL_BACKWARD_WEIGHTS /* runs {src, d_dst, d_weights, d_bias} */
} dp_dnnl_pass;
typedef struct dp_dnnl_sizes {
    size_t scratch, weights; /* bytes; weights in the primitive's layout, 0 = it is O,H,W,I */
} dp_dnnl_sizes;
dp_status dp_dnnl_conv_make(dp_dnnl *x, const dp_dnnl_conv *c, dp_dnnl_pass pass, dp_dnnl_op **op, dp_error *err);
dp_status dp_dnnl_conv_sizes(dp_dnnl *x, const dp_dnnl_conv *c, dp_dnnl_pass pass, dp_dnnl_sizes *sizes, dp_error *err);
/* Runs {from, to}: O,H,W,I to the op's layout, for backward weights the other way. *reorder = NULL when they are the same. */
dp_status dp_dnnl_weights_reorder(const dp_dnnl_op *conv, dp_dnnl_op **reorder, dp_error *err);
int dp_dnnl_same_weights(const dp_dnnl_op *a, const dp_dnnl_op *b); /* 1: one copy of the weights serves both */

enum { DP_DNNL_ARGS = 4 };
dp_status dp_dnnl_run(dp_dnnl_op *op, const void *const arg[DP_DNNL_ARGS], void *scratch);
dp_dnnl_sizes dp_dnnl_op_sizes(const dp_dnnl_op *op);
const char *dp_dnnl_implementation(const dp_dnnl_op *op); /* "ref:any" and its like are slow */
#endif
