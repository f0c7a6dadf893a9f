/* Internal to nn/cuda: ranges for Nsight Systems and its like (nvtx.c), where NVIDIA's header is. */
#ifndef DP_NN_CUDA_NVTX_H
#define DP_NN_CUDA_NVTX_H
#include "cuda.h"
#if __has_include(<nvtx3/nvToolsExt.h>)
#define DP_CUDA_RANGE dp_cuda_range /* dp_backend.range */
void dp_cuda_range(dp_be_device *d, int level, const char *name, int number);
#else
#define DP_CUDA_RANGE NULL
#endif
#endif
