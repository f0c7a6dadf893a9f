/* Kernels for the tests of the simulator itself. */
#ifndef CUSIM_TEST_KERNELS_H
#define CUSIM_TEST_KERNELS_H
#include <cuda_runtime_api.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
enum { K_BLOCK = 64 };
typedef struct k_pair { /* passed by value: both are found and translated */
    int tag;
    const float *a;
    float *b;
} k_pair;
cudaError_t k_axpy(int n, float a, const float *x, float *y, cudaStream_t s);
cudaError_t k_fill(int n, float v, float *y, cudaStream_t s);
cudaError_t k_reverse(int n, const float *x, float *y, int synced,
                      cudaStream_t s);                                  /* blocks of K_BLOCK, by dynamic shared memory */
cudaError_t k_sum(int n, const float *x, float *total, cudaStream_t s); /* barriers, shuffles, atomicAdd */
cudaError_t k_pairs(int n, k_pair p, cudaStream_t s);
cudaError_t k_indirect(float *const *from, float *to, cudaStream_t s); /* follows a pointer that lies in device memory */
cudaError_t k_order(unsigned *ticket, unsigned *place, unsigned blocks, cudaStream_t s);
cudaError_t k_warp(unsigned *out, cudaStream_t s);      /* 32 threads, 6 results each */
cudaError_t k_early(int n, float *out, cudaStream_t s); /* threads from n on leave before the barriers */
cudaError_t k_votes(int *out, cudaStream_t s);          /* __syncthreads_count, _or, _and */
cudaError_t k_divergent(float *out, cudaStream_t s);
cudaError_t k_absent(float *out, cudaStream_t s); /* shuffles from a lane that has left */
cudaError_t k_overrun(float *out, cudaStream_t s);
cudaError_t k_empty(unsigned grid, unsigned block, size_t shared, cudaStream_t s);
cudaError_t k_opt_in(int bytes);
cudaError_t k_spin_stack(float *out, cudaStream_t s); /* needs more stack than a thread has */
#ifdef __cplusplus
}
#endif
#endif
