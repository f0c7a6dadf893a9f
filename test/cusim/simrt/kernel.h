// The kernel language: threads, blocks, shared memory, barriers, warps, atomics, launches.
#ifndef CUSIM_KERNEL_H
#define CUSIM_KERNEL_H
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

#undef __shared__
#define __shared__ static thread_local // a block runs on one thread of the host: all its GPU threads share it
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

namespace cusim
{
struct Block {
    uint3 id;
    dim3 dim, grid;
    void *dyn; // dynamic shared memory
    int device;
    const char *kernel;
};
struct Lane {
    uint3 id;
    unsigned index; // in the block
};
extern __thread Block *block;
extern __thread Lane *lane;
int barrier(const char *file, int line, int kind, int value);    // kind: 0 none, 1 or, 2 and, 3 count
uint64_t warp_exchange(unsigned mask, uint64_t value, int from); // from < 0 or > 31: own value
unsigned warp_vote(unsigned mask, bool value);
unsigned warp_active();
void fence();
[[noreturn]] void trap(const char *file, int line);

void *reach_argument(const void *p, int device, const char *kernel);
bool is_device_address(uint64_t word); // in a live allocation
int launch_device(cudaStream_t s);
cudaError_t launch_work(const void *function, const char *name, dim3 grid, dim3 dim, size_t shared, cudaStream_t s,
                        std::function<void()> thread);

// An argument as the kernel gets it: pointers into device memory become pointers that the kernel can follow. A structure is searched
// for words that are addresses in allocated device memory; specialise xl for one that needs something else.
template <class T> T xl(T v, int device, const char *kernel)
{
    if constexpr (std::is_pointer_v<T> && !std::is_function_v<std::remove_pointer_t<T>>) {
        return (T)reach_argument((const void *)v, device, kernel);
    } else if constexpr (std::is_class_v<T> && sizeof(T) >= 8 && alignof(T) >= 8) {
        static_assert(std::is_trivially_copyable_v<T>, "kernel arguments are copied by bytes");
        for (size_t at = 0; at + 8 <= sizeof(T); at += 8) {
            uint64_t word;
            memcpy(&word, (const char *)&v + at, 8);
            if (!is_device_address(word)) continue;
            word = (uint64_t)reach_argument((const void *)word, device, kernel);
            memcpy((char *)&v + at, &word, 8);
        }
        return v;
    } else {
        return v;
    }
}
// In a kernel: a device address that was read from memory.
template <class T> static inline T *at(T *p)
{
    return is_device_address((uint64_t)p) ? (T *)reach_argument((const void *)p, block->device, block->kernel) : p;
}

template <class... P, class... A>
cudaError_t launch(const char *name, void (*k)(P...), dim3 grid, dim3 dim, size_t shared, cudaStream_t s, A &&...a)
{
    static_assert(sizeof...(P) == sizeof...(A), "as many arguments as the kernel has");
    static_assert((0 + ... + ((sizeof(P) + 7) / 8 * 8)) <= 4096, "kernel arguments have 4 KB");
    const int device = launch_device(s);
    if (device < 0) return cudaErrorInvalidResourceHandle;
    const std::tuple<P...> t{xl<P>(a, device, name)...}; // evaluated now, as <<<>>> does
    return launch_work((const void *)k, name, grid, dim, shared, s, [k, t] { std::apply(k, t); });
}
template <class T> static inline T shuffle(unsigned mask, T v, int from)
{
    static_assert(sizeof v <= 8, "32 or 64 bits");
    uint64_t word = 0;
    memcpy(&word, &v, sizeof v);
    word = warp_exchange(mask, word, from);
    memcpy(&v, &word, sizeof v);
    return v;
}
static inline int group_first(int width)
{
    return (int)(lane->index & 31) & ~(width - 1);
}
} // namespace cusim

#define threadIdx (cusim::lane->id)
#define blockIdx  (cusim::block->id)
#define blockDim  (cusim::block->dim)
#define gridDim   (cusim::block->grid)
#define warpSize  32

