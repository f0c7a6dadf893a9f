/* Internal: counter-based random numbers, for C and CUDA alike. Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random
 * numbers: as easy as 1, 2, 3", SC 2011. A draw is a pure function of (seed, purpose, sample, epoch, element), so it does not
 * depend on the device, the position in the batch, the number of threads, or what was drawn before. */
#ifndef DP_BASE_PHILOX_H
#define DP_BASE_PHILOX_H
#include <stdint.h>
#ifdef __CUDACC__
#define DP_HD __host__ __device__
#else
#define DP_HD
#endif

typedef struct dp_u32x4 {
    uint32_t v[4];
} dp_u32x4;

static inline DP_HD dp_u32x4 dp_philox(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    dp_u32x4 r;
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1, c3 = (uint32_t)p0, c0 = n0, c2 = n2;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    r.v[0] = c0, r.v[1] = c1, r.v[2] = c2, r.v[3] = c3;
    return r;
}

/* The four draws of elements 4 * quad .. 4 * quad + 3. `purpose` is the hash of a layer's or a purpose's name. */
static inline DP_HD dp_u32x4 dp_draw(uint64_t seed, uint32_t purpose, uint64_t sample, uint64_t epoch, uint32_t quad)
{
    return dp_philox(seed, quad, purpose ^ (uint32_t)(sample >> 32), (uint32_t)sample, (uint32_t)epoch);
}

/* Uniform in [0, 1) with 24 bits: exact in float. */
static inline DP_HD float dp_uniform(uint32_t u)
{
    return (float)(u >> 8) * (1.0f / 16777216.0f);
}
#endif
