/* Activations. erf and tanh are own minimax fits on top of exp_one: plain loops that gcc vectorises, unlike calls of libm. */
#include "isa.h"
#include <math.h>

static void relu(float *y, const float *x, int64_t n)
{
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) y[i] = x[i] < 0.0f ? 0.0f : x[i]; /* NaN stays */
}

static void relu_backward(float *dx, const float *dy, const float *y, int64_t n)
{
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) {
        float g = dy[i];
        dx[i] = y[i] <= 0.0f ? 0.0f : g;
    }
}

static void add_relu(float *y, const float *a, const float *b, int64_t n)
{
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) {
        float s = a[i] + b[i];
        y[i] = s < 0.0f ? 0.0f : s;
    }
}

/* erfc(z) = exp(-z^2) P(t), t = 1 / (1 + 0.4 z), z >= 0: P fits erfc(z) exp(z^2) to 6.2e-8 relative. Returns the distribution
 * function of the normal at x, given gauss = exp(-x^2 / 2). */
static inline float normal_cdf(float x, float gauss)
{
    float z = fabsf(x) * 0.707106781f, t = 1.0f / fmadd(0.4f, z, 1.0f);
    float q = fmadd(t, 0.0412533310f, -0.140320628f);
    q = fmadd(q, t, 0.0839901019f);
    q = fmadd(q, t, 0.0879612017f);
    q = fmadd(q, t, 0.0797585933f);
    q = fmadd(q, t, 0.193392345f);
    q = fmadd(q, t, 0.201887802f);
    q = fmadd(q, t, 0.226443083f);
    q = fmadd(q, t, 0.225634233f);
    float tail = 0.5f * gauss * (q * t);
    return x < 0.0f ? tail : 1.0f - tail;
}

static void gelu_erf(float *y, const float *x, int64_t n)
{
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * normal_cdf(x[i], exp_one(-0.5f * x[i] * x[i]));
}

static void gelu_erf_backward(float *dx, const float *dy, const float *x, int64_t n)
{
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) {
        float g = exp_one(-0.5f * x[i] * x[i]);
        dx[i] = dy[i] * fmadd(x[i] * g, 0.398942280f, normal_cdf(x[i], g));
    }
}

/* 0.5 x (1 + tanh u) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3). For x < -10 it is 0 to the last bit. */
static inline float gelu_gate(float x)
{
    float u2 = x * fmadd(0.0713548162f, x * x, 1.59576912f);
    return 1.0f / (1.0f + exp_one(-u2));
}

static void gelu_tanh(float *y, const float *x, int64_t n)
{
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * gelu_gate(x[i]);
}

static void gelu_tanh_backward(float *dx, const float *dy, const float *x, int64_t n)
{
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) {
        float s = gelu_gate(x[i]), slope = fmadd(0.214064449f, x[i] * x[i], 1.59576912f);
        dx[i] = dy[i] * (s + x[i] * slope * s * (1.0f - s));
    }
}

static void sigmoid(float *y, const float *x, int64_t n)
{
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) y[i] = 1.0f / (1.0f + exp_one(-x[i]));
}

static void sigmoid_backward(float *dx, const float *dy, const float *y, int64_t n)
{
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) dx[i] = dy[i] * y[i] * (1.0f - y[i]);
}

/* Near 0 the quotient would lose digits: x + x^3 P(x^2), a fit to 4e-9. */
static inline float tanh_one(float x)
{
    float a = fabsf(x), u = x * x, e = exp_one(-2.0f * a);
    float far = (1.0f - e) / (1.0f + e);
    float q = fmadd(u, -0.00571703656f, 0.0206505790f);
    q = fmadd(q, u, -0.0537434953f);
    q = fmadd(q, u, 0.133314912f);
    q = fmadd(q, u, -0.333332839f);
    float near = fmadd(a * u, q, a);
    return copysignf(a < 0.625f ? near : far, x);
}

static void tanh_(float *y, const float *x, int64_t n)
{
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) y[i] = tanh_one(x[i]);
}

static void tanh_backward(float *dx, const float *dy, const float *y, int64_t n)
{
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) dx[i] = dy[i] * (1.0f - y[i] * y[i]);
}

const dp_vec_pointwise DP_VEC(dp_vec_pointwise) = {
    .relu = relu,
    .relu_backward = relu_backward,
    .add_relu = add_relu,
    .gelu_erf = gelu_erf,
    .gelu_erf_backward = gelu_erf_backward,
    .gelu_tanh = gelu_tanh,
    .gelu_tanh_backward = gelu_tanh_backward,
    .sigmoid = sigmoid,
    .sigmoid_backward = sigmoid_backward,
    .tanh = tanh_,
    .tanh_backward = tanh_backward,
};
