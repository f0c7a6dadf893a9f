/* The optimizer's step: one kernel over all ranges of the flat arrays, a block for each chunk. The rules stand in nn/optim.h. Compiled
 * without fused multiply-add: the results are the CPU backend's, by bytes. */
#include "launch.h"

enum { RANGES = 160 }; /* as many as kernel arguments (4 KB) hold; more take more launches */
typedef struct dp_update_part {
    int64_t begin[RANGES], end[RANGES]; /* within the slice */
    unsigned char decays[RANGES];
    int64_t n;
} dp_update_part;
typedef struct dp_update_rule {
    int kind, nesterov;
    double momentum, beta1, beta2, eps, weight_decay;
} dp_update_rule;
typedef struct dp_update_step { /* what is common to all elements: computed in double, as PyTorch does, then rounded once */
    float grad_scale, lr, decay, momentum, beta1, beta2, rest1, rest2, eps, rate, root, keep;
    int take, first;
} dp_update_step;

static __device__ void prepare(dp_update_step *step, const dp_update_rule &r, const dp_run *run, const dp_verdict *verdict)
{
    const double t = (double)verdict->steps;
    step->take = verdict->take;
    step->first = verdict->steps == 1;
    step->grad_scale = (float)verdict->scale;
    step->lr = (float)run->lr;
    step->decay = (float)r.weight_decay;
    step->keep = (float)(1 - run->lr * r.weight_decay);
    step->momentum = (float)r.momentum;
    if (r.kind == DP_SGD) return;
    step->beta1 = (float)r.beta1, step->rest1 = (float)(1 - r.beta1);
    step->beta2 = (float)r.beta2, step->rest2 = (float)(1 - r.beta2);
    step->eps = (float)r.eps;
    step->rate = (float)(run->lr / (1 - pow(r.beta1, t)));
    step->root = (float)(1 / sqrt(1 - pow(r.beta2, t)));
}

static __device__ __forceinline__ void update_sgd(const dp_update_step &s, const dp_update_rule &r, float decay, float *p,
                                                  float g, float *m)
{
    const float d = g * s.grad_scale + decay * *p;
    if (!m) {
        *p -= s.lr * d;
        return;
    }
    const float v = s.first ? d : s.momentum * *m + d;
    *m = v;
    *p -= s.lr * (r.nesterov ? d + s.momentum * v : v);
}

static __device__ __forceinline__ void update_adam(const dp_update_step &s, float decay, float keep, float *p, float g,
                                                   float *m, float *v)
{
    const float d = g * s.grad_scale + decay * *p;
    const float mi = s.beta1 * *m + s.rest1 * d, vi = s.beta2 * *v + s.rest2 * d * d;
    *m = mi;
    *v = vi;
    *p = *p * keep - s.rate * (mi / (sqrtf(vi) * s.root + s.eps));
}

static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_update(const dp_update_part part, const dp_update_rule r, int64_t first_chunk, float *p, const float *g, float *m,
                float *v, const dp_run *run, const dp_verdict *verdict)
{
    __shared__ dp_update_step s;
    const int64_t begin = (first_chunk + blockIdx.x) * DP_CHUNK, end = begin + DP_CHUNK;
    if (!threadIdx.x) prepare(&s, r, run, verdict);
    __syncthreads();
    if (!s.take) return;
    int64_t low = 0, high = part.n; /* the first range that ends behind the chunk's begin */
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (part.end[middle] > begin)
            high = middle;
        else
            low = middle + 1;
    }
    for (; low < part.n && part.begin[low] < end; low++) {
        const int64_t from = part.begin[low] > begin ? part.begin[low] : begin, to = part.end[low] < end ? part.end[low] : end;
        const int decays = part.decays[low];
        const float decay = decays && r.kind != DP_ADAMW ? s.decay : 0.0f, keep = decays && r.kind == DP_ADAMW ? s.keep : 1.0f;
        for (int64_t i = from + threadIdx.x; i < to; i += DP_BLOCK) {
            if (r.kind == DP_SGD)
                update_sgd(s, r, decay, p + i, g[i], r.momentum != 0 ? m + i : nullptr);
            else
                update_adam(s, decay, keep, p + i, g[i], m + i, v + i);
        }
    }
}

extern "C" dp_status dp_cuda_update(dp_be_stream *s, const dp_optimizer *o, const dp_range *ranges, int n_ranges, int64_t first,
                                    int64_t count, float *p, const float *g, float *m, float *v, const dp_run *run_device,
                                    const dp_verdict *verdict)
{
    const dp_update_rule rule = {(int)o->kind, o->nesterov, o->momentum, o->beta1, o->beta2, o->eps, o->weight_decay};
    int i = 0;
    while (i < n_ranges) {
        dp_update_part part = {};
        for (; i < n_ranges && part.n < RANGES; i++) {
            int64_t begin = ranges[i].offset - first, end = begin + ranges[i].count;
            begin = begin < 0 ? 0 : begin;
            end = end > count ? count : end;
            if (begin >= end) continue;
            part.begin[part.n] = begin;
            part.end[part.n] = end;
            part.decays[part.n++] = ranges[i].decay != 0;
        }
        if (!part.n) break;
        const int64_t from = part.begin[0] / DP_CHUNK, to = (part.end[part.n - 1] + DP_CHUNK - 1) / DP_CHUNK;
        DP_TRY_LAUNCH(s, dp_k_update, (unsigned)(to - from), DP_BLOCK, 0, part, rule, from, p, g, m, v, run_device, verdict);
    }
    return DP_OK;
}
