/* Internal to nn/cpu/vec: names and vector types of the build for one instruction set. A vector has as many lanes as the widest
 * register: wider generic vectors are lowered badly by gcc 12. Scalar tails call the same functions on scalars, so they give
 * the bits that a lane gives; multiply-add is fused where the processor can, always explicitly: gcc never contracts. */
#ifndef DP_NN_CPU_VEC_ISA_H
#define DP_NN_CPU_VEC_ISA_H
#include "../vec.h"
#include <immintrin.h>
#include <string.h>

#define DP_JOIN2(a, b) a##_##b
#define DP_JOIN(a, b)  DP_JOIN2(a, b)
#define DP_VEC(name)   DP_JOIN(name, DP_ISA)
#define DP_TEXT2(a)    #a
#define DP_TEXT(a)     DP_TEXT2(a)
/* The arrays of this loop are equal or disjoint (vec.h): no dependence between different elements. */
#define DP_IVDEP _Pragma("GCC ivdep")

#if defined(__AVX512F__)
enum { DP_LANES = 16 };
#elif defined(__AVX2__)
enum { DP_LANES = 8 };
#else
enum { DP_LANES = 4 };
#endif
typedef float vf __attribute__((vector_size(4 * DP_LANES)));
typedef int32_t vi __attribute__((vector_size(4 * DP_LANES)));

static inline vf vload(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void vstore(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}
/* The first n lanes; the others are 0, or stay in memory. */
static inline vf vload_part(const float *p, int n)
{
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#elif defined(__AVX2__)
    const vi lane = {0, 1, 2, 3, 4, 5, 6, 7};
    return (vf)_mm256_maskload_ps(p, (__m256i)(lane < n));
#else
    vf v = {0};
    for (int i = 0; i < n; i++) v[i] = p[i];
    return v;
#endif
}
static inline void vstore_part(float *p, vf v, int n)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#elif defined(__AVX2__)
    const vi lane = {0, 1, 2, 3, 4, 5, 6, 7};
    _mm256_maskstore_ps(p, (__m256i)(lane < n), (__m256)v);
#else
    for (int i = 0; i < n; i++) p[i] = v[i];
#endif
}
static inline vf vset(float x)
{
    return x - (vf){0};
}
static inline vi viset(int32_t x)
{
    return x - (vi){0};
}
/* m ? a : b for a mask of all ones or zeros per lane */
static inline vf vselect(vi m, vf a, vf b)
{
    return (vf)((m & (vi)a) | (~m & (vi)b));
}

/* One bit per lane of such a mask. */
static inline uint32_t vbits(vi m)
{
#if defined(__AVX512F__)
    return _mm512_movepi32_mask((__m512i)m);
#elif defined(__AVX2__)
    return (uint32_t)_mm256_movemask_ps((__m256)m);
#else
    return (uint32_t)_mm_movemask_ps((__m128)m);
#endif
}

static inline float fmadd(float a, float b, float c) /* a b + c */
{
#ifdef __FMA__
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}
static inline vf vfmadd(vf a, vf b, vf c)
{
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* Sums of long rows: eight doubles (one cache line), folded as ((0+4)+(2+6)) + ((1+5)+(3+7)). */
typedef double v8d __attribute__((vector_size(64)));
typedef float v8f __attribute__((vector_size(32)));
static inline double v8d_fold(const v8d *v)
{
    double l[8];
    memcpy(l, v, sizeof l);
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

/* exp to 1e-7 relative: 2^n (1 + r + r^2 q(r)), n = round(x / ln 2), ln 2 in two parts. q is a minimax fit on +-ln(2)/2.
 * 0 below -86.9 (no denormals), infinity above 88.7, NaN stays. */
static inline float exp_one(float x)
{
    const float shifter = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    float big = fmadd(x, 1.44269504f, shifter), n = big - shifter;
    float r = fmadd(n, -0.693145751953125f, x);
    r = fmadd(n, -1.42860677e-6f, r);
    float q = fmadd(r, 0.00138146110f, 0.00836871003f);
    q = fmadd(q, r, 0.0416683874f);
    q = fmadd(q, r, 0.166665207f);
    q = fmadd(q, r, 0.499999935f);
    float e = fmadd(r * r, q, r) + 1.0f;
    union {
        float f;
        uint32_t u;
    } bits = {big}, half = {0};
    half.u = (bits.u << 23) + 0x3F000000u; /* 2^(n - 1): n may be 128, which is no exponent */
    e = (e + e) * half.f;
    e = x > 88.7f ? __builtin_inff() : e; /* out of range the above is arbitrary */
    return x < -86.9f ? 0.0f : e;
}

extern const dp_vec_flat DP_VEC(dp_vec_flat);
extern const dp_vec_optimizer DP_VEC(dp_vec_optimizer);
extern const dp_vec_convert DP_VEC(dp_vec_convert);
extern const dp_vec_pointwise DP_VEC(dp_vec_pointwise);
extern const dp_vec_softmax DP_VEC(dp_vec_softmax);
extern const dp_vec_norm DP_VEC(dp_vec_norm);
extern const dp_vec_pool DP_VEC(dp_vec_pool);
extern const dp_vec_dropout DP_VEC(dp_vec_dropout);
extern const dp_vec_attention DP_VEC(dp_vec_attention);
extern const dp_vec DP_VEC(dp_vec_table);
#endif
