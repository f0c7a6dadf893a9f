/* A convolution of any groups, dilation and channels as an implicit matrix product: the last of the chain in conv.c. 256 threads make 64 x 64
 * results of one group, 4 x 4 each, in steps of 16 of the depth; what a step needs is gathered into shared memory from where it lies.
 *
 *              rows m               columns n            depth k
 *   forward    output pixels        output channels      taps x input channels
 *   data       input pixels         input channels       taps x output channels
 *   weights    output channels      taps x inputs        output pixels; cut into chunks, whose sums a second kernel adds in order */
#include "act.h"
#include "conv.h"
#include "launch.h"

enum { SIDE = 64, DEEP = 16, STRIDE = SIDE + 4, EACH = 4 };

typedef struct geometry {
    int64_t pixels_in, pixels_out; /* of all samples */
    int h, w, oh, ow, kernel, stride, pad, dilation;
    int64_t c, o, cg, og, taps; /* channels, of a group */
} geometry;

static geometry geometry_of(const dp_conv *c, int64_t rows)
{
    geometry g;
    g.h = (int)c->in[0], g.w = (int)c->in[1], g.oh = (int)c->out[0], g.ow = (int)c->out[1];
    g.pixels_in = rows * g.h * g.w, g.pixels_out = rows * g.oh * g.ow;
    g.kernel = (int)c->kernel, g.stride = (int)c->stride, g.pad = (int)c->pad, g.dilation = (int)c->dilation;
    g.c = c->in[2], g.o = c->out[2], g.cg = g.c / c->groups, g.og = g.o / c->groups, g.taps = c->kernel * c->kernel;
    return g;
}

/* A pixel of an array of pictures: which picture, where in it. */
typedef struct place {
    int64_t row;
    int y, x;
} place;
static __device__ __forceinline__ place place_of(int64_t pixel, int h, int w)
{
    const int64_t line = pixel / w;
    return place{line / h, (int)(line % h), (int)(pixel % w)};
}

/* Each loads 4 + 4 numbers a thread and step. Threads that lie side by side read what lies side by side: the depth's channels, or the
 * rows' or columns'. */
struct forward_pass {
    geometry g;
    float *y;
    const float *x, *weight, *bias;
    int relu;
    int64_t n0, group;
    place at[EACH]; /* of rows threadIdx / 16 + 16 j */
    __device__ int64_t rows() const
    {
        return g.pixels_out;
    }
    __device__ int64_t columns() const
    {
        return g.og;
    }
    __device__ int64_t depth() const
    {
        return g.taps * g.cg;
    }
    __device__ void start(int64_t m0, int64_t n_first, int64_t which)
    {
        n0 = n_first, group = which;
        for (int j = 0; j < EACH; j++) {
            const int64_t m = m0 + threadIdx.x / 16 + 16 * j;
            at[j] = place_of(m < g.pixels_out ? m : 0, g.oh, g.ow);
            at[j].y = at[j].y * g.stride - g.pad;
            at[j].x = at[j].x * g.stride - g.pad;
            if (m >= g.pixels_out) at[j].y = -(1 << 30);
        }
    }
    __device__ void load(float *a, float *b, int64_t k0, int64_t end) const
    {
        const int lane = threadIdx.x % 16, part = threadIdx.x / 16;
        const int64_t k = k0 + lane, tap = k / g.cg, ci = k % g.cg;
        const int dy = (int)(tap / g.kernel) * g.dilation, dx = (int)(tap % g.kernel) * g.dilation;
        for (int j = 0; j < EACH; j++) {
            const int iy = at[j].y + dy, ix = at[j].x + dx;
            const int64_t n = n0 + part + 16 * j;
            const bool inside = k < end && iy >= 0 && iy < g.h && ix >= 0 && ix < g.w;
            a[lane * STRIDE + part + 16 * j] = inside ? x[((at[j].row * g.h + iy) * g.w + ix) * g.c + group * g.cg + ci] : 0;
            b[lane * STRIDE + part + 16 * j] = k < end && n < g.og ? weight[(group * g.og + n) * g.taps * g.cg + k] : 0;
        }
    }
    __device__ void store(int64_t m, int64_t n, float v) const
    {
        if (bias) v += bias[group * g.og + n];
        y[m * g.o + group * g.og + n] = relu ? dp_relu(v) : v;
    }
};

