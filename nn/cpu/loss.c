/* Losses: sums in double over chunks of DP_CHUNK targets, the chunks added in order, so that a sum does not depend on how the
 * work is cut elsewhere; and the gradient of the sum. */
#include "cpu.h"
#include <math.h>
#include <string.h>

static int64_t target_at(const void *targets, dp_dtype type, int64_t i)
{
    switch (type) {
    case DP_U8: return ((const uint8_t *)targets)[i];
    case DP_U16: return ((const uint16_t *)targets)[i];
    case DP_I32: return ((const int32_t *)targets)[i];
    default: return ((const int64_t *)targets)[i];
    }
}

enum { PIECE = 1024 };

/* Sum of exp(x - max) when the exponentials themselves are not wanted. */
static double exp_sum_only(const dp_vec_softmax *v, const float *x, float max, int64_t n)
{
    float scratch[PIECE];
    double sum = 0;
    for (int64_t i = 0; i < n; i += PIECE) sum += v->exp_sum(scratch, x + i, max, n - i < PIECE ? n - i : PIECE);
    return sum;
}

/* One prediction x (classes): loss = (1 - s) (L - x[target]) + s (L - mean x), L = max + log sum exp(x - max). */
static double predict(const dp_vec_softmax *v, const dp_loss *l, const float *x, int64_t target, float *d, float max)
{
    double smooth = l->smoothing, classes = (double)l->classes;
    double sum = d ? v->exp_sum(d, x, max, l->classes) : exp_sum_only(v, x, max, l->classes);
    double log_sum = (double)max + log(sum);
    double loss = (1 - smooth) * (log_sum - (double)x[target]);
    if (smooth > 0) loss += smooth * (log_sum - v->sum(x, l->classes) / classes);
    if (d) {
        v->scale(d, d, (float)(1 / sum), (float)(-smooth / classes), l->classes);
        d[target] -= (float)(1 - smooth);
    }
    return loss;
}

static void cross_entropy(const dp_vec_softmax *v, const dp_loss *l, int64_t n, const float *logits, const void *targets,
                          dp_dtype type, float *d_logits, dp_loss_sums *sums)
{
    double chunk = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i % DP_CHUNK == 0) sums->loss += chunk, chunk = 0;
        const float *x = logits + i * l->classes;
        float *d = d_logits ? d_logits + i * l->classes : NULL;
        int64_t target = target_at(targets, type, i);
        int ignored = target == l->ignore_label;
        if (ignored || target < 0 || target >= l->classes) {
            if (!ignored && !sums->bad) sums->bad = 1 + i;
            if (d) memset(d, 0, (size_t)l->classes * sizeof *d);
            continue;
        }
        float max = v->max(x, l->classes);
        int64_t first = 0;
        while (first < target && x[first] != max) first++;
        sums->correct += first == target && x[target] == max;
        sums->targets++;
        chunk += predict(v, l, x, target, d, max);
    }
    sums->loss += chunk;
}

static void mse(const dp_vec_softmax *v, int64_t n, const float *x, const float *t, float *d, dp_loss_sums *sums)
{
    for (int64_t i = 0; i < n; i += DP_CHUNK)
        sums->loss += v->mse(d ? d + i : NULL, x + i, t + i, n - i < DP_CHUNK ? n - i : DP_CHUNK);
    sums->targets = n;
}

dp_status dp_cpu_loss(dp_be_stream *s, const dp_loss *l, int64_t rows, const float *logits, const void *targets,
                      dp_dtype target_type, float *d_logits, dp_loss_sums *sums)
{
    const dp_vec_softmax *v = s->device->vec->softmax;
    *sums = (dp_loss_sums){0};
    if (l->kind == DP_LOSS_MSE) {
        if (target_type != DP_F32) return DP_EARGUMENT;
        mse(v, rows * l->classes, logits, targets, d_logits, sums);
        return DP_OK;
    }
    if (target_type != DP_U8 && target_type != DP_U16 && target_type != DP_I32 && target_type != DP_I64) return DP_EARGUMENT;
    cross_entropy(v, l, rows * l->groups, logits, targets, target_type, d_logits, sums);
    return DP_OK;
}
