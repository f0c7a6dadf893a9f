/* All calls of cublasLt. Pointers are only known to be 16-byte aligned: parameters start anywhere on 64 bytes in their flat array. */
#include "lt.h"
#include "../../dp/base/text.h"
#include "tune.h"
#include <cublasLt.h>

enum { ALIGNED = 16, RELU_STRIDE = 128, GELU_STRIDE = 8, CANDIDATES = 8 };

struct dp_lt {
    cublasLtHandle_t handle;
};

struct dp_lt_product {
    dp_be_device *device;
    dp_lt_shape shape;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
};

static dp_status check(dp_be_device *d, cublasStatus_t e, const char *call, dp_error *err)
{
    if (e == CUBLAS_STATUS_SUCCESS) return DP_OK;
    return dp_cuda_failed(d, e == CUBLAS_STATUS_ALLOC_FAILED ? DP_ENOMEM : DP_EDEVICE, (int)e, call, cublasLtGetStatusName(e),
                          err);
}
#define LT_TRY(d, call, err) DP_TRY(check(d, call, #call, err))

dp_status dp_lt_open(dp_be_device *d, dp_error *err)
{
    if (d->lt) return DP_OK;
    struct dp_lt *lt = dp_calloc(1, sizeof *lt);
    if (!lt) return dp_fail(err, DP_ENOMEM, "Out of memory: matrix products of %s", d->name);
    const dp_status status = check(d, cublasLtCreate(&lt->handle), "cublasLtCreate", err);
    if (status) {
        free(lt);
        return status;
    }
    d->lt = lt;
    return DP_OK;
}

size_t dp_lt_version(void)
{
    return cublasLtGetVersion();
}

void dp_lt_close(dp_be_device *d)
{
    if (!d->lt) return;
    if (!dp_cuda_lost(d)) (void)check(d, cublasLtDestroy(d->lt->handle), "cublasLtDestroy", NULL);
    free(d->lt);
    d->lt = NULL;
}

size_t dp_lt_limit(const dp_be_device *d)
{
    return d->options.workspace > 0 ? (size_t)d->options.workspace : (size_t)32 << 20;
}

int64_t dp_lt_aux_stride(dp_lt_epilogue e, int64_t m)
{
    const int64_t unit = e == DP_LT_RELU_AUX || e == DP_LT_RELU_GRADIENT ? RELU_STRIDE : GELU_STRIDE;
    return (m + unit - 1) / unit * unit;
}

size_t dp_lt_aux_bytes(dp_lt_epilogue e, int64_t m, int64_t n)
{
    const size_t elements = (size_t)(dp_lt_aux_stride(e, m) * n);
    switch (e) {
    case DP_LT_RELU_AUX:
    case DP_LT_RELU_GRADIENT: return elements / 8;
    case DP_LT_GELU_AUX:
    case DP_LT_GELU_GRADIENT: return elements * sizeof(float);
    default: return 0;
    }
}

static cublasLtEpilogue_t epilogue_of(const dp_lt_shape *s)
{
    switch (s->epilogue) {
    case DP_LT_RELU: return s->bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case DP_LT_RELU_AUX: return s->bias ? CUBLASLT_EPILOGUE_RELU_AUX_BIAS : CUBLASLT_EPILOGUE_RELU_AUX;
    case DP_LT_GELU_AUX: return s->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case DP_LT_RELU_GRADIENT: return CUBLASLT_EPILOGUE_DRELU;
    case DP_LT_GELU_GRADIENT: return CUBLASLT_EPILOGUE_DGELU;
    case DP_LT_SUMS_B: return CUBLASLT_EPILOGUE_BGRADB;
    default: return s->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
}

static dp_status set(dp_lt_product *p, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes, dp_error *err)
{
    return check(p->device, cublasLtMatmulDescSetAttribute(p->desc, attribute, value, bytes), "cublasLtMatmulDescSetAttribute",
                 err);
}

static dp_status set_layout(dp_lt_product *p, cublasLtMatrixLayout_t *layout, int64_t rows, int64_t cols, int transposed,
                            dp_error *err)
{
    const int64_t height = transposed ? cols : rows, width = transposed ? rows : cols;
    LT_TRY(p->device, cublasLtMatrixLayoutCreate(layout, CUDA_R_32F, (uint64_t)height, (uint64_t)width, height), err);
    return DP_OK;
}

static dp_status describe(dp_lt_product *p, dp_error *err)
{
    const dp_lt_shape *s = &p->shape;
    const cublasComputeType_t compute = s->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    const cublasOperation_t a = s->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, b = s->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = epilogue_of(s);
    LT_TRY(p->device, cublasLtMatmulDescCreate(&p->desc, compute, CUDA_R_32F), err);
    DP_TRY(set(p, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a, err));
    DP_TRY(set(p, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b, err));
    DP_TRY(set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue, err));
    if (dp_lt_aux_bytes(s->epilogue, s->m, s->n)) {
        const int64_t stride = dp_lt_aux_stride(s->epilogue, s->m);
        DP_TRY(set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &stride, sizeof stride, err));
    }
    DP_TRY(set_layout(p, &p->a, s->m, s->k, s->trans_a, err));
    DP_TRY(set_layout(p, &p->b, s->k, s->n, s->trans_b, err));
    return set_layout(p, &p->d, s->m, s->n, 0, err);
}

