/* One head of attention over one sample, in blocks of queries so that scores stay near. All five products have the form
 * C = A B with rows of B, C contiguous and elements of A broadcast, so one tile of registers serves them; k, v, q and the output's
 * gradient are packed (padded with zeros to whole vectors, or transposed) once a head. Probabilities are not kept: backward
 * recomputes them from the scores and the row's log sum. */
#include "isa.h"
#include <math.h>

enum {
    BLOCK = 32,                    /* queries at a time */
    TILE = DP_LANES == 16 ? 8 : 4, /* rows of a register tile; two vectors wide */
    PAD = DP_HEAD_PAD
};

static inline int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* c (rows, 1 or 2 vectors) = or += a b; a[r * row + k * col]. */
static inline __attribute__((always_inline)) void tile(int rows, int vectors, float *c, int64_t ldc, const float *a,
                                                       int64_t row, int64_t col, const float *b, int64_t ldb, int64_t depth,
                                                       int add)
{
    vf sum[TILE][2];
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < vectors; v++) sum[r][v] = add ? vload(c + r * ldc + v * DP_LANES) : (vf){0};
    }
    for (int64_t k = 0; k < depth; k++) {
        vf line[2];
        for (int v = 0; v < vectors; v++) line[v] = vload(b + k * ldb + v * DP_LANES);
        for (int r = 0; r < rows; r++) {
            const vf x = vset(a[r * row + k * col]);
            for (int v = 0; v < vectors; v++) sum[r][v] = vfmadd(x, line[v], sum[r][v]);
        }
    }
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < vectors; v++) vstore(c + r * ldc + v * DP_LANES, sum[r][v]);
    }
}

/* c (rows <= TILE, n) = or += a (rows, depth) b (depth, n); n a multiple of PAD. */
static void strip(int64_t rows, int64_t n, float *c, int64_t ldc, const float *a, int64_t row, int64_t col, const float *b,
                  int64_t ldb, int64_t depth, int add)
{
    int64_t j = 0;
    if (rows == TILE) {
        for (; j + 2 * DP_LANES <= n; j += 2 * DP_LANES) tile(TILE, 2, c + j, ldc, a, row, col, b + j, ldb, depth, add);
        for (; j < n; j += DP_LANES) tile(TILE, 1, c + j, ldc, a, row, col, b + j, ldb, depth, add);
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        for (j = 0; j < n; j += DP_LANES) tile(1, 1, c + r * ldc + j, 0, a + r * row, 0, col, b + j, ldb, depth, add);
    }
}

/* dst (rows, padded) = src (rows, n) with zeros behind. */
static void pack(float *dst, int64_t padded, const float *src, int64_t stride, int64_t rows, int64_t n)
{
    for (int64_t r = 0; r < rows; r++, dst += padded, src += stride) {
        int64_t i = 0;
        for (; i + DP_LANES <= n; i += DP_LANES) vstore(dst + i, vload(src + i));
        for (; i < n; i++) dst[i] = src[i];
        for (; i < padded; i++) dst[i] = 0;
    }
}

static void unpack(float *dst, int64_t stride, const float *src, int64_t padded, int64_t rows, int64_t n)
{
    for (int64_t r = 0; r < rows; r++, dst += stride, src += padded) {
        DP_IVDEP
        for (int64_t i = 0; i < n; i++) dst[i] = src[i];
    }
}

/* Square of DP_LANES: exchange halves, quarters, ... of row pairs. */
static inline __attribute__((always_inline)) void turn(float *dst, int64_t ldd, const float *src, int64_t lds)
{
    vf v[DP_LANES];
    for (int i = 0; i < DP_LANES; i++) v[i] = vload(src + i * lds);
#pragma GCC unroll 4
    for (int s = 1; s < DP_LANES; s *= 2) {
        vi low, high;
        for (int l = 0; l < DP_LANES; l++) low[l] = l & s ? DP_LANES + (l ^ s) : l, high[l] = l & s ? DP_LANES + l : l | s;
        for (int i = 0; i < DP_LANES; i++) {
            if (i & s) continue;
            const vf a = v[i], b = v[i | s];
            v[i] = __builtin_shuffle(a, b, low);
            v[i | s] = __builtin_shuffle(a, b, high);
        }
    }
    for (int i = 0; i < DP_LANES; i++) vstore(dst + i * ldd, v[i]);
}

