/* flatten (nothing to do in memory order; a transpose into the files' C,H,W order) and concat over the last axis. */
#include "cpu.h"
#include <stdlib.h>
#include <string.h>

/* ---- flatten ---- */

typedef struct flatten {
    const dp_vec *vec;
    int64_t width, pixels, channels; /* pixels = 0: memory order stays */
} flatten;

static dp_status flatten_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state,
                              dp_error *err)
{
    const dp_node *n = chain->node[0], *in = &chain->graph->node[n->in[0]];
    flatten *s = dp_calloc(1, sizeof *s);
    (void)capacity;
    if (!s) return dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
    s->vec = d->vec;
    s->width = n->width;
    if (n->to_file_order && in->rank == 3 && in->shape[2] > 1 && in->shape[2] < n->width) {
        s->channels = in->shape[2];
        s->pixels = n->width / s->channels;
    }
    need->in_place = need->passes[0] = s->pixels == 0;
    *state = s;
    return DP_OK;
}

static void copy(float *dst, const float *src, int64_t n)
{
    if (dst != src) memcpy(dst, src, (size_t)n * sizeof *dst);
}

static dp_status flatten_forward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const flatten *s = state;
    const float *x = io->in[0];
    float *y = io->out;
    (void)run_device;
    if (!s->pixels) copy(y, x, run->rows * s->width);
    for (int64_t r = 0; s->pixels && r < run->rows; r++)
        s->vec->pool->transpose(y + r * s->width, x + r * s->width, s->pixels, s->channels);
    return DP_OK;
}

static dp_status flatten_backward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const flatten *s = state;
    const float *dy = io->d_out;
    float *dx = io->d_in[0];
    (void)run_device;
    if (!dx) return DP_OK;
    if (!s->pixels) copy(dx, dy, run->rows * s->width);
    for (int64_t r = 0; s->pixels && r < run->rows; r++)
        s->vec->pool->transpose(dx + r * s->width, dy + r * s->width, s->channels, s->pixels);
    return DP_OK;
}

const dp_family dp_cpu_flatten = {.open = flatten_open, .forward = flatten_forward, .backward = flatten_backward};

/* ---- concat ---- */

typedef struct concat {
    int n_in;
    int64_t positions, channels, part[DP_MAX_IN]; /* positions of one sample */
} concat;

static dp_status concat_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state,
                             dp_error *err)
{
    const dp_node *n = chain->node[0];
    concat *s = dp_calloc(1, sizeof *s);
    (void)d, (void)capacity, (void)need;
    if (!s) return dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
    s->n_in = n->n_in;
    s->channels = n->shape[n->rank - 1];
    s->positions = n->width / s->channels;
    for (int k = 0; k < n->n_in; k++) s->part[k] = chain->graph->node[n->in[k]].width / s->positions;
    *state = s;
    return DP_OK;
}

static dp_status concat_forward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const concat *s = state;
    float *y = io->out;
    (void)run_device;
    for (int64_t i = 0; i < run->rows * s->positions; i++)
        for (int k = 0; k < s->n_in; y += s->part[k], k++)
            memcpy(y, (const float *)io->in[k] + i * s->part[k], (size_t)s->part[k] * sizeof *y);
    return DP_OK;
}

static dp_status concat_backward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const concat *s = state;
    const float *dy = io->d_out;
    (void)run_device;
    for (int64_t i = 0; i < run->rows * s->positions; i++)
        for (int k = 0; k < s->n_in; dy += s->part[k], k++)
            if (io->d_in[k]) memcpy((float *)io->d_in[k] + i * s->part[k], dy, (size_t)s->part[k] * sizeof *dy);
    return DP_OK;
}

const dp_family dp_cpu_concat = {.open = concat_open, .forward = concat_forward, .backward = concat_backward};
