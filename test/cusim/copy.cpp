// Copies and fills. Each reads its source and writes its target when its stream gets to it, in two halves; pageable memory is staged at
// the time of the call on the way to a device, and waited for on the way back.
#include "internal.h"
#include <cstring>
#include <unistd.h>

namespace cusim {

struct Side {
    char *at;
    int device; // -1: host
    bool pageable;
};

static Side side(const void *p, size_t n, const char *what)
{
    Side s{};
    s.device = owner(p);
    if (s.device >= 0) { // copies may use two devices without peer access: the driver stages them
        s.at = (char *)reach(p, n, s.device, what);
        return s;
    }
    Lock l(world);
    s.at = (char *)const_cast<void *>(p);
    s.pageable = !pinned(p, n);
    return s;
}

// memcpy is seen by ThreadSanitizer even from code that is not instrumented.
static void move(char *dst, const char *src, size_t n, int from, int to)
{
    int us = 0;
    bool corrupt;
    {
        Hidden h;
        Lock l(world);
        corrupt = pair_fault("corrupt", from, to);
        pair_fault("slow", from, to, &us);
        while (pair_fault("stall", from, to)) wait_release(l);
    }
    if (us) usleep((unsigned)us);
    static const bool late = env_int("CUSIM_JITTER_US", 0) > 0;
    const size_t half = random_below(2) ? n / 2 : n - n / 2;
    memcpy(dst + half, src + half, n - half);
    if (late) usleep(random_below((unsigned)env_int("CUSIM_JITTER_US", 0)));
    memcpy(dst, src, half);
    if (corrupt) dst[n / 2] = (char)(dst[n / 2] ^ 0x10);
}

static bool allowed(cudaMemcpyKind kind, int to, int from)
{
    switch (kind) {
    case cudaMemcpyHostToDevice: return to >= 0 && from < 0;
    case cudaMemcpyDeviceToHost: return to < 0 && from >= 0;
    case cudaMemcpyDeviceToDevice: return to >= 0 && from >= 0;
    case cudaMemcpyHostToHost: return to < 0 && from < 0;
    case cudaMemcpyDefault: return true;
    }
    return false;
}

static cudaError_t copy(void *dst, const void *src, size_t n, cudaMemcpyKind kind, cudaStream_t s, const char *what)
{
    if (!n) return cudaSuccess;
    const Side to = side(dst, n, what), from = side(src, n, what);
    if (!allowed(kind, to.device, from.device)) return cudaErrorInvalidValue;
    {
        Lock l(world);
        for (int d : {to.device, from.device, s->device->index})
            if (d >= 0 && devices[(size_t)d].error) return devices[(size_t)d].error;
        if (s->capture && (to.pageable || from.pageable)) {
            s->capture->broken = true;
            return cudaErrorStreamCaptureUnsupported;
        }
        const bool apart = to.device >= 0 && from.device >= 0 && to.device != from.device;
        if (apart && !(devices[(size_t)to.device].peers >> from.device & 1) && !(devices[(size_t)from.device].peers >> to.device & 1))
            counters.unmapped_copies++;
        if (to.pageable || from.pageable) counters.pageable_copies++;
        if (to.pageable) counters.blocking++;
    }
    const int t = to.device < 0 ? CUSIM_HOST : to.device, f = from.device < 0 ? CUSIM_HOST : from.device;
    char *const a = to.at, *const b = from.at;
    const auto book = [=] {
        Hidden h;
        Lock l(world);
        counters.bytes[f][t] += (int64_t)n;
    };
    if (from.pageable) {
        auto staged = std::make_shared<std::vector<char>>(n);
        {
            Visible v; // the caller's own read
            memcpy(staged->data(), src, n);
        }
        if (const cudaError_t e = submit(s, Op{Kind::copy, what, [=] { book(), move(a, staged->data(), n, f, t); }})) return e;
    } else {
        if (const cudaError_t e = submit(s, Op{Kind::copy, what, [=] { book(), move(a, b, n, f, t); }})) return e;
    }
    if (!to.pageable) return cudaSuccess;
    synchronize(s);
    Lock l(world);
    return s->device->error;
}

// The copies without a stream belong to the default stream, which waits for none of the others' streams.
static cudaError_t blocking(void *dst, const void *src, size_t n, cudaMemcpyKind kind)
{
    cudaStream_t s = make_stream(cudaStreamNonBlocking, 0);
    cudaError_t e = copy(dst, src, n, kind, s, "cudaMemcpy");
    synchronize(s);
    Lock l(world);
    if (!e) e = s->device->error;
    close_stream(l, s);
    return e;
}

static cudaError_t fill(void *p, int value, size_t n, cudaStream_t s)
{
    if (!n) return cudaSuccess;
    if (s->device->error) return s->device->error;
    void *const at = reach(p, n, s->device->index, "cudaMemsetAsync");
    return submit(s, Op{Kind::fill, "cudaMemsetAsync", [=] { memset(at, value, n); }});
}

} // namespace cusim

using namespace cusim;

API cudaMemcpyAsync(void *dst, const void *src, size_t n, cudaMemcpyKind kind, cudaStream_t s)
{
    ENTER(CONTEXT | ALIVE);
    check_stream(s);
    return result(copy(dst, src, n, kind, s, "cudaMemcpyAsync"));
}
API cudaMemcpyPeerAsync(void *dst, int to, const void *src, int from, size_t n, cudaStream_t s)
{
    ENTER(CONTEXT | ALIVE);
    check_stream(s);
    if (owner(dst) != to || owner(src) != from) return result(cudaErrorInvalidValue);
    return result(copy(dst, src, n, cudaMemcpyDeviceToDevice, s, "cudaMemcpyPeerAsync"));
}
API cudaMemcpy(void *dst, const void *src, size_t n, cudaMemcpyKind kind)
{
    ENTER(CONTEXT | ALIVE | UNSAFE | BLOCKS);
    return result(blocking(dst, src, n, kind));
}
API cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s)
{
    ENTER(CONTEXT | ALIVE);
    check_stream(s);
    return result(fill(p, value, n, s));
}
API cudaMemset(void *p, int value, size_t n)
{
    ENTER(CONTEXT | ALIVE | UNSAFE);
    cudaStream_t s = make_stream(cudaStreamNonBlocking, 0);
    const cudaError_t e = fill(p, value, n, s);
    Lock l(world);
    close_stream(l, s);
    return result(e);
}
