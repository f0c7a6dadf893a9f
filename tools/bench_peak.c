/* What one core can do: independent multiply-adds on registers, best of a few short runs. Shares of peak are taken of this. */
#include "bench.h"
#include <time.h>

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { LANES = 16, CHAINS = 12, ROUNDS = 200000 };
typedef float lanes __attribute__((vector_size(LANES * 4)));

#define PEAK_LOOP                                                                                                              \
    lanes a[CHAINS], m, b;                                                                                                     \
    for (int i = 0; i < LANES; i++) m[i] = 0.999999f, b[i] = 1e-6f;                                                            \
    for (int c = 0; c < CHAINS; c++)                                                                                           \
        for (int i = 0; i < LANES; i++) a[c][i] = (float)(c + i);                                                              \
    for (int r = 0; r < ROUNDS; r++)                                                                                           \
        for (int c = 0; c < CHAINS; c++) a[c] = a[c] * m + b;                                                                  \
    float sum = 0;                                                                                                             \
    for (int c = 0; c < CHAINS; c++) sum += a[c][c];                                                                           \
    return sum

#if defined(__x86_64__)
__attribute__((target("arch=x86-64-v4,prefer-vector-width=512"), optimize("O3"))) static float run_v4(void)
{
    PEAK_LOOP;
}
__attribute__((target("arch=x86-64-v3"), optimize("O3"))) static float run_v3(void)
{
    PEAK_LOOP;
}
#endif
__attribute__((optimize("O3"))) static float run_base(void)
{
    PEAK_LOOP;
}

static float (*best_loop(void))(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) return run_v4;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return run_v3;
#endif
    return run_base;
}

double bench_peak(void)
{
    float (*loop)(void) = best_loop();
    volatile float keep = loop();
    double best = 0;
    for (int i = 0; i < 5; i++) {
        double begin = bench_now();
        keep = loop();
        double rate = 2.0 * LANES * CHAINS * ROUNDS / (bench_now() - begin);
        if (rate > best) best = rate;
    }
    (void)keep;
    return best;
}
