/* Internal to nn/cuda: what NVML knows, where it is installed. */
#ifndef DP_NN_CUDA_NVML_H
#define DP_NN_CUDA_NVML_H
#include <stdint.h>
int64_t dp_nvml_free(const char *pci); /* bytes of device memory that nobody has; -1: not known */
#endif
