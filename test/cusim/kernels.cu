/* Kernels for the tests of the simulator itself. */
#include "kernels.h"
#include "../../nn/cuda/launch.h"

static __global__ void axpy(int n, float a, const float *x, float *y)
{
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n; i += (int)(gridDim.x * blockDim.x)) y[i] += a * x[i];
}
extern "C" cudaError_t k_axpy(int n, float a, const float *x, float *y, cudaStream_t s)
{
    return DP_LAUNCH(axpy, 4, K_BLOCK, 0, s, n, a, x, y);
}

static __global__ void fill(int n, float v, float *y)
{
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n; i += (int)(gridDim.x * blockDim.x)) y[i] = v;
}
extern "C" cudaError_t k_fill(int n, float v, float *y, cudaStream_t s)
{
    return DP_LAUNCH(fill, 4, K_BLOCK, 0, s, n, v, y);
}

static __global__ void reverse(const float *x, float *y, int synced)
{
    DP_DYN_SHARED(float, t);
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    t[threadIdx.x] = x[i];
    if (synced) __syncthreads();
    y[i] = t[blockDim.x - 1 - threadIdx.x];
}
extern "C" cudaError_t k_reverse(int n, const float *x, float *y, int synced, cudaStream_t s)
{
    return DP_LAUNCH(reverse, (unsigned)n / K_BLOCK, K_BLOCK, K_BLOCK * sizeof(float), s, x, y, synced);
}

static __global__ void sum(int n, const float *x, float *total)
{
    __shared__ float part[K_BLOCK / 32];
    float v = 0;
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n; i += (int)(gridDim.x * blockDim.x)) v += x[i];
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    if (!threadIdx.x) atomicAdd(total, part[0] + part[1]);
}
extern "C" cudaError_t k_sum(int n, const float *x, float *total, cudaStream_t s)
{
    return DP_LAUNCH(sum, 3, K_BLOCK, 0, s, n, x, total);
}

static __global__ void pairs(int n, const k_pair p)
{
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) p.b[i] = p.a[i] + (float)p.tag;
}
extern "C" cudaError_t k_pairs(int n, k_pair p, cudaStream_t s)
{
    return DP_LAUNCH(pairs, 1, K_BLOCK, 0, s, n, p);
}

static __global__ void indirect(float *const *from, float *to)
{
    *to = *cusim::at(*from);
}
extern "C" cudaError_t k_indirect(float *const *from, float *to, cudaStream_t s)
{
    return DP_LAUNCH(indirect, 1, 1, 0, s, from, to);
}

static __global__ void order(unsigned *ticket, unsigned *place)
{
    place[blockIdx.x] = atomicAdd(ticket, 1u);
}
extern "C" cudaError_t k_order(unsigned *ticket, unsigned *place, unsigned blocks, cudaStream_t s)
{
    return DP_LAUNCH(order, blocks, 1, 0, s, ticket, place);
}

static __global__ void warp(unsigned *out)
{
    const unsigned lane = threadIdx.x;
    unsigned *o = out + 6 * lane;
    o[0] = __shfl_sync(0xffffffffu, lane, 5);
    o[1] = __shfl_down_sync(0xffffffffu, lane, 2);
    o[2] = __shfl_up_sync(0xffffffffu, lane, 3u, 8);
    o[3] = __ballot_sync(0xffffffffu, lane % 3 == 0);
    /* two halves of a warp, each in an operation of its own */
    if (lane < 16)
        o[4] = __shfl_xor_sync(0x0000ffffu, lane, 1);
    else
        o[4] = __shfl_xor_sync(0xffff0000u, 100 + lane, 2);
    __syncwarp();
    o[5] = (unsigned)__any_sync(0xffffffffu, lane == 7) + 2u * (unsigned)__all_sync(0xffffffffu, lane < 32);
}
extern "C" cudaError_t k_warp(unsigned *out, cudaStream_t s)
{
    return DP_LAUNCH(warp, 1, 32, 0, s, out);
}

static __global__ void early(int n, float *out)
{
    __shared__ float v[K_BLOCK];
    const int i = (int)threadIdx.x;
    if (i >= n) return;
    v[i] = (float)i;
    __syncthreads();
    const float w = v[n - 1 - i];
    __syncthreads();
    out[i] = w;
}
extern "C" cudaError_t k_early(int n, float *out, cudaStream_t s)
{
    return DP_LAUNCH(early, 1, K_BLOCK, 0, s, n, out);
}

static __global__ void votes(int *out)
{
    const int count = __syncthreads_count(threadIdx.x < 10), any = __syncthreads_or(threadIdx.x == 3);
    const int all = __syncthreads_and(threadIdx.x != 3);
    if (threadIdx.x == 40) out[0] = count, out[1] = any, out[2] = all;
}
extern "C" cudaError_t k_votes(int *out, cudaStream_t s)
{
    return DP_LAUNCH(votes, 1, K_BLOCK, 0, s, out);
}

static __global__ void divergent(float *out)
{
    if (threadIdx.x < 3)
        __syncthreads();
    else
        __syncthreads();
    out[0] = 1;
}
extern "C" cudaError_t k_divergent(float *out, cudaStream_t s)
{
    return DP_LAUNCH(divergent, 1, K_BLOCK, 0, s, out);
}

static __global__ void absent(float *out)
{
    if (threadIdx.x == 4) return;
    out[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 4);
}
extern "C" cudaError_t k_absent(float *out, cudaStream_t s)
{
    return DP_LAUNCH(absent, 1, 32, 0, s, out);
}

static __global__ void overrun(float *out)
{
    DP_DYN_SHARED(float, t);
    t[threadIdx.x] = 1;
    out[threadIdx.x] = t[threadIdx.x];
}
extern "C" cudaError_t k_overrun(float *out, cudaStream_t s)
{
    return DP_LAUNCH(overrun, 1, 8, 7 * sizeof(float), s, out);
}

static __global__ void empty(int)
{
}
extern "C" cudaError_t k_empty(unsigned grid, unsigned block, size_t shared, cudaStream_t s)
{
    return DP_LAUNCH(empty, grid, block, shared, s, 0);
}
extern "C" cudaError_t k_opt_in(int bytes)
{
    return cudaFuncSetAttribute(empty, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

static __global__ void spin_stack(float *out)
{
    volatile char deep[128 << 10];
    for (int i = 0; i < (int)sizeof deep; i += 64) deep[i] = 1;
    out[0] = deep[64];
}
extern "C" cudaError_t k_spin_stack(float *out, cudaStream_t s)
{
    return DP_LAUNCH(spin_stack, 1, 1, 0, s, out);
}
