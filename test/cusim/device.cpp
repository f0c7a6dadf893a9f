// Devices: choice, attributes, peers, versions, names of errors.
#include "internal.h"
#include <cstdio>
#include <cstring>

using namespace cusim;

namespace cusim {

static cudaError_t valid(int device)
{
    return device < 0 || (size_t)device >= devices.size() ? cudaErrorInvalidDevice : cudaSuccess;
}

static bool can_reach(int a, int b) // under world
{
    return a != b && env_int("CUSIM_PEERS", 1) && !pair_fault("nopeer", a, b);
}

} // namespace cusim

API cudaGetDeviceCount(int *n)
{
    ENTER(0);
    *n = (int)devices.size();
    return result(*n ? cudaSuccess : cudaErrorNoDevice);
}

API cudaSetDevice(int device)
{
    ENTER(0);
    if (valid(device)) return result(cudaErrorInvalidDevice);
    current = device;
    Lock l(world);
    Device &d = here();
    if (!d.context) { // since CUDA 12 the choice itself makes the context
        d.context = true;
        d.taken += CONTEXT_BYTES;
        counters.contexts++;
    }
    return result(d.error);
}

API cudaGetDevice(int *device)
{
    ENTER(0);
    *device = current < 0 ? 0 : current;
    return cudaSuccess;
}

API cudaDeviceGetAttribute(int *value, cudaDeviceAttr which, int device)
{
    ENTER(0);
    const int arch = env_int("CUSIM_ARCH", 80);
    if (valid(device)) return result(cudaErrorInvalidDevice);
    switch (which) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxGridDimX: *value = 0x7fffffff; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 99 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 100 << 10; break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = 32; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = env_int("CUSIM_SMS", 4); break;
    case cudaDevAttrComputeCapabilityMajor: *value = arch / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = arch % 10; break;
    case cudaDevAttrClockRate: *value = 1000000; break;
    case cudaDevAttrMemoryClockRate: *value = 1000000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 256; break;
    case cudaDevAttrL2CacheSize: *value = 4 << 20; break;
    case cudaDevAttrComputeMode: *value = cudaComputeModeDefault; break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrHostRegisterSupported: *value = 1; break;
    case cudaDevAttrAsyncEngineCount: *value = 2; break;
    case cudaDevAttrIntegrated:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrPageableMemoryAccess:
    case cudaDevAttrKernelExecTimeout:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrEccEnabled:
    case cudaDevAttrTccDriver:
    case cudaDevAttrIsMultiGpuBoard:
    case cudaDevAttrPciDomainId:
    case cudaDevAttrPciDeviceId: *value = 0; break;
    case cudaDevAttrPciBusId: *value = device + 1; break;
    default: die("cudaDeviceGetAttribute: attribute %d is not modelled", (int)which);
    }
    return cudaSuccess;
}

API cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    ENTER(0);
    if (valid(device)) return result(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "cusim GPU");
    p->totalGlobalMem = devices[(size_t)device].limit;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = 99 << 10;
    p->regsPerBlock = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->multiProcessorCount = env_int("CUSIM_SMS", 4);
    p->major = env_int("CUSIM_ARCH", 80) / 10;
    p->minor = env_int("CUSIM_ARCH", 80) % 10;
    p->maxThreadsPerMultiProcessor = 2048;
    p->pciBusID = device + 1;
    return cudaSuccess;
}

API cudaDeviceGetPCIBusId(char *id, int size, int device)
{
    ENTER(0);
    if (valid(device)) return result(cudaErrorInvalidDevice);
    snprintf(id, (size_t)size, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

API cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER(CONTEXT | ALIVE);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}

API cudaDeviceReset(void)
{
    Hidden h;
    die("cudaDeviceReset: the context is shared, it must not be reset");
}

API cudaDriverGetVersion(int *v)
{
    ENTER(0);
    *v = env_int("CUSIM_DRIVER", CUDART_VERSION);
    return cudaSuccess;
}
API cudaRuntimeGetVersion(int *v)
{
    ENTER(0);
    *v = CUDART_VERSION;
    return cudaSuccess;
}

// -- peers --

API cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    ENTER(0);
    if (valid(device) || valid(peer)) return result(cudaErrorInvalidDevice);
    Lock l(world);
    *can = can_reach(device, peer);
    return cudaSuccess;
}

API cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    ENTER(CONTEXT | ALIVE | UNSAFE);
    if (flags) return result(cudaErrorInvalidValue);
    if (valid(peer)) return result(cudaErrorInvalidDevice);
    Lock l(world);
    Device &d = here();
    if (!can_reach(d.index, peer)) return result(d.index == peer ? cudaErrorInvalidDevice : cudaErrorPeerAccessUnsupported);
    if (d.peers >> peer & 1) return result(cudaErrorPeerAccessAlreadyEnabled);
    if (__builtin_popcount(d.peers) >= most_peers()) return result(cudaErrorTooManyPeers);
    Device &p = devices[(size_t)peer];
    if (!p.context) {
        p.context = true;
        p.taken += CONTEXT_BYTES;
        counters.contexts++;
    }
    d.peers |= 1u << peer;
    return cudaSuccess;
}

API cudaDeviceDisablePeerAccess(int peer)
{
    ENTER(CONTEXT | ALIVE | UNSAFE);
    if (valid(peer)) return result(cudaErrorInvalidDevice);
    Lock l(world);
    if (!(here().peers >> peer & 1)) return result(cudaErrorPeerAccessNotEnabled);
    here().peers &= ~(1u << peer);
    return cudaSuccess;
}

// -- names --

namespace cusim {
static const struct {
    cudaError_t code;
    const char *name, *text;
} names[] = {
#define NAME(code, text) {code, #code, text}
    NAME(cudaSuccess, "no error"),
    NAME(cudaErrorInvalidValue, "invalid argument"),
    NAME(cudaErrorMemoryAllocation, "out of memory"),
    NAME(cudaErrorInitializationError, "initialization error"),
    NAME(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    NAME(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    NAME(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable"),
    NAME(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    NAME(cudaErrorInvalidDevice, "invalid device ordinal"),
    NAME(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    NAME(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices"),
    NAME(cudaErrorNvlinkUncorrectable, "uncorrectable NVLink error detected during the execution"),
    NAME(cudaErrorContained, "Invalid access of peer GPU memory over nvlink or a hardware error"),
    NAME(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    NAME(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    NAME(cudaErrorNotReady, "device not ready"),
    NAME(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    NAME(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    NAME(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    NAME(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    NAME(cudaErrorContextIsDestroyed, "context is destroyed"),
    NAME(cudaErrorAssert, "device-side assert triggered"),
    NAME(cudaErrorTooManyPeers, "peer mapping resources exhausted"),
    NAME(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
    NAME(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
    NAME(cudaErrorHardwareStackError, "hardware stack error"),
    NAME(cudaErrorIllegalInstruction, "an illegal instruction was encountered"),
    NAME(cudaErrorMisalignedAddress, "misaligned address"),
    NAME(cudaErrorInvalidAddressSpace, "operation not supported on global/shared address space"),
    NAME(cudaErrorInvalidPc, "invalid program counter"),
    NAME(cudaErrorLaunchFailure, "unspecified launch failure"),
    NAME(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    NAME(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    NAME(cudaErrorStreamCaptureUnmatched, "capture was not initiated in this stream"),
    NAME(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    NAME(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    NAME(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
    NAME(cudaErrorStreamCaptureWrongThread, "attempt to terminate a thread-local capture sequence from another thread"),
    NAME(cudaErrorExternalDevice, "an async error has occured in external entity outside of CUDA"),
    NAME(cudaErrorUnknown, "unknown error"),
#undef NAME
};
} // namespace cusim

extern "C" const char *CUDARTAPI cudaGetErrorName(cudaError_t e)
{
    for (const auto &n : names)
        if (n.code == e) return n.name;
    return "unrecognized error code";
}
extern "C" const char *CUDARTAPI cudaGetErrorString(cudaError_t e)
{
    for (const auto &n : names)
        if (n.code == e) return n.text;
    return "unrecognized error code";
}