/* dst (n, padded) = src (rows, n) transposed, zeros behind row's end. */
static void pack_transposed(float *dst, int64_t padded, const float *src, int64_t stride, int64_t rows, int64_t n)
{
    for (int64_t r = 0; r < padded; r += DP_LANES) {
        int64_t i = 0;
        if (r + DP_LANES <= rows) {
            for (; i + DP_LANES <= n; i += DP_LANES) turn(dst + i * padded + r, padded, src + r * stride + i, stride);
        }
        for (; i < n; i++) {
            for (int64_t l = r; l < r + DP_LANES; l++) dst[i * padded + l] = l < rows ? src[l * stride + i] : 0;
        }
    }
}

/* Sum, or largest, of all lanes, in every lane. */
static inline vf fold(vf v, int largest)
{
#pragma GCC unroll 4
    for (int n = DP_LANES / 2; n; n /= 2) {
        vi turned;
        for (int l = 0; l < DP_LANES; l++) turned[l] = (l + n) % DP_LANES;
        const vf other = __builtin_shuffle(v, turned);
        v = largest ? vselect(other > v, other, v) : v + other;
    }
    return v;
}

/* Keys that queries up to `end` see, and that many rounded up to whole strips of a score row. */
static inline int64_t keys_of(const dp_head *h, int64_t end)
{
    return h->causal ? end : h->t;
}
static inline int64_t padded_keys(const dp_head *h, int64_t end)
{
    return (keys_of(h, end) + PAD - 1) / PAD * PAD;
}

/* Scores s (rows, padded) of queries first .. to exp(s * scale - the row's largest), zeros where a key is not seen. Loop by loop
 * over all rows, so that the constants of exp stay in registers. */
static void softmax(const dp_head *h, float *s, int64_t stride, int64_t rows, int64_t padded, int64_t first, float *top,
                    float *sum)
{
    vf most[TILE];
    for (int64_t r = 0; r < rows; r++) {
        float *x = s + r * stride;
        for (int64_t j = keys_of(h, first + r + 1); j < padded; j++) x[j] = -INFINITY;
        most[r] = vload(x);
        for (int64_t j = DP_LANES; j < padded; j += DP_LANES) {
            const vf v = vload(x + j);
            most[r] = vselect(v > most[r], v, most[r]);
        }
        top[r] = fold(most[r], 1)[0] * h->scale;
    }
    for (int64_t r = 0; r < rows; r++) {
        float *x = s + r * stride;
        DP_IVDEP
        for (int64_t j = 0; j < padded; j++) x[j] = exp_one(fmadd(x[j], h->scale, -top[r]));
    }
    for (int64_t r = 0; r < rows; r++) {
        vf v = {0};
        for (int64_t j = 0; j < padded; j += DP_LANES) v += vload(s + r * stride + j);
        sum[r] = fold(v, 0)[0];
    }
}

static void forward(const dp_head *h, const float *q, const float *k, const float *v, float *out, float *log_sum)
{
    const int64_t t = h->t, w = h->width, tp = (t + PAD - 1) / PAD * PAD, wp = (w + PAD - 1) / PAD * PAD;
    float *kt = h->work, *vp = kt + w * tp, *s = vp + t * wp, *o = s + TILE * tp;
    pack_transposed(kt, tp, k, h->stride, t, w);
    pack(vp, wp, v, h->stride, t, w);
    for (int64_t i = 0; i < t; i += TILE) {
        const int64_t rows = smaller(TILE, t - i), padded = padded_keys(h, i + rows);
        float top[TILE], sum[TILE];
        strip(rows, padded, s, tp, q + i * h->stride, h->stride, 1, kt, tp, w, 0);
        softmax(h, s, tp, rows, padded, i, top, sum);
        strip(rows, wp, o, wp, s, tp, 1, vp, wp, keys_of(h, i + rows), 0);
        for (int64_t r = 0; r < rows; r++) {
            const float inverse = 1.0f / sum[r];
            float *dst = out + (i + r) * h->out_stride;
            DP_IVDEP
            for (int64_t d = 0; d < w; d++) dst[d] = o[r * wp + d] * inverse;
            log_sum[i + r] = top[r] + logf(sum[r]);
        }
    }
}

/* Scores p and d_scores dp (rows, padded) of queries first .. to probabilities exp(scale p - log_sum) and to p (dp - delta) scale,
 * delta = the row's sum of p dp = that of out and its gradient; zeros where a key is not seen. */