/* The heuristic takes the alignment of bias and aux from their addresses: any aligned one will do. */
static dp_status set_pointers(const dp_lt_product *p, const void *bias, const void *aux, dp_error *err)
{
    dp_lt_product *q = (dp_lt_product *)(uintptr_t)p; /* the descriptor is ours alone, and this thread's */
    if (p->shape.bias || p->shape.epilogue == DP_LT_SUMS_B)
        DP_TRY(set(q, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias, err));
    if (dp_lt_aux_bytes(p->shape.epilogue, p->shape.m, p->shape.n))
        DP_TRY(set(q, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux, err));
    return DP_OK;
}

typedef struct candidates {
    cublasLtMatmulHeuristicResult_t of[CANDIDATES]; /* the library's favourite first */
    int n;
} candidates;

static dp_status ask_with(const dp_lt_product *p, cublasLtMatmulPreference_t preference, size_t limit, candidates *c,
                          dp_error *err)
{
    static const cublasLtMatmulPreferenceAttributes_t alignment[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint64_t most = limit;
    const uint32_t aligned = ALIGNED;
    const int wanted = p->shape.tune && p->device->options.tune_measure ? CANDIDATES : 1;
    int found = 0;
    LT_TRY(p->device,
           cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most), err);
    for (size_t i = 0; i < sizeof alignment / sizeof *alignment; i++)
        LT_TRY(p->device, cublasLtMatmulPreferenceSetAttribute(preference, alignment[i], &aligned, sizeof aligned), err);
    const cublasStatus_t e = cublasLtMatmulAlgoGetHeuristic(p->device->lt->handle, p->desc, p->a, p->b, p->d, p->d, preference,
                                                            wanted, c->of, &found);
    if (e == CUBLAS_STATUS_NOT_SUPPORTED || e == CUBLAS_STATUS_INVALID_VALUE) return DP_OK;
    DP_TRY(check(p->device, e, "cublasLtMatmulAlgoGetHeuristic", err));
    while (c->n < found && c->of[c->n].state == CUBLAS_STATUS_SUCCESS) c->n++;
    return DP_OK;
}

