// The part of the driver API by which devices are listed. None of it makes a context.
#include "internal.h"
#include <cstdio>
#include <cstring>
#include <cuda.h>

using namespace cusim;

#define DRIVER extern "C" CUresult CUDAAPI
static CUresult begin(const char *name, int device)
{
    Hidden h;
    if (const cudaError_t e = enter(name, 0)) return (CUresult)e;
    if (devices.empty()) return CUDA_ERROR_NO_DEVICE;
    return (size_t)device < devices.size() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
#define BEGIN(device)                                                                                                          \
    if (const CUresult r_ = begin(__func__, device)) return r_

DRIVER cuInit(unsigned)
{
    BEGIN(0);
    return CUDA_SUCCESS;
}
DRIVER cuDriverGetVersion(int *v)
{
    *v = env_int("CUSIM_DRIVER", CUDA_VERSION);
    return CUDA_SUCCESS;
}
DRIVER cuDeviceGetCount(int *n)
{
    const CUresult r = begin(__func__, 0);
    *n = (int)devices.size();
    return r == CUDA_ERROR_NO_DEVICE ? CUDA_SUCCESS : r;
}
DRIVER cuDeviceGet(CUdevice *device, int ordinal)
{
    BEGIN(ordinal);
    *device = ordinal;
    return CUDA_SUCCESS;
}
DRIVER cuDeviceGetName(char *name, int size, CUdevice device)
{
    BEGIN(device);
    snprintf(name, (size_t)size, "cusim GPU");
    return CUDA_SUCCESS;
}
DRIVER cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    BEGIN(device);
    *bytes = devices[(size_t)device].limit;
    return CUDA_SUCCESS;
}
DRIVER cuDeviceGetUuid(CUuuid *id, CUdevice device)
{
    BEGIN(device);
    memset(id->bytes, 0xC5, sizeof id->bytes);
    id->bytes[15] = (char)device;
    return CUDA_SUCCESS;
}
DRIVER cuDeviceGetPCIBusId(char *id, int size, CUdevice device)
{
    BEGIN(device);
    snprintf(id, (size_t)size, "0000:%02x:00.0", device + 1);
    return CUDA_SUCCESS;
}
DRIVER cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device)
{
    BEGIN(device);
    if (which == CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) {
        *value = env_int("CUSIM_COMPUTE_MODE", CU_COMPUTEMODE_DEFAULT);
        return CUDA_SUCCESS;
    }
    return (CUresult)cudaDeviceGetAttribute(value, (cudaDeviceAttr)which, device); // the numbers are the same
}
DRIVER cuGetErrorName(CUresult e, const char **name)
{
    *name = e == CUDA_SUCCESS ? "CUDA_SUCCESS" : cudaGetErrorName((cudaError_t)e);
    return CUDA_SUCCESS;
}
