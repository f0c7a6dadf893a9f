/* Pooling, channels last: a thread for each result, in backward for each element of the input, which collects from the windows that hold
 * it; nothing is added from two sides. maxpool2d keeps the place of each maximum in its window: a byte, or 32 bits where the window is large. */
#include "launch.h"

typedef struct dp_pool {
    int64_t h, w, c, oh, ow;
    int64_t kernel, stride, pad;
} dp_pool;
typedef struct pool {
    dp_pool shape;
    int wide;
    int64_t in, out; /* elements of one sample */
} pool;

/* The first maximum or a NaN wins, as in PyTorch. */
template <class Mark>
static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_maxpool(const dp_pool p, float *y, const float *x, Mark *mark, int64_t n)
{
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const int64_t c = i % p.c, ox = i / p.c % p.ow, oy = i / (p.c * p.ow) % p.oh, row = i / (p.c * p.ow * p.oh);
        const int64_t top = oy * p.stride - p.pad, left = ox * p.stride - p.pad;
        const float *from = x + row * p.h * p.w * p.c + c;
        float best = 0;
        int64_t place = -1;
        for (int64_t ky = top < 0 ? -top : 0; ky < p.kernel && top + ky < p.h; ky++)
            for (int64_t kx = left < 0 ? -left : 0; kx < p.kernel && left + kx < p.w; kx++) {
                const float v = from[((top + ky) * p.w + left + kx) * p.c];
                if (place >= 0 && !(v > best) && v == v) continue;
                best = v;
                place = ky * p.kernel + kx;
            }
        y[i] = best;
        if (mark) mark[i] = (Mark)place;
    }
}

/* Windows that hold a position: first .. last. */
static __device__ __forceinline__ int64_t first_window(const dp_pool &p, int64_t at)
{
    const int64_t v = at + p.pad - p.kernel + 1;
    return v <= 0 ? 0 : (v + p.stride - 1) / p.stride;
}
static __device__ __forceinline__ int64_t last_window(const dp_pool &p, int64_t at, int64_t windows)
{
    const int64_t v = (at + p.pad) / p.stride;
    return v < windows ? v : windows - 1;
}

/* mark NULL: the average. */
template <class Mark>
static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_pool_backward(const dp_pool p, float *dx, const float *dy, const Mark *mark, float scale, int64_t n)
{
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const int64_t c = i % p.c, ix = i / p.c % p.w, iy = i / (p.c * p.w) % p.h, row = i / (p.c * p.w * p.h);
        const int64_t to_y = last_window(p, iy, p.oh), to_x = last_window(p, ix, p.ow), from_x = first_window(p, ix);
        float sum = 0;
        for (int64_t oy = first_window(p, iy); oy <= to_y; oy++)
            for (int64_t ox = from_x; ox <= to_x; ox++) {
                const int64_t at = ((row * p.oh + oy) * p.ow + ox) * p.c + c;
                const int64_t place = (iy + p.pad - oy * p.stride) * p.kernel + ix + p.pad - ox * p.stride;
                if (!mark || (int64_t)mark[at] == place) sum += dy[at];
            }
        dx[i] = sum * scale;
    }
}

static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_avgpool(const dp_pool p, float *y, const float *x, float scale, int64_t n)
{
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const int64_t c = i % p.c, ox = i / p.c % p.ow, oy = i / (p.c * p.ow) % p.oh, row = i / (p.c * p.ow * p.oh);
        const int64_t top = oy * p.stride - p.pad, left = ox * p.stride - p.pad;
        const float *from = x + row * p.h * p.w * p.c + c;
        float sum = 0;
        for (int64_t ky = top < 0 ? -top : 0; ky < p.kernel && top + ky < p.h; ky++)
            for (int64_t kx = left < 0 ? -left : 0; kx < p.kernel && left + kx < p.w; kx++)
                sum += from[((top + ky) * p.w + left + kx) * p.c];
        y[i] = sum * scale;
    }
}

/* A whole picture a channel: 32 channels by 8 shares of the pixels. */
static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_globalpool(float *y, const float *x, float scale, int64_t pixels, int64_t channels)
{
    __shared__ float part[DP_BLOCK];
    const int t = (int)threadIdx.x;
    const int64_t c = (int64_t)blockIdx.x * 32 + t % 32, row = blockIdx.y;
    float sum = 0;
    for (int64_t i = t / 32; c < channels && i < pixels; i += DP_BLOCK / 32) sum += x[(row * pixels + i) * channels + c];
    part[t] = sum;
    __syncthreads();
    if (t >= 32 || c >= channels) return;
    for (int k = 1; k < DP_BLOCK / 32; k++) sum += part[t + 32 * k];
    y[row * channels + c] = sum * scale;
}

static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_globalpool_backward(float *dx, const float *dy, float scale, int64_t pixels, int64_t channels, int64_t n)
{
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        dx[i] = dy[i / (pixels * channels) * channels + i % channels] * scale;
}

/* -- the families -- */

