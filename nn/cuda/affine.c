/* The products of y = x W' + b, made per row count. In the library's column-major words x is (in, m), W is (in, out), y is (out, m). */
#include "affine.h"

typedef struct dp_cuda_affine_rows {
    int64_t m;
    dp_lt_product *y, *dx, *dw;
} dp_cuda_affine_rows;

static size_t padded(size_t bytes)
{
    return (bytes + DP_CUDA_ALIGNMENT - 1) & ~(size_t)(DP_CUDA_ALIGNMENT - 1);
}

/* -- shapes -- */

static dp_lt_epilogue activation(const dp_cuda_affine *a)
{
    switch (a->act) {
    case DP_ACT_RELU: return a->after ? DP_LT_RELU_AUX : DP_LT_RELU;
    case DP_ACT_GELU: return DP_LT_GELU_AUX;
    default: return DP_LT_PLAIN;
    }
}

static dp_lt_shape shape_y(const dp_cuda_affine *a, int64_t m)
{
    return (dp_lt_shape){.m = a->out,
                         .n = m,
                         .k = a->in,
                         .trans_a = 1,
                         .epilogue = a->fused ? activation(a) : DP_LT_PLAIN,
                         .bias = a->fused && a->bias,
                         .add = a->add,
                         .tf32 = a->tf32,
                         .tune = !a->n_rows};
}

static dp_lt_shape shape_dx(const dp_cuda_affine *a, int64_t m)
{
    return (dp_lt_shape){.m = a->in,
                         .n = m,
                         .k = a->out,
                         .epilogue = a->before == DP_ACT_RELU   ? DP_LT_RELU_GRADIENT
                                     : a->before == DP_ACT_GELU ? DP_LT_GELU_GRADIENT
                                                                : DP_LT_PLAIN,
                         .tf32 = a->tf32,
                         .tune = !a->n_rows};
}

static dp_lt_shape shape_dw(const dp_cuda_affine *a, int64_t m)
{
    return (dp_lt_shape){.m = a->in,
                         .n = a->out,
                         .k = m,
                         .trans_b = 1,
                         .epilogue = a->sums ? DP_LT_SUMS_B : DP_LT_PLAIN,
                         .tf32 = a->tf32,
                         .tune = !a->n_rows};
}

/* -- making -- */

/* DP_OK and NULL: there is none. */
static dp_status try_make(const dp_cuda_affine *a, dp_lt_shape shape, dp_lt_product **p, dp_error *err)
{
    return dp_lt_make(a->device, &shape, a->products, p, err);
}

static dp_status make(const dp_cuda_affine *a, dp_lt_shape shape, dp_lt_product **p, dp_error *err)
{
    DP_TRY(try_make(a, shape, p, err));
    if (*p) return DP_OK;
    return dp_fail(err, DP_EDEVICE, "cublasLt has no algorithm for a product of %lld x %lld by %lld x %lld on %s.",
                   (long long)shape.m, (long long)shape.k, (long long)shape.k, (long long)shape.n, a->device->name);
}

static void rows_free(dp_cuda_affine_rows *r)
{
    dp_lt_free(r->y);
    dp_lt_free(r->dx);
    dp_lt_free(r->dw);
}

static dp_status keep(dp_cuda_affine *a, const dp_cuda_affine_rows *r, dp_error *err)
{
    dp_cuda_affine_rows *more = realloc(a->rows, (size_t)(a->n_rows + 1) * sizeof *more);
    if (!more) return dp_fail(err, DP_ENOMEM, "Out of memory: matrix products for %lld rows", (long long)r->m);
    a->rows = more;
    a->rows[a->n_rows++] = *r;
    return DP_OK;
}

static const dp_cuda_affine_rows *find(const dp_cuda_affine *a, int64_t m)
{
    for (int i = 0; i < a->n_rows; i++)
        if (a->rows[i].m == m) return &a->rows[i];
    return NULL;
}

dp_status dp_cuda_affine_passes(const dp_cuda_affine *a, int64_t m, int *passes, dp_error *err)
{
    dp_lt_product *p = NULL;
    *passes = 0;
    if (a->device->options.no_epilogue) return DP_OK;
    DP_TRY(dp_lt_make(a->device, (dp_lt_shape[]){shape_dx(a, m)}, dp_lt_limit(a->device), &p, err));
    *passes = p != NULL;
    dp_lt_free(p);
    return DP_OK;
}

/* The product as wished, or, where the library has it not, without its epilogue. */
static dp_status make_y(dp_cuda_affine *a, int64_t m, dp_lt_product **p, dp_error *err)
{
    a->fused = !a->device->options.no_epilogue;
    if (a->fused) DP_TRY(try_make(a, shape_y(a, m), p, err));
    if (*p) return DP_OK;
    a->fused = 0;
    a->after = 0;
    return make(a, shape_y(a, m), p, err);
}

