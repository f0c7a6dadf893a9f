/* Losses: one kernel reads the logits, writes the gradient of the sum, and ends in four numbers. Every warp adds up its own predictions
 * in double, blocks and the whole are folded in a fixed order, and the grid depends on the number of predictions alone: a sum is the
 * same on every device and in every run. Its order is not the CPU backend's: equal to rounding. */
#include "launch.h"

enum { WARPS = DP_BLOCK / 32 };
static_assert(sizeof(dp_loss_sums) == DP_CUDA_PART, "a part of a stream's memory holds one block's sums");

static __device__ __forceinline__ dp_loss_sums both(dp_loss_sums a, const dp_loss_sums &b)
{
    a.loss += b.loss;
    a.targets += b.targets;
    a.correct += b.correct;
    if (b.bad && (!a.bad || b.bad < a.bad)) a.bad = b.bad;
    return a;
}

/* A value of each thread: halves until thread 0 holds the sum. */
static __device__ void fold(dp_loss_sums *v)
{
    for (int m = DP_BLOCK / 2; m; m /= 2) {
        __syncthreads();
        if (threadIdx.x < (unsigned)m) v[threadIdx.x] = both(v[threadIdx.x], v[threadIdx.x + m]);
    }
    __syncthreads();
}

/* The block's sum, in v[0], joins those of the other blocks; the last one to arrive makes the result. */
static __device__ void finish(dp_loss_sums *v, dp_loss_sums *parts, unsigned *ticket, dp_loss_sums *sums)
{
    __shared__ unsigned arrived;
    if (!threadIdx.x) {
        parts[blockIdx.x] = v[0];
        __threadfence();
        arrived = atomicAdd(ticket, 1u);
    }
    __syncthreads();
    if (arrived != gridDim.x - 1) return;
    __threadfence();
    dp_loss_sums mine = {0, 0, 0, 0};
    for (unsigned i = threadIdx.x; i < gridDim.x; i += DP_BLOCK) {
        const volatile dp_loss_sums *p = parts + i; /* other blocks wrote it: not from this multiprocessor's cache */
        const dp_loss_sums other = {p->loss, p->targets, p->correct, p->bad};
        mine = both(mine, other);
    }
    v[threadIdx.x] = mine;
    fold(v);
    if (threadIdx.x) return;
    *sums = v[0];
    *ticket = 0;
}

/* -- cross entropy: a warp for each prediction -- */

typedef struct dp_ce { /* no holes: the simulator looks at every word for addresses */
    int64_t n, classes, ignore, type;
    double smoothing;
    const float *logits;
    const void *targets;
    float *d_logits;
} dp_ce;

static __device__ int64_t target_at(const void *targets, int64_t type, int64_t i)
{
    switch (type) {
    case DP_U8: return ((const uint8_t *)targets)[i];
    case DP_U16: return ((const uint16_t *)targets)[i];
    case DP_I32: return ((const int32_t *)targets)[i];
    default: return ((const int64_t *)targets)[i];
    }
}

typedef struct dp_row { /* of one prediction; equal in all lanes */
    float max;
    double exp_sum, sum; /* of exp(x - max); of x, for smoothing */
    int64_t first;       /* where the maximum stands first */
    int nan;
} dp_row;

/* One pass: a lane keeps its own maximum and rescales its sum when a group of eight brings a larger one. */
static __device__ dp_row read_row(const float *x, int64_t classes, int smooth)
{
    enum { GROUP = 8 };
    const int lane = threadIdx.x % 32;
    dp_row r = {-INFINITY, 0, 0, INT64_MAX, 0};
    for (int64_t at = lane; at < classes; at += 32 * GROUP) {
        float v[GROUP], sum = 0;
#pragma unroll
        for (int k = 0; k < GROUP; k++) v[k] = at + 32 * k < classes ? x[at + 32 * k] : -INFINITY;
        const float before = r.max;
#pragma unroll
        for (int k = 0; k < GROUP; k++) {
            if (at + 32 * k >= classes) break;
            r.nan |= v[k] != v[k];
            if (v[k] > r.max || r.first == INT64_MAX) r.max = v[k] > r.max ? v[k] : r.max, r.first = at + 32 * k;
            if (smooth) r.sum += (double)v[k];
        }
        const float shift = r.max == -INFINITY ? 0.0f : r.max; /* nothing but -inf so far: exp must give 0, not NaN */
        if (r.max > before) r.exp_sum *= (double)expf(before - shift);
#pragma unroll
        for (int k = 0; k < GROUP; k++) sum += expf(v[k] - shift);
        r.exp_sum += (double)sum;
    }
    for (int o = 16; o; o >>= 1) {
        const float max = __shfl_xor_sync(0xffffffffu, r.max, o);
        const int64_t first = __shfl_xor_sync(0xffffffffu, (long long)r.first, o);
        const double exp_sum = __shfl_xor_sync(0xffffffffu, r.exp_sum, o);
        const float most = fmaxf(max, r.max), shift = most == -INFINITY ? 0.0f : most;
        r.exp_sum = r.exp_sum * (double)expf(r.max - shift) + exp_sum * (double)expf(max - shift);
        if (max > r.max || (max == r.max && first < r.first)) r.first = first;
        r.max = most;
    }
    r.nan = __ballot_sync(0xffffffffu, r.nan) != 0;
    if (smooth) r.sum = dp_warp_sum(r.sum);
    return r;
}

