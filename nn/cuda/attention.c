/* attention: projection to q, k, v in one product, all heads of all samples in one kernel, projection of the result, to which another
 * tensor may be added. Kept for backward: q, k, v, the heads' results, and per row and head the log of the softmax's sum. */
#include "affine.h"
#include "heads.h"

enum { IN_WEIGHT, IN_BIAS, OUT_WEIGHT, OUT_BIAS };

typedef struct attention {
    dp_cuda_affine in, out; /* (t, width) to (t, 3 width); (t, width) to (t, width) */
    int64_t t, width, heads;
    int causal;
    size_t products; /* bytes of workspace that the projections share; ours follows */
} attention;

typedef struct saved {
    float *qkv, *result, *log_sum; /* (m, 3 width), (m, width), (rows, heads, t) */
} saved;
typedef struct scratch {
    float *d_qkv, *d_result;
} scratch;

static int64_t padded(int64_t floats)
{
    return (floats + 63) & ~(int64_t)63;
}

static saved saved_of(const attention *a, int64_t rows, void *p)
{
    const int64_t m = rows * a->t;
    saved s = {.qkv = p};
    s.result = s.qkv + padded(3 * m * a->width);
    s.log_sum = s.result + padded(m * a->width);
    return s;
}

static scratch scratch_of(const attention *a, int64_t rows, void *p)
{
    scratch s = {.d_qkv = (float *)(void *)((char *)p + a->products)};
    s.d_result = s.d_qkv + padded(3 * rows * a->t * a->width);
    return s;
}

static dp_heads heads_of(const attention *a, int64_t rows)
{
    return (dp_heads){rows, a->t, a->heads, a->width / a->heads, a->causal};
}

/* Where the product does not add it, the heads do. */
static const float *late_bias(const attention *a, const dp_io *io)
{
    return a->in.fused ? NULL : io->param[IN_BIAS];
}

static int attention_fuses(const dp_chain *chain, const dp_node *next)
{
    return chain->n == 1 && next->op->kind == DP_OP_ADD && next->n_in == 2 && next->in[0] != next->in[1];
}

static void attention_close(void *state)
{
    attention *a = state;
    dp_cuda_affine_close(&a->in);
    dp_cuda_affine_close(&a->out);
    free(a);
}

static dp_status attention_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state,
                                dp_error *err)
{
    const dp_node *n = chain->node[0];
    const int64_t m = capacity * n->shape[0], width = n->shape[1];
    attention *a = dp_calloc(1, sizeof *a);
    if (!a) return dp_fail(err, DP_ENOMEM, "Out of memory: layer %s", n->name);
    a->t = n->shape[0];
    a->width = width;
    a->heads = (int64_t)n->opt[DP_ATTENTION_HEADS];
    a->causal = n->opt[DP_ATTENTION_CAUSAL] != 0;
    a->in = (dp_cuda_affine){.device = d,
                             .in = width,
                             .out = 3 * width,
                             .bias = 1,
                             .late_bias = 1,
                             .tf32 = d->options.tf32 > 1,
                             .no_dx = chain->graph->node[n->in[0]].op->kind == DP_OP_INPUT};
    a->out = (dp_cuda_affine){
        .device = d, .in = width, .out = width, .bias = 1, .add = chain->n > 1, .tf32 = d->options.tf32 > 1};
    dp_status status = dp_cuda_affine_open(&a->in, m, err);
    if (!status) status = dp_cuda_affine_open(&a->out, m, err);
    if (status) {
        attention_close(a);
        return status;
    }
    a->products = a->in.workspace > a->out.workspace ? a->in.workspace : a->out.workspace;
    a->products = (a->products + DP_CUDA_ALIGNMENT - 1) & ~(size_t)(DP_CUDA_ALIGNMENT - 1);
    need->reads_in[0] = 1;
    need->passes[1] = (uint8_t)a->out.add;
    need->saved = sizeof(float) * (size_t)(padded(3 * m * width) + padded(m * width) + capacity * a->heads * a->t);
    need->workspace = a->products + sizeof(float) * (size_t)(padded(3 * m * width) + padded(m * width));
    *state = a;
    return DP_OK;
}

static dp_status attention_prepare(void *state, int64_t rows, dp_error *err)
{
    attention *a = state;
    DP_TRY(dp_cuda_affine_prepare(&a->in, rows * a->t, err));
    return dp_cuda_affine_prepare(&a->out, rows * a->t, err);
}

static dp_status attention_forward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const attention *a = state;
    const int64_t m = run->rows * a->t;
    const saved k = saved_of(a, run->rows, io->saved);
    const dp_heads h = heads_of(a, run->rows);
    (void)run_device;
    DP_TRY(dp_cuda_affine_forward(&a->in, s, m, io->in[0], io->param[IN_WEIGHT], io->param[IN_BIAS], NULL, k.qkv, NULL,
                                  io->workspace));
    DP_TRY(dp_heads_forward(s, &h, k.qkv, late_bias(a, io), k.result, k.log_sum));
    return dp_cuda_affine_forward(&a->out, s, m, k.result, io->param[OUT_WEIGHT], io->param[OUT_BIAS], io->in[1], io->out, NULL,
                                  io->workspace);
}

static dp_status attention_backward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const attention *a = state;
    const int64_t m = run->rows * a->t;
    const saved k = saved_of(a, run->rows, io->saved);
    const scratch x = scratch_of(a, run->rows, io->workspace);
    const dp_heads h = heads_of(a, run->rows);
    const int through = io->d_in[0] || io->grad[IN_WEIGHT] || io->grad[IN_BIAS];
    (void)run_device;
    if (a->out.add && io->d_in[1] && io->d_in[1] != io->d_out)
        DP_TRY(dp_cuda_copy(s, io->d_in[1], io->d_out, (size_t)(m * a->width) * sizeof(float)));
    DP_TRY(dp_cuda_affine_backward(&a->out, s, m, k.result, io->param[OUT_WEIGHT], NULL, NULL, io->d_out,
                                   through ? x.d_result : NULL, io->grad[OUT_WEIGHT], io->grad[OUT_BIAS], NULL, io->workspace));
    if (!through) return DP_OK;
    DP_TRY(dp_heads_backward(s, &h, k.qkv, late_bias(a, io), k.result, k.log_sum, x.d_result, x.d_qkv));
    return dp_cuda_affine_backward(&a->in, s, m, io->in[0], io->param[IN_WEIGHT], NULL, NULL, x.d_qkv, io->d_in[0],
                                   io->grad[IN_WEIGHT], io->grad[IN_BIAS], NULL, io->workspace);
}

const dp_family dp_cuda_attention = {.fuses = attention_fuses,
                                     .open = attention_open,
                                     .prepare = attention_prepare,
                                     .forward = attention_forward,
                                     .backward = attention_backward,
                                     .close = attention_close};
