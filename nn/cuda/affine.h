/* Internal to nn/cuda: y(m,out) = x(m,in) W' + b, with an activation or another tensor added, and its gradients: three matrix products.
 * For linear, the projections of attention and 1x1 convolutions. W lies as PyTorch's (out, in). What cublasLt can do to a result while
 * it stores it (bias, activation, its gradient, the bias gradient) it does; otherwise a kernel of act.cu follows. That is decided
 * once, at open. */
#ifndef DP_NN_CUDA_AFFINE_H
#define DP_NN_CUDA_AFFINE_H
#include "lt.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef enum dp_act { DP_ACT_NONE, DP_ACT_RELU, DP_ACT_GELU } dp_act; /* gelu: the tanh form */

typedef struct dp_cuda_affine {
    dp_be_device *device;
    int64_t in, out;
    int bias, add, tf32;
    dp_act act;    /* not with add */
    dp_act before; /* of the layer before, whose dy our dx is: applied to dx, from what that layer kept */
    int after;     /* the layer behind does so for us: open takes the wish back where y cannot keep what that needs */
    int no_dx;     /* nobody wants dx */
    int late_bias; /* where y's product does not add the bias, its reader does */
    /* decided by open */
    int fused; /* y comes with bias and act */
    int sums;  /* dw comes with the bias gradient */
    size_t products, workspace;
    struct dp_cuda_affine_rows *rows;
    int n_rows;
} dp_cuda_affine;

/* For up to m rows. */
dp_status dp_cuda_affine_open(dp_cuda_affine *a, int64_t m, dp_error *err);
/* Whether a product dx that applies the gradient of `before` can be had. */
dp_status dp_cuda_affine_passes(const dp_cuda_affine *a, int64_t m, int *passes, dp_error *err);
size_t dp_cuda_affine_saved(const dp_cuda_affine *a, int64_t m); /* bytes from forward to backward */
int dp_cuda_affine_reads_out(const dp_cuda_affine *a);
dp_status dp_cuda_affine_prepare(dp_cuda_affine *a, int64_t m, dp_error *err);
dp_status dp_cuda_affine_forward(const dp_cuda_affine *a, dp_be_stream *s, int64_t m, const float *x, const float *w,
                                 const float *b, const float *other, float *y, void *saved, void *workspace);
/* dy may be overwritten. dx, dw, db may be NULL: not wanted. before: what the layer before kept. */
dp_status dp_cuda_affine_backward(const dp_cuda_affine *a, dp_be_stream *s, int64_t m, const float *x, const float *w,
                                  const float *y, void *saved, float *dy, float *dx, float *dw, float *db, void *before,
                                  void *workspace);
void dp_cuda_affine_close(dp_cuda_affine *a);

/* In one pass (act.cu): dy = its value times the activation's gradient, from y (relu) or from the values before it in rows of `stride`
 * (gelu); db (n) = sums of it, NULL: not wanted. workspace: dp_act_workspace(n). */
size_t dp_act_workspace(int64_t n);
dp_status dp_act_backward(dp_be_stream *s, dp_act act, float *dy, const float *from, int64_t stride, int64_t m, int64_t n,
                          float *db, void *workspace);
/* y += b, then the activation; before: NULL, or values before the activation: read instead of y, and kept. */
dp_status dp_act_forward(dp_be_stream *s, dp_act act, float *y, float *before, const float *b, int64_t m, int64_t n);
#ifdef __cplusplus
}
#endif
#endif
