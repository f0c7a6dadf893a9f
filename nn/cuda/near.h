/* Internal to nn/cuda: which processors are near a device. */
#ifndef DP_NN_CUDA_NEAR_H
#define DP_NN_CUDA_NEAR_H
#define DP_CUDA_SYSFS "/sys/bus/pci/devices"
/* The calling thread keeps to those processors of its own that lie on the device's memory node. Returns how many these are, 0: not known
 * or none, and nothing has changed. `root` is DP_CUDA_SYSFS but for tests. */
int dp_cuda_go_near(const char *root, const char *pci);
#endif
