/* attention: projection to q, k, v in one product, every head of every sample by the loops of vec/attention.c, projection of the
 * result. Kept for backward: q, k, v, the heads' results, and per row and head the log of the softmax's sum. */
#include "affine.h"
#include <math.h>
#include <stdlib.h>

enum { IN_WEIGHT, IN_BIAS, OUT_WEIGHT, OUT_BIAS };

typedef struct attention {
    dp_be_device *device;
    dp_affine in, out; /* (t, width) to (t, 3 width); (t, width) to (t, width) */
    int64_t t, width, heads;
    int causal;
    size_t products; /* bytes of workspace that the projections share; ours follows */
} attention;

/* Parts of `saved` and, behind the products' scratch, of `workspace`, as pointers: rows of samples by t. */
typedef struct saved {
    float *qkv, *result, *log_sum; /* (m, 3 width), (m, width), (rows, heads, t) */
} saved;
typedef struct scratch {
    float *head, *d_qkv, *d_result;
} scratch;

static int64_t padded(int64_t floats) /* every part starts at 64 bytes */
{
    return (floats + 15) & ~(int64_t)15;
}

static int64_t head_work(const attention *a)
{
    return padded(a->device->vec->attention->work(a->t, a->width / a->heads));
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
    scratch s = {.head = (float *)((char *)p + a->products)};
    s.d_qkv = s.head + head_work(a);
    s.d_result = s.d_qkv + padded(3 * rows * a->t * a->width);
    return s;
}

static dp_head head_of(const attention *a, float *work)
{
    const int64_t width = a->width / a->heads;
    return (dp_head){a->t, width, 3 * a->width, a->width, a->causal, 1.0f / sqrtf((float)width), work};
}

static dp_status attention_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state,
                                dp_error *err)
{
    const dp_node *n = chain->node[0];
    const int64_t m = capacity * n->shape[0], width = n->shape[1];
    attention *a = dp_calloc(1, sizeof *a);
    if (!a) return dp_fail(err, DP_ENOMEM, "Out of memory: layer %s", n->name);
    a->device = d;
    a->t = n->shape[0];
    a->width = width;
    a->heads = (int64_t)n->opt[DP_ATTENTION_HEADS];
    a->causal = n->opt[DP_ATTENTION_CAUSAL] != 0;
    a->in = (dp_affine){
        .device = d, .in = width, .out = 3 * width, .bias = 1, .no_dx = chain->graph->node[n->in[0]].op->kind == DP_OP_INPUT};
    a->out = (dp_affine){.device = d, .in = width, .out = width, .bias = 1};
    const size_t in = dp_affine_workspace(&a->in, m), out = dp_affine_workspace(&a->out, m);
    a->products = ((in > out ? in : out) + 63) & ~(size_t)63;
    a->in.workspace = a->out.workspace = (dp_spare){.device = d, .what = n->name, .reserved = a->products};
    need->reads_in[0] = 1;
    need->saved = sizeof(float) * (size_t)(padded(3 * m * width) + padded(m * width) + capacity * a->heads * a->t);
    need->workspace = a->products + sizeof(float) * (size_t)(head_work(a) + padded(3 * m * width) + padded(m * width));
    *state = a;
    return DP_OK;
}

static dp_status attention_prepare(void *state, int64_t rows, dp_error *err)
{
    attention *a = state;
    DP_TRY(dp_affine_prepare(&a->in, rows * a->t, err));
    return dp_affine_prepare(&a->out, rows * a->t, err);
}

static dp_status attention_forward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    (void)run_device;
    attention *a = state;
    const int64_t m = run->rows * a->t, w = a->width / a->heads;
    const saved s = saved_of(a, run->rows, io->saved);
    const dp_head head = head_of(a, scratch_of(a, run->rows, io->workspace).head);
    DP_TRY(dp_affine_forward(&a->in, m, io->in[0], io->param[IN_WEIGHT], io->param[IN_BIAS], s.qkv, io->workspace));
    for (int64_t r = 0; r < run->rows; r++) {
        for (int64_t h = 0; h < a->heads; h++) {
            const float *q = s.qkv + r * a->t * 3 * a->width + h * w;
            a->device->vec->attention->forward(&head, q, q + a->width, q + 2 * a->width, s.result + r * a->t * a->width + h * w,
                                               s.log_sum + (r * a->heads + h) * a->t);
        }
    }
    return dp_affine_forward(&a->out, m, s.result, io->param[OUT_WEIGHT], io->param[OUT_BIAS], io->out, io->workspace);
}

static dp_status attention_backward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    (void)run_device;
    attention *a = state;
    const int64_t m = run->rows * a->t, w = a->width / a->heads;
    const saved s = saved_of(a, run->rows, io->saved);
    const scratch x = scratch_of(a, run->rows, io->workspace);
    const dp_head head = head_of(a, x.head);
    const int through = io->d_in[0] || io->grad[IN_WEIGHT] || io->grad[IN_BIAS];
    DP_TRY(dp_affine_backward(&a->out, m, s.result, io->param[OUT_WEIGHT], NULL, io->d_out, through ? x.d_result : NULL,
                              io->grad[OUT_WEIGHT], io->grad[OUT_BIAS], io->workspace));
    if (!through) return DP_OK;
    for (int64_t r = 0; r < run->rows; r++) {
        for (int64_t h = 0; h < a->heads; h++) {
            const int64_t at = r * a->t * 3 * a->width + h * w, at_result = r * a->t * a->width + h * w;
            const float *q = s.qkv + at;
            float *dq = x.d_qkv + at;
            a->device->vec->attention->backward(&head, q, q + a->width, q + 2 * a->width, s.result + at_result,
                                                s.log_sum + (r * a->heads + h) * a->t, x.d_result + at_result, dq,
                                                dq + a->width, dq + 2 * a->width);
        }
    }
    return dp_affine_backward(&a->in, m, io->in[0], io->param[IN_WEIGHT], NULL, x.d_qkv, io->d_in[0], io->grad[IN_WEIGHT],
                              io->grad[IN_BIAS], io->workspace);
}

static void attention_close(void *state)
{
    attention *a = state;
    dp_affine_free(&a->in);
    dp_affine_free(&a->out);
    free(a);
}

const dp_family dp_cpu_attention = {.open = attention_open,
                                    .prepare = attention_prepare,
                                    .forward = attention_forward,
                                    .backward = attention_backward,
                                    .close = attention_close};
