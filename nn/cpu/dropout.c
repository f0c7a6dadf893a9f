/* Dropout. The mask is a pure function of (seed, layer, sample, epoch, element); kept as one bit each. */
#include "dropout.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

dp_drop dp_drop_of(const dp_node *n)
{
    double p = n->opt[DP_DROPOUT_P];
    /* draw >> 8 >= limit says the same as dp_uniform(draw) >= p, in whole numbers */
    return (dp_drop){.purpose = n->key, .limit = (uint32_t)ceil(p * 16777216.0), .scale = p < 1 ? (float)(1 / (1 - p)) : 0.0f};
}

typedef struct dropout {
    const dp_vec *vec;
    dp_drop drop;
    int64_t width, words; /* of one sample */
} dropout;

static dp_status open_(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state, dp_error *err)
{
    const dp_node *n = chain->node[0];
    dropout *s = dp_calloc(1, sizeof *s);
    if (!s) return dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
    s->vec = d->vec;
    s->drop = dp_drop_of(n);
    s->width = n->width;
    s->words = (n->width + 63) / 64;
    need->saved = (size_t)(capacity * s->words) * sizeof(uint64_t);
    need->in_place = 1;
    need->passes[0] = 1;
    *state = s;
    return DP_OK;
}

static void identity(float *y, const float *x, int64_t n)
{
    if (y != x) memcpy(y, x, (size_t)n * sizeof *y);
}

static dp_status forward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const dropout *s = state;
    const dp_vec_dropout *v = s->vec->dropout;
    const float *x = io->in[0];
    float *y = io->out;
    if (!run->train) {
        identity(y, x, run->rows * s->width);
        return DP_OK;
    }
    for (int64_t r = 0; r < run->rows; r++) {
        uint64_t *bits = (uint64_t *)io->saved + r * s->words;
        v->draw(bits, s->width, run_device->seed, s->drop.purpose, run_device->ids[r], run_device->epoch, s->drop.limit);
        v->apply(y + r * s->width, x + r * s->width, bits, s->drop.scale, s->width);
    }
    return DP_OK;
}

static dp_status backward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const dropout *s = state;
    const float *dy = io->d_out;
    float *dx = io->d_in[0];
    (void)run_device;
    if (!dx) return DP_OK;
    if (!run->train) {
        identity(dx, dy, run->rows * s->width);
        return DP_OK;
    }
    for (int64_t r = 0; r < run->rows; r++)
        s->vec->dropout->apply(dx + r * s->width, dy + r * s->width, (const uint64_t *)io->saved + r * s->words, s->drop.scale,
                               s->width);
    return DP_OK;
}

const dp_family dp_cpu_dropout = {.open = open_, .forward = forward, .backward = backward};