static void gradient(const dp_head *h, float *p, float *dp, int64_t stride, int64_t rows, int64_t padded, int64_t first,
                     const float *log_sum, const float *delta)
{
    for (int64_t r = 0; r < rows; r++, p += stride, dp += stride) {
        DP_IVDEP
        for (int64_t j = 0; j < padded; j++) {
            const float e = exp_one(fmadd(p[j], h->scale, -log_sum[r]));
            p[j] = e;
            dp[j] = e * (dp[j] - delta[r]) * h->scale;
        }
        for (int64_t j = keys_of(h, first + r + 1); j < padded; j++) p[j] = dp[j] = 0;
    }
}

static void backward(const dp_head *h, const float *q, const float *k, const float *v, const float *out, const float *log_sum,
                     const float *d_out, float *dq, float *dk, float *dv)
{
    const int64_t t = h->t, w = h->width, tp = (t + PAD - 1) / PAD * PAD, wp = (w + PAD - 1) / PAD * PAD;
    float *kt = h->work, *vt = kt + w * tp, *kp = vt + w * tp, *qp = kp + t * wp, *gp = qp + t * wp, *dkp = gp + t * wp,
          *dvp = dkp + t * wp;
    float *p = dvp + t * wp, *ds = p + BLOCK * tp, *dqp = ds + BLOCK * tp;
    pack_transposed(kt, tp, k, h->stride, t, w);
    pack_transposed(vt, tp, v, h->stride, t, w);
    pack(kp, wp, k, h->stride, t, w);
    pack(qp, wp, q, h->stride, t, w);
    pack(gp, wp, d_out, h->out_stride, t, w);
    memset(dkp, 0, (size_t)(2 * t * wp) * sizeof *dkp);
    for (int64_t i = 0; i < t; i += BLOCK) {
        const int64_t block = smaller(BLOCK, t - i), seen = keys_of(h, i + block);
        for (int64_t r = 0; r < block; r += TILE) {
            const int64_t rows = smaller(TILE, block - r), first = i + r, padded = padded_keys(h, first + rows);
            float *pr = p + r * tp, *dsr = ds + r * tp, delta[TILE];
            strip(rows, padded, pr, tp, qp + first * wp, wp, 1, kt, tp, w, 0);
            strip(rows, padded, dsr, tp, gp + first * wp, wp, 1, vt, tp, w, 0);
            for (int64_t x = 0; x < rows; x++) {
                const float *g = gp + (first + x) * wp, *o = out + (first + x) * h->out_stride;
                vf sum = {0};
                int64_t d = 0;
                for (; d + DP_LANES <= w; d += DP_LANES) sum = vfmadd(vload(g + d), vload(o + d), sum);
                delta[x] = fold(sum, 0)[0];
                for (; d < w; d++) delta[x] = fmadd(g[d], o[d], delta[x]);
            }
            gradient(h, pr, dsr, tp, rows, padded, first, log_sum + first, delta);
            strip(rows, wp, dqp, wp, dsr, tp, 1, kp, wp, keys_of(h, first + rows), 0);
            unpack(dq + first * h->stride, h->stride, dqp, wp, rows, w);
        }
        for (int64_t j = 0; j < seen; j += TILE) {
            const int64_t rows = smaller(TILE, seen - j);
            const int64_t skip = h->causal && j > i ? j - i : 0; /* queries before key j do not see it */
            strip(rows, wp, dvp + j * wp, wp, p + skip * tp + j, 1, tp, gp + (i + skip) * wp, wp, block - skip, 1);
            strip(rows, wp, dkp + j * wp, wp, ds + skip * tp + j, 1, tp, qp + (i + skip) * wp, wp, block - skip, 1);
        }
    }
    unpack(dk, h->stride, dkp, wp, t, w);
    unpack(dv, h->stride, dvp, wp, t, w);
}

static int64_t work(int64_t t, int64_t w)
{
    const int64_t tp = (t + PAD - 1) / PAD * PAD, wp = (w + PAD - 1) / PAD * PAD;
    return 2 * w * tp + 5 * t * wp + 2 * BLOCK * tp + TILE * wp; /* of backward; forward needs less */
}

const dp_vec_attention DP_VEC(dp_vec_attention) = {work, forward, backward};