static dp_status open_pool(dp_be_device *, const dp_chain *chain, int64_t, dp_need *, void **state, dp_error *err)
{
    const dp_node *n = chain->node[0], *in = &chain->graph->node[n->in[0]];
    pool *s = (pool *)dp_calloc(1, sizeof *s);
    if (!s) return dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
    s->in = in->width;
    s->out = n->width;
    s->shape.h = in->shape[0], s->shape.w = in->shape[1], s->shape.c = in->shape[2];
    s->shape.oh = n->shape[0], s->shape.ow = n->shape[1];
    s->shape.kernel = (int64_t)n->opt[DP_POOL_KERNEL];
    s->shape.stride = (int64_t)n->opt[DP_POOL_STRIDE];
    s->shape.pad = (int64_t)n->opt[DP_POOL_PAD];
    s->wide = s->shape.kernel * s->shape.kernel > 256;
    *state = s;
    return DP_OK;
}

static dp_status max_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state, dp_error *err)
{
    DP_TRY(open_pool(d, chain, capacity, need, state, err));
    const pool *p = (const pool *)*state;
    need->saved = (size_t)(capacity * p->out) * (p->wide ? sizeof(int32_t) : 1);
    return DP_OK;
}

template <class Mark> static dp_status max_as(const pool *p, dp_be_stream *s, const dp_run *run, const dp_io *io)
{
    const int64_t n = run->rows * p->out;
    DP_TRY_LAUNCH(s, dp_k_maxpool<Mark>, dp_blocks(s->device, n, DP_BLOCK), DP_BLOCK, 0, p->shape, (float *)io->out,
                  (const float *)io->in[0], run->train ? (Mark *)io->saved : nullptr, n);
    return DP_OK;
}
static dp_status max_forward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const pool *p = (const pool *)state;
    return p->wide ? max_as<int32_t>(p, s, run, io) : max_as<uint8_t>(p, s, run, io);
}

template <class Mark>
static dp_status backward_as(const pool *p, dp_be_stream *s, const dp_run *run, const dp_io *io, const void *mark, float scale)
{
    const int64_t n = run->rows * p->in;
    if (!io->d_in[0]) return DP_OK;
    DP_TRY_LAUNCH(s, dp_k_pool_backward<Mark>, dp_blocks(s->device, n, DP_BLOCK), DP_BLOCK, 0, p->shape, (float *)io->d_in[0],
                  (const float *)io->d_out, (const Mark *)mark, scale, n);
    return DP_OK;
}
static dp_status max_backward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const pool *p = (const pool *)state;
    return p->wide ? backward_as<int32_t>(p, s, run, io, io->saved, 1) : backward_as<uint8_t>(p, s, run, io, io->saved, 1);
}

/* The divisor counts padding: kernel^2 everywhere. */
static dp_status average_forward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const pool *p = (const pool *)state;
    const int64_t n = run->rows * p->out;
    DP_TRY_LAUNCH(s, dp_k_avgpool, dp_blocks(s->device, n, DP_BLOCK), DP_BLOCK, 0, p->shape, (float *)io->out,
                  (const float *)io->in[0], 1.0f / (float)(p->shape.kernel * p->shape.kernel), n);
    return DP_OK;
}
static dp_status average_backward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const pool *p = (const pool *)state;
    return backward_as<uint8_t>(p, s, run, io, nullptr, 1.0f / (float)(p->shape.kernel * p->shape.kernel));
}

static dp_status global_forward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const pool *p = (const pool *)state;
    const int64_t c = p->shape.c, pixels = p->shape.h * p->shape.w, most = 65535; /* of a grid's second axis */
    for (int64_t row = 0; row < run->rows; row += most) {
        const int64_t rows = run->rows - row < most ? run->rows - row : most;
        DP_TRY_LAUNCH(s, dp_k_globalpool, dim3((unsigned)((c + 31) / 32), (unsigned)rows), DP_BLOCK, 0,
                      (float *)io->out + row * c, (const float *)io->in[0] + row * p->in, 1.0f / (float)pixels, pixels, c);
    }
    return DP_OK;
}
static dp_status global_backward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const pool *p = (const pool *)state;
    const int64_t n = run->rows * p->in, pixels = p->shape.h * p->shape.w;
    if (!io->d_in[0]) return DP_OK;
    DP_TRY_LAUNCH(s, dp_k_globalpool_backward, dp_blocks(s->device, n, DP_BLOCK), DP_BLOCK, 0, (float *)io->d_in[0],
                  (const float *)io->d_out, 1.0f / (float)pixels, pixels, p->shape.c, n);
    return DP_OK;
}

const dp_family dp_cuda_maxpool2d = {.fuses = nullptr,
                                     .open = max_open,
                                     .prepare = nullptr,
                                     .forward = max_forward,
                                     .backward = max_backward,
                                     .partial = nullptr,
                                     .close = nullptr};
const dp_family dp_cuda_avgpool2d = {.fuses = nullptr,
                                     .open = open_pool,
                                     .prepare = nullptr,
                                     .forward = average_forward,
                                     .backward = average_backward,
                                     .partial = nullptr,
                                     .close = nullptr};
const dp_family dp_cuda_globalavgpool = {.fuses = nullptr,
                                         .open = open_pool,
                                         .prepare = nullptr,
                                         .forward = global_forward,
                                         .backward = global_backward,
                                         .partial = nullptr,
                                         .close = nullptr};
