/* Internal to nn/cuda: activations and their gradients, for the kernels that apply them. */
#ifndef DP_NN_CUDA_ACT_H
#define DP_NN_CUDA_ACT_H
#include "launch.h"

static __device__ __forceinline__ float dp_relu(float x)
{
    return x < 0.0f ? 0.0f : x; /* NaN stays */
}
static __device__ __forceinline__ float dp_relu_gradient(float dy, float y)
{
    return y <= 0.0f ? 0.0f : dy;
}
static __device__ __forceinline__ float dp_gelu(float x) /* x times the normal distribution function */
{
    return 0.5f * x * erfcf(-0.707106781f * x);
}
static __device__ __forceinline__ float dp_gelu_gradient(float dy, float x)
{
    return dy * fmaf(x * expf(-0.5f * x * x), 0.398942280f, 0.5f * erfcf(-0.707106781f * x));
}
/* 0.5 (1 + tanh u) = 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3) */
static __device__ __forceinline__ float dp_gelu_gate(float x)
{
    return 1.0f / (1.0f + expf(-x * fmaf(0.0713548162f, x * x, 1.59576912f)));
}
static __device__ __forceinline__ float dp_gelu_tanh(float x)
{
    return x * dp_gelu_gate(x);
}
static __device__ __forceinline__ float dp_gelu_tanh_gradient(float dy, float x)
{
    const float s = dp_gelu_gate(x), slope = fmaf(0.214064449f, x * x, 1.59576912f);
    return dy * (s + x * slope * s * (1.0f - s));
}
static __device__ __forceinline__ float dp_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}
#endif
