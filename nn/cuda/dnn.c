/* All calls of cuDNN: its legacy interface, float32 in N,H,W,C, one algorithm each way. Those that are taken add in a fixed order
 * (ALGO_0 of the gradients does not); the ones to begin with are those that NHWC is documented to have. */
#include "conv.h"
#include <cudnn.h>

static const int documented[DP_DNN_PASSES] = {[DP_DNN_FORWARD] = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                                              [DP_DNN_DATA] = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
                                              [DP_DNN_WEIGHTS] = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1};

struct dp_dnn {
    cudnnHandle_t handle;
    cudaStream_t stream; /* that the handle has */
};

struct dp_dnn_conv {
    dp_be_device *device;
    cudnnTensorDescriptor_t x, y, bias;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
    cudnnActivationDescriptor_t activation;
    cudnnMathType_t math;
    int algo[DP_DNN_PASSES];
    size_t workspace[DP_DNN_PASSES]; /* bytes */
};

static dp_status check(dp_be_device *d, cudnnStatus_t e, const char *call, dp_error *err)
{
    if (e == CUDNN_STATUS_SUCCESS) return DP_OK;
    return dp_cuda_failed(d, e == CUDNN_STATUS_ALLOC_FAILED ? DP_ENOMEM : DP_EDEVICE, (int)e, call, cudnnGetErrorString(e),
                          err);
}
#define DNN_TRY(d, call, err) DP_TRY(check(d, call, #call, err))

dp_status dp_dnn_open(dp_be_device *d, dp_error *err)
{
    if (d->dnn) return DP_OK;
    struct dp_dnn *n = dp_calloc(1, sizeof *n);
    if (!n) return dp_fail(err, DP_ENOMEM, "Out of memory: convolutions of %s", d->name);
    const dp_status status = check(d, cudnnCreate(&n->handle), "cudnnCreate", err);
    if (status) {
        free(n);
        return status;
    }
    d->dnn = n;
    return DP_OK;
}

size_t dp_dnn_version(void)
{
    return cudnnGetVersion();
}

void dp_dnn_forget_stream(dp_be_device *d)
{
    if (d->dnn) d->dnn->stream = NULL;
}

void dp_dnn_close(dp_be_device *d)
{
    if (!d->dnn) return;
    if (!dp_cuda_lost(d)) (void)check(d, cudnnDestroy(d->dnn->handle), "cudnnDestroy", NULL);
    free(d->dnn);
    d->dnn = NULL;
}

void dp_dnn_free(dp_dnn_conv *p)
{
    if (!p) return;
    if (p->activation) (void)cudnnDestroyActivationDescriptor(p->activation);
    if (p->conv) (void)cudnnDestroyConvolutionDescriptor(p->conv);
    if (p->w) (void)cudnnDestroyFilterDescriptor(p->w);
    if (p->bias) (void)cudnnDestroyTensorDescriptor(p->bias);
    if (p->y) (void)cudnnDestroyTensorDescriptor(p->y);
    if (p->x) (void)cudnnDestroyTensorDescriptor(p->x);
    free(p);
}

size_t dp_dnn_workspace(const dp_dnn_conv *p)
{
    size_t most = 0;
    for (int i = 0; i < DP_DNN_PASSES; i++)
        if (p->workspace[i] > most) most = p->workspace[i];
    return most;
}

static dp_status describe_tensor(dp_dnn_conv *p, cudnnTensorDescriptor_t *t, int64_t n, const int64_t shape[3], dp_error *err)
{
    DNN_TRY(p->device, cudnnCreateTensorDescriptor(t), err);
    DNN_TRY(p->device,
            cudnnSetTensor4dDescriptor(*t, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, (int)n, (int)shape[2], (int)shape[0],
                                       (int)shape[1]),
            err);
    return DP_OK;
}

