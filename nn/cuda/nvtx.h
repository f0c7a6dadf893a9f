/* Internal to nn/cuda: ranges for Nsight Systems and its like (nvtx.c), where NVIDIA's header is. */
#ifndef DP_NN_CUDA_NVTX_H
#define DP_NN_CUDA_NVTX_H
#include "cuda.h"
#if __has_include(<nvtx3/nvToolsExt.h>)
void dp_cuda_range_open(dp_be_device *d);
void dp_cuda_range(dp_be_device *d, int level, const char *name, int number); /* as dp_backend.range */
#else
#define dp_cuda_range NULL
static inline void dp_cuda_range_open(dp_be_device *d)
{
    (void)d;
}
#endif
#endif
