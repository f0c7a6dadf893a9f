// Memory of devices and page-locked memory of the host. A device address is one that the host cannot touch; kernels and copies get an
// alias of it after the checks. Fresh and freed memory is NaN; a zone behind each allocation shows writes past its end when it is freed.
#include "internal.h"
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace cusim {

constexpr size_t UNIT = 256, ZONE = 256;
constexpr int ZONE_BYTE = 0xCB;
struct Locked {
    size_t n;
    bool registered;
};
static auto &locked = *new std::map<char *, Locked>; // page-locked host memory

int owner(const void *p)
{
    for (const Device &d : devices)
        if ((const char *)p >= d.guard && (const char *)p < d.guard + ADDRESSES) return d.index;
    return -1;
}

bool pinned(const void *p, size_t n)
{
    auto at = locked.upper_bound((char *)p);
    if (at == locked.begin()) return false;
    --at;
    return (const char *)p + n <= at->first + at->second.n;
}

bool allocated(const void *p)
{
    Lock l(world);
    const int o = owner(p);
    if (o < 0) return false;
    const Device &d = devices[(size_t)o];
    const size_t at = (size_t)((const char *)p - d.guard);
    const auto block = d.used.upper_bound(at);
    return block != d.used.begin() && at <= std::prev(block)->first + std::prev(block)->second;
}

void *reach(const void *p, size_t n, int device, const char *what)
{
    if (!p) return nullptr;
    Lock l(world);
    const int o = owner(p);
    if (o < 0) {
        if (!pinned(p, n ? n : 1)) die("%s on device %d is given pageable host memory", what, device);
        return const_cast<void *>(p);
    }
    Device &d = devices[(size_t)o];
    if (o != device && !(devices[(size_t)device].peers >> o & 1))
        die("%s on device %d is given memory of device %d, to which it has no peer access", what, device, o);
    const size_t at = (size_t)((const char *)p - d.guard);
    auto block = d.used.upper_bound(at);
    if (block == d.used.begin() || at > std::prev(block)->first + std::prev(block)->second)
        die("%s on device %d is given memory that was freed or never allocated", what, device);
    --block;
    if (at + n > block->first + block->second)
        die("%s on device %d: %zu bytes run past the end of an allocation of %zu", what, device, n, block->second);
    return d.alias + at;
}

} // namespace cusim

using namespace cusim;

API cudaMalloc(void **p, size_t n)
{
    ENTER(CONTEXT | ALIVE | UNSAFE);
    Lock l(world);
    Device &d = here();
    const size_t size = (n + UNIT - 1) / UNIT * UNIT;
    if (!n) {
        *p = nullptr;
        return cudaSuccess;
    }
    if (size > d.limit || d.taken > d.limit - size) return result(cudaErrorMemoryAllocation);
    std::deque<size_t> &unused = d.unused[size];
    size_t at = d.end;
    if (unused.size() > 2) { // the oldest: what was just freed stays poisoned for a while
        at = unused.front();
        unused.pop_front();
    } else {
        if (d.end + size + ZONE > ADDRESSES) return result(cudaErrorMemoryAllocation);
        d.end += size + ZONE;
    }
    d.used[at] = n;
    d.taken += size;
    memset(d.alias + at, 0xFF, n);
    memset(d.alias + at + n, ZONE_BYTE, size + ZONE - n);
    counters.allocations++;
    counters.live_allocations++;
    counters.live_bytes += (int64_t)size;
    *p = d.guard + at;
    return cudaSuccess;
}

