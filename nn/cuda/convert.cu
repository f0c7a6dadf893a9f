/* Raw rows as the loader brings them to the input tensor: images to float with channels last, tokens to int32. A division by 255, not a
 * product with 1/255: the values are then exactly PyTorch's. */
#include "launch.h"

static __device__ __forceinline__ float to_float(uint8_t v)
{
    return (float)v / 255.0f;
}
static __device__ __forceinline__ float to_float(float v)
{
    return v;
}
/* What does not fit must not wrap into a valid token. */
template <class T> static __device__ __forceinline__ int32_t to_token(T v)
{
    const int64_t token = (int64_t)v;
    return token < 0 || token > INT32_MAX ? -1 : (int32_t)token;
}
static __device__ __forceinline__ int32_t to_token(int32_t v) /* as it is: the embedding refuses what is out of its range */
{
    return v;
}

template <class T>
static __global__ void __launch_bounds__(DP_BLOCK) dp_k_images(float *dst, const T *src, int64_t n, int planes, int64_t pixels,
                                                               int64_t channels, const float *mean, const float *inv_std)
{
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const int64_t c = i % channels, at = i / channels; /* pixel over all rows */
        const int64_t from = planes ? (at / pixels * channels + c) * pixels + at % pixels : i;
        float v = to_float(src[from]);
        if (mean) v = (v - mean[c]) * inv_std[c];
        dst[i] = v;
    }
}

template <class T> static __global__ void __launch_bounds__(DP_BLOCK) dp_k_tokens(int32_t *dst, const T *src, int64_t n)
{
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) dst[i] = to_token(src[i]);
}

template <class T> static dp_status tokens(dp_be_stream *s, void *dst, const void *src, int64_t n)
{
    DP_TRY_LAUNCH(s, dp_k_tokens<T>, dp_blocks(s->device, n, DP_BLOCK), DP_BLOCK, 0, (int32_t *)dst, (const T *)src, n);
    return DP_OK;
}

template <class T>
static dp_status images(dp_be_stream *s, void *dst, const void *src, int64_t n, int planes, int64_t pixels, int64_t channels,
                        const float *mean, const float *inv_std)
{
    DP_TRY_LAUNCH(s, dp_k_images<T>, dp_blocks(s->device, n, DP_BLOCK), DP_BLOCK, 0, (float *)dst, (const T *)src, n, planes,
                  pixels, channels, mean, inv_std);
    return DP_OK;
}

extern "C" dp_status dp_cuda_convert(dp_be_stream *s, const dp_run *run, void *dst, dp_dtype dst_type, const void *src,
                                     dp_dtype src_type, dp_layout src_layout, const int64_t shape[3], const float *mean,
                                     const float *inv_std)
{
    const int64_t pixels = shape[0] * shape[1], channels = shape[2], n = run->rows * pixels * channels;
    const int planes = src_layout == DP_CHW && pixels > 1 && channels > 1;
    if (!mean || !inv_std) mean = inv_std = nullptr;
    if (dst_type == DP_I32) {
        switch (src_type) {
        case DP_U8: return tokens<uint8_t>(s, dst, src, n);
        case DP_U16: return tokens<uint16_t>(s, dst, src, n);
        case DP_I32: return tokens<int32_t>(s, dst, src, n);
        case DP_I64: return tokens<int64_t>(s, dst, src, n);
        default: return DP_EARGUMENT;
        }
    }
    if (src_type == DP_U8) return images<uint8_t>(s, dst, src, n, planes, pixels, channels, mean, inv_std);
    if (src_type == DP_F32) return images<float>(s, dst, src, n, planes, pixels, channels, mean, inv_std);
    return DP_EARGUMENT;
}