static dp_status make_dw(dp_cuda_affine *a, int64_t m, dp_lt_product **p, dp_error *err)
{
    /* a pass over dy that applies the activation's gradient sums it too */
    a->sums = a->bias && !a->device->options.no_epilogue && (a->act == DP_ACT_NONE || a->after);
    if (a->sums) DP_TRY(try_make(a, shape_dw(a, m), p, err));
    if (*p) return DP_OK;
    a->sums = 0;
    return make(a, shape_dw(a, m), p, err);
}

static size_t larger(size_t x, size_t y)
{
    return x > y ? x : y;
}

dp_status dp_cuda_affine_open(dp_cuda_affine *a, int64_t m, dp_error *err)
{
    dp_cuda_affine_rows r = {.m = m};
    a->products = dp_lt_limit(a->device);
    dp_status status = make_y(a, m, &r.y, err);
    if (!status) status = make_dw(a, m, &r.dw, err);
    if (!status && !a->no_dx) status = make(a, shape_dx(a, m), &r.dx, err);
    if (!status) status = keep(a, &r, err);
    if (status) {
        rows_free(&r);
        return status;
    }
    a->products = larger(dp_lt_workspace(r.y), larger(dp_lt_workspace(r.dw), dp_lt_workspace(r.dx)));
    a->workspace = padded(larger(a->products, dp_act_workspace(a->out))) + (a->sums ? (size_t)a->out * sizeof(float) : 0);
    return DP_OK;
}

/* A row count beyond the first gets the same epilogues within the same workspace. */
dp_status dp_cuda_affine_prepare(dp_cuda_affine *a, int64_t m, dp_error *err)
{
    if (find(a, m)) return DP_OK;
    dp_cuda_affine_rows r = {.m = m};
    dp_status status = make(a, shape_y(a, m), &r.y, err);
    if (!status) status = make(a, shape_dw(a, m), &r.dw, err);
    if (!status && !a->no_dx) status = make(a, shape_dx(a, m), &r.dx, err);
    if (!status) status = keep(a, &r, err);
    if (status) rows_free(&r);
    return status;
}

void dp_cuda_affine_close(dp_cuda_affine *a)
{
    for (int i = 0; i < a->n_rows; i++) rows_free(&a->rows[i]);
    free(a->rows);
}

/* -- running -- */

static int64_t aux_stride(const dp_cuda_affine *a) /* of the values before a gelu */
{
    return a->fused ? dp_lt_aux_stride(DP_LT_GELU_AUX, a->out) : a->out;
}

size_t dp_cuda_affine_saved(const dp_cuda_affine *a, int64_t m)
{
    if (a->act == DP_ACT_GELU) return (size_t)(m * aux_stride(a)) * sizeof(float);
    return a->act == DP_ACT_RELU && a->after ? dp_lt_aux_bytes(DP_LT_RELU_AUX, a->out, m) : 0;
}

int dp_cuda_affine_reads_out(const dp_cuda_affine *a)
{
    return a->act == DP_ACT_RELU && !a->after;
}

dp_status dp_cuda_affine_forward(const dp_cuda_affine *a, dp_be_stream *s, int64_t m, const float *x, const float *w,
                                 const float *b, const float *other, float *y, void *saved, void *workspace)
{
    const dp_cuda_affine_rows *r = find(a, m);
    if (!r) return DP_EARGUMENT;
    if (a->fused) return dp_lt_run(r->y, s, w, x, other, y, b, saved, workspace);
    float *before = a->act == DP_ACT_GELU ? saved : NULL;
    DP_TRY(dp_lt_run(r->y, s, w, x, other, before ? before : y, NULL, NULL, workspace));
    return dp_act_forward(s, a->act, y, before, a->bias && !a->late_bias ? b : NULL, m, a->out);
}

dp_status dp_cuda_affine_backward(const dp_cuda_affine *a, dp_be_stream *s, int64_t m, const float *x, const float *w,
                                  const float *y, void *saved, float *dy, float *dx, float *dw, float *db, void *before,
                                  void *workspace)
{
    const dp_cuda_affine_rows *r = find(a, m);
    if (!r || (dx && !r->dx)) return DP_EARGUMENT;
    const dp_act act = a->after ? DP_ACT_NONE : a->act;
    const int gelu = act == DP_ACT_GELU, summed = !a->bias || (a->sums && dw);
    DP_TRY(
        dp_act_backward(s, act, dy, gelu ? saved : y, gelu ? aux_stride(a) : a->out, m, a->out, summed ? NULL : db, workspace));
    if (dw) {
        float *sums = db ? db : (float *)((char *)workspace + padded(larger(a->products, dp_act_workspace(a->out))));
        DP_TRY(dp_lt_run(r->dw, s, x, dy, NULL, dw, a->sums ? sums : NULL, NULL, workspace));
    }
    return dx ? dp_lt_run(r->dx, s, w, dy, NULL, dx, NULL, before, workspace) : DP_OK;
}