static dp_status describe(dp_dnn_conv *p, const dp_conv *c, int64_t rows, dp_error *err)
{
    const int64_t one_pixel[3] = {1, 1, c->out[2]};
    const int k = (int)c->kernel, pad = (int)c->pad, stride = (int)c->stride, dilation = (int)c->dilation;
    DP_TRY(describe_tensor(p, &p->x, rows, c->in, err));
    DP_TRY(describe_tensor(p, &p->y, rows, c->out, err));
    DP_TRY(describe_tensor(p, &p->bias, 1, one_pixel, err));
    DNN_TRY(p->device, cudnnCreateFilterDescriptor(&p->w), err);
    DNN_TRY(p->device,
            cudnnSetFilter4dDescriptor(p->w, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NHWC, (int)c->out[2], (int)c->in[2], k, k), err);
    DNN_TRY(p->device, cudnnCreateConvolutionDescriptor(&p->conv), err);
    DNN_TRY(p->device,
            cudnnSetConvolution2dDescriptor(p->conv, pad, pad, stride, stride, dilation, dilation, CUDNN_CROSS_CORRELATION,
                                            CUDNN_DATA_FLOAT),
            err);
    p->math = c->tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
    DNN_TRY(p->device, cudnnSetConvolutionMathType(p->conv, p->math), err);
    DNN_TRY(p->device, cudnnCreateActivationDescriptor(&p->activation), err);
    DNN_TRY(p->device,
            cudnnSetActivationDescriptor(p->activation, c->relu ? CUDNN_ACTIVATION_RELU : CUDNN_ACTIVATION_IDENTITY,
                                         CUDNN_PROPAGATE_NAN, 0),
            err);
    return DP_OK;
}

static int refused(cudnnStatus_t e)
{
    return CUDNN_STATUS_CATEGORY(e) == CUDNN_STATUS_NOT_SUPPORTED || CUDNN_STATUS_CATEGORY(e) == CUDNN_STATUS_BAD_PARAM;
}

static cudnnStatus_t workspace_of(const dp_dnn_conv *p, int pass, int algo, size_t *bytes)
{
    const cudnnHandle_t h = p->device->dnn->handle;
    switch (pass) {
    case DP_DNN_FORWARD:
        return cudnnGetConvolutionForwardWorkspaceSize(h, p->x, p->w, p->conv, p->y, (cudnnConvolutionFwdAlgo_t)algo, bytes);
    case DP_DNN_DATA:
        return cudnnGetConvolutionBackwardDataWorkspaceSize(h, p->w, p->y, p->conv, p->x, (cudnnConvolutionBwdDataAlgo_t)algo,
                                                            bytes);
    default:
        return cudnnGetConvolutionBackwardFilterWorkspaceSize(h, p->x, p->y, p->conv, p->w,
                                                              (cudnnConvolutionBwdFilterAlgo_t)algo, bytes);
    }
}

dp_status dp_dnn_use(dp_dnn_conv *p, int pass, int algo, size_t limit, int *taken, dp_error *err)
{
    size_t bytes = 0;
    const cudnnStatus_t e = workspace_of(p, pass, algo, &bytes);
    *taken = 0;
    if (refused(e)) return DP_OK;
    DP_TRY(check(p->device, e, "cudnnGetConvolutionWorkspaceSize", err));
    if (bytes > limit) return DP_OK;
    p->algo[pass] = algo;
    p->workspace[pass] = bytes;
    *taken = 1;
    return DP_OK;
}

int dp_dnn_algo(const dp_dnn_conv *p, int pass)
{
    return p->algo[pass];
}

/* *found = 0: one of the three passes is not there, or wants too much. */
static dp_status begin(dp_dnn_conv *p, size_t limit, int *found, dp_error *err)
{
    int taken;
    *found = 1;
    for (int pass = 0; pass < DP_DNN_PASSES; pass++) {
        DP_TRY(dp_dnn_use(p, pass, documented[pass], limit, &taken, err));
        *found &= taken;
    }
    return DP_OK;
}

/* Answers of the library's three questions have the same fields. */
#define DNN_KEEP(Perf, ask)                                                                                                    \
    do {                                                                                                                       \
        Perf r[DP_DNN_CANDIDATES];                                                                                             \
        int found = 0;                                                                                                         \
        if (ask) return 1;                                                                                                     \
        for (int i = 0; i < found && n < DP_DNN_CANDIDATES; i++)                                                               \
            if (r[i].status == CUDNN_STATUS_SUCCESS && r[i].determinism == CUDNN_DETERMINISTIC && r[i].mathType == p->math &&  \
                (int)r[i].algo != algo[0] && r[i].memory <= limit)                                                             \
                algo[n++] = (int)r[i].algo;                                                                                    \
    } while (0)

