/* The optimizer's step over ranges of the flat arrays. */
#include "cpu.h"
#include <math.h>

/* What is common to all ranges. Computed in double, as PyTorch does, then rounded once. */
static dp_step common(const dp_optimizer *o, const dp_run *run, const dp_verdict *verdict)
{
    double t = (double)verdict->steps;
    return (dp_step){
        .grad_scale = (float)verdict->scale,
        .lr = (float)run->lr,
        .momentum = (float)o->momentum,
        .first = verdict->steps == 1,
        .nesterov = o->nesterov,
        .beta1 = (float)o->beta1,
        .beta2 = (float)o->beta2,
        .rest1 = (float)(1 - o->beta1),
        .rest2 = (float)(1 - o->beta2),
        .eps = (float)o->eps,
        .rate = (float)(run->lr / (1 - pow(o->beta1, t))),
        .root = (float)(1 / sqrt(1 - pow(o->beta2, t))),
    };
}

dp_status dp_cpu_update(dp_be_stream *s, const dp_optimizer *o, const dp_range *ranges, int n_ranges, int64_t first,
                        int64_t count, float *p, const float *g, float *m, float *v, const dp_run *run_device,
                        const dp_verdict *verdict)
{
    const dp_vec_optimizer *vec = s->device->vec->optimizer;
    if (!verdict->take) return DP_OK;
    dp_step step = common(o, run_device, verdict);
    for (int i = 0; i < n_ranges; i++) {
        int64_t begin = ranges[i].offset, end = begin + ranges[i].count;
        begin = begin < first ? 0 : begin - first;
        end = end > first + count ? count : end - first;
        if (begin >= end) continue;
        double decay = ranges[i].decay ? o->weight_decay : 0;
        step.decay = (float)decay;
        step.keep = (float)(1 - run_device->lr * decay);
        int64_t n = end - begin;
        if (o->kind == DP_ADAM)
            vec->adam(p + begin, g + begin, m + begin, v + begin, n, &step);
        else if (o->kind == DP_ADAMW)
            vec->adamw(p + begin, g + begin, m + begin, v + begin, n, &step);
        else if (o->momentum != 0)
            vec->momentum(p + begin, g + begin, m + begin, n, &step);
        else
            vec->sgd(p + begin, g + begin, n, &step);
    }
    return DP_OK;
}
