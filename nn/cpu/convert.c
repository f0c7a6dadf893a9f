/* Raw rows as the loader brings them to the input tensor: images to float with channels last, tokens to int32. */
#include "cpu.h"
#include <string.h>

/* Normalisation runs over a few pixels' channels at once, so that three channels fill vectors too. */
enum { TABLE = 512 };

static void normalize(const dp_vec_convert *v, float *x, int64_t n, int64_t channels, const float *mean, const float *inv_std)
{
    float m[TABLE], s[TABLE];
    int64_t repeat = channels <= TABLE ? TABLE / channels : 0;
    for (int64_t i = 0; i < repeat * channels; i++) m[i] = mean[i % channels], s[i] = inv_std[i % channels];
    if (repeat)
        v->normalize(x, n, repeat * channels, m, s);
    else
        v->normalize(x, n, channels, mean, inv_std);
}

static dp_status to_float(const dp_vec_convert *v, float *dst, const void *src, dp_dtype type, int planes, int64_t pixels,
                          int64_t channels)
{
    int64_t n = pixels * channels;
    if (type == DP_U8 && planes)
        v->u8_interleave(dst, src, pixels, channels);
    else if (type == DP_U8)
        v->u8(dst, src, n);
    else if (type == DP_F32 && planes)
        v->interleave(dst, src, pixels, channels);
    else if (type == DP_F32)
        memcpy(dst, src, (size_t)n * sizeof *dst);
    else
        return DP_EARGUMENT;
    return DP_OK;
}

static dp_status to_tokens(int32_t *dst, const void *src, dp_dtype type, int64_t n)
{
    if (type == DP_I32) {
        memcpy(dst, src, (size_t)n * sizeof *dst);
    } else if (type == DP_U8) {
        for (int64_t i = 0; i < n; i++) dst[i] = ((const uint8_t *)src)[i];
    } else if (type == DP_U16) {
        for (int64_t i = 0; i < n; i++) dst[i] = ((const uint16_t *)src)[i];
    } else if (type == DP_I64) {
        /* what does not fit must not wrap into a valid token */
        for (int64_t i = 0; i < n; i++) {
            int64_t token = ((const int64_t *)src)[i];
            dst[i] = token < 0 || token > INT32_MAX ? -1 : (int32_t)token;
        }
    } else {
        return DP_EARGUMENT;
    }
    return DP_OK;
}

dp_status dp_cpu_convert(dp_be_stream *s, const dp_run *run, void *dst, dp_dtype dst_type, const void *src, dp_dtype src_type,
                         dp_layout src_layout, const int64_t shape[3], const float *mean, const float *inv_std)
{
    const dp_vec_convert *v = s->device->vec->convert;
    int64_t pixels = shape[0] * shape[1], channels = shape[2], width = pixels * channels;
    if (dst_type == DP_I32) return to_tokens(dst, src, src_type, run->rows * width);
    int planes = src_layout == DP_CHW && pixels > 1 && channels > 1;
    size_t size = src_type == DP_U8 ? 1 : 4;
    for (int64_t r = 0; r < run->rows; r++) { /* row by row: it is still in L2 for the second pass */
        float *row = (float *)dst + r * width;
        DP_TRY(to_float(v, row, (const char *)src + (size_t)(r * width) * size, src_type, planes, pixels, channels));
        if (mean && inv_std) normalize(v, row, width, channels, mean, inv_std);
    }
    return DP_OK;
}
