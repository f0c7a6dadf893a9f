/* Devices: listed through the driver alone, opened by a worker, which gets the primary context. That context is shared with whatever else in
 * the process uses CUDA: it is never reset, and none of its flags or limits are changed. */
#include "../../dp/base/text.h"
#include "cuda.h"
#include "near.h"
#include "nvtx.h"
#include "nvml.h"
#include "plugin.h"
#include "tune.h"

int dp_cuda_enumerate(int i, dp_device_info *info)
{
    return dp_cuda_info(i, &dp_cuda_built, info);
}

/* The first runtime calls of the thread, so that no other device ever gets a context. */
static dp_status start(dp_be_device *d, dp_error *err)
{
    const cudaError_t e = cudaSetDevice(d->gpu);
    int major = 0, minor = 0, shared = 0;
    if (e == cudaErrorDevicesUnavailable) {
        (void)cudaGetLastError();
        return dp_fail(err, DP_EDEVICE,
                       "%s (%s, %s) is busy: another process has it, and its compute mode lets only one in (nvidia-smi -c 0 "
                       "changes that).",
                       d->name, d->pci, d->model);
    }
    DP_TRY(dp_cuda_check(d, e, "cudaSetDevice", err));
    DP_CUDA_TRY(d, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, d->gpu), err);
    DP_CUDA_TRY(d, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, d->gpu), err);
    DP_CUDA_TRY(d, cudaDeviceGetAttribute(&d->sms, cudaDevAttrMultiProcessorCount, d->gpu), err);
    DP_CUDA_TRY(d, cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, d->gpu), err);
    d->arch = 10 * major + minor;
    d->shared_max = (size_t)shared;
    return DP_OK;
}

/* With the first call of a process comes the context: what it takes is the library's too, and only NVML can tell. */
static dp_status start_counted(dp_be_device *d, dp_error *err)
{
    const int64_t before = dp_nvml_free(d->nvml);
    DP_TRY(start(d, err));
    const int64_t after = dp_nvml_free(d->nvml);
    if (before < 0 || after < 0 || after >= before) return DP_OK;
    return dp_memory_add(&d->memory, DP_MEM_LIBRARY, before - after, "CUDA context", err);
}

dp_status dp_cuda_open(dp_be_device **out, const dp_be_options *o, dp_error *err)
{
    dp_device_info info;
    dp_cuda_gpu gpu;
    dp_status status = DP_OK;
    dp_be_device *d = dp_calloc(1, sizeof *d);
    if (!d) return dp_fail(err, DP_ENOMEM, "Out of memory: device cuda:%d", o->index);
    d->options = *o;
    d->memory.limit = o->memory_limit;
    d->call = "";
    if (!dp_cuda_enumerate(o->index, &info) || !dp_cuda_gpu_at(o->index, &gpu)) {
        status = dp_fail(err, DP_EDEVICE, "cuda:%d is not among the GPUs that the driver shows.", o->index);
    } else if (!info.usable) {
        status = dp_fail(err, DP_EDEVICE, "%s (%s, %s) %s.", info.name, info.pci, info.model, info.why);
    } else {
        dp_format(d->name, sizeof d->name, "%s", info.name);
        dp_format(d->pci, sizeof d->pci, "%s", info.pci);
        dp_format(d->model, sizeof d->model, "%s", info.model);
        d->gpu = gpu.index;
        (void)dp_cuda_go_near(DP_CUDA_SYSFS, d->pci);
        d->nvml = dp_nvml_open(d->pci);
        status = start_counted(d, err);
    }
    if (status) goto fail;
    const dp_cuda_mark before = dp_cuda_mark_memory(d);
    dp_cuda_range_open(d);
    status = dp_cuda_clock_open(d, err);
    if (!status) status = dp_lt_open(d, err);
    if (!status) status = dp_cuda_book_library(d, &before, "cublasLt", err);
    if (status) goto fail;
    *out = d;
    return DP_OK;
fail:
    dp_cuda_close(d);
    return status;
}

void dp_cuda_close(dp_be_device *d)
{
    if (!d) return;
    dp_dnn_close(d); /* of a lost device only host memory goes */
    dp_lt_close(d);
    dp_cuda_clock_close(d);
    dp_nvml_close(d->nvml);
    dp_tune_close(d);
    free(d);
}

int dp_cuda_health(dp_be_device *d, dp_device_health *h)
{
    return dp_nvml_health(d->nvml, __atomic_load_n(&d->memory.total_live, __ATOMIC_RELAXED), h);
}

void dp_cuda_bind(dp_be_device *d)
{
    if (!dp_cuda_lost(d)) (void)dp_cuda_check(d, cudaSetDevice(d->gpu), "cudaSetDevice", NULL);
}
