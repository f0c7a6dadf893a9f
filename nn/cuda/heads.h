/* Internal to nn/cuda: attention over the heads (heads.cu), between the projections (attention.c). Scores are never stored: a block holds
 * one square of 64 queries by 64 keys at a time, and backward makes it again from the log of each row's softmax sum. */
#ifndef DP_NN_CUDA_HEADS_H
#define DP_NN_CUDA_HEADS_H
#include "cuda.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct dp_heads {
    int64_t rows, t, heads, width; /* samples, positions, heads and the width of one */
    int causal;
} dp_heads;

/* qkv (rows, t, 3, heads, width), to which bias (3, heads, width) is added, NULL: it is in there; out and d_out (rows, t, heads, width), log_sum (rows, heads, t). */
dp_status dp_heads_forward(dp_be_stream *s, const dp_heads *h, const float *qkv, const float *bias, float *out, float *log_sum);
dp_status dp_heads_backward(dp_be_stream *s, const dp_heads *h, const float *qkv, const float *bias, const float *out,
                            const float *log_sum, const float *d_out, float *d_qkv);
#ifdef __cplusplus
}
#endif
#endif
