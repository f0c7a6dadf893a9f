/* The products of y = x W' + b, made per m. */
#include "affine.h"
#include "onednn.h"
#include <stdlib.h>

/* From here on the weight gradient goes through sgemm: faster for long sums, but its first call generates code for 30 ms. */
enum { LONG_SUM = 1024 };

typedef struct products {
    dp_dnnl_op *y, *dx, *dw; /* dw NULL: sgemm */
} products;

static dp_dnnl_matmul shape_y(const dp_affine *a, int64_t m)
{
    return (dp_dnnl_matmul){m, a->out, a->in, a->in, 1, 1, a->in, a->bias, a->relu};
}

static dp_dnnl_matmul shape_dx(const dp_affine *a, int64_t m)
{
    return (dp_dnnl_matmul){m, a->in, a->out, a->out, 1, a->in, 1, 0, 0};
}

static dp_dnnl_matmul shape_dw(const dp_affine *a, int64_t m)
{
    return (dp_dnnl_matmul){a->out, a->in, m, 1, a->out, a->in, 1, 0, 0};
}

static void products_free(void *entry)
{
    products *p = entry;
    dp_dnnl_op_free(p->y);
    dp_dnnl_op_free(p->dx);
    dp_dnnl_op_free(p->dw);
    free(p);
}

void dp_affine_free(dp_affine *a)
{
    dp_by_rows_free(&a->table, products_free);
    dp_spare_free(&a->workspace);
}

size_t dp_affine_workspace(const dp_affine *a, int64_t m)
{
    const dp_dnnl_matmul shape[3] = {shape_y(a, m), shape_dx(a, m), shape_dw(a, m)};
    size_t most = 0;
    for (int i = 0; i < 3; i++) {
        const size_t bytes = dp_dnnl_matmul_scratch(a->device->dnnl, &shape[i]);
        if (bytes > most) most = bytes;
    }
    return most;
}

static dp_status make(dp_affine *a, dp_dnnl_matmul shape, dp_dnnl_op **op, dp_error *err)
{
    if (*op) return DP_OK;
    DP_TRY(dp_dnnl_matmul_make(a->device->dnnl, &shape, op, err));
    return dp_spare_fit(&a->workspace, dp_dnnl_op_sizes(*op).scratch, err);
}

dp_status dp_affine_prepare(dp_affine *a, int64_t m, dp_error *err)
{
    if (dp_by_rows_find(&a->table, m)) return DP_OK;
    products *p = dp_calloc(1, sizeof *p);
    if (!p) return dp_fail(err, DP_ENOMEM, "Out of memory: matrix products for %lld rows", (long long)m);
    dp_status status = make(a, shape_y(a, m), &p->y, err);
    if (!status && !a->no_dx) status = make(a, shape_dx(a, m), &p->dx, err);
    if (!status && m < LONG_SUM) status = make(a, shape_dw(a, m), &p->dw, err);
    if (!status) status = dp_by_rows_add(&a->table, m, p, err);
    if (status) products_free(p);
    return status;
}

static dp_status multiply(const dp_affine *a, dp_dnnl_op *op, const float *left, const float *right, const float *result,
                          const float *bias, void *workspace)
{
    const void *const arg[DP_DNNL_ARGS] = {left, right, result, bias};
    return dp_dnnl_run(op, arg, dp_spare_use(&a->workspace, workspace, dp_dnnl_op_sizes(op).scratch));
}

dp_status dp_affine_forward(dp_affine *a, int64_t m, const float *x, const float *w, const float *b, float *y, void *workspace)
{
    const products *p = dp_by_rows_find(&a->table, m);
    return p ? multiply(a, p->y, x, w, y, b, workspace) : DP_EARGUMENT;
}

dp_status dp_affine_backward(dp_affine *a, int64_t m, const float *x, const float *w, const float *y, float *dy, float *dx,
                             float *dw, float *db, void *workspace)
{
    products *p = dp_by_rows_find(&a->table, m);
    if (!p) return DP_EARGUMENT;
    if (a->relu) a->device->vec->pointwise->relu_backward(dy, dy, y, m * a->out);
    if (a->bias && db) a->device->vec->flat->columns(db, dy, m, a->out);
    if (dw) {
        DP_TRY(p->dw ? multiply(a, p->dw, dy, x, dw, NULL, workspace)
                     : dp_dnnl_sgemm(1, 0, a->out, a->in, m, dy, a->out, x, a->in, 0, dw, a->in));
    }
    if (!dx) return DP_OK;
    DP_TRY(make(a, shape_dx(a, m), &p->dx, NULL));
    return multiply(a, p->dx, dy, w, dx, NULL, workspace);
}
