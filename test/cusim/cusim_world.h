/* For the tests of the simulator: two streams and two arrays of device 0, and checks that all is given back. */
#ifndef CUSIM_WORLD_H
#define CUSIM_WORLD_H
#include "cusim.h"
#include "kernels.h"
#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { N = 256 };
static inline cusim_counters counted(void)
{
    cusim_counters c;
    cusim_read(&c);
    return c;
}
#define OK(call)          assert_int_equal(call, cudaSuccess)
#define GIVES(code, call) (assert_int_equal(call, code), assert_int_equal(cudaGetLastError(), code))

typedef struct world {
    cudaStream_t s[2];
    float *d[2], *h; /* N floats each; h is page-locked */
} world;

static inline int setup(void **state)
{
    world *w = calloc(1, sizeof *w);
    OK(cudaSetDevice(0));
    for (int i = 0; i < 2; i++) {
        OK(cudaStreamCreateWithFlags(&w->s[i], cudaStreamNonBlocking));
        OK(cudaMalloc((void **)&w->d[i], N * sizeof(float)));
    }
    OK(cudaMallocHost((void **)&w->h, N * sizeof(float)));
    cusim_reset();
    *state = w;
    return 0;
}
static inline int teardown(void **state)
{
    world *w = *state;
    cusim_release();
    OK(cudaSetDevice(0));
    for (int i = 0; i < 2; i++) {
        OK(cudaStreamSynchronize(w->s[i]));
        OK(cudaStreamDestroy(w->s[i]));
        OK(cudaFree(w->d[i]));
    }
    OK(cudaFreeHost(w->h));
    OK(cudaGetLastError());
    const cusim_counters c = counted();
    assert_int_equal(c.live_allocations + c.live_pinned + c.live_streams + c.live_events + c.live_graphs, 0);
    free(w);
    return 0;
}

static inline void up(world *w, float *d, cudaStream_t s)
{
    OK(cudaMemcpyAsync(d, w->h, N * sizeof(float), cudaMemcpyHostToDevice, s));
}
static inline void down(world *w, const float *d, cudaStream_t s)
{
    OK(cudaMemcpyAsync(w->h, d, N * sizeof(float), cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
}

/* A gate holds a stream until it is opened. */
static inline void wait_gate(void *open)
{
    while (!atomic_load((atomic_int *)open)) usleep(100);
}

/* A thread that has chosen no device. */
static inline void *first_call(void *out)
{
    *(cudaError_t *)out = cudaFree(NULL);
    return NULL;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
#endif
