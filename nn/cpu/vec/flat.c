/* Sums over flat arrays. */
#include "isa.h"

static void add(float *dst, const float *a, const float *b, int64_t n)
{
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) dst[i] = a[i] + b[i];
}

static void accumulate(double *dst, const float *x, int64_t n)
{
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) dst[i] += (double)x[i];
}

/* Four rows at a time: a quarter of the traffic on `sum`, and a shorter chain of roundings. */
static void columns(float *sum, const float *x, int64_t rows, int64_t n)
{
    int64_t r = 0;
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (; r + 4 <= rows; r += 4) {
        const float *a = x + r * n, *b = a + n, *c = b + n, *d = c + n;
        DP_IVDEP
        for (int64_t i = 0; i < n; i++) sum[i] += (a[i] + b[i]) + (c[i] + d[i]);
    }
    for (; r < rows; r++) add(sum, sum, x + r * n, n);
}

/* Squares of floats are exact in double, so a fused multiply-add would give the same bits. */
static double sumsq(const float *x, int64_t n)
{
    v8d sum = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        v8f f;
        memcpy(&f, x + i, sizeof f);
        v8d d = __builtin_convertvector(f, v8d);
        sum += d * d;
    }
    for (int lane = 0; i < n; i++, lane++) sum[lane] += (double)x[i] * (double)x[i];
    return v8d_fold(&sum);
}

static uint64_t checksum(const float *x, int64_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < (uint32_t)n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        sum += (uint64_t)bits * (2 * i + 1);
    }
    return sum;
}

const dp_vec_flat DP_VEC(dp_vec_flat) = {add, accumulate, columns, sumsq, checksum};
