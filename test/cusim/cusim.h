/* cusim for tests: what the program did to the simulated GPUs, and faults to meet. C API; see README.md. */
#ifndef CUSIM_H
#define CUSIM_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

enum { CUSIM_DEVICES_MAX = 16, CUSIM_HOST = CUSIM_DEVICES_MAX };

typedef struct cusim_counters {
    /* since the last reset */
    int64_t launches;        /* kernels given to streams (a captured one does not count) */
    int64_t library_calls;   /* cublasLt and cuDNN work, the same */
    int64_t copies, fills;   /* the same */
    int64_t graph_launches;  /* one each, whatever is in the graph */
    int64_t graph_nodes;     /* kernels, library calls, copies and fills that these launches held */
    int64_t allocations;     /* cudaMalloc */
    int64_t pinned;          /* cudaHostAlloc, cudaMallocHost, cudaHostRegister */
    int64_t streams, events; /* created */
    int64_t descriptors;     /* of libraries, created */
    int64_t blocking;        /* calls that wait for a device: synchronize, free, copies with pageable memory, find, ... */
    int64_t contexts;        /* made, by whatever call came first */
    int64_t implicit;        /* calls of threads that had chosen no device: they went to device 0 */
    int64_t pageable_copies; /* copies with host memory that is not page-locked */
    int64_t unmapped_copies; /* copies between devices without peer access */
    int64_t captured_loads;  /* kernels whose first launch on their device was in a capture */
    int64_t bytes[CUSIM_DEVICES_MAX + 1][CUSIM_DEVICES_MAX + 1]; /* copied, [from][to]; CUSIM_HOST is the host */
    /* now */
    int64_t live_bytes, live_allocations, live_pinned, live_streams, live_events, live_graphs, live_handles, live_descriptors;
} cusim_counters;

void cusim_read(cusim_counters *c);
void cusim_reset(void);               /* counts since now; what lives is not touched */
int64_t cusim_calls(const char *api); /* calls of one function since the reset: "cudaMalloc" */
int cusim_has_context(int device);    /* 1: made by some call */

/* Faults; several may be set, here or in the environment (CUSIM_FAULTS, separated by commas or blanks). n counts from 1 and from now.
 *   fail:API:n:code     the n-th call of API returns code; a code that ends a context ends the current device's
 *   die:DEV:n:code      the n-th piece of work that device DEV starts ends its context: code comes back from later calls
 *   hang:DEV:n          the n-th piece of work never ends (until cusim_release)
 *   corrupt:FROM:TO     copies FROM -> TO flip a bit ("h" is the host)
 *   nopeer:A:B          device A cannot reach B
 *   stall:FROM:TO       copies FROM -> TO never end (until cusim_release)
 *   slow:FROM:TO:us     copies FROM -> TO take this much longer
 *   peers:n             at most n peers of a device: "too many" then
 *   lt:none             cublasLt finds no algorithm;  lt:epilogue  none with an epilogue
 *   dnn:none            cuDNN finds no algorithm */
void cusim_fault(const char *spec);
void cusim_release(void); /* ends hangs and stalls and takes all faults back; a device that died stays dead */

#ifdef __cplusplus
}
#endif
#endif
