/* Rows of a softmax and of the losses. Sums run in eight double lanes in a fixed order. */
#include "isa.h"
#include <math.h>

static float max(const float *x, int64_t n)
{
    vf m = vset(-INFINITY);
    vi nan = {0};
    int64_t i = 0;
    for (; i + DP_LANES <= n; i += DP_LANES) {
        vf v = vload(x + i);
        m = vselect(v > m, v, m);
        nan |= v != v;
    }
    float best = -INFINITY;
    int any = 0;
    for (int lane = 0; lane < DP_LANES; lane++) {
        best = m[lane] > best ? m[lane] : best;
        any |= nan[lane];
    }
    for (; i < n; i++) {
        best = x[i] > best ? x[i] : best;
        any |= x[i] != x[i];
    }
    return any ? NAN : best;
}

static double sum(const float *x, int64_t n)
{
    v8d s = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        v8f f;
        memcpy(&f, x + i, sizeof f);
        s += __builtin_convertvector(f, v8d);
    }
    for (int lane = 0; i < n; i++, lane++) s[lane] += (double)x[i];
    return v8d_fold(&s);
}

static double dot(const float *a, const float *b, int64_t n)
{
    v8d s = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        v8f f, g;
        memcpy(&f, a + i, sizeof f);
        memcpy(&g, b + i, sizeof g);
        s += __builtin_convertvector(f, v8d) * __builtin_convertvector(g, v8d);
    }
    for (int lane = 0; i < n; i++, lane++) s[lane] += (double)a[i] * (double)b[i];
    return v8d_fold(&s);
}

static double exp_sum(float *y, const float *x, float shift, int64_t n)
{
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) y[i] = exp_one(x[i] - shift);
    return sum(y, n);
}

static void scale(float *y, const float *x, float a, float b, int64_t n)
{
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) y[i] = fmadd(a, x[i], b);
}

static void backward(float *dx, const float *dy, const float *y, float d, int64_t n)
{
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) dx[i] = y[i] * (dy[i] - d);
}

static double mse(float *dx, const float *x, const float *t, int64_t n)
{
    v8d s = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        v8f a, b;
        memcpy(&a, x + i, sizeof a);
        memcpy(&b, t + i, sizeof b);
        v8d d = __builtin_convertvector(a - b, v8d);
        s += d * d;
    }
    for (int lane = 0; i < n; i++, lane++) {
        double d = (double)(x[i] - t[i]);
        s[lane] += d * d;
    }
    if (dx) {
        DP_IVDEP
        for (int64_t j = 0; j < n; j++) dx[j] = 2.0f * (x[j] - t[j]);
    }
    return v8d_fold(&s);
}

const dp_vec_softmax DP_VEC(dp_vec_softmax) = {max, exp_sum, sum, dot, scale, backward, mse};
