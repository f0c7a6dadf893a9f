/* Internal: the GPUs of this machine, asked of the driver alone: no context is made, nothing is linked, any thread. */
#ifndef DP_NN_CUDA_DRIVER_H
#define DP_NN_CUDA_DRIVER_H
#include "../dp/base/error.h"

typedef struct dp_cuda_gpu {
    char model[64], pci[16], uuid[48];
    int64_t memory; /* bytes */
    int arch;       /* compute capability, 10 * major + minor */
    int units;      /* multiprocessors */
    int prohibited; /* compute mode: no process may use it */
    int index;      /* the driver's; with DP_CUDA_LOGICAL several devices are one GPU */
} dp_cuda_gpu;

/* What a build of the backend can run on. Versions as CUDA writes them: 1000 * major + 10 * minor. */
typedef struct dp_cuda_build {
    int runtime;
    int ptx; /* the arch whose PTX is in it, 0: none; the driver compiles it for later ones */
    int n_arch;
    const int *arch; /* that it holds machine code for */
} dp_cuda_build;

/* How many GPUs the driver shows this process, and its version. Fails with one line that says why there is none. */
dp_status dp_cuda_count(int *n, int *driver, dp_error *err);
int dp_cuda_gpu_at(int i, dp_cuda_gpu *g); /* 0: no such; in the order in which the runtime counts too */
/* 1: the build runs there. Else why (size bytes) says what is missing, to stand behind "cuda:1 ". */
int dp_cuda_usable(const dp_cuda_gpu *g, int driver, const dp_cuda_build *b, char *why, size_t size);
/* Device i as dp_backend.enumerate gives it: 0 past the last. b NULL: there is no build, usable = 0 and the caller says why. */
int dp_cuda_info(int i, const dp_cuda_build *b, dp_device_info *info);
#endif
