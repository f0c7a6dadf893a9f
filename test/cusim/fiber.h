// Internal to cusim: the execution of a grid.
#ifndef CUSIM_FIBER_H
#define CUSIM_FIBER_H
#include <cuda_runtime.h>
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#undef warpSize
namespace cusim
{
constexpr size_t MOST_SHARED = 99 << 10; // of a block, opted in
void run_grid(const char *kernel, int device, dim3 grid, dim3 dim, size_t shared, const std::function<void()> &thread);
void fibers_end(); // of this thread
} // namespace cusim
#endif
