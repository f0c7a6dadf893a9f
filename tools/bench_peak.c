/* What one core can do: independent multiply-adds on registers, best of a few short runs. Shares of peak are taken of this. */
#include "bench.h"
#include <stdlib.h>
#include <time.h>

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Twelve chains hide the latency of a multiply-add on every core that has two such units. Intrinsics, since gcc lowers
 * wide vector types of a function with a target attribute to narrow ones. */
enum { CHAINS = 12, ROUNDS = 100000, RUNS = 20 };

#if defined(__x86_64__)
#include <immintrin.h>
__attribute__((target("avx512f"))) static float run_512(void)
{
    __m512 a[CHAINS], m = _mm512_set1_ps(0.999999f), b = _mm512_set1_ps(1e-6f), sum = _mm512_setzero_ps();
    for (int c = 0; c < CHAINS; c++) a[c] = _mm512_set1_ps((float)c);
    for (int r = 0; r < ROUNDS; r++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++) a[c] = _mm512_fmadd_ps(a[c], m, b);
    for (int c = 0; c < CHAINS; c++) sum = _mm512_add_ps(sum, a[c]);
    return _mm512_reduce_add_ps(sum);
}
__attribute__((target("avx2,fma"))) static float run_256(void)
{
    __m256 a[CHAINS], m = _mm256_set1_ps(0.999999f), b = _mm256_set1_ps(1e-6f), sum = _mm256_setzero_ps();
    for (int c = 0; c < CHAINS; c++) a[c] = _mm256_set1_ps((float)c);
    for (int r = 0; r < ROUNDS; r++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++) a[c] = _mm256_fmadd_ps(a[c], m, b);
    for (int c = 0; c < CHAINS; c++) sum = _mm256_add_ps(sum, a[c]);
    return _mm256_cvtss_f32(sum);
}
#endif
static float run_plain(void)
{
    float a[CHAINS], sum = 0;
    for (int c = 0; c < CHAINS; c++) a[c] = (float)c;
    for (int r = 0; r < ROUNDS; r++)
        for (int c = 0; c < CHAINS; c++) a[c] = a[c] * 0.999999f + 1e-6f;
    for (int c = 0; c < CHAINS; c++) sum += a[c];
    return sum;
}

double bench_peak(void)
{
    float (*loop)(void) = run_plain;
    double lanes = 1, best = 0;
    volatile float keep;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        loop = run_512, lanes = 16;
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        loop = run_256, lanes = 8;
#endif
    for (int i = 0; i < RUNS; i++) {
        double begin = bench_now();
        keep = loop();
        double rate = 2 * lanes * CHAINS * ROUNDS / (bench_now() - begin);
        if (rate > best) best = rate;
    }
    (void)keep;
    return best;
}

/* ---- middle values ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n < 1 ? 0 : n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double bench_spread(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n < 1 ? 0 : (v[n - 1 - n / 4] - v[n / 4]) / 2;
}