int dp_dnn_candidates(const dp_dnn_conv *p, int pass, size_t limit, int algo[DP_DNN_CANDIDATES])
{
    const cudnnHandle_t h = p->device->dnn->handle;
    int n = 1;
    algo[0] = p->algo[pass];
    switch (pass) {
    case DP_DNN_FORWARD:
        DNN_KEEP(cudnnConvolutionFwdAlgoPerf_t,
                 cudnnGetConvolutionForwardAlgorithm_v7(h, p->x, p->w, p->conv, p->y, DP_DNN_CANDIDATES, &found, r));
        break;
    case DP_DNN_DATA:
        DNN_KEEP(cudnnConvolutionBwdDataAlgoPerf_t,
                 cudnnGetConvolutionBackwardDataAlgorithm_v7(h, p->w, p->y, p->conv, p->x, DP_DNN_CANDIDATES, &found, r));
        break;
    default:
        DNN_KEEP(cudnnConvolutionBwdFilterAlgoPerf_t,
                 cudnnGetConvolutionBackwardFilterAlgorithm_v7(h, p->x, p->y, p->conv, p->w, DP_DNN_CANDIDATES, &found, r));
    }
    return n;
}

dp_status dp_dnn_make(dp_be_device *d, const dp_conv *c, int64_t rows, size_t limit, dp_dnn_conv **out, dp_error *err)
{
    int found = 0;
    *out = NULL;
    if (c->groups != 1 || rows > INT32_MAX) return DP_OK;
    DP_TRY(dp_dnn_open(d, err));
    dp_dnn_conv *p = dp_calloc(1, sizeof *p);
    if (!p) return dp_fail(err, DP_ENOMEM, "Out of memory: a convolution of %s", d->name);
    p->device = d;
    dp_status status = describe(p, c, rows, err);
    if (!status) status = begin(p, limit, &found, err);
    if (status || !found) {
        dp_dnn_free(p);
        return status;
    }
    d->created++;
    *out = p;
    return DP_OK;
}

static dp_status on(const dp_dnn_conv *p, dp_be_stream *s)
{
    struct dp_dnn *n = p->device->dnn;
    if (dp_cuda_lost(p->device)) return DP_EDEVICE_LOST;
    if (n->stream == s->stream) return DP_OK;
    DNN_TRY(p->device, cudnnSetStream(n->handle, s->stream), NULL);
    n->stream = s->stream;
    return DP_OK;
}

static const float one = 1, zero = 0;

dp_status dp_dnn_forward_fused(const dp_dnn_conv *p, dp_be_stream *s, const float *x, const float *w, const float *b, float *y,
                               void *workspace)
{
    DP_TRY(on(p, s));
    const cudnnStatus_t e = cudnnConvolutionBiasActivationForward(
        p->device->dnn->handle, &one, p->x, x, p->w, w, p->conv, (cudnnConvolutionFwdAlgo_t)p->algo[DP_DNN_FORWARD], workspace,
        p->workspace[DP_DNN_FORWARD], &zero, p->y, y, p->bias, b, p->activation, p->y, y);
    if (refused(e)) return DP_ECONFIG;
    DP_TRY(check(p->device, e, "cudnnConvolutionBiasActivationForward", NULL));
    return dp_cuda_settle(s);
}

dp_status dp_dnn_forward(const dp_dnn_conv *p, dp_be_stream *s, const float *x, const float *w, float *y, void *workspace)
{
    DP_TRY(on(p, s));
    DNN_TRY(p->device,
            cudnnConvolutionForward(p->device->dnn->handle, &one, p->x, x, p->w, w, p->conv,
                                    (cudnnConvolutionFwdAlgo_t)p->algo[DP_DNN_FORWARD], workspace, p->workspace[DP_DNN_FORWARD],
                                    &zero, p->y, y),
            NULL);
    return dp_cuda_settle(s);
}

dp_status dp_dnn_backward_data(const dp_dnn_conv *p, dp_be_stream *s, const float *dy, const float *w, float *dx,
                               void *workspace)
{
    DP_TRY(on(p, s));
    DNN_TRY(p->device,
            cudnnConvolutionBackwardData(p->device->dnn->handle, &one, p->w, w, p->y, dy, p->conv,
                                         (cudnnConvolutionBwdDataAlgo_t)p->algo[DP_DNN_DATA], workspace,
                                         p->workspace[DP_DNN_DATA], &zero, p->x, dx),
            NULL);
    return dp_cuda_settle(s);
}

dp_status dp_dnn_backward_weights(const dp_dnn_conv *p, dp_be_stream *s, const float *x, const float *dy, float *dw,
                                  void *workspace)
{
    DP_TRY(on(p, s));
    DNN_TRY(p->device,
            cudnnConvolutionBackwardFilter(p->device->dnn->handle, &one, p->x, x, p->y, dy, p->conv,
                                           (cudnnConvolutionBwdFilterAlgo_t)p->algo[DP_DNN_WEIGHTS], workspace,
                                           p->workspace[DP_DNN_WEIGHTS], &zero, p->w, dw),
            NULL);
    return dp_cuda_settle(s);
}
