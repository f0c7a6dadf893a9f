/* The order of an epoch: Fisher-Yates over Philox draws keyed by (seed, epoch, position), so it depends on nothing else: not on
 * devices, workers, or what was drawn before, and a resumed run finds it again from the epoch's number alone. */
#include "../dp/base/philox.h"
#include "loader.h"

#define PURPOSE_ORDER 0x6f726465u

/* Uniform in 0..n-1 without bias: multiply and keep the high word, draw again in the short interval (Lemire 2019). */
static uint64_t below(uint64_t n, uint64_t seed, uint64_t epoch, uint64_t position)
{
    for (uint32_t attempt = 0;; attempt++) {
        dp_u32x4 r = dp_draw(seed, PURPOSE_ORDER, position, epoch, attempt);
        unsigned __int128 m = (unsigned __int128)((uint64_t)r.v[0] << 32 | r.v[1]) * n;
        uint64_t low = (uint64_t)m;
        if (low >= n || low >= -n % n) return (uint64_t)(m >> 64);
    }
}

void dp_sample_order(int64_t *order, int64_t n, uint64_t seed, uint64_t epoch, int shuffle)
{
    for (int64_t i = 0; i < n; i++) order[i] = i;
    for (int64_t i = n - 1; shuffle && i > 0; i--) {
        int64_t j = (int64_t)below((uint64_t)i + 1, seed, epoch, (uint64_t)i);
        int64_t t = order[i];
        order[i] = order[j], order[j] = t;
    }
}
