// The ground under everything: messages, what ThreadSanitizer may see, the devices, and how every call begins.
#include "internal.h"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <sys/mman.h>

#ifdef CUSIM_TSAN
extern "C" {
void *__tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void *);
void *__tsan_get_current_fiber();
void __tsan_switch_to_fiber(void *, unsigned);
void __tsan_acquire(void *);
void __tsan_release(void *);
void __tsan_read_range(void *, unsigned long);
void __tsan_write_range(void *, unsigned long);
void AnnotateIgnoreSyncBegin(const char *, int);
void AnnotateIgnoreSyncEnd(const char *, int);
void AnnotateIgnoreReadsBegin(const char *, int);
void AnnotateIgnoreReadsEnd(const char *, int);
void AnnotateIgnoreWritesBegin(const char *, int);
void AnnotateIgnoreWritesEnd(const char *, int);
}
#define TSAN(...) __VA_ARGS__
#else
#define TSAN(...)
#endif

namespace cusim {

void die(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "cusim: FATAL: ");
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    abort();
}

// -- ThreadSanitizer --

#ifdef CUSIM_TSAN
static __thread int depth;
static void hide(bool on)
{
    if (on) {
        AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    } else {
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
        AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
    }
}
Hidden::Hidden()
{
    if (!depth++) hide(true);
}
Hidden::~Hidden()
{
    if (!--depth) hide(false);
}
Visible::Visible() : before(depth)
{
    if (before) hide(false);
    depth = 0;
}
Visible::~Visible()
{
    depth = before;
    if (before) hide(true);
}
#else
Hidden::Hidden() {}
Hidden::~Hidden() {}
Visible::Visible() : before(0) {}
Visible::~Visible() {}
#endif

void hb_release(const void *at)
{
    (void)at;
    TSAN(Visible v; __tsan_release(const_cast<void *>(at));)
}
void hb_acquire(const void *at)
{
    (void)at;
    TSAN(Visible v; __tsan_acquire(const_cast<void *>(at));)
}
void ts_read(const void *p, size_t n)
{
    (void)p, (void)n;
    TSAN(Visible v; __tsan_read_range(const_cast<void *>(p), n);)
}
void ts_write(void *p, size_t n)
{
    (void)p, (void)n;
    TSAN(Visible v; __tsan_write_range(p, n);)
}
bool racecheck = env_int("CUSIM_RACECHECK", 0) != 0;
void *ts_fiber_new()
{
    TSAN(return __tsan_create_fiber(0);)
    return nullptr;
}
void ts_fiber_free(void *f)
{
    (void)f;
    TSAN(__tsan_destroy_fiber(f);)
}
void *ts_fiber_current()
{
    TSAN(return __tsan_get_current_fiber();)
    return nullptr;
}
void ts_fiber_switch(void *f)
{
    (void)f;
    TSAN(__tsan_switch_to_fiber(f, 1);)
}

// -- small things --

int env_int(const char *name, int otherwise)
{
    const char *v = getenv(name);
    return v && *v ? atoi(v) : otherwise;
}

unsigned random_below(unsigned n)
{
    static unsigned threads;
    static thread_local std::minstd_rand generator;
    static thread_local bool seeded;
    if (!seeded) {
        seeded = true;
        generator.seed((unsigned)env_int("CUSIM_SEED", 1) * 7919u + __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED));
        generator.discard(8);
    }
    return n ? (unsigned)(generator() % n) : 0;
}

double now_ms()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

// -- devices --

std::mutex world;
std::vector<Device> &devices = *new std::vector<Device>; // never destroyed: streams' threads outlive main
thread_local int current = -1;
static thread_local cudaError_t last = cudaSuccess;

// The lower half of an address is above 2^31 for the first 2 GB: an int beside stale padding is then no device address (kernel.h, xl).
static char *reserve(int protection)
{
    constexpr uintptr_t four = 4ull << 30;
    void *p = mmap(nullptr, ADDRESSES + 2 * four, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) die("no address space for a device");
    return (char *)(((uintptr_t)p + four - 1) / four * four + four / 2);
}

static void start() // under world
{
    if (!devices.empty()) return;
    static bool started;
    if (started) return;
    started = true;
    const int n = env_int("CUSIM_DEVICES", 1), megabytes = env_int("CUSIM_MEMORY_MB", 4096);
    if (n < 0 || n > CUSIM_DEVICES_MAX) die("CUSIM_DEVICES is %d, of 0..%d", n, (int)CUSIM_DEVICES_MAX);
    devices = std::vector<Device>((size_t)n);
    for (int i = 0; i < n; i++) {
        devices[(size_t)i].index = i;
        devices[(size_t)i].guard = reserve(PROT_NONE);
        devices[(size_t)i].alias = reserve(PROT_READ | PROT_WRITE);
        devices[(size_t)i].limit = (size_t)megabytes << 20;
    }
    if (const char *faults = getenv("CUSIM_FAULTS")) {
        const std::string all = faults;
        for (size_t at = 0, end; at < all.size(); at = end + 1) {
            end = std::min(all.find_first_of(", ", at), all.size());
            if (end > at) {
                world.unlock();
                cusim_fault(all.substr(at, end - at).c_str());
                world.lock();
            }
        }
    }
}

bool sticky(cudaError_t e)
{
    switch (e) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown: return true;
    default: return false;
    }
}

void kill_device(Device &d, cudaError_t e)
{
    if (!d.error) d.error = e;
    for (CUstream_st *s : d.streams) s->room.notify_all();
}

Device &here()
{
    return devices[(size_t)(current < 0 ? 0 : current)];
}

cudaError_t result(cudaError_t e)
{
    if (e) last = e;
    return e;
}

cudaError_t enter(const char *name, int flags)
{
    Lock l(world);
    start();
    auto count = calls.find(name);
    if (count == calls.end()) count = calls.emplace(name, 0).first;
    count->second++;
    if (flags & BLOCKS) counters.blocking++;
    if (devices.empty() && flags) return cudaErrorNoDevice;
    if (flags & CONTEXT) {
        if (current < 0) {
            current = 0;
            counters.implicit++;
        }
        Device &d = here();
        if (!d.context) {
            d.context = true;
            d.taken += CONTEXT_BYTES;
            counters.contexts++;
        }
    }
    if (const cudaError_t e = call_fault(name)) {
        if (sticky(e)) kill_device(here(), e);
        return e;
    }
    if ((flags & ALIVE) && here().error) return here().error;
    if (flags & UNSAFE) {
        if (const std::shared_ptr<Capture> c = capture_of_thread()) {
            c->broken = true;
            return cudaErrorStreamCaptureUnsupported;
        }
    }
    return cudaSuccess;
}

} // namespace cusim

using namespace cusim;

// -- last error --

API cudaPeekAtLastError(void)
{
    Hidden h;
    Lock l(world);
    start();
    return current >= 0 && here().error ? here().error : last;
}
API cudaGetLastError(void)
{
    const cudaError_t e = cudaPeekAtLastError();
    last = cudaSuccess;
    return e;
}
