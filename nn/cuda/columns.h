/* Internal to nn/cuda: walks over a (rows, n) array in which each thread has one column, so that what belongs to a column (bias, mean, scale)
 * stays in registers. Threads of a warp have neighbouring elements. F is copied into each thread; column(c) comes once, before its at().
 *
 * Sums by column, in one launch: bias gradients, statistics of a batchnorm, gradients of scale and shift. at(row, c) gives what is summed
 * (two numbers; it may write on its way), finish(c, sum, sum) gets the results. Blocks take columns by rows; the last block of a group of
 * columns adds up what the others left, in their order: a sum never depends on which block came first.
 *
 * Walks: at(row, c, inside, word) for each element, by whole warps, so that it may vote; `word` is the warp's own number. */
#ifndef DP_NN_CUDA_COLUMNS_H
#define DP_NN_CUDA_COLUMNS_H
#include "launch.h"

typedef struct dp_columns {
    int64_t rows, n, per; /* rows of a block */
    int log_width;        /* columns of a block: 1 to 32 */
    unsigned groups, chunks;
} dp_columns;

enum { DP_COLUMN_RUN = 32 };

static inline int dp_columns_width(int64_t n) /* its logarithm */
{
    int log_width = 0;
    while (log_width < 5 && ((int64_t)1 << log_width) < n) log_width++;
    return log_width;
}

/* Rows are cut into at most so many chunks. */
static inline int64_t dp_columns_chunks(int64_t groups)
{
    const int64_t blocks = 1024 / groups;
    return groups > DP_CUDA_TICKETS ? 1 : blocks > 256 ? 256 : blocks;
}

/* The grid depends on the shape alone: sums are the same on every device. */
static inline dp_columns dp_columns_of(int64_t rows, int64_t n)
{
    dp_columns g;
    g.rows = rows, g.n = n;
    g.log_width = dp_columns_width(n);
    const int64_t groups = (n + (1 << g.log_width) - 1) >> g.log_width, lanes = DP_BLOCK >> g.log_width;
    int64_t chunks = rows / (lanes * 8), most = dp_columns_chunks(groups);
    if (chunks > most) chunks = most;
    if (chunks < 1) chunks = 1;
    g.per = (rows + chunks - 1) / chunks;
    g.groups = (unsigned)groups;
    g.chunks = (unsigned)((rows + g.per - 1) / g.per);
    return g;
}

/* Bytes of scratch for any number of rows. */
static inline size_t dp_columns_workspace(int64_t n)
{
    const int64_t groups = (n + (1 << dp_columns_width(n)) - 1) >> dp_columns_width(n);
    return (size_t)(dp_columns_chunks(groups) * n) * 2 * sizeof(double);
}

/* Values of one column lie `width` threads apart; they end in its first lane. */
static __device__ __forceinline__ void dp_columns_fold(double *a, double *b, int width, int lanes)
{
    const int t = (int)threadIdx.x;
    for (int half = lanes / 2; half; half /= 2) {
        __syncthreads();
        if (t < half * width) {
            a[t] += a[t + half * width];
            b[t] += b[t + half * width];
        }
    }
    __syncthreads();
}

