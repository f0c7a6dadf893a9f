/* Internal to nn/cpu: y(m,out) = x(m,in) W' + b, then relu, and its gradients: three matrix products. For linear and for the
 * projections of attention. W lies as PyTorch's (out, in); no packed copy of it is kept: it would be remade each step, which costs
 * what it gains. */
#ifndef DP_NN_CPU_AFFINE_H
#define DP_NN_CPU_AFFINE_H
#include "by_rows.h"

typedef struct dp_affine {
    dp_be_device *device;
    int64_t in, out;
    int bias, relu;
    int no_dx; /* nobody wants dx: its product is not made ahead */
    dp_by_rows table;
    dp_spare workspace; /* the owner sets `reserved` to what it asks the plan for */
} dp_affine;
size_t dp_affine_workspace(const dp_affine *a, int64_t m);
dp_status dp_affine_prepare(dp_affine *a, int64_t m, dp_error *err);
dp_status dp_affine_forward(dp_affine *a, int64_t m, const float *x, const float *w, const float *b, float *y, void *workspace);
/* y only with relu; dy is masked in place. dx, dw, db may be NULL: not wanted. */
dp_status dp_affine_backward(dp_affine *a, int64_t m, const float *x, const float *w, const float *y, float *dy, float *dx,
                             float *dw, float *db, void *workspace);
void dp_affine_free(dp_affine *a);
#endif
