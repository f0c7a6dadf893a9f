/* softmax over the last axis. */
#include "cpu.h"
#include <stdlib.h>

typedef struct softmax {
    const dp_vec *vec;
    int64_t n, groups; /* of one sample */
} softmax;

static dp_status open_(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state, dp_error *err)
{
    const dp_node *n = chain->node[0];
    softmax *s = dp_calloc(1, sizeof *s);
    (void)capacity;
    if (!s) return dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
    s->vec = d->vec;
    s->n = n->shape[n->rank - 1];
    s->groups = n->width / s->n;
    need->reads_out = need->in_place = need->passes[0] = 1;
    *state = s;
    return DP_OK;
}

static dp_status forward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const softmax *s = state;
    const dp_vec_softmax *v = s->vec->softmax;
    (void)run_device;
    for (int64_t r = 0; r < run->rows * s->groups; r++) {
        const float *x = (const float *)io->in[0] + r * s->n;
        float *y = (float *)io->out + r * s->n;
        double sum = v->exp_sum(y, x, v->max(x, s->n), s->n);
        v->scale(y, y, (float)(1 / sum), 0, s->n);
    }
    return DP_OK;
}

static dp_status backward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const softmax *s = state;
    const dp_vec_softmax *v = s->vec->softmax;
    (void)run_device;
    if (!io->d_in[0]) return DP_OK;
    for (int64_t r = 0; r < run->rows * s->groups; r++) {
        const float *y = (const float *)io->out + r * s->n, *dy = (const float *)io->d_out + r * s->n;
        v->backward((float *)io->d_in[0] + r * s->n, dy, y, (float)v->dot(dy, y, s->n), s->n);
    }
    return DP_OK;
}

const dp_family dp_cpu_softmax = {.open = open_, .forward = forward, .backward = backward};
