/* Dropout masks: Philox4x32-10 as in dp/base/philox.h, a quad of draws per vector lane; kept as one bit per element. */
#include "isa.h"

/* 32-bit words in lanes of 64 bits; what stands in the upper halves does not count. */
typedef uint64_t vq __attribute__((vector_size(4 * DP_LANES)));
enum { HALF = DP_LANES / 2, BATCH = 2 * HALF }; /* quads in a vector; two vectors at once hide the multiplier's latency */

static inline vq multiply(vq a, uint32_t b) /* lower halves to 64 bits */
{
    vq m = (uint64_t)b - (vq){0};
#if defined(__AVX512F__)
    return (vq)_mm512_mul_epu32((__m512i)a, (__m512i)m);
#elif defined(__AVX2__)
    return (vq)_mm256_mul_epu32((__m256i)a, (__m256i)m);
#else
    return (vq)_mm_mul_epu32((__m128i)a, (__m128i)m);
#endif
}

typedef struct counter {
    vq c[4];
} counter;
static inline counter round_of(counter x, uint32_t k0, uint32_t k1) /* of dp_philox */
{
    vq p0 = multiply(x.c[0], 0xD2511F53u), p1 = multiply(x.c[2], 0xCD9E8D57u);
    return (counter){{(p1 >> 32) ^ x.c[1] ^ (uint64_t)k0, p1, (p0 >> 32) ^ x.c[3] ^ (uint64_t)k1, p0}};
}

/* One bit for each of the 4 HALF elements: 1 = draw >> 8 >= limit. */
static inline uint64_t compare(counter x, uint32_t limit)
{
    const uint64_t low = 0xFFFFFFFFu;
    vq words[2], a = (x.c[0] & low) | (x.c[1] << 32), b = (x.c[2] & low) | (x.c[3] << 32);
#if defined(__AVX512F__)
    words[0] = __builtin_shuffle(a, b, (vq){0, 8, 1, 9, 2, 10, 3, 11});
    words[1] = __builtin_shuffle(a, b, (vq){4, 12, 5, 13, 6, 14, 7, 15});
#elif defined(__AVX2__)
    words[0] = __builtin_shuffle(a, b, (vq){0, 4, 1, 5});
    words[1] = __builtin_shuffle(a, b, (vq){2, 6, 3, 7});
#else
    words[0] = __builtin_shuffle(a, b, (vq){0, 2});
    words[1] = __builtin_shuffle(a, b, (vq){1, 3});
#endif
    uint64_t bits = 0;
    for (int i = 0; i < 2; i++) bits |= (uint64_t)vbits((((vi)words[i] >> 8) & 0xFFFFFF) >= (int32_t)limit) << (i * DP_LANES);
    return bits;
}

static void draw(uint64_t *bits, int64_t n, uint64_t seed, uint32_t purpose, uint64_t id, uint64_t epoch, uint32_t limit)
{
    const uint64_t c1 = purpose ^ (uint32_t)(id >> 32);
    vq lane;
    for (int i = 0; i < HALF; i++) lane[i] = (uint64_t)i;
    for (int64_t word = 0; word * 64 < n; word++) {
        bits[word] = 0;
        for (int first = 0; first < 16; first += BATCH) {
            uint64_t quad = (uint64_t)word * 16 + (uint64_t)first;
            counter x = {{lane + quad, c1 - (vq){0}, id - (vq){0}, epoch - (vq){0}}}, y = x;
            y.c[0] += HALF;
            uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
            for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
                x = round_of(x, k0, k1);
                y = round_of(y, k0, k1);
            }
            bits[word] |= (compare(x, limit) | compare(y, limit) << (4 * HALF)) << (4 * first);
        }
    }
}

static inline vi kept_lanes(const uint64_t *bits, int64_t i, vi lane)
{
    return (viset((int32_t)(bits[i / 64] >> (i % 64))) & lane) != 0;
}
static inline vi lane_bits(void)
{
    vi lane;
    for (int i = 0; i < DP_LANES; i++) lane[i] = 1 << i;
    return lane;
}

static void apply(float *y, const float *x, const uint64_t *bits, float scale, int64_t n)
{
    const vi lane = lane_bits();
    int64_t i = 0;
    for (; i + DP_LANES <= n; i += DP_LANES) vstore(y + i, (vf)(kept_lanes(bits, i, lane) & (vi)(vload(x + i) * scale)));
    for (; i < n; i++) y[i] = bits[i / 64] >> (i % 64) & 1 ? x[i] * scale : 0.0f;
}

static void mark(uint8_t *m, const uint64_t *bits, int64_t n)
{
    typedef uint8_t vu8 __attribute__((vector_size(DP_LANES)));
    const vi lane = lane_bits();
    int64_t i = 0;
    for (; i + DP_LANES <= n; i += DP_LANES) {
        vu8 old, dropped = __builtin_convertvector(~kept_lanes(bits, i, lane), vu8); /* DP_POOL_DROPPED is all ones */
        memcpy(&old, m + i, sizeof old);
        old |= dropped;
        memcpy(m + i, &old, sizeof old);
    }
    for (; i < n; i++) m[i] = bits[i / 64] >> (i % 64) & 1 ? m[i] : DP_POOL_DROPPED;
}

const dp_vec_dropout DP_VEC(dp_vec_dropout) = {draw, apply, mark};
