// Stands in for NVIDIA's <cuda_runtime.h> where a .cu file is compiled as C++: -I of this directory goes before the toolkit's. Types and
// prototypes of the host API come from NVIDIA's own header, so the compiler checks what is simulated.
#ifndef CUSIM_CUDA_RUNTIME_H
#define CUSIM_CUDA_RUNTIME_H
#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <vector_types.h>
#include "kernel.h"
#include "math.inc"

template <class T> static inline cudaError_t cudaMalloc(T **p, size_t n)
{
    return cudaMalloc((void **)p, n);
}
template <class T> static inline cudaError_t cudaMallocHost(T **p, size_t n)
{
    return cudaMallocHost((void **)p, n);
}
template <class... P> static inline cudaError_t cudaFuncSetAttribute(void (*k)(P...), cudaFuncAttribute which, int value)
{
    return cudaFuncSetAttribute((const void *)k, which, value);
}
template <class... P> static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, void (*k)(P...))
{
    return cudaFuncGetAttributes(a, (const void *)k);
}
template <class... P>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void (*k)(P...), int block, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, (const void *)k, block, shared);
}
#endif