#define __syncthreads()        ((void)cusim::barrier(__FILE__, __LINE__, 0, 0))
#define __syncthreads_or(p)    cusim::barrier(__FILE__, __LINE__, 1, (p) != 0)
#define __syncthreads_and(p)   cusim::barrier(__FILE__, __LINE__, 2, (p) != 0)
#define __syncthreads_count(p) cusim::barrier(__FILE__, __LINE__, 3, (p) != 0)
#define __trap()               cusim::trap(__FILE__, __LINE__)
static inline void __threadfence()
{
    cusim::fence();
}
static inline void __threadfence_block()
{
    cusim::fence();
}
static inline void __threadfence_system()
{
    cusim::fence();
}
static inline void __nanosleep(unsigned)
{
}

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    (void)cusim::warp_vote(mask & cusim::warp_active(), true);
}
static inline unsigned __activemask()
{
    return cusim::warp_active();
}
static inline unsigned __ballot_sync(unsigned mask, int p)
{
    return cusim::warp_vote(mask, p != 0);
}
static inline int __any_sync(unsigned mask, int p)
{
    return cusim::warp_vote(mask, p != 0) != 0;
}
static inline int __all_sync(unsigned mask, int p)
{
    return cusim::warp_vote(mask, p == 0) == 0;
}
template <class T> static inline T __shfl_sync(unsigned mask, T v, int from, int width = 32)
{
    return cusim::shuffle(mask, v, cusim::group_first(width) + (from & (width - 1)));
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int x, int width = 32)
{
    const int lane = (int)(cusim::lane->index & 31), from = lane ^ x;
    return cusim::shuffle(mask, v, from >= cusim::group_first(width) + width ? lane : from);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32)
{
    const int lane = (int)(cusim::lane->index & 31), from = lane + (int)by;
    return cusim::shuffle(mask, v, from >= cusim::group_first(width) + width ? lane : from);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32)
{
    const int lane = (int)(cusim::lane->index & 31), from = lane - (int)by;
    return cusim::shuffle(mask, v, from < cusim::group_first(width) ? lane : from);
}

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcg(const T *p)
{
    return *p;
}
template <class T> static inline T __ldca(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcv(const T *p)
{
    return *(const volatile T *)p;
}
template <class T> static inline void __stcg(T *p, T v)
{
    *p = v;
}
template <class T> static inline void __stcs(T *p, T v)
{
    *p = v;
}
template <class T> static inline void __stwt(T *p, T v)
{
    *p = v;
}

// Atomics by compare and exchange on the bytes, relaxed as on the device.
namespace cusim
{
template <class T, class F> static inline T atomic_change(T *p, F f)
{
    using Word = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
    Word before = __atomic_load_n((Word *)p, __ATOMIC_RELAXED), after;
    T v;
    do {
        memcpy(&v, &before, sizeof v);
        const T w = f(v);
        memcpy(&after, &w, sizeof w);
    } while (!__atomic_compare_exchange_n((Word *)p, &before, after, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return v;
}
template <class T> struct same_type {
    using type = T;
};
template <class T> using same = typename same_type<T>::type;
} // namespace cusim
template <class T> static inline T atomicAdd(T *p, cusim::same<T> v)
{
    return cusim::atomic_change(p, [v](T a) { return (T)(a + v); });
}
template <class T> static inline T atomicSub(T *p, cusim::same<T> v)
{
    return cusim::atomic_change(p, [v](T a) { return (T)(a - v); });
}
template <class T> static inline T atomicMax(T *p, cusim::same<T> v)
{
    static_assert(std::is_integral_v<T>, "CUDA has it for integers");
    return cusim::atomic_change(p, [v](T a) { return a < v ? v : a; });
}
template <class T> static inline T atomicMin(T *p, cusim::same<T> v)
{
    static_assert(std::is_integral_v<T>, "CUDA has it for integers");
    return cusim::atomic_change(p, [v](T a) { return v < a ? v : a; });
}
template <class T> static inline T atomicOr(T *p, cusim::same<T> v)
{
    return cusim::atomic_change(p, [v](T a) { return (T)(a | v); });
}
template <class T> static inline T atomicAnd(T *p, cusim::same<T> v)
{
    return cusim::atomic_change(p, [v](T a) { return (T)(a & v); });
}
template <class T> static inline T atomicXor(T *p, cusim::same<T> v)
{
    return cusim::atomic_change(p, [v](T a) { return (T)(a ^ v); });
}
template <class T> static inline T atomicExch(T *p, cusim::same<T> v)
{
    return cusim::atomic_change(p, [v](T) { return v; });
}
template <class T> static inline T atomicCAS(T *p, cusim::same<T> was, cusim::same<T> v)
{
    return cusim::atomic_change(p, [was, v](T a) { return a == was ? v : a; });
}
static inline unsigned atomicInc(unsigned *p, unsigned most)
{
    return cusim::atomic_change(p, [most](unsigned a) { return a >= most ? 0u : a + 1; });
}
#endif
