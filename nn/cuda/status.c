/* Failures of a device. Soft ones (no memory, a call that cannot be) leave the context alive. Hard ones end the process' use of the
 * device: the code comes back from every later call, so the device is marked and never touched again, not even to free. */
#include "cuda.h"
#include "../../dp/base/text.h"
#include "nvml.h"

enum { XID_WAIT_MS = 50 }; /* the driver writes it down about when the call fails */

int dp_cuda_hard(cudaError_t e)
{
    switch (e) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown: return 1; /* unknown: the driver's own state is in doubt */
    default: return 0;
    }
}

dp_status dp_cuda_failed(dp_be_device *d, dp_status status, int code, const char *call, const char *code_name, dp_error *err)
{
    const int name = (int)strcspn(call, "(");
    __atomic_store_n(&d->error, code, __ATOMIC_RELAXED);
    __atomic_store_n(&d->call, call, __ATOMIC_RELAXED);
    if (status == DP_EDEVICE_LOST) {
        char xid[64] = "";
        __atomic_store_n(&d->lost, 1, __ATOMIC_RELAXED);
        const int number = dp_nvml_xid(d->nvml, XID_WAIT_MS);
        if (number) dp_format(xid, sizeof xid, " The driver reported Xid %d.", number);
        return dp_fail(err, status,
                       "%s (%s, %s): %.*s returned %d (%s), maybe for work given before; the device is lost to this process, "
                       "what it held is left as it is.%s",
                       d->name, d->pci, d->model, name, call, code, code_name, xid);
    }
    return dp_fail(err, status, "%s (%s, %s): %.*s returned %d (%s).", d->name, d->pci, d->model, name, call, code, code_name);
}

dp_status dp_cuda_check(dp_be_device *d, cudaError_t e, const char *call, dp_error *err)
{
    if (e == cudaSuccess) return DP_OK;
    if (dp_cuda_hard(e)) return dp_cuda_failed(d, DP_EDEVICE_LOST, (int)e, call, cudaGetErrorName(e), err);
    (void)cudaGetLastError(); /* or the next launch would report it again */
    return dp_cuda_failed(d, e == cudaErrorMemoryAllocation ? DP_ENOMEM : DP_EDEVICE, (int)e, call, cudaGetErrorName(e), err);
}

dp_status dp_cuda_settle(dp_be_stream *s)
{
    if (s->device->options.debug_sync && !s->marking) DP_CUDA_TRY(s->device, cudaStreamSynchronize(s->stream), NULL);
    return DP_OK;
}

dp_status dp_cuda_gone(const dp_be_device *d, dp_error *err)
{
    const char *call = __atomic_load_n(&d->call, __ATOMIC_RELAXED);
    char xid[32] = "";
    const int number = dp_nvml_xid(d->nvml, 0);
    if (number) dp_format(xid, sizeof xid, ", Xid %d", number);
    return dp_fail(err, DP_EDEVICE_LOST, "%s (%s, %s) was lost before (%.*s returned %d%s).", d->name, d->pci, d->model,
                   (int)strcspn(call, "("), call, __atomic_load_n(&d->error, __ATOMIC_RELAXED), xid);
}
