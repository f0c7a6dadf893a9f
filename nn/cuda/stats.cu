/* Batchnorm statistics of several leaves made one: mean and M2 in double, leaf after leaf (Chan, Golub, LeVeque 1979), as the
 * CPU backend does it, by bytes. */
#include "launch.h"

enum { LEAVES = 64, LAYERS = 32 };
typedef struct dp_leaves {
    const float *at[LEAVES];
    int64_t rows[LEAVES], n;
} dp_leaves;
typedef struct dp_bn_layers { /* kernel arguments have room for so many; more take more launches */
    dp_bn_layer layer[LAYERS];
} dp_bn_layers;

static dp_leaves leaves_of(const float *const *at, const int64_t *rows, int n)
{
    dp_leaves l = {};
    for (int i = 0; i < n; i++) {
        if (!at[i] || !rows[i]) continue;
        l.at[l.n] = at[i];
        l.rows[l.n++] = rows[i];
    }
    return l;
}

/* Mean and biased variance of the values of which leaf i has mean l.at[i][mean] and variance l.at[i][var]. */
static __device__ double2 pooled(const dp_leaves &l, int64_t mean, int64_t var, double *rows)
{
    double n = 0, m = 0, square = 0;
    for (int i = 0; i < l.n; i++) {
        const double k = (double)l.rows[i], all = n + k, delta = (double)l.at[i][mean] - m;
        m += delta * k / all;
        square += (double)l.at[i][var] * k + delta * delta * n * k / all;
        n = all;
    }
    *rows = n;
    return make_double2(m, n > 0 ? square / n : 0);
}

static __global__ void __launch_bounds__(DP_BLOCK) dp_k_pool(float *whole, const dp_leaves l, int64_t channels)
{
    const int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    double rows;
    if (c >= channels) return;
    const double2 p = pooled(l, c, channels + c, &rows);
    whole[c] = (float)p.x;
    whole[channels + c] = (float)p.y;
}

extern "C" dp_status dp_cuda_pool(dp_be_stream *s, float *whole, const float *const *part, const int64_t *rows, int n,
                                  int64_t channels)
{
    if (n < 1 || n > LEAVES) return DP_EARGUMENT;
    const dp_leaves l = leaves_of(part, rows, n);
    DP_TRY_LAUNCH(s, dp_k_pool, (unsigned)((channels + DP_BLOCK - 1) / DP_BLOCK), DP_BLOCK, 0, whole, l, channels);
    return DP_OK;
}

static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_merge(float *shadow, const float *buffer, const dp_bn_layers layers, const dp_leaves l)
{
    const dp_bn_layer &b = layers.layer[blockIdx.y];
    for (int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; c < b.channels; c += (int64_t)gridDim.x * blockDim.x) {
        double rows;
        const double2 p = pooled(l, b.mean + c, b.var + c, &rows);
        const double n = rows * (double)b.pixels, unbiased = n > 1 ? n / (n - 1) : 1;
        shadow[b.mean + c] = (float)((1 - b.momentum) * (double)buffer[b.mean + c] + b.momentum * p.x);
        shadow[b.var + c] = (float)((1 - b.momentum) * (double)buffer[b.var + c] + b.momentum * p.y * unbiased);
        if (!c) shadow[b.tracked] = buffer[b.tracked] + 1;
    }
}

extern "C" dp_status dp_cuda_merge(dp_be_stream *s, float *shadow, const float *buffer, const dp_bn_layer *layers, int n_layers,
                                   const float *const *leaf, const int64_t *rows, int n)
{
    if (n < 1 || n > LEAVES) return DP_EARGUMENT;
    const dp_leaves l = leaves_of(leaf, rows, n);
    for (int at = 0; at < n_layers; at += LAYERS) {
        const int m = n_layers - at < LAYERS ? n_layers - at : LAYERS;
        dp_bn_layers part = {};
        int64_t widest = 1;
        for (int i = 0; i < m; i++) {
            part.layer[i] = layers[at + i];
            widest = layers[at + i].channels > widest ? layers[at + i].channels : widest;
        }
        DP_TRY_LAUNCH(s, dp_k_merge, dim3((unsigned)((widest + DP_BLOCK - 1) / DP_BLOCK), (unsigned)m), DP_BLOCK, 0, shadow,
                      buffer, part, l);
    }
    return DP_OK;
}
