/* Internal to nn/cuda: matrix products, the only way to cublasLt (lt.c). Float32, column-major as the library's: d (m, n) = op(a) op(b), a
 * and b of depth k, all packed. Algorithm, layouts and workspace are fixed when a product is made. */
#ifndef DP_NN_CUDA_LT_H
#define DP_NN_CUDA_LT_H
#include "cuda.h"
#ifdef __cplusplus
extern "C" {
#endif

/* What is done to the result before it is stored. aux goes from a forward epilogue to the gradient's: one bit an element for relu, the
 * values before the activation for gelu (its tanh form). */
typedef enum dp_lt_epilogue {
    DP_LT_PLAIN,
    DP_LT_RELU,          /* relu(d) */
    DP_LT_RELU_AUX,      /* and its bits */
    DP_LT_GELU_AUX,      /* gelu(d) and d */
    DP_LT_RELU_GRADIENT, /* d where the bits say so, else 0 */
    DP_LT_GELU_GRADIENT, /* d gelu'(aux) */
    DP_LT_SUMS_B         /* bias = sums of op(b) over its depth, one a column of d */
} dp_lt_epilogue;

typedef struct dp_lt_shape {
    int64_t m, n, k;
    int trans_a, trans_b;
    dp_lt_epilogue epilogue;
    int bias; /* one value per row of d is added first; with PLAIN and the forward epilogues */
    int add;  /* c (m, n) is added; c may be d */
    int tf32;
    int tune; /* the algorithm may be measured (devices.tune): a plan opens */
} dp_lt_shape;

/* Leading dimension of aux, in elements, and its bytes for n columns. */
int64_t dp_lt_aux_stride(dp_lt_epilogue e, int64_t m);
size_t dp_lt_aux_bytes(dp_lt_epilogue e, int64_t m, int64_t n);

typedef struct dp_lt_product dp_lt_product;
size_t dp_lt_limit(const dp_be_device *d); /* most workspace that a product may take here */
/* With at most `limit` bytes of workspace. *p = NULL with DP_OK: the library has nothing for this shape and
 * epilogue. */
dp_status dp_lt_make(dp_be_device *d, const dp_lt_shape *shape, size_t limit, dp_lt_product **p, dp_error *err);
size_t dp_lt_workspace(const dp_lt_product *p);
void dp_lt_free(dp_lt_product *p);
/* c NULL unless `add`. bias is written with SUMS_B. */
dp_status dp_lt_run(const dp_lt_product *p, dp_be_stream *s, const float *a, const float *b, const float *c, float *d,
                    const float *bias, void *aux, void *workspace);
#ifdef __cplusplus
}
#endif
#endif
