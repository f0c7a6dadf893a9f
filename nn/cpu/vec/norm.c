/* Batchnorm over wide rows and layernorm. Batchnorm reads its rows front to back, four at a time: that streams from memory for
 * any number of channels, and the tables (w) stay in L1. */
#include "isa.h"
#include <math.h>

static void moments(const float *x, int64_t n, int64_t w, const float *shift, float *sum, float *square)
{
    int64_t i = 0;
    for (; i + 4 * w <= n; i += 4 * w) {
        const float *a = x + i, *b = a + w, *c = b + w, *d = c + w;
        DP_IVDEP
        for (int64_t j = 0; j < w; j++) {
            float s = shift[j], p = a[j] - s, q = b[j] - s, r = c[j] - s, t = d[j] - s;
            sum[j] += (p + q) + (r + t);
            square[j] += fmadd(p, p, q * q) + fmadd(r, r, t * t);
        }
    }
    for (; i < n; i += w) {
        int64_t m = n - i < w ? n - i : w;
        DP_IVDEP
        for (int64_t j = 0; j < m; j++) {
            float p = x[i + j] - shift[j];
            sum[j] += p;
            square[j] = fmadd(p, p, square[j]);
        }
    }
}

static inline void apply_loop(float *y, const float *x, const float *other, int add, int relu, int64_t n, const dp_bn_tables *t)
{
    const float *k = t->k, *h = t->h;
    for (int64_t i = 0; i < n; i += t->w) {
        int64_t m = n - i < t->w ? n - i : t->w;
        DP_IVDEP
        for (int64_t j = 0; j < m; j++) {
            float v = fmadd(x[i + j], k[j], h[j]);
            if (add) v += other[i + j];
            y[i + j] = relu && v < 0.0f ? 0.0f : v;
        }
    }
}
static void apply(float *y, const float *x, const float *other, int relu, int64_t n, const dp_bn_tables *t)
{
    if (other && relu)
        apply_loop(y, x, other, 1, 1, n, t);
    else if (other)
        apply_loop(y, x, other, 1, 0, n, t);
    else if (relu)
        apply_loop(y, x, other, 0, 1, n, t);
    else
        apply_loop(y, x, other, 0, 0, n, t);
}

/* The gradient behind the mask; the loads stand before the choice, so that the loop vectorises. */
static inline float masked_at(const float *dy, const float *x, const float *y, int64_t i, float k, float h, dp_mask mask)
{
    float g = dy[i];
    if (mask == DP_MASK_NONE) return g;
    float v = mask == DP_MASK_INPUT ? fmadd(x[i], k, h) : y[i];
    return v <= 0.0f ? 0.0f : g;
}

static inline void reduce_loop(const float *dy, const float *x, const float *y, float *masked, dp_mask mask, int64_t n,
                               const dp_bn_tables *t, float *sum, float *product)
{
    const float *k = t->k, *h = t->h, *mean = t->mean;
    int64_t i = 0, w = t->w;
    for (; i + 4 * w <= n; i += 4 * w) {
        DP_IVDEP
        for (int64_t j = 0; j < w; j++) {
            float kj = k[j], hj = h[j], mj = mean[j];
            int64_t a = i + j, b = a + w, c = b + w, d = c + w;
            float ga = masked_at(dy, x, y, a, kj, hj, mask), gb = masked_at(dy, x, y, b, kj, hj, mask);
            float gc = masked_at(dy, x, y, c, kj, hj, mask), gd = masked_at(dy, x, y, d, kj, hj, mask);
            sum[j] += (ga + gb) + (gc + gd);
            product[j] += fmadd(ga, x[a] - mj, gb * (x[b] - mj)) + fmadd(gc, x[c] - mj, gd * (x[d] - mj));
            if (mask == DP_MASK_OUTPUT) masked[a] = ga, masked[b] = gb, masked[c] = gc, masked[d] = gd;
        }
    }
    for (; i < n; i += w) {
        int64_t m = n - i < w ? n - i : w;
        DP_IVDEP
        for (int64_t j = 0; j < m; j++) {
            float g = masked_at(dy, x, y, i + j, k[j], h[j], mask);
            sum[j] += g;
            product[j] = fmadd(g, x[i + j] - mean[j], product[j]);
            if (mask == DP_MASK_OUTPUT) masked[i + j] = g;
        }
    }
}
static void reduce(const float *dy, const float *x, const float *y, float *masked, dp_mask mask, int64_t n,
                   const dp_bn_tables *t, float *sum, float *product)
{
    if (mask == DP_MASK_NONE)
        reduce_loop(dy, x, y, masked, DP_MASK_NONE, n, t, sum, product);
    else if (mask == DP_MASK_INPUT)
        reduce_loop(dy, x, y, masked, DP_MASK_INPUT, n, t, sum, product);
    else
        reduce_loop(dy, x, y, masked, DP_MASK_OUTPUT, n, t, sum, product);
}

