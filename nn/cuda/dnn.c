/* All calls of cuDNN: its legacy interface, float32 in N,H,W,C, one algorithm each way. Those that are chosen add in a fixed order
 * (ALGO_0 of the weight gradient does not) and are the ones that NHWC has. */
#include "conv.h"
#include <cudnn.h>

enum { FORWARD = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM };

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
    size_t forward, data, weights; /* bytes of workspace */
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
    size_t most = p->forward;
    if (p->data > most) most = p->data;
    return p->weights > most ? p->weights : most;
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
    DNN_TRY(p->device, cudnnSetConvolutionMathType(p->conv, c->tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH), err);
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

/* *found = 0: one of the three passes is not there, or wants too much. */
static dp_status measure(dp_dnn_conv *p, size_t limit, int *found, dp_error *err)
{
    const cudnnHandle_t h = p->device->dnn->handle;
    cudnnStatus_t e[3];
    e[0] = cudnnGetConvolutionForwardWorkspaceSize(h, p->x, p->w, p->conv, p->y, (cudnnConvolutionFwdAlgo_t)FORWARD,
                                                   &p->forward);
    e[1] = cudnnGetConvolutionBackwardDataWorkspaceSize(h, p->w, p->y, p->conv, p->x, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
                                                        &p->data);
    e[2] = cudnnGetConvolutionBackwardFilterWorkspaceSize(h, p->x, p->y, p->conv, p->w, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
                                                          &p->weights);
    *found = 1;
    for (int i = 0; i < 3; i++) {
        if (refused(e[i]))
            *found = 0;
        else
            DP_TRY(check(p->device, e[i], "cudnnGetConvolutionWorkspaceSize", err));
    }
    if (*found && dp_dnn_workspace(p) > limit) *found = 0;
    return DP_OK;
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
    if (!status) status = measure(p, limit, &found, err);
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
    const cudnnStatus_t e = cudnnConvolutionBiasActivationForward(p->device->dnn->handle, &one, p->x, x, p->w, w, p->conv,
                                                                  (cudnnConvolutionFwdAlgo_t)FORWARD, workspace, p->forward,
                                                                  &zero, p->y, y, p->bias, b, p->activation, p->y, y);
    return refused(e) ? DP_ECONFIG : check(p->device, e, "cudnnConvolutionBiasActivationForward", NULL);
}

dp_status dp_dnn_forward(const dp_dnn_conv *p, dp_be_stream *s, const float *x, const float *w, float *y, void *workspace)
{
    DP_TRY(on(p, s));
    DNN_TRY(p->device,
            cudnnConvolutionForward(p->device->dnn->handle, &one, p->x, x, p->w, w, p->conv, (cudnnConvolutionFwdAlgo_t)FORWARD,
                                    workspace, p->forward, &zero, p->y, y),
            NULL);
    return DP_OK;
}

dp_status dp_dnn_backward_data(const dp_dnn_conv *p, dp_be_stream *s, const float *dy, const float *w, float *dx,
                               void *workspace)
{
    DP_TRY(on(p, s));
    DNN_TRY(p->device,
            cudnnConvolutionBackwardData(p->device->dnn->handle, &one, p->w, w, p->y, dy, p->conv,
                                         CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, workspace, p->data, &zero, p->x, dx),
            NULL);
    return DP_OK;
}

dp_status dp_dnn_backward_weights(const dp_dnn_conv *p, dp_be_stream *s, const float *x, const float *dy, float *dw,
                                  void *workspace)
{
    DP_TRY(on(p, s));
    DNN_TRY(p->device,
            cudnnConvolutionBackwardFilter(p->device->dnn->handle, &one, p->x, x, p->y, dy, p->conv,
                                           CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, workspace, p->weights, &zero, p->w, dw),
            NULL);
    return DP_OK;
}