struct data_pass {
    geometry g;
    float *dx;
    const float *dy, *weight;
    int64_t n0, group;
    place at[EACH];
    __device__ int64_t rows() const
    {
        return g.pixels_in;
    }
    __device__ int64_t columns() const
    {
        return g.cg;
    }
    __device__ int64_t depth() const
    {
        return g.taps * g.og;
    }
    __device__ void start(int64_t m0, int64_t n_first, int64_t which)
    {
        n0 = n_first, group = which;
        for (int j = 0; j < EACH; j++) {
            const int64_t m = m0 + threadIdx.x / 16 + 16 * j;
            at[j] = place_of(m < g.pixels_in ? m : 0, g.h, g.w);
            at[j].y += g.pad;
            at[j].x += g.pad;
            if (m >= g.pixels_in) at[j].y = -(1 << 30);
        }
    }
    __device__ void load(float *a, float *b, int64_t k0, int64_t end) const
    {
        const int lane = threadIdx.x % 16, part = threadIdx.x / 16, column = threadIdx.x % SIDE;
        const int64_t k = k0 + lane, tap = k / g.og, oo = k % g.og, n = n0 + column;
        const int back_y = (int)(tap / g.kernel) * g.dilation, back_x = (int)(tap % g.kernel) * g.dilation;
        for (int j = 0; j < EACH; j++) {
            const int sy = at[j].y - back_y, sx = at[j].x - back_x, oy = sy / g.stride, ox = sx / g.stride;
            const bool inside = k < end && sy >= 0 && sx >= 0 && sy % g.stride == 0 && sx % g.stride == 0 && oy < g.oh &&
                                ox < g.ow;
            a[lane * STRIDE + part + 16 * j] = inside ? dy[((at[j].row * g.oh + oy) * g.ow + ox) * g.o + group * g.og + oo] : 0;
            const int deep = threadIdx.x / SIDE + EACH * j;
            const int64_t d = k0 + deep;
            b[deep * STRIDE + column] = d < end && n < g.cg ? weight[((group * g.og + d % g.og) * g.taps + d / g.og) * g.cg + n]
                                                            : 0;
        }
    }
    __device__ void store(int64_t m, int64_t n, float v) const
    {
        dx[m * g.c + group * g.cg + n] = v;
    }
};

struct weights_pass {
    geometry g;
    float *dw; /* of chunk 0; the others follow */
    const float *x, *dy;
    int64_t m0, n0, group;
    int tap_y, tap_x;
    int64_t ci;
    __device__ int64_t rows() const
    {
        return g.og;
    }
    __device__ int64_t columns() const
    {
        return g.taps * g.cg;
    }
    __device__ int64_t depth() const
    {
        return g.pixels_out;
    }
    __device__ void start(int64_t m_first, int64_t n_first, int64_t which)
    {
        m0 = m_first, n0 = n_first, group = which;
        const int64_t n = n0 + threadIdx.x % SIDE, tap = n / g.cg;
        ci = n % g.cg;
        tap_y = (int)(tap / g.kernel) * g.dilation - g.pad;
        tap_x = (int)(tap % g.kernel) * g.dilation - g.pad;
    }
    __device__ void load(float *a, float *b, int64_t k0, int64_t end) const
    {
        const int column = threadIdx.x % SIDE;
        for (int j = 0; j < EACH; j++) {
            const int deep = threadIdx.x / SIDE + EACH * j;
            const int64_t k = k0 + deep;
            const place p = place_of(k, g.oh, g.ow);
            const int iy = p.y * g.stride + tap_y, ix = p.x * g.stride + tap_x;
            const bool inside = k < end && n0 + column < g.taps * g.cg && iy >= 0 && iy < g.h && ix >= 0 && ix < g.w;
            a[deep * STRIDE + column] = k < end && m0 + column < g.og ? dy[k * g.o + group * g.og + m0 + column] : 0;
            b[deep * STRIDE + column] = inside ? x[((p.row * g.h + iy) * g.w + ix) * g.c + group * g.cg + ci] : 0;
        }
    }
    __device__ void store(int64_t m, int64_t n, float v) const
    {
        dw[blockIdx.z * g.o * g.taps * g.cg + (group * g.og + m) * g.taps * g.cg + n] = v;
    }
};

