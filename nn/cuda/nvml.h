/* Internal to nn/cuda: what NVML knows of a GPU, where it is installed. Any thread; no call of CUDA. */
#ifndef DP_NN_CUDA_NVML_H
#define DP_NN_CUDA_NVML_H
#include "../../dp/base/base.h"

typedef struct dp_nvml dp_nvml;
dp_nvml *dp_nvml_open(const char *pci); /* NULL: not known. All other calls take that */
void dp_nvml_close(dp_nvml *n);
int64_t dp_nvml_free(const dp_nvml *n);                            /* bytes of device memory that nobody has; -1: not known */
int dp_nvml_health(dp_nvml *n, int64_t held, dp_device_health *h); /* held: our own memory, bytes. 0: not known */
/* The number of the last critical error (Xid) of the GPU since open; waits for it at most so long. 0: none, or not known. */
int dp_nvml_xid(dp_nvml *n, unsigned wait_ms);
/* Who else has memory: "2 processes (5.1 GB: 812, 90.0 MB: 977)"; 0: not known, e.g. in a container. */
int dp_nvml_others(const dp_nvml *n, char *text, size_t size);
#endif
