/* softmax over the last axis, a warp for each row. */
#include "launch.h"

enum { WARPS = DP_BLOCK / 32 };

typedef struct softmax {
    int64_t n, groups; /* of one sample */
} softmax;

static __global__ void __launch_bounds__(DP_BLOCK) dp_k_softmax(float *y, const float *x, int64_t rows, int64_t n)
{
    const int lane = threadIdx.x % 32;
    for (int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; r < rows; r += (int64_t)gridDim.x * WARPS) {
        const float *from = x + r * n;
        float max = -INFINITY, sum = 0;
        for (int64_t i = lane; i < n; i += 32) max = from[i] > max || from[i] != from[i] ? from[i] : max;
        max = dp_warp_max(max);
        for (int64_t i = lane; i < n; i += 32) sum += expf(from[i] - max);
        const float scale = 1.0f / dp_warp_sum(sum);
        for (int64_t i = lane; i < n; i += 32) y[r * n + i] = expf(from[i] - max) * scale;
    }
}

static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_softmax_backward(float *dx, const float *dy, const float *y, int64_t rows, int64_t n)
{
    const int lane = threadIdx.x % 32;
    for (int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; r < rows; r += (int64_t)gridDim.x * WARPS) {
        float dot = 0;
        for (int64_t i = lane; i < n; i += 32) dot = fmaf(dy[r * n + i], y[r * n + i], dot);
        dot = dp_warp_sum(dot);
        for (int64_t i = lane; i < n; i += 32) dx[r * n + i] = y[r * n + i] * (dy[r * n + i] - dot);
    }
}

static dp_status softmax_open(dp_be_device *, const dp_chain *chain, int64_t, dp_need *need, void **state, dp_error *err)
{
    const dp_node *n = chain->node[0];
    softmax *p = (softmax *)dp_calloc(1, sizeof *p);
    if (!p) return dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
    p->n = n->shape[n->rank - 1];
    p->groups = n->width / p->n;
    need->reads_out = need->in_place = need->passes[0] = 1;
    *state = p;
    return DP_OK;
}

static dp_status softmax_forward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const softmax *p = (const softmax *)state;
    const int64_t rows = run->rows * p->groups;
    DP_TRY_LAUNCH(s, dp_k_softmax, dp_blocks(s->device, rows, WARPS), DP_BLOCK, 0, (float *)io->out, (const float *)io->in[0],
                  rows, p->n);
    return DP_OK;
}

static dp_status softmax_backward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const softmax *p = (const softmax *)state;
    const int64_t rows = run->rows * p->groups;
    if (!io->d_in[0]) return DP_OK;
    DP_TRY_LAUNCH(s, dp_k_softmax_backward, dp_blocks(s->device, rows, WARPS), DP_BLOCK, 0, (float *)io->d_in[0],
                  (const float *)io->d_out, (const float *)io->out, rows, p->n);
    return DP_OK;
}

const dp_family dp_cuda_softmax = {.fuses = nullptr,
                                   .open = softmax_open,
                                   .prepare = nullptr,
                                   .forward = softmax_forward,
                                   .backward = softmax_backward,
                                   .partial = nullptr,
                                   .close = nullptr};
