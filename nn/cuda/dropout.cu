/* Dropout. The mask is a pure function of (seed, layer, sample, epoch, element), the same as the CPU's by bits, so backward draws it again
 * instead of keeping it. What is drawn from is read from the device's copy of the run: a captured graph finds new values there. */
#include "../../dp/base/philox.h"
#include "launch.h"
#include <math.h>

typedef struct dropout {
    uint32_t purpose, limit; /* kept where draw >> 8 >= limit */
    float scale;
    int64_t width;
} dropout;

/* A thread for four elements of a sample: one draw of the generator. */
static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_dropout(float *y, const float *x, const dropout d, const dp_run *run, int64_t quads, int64_t n)
{
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    const uint64_t seed = run->seed, epoch = run->epoch, *ids = DP_AT(run->ids);
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const int64_t row = i / quads, quad = i % quads, at = row * d.width + quad * 4;
        const dp_u32x4 r = dp_draw(seed, d.purpose, ids[row], epoch, (uint32_t)quad);
        float keep[4];
        for (int k = 0; k < 4; k++) keep[k] = r.v[k] >> 8 >= d.limit ? d.scale : 0.0f;
        if (d.width % 4 == 0) {
            const float4 v = reinterpret_cast<const float4 *>(x)[at / 4];
            reinterpret_cast<float4 *>(y)[at / 4] = make_float4(
                keep[0] > 0 ? v.x * keep[0] : 0, keep[1] > 0 ? v.y * keep[1] : 0, keep[2] > 0 ? v.z * keep[2] : 0,
                keep[3] > 0 ? v.w * keep[3] : 0);
            continue;
        }
        for (int k = 0; k < 4 && quad * 4 + k < d.width; k++) y[at + k] = keep[k] > 0 ? x[at + k] * keep[k] : 0;
    }
}

static dp_status dropout_open(dp_be_device *, const dp_chain *chain, int64_t, dp_need *need, void **state, dp_error *err)
{
    const dp_node *n = chain->node[0];
    const double p = n->opt[DP_DROPOUT_P];
    dropout *d = (dropout *)dp_calloc(1, sizeof *d);
    if (!d) return dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
    d->purpose = n->key;
    d->limit = (uint32_t)ceil(p * 16777216.0);
    d->scale = p < 1 ? (float)(1 / (1 - p)) : 0.0f;
    d->width = n->width;
    need->in_place = 1;
    need->passes[0] = 1;
    *state = d;
    return DP_OK;
}

static dp_status draw(const dropout *d, dp_be_stream *s, const dp_run *run, const dp_run *run_device, void *y, const void *x)
{
    const int64_t quads = (d->width + 3) / 4, n = run->rows * quads;
    if (!run->train) return y == x ? DP_OK : dp_cuda_copy(s, y, x, (size_t)(run->rows * d->width) * sizeof(float));
    DP_TRY_LAUNCH(s, dp_k_dropout, dp_blocks(s->device, n, DP_BLOCK), DP_BLOCK, 0, (float *)y, (const float *)x, *d, run_device,
                  quads, n);
    return DP_OK;
}

static dp_status dropout_forward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    return draw((const dropout *)state, s, run, run_device, io->out, io->in[0]);
}

static dp_status dropout_backward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    return io->d_in[0] ? draw((const dropout *)state, s, run, run_device, io->d_in[0], io->d_out) : DP_OK;
}

const dp_family dp_cuda_dropout = {.fuses = nullptr,
                                   .open = dropout_open,
                                   .prepare = nullptr,
                                   .forward = dropout_forward,
                                   .backward = dropout_backward,
                                   .partial = nullptr,
                                   .close = nullptr};
