/* Optimizer steps, one pass over memory; the rules stand in nn/optim.h. */
#include "isa.h"
#include <math.h>

static void sgd(float *p, const float *g, int64_t n, const dp_step *s)
{
    const float scale = s->grad_scale, lr = s->lr, decay = s->decay;
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) p[i] -= lr * (g[i] * scale + decay * p[i]);
}

static inline void momentum_loop(float *p, const float *g, float *m, int64_t n, const dp_step *s, int first, int nesterov)
{
    const float scale = s->grad_scale, lr = s->lr, decay = s->decay, momentum = s->momentum;
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) {
        float d = g[i] * scale + decay * p[i];
        float v = first ? d : momentum * m[i] + d;
        m[i] = v;
        p[i] -= lr * (nesterov ? d + momentum * v : v);
    }
}
static void momentum_step(float *p, const float *g, float *m, int64_t n, const dp_step *s)
{
    if (s->first && s->nesterov)
        momentum_loop(p, g, m, n, s, 1, 1);
    else if (s->first)
        momentum_loop(p, g, m, n, s, 1, 0);
    else if (s->nesterov)
        momentum_loop(p, g, m, n, s, 0, 1);
    else
        momentum_loop(p, g, m, n, s, 0, 0);
}

static inline void adam_loop(float *p, const float *g, float *m, float *v, int64_t n, const dp_step *s, int decoupled)
{
    const float scale = s->grad_scale, l2 = decoupled ? 0.0f : s->decay, keep = decoupled ? s->keep : 1.0f;
    const float b1 = s->beta1, b2 = s->beta2, r1 = s->rest1, r2 = s->rest2, eps = s->eps, rate = s->rate, root = s->root;
    DP_IVDEP
    for (int64_t i = 0; i < n; i++) {
        float d = g[i] * scale + l2 * p[i];
        float mi = b1 * m[i] + r1 * d, vi_ = b2 * v[i] + r2 * d * d;
        m[i] = mi;
        v[i] = vi_;
        p[i] = p[i] * keep - rate * (mi / (sqrtf(vi_) * root + eps));
    }
}
static void adam(float *p, const float *g, float *m, float *v, int64_t n, const dp_step *s)
{
    adam_loop(p, g, m, v, n, s, 0);
}
static void adamw(float *p, const float *g, float *m, float *v, int64_t n, const dp_step *s)
{
    adam_loop(p, g, m, v, n, s, 1);
}

const dp_vec_optimizer DP_VEC(dp_vec_optimizer) = {sgd, momentum_step, adam, adamw};
