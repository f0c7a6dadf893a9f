/* Mean and variance over several leaves, from those of each: Chan, Golub and LeVeque 1979, in double, in index order, weighted by rows
 * (every row of a layer has the same pixels, so rows are as good as counts). */
#include "cpu.h"

/* Of one channel: means lie at from[i][mean], biased variances at from[i][var]. Without rows: 0 and 0. */
static void pooled(const float *const *from, int64_t mean_at, int64_t var_at, const int64_t *rows, int n, double *mean,
                   double *var)
{
    double count = 0, m = 0, square = 0; /* sum of squares about the mean */
    for (int i = 0; i < n; i++) {
        if (!rows[i]) continue;
        double more = (double)rows[i], sum = count + more, apart = (double)from[i][mean_at] - m;
        m += apart * more / sum;
        square += (double)from[i][var_at] * more + apart * apart * count * more / sum;
        count = sum;
    }
    *mean = m;
    *var = count > 0 ? square / count : 0;
}

dp_status dp_cpu_pool(dp_be_stream *s, float *whole, const float *const *part, const int64_t *rows, int n, int64_t channels)
{
    (void)s;
    for (int64_t c = 0; c < channels; c++) {
        double mean, var;
        pooled(part, c, channels + c, rows, n, &mean, &var);
        whole[c] = (float)mean;
        whole[channels + c] = (float)var;
    }
    return DP_OK;
}

dp_status dp_cpu_merge(dp_be_stream *s, float *shadow, const float *buffer, const dp_bn_layer *layers, int n_layers,
                       const float *const *leaf, const int64_t *rows, int n)
{
    int64_t all = 0;
    (void)s;
    for (int i = 0; i < n; i++) all += rows[i];
    for (int k = 0; k < n_layers; k++) {
        const dp_bn_layer *l = &layers[k];
        double old = 1 - l->momentum, count = (double)(all * l->pixels), unbiased = count > 1 ? count / (count - 1) : 1;
        for (int64_t c = 0; c < l->channels; c++) {
            double mean, var;
            pooled(leaf, l->mean + c, l->var + c, rows, n, &mean, &var);
            shadow[l->mean + c] = (float)(old * (double)buffer[l->mean + c] + l->momentum * mean);
            shadow[l->var + c] = (float)(old * (double)buffer[l->var + c] + l->momentum * var * unbiased);
        }
        shadow[l->tracked] = buffer[l->tracked] + 1;
    }
    return DP_OK;
}