static __device__ void predict(const dp_ce &l, int64_t i, dp_loss_sums *sums)
{
    const int lane = threadIdx.x % 32;
    const float *x = l.logits + i * l.classes;
    float *d = l.d_logits ? l.d_logits + i * l.classes : nullptr;
    const int64_t target = target_at(l.targets, l.type, i);
    const bool ignored = target == l.ignore;
    if (ignored || target < 0 || target >= l.classes) {
        if (!ignored && !sums->bad) sums->bad = 1 + i;
        for (int64_t c = lane; d && c < l.classes; c += 32) d[c] = 0;
        return;
    }
    const double smooth = l.smoothing, classes = (double)l.classes;
    const dp_row r = read_row(x, l.classes, smooth > 0);
    const float at = x[target];
    const double log_sum = (double)r.max + log(r.exp_sum);
    double loss = (1 - smooth) * (log_sum - (double)at);
    if (smooth > 0) loss += smooth * (log_sum - r.sum / classes);
    sums->loss += loss;
    sums->targets++;
    sums->correct += !r.nan && r.first == target;
    if (!d) return;
    const float scale = (float)(1 / r.exp_sum), rest = (float)(-smooth / classes), hit = (float)(1 - smooth);
#pragma unroll 4
    for (int64_t c = lane; c < l.classes; c += 32) {
        const float v = fmaf(scale, expf(x[c] - r.max), rest);
        d[c] = c == target ? v - hit : v;
    }
}

static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_cross_entropy(const dp_ce l, dp_loss_sums *parts, unsigned *ticket, dp_loss_sums *sums)
{
    __shared__ dp_loss_sums v[DP_BLOCK];
    const int warp = threadIdx.x / 32;
    dp_loss_sums mine = {0, 0, 0, 0};
    for (int64_t i = (int64_t)blockIdx.x * WARPS + warp; i < l.n; i += (int64_t)gridDim.x * WARPS) predict(l, i, &mine);
    if (threadIdx.x % 32 == 0) v[warp] = mine;
    __syncthreads();
    for (int w = 1; !threadIdx.x && w < WARPS; w++) v[0] = both(v[0], v[w]);
    finish(v, parts, ticket, sums);
}

/* -- mean squared error -- */

static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_mse(int64_t n, const float *x, const float *t, float *d, dp_loss_sums *parts, unsigned *ticket, dp_loss_sums *sums)
{
    __shared__ dp_loss_sums v[DP_BLOCK];
    dp_loss_sums mine = {0, 0, 0, 0};
    for (int64_t i = (int64_t)blockIdx.x * DP_BLOCK + threadIdx.x; i < n; i += (int64_t)gridDim.x * DP_BLOCK) {
        const float e = x[i] - t[i];
        mine.loss += (double)e * (double)e;
        mine.targets++;
        if (d) d[i] = 2 * e;
    }
    v[threadIdx.x] = mine;
    fold(v);
    finish(v, parts, ticket, sums);
}

/* Of n alone, so that the order of additions is. */
static unsigned blocks_for(int64_t n, int64_t each)
{
    const int64_t blocks = (n + each - 1) / each;
    return (unsigned)(blocks < 1 ? 1 : blocks > DP_CUDA_PARTS ? (int64_t)DP_CUDA_PARTS : blocks);
}

extern "C" dp_status dp_cuda_loss(dp_be_stream *s, const dp_loss *l, int64_t rows, const float *logits, const void *targets,
                                  dp_dtype target_type, float *d_logits, dp_loss_sums *sums)
{
    dp_loss_sums *parts = (dp_loss_sums *)s->parts;
    if (l->kind == DP_LOSS_MSE) {
        const int64_t n = rows * l->classes;
        if (target_type != DP_F32) return DP_EARGUMENT;
        DP_TRY_LAUNCH(s, dp_k_mse, blocks_for(n, 4 * DP_BLOCK), DP_BLOCK, 0, n, logits, (const float *)targets, d_logits, parts,
                      s->ticket, sums);
        return DP_OK;
    }
    if (target_type != DP_U8 && target_type != DP_U16 && target_type != DP_I32 && target_type != DP_I64) return DP_EARGUMENT;
    const dp_ce c = {rows * l->groups, l->classes, l->ignore_label, (int64_t)target_type,
                     l->smoothing,     logits,     targets,         d_logits};
    DP_TRY_LAUNCH(s, dp_k_cross_entropy, blocks_for(c.n, WARPS), DP_BLOCK, 0, c, parts, s->ticket, sums);
    return DP_OK;
}
