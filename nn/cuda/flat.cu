/* Sums over flat arrays: the halving tree over replicas' gradients, the norm of a window's gradient, checksums. Compiled without fused
 * multiply-add, and in the CPU backend's order: the results are equal to its by bytes. */
#include "launch.h"

/* -- sum --
 * The tree becomes a list of sources; after each one so many sums of the two newest values are due. The list is the same for all
 * elements, and seven values (64 sources) fit into registers if they move instead of an index. */
enum { SOURCES = 64, DEPTH = 7 };
typedef struct dp_sum_list {
    const float *src[SOURCES];
    unsigned char adds[SOURCES];
    int64_t n;
} dp_sum_list;

static __device__ __forceinline__ float4 add4(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

static __global__ void __launch_bounds__(DP_BLOCK) dp_k_sum(float *dst, const dp_sum_list l, int64_t quads)
{
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < quads; i += stride) {
        float4 s[DEPTH];
#pragma unroll
        for (int k = 0; k < DEPTH; k++) s[k] = make_float4(0, 0, 0, 0);
        for (int k = 0; k < l.n; k++) {
#pragma unroll
            for (int j = DEPTH - 1; j > 0; j--) s[j] = s[j - 1];
            s[0] = reinterpret_cast<const float4 *>(l.src[k])[i];
            for (int a = 0; a < l.adds[k]; a++) {
                s[0] = add4(s[1], s[0]);
#pragma unroll
                for (int j = 1; j < DEPTH - 1; j++) s[j] = s[j + 1];
            }
        }
        reinterpret_cast<float4 *>(dst)[i] = s[0];
    }
}

static int list_tree(dp_sum_list *l, const float *const *src, int n)
{
    if (n == 1) {
        if (!src[0]) return 0;
        l->src[l->n] = src[0];
        l->adds[l->n++] = 0;
        return 1;
    }
    const int half = (n + 1) / 2;
    const int left = list_tree(l, src, half), right = list_tree(l, src + half, n - half);
    if (left && right) l->adds[l->n - 1]++;
    return left || right;
}

extern "C" dp_status dp_cuda_sum(dp_be_stream *s, float *dst, const float *const *src, int n, int64_t count)
{
    dp_sum_list l = {};
    if (n < 1 || n > SOURCES) return DP_EARGUMENT;
    list_tree(&l, src, n);
    if (!count || (l.n == 1 && l.src[0] == dst)) return DP_OK;
    const int64_t quads = count / 4;
    DP_TRY_LAUNCH(s, dp_k_sum, dp_blocks(s->device, quads, DP_BLOCK), DP_BLOCK, 0, dst, l, quads);
    return DP_OK;
}

/* -- norm -- */

/* Eight threads a chunk, one for each lane; squares of floats are exact in double. */
static __global__ void __launch_bounds__(DP_BLOCK) dp_k_sumsq(const float *x, int64_t count, double *chunk_sums)
{
    const int64_t chunk = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 8;
    const int lane = threadIdx.x % 8;
    const int64_t begin = chunk * DP_CHUNK, rest = count - begin;
    const int n = rest < DP_CHUNK ? rest < 0 ? 0 : (int)rest : DP_CHUNK;
    double sum = 0;
#pragma unroll 8
    for (int i = lane; i < n; i += 8) {
        const double v = (double)x[begin + i];
        sum += v * v;
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 4);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    if (n && !lane) chunk_sums[chunk] = sum;
}

extern "C" dp_status dp_cuda_sumsq(dp_be_stream *s, const float *x, int64_t count, double *chunk_sums)
{
    const int64_t threads = (count + DP_CHUNK - 1) / DP_CHUNK * 8;
    if (!count) return DP_OK;
    DP_TRY_LAUNCH(s, dp_k_sumsq, (unsigned)((threads + DP_BLOCK - 1) / DP_BLOCK), DP_BLOCK, 0, x, count, chunk_sums);
    return DP_OK;
}

/* The chunks are added one after the other, as the contract wants; the others only fetch. */
enum { TILE = 1024 };
static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_norm(const double *chunk_sums, int64_t n, const dp_run *run, double clip, dp_verdict *v)
{
    __shared__ double tile[TILE];
    double sum = 0;
    for (int64_t at = 0; at < n; at += TILE) {
        const int m = n - at < TILE ? (int)(n - at) : TILE;
        for (int i = threadIdx.x; i < m; i += blockDim.x) tile[i] = chunk_sums[at + i];
        __syncthreads();
        if (!threadIdx.x)
            for (int i = 0; i < m; i++) sum += tile[i];
        __syncthreads();
    }
    if (threadIdx.x) return;
    const double mean = run->inv_count;
    v->finite = isfinite(sum) ? 1 : 0;
    v->norm = sqrt(sum) * mean;
    v->scale = mean;
    if (clip > 0) v->scale *= fmin(1.0, clip / (v->norm + 1e-6));
    v->take = v->finite && mean > 0;
    v->steps += v->take;
}

extern "C" dp_status dp_cuda_norm(dp_be_stream *s, const double *chunk_sums, int64_t n, const dp_run *run_device,
                                  const dp_optimizer *o, dp_verdict *v)
{
    DP_TRY_LAUNCH(s, dp_k_norm, 1, DP_BLOCK, 0, chunk_sums, n, run_device, o->clip_norm, v);
    return DP_OK;
}

/* -- checksum -- */

static __global__ void __launch_bounds__(DP_BLOCK) dp_k_checksum(const float *x, int64_t count, unsigned long long *chunk_sums)
{
    __shared__ unsigned long long warp[DP_BLOCK / 32];
    const int64_t begin = (int64_t)blockIdx.x * DP_CHUNK, rest = count - begin;
    const int n = rest < DP_CHUNK ? (int)rest : DP_CHUNK;
    unsigned long long sum = 0;
    for (int i = threadIdx.x; i < n; i += DP_BLOCK)
        sum += (unsigned long long)__float_as_uint(x[begin + i]) * (unsigned long long)(2 * i + 1);
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (threadIdx.x % 32 == 0) warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < DP_BLOCK / 32; w++) sum += warp[w];
    chunk_sums[blockIdx.x] = sum;
}

extern "C" dp_status dp_cuda_checksum(dp_be_stream *s, const float *x, int64_t count, uint64_t *chunk_sums)
{
    static_assert(sizeof(unsigned long long) == sizeof(uint64_t), "the two names of 64 bits");
    if (!count) return DP_OK;
    DP_TRY_LAUNCH(s, dp_k_checksum, (unsigned)((count + DP_CHUNK - 1) / DP_CHUNK), DP_BLOCK, 0, x, count,
                  reinterpret_cast<unsigned long long *>(chunk_sums));
    return DP_OK;
}
