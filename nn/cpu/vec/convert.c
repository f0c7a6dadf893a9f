/* Raw images to float, channels last. A division, not a product with 1/255: the values are then exactly PyTorch's. */
#include "isa.h"

static void u8(float *dst, const uint8_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) dst[i] = (float)src[i] / 255.0f;
}

static void u8_interleave(float *dst, const uint8_t *src, int64_t pixels, int64_t channels)
{
    for (int64_t c = 0; c < channels; c++)
        for (int64_t i = 0; i < pixels; i++) dst[i * channels + c] = (float)src[c * pixels + i] / 255.0f;
}

static void interleave(float *dst, const float *src, int64_t pixels, int64_t channels)
{
    for (int64_t c = 0; c < channels; c++)
        for (int64_t i = 0; i < pixels; i++) dst[i * channels + c] = src[c * pixels + i];
}

static void normalize(float *x, int64_t n, int64_t w, const float *mean, const float *inv_std)
{
    for (int64_t i = 0; i < n; i += w) {
        int64_t m = n - i < w ? n - i : w;
        DP_IVDEP
        for (int64_t j = 0; j < m; j++) x[i + j] = (x[i + j] - mean[j]) * inv_std[j];
    }
}

const dp_vec_convert DP_VEC(dp_vec_convert) = {u8, u8_interleave, interleave, normalize};