static dp_status ask(const dp_lt_product *p, size_t limit, candidates *c, dp_error *err)
{
    const void *anywhere = (const void *)(uintptr_t)DP_CUDA_ALIGNMENT;
    cublasLtMatmulPreference_t preference = NULL;
    c->n = 0;
    DP_TRY(set_pointers(p, anywhere, anywhere, err));
    LT_TRY(p->device, cublasLtMatmulPreferenceCreate(&preference), err);
    const dp_status status = ask_with(p, preference, limit, c, err);
    (void)cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

static void take(dp_lt_product *p, const candidates *c, int i)
{
    p->algo = c->of[i].algo;
    p->workspace = c->of[i].workspaceSize;
}

typedef struct tuning {
    dp_lt_product *p;
    const candidates *c;
    size_t at[6]; /* in the memory to measure in: a, b, d, bias, aux, workspace; its size */
} tuning;
enum { A, B, D, BIAS, AUX, WORKSPACE, PARTS };

static dp_status run_candidate(void *user, int i, dp_be_stream *s, void *memory)
{
    const tuning *t = user;
    char *m = memory;
    take(t->p, t->c, i);
    float *d = (float *)(void *)(m + t->at[D]);
    return dp_lt_run(t->p, s, (const float *)(void *)(m + t->at[A]), (const float *)(void *)(m + t->at[B]), d, d,
                     (const float *)(void *)(m + t->at[BIAS]), m + t->at[AUX], m + t->at[WORKSPACE]);
}

static dp_status tune(dp_lt_product *p, size_t limit, const candidates *c, int *choice, dp_error *err)
{
    const dp_lt_shape *s = &p->shape;
    tuning t = {.p = p, .c = c};
    const int64_t floats[] = {s->m * s->k, s->k * s->n, s->m * s->n, s->m > s->n ? s->m : s->n};
    size_t bytes[PARTS] = {[AUX] = dp_lt_aux_bytes(s->epilogue, s->m, s->n)}, all = 0;
    char key[256];
    for (int i = 0; i < 4; i++) bytes[i] = (size_t)floats[i] * sizeof(float);
    for (int i = 0; i < c->n; i++)
        if (c->of[i].workspaceSize > bytes[WORKSPACE]) bytes[WORKSPACE] = c->of[i].workspaceSize;
    for (int i = 0; i < PARTS; i++) {
        t.at[i] = all;
        all += (bytes[i] + DP_CUDA_ALIGNMENT - 1) / DP_CUDA_ALIGNMENT * DP_CUDA_ALIGNMENT;
    }
    dp_format(key, sizeof key, "product %lldx%lldx%lld%s%s epilogue %d%s%s%s within %zu bytes", (long long)s->m,
              (long long)s->n, (long long)s->k, s->trans_a ? " A'" : "", s->trans_b ? " B'" : "", (int)s->epilogue,
              s->bias ? " bias" : "", s->add ? " add" : "", s->tf32 ? " tf32" : "", limit);
    return dp_tune_pick(p->device, key, c->n, run_candidate, &t, all, choice, err);
}

static dp_status choose(dp_lt_product *p, size_t limit, int *found, dp_error *err)
{
    candidates c;
    int choice = 0;
    DP_TRY(ask(p, limit, &c, err));
    *found = c.n > 0;
    if (c.n > 1) DP_TRY(tune(p, limit, &c, &choice, err));
    if (c.n) take(p, &c, choice);
    return DP_OK;
}

dp_status dp_lt_make(dp_be_device *d, const dp_lt_shape *shape, size_t limit, dp_lt_product **out, dp_error *err)
{
    int found = 0;
    dp_lt_product *p = dp_calloc(1, sizeof *p);
    *out = NULL;
    if (!p) return dp_fail(err, DP_ENOMEM, "Out of memory: a matrix product of %s", d->name);
    p->device = d;
    p->shape = *shape;
    dp_status status = describe(p, err);
    if (!status) status = choose(p, limit, &found, err);
    if (status || !found) {
        dp_lt_free(p);
        return status;
    }
    d->created++;
    *out = p;
    return DP_OK;
}

size_t dp_lt_workspace(const dp_lt_product *p)
{
    return p ? p->workspace : 0;
}

void dp_lt_free(dp_lt_product *p)
{
    if (!p) return;
    if (p->d) (void)cublasLtMatrixLayoutDestroy(p->d);
    if (p->b) (void)cublasLtMatrixLayoutDestroy(p->b);
    if (p->a) (void)cublasLtMatrixLayoutDestroy(p->a);
    if (p->desc) (void)cublasLtMatmulDescDestroy(p->desc);
    free(p);
}

dp_status dp_lt_run(const dp_lt_product *p, dp_be_stream *s, const float *a, const float *b, const float *c, float *d,
                    const float *bias, void *aux, void *workspace)
{
    const float one = 1, beta = p->shape.add ? 1.0f : 0.0f;
    if (dp_cuda_lost(p->device)) return DP_EDEVICE_LOST;
    DP_TRY(set_pointers(p, bias, aux, NULL));
    DP_TRY(check(p->device,
                 cublasLtMatmul(p->device->lt->handle, p->desc, &one, a, p->a, b, p->b, &beta, p->shape.add ? c : d, p->d, d,
                                p->d, &p->algo, workspace, p->workspace, s->stream),
                 "cublasLtMatmul", NULL));
    return dp_cuda_settle(s);
}