template <class F>
static __global__ void __launch_bounds__(DP_BLOCK) dp_k_columns(F f, const dp_columns g, double *parts, unsigned *tickets)
{
    __shared__ double a[DP_BLOCK], b[DP_BLOCK];
    __shared__ unsigned arrived;
    const int t = (int)threadIdx.x, width = 1 << g.log_width, lanes = DP_BLOCK >> g.log_width, lane = t >> g.log_width;
    const int64_t c = (int64_t)blockIdx.x * width + (t & (width - 1));
    const int64_t first = (int64_t)blockIdx.y * g.per, last = first + g.per < g.rows ? first + g.per : g.rows;
    double sum0 = 0, sum1 = 0;
    if (c < g.n) {
        f.column(c);
        for (int64_t r = first + lane; r < last;) { /* short runs in float, the rest in double */
            float run0 = 0, run1 = 0;
            for (int k = 0; k < DP_COLUMN_RUN && r < last; k++, r += lanes) {
                const float2 v = f.at(r, c);
                run0 += v.x;
                run1 += v.y;
            }
            sum0 += (double)run0;
            sum1 += (double)run1;
        }
    }
    a[t] = sum0;
    b[t] = sum1;
    dp_columns_fold(a, b, width, lanes);
    if (gridDim.y == 1) {
        if (!lane && c < g.n) f.finish(c, a[t], b[t]);
        return;
    }
    if (!lane && c < g.n) {
        parts[(int64_t)blockIdx.y * 2 * g.n + c] = a[t];
        parts[(int64_t)blockIdx.y * 2 * g.n + g.n + c] = b[t];
        __threadfence();
    }
    __syncthreads();
    if (!t) arrived = atomicAdd(tickets + blockIdx.x, 1u);
    __syncthreads();
    if (arrived != gridDim.y - 1) return;
    __threadfence();
    const volatile double *others = parts; /* not from this multiprocessor's cache */
    sum0 = sum1 = 0;
    for (int64_t k = lane; c < g.n && k < gridDim.y; k += lanes) {
        sum0 += others[k * 2 * g.n + c];
        sum1 += others[k * 2 * g.n + g.n + c];
    }
    a[t] = sum0;
    b[t] = sum1;
    dp_columns_fold(a, b, width, lanes);
    if (!lane && c < g.n) f.finish(c, a[t], b[t]);
    if (!t) tickets[blockIdx.x] = 0;
}

template <class F> static dp_status dp_columns_run(dp_be_stream *s, const F &f, int64_t rows, int64_t n, void *workspace)
{
    const dp_columns g = dp_columns_of(rows, n);
    DP_TRY_LAUNCH(s, dp_k_columns<F>, dim3(g.groups, g.chunks), DP_BLOCK, 0, f, g, (double *)workspace, s->ticket);
    return DP_OK;
}

/* -- walks without sums -- */

typedef struct dp_walk {
    int64_t rows, n;
    int log_width;
} dp_walk;

static __device__ __forceinline__ int64_t dp_walk_word(int64_t r, int64_t c, int64_t n, int log_width)
{
    const int64_t groups = (n + (1 << log_width) - 1) >> log_width;
    return r / (32 >> log_width) * groups + (c >> log_width);
}
static __device__ __forceinline__ int dp_walk_bit(int64_t r, int64_t c, int log_width) /* its thread in the warp */
{
    return (int)((r % (32 >> log_width)) << log_width | (c & ((1 << log_width) - 1)));
}
static inline size_t dp_walk_words(int64_t rows, int64_t n)
{
    const int log_width = dp_columns_width(n);
    const int64_t per_warp = 32 >> log_width, groups = (n + (1 << log_width) - 1) >> log_width;
    return (size_t)((rows + per_warp - 1) / per_warp * groups);
}

template <class F> static __global__ void __launch_bounds__(DP_BLOCK) dp_k_walk(F f, const dp_walk g)
{
    const int t = (int)threadIdx.x, width = 1 << g.log_width, lanes = DP_BLOCK >> g.log_width, lane = t >> g.log_width;
    const int per_warp = 32 >> g.log_width, in_warp = lane % per_warp;
    const int64_t c = (int64_t)blockIdx.x * width + (t & (width - 1));
    if (c < g.n) f.column(c);
    for (int64_t base = (int64_t)blockIdx.y * lanes + lane - in_warp; base < g.rows; base += (int64_t)gridDim.y * lanes)
        f.at(base + in_warp, c, c < g.n && base + in_warp < g.rows, base / per_warp * gridDim.x + blockIdx.x);
}

template <class F> static dp_status dp_walk_run(dp_be_stream *s, const F &f, int64_t rows, int64_t n)
{
    const dp_walk g = {rows, n, dp_columns_width(n)};
    const int64_t groups = (n + (1 << g.log_width) - 1) >> g.log_width, lanes = DP_BLOCK >> g.log_width;
    int64_t blocks = (rows + lanes - 1) / lanes, most = (int64_t)s->device->sms * 16 / groups;
    if (blocks > most) blocks = most;
    DP_TRY_LAUNCH(s, dp_k_walk<F>, dim3((unsigned)groups, (unsigned)(blocks < 1 ? 1 : blocks)), DP_BLOCK, 0, f, g);
    return DP_OK;
}
#endif