API cudaFree(void *p)
{
    ENTER(CONTEXT | ALIVE | UNSAFE | BLOCKS);
    if (!p) return cudaSuccess;
    const int o = owner(p);
    if (o < 0) return result(cudaErrorInvalidValue);
    Device &d = devices[(size_t)o];
    drain(d);
    Lock l(world);
    const size_t at = (size_t)((char *)p - d.guard);
    const auto block = d.used.find(at);
    if (block == d.used.end()) return result(cudaErrorInvalidValue);
    const size_t n = block->second, size = (n + UNIT - 1) / UNIT * UNIT;
    for (size_t i = n; i < size + ZONE; i++)
        if ((unsigned char)d.alias[at + i] != ZONE_BYTE)
            die("cudaFree: something wrote %zu bytes past the end of an allocation of %zu bytes on device %d", i - n + 1, n, o);
    memset(d.alias + at, 0xFF, n);
    d.used.erase(block);
    d.unused[size].push_back(at);
    d.taken -= size;
    counters.live_allocations--;
    counters.live_bytes -= (int64_t)size;
    return cudaSuccess;
}

API cudaMemGetInfo(size_t *unused, size_t *total)
{
    ENTER(CONTEXT | ALIVE);
    Lock l(world);
    *total = here().limit;
    *unused = here().limit - here().taken;
    return cudaSuccess;
}

API cudaHostAlloc(void **p, size_t n, unsigned flags)
{
    ENTER(CONTEXT | ALIVE | UNSAFE);
    if (flags & ~(unsigned)(cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined))
        return result(cudaErrorInvalidValue);
    Lock l(world);
    *p = nullptr;
    if (!n) return cudaSuccess;
    void *at = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return result(cudaErrorMemoryAllocation);
    locked[(char *)at] = Locked{n, false};
    counters.pinned++;
    counters.live_pinned++;
    *p = at;
    return cudaSuccess;
}
API cudaMallocHost(void **p, size_t n)
{
    return cudaHostAlloc(p, n, cudaHostAllocDefault);
}
API cudaFreeHost(void *p)
{
    ENTER(CONTEXT | ALIVE | UNSAFE | BLOCKS);
    if (!p) return cudaSuccess;
    for (Device &d : devices)
        if (d.context) drain(d);
    Lock l(world);
    const auto at = locked.find((char *)p);
    if (at == locked.end() || at->second.registered) return result(cudaErrorInvalidValue);
    munmap(p, at->second.n);
    locked.erase(at);
    counters.live_pinned--;
    return cudaSuccess;
}

API cudaHostRegister(void *p, size_t n, unsigned flags)
{
    ENTER(CONTEXT | ALIVE | UNSAFE);
    if (!p || !n) return result(cudaErrorInvalidValue);
    if (flags & ~(unsigned)(cudaHostRegisterPortable | cudaHostRegisterMapped)) die("cudaHostRegister: flags %u are not modelled", flags);
    Lock l(world);
    const auto next = locked.lower_bound((char *)p + n);
    if (next != locked.begin() && std::prev(next)->first + std::prev(next)->second.n > (char *)p)
        return result(cudaErrorHostMemoryAlreadyRegistered);
    locked[(char *)p] = Locked{n, true};
    counters.pinned++;
    counters.live_pinned++;
    return cudaSuccess;
}

API cudaHostUnregister(void *p)
{
    ENTER(CONTEXT | ALIVE | UNSAFE | BLOCKS);
    Lock l(world);
    const auto at = locked.find((char *)p);
    if (at == locked.end() || !at->second.registered) return result(cudaErrorHostMemoryNotRegistered);
    locked.erase(at);
    counters.live_pinned--;
    return cudaSuccess;
}

API cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    ENTER(CONTEXT | ALIVE);
    Lock l(world);
    if (flags || !pinned(host, 1)) return result(cudaErrorInvalidValue);
    *device = host;
    return cudaSuccess;
}

API cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p)
{
    ENTER(CONTEXT);
    Lock l(world);
    const int o = owner(p);
    *a = cudaPointerAttributes{};
    a->device = o < 0 ? 0 : o;
    a->type = o >= 0 ? cudaMemoryTypeDevice : pinned(p, 1) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    a->devicePointer = a->type == cudaMemoryTypeUnregistered ? nullptr : const_cast<void *>(p);
    a->hostPointer = o < 0 ? const_cast<void *>(p) : nullptr;
    return cudaSuccess;
}
