/* Mean and deviation per channel of u8 images, for data.normalize = auto. Sums are integers, so the result does not depend on
 * the order of the samples. A constant channel gets deviation 1: it carries nothing, and 0 would divide. */
#include "../dp/base/memory.h"
#include "loader.h"
#include "set.h"
#include <math.h>
#include <stdlib.h>

enum { MOST_CHANNELS = 16 };

dp_status dp_data_moments(const dp_data *d, double *mean, double *std, int channels, dp_error *err)
{
    uint64_t sum[MOST_CHANNELS] = {0}, squares[MOST_CHANNELS] = {0};
    const dp_data_info *f = &d->info;
    if (f->x_dtype != DP_U8) {
        return dp_fail(err, DP_ECONFIG, "data.normalize = auto needs images of bytes (u8); give MEAN/STD or none for this set");
    }
    if (channels < 1 || channels > MOST_CHANNELS || d->x_width % channels != 0) {
        return dp_fail(err, DP_EARGUMENT, "moments of %d channels: allowed are 1..%d that divide the %lld elements of a sample",
                       channels, MOST_CHANNELS, (long long)d->x_width);
    }
    int64_t pixels = d->x_width / channels;
    dp_status s = DP_OK;
    uint8_t *x = dp_calloc(1, d->x_bytes);
    void *y = dp_calloc(1, d->y_bytes);
    if (!x || !y) {
        s = dp_fail(err, DP_ENOMEM, "out of memory for one sample of %zu bytes", d->x_bytes);
        goto done;
    }
    for (int64_t i = 0; i < f->samples; i++) {
        if ((s = d->fetch(d, i, x, y, err)) != DP_OK) goto done;
        for (int k = 0; k < channels; k++) {
            const uint8_t *p = f->x_layout == DP_CHW ? x + k * pixels : x + k;
            int64_t stride = f->x_layout == DP_CHW ? 1 : channels;
            uint64_t a = 0, b = 0;
            for (int64_t j = 0; j < pixels; j++) {
                uint32_t v = p[j * stride];
                a += v, b += v * v;
            }
            sum[k] += a, squares[k] += b;
        }
    }
    double n = (double)f->samples * (double)pixels;
    for (int k = 0; k < channels; k++) {
        double m = (double)sum[k] / n, variance = (double)squares[k] / n - m * m;
        mean[k] = m / 255.0;
        std[k] = variance > 1e-9 ? sqrt(variance) / 255.0 : 1.0;
    }
done:
    free(x);
    free(y);
    return s;
}
