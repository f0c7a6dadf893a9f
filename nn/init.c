/* Starting values by PyTorch's rules, and the two orders of a tensor. Element i of a tensor (in PyTorch's order) draws from
 * (seed, hash of the tensor's name, i): a layer's start depends on no other layer, no thread and no layout. */
#include "../dp/base/philox.h"
#include "../dp/base/text.h"
#include "params.h"
#include <math.h>
#include <string.h>

/* A picture's channels come first in files and last in memory, in a convolution's window as in the columns of a linear layer behind a
 * flatten: both are `rows` tables of channels x points in files, points x channels in memory. */
typedef struct order {
    int64_t rows, channels, points;
} order;

static order order_of(const dp_tensor *t)
{
    if (t->rank == 4) return (order){t->shape[0], t->shape[1], t->shape[2] * t->shape[3]};
    if (t->flat_hwc[0]) return (order){t->shape[0], t->flat_hwc[2], t->flat_hwc[0] * t->flat_hwc[1]};
    return (order){1, t->count, 1};
}

void dp_tensor_to_file(const dp_tensor *t, const float *memory, float *file)
{
    order o = order_of(t);
    for (int64_t r = 0; r < o.rows; r++, memory += o.channels * o.points)
        for (int64_t c = 0; c < o.channels; c++)
            for (int64_t p = 0; p < o.points; p++) *file++ = memory[p * o.channels + c];
}

int64_t dp_tensor_row(const dp_tensor *t)
{
    order o = order_of(t);
    return o.channels > 1 && o.points > 1 ? o.channels * o.points : 0;
}

void dp_tensor_to_file_here(const dp_tensor *t, float *memory, float *scratch)
{
    order o = order_of(t);
    int64_t row = dp_tensor_row(t);
    for (int64_t r = 0; row && r < o.rows; r++, memory += row) {
        memcpy(scratch, memory, (size_t)row * sizeof *scratch);
        for (int64_t c = 0; c < o.channels; c++)
            for (int64_t p = 0; p < o.points; p++) memory[c * o.points + p] = scratch[p * o.channels + c];
    }
}

void dp_tensor_from_file(const dp_tensor *t, const float *file, float *memory)
{
    order o = order_of(t);
    for (int64_t r = 0; r < o.rows; r++, memory += o.channels * o.points)
        for (int64_t c = 0; c < o.channels; c++)
            for (int64_t p = 0; p < o.points; p++) memory[p * o.channels + c] = *file++;
}

/* Elements 4 * quad .. + 3: uniform in [-bound, bound), or for bound = 0 from N(0, 1) by Box and Muller's pairs. */
static void draw4(uint64_t seed, uint32_t purpose, int64_t quad, double bound, float v[4])
{
    const double two_pi = 6.283185307179586;
    dp_u32x4 u = dp_draw(seed, purpose, (uint64_t)quad >> 32, 0, (uint32_t)quad);
    if (bound > 0) {
        for (int i = 0; i < 4; i++) v[i] = (float)((2.0 * (double)dp_uniform(u.v[i]) - 1.0) * bound);
        return;
    }
    for (int i = 0; i < 4; i += 2) {
        double radius = sqrt(-2.0 * log(((double)u.v[i] + 0.5) / 4294967296.0)),
               angle = two_pi * (double)u.v[i + 1] / 4294967296.0;
        v[i] = (float)(radius * cos(angle));
        v[i + 1] = (float)(radius * sin(angle));
    }
}

static void init_tensor(const dp_tensor *t, uint64_t seed, float *memory)
{
    order o = order_of(t);
    uint32_t purpose = (uint32_t)dp_hash(t->name, strlen(t->name));
    double bound = t->init == DP_INIT_KAIMING  ? 1.0 / sqrt(t->fan_in)
                   : t->init == DP_INIT_XAVIER ? sqrt(6.0 / (t->fan_in + t->fan_out))
                                               : 0.0;
    float v[4] = {0};
    int64_t i = 0;
    if (t->init == DP_INIT_ZERO) return; /* the arrays are zero already */
    if (t->init == DP_INIT_ONE) {
        for (; i < t->count; i++) memory[i] = 1.0f;
        return;
    }
    for (int64_t r = 0; r < o.rows; r++, memory += o.channels * o.points)
        for (int64_t c = 0; c < o.channels; c++)
            for (int64_t p = 0; p < o.points; p++, i++) {
                if (i % 4 == 0) draw4(seed, purpose, i / 4, bound, v);
                memory[p * o.channels + c] = v[i % 4];
            }
}

void dp_params_init(const dp_params *p, const dp_graph *g, uint64_t seed, float *param, float *buffer)
{
    memset(param, 0, (size_t)p->count * sizeof *param);
    memset(buffer, 0, (size_t)p->buffer_count * sizeof *buffer);
    for (int t = 0; t < p->n_params; t++)
        init_tensor(&g->tensor[t], seed, (g->tensor[t].buffer ? buffer : param) + p->param[t].offset);
}
