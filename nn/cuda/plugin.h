/* Internal to nn/cuda: what this build was made for. */
#ifndef DP_NN_CUDA_PLUGIN_INNER_H
#define DP_NN_CUDA_PLUGIN_INNER_H
#include "../cuda_driver.h"
extern const dp_cuda_build dp_cuda_built;
#endif
