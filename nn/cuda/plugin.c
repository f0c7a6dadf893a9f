/* The one symbol of libdpcuda.so. DP_CUDA_ARCHS and DP_CUDA_PTX (compute capabilities, 10 * major + minor) come from the makefile, which gives
 * nvcc the same. */
#include "plugin.h"
#include "../cuda_plugin.h"
#include "cuda.h"

static const int archs[] = {DP_CUDA_ARCHS};
const dp_cuda_build dp_cuda_built = {
    .runtime = CUDART_VERSION, .ptx = DP_CUDA_PTX, .n_arch = sizeof archs / sizeof *archs, .arch = archs};

const dp_plugin dp_cuda_plugin = {
    .abi = DP_BACKEND_ABI,
    .size = sizeof(dp_plugin),
    .version = DP_VERSION_TEXT,
    .build = &dp_cuda_built,
    .backend = dp_backend_cuda,
};
