// Internal to cusim: convolutions of fp32 tensors with channels last, filters as (k, r, s, c).
#ifndef CUSIM_CONV_H
#define CUSIM_CONV_H
#include <cstdint>
namespace cusim
{
struct Conv {
    int64_t n, h, w, c, k, r, s, p, q; // input n h w c, filter k r s c, output n p q k
    int64_t pad[2], stride[2], dilation[2];
    bool round;    // factors as TF32 does
    bool shuffled; // atomics: sums in random order
};
void conv_forward(const Conv &v, const float *x, const float *w, float *y, float alpha, float beta);
void conv_backward_data(const Conv &v, const float *w, const float *dy, float *dx, float alpha, float beta);
void conv_backward_filter(const Conv &v, const float *x, const float *dy, float *dw, float alpha, float beta);
} // namespace cusim
#endif
