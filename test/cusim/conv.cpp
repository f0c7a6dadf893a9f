// Convolution as products of matrices, image by image: columns (p q, r s c) times the filter.
#include "conv.h"
#include "library.h"
#include <cstring>

namespace cusim {

// Calls f(column, pixel) for each run of c values that lies inside the image; the others are padding.
template <class F> static void each_run(const Conv &v, F f)
{
    for (int64_t p = 0; p < v.p; p++)
        for (int64_t q = 0; q < v.q; q++)
            for (int64_t r = 0; r < v.r; r++)
                for (int64_t s = 0; s < v.s; s++) {
                    const int64_t y = p * v.stride[0] - v.pad[0] + r * v.dilation[0];
                    const int64_t x = q * v.stride[1] - v.pad[1] + s * v.dilation[1];
                    if (y < 0 || y >= v.h || x < 0 || x >= v.w) continue;
                    f(((p * v.q + q) * v.r * v.s + r * v.s + s) * v.c, (y * v.w + x) * v.c);
                }
}

static std::vector<int64_t> images(const Conv &v) // in the order in which they are added
{
    std::vector<int64_t> order((size_t)v.n);
    for (size_t i = 0; i < order.size(); i++) order[i] = (int64_t)i;
    for (size_t i = order.size(); v.shuffled && i > 1; i--) std::swap(order[i - 1], order[random_below((unsigned)i)]);
    return order;
}

static void scale(float *out, const float *sum, int64_t n, float alpha, float beta)
{
    for (int64_t i = 0; i < n; i++) out[i] = beta != 0 ? alpha * sum[i] + beta * out[i] : alpha * sum[i];
}

void conv_forward(const Conv &v, const float *x, const float *w, float *y, float alpha, float beta)
{
    Hidden h;
    const int64_t pixels = v.p * v.q, width = v.r * v.s * v.c;
    std::vector<float> columns((size_t)(pixels * width)), out((size_t)(pixels * v.k));
    for (int64_t n = 0; n < v.n; n++) {
        const float *const image = x + n * v.h * v.w * v.c;
        std::fill(columns.begin(), columns.end(), 0.0f);
        each_run(v, [&](int64_t column, int64_t pixel) {
            for (int64_t c = 0; c < v.c; c++) columns[(size_t)(column + c)] = image[pixel + c];
        });
        multiply(out.data(), v.k, 1, Matrix{columns.data(), width, 1}, Matrix{w, 1, width}, pixels, v.k, width, false, v.round);
        scale(y + n * pixels * v.k, out.data(), pixels * v.k, alpha, beta);
    }
}

void conv_backward_data(const Conv &v, const float *w, const float *dy, float *dx, float alpha, float beta)
{
    Hidden h;
    const int64_t pixels = v.p * v.q, width = v.r * v.s * v.c, image = v.h * v.w * v.c;
    std::vector<float> columns((size_t)(pixels * width)), out((size_t)image);
    for (int64_t n = 0; n < v.n; n++) {
        const Matrix d{dy + n * pixels * v.k, v.k, 1};
        multiply(columns.data(), width, 1, d, Matrix{w, width, 1}, pixels, width, v.k, false, v.round);
        std::fill(out.begin(), out.end(), 0.0f);
        std::vector<std::pair<int64_t, int64_t>> runs;
        each_run(v, [&](int64_t column, int64_t pixel) { runs.emplace_back(column, pixel); });
        for (size_t i = runs.size(); v.shuffled && i > 1; i--) std::swap(runs[i - 1], runs[random_below((unsigned)i)]);
        for (const auto &run : runs)
            for (int64_t c = 0; c < v.c; c++) out[(size_t)(run.second + c)] += columns[(size_t)(run.first + c)];
        scale(dx + n * image, out.data(), image, alpha, beta);
    }
}

void conv_backward_filter(const Conv &v, const float *x, const float *dy, float *dw, float alpha, float beta)
{
    Hidden h;
    const int64_t pixels = v.p * v.q, width = v.r * v.s * v.c;
    std::vector<float> columns((size_t)(pixels * width)), sum((size_t)(v.k * width));
    for (const int64_t n : images(v)) {
        const float *const image = x + n * v.h * v.w * v.c;
        std::fill(columns.begin(), columns.end(), 0.0f);
        each_run(v, [&](int64_t column, int64_t pixel) {
            for (int64_t c = 0; c < v.c; c++) columns[(size_t)(column + c)] = image[pixel + c];
        });
        multiply(sum.data(), width, 1, Matrix{dy + n * pixels * v.k, 1, v.k}, Matrix{columns.data(), width, 1}, v.k, width, pixels,
                 true, v.round);
    }
    scale(dw, sum.data(), v.k * width, alpha, beta);
}

} // namespace cusim
