/* layernorm: over the last dimension, a warp for each row. Mean and 1/std are kept for backward, which is two kernels: one by rows (dx) and
 * one by columns (the gradients of weight and bias). */
#include "columns.h"

enum { WEIGHT, BIAS };
enum { WARPS = DP_BLOCK / 32 };

typedef struct layernorm {
    int64_t n, groups; /* of one sample */
    float eps;
} layernorm;

static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_layernorm(float *y, const float *x, const float *weight, const float *bias, float2 *saved, float eps, int64_t rows,
                   int64_t n)
{
    const int lane = threadIdx.x % 32;
    for (int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; r < rows; r += (int64_t)gridDim.x * WARPS) {
        const float *from = x + r * n;
        float sum = 0, square = 0;
        for (int64_t i = lane; i < n; i += 32) sum += from[i];
        const float mean = dp_warp_sum(sum) / (float)n;
        for (int64_t i = lane; i < n; i += 32) square = fmaf(from[i] - mean, from[i] - mean, square);
        const float inv_std = 1.0f / sqrtf(dp_warp_sum(square) / (float)n + eps);
        for (int64_t i = lane; i < n; i += 32) y[r * n + i] = fmaf((from[i] - mean) * inv_std, weight[i], bias[i]);
        if (!lane && saved) saved[r] = make_float2(mean, inv_std);
    }
}

/* dx = r (u - mean(u) - xhat mean(u xhat)), u = dy weight */
static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_layernorm_backward(float *dx, const float *dy, const float *x, const float *weight, const float2 *saved, int64_t rows,
                            int64_t n)
{
    const int lane = threadIdx.x % 32;
    for (int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; r < rows; r += (int64_t)gridDim.x * WARPS) {
        const float2 at = saved[r];
        const float *g = dy + r * n, *v = x + r * n;
        float sum = 0, product = 0;
        for (int64_t i = lane; i < n; i += 32) {
            const float u = g[i] * weight[i];
            sum += u;
            product = fmaf(u, (v[i] - at.x) * at.y, product);
        }
        const float a = dp_warp_sum(sum) / (float)n, b = dp_warp_sum(product) / (float)n;
        for (int64_t i = lane; i < n; i += 32) dx[r * n + i] = at.y * (g[i] * weight[i] - fmaf((v[i] - at.x) * at.y, b, a));
    }
}

struct scale_and_shift {
    const float *x, *dy;
    const float2 *saved;
    float *d_weight, *d_bias; /* NULL: not wanted */
    int64_t n;
    __device__ void column(int64_t)
    {
    }
    __device__ float2 at(int64_t r, int64_t c) const
    {
        const float g = dy[r * n + c];
        const float2 s = saved[r];
        return make_float2(g * ((x[r * n + c] - s.x) * s.y), g);
    }
    __device__ void finish(int64_t c, double weight, double bias) const
    {
        if (d_weight) d_weight[c] = (float)weight;
        if (d_bias) d_bias[c] = (float)bias;
    }
};

static dp_status ln_open(dp_be_device *, const dp_chain *chain, int64_t capacity, dp_need *need, void **state, dp_error *err)
{
    const dp_node *n = chain->node[0];
    layernorm *p = (layernorm *)dp_calloc(1, sizeof *p);
    if (!p) return dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
    p->n = n->shape[n->rank - 1];
    p->groups = n->width / p->n;
    p->eps = (float)n->opt[DP_NORM_EPS];
    need->saved = (size_t)(capacity * p->groups) * sizeof(float2);
    need->workspace = dp_columns_workspace(p->n);
    need->reads_in[0] = 1;
    need->in_place = 1;
    need->passes[0] = 1;
    *state = p;
    return DP_OK;
}

static dp_status ln_forward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const layernorm *p = (const layernorm *)state;
    const int64_t rows = run->rows * p->groups;
    DP_TRY_LAUNCH(s, dp_k_layernorm, dp_blocks(s->device, rows, WARPS), DP_BLOCK, 0, (float *)io->out, (const float *)io->in[0],
                  io->param[WEIGHT], io->param[BIAS], run->train ? (float2 *)io->saved : nullptr, p->eps, rows, p->n);
    return DP_OK;
}

/* By columns first: dx may take the place of dy. */
static dp_status ln_backward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const layernorm *p = (const layernorm *)state;
    const int64_t rows = run->rows * p->groups;
    const float *x = (const float *)io->in[0], *dy = (const float *)io->d_out;
    if (io->grad[WEIGHT] || io->grad[BIAS]) {
        const scale_and_shift f = {x, dy, (const float2 *)io->saved, io->grad[WEIGHT], io->grad[BIAS], p->n};
        DP_TRY(dp_columns_run(s, f, rows, p->n, io->workspace));
    }
    if (!io->d_in[0]) return DP_OK;
    DP_TRY_LAUNCH(s, dp_k_layernorm_backward, dp_blocks(s->device, rows, WARPS), DP_BLOCK, 0, (float *)io->d_in[0], dy, x,
                  io->param[WEIGHT], (const float2 *)io->saved, rows, p->n);
    return DP_OK;
}

const dp_family dp_cuda_layernorm = {.fuses = nullptr,
                                     .open = ln_open,
                                     .prepare = nullptr,
                                     .forward = ln_forward,
                                     .backward = ln_backward,
                                     .partial = nullptr,
                                     .close = nullptr};