/* Grid: squares of the result, row of squares by row; groups; chunks of the depth. */
template <class P> static __global__ void __launch_bounds__(DP_BLOCK) dp_k_direct(P p, int64_t across, int64_t chunk)
{
    __shared__ __align__(16) float a[DEEP * STRIDE], b[DEEP * STRIDE];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const int64_t m0 = (int64_t)blockIdx.x / across * SIDE, n0 = (int64_t)blockIdx.x % across * SIDE;
    const int64_t first = (int64_t)blockIdx.z * chunk, end = first + chunk < p.depth() ? first + chunk : p.depth();
    float c[EACH][EACH];
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) c[i][j] = 0;
    p.start(m0, n0, blockIdx.y);
    for (int64_t k = first; k < end; k += DEEP) {
        p.load(a, b, k, end);
        __syncthreads();
#pragma unroll
        for (int d = 0; d < DEEP; d++) {
            const float4 x = *reinterpret_cast<const float4 *>(a + d * STRIDE + EACH * ty);
            const float4 y = *reinterpret_cast<const float4 *>(b + d * STRIDE + EACH * tx);
            const float u[EACH] = {x.x, x.y, x.z, x.w}, v[EACH] = {y.x, y.y, y.z, y.w};
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++) c[i][j] = fmaf(u[i], v[j], c[i][j]);
        }
        __syncthreads();
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++)
            if (m0 + EACH * ty + i < p.rows() && n0 + EACH * tx + j < p.columns())
                p.store(m0 + EACH * ty + i, n0 + EACH * tx + j, c[i][j]);
}

static __global__ void __launch_bounds__(DP_BLOCK) dp_k_add_chunks(float *dw, const float *part, int64_t n, int64_t chunks)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    if (i >= n) return;
    for (int64_t k = 0; k < chunks; k++) sum += part[k * n + i];
    dw[i] = sum;
}

static int64_t squares(int64_t n)
{
    return (n + SIDE - 1) / SIDE;
}

/* Of the shape alone, so that sums are the same on every device. */
static int64_t chunks_of(const geometry &g)
{
    const int64_t blocks = squares(g.og) * squares(g.taps * g.cg) * (g.c / g.cg), most = 512 / blocks;
    int64_t chunks = g.pixels_out / (8 * SIDE);
    if (chunks > most) chunks = most;
    return chunks < 1 ? 1 : chunks;
}

size_t dp_direct_workspace(const dp_conv *c, int64_t rows)
{
    const geometry g = geometry_of(c, rows);
    const int64_t chunks = chunks_of(g);
    return chunks > 1 ? (size_t)(chunks * g.o * g.taps * g.cg) * sizeof(float) : 0;
}

template <class P>
static dp_status run(dp_be_stream *s, const P &p, int64_t rows, int64_t columns, int64_t depth, int64_t groups, int64_t chunks)
{
    const int64_t across = squares(columns), blocks = squares(rows) * across, chunk = (depth + chunks - 1) / chunks;
    if (blocks > INT32_MAX || groups > 65535) return DP_EARGUMENT;
    DP_TRY_LAUNCH(s, dp_k_direct<P>, dim3((unsigned)blocks, (unsigned)groups, (unsigned)chunks), DP_BLOCK, 0, p, across, chunk);
    return DP_OK;
}

dp_status dp_direct_forward(dp_be_stream *s, const dp_conv *c, int64_t rows, const float *x, const float *w, const float *b,
                            float *y)
{
    forward_pass p = {};
    p.g = geometry_of(c, rows);
    p.y = y, p.x = x, p.weight = w, p.bias = b, p.relu = c->relu;
    return run(s, p, p.g.pixels_out, p.g.og, p.g.taps * p.g.cg, c->groups, 1);
}

dp_status dp_direct_backward_data(dp_be_stream *s, const dp_conv *c, int64_t rows, const float *dy, const float *w, float *dx)
{
    data_pass p = {};
    p.g = geometry_of(c, rows);
    p.dx = dx, p.dy = dy, p.weight = w;
    return run(s, p, p.g.pixels_in, p.g.cg, p.g.taps * p.g.og, c->groups, 1);
}

dp_status dp_direct_backward_weights(dp_be_stream *s, const dp_conv *c, int64_t rows, const float *x, const float *dy,
                                     float *dw, void *workspace)
{
    weights_pass p = {};
    p.g = geometry_of(c, rows);
    p.x = x, p.dy = dy;
    const int64_t chunks = chunks_of(p.g), n = p.g.o * p.g.taps * p.g.cg;
    p.dw = chunks > 1 ? (float *)workspace : dw;
    DP_TRY(run(s, p, p.g.og, p.g.taps * p.g.cg, p.g.pixels_out, c->groups, chunks));
    if (chunks == 1) return DP_OK;
    DP_TRY_LAUNCH(s, dp_k_add_chunks, (unsigned)((n + DP_BLOCK - 1) / DP_BLOCK), DP_BLOCK, 0, dw, (const float *)workspace, n,
                  chunks);
    return DP_OK;
}
