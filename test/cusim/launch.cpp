// Kernel launches: what the runtime refuses, and how arguments reach the device.
#include "internal.h"
#include "fiber.h"

namespace cusim {

static auto &opted = *new std::map<const void *, int>; // dynamic shared memory that a kernel may have, under world

int launch_device(cudaStream_t s)
{
    Hidden h;
    if (check_stream(s)) return -1;
    return s->device->index;
}

bool is_device_address(uint64_t word)
{
    if (owner((const void *)word) < 0) return false; // most words
    Hidden h;
    return allocated((const void *)word);
}

void *reach_argument(const void *p, int device, const char *kernel)
{
    Hidden h;
    return reach(p, 0, device, kernel);
}

static cudaError_t refused(const void *function, const char *name, dim3 grid, dim3 dim, size_t shared, cudaStream_t s)
{
    const uint64_t threads = (uint64_t)dim.x * dim.y * dim.z;
    Lock l(world);
    if (s->device->index != current) return cudaErrorInvalidResourceHandle;
    if (!threads || threads > 1024 || dim.z > 64) return cudaErrorInvalidConfiguration;
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    const auto o = opted.find(function);
    if (shared > (o == opted.end() ? 48u << 10 : (size_t)o->second)) return cudaErrorInvalidValue;
    calls[name]++;
    if (s->device->loaded.insert(function).second && s->capture) counters.captured_loads++;
    return cudaSuccess;
}

cudaError_t launch_work(const void *function, const char *name, dim3 grid, dim3 dim, size_t shared, cudaStream_t s,
                        std::function<void()> thread)
{
    Hidden h;
    if (const cudaError_t e = enter("launch", CONTEXT | ALIVE)) return result(e);
    if (const cudaError_t e = refused(function, name, grid, dim, shared, s)) return result(e);
    const int device = s->device->index;
    return result(submit(s, Op{Kind::kernel, name,
                               [=, t = std::move(thread)] { run_grid(name, device, grid, dim, shared, t); }}));
}

} // namespace cusim

using namespace cusim;

API cudaFuncSetAttribute(const void *function, cudaFuncAttribute which, int value)
{
    ENTER(CONTEXT | ALIVE);
    if (which != cudaFuncAttributeMaxDynamicSharedMemorySize && which != cudaFuncAttributePreferredSharedMemoryCarveout)
        die("cudaFuncSetAttribute: attribute %d is not modelled", (int)which);
    if (which == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
    if (value < 0 || (size_t)value > MOST_SHARED) return result(cudaErrorInvalidValue);
    Lock l(world);
    opted[function] = value;
    return cudaSuccess;
}

API cudaFuncGetAttributes(cudaFuncAttributes *a, const void *function)
{
    ENTER(CONTEXT | ALIVE);
    Lock l(world);
    here().loaded.insert(function); // it is loaded now
    *a = cudaFuncAttributes{};
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 32;
    a->maxDynamicSharedSizeBytes = opted.count(function) ? opted[function] : 48 << 10;
    a->binaryVersion = a->ptxVersion = env_int("CUSIM_ARCH", 80);
    return cudaSuccess;
}

API cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *, int block, size_t shared)
{
    ENTER(CONTEXT | ALIVE);
    if (block < 1 || block > 1024 || shared > MOST_SHARED) return result(cudaErrorInvalidValue);
    const int by_threads = 2048 / ((block + 31) / 32 * 32), by_shared = shared ? (int)((MOST_SHARED + 1024) / (shared + 1024)) : 32;
    *n = std::min(std::min(by_threads, by_shared), 32);
    return cudaSuccess;
}
