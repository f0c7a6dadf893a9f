/* Pooling. maxpool2d keeps one byte per output, the place of the maximum in its window; a dropout behind it marks there what it
 * took. */
#include "dropout.h"
#include <stdlib.h>
#include <string.h>

typedef struct pool {
    const dp_vec *vec;
    dp_pool shape;
    dp_drop drop;
    int drops;
    int64_t in, out; /* elements of one sample */
} pool;

static pool *open_pool(dp_be_device *d, const dp_chain *chain, dp_error *err)
{
    const dp_node *n = chain->node[0], *in = &chain->graph->node[n->in[0]];
    pool *s = dp_calloc(1, sizeof *s);
    if (!s) {
        dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
        return NULL;
    }
    s->vec = d->vec;
    s->in = in->width;
    s->out = n->width;
    s->shape = (dp_pool){.h = in->shape[0], .w = in->shape[1], .c = in->shape[2], .oh = n->shape[0], .ow = n->shape[1]};
    s->shape.kernel = (int64_t)n->opt[DP_POOL_KERNEL];
    s->shape.stride = (int64_t)n->opt[DP_POOL_STRIDE];
    s->shape.pad = (int64_t)n->opt[DP_POOL_PAD];
    return s;
}

/* ---- maxpool2d, maxpool2d | dropout ---- */

static int fits_byte(const dp_node *n)
{
    return n->opt[DP_POOL_KERNEL] * n->opt[DP_POOL_KERNEL] <= DP_POOL_DROPPED;
}

static int max_fuses(const dp_chain *chain, const dp_node *next)
{
    return chain->n == 1 && next->op->kind == DP_OP_DROPOUT && fits_byte(chain->node[0]);
}

static dp_status max_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state, dp_error *err)
{
    pool *s = open_pool(d, chain, err);
    if (!s) return DP_ENOMEM;
    s->shape.wide = !fits_byte(chain->node[0]);
    s->drop.scale = 1;
    s->drops = chain->n == 2;
    if (s->drops) {
        s->drop = dp_drop_of(chain->node[1]);
        need->workspace = (size_t)((s->out + 63) / 64) * sizeof(uint64_t);
    }
    need->saved = (size_t)(capacity * s->out) * (s->shape.wide ? sizeof(int32_t) : 1);
    *state = s;
    return DP_OK;
}

static size_t mark_offset(const pool *s, int64_t row)
{
    return (size_t)(row * s->out) * (s->shape.wide ? sizeof(int32_t) : 1);
}

static dp_status max_forward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const pool *s = state;
    const dp_vec_dropout *v = s->vec->dropout;
    for (int64_t r = 0; r < run->rows; r++) {
        const float *x = (const float *)io->in[0] + r * s->in;
        float *y = (float *)io->out + r * s->out;
        uint8_t *mark = run->train ? (uint8_t *)io->saved + mark_offset(s, r) : NULL;
        s->vec->pool->max(&s->shape, y, x, mark);
        if (!mark || !s->drops) continue;
        v->draw(io->workspace, s->out, run_device->seed, s->drop.purpose, run_device->ids[r], run_device->epoch, s->drop.limit);
        v->apply(y, y, io->workspace, s->drop.scale, s->out);
        v->mark(mark, io->workspace, s->out);
    }
    return DP_OK;
}

static dp_status max_backward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const pool *s = state;
    (void)run_device;
    if (!io->d_in[0]) return DP_OK;
    for (int64_t r = 0; r < run->rows; r++)
        s->vec->pool->max_backward(&s->shape, (float *)io->d_in[0] + r * s->in, (const float *)io->d_out + r * s->out,
                                   (const uint8_t *)io->saved + mark_offset(s, r), s->drop.scale);
    return DP_OK;
}

const dp_family dp_cpu_maxpool2d = {.fuses = max_fuses, .open = max_open, .forward = max_forward, .backward = max_backward};

/* ---- avgpool2d, globalavgpool: backward reads nothing ---- */

static dp_status average_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state,
                              dp_error *err)
{
    (void)capacity, (void)need;
    *state = open_pool(d, chain, err);
    return *state ? DP_OK : DP_ENOMEM;
}

static dp_status average_forward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const pool *s = state;
    (void)run_device;
    for (int64_t r = 0; r < run->rows; r++)
        s->vec->pool->average(&s->shape, (float *)io->out + r * s->out, (const float *)io->in[0] + r * s->in);
    return DP_OK;
}

static dp_status average_backward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const pool *s = state;
    (void)run_device;
    if (!io->d_in[0]) return DP_OK;
    for (int64_t r = 0; r < run->rows; r++)
        s->vec->pool->average_backward(&s->shape, (float *)io->d_in[0] + r * s->in, (const float *)io->d_out + r * s->out);
    return DP_OK;
}

const dp_family dp_cpu_avgpool2d = {.open = average_open, .forward = average_forward, .backward = average_backward};

static dp_status global_forward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const pool *s = state;
    const dp_vec *v = s->vec;
    int64_t c = s->shape.c, pixels = s->shape.h * s->shape.w;
    (void)run_device;
    for (int64_t r = 0; r < run->rows; r++) {
        float *y = (float *)io->out + r * c;
        v->flat->columns(y, (const float *)io->in[0] + r * s->in, pixels, c);
        v->softmax->scale(y, y, 1.0f / (float)pixels, 0, c);
    }
    return DP_OK;
}

static dp_status global_backward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const pool *s = state;
    int64_t c = s->shape.c, pixels = s->shape.h * s->shape.w;
    (void)run_device;
    if (!io->d_in[0]) return DP_OK;
    for (int64_t r = 0; r < run->rows; r++) {
        float *dx = (float *)io->d_in[0] + r * s->in;
        s->vec->softmax->scale(dx, (const float *)io->d_out + r * c, 1.0f / (float)pixels, 0, c);
        for (int64_t i = 1; i < pixels; i++) memcpy(dx + i * c, dx, (size_t)c * sizeof *dx);
    }
    return DP_OK;
}

const dp_family dp_cpu_globalavgpool = {.open = average_open, .forward = global_forward, .backward = global_backward};
