/* Internal to nn/cuda: the ways of a convolution (conv.c): cuDNN (dnn.c) and an own implicit product (direct.cu). Activations N,H,W,C,
 * weights O,H,W,I. */
#ifndef DP_NN_CUDA_CONV_H
#define DP_NN_CUDA_CONV_H
#include "cuda.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct dp_conv {
    int64_t in[3], out[3]; /* h, w, c of a sample */
    int64_t kernel, stride, pad, dilation, groups;
    int bias, relu, tf32;
} dp_conv;

/* -- cuDNN; descriptors are made per row count -- */
typedef struct dp_dnn_conv dp_dnn_conv;
/* DP_OK and NULL: the library does not take this convolution, within `limit` bytes of workspace. */
dp_status dp_dnn_make(dp_be_device *d, const dp_conv *c, int64_t rows, size_t limit, dp_dnn_conv **p, dp_error *err);
size_t dp_dnn_workspace(const dp_dnn_conv *p);
/* Other algorithms than the documented ones, pass by pass: deterministic, of the same arithmetic, within `limit`; the one in use first. */
enum { DP_DNN_FORWARD, DP_DNN_DATA, DP_DNN_WEIGHTS, DP_DNN_PASSES };
enum { DP_DNN_CANDIDATES = 8 };
int dp_dnn_candidates(const dp_dnn_conv *p, int pass, size_t limit, int algo[DP_DNN_CANDIDATES]);
int dp_dnn_algo(const dp_dnn_conv *p, int pass); /* in use */
/* *taken = 0: not with this row count, or within `limit`; nothing has changed. */
dp_status dp_dnn_use(dp_dnn_conv *p, int pass, int algo, size_t limit, int *taken, dp_error *err);
void dp_dnn_free(dp_dnn_conv *p);
/* DP_ECONFIG: the library has no bias and activation within the convolution, nothing was done. */
dp_status dp_dnn_forward_fused(const dp_dnn_conv *p, dp_be_stream *s, const float *x, const float *w, const float *b, float *y,
                               void *workspace);
dp_status dp_dnn_forward(const dp_dnn_conv *p, dp_be_stream *s, const float *x, const float *w, float *y, void *workspace);
dp_status dp_dnn_backward_data(const dp_dnn_conv *p, dp_be_stream *s, const float *dy, const float *w, float *dx,
                               void *workspace);
dp_status dp_dnn_backward_weights(const dp_dnn_conv *p, dp_be_stream *s, const float *x, const float *dy, float *dw,
                                  void *workspace);

/* -- own: any groups, dilation, channels; forward with bias and relu -- */
size_t dp_direct_workspace(const dp_conv *c, int64_t rows);
dp_status dp_direct_forward(dp_be_stream *s, const dp_conv *c, int64_t rows, const float *x, const float *w, const float *b,
                            float *y);
dp_status dp_direct_backward_data(dp_be_stream *s, const dp_conv *c, int64_t rows, const float *dy, const float *w, float *dx);
dp_status dp_direct_backward_weights(dp_be_stream *s, const dp_conv *c, int64_t rows, const float *x, const float *dy,
                                     float *dw, void *workspace);
#ifdef __cplusplus
}
#endif
#endif
