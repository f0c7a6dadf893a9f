/* In place of nn/cpu/onednn.c where oneDNN is not installed: CPU devices then say so when they are opened, and GPUs need none of it.
 * What can only be called with an open device does nothing. */
#include "../../nn/cpu/onednn.h"

static dp_status absent(dp_error *err)
{
    return dp_fail(err, DP_EDEVICE,
                   "This build has no oneDNN, so that no CPU device can be used; install it (libdnnl-dev) and build again.");
}

dp_status dp_dnnl_open(dp_dnnl **x, int64_t *created, dp_error *err)
{
    *x = NULL;
    *created = 0;
    return absent(err);
}

void dp_dnnl_close(dp_dnnl *x)
{
    (void)x;
}

void dp_dnnl_op_free(dp_dnnl_op *op)
{
    (void)op;
}

dp_status dp_dnnl_matmul_make(dp_dnnl *x, const dp_dnnl_matmul *mm, dp_dnnl_op **op, dp_error *err)
{
    (void)x, (void)mm, (void)op;
    return absent(err);
}

size_t dp_dnnl_matmul_scratch(dp_dnnl *x, const dp_dnnl_matmul *mm)
{
    (void)x, (void)mm;
    return 0;
}

dp_status dp_dnnl_sgemm(int a_transposed, int b_transposed, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                        const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    (void)a_transposed, (void)b_transposed, (void)m, (void)n, (void)k, (void)a, (void)lda, (void)b, (void)ldb, (void)beta;
    (void)c, (void)ldc;
    return DP_EDEVICE;
}

dp_status dp_dnnl_conv_make(dp_dnnl *x, const dp_dnnl_conv *c, dp_dnnl_pass pass, dp_dnnl_op **op, dp_error *err)
{
    (void)x, (void)c, (void)pass, (void)op;
    return absent(err);
}

dp_status dp_dnnl_conv_sizes(dp_dnnl *x, const dp_dnnl_conv *c, dp_dnnl_pass pass, dp_dnnl_sizes *sizes, dp_error *err)
{
    (void)x, (void)c, (void)pass, (void)sizes;
    return absent(err);
}

dp_status dp_dnnl_weights_reorder(const dp_dnnl_op *conv, dp_dnnl_op **reorder, dp_error *err)
{
    (void)conv, (void)reorder;
    return absent(err);
}

int dp_dnnl_same_weights(const dp_dnnl_op *a, const dp_dnnl_op *b)
{
    (void)a, (void)b;
    return 0;
}

dp_status dp_dnnl_run(dp_dnnl_op *op, const void *const arg[DP_DNNL_ARGS], void *scratch)
{
    (void)op, (void)arg, (void)scratch;
    return DP_EDEVICE;
}

dp_dnnl_sizes dp_dnnl_op_sizes(const dp_dnnl_op *op)
{
    (void)op;
    return (dp_dnnl_sizes){0};
}

const char *dp_dnnl_implementation(const dp_dnnl_op *op)
{
    (void)op;
    return "none";
}
