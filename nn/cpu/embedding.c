/* embedding (a row of a table per token) and position (a learned row added to each position). */
#include "cpu.h"
#include <stdlib.h>
#include <string.h>

typedef struct table {
    const dp_vec *vec;
    int64_t positions, width, vocab; /* positions of one sample; width of a row of the table */
} table;

static table *open_table(dp_be_device *d, const dp_chain *chain, dp_error *err)
{
    const dp_node *n = chain->node[0];
    table *s = dp_calloc(1, sizeof *s);
    if (!s) {
        dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
        return NULL;
    }
    s->vec = d->vec;
    s->width = n->shape[n->rank - 1];
    s->positions = n->width / s->width;
    return s;
}

static dp_status embedding_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state,
                                dp_error *err)
{
    table *s = open_table(d, chain, err);
    (void)capacity;
    if (!s) return DP_ENOMEM;
    s->vocab = (int64_t)chain->node[0]->opt[DP_EMBEDDING_VOCAB];
    need->reads_in[0] = 1;
    *state = s;
    return DP_OK;
}

static dp_status embedding_forward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const table *s = state;
    const int32_t *token = io->in[0];
    float *y = io->out;
    (void)run_device;
    for (int64_t i = 0; i < run->rows * s->positions; i++) {
        if (token[i] < 0 || token[i] >= s->vocab) return DP_EDATA;
        memcpy(y + i * s->width, io->param[0] + token[i] * s->width, (size_t)s->width * sizeof *y);
    }
    return DP_OK;
}

static dp_status embedding_backward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const table *s = state;
    const int32_t *token = io->in[0];
    const float *dy = io->d_out;
    float *grad = io->grad[0];
    (void)run_device;
    if (!grad) return DP_OK;
    memset(grad, 0, (size_t)(s->vocab * s->width) * sizeof *grad);
    for (int64_t i = 0; i < run->rows * s->positions; i++) {
        float *row = grad + token[i] * s->width;
        s->vec->flat->add(row, row, dy + i * s->width, s->width);
    }
    return DP_OK;
}

const dp_family dp_cpu_embedding = {.open = embedding_open, .forward = embedding_forward, .backward = embedding_backward};

static dp_status position_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state,
                               dp_error *err)
{
    (void)capacity;
    need->in_place = need->passes[0] = 1;
    *state = open_table(d, chain, err);
    return *state ? DP_OK : DP_ENOMEM;
}

static dp_status position_forward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const table *s = state;
    int64_t n = s->positions * s->width;
    (void)run_device;
    for (int64_t r = 0; r < run->rows; r++)
        s->vec->flat->add((float *)io->out + r * n, (const float *)io->in[0] + r * n, io->param[0], n);
    return DP_OK;
}

static dp_status position_backward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const table *s = state;
    int64_t n = s->positions * s->width;
    (void)run_device;
    if (io->grad[0]) s->vec->flat->columns(io->grad[0], io->d_out, run->rows, n);
    if (io->d_in[0] && io->d_in[0] != io->d_out) memcpy(io->d_in[0], io->d_out, (size_t)(run->rows * n) * sizeof(float));
    return DP_OK;
}

const dp_family dp_cpu_position = {.open = position_open, .forward = position_forward, .backward = position_backward};