static inline void backward_loop(float *dx, const float *dy, const float *x, dp_mask mask, int64_t n, const dp_bn_tables *t)
{
    const float *k = t->k, *h = t->h, *mean = t->mean, *a = t->a, *p = t->p, *c = t->c;
    for (int64_t i = 0; i < n; i += t->w) {
        int64_t m = n - i < t->w ? n - i : t->w;
        DP_IVDEP
        for (int64_t j = 0; j < m; j++) {
            float g = masked_at(dy, x, NULL, i + j, k[j], h[j], mask);
            dx[i + j] = a[j] * (fmadd(mean[j] - x[i + j], p[j], g) - c[j]);
        }
    }
}
static void backward(float *dx, const float *dy, const float *x, dp_mask mask, int64_t n, const dp_bn_tables *t)
{
    if (mask == DP_MASK_INPUT)
        backward_loop(dx, dy, x, DP_MASK_INPUT, n, t);
    else
        backward_loop(dx, dy, x, DP_MASK_NONE, n, t);
}

/* ---- layernorm ---- */

/* Halves added until one lane is left. */
static inline float fold(vf v)
{
#if defined(__AVX512F__)
    v += __builtin_shuffle(v, (vi){8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
    v += __builtin_shuffle(v, (vi){4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
    v += __builtin_shuffle(v, (vi){2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
#elif defined(__AVX2__)
    v += __builtin_shuffle(v, (vi){4, 5, 6, 7, 0, 1, 2, 3});
    v += __builtin_shuffle(v, (vi){2, 3, 0, 1, 6, 7, 4, 5});
#else
    v += __builtin_shuffle(v, (vi){2, 3, 0, 1});
#endif
    return v[0] + v[1];
}

static void layernorm(float *y, const float *x, const float *weight, const float *bias, float eps, int64_t n, float *mean,
                      float *inv_std)
{
    int64_t body = n / DP_LANES * DP_LANES;
    vf s = {0};
    for (int64_t i = 0; i < body; i += DP_LANES) s += vload(x + i);
    for (int64_t i = body; i < n; i++) s[i - body] += x[i];
    float m = fold(s) / (float)n;
    vf q = {0}, vm = vset(m);
    for (int64_t i = 0; i < body; i += DP_LANES) {
        vf d = vload(x + i) - vm;
        q = vfmadd(d, d, q);
    }
    for (int64_t i = body; i < n; i++) q[i - body] = fmadd(x[i] - m, x[i] - m, q[i - body]);
    float r = 1.0f / sqrtf(fold(q) / (float)n + eps);
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) y[i] = fmadd((x[i] - m) * r, weight[i], bias[i]);
    if (mean) *mean = m, *inv_std = r;
}

/* dx = r (u - mean(u) - xhat mean(u xhat)), u = dy weight */
static void layernorm_backward(float *dx, const float *dy, const float *x, const float *weight, float mean, float inv_std,
                               int64_t n, float *dw, float *db)
{
    int64_t body = n / DP_LANES * DP_LANES;
    if (dw) {
        DP_IVDEP
        for (int64_t i = 0; i < n; i++) {
            dw[i] = fmadd(dy[i], (x[i] - mean) * inv_std, dw[i]);
            db[i] += dy[i];
        }
    }
    if (!dx) return;
    vf s = {0}, q = {0}, vm = vset(mean), vr = vset(inv_std);
    for (int64_t i = 0; i < body; i += DP_LANES) {
        vf u = vload(dy + i) * vload(weight + i);
        s += u;
        q = vfmadd(u, (vload(x + i) - vm) * vr, q);
    }
    for (int64_t i = body; i < n; i++) {
        float u = dy[i] * weight[i];
        s[i - body] += u;
        q[i - body] = fmadd(u, (x[i] - mean) * inv_std, q[i - body]);
    }
    float a = fold(s) / (float)n, b = fold(q) / (float)n;
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) {
        float u = dy[i] * weight[i], xhat = (x[i] - mean) * inv_std;
        dx[i] = inv_std * (u - fmadd(xhat, b, a));
    }
}

const dp_vec_norm DP_VEC(dp_vec_norm) = {moments, apply, reduce, backward, layernorm, layernorm_backward};
