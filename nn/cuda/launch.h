/* Internal to nn/cuda: how a .cu file launches kernels, and the few device functions that all share. With nvcc these are the language's
 * own means; otherwise the file is compiled as C++ over the simulator (test/cusim), whose <cuda_runtime.h> declares namespace cusim.
 *
 *   DP_LAUNCH(kernel, grid, block, shared bytes, stream, arguments...)   a cudaError_t; a kernel's name with a
 *                            comma in it stands in parentheses
 *   DP_DYN_SHARED(T, name)   the dynamic shared memory of a kernel
 *   DP_AT(p)                 in a kernel: a pointer that was read from device memory */
#ifndef DP_NN_CUDA_LAUNCH_H
#define DP_NN_CUDA_LAUNCH_H
#include <cuda_runtime.h>
#include "cuda.h"

#ifdef __CUDACC__
#define DP_LAUNCH(kernel, grid, block, shared, stream, ...)                                                                    \
    (kernel<<<grid, block, shared, stream>>>(__VA_ARGS__), cudaGetLastError())
#define DP_DYN_SHARED(T, name)                                                                                                 \
    extern __shared__ __align__(16) unsigned char dp_shared_bytes[];                                                           \
    T *name = (T *)dp_shared_bytes
#define DP_AT(p) (p)
#else
#define DP_LAUNCH(kernel, grid, block, shared, stream, ...)                                                                    \
    cusim::launch(#kernel, kernel, grid, block, shared, stream, __VA_ARGS__)
#define DP_DYN_SHARED(T, name) T *name = reinterpret_cast<T *>(cusim::block->dyn)
#define DP_AT(p)               cusim::at(p)
#endif

/* The launch as a dp_status of the stream's device; a lost device is not touched. */
#define DP_TRY_LAUNCH(s, kernel, grid, block, shared, ...)                                                                     \
    do {                                                                                                                       \
        if (dp_cuda_lost((s)->device)) return DP_EDEVICE_LOST;                                                                 \
        const dp_status dp_launch_status_ = dp_cuda_check(                                                                     \
            (s)->device, DP_LAUNCH(kernel, grid, block, shared, (s)->stream, __VA_ARGS__), #kernel, NULL);                     \
        if (dp_launch_status_) return dp_launch_status_;                                                                       \
        const dp_status dp_settled_ = dp_cuda_settle(s);                                                                       \
        if (dp_settled_) return dp_settled_;                                                                                   \
    } while (0)

enum { DP_BLOCK = 256 };

/* Blocks for n elements, `each` of them to a block, bounded: kernels go on in strides of the grid. */
static inline unsigned dp_blocks(const dp_be_device *d, int64_t n, int64_t each)
{
    const int64_t wanted = (n + each - 1) / each, most = (int64_t)d->sms * 16;
    return (unsigned)(wanted < 1 ? 1 : wanted > most ? most : wanted);
}

static __device__ __forceinline__ float dp_warp_sum(float v)
{
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
static __device__ __forceinline__ double dp_warp_sum(double v)
{
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
static __device__ __forceinline__ float dp_warp_max(float v) /* NaN wins */
{
    for (int o = 16; o; o >>= 1) {
        const float w = __shfl_xor_sync(0xffffffffu, v, o);
        v = w > v || w != w ? w : v;
    }
    return v;
}
#endif
