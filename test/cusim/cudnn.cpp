// cuDNN 9's legacy convolutions for fp32 with channels last: the algorithms that are documented for that layout, and refusals.
#include "conv.h"
#include "library.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <cudnn.h>

struct cudnnContext {
    int device;
    cudaStream_t stream;
};
struct cudnnTensorStruct {
    int n, c, h, w;
};
struct cudnnFilterStruct {
    int k, c, h, w;
};
struct cudnnConvolutionStruct {
    int pad[2], stride[2], dilation[2], groups;
    cudnnMathType_t math;
};
struct cudnnActivationStruct {
    cudnnActivationMode_t mode;
    cudnnNanPropagation_t nan;
};

namespace cusim {

constexpr size_t HANDLE_BYTES = 8u << 20;

// What is the same for the three directions.
struct Forward {
    using Algo = cudnnConvolutionFwdAlgo_t;
    using Perf = cudnnConvolutionFwdAlgoPerf_t;
    static constexpr int algorithms = CUDNN_CONVOLUTION_FWD_ALGO_COUNT;
    static bool there(int a) { return a == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM; }
    static bool shuffles(int) { return false; }
};
struct BackwardData {
    using Algo = cudnnConvolutionBwdDataAlgo_t;
    using Perf = cudnnConvolutionBwdDataAlgoPerf_t;
    static constexpr int algorithms = CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT;
    static bool there(int a) { return a == CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 || a == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1; }
    static bool shuffles(int a) { return a == CUDNN_CONVOLUTION_BWD_DATA_ALGO_0; }
};
struct BackwardFilter {
    using Algo = cudnnConvolutionBwdFilterAlgo_t;
    using Perf = cudnnConvolutionBwdFilterAlgoPerf_t;
    static constexpr int algorithms = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT;
    static bool there(int a) { return a == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 || a == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1; }
    static bool shuffles(int a) { return a == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0; }
};

static cudnnStatus_t describe(cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t d,
                              cudnnTensorDescriptor_t y, Conv *v)
{
    if (!x || !w || !d || !y) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (d->groups != 1) return CUDNN_STATUS_NOT_SUPPORTED;
    *v = Conv{};
    v->n = x->n, v->h = x->h, v->w = x->w, v->c = x->c;
    v->k = w->k, v->r = w->h, v->s = w->w;
    v->p = y->h, v->q = y->w;
    for (int i = 0; i < 2; i++) v->pad[i] = d->pad[i], v->stride[i] = d->stride[i], v->dilation[i] = d->dilation[i];
    v->round = tf32_rounds() && d->math != CUDNN_FMA_MATH;
    const int64_t p = (v->h + 2 * v->pad[0] - v->dilation[0] * (v->r - 1) - 1) / v->stride[0] + 1;
    const int64_t q = (v->w + 2 * v->pad[1] - v->dilation[1] * (v->s - 1) - 1) / v->stride[1] + 1;
    if (w->c != x->c || y->n != x->n || y->c != w->k || p != v->p || q != v->q) return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
    Lock l(world);
    return switched("dnn", "none") ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}

static size_t input_bytes(const Conv &v) { return (size_t)(v.n * v.h * v.w * v.c) * 4; }
static size_t filter_bytes(const Conv &v) { return (size_t)(v.k * v.r * v.s * v.c) * 4; }
static size_t output_bytes(const Conv &v) { return (size_t)(v.n * v.p * v.q * v.k) * 4; }

// Offsets for forward; partial sums for the others, none for those that add by atomics.
template <class Way> static size_t workspace_of(const Conv &v, int algo)
{
    if (std::is_same_v<Way, Forward>) return (size_t)(v.r * v.s * 16 + 64);
    return Way::shuffles(algo) ? 0 : filter_bytes(v) + 256;
}

template <class Way> static cudnnStatus_t size(const Conv &v, typename Way::Algo algo, size_t *bytes)
{
    if (!Way::there(algo)) return CUDNN_STATUS_NOT_SUPPORTED;
    *bytes = workspace_of<Way>(v, algo);
    return CUDNN_STATUS_SUCCESS;
}

// Sorted by time, those that cannot run last; `measured` invents times.
template <class Way> static cudnnStatus_t choices(cudnnConvolutionDescriptor_t d, const Conv &v, int wanted, int *found,
                                                  typename Way::Perf *results, bool measured, size_t workspace)
{
    if (wanted < 1 || !found || !results) return CUDNN_STATUS_BAD_PARAM;
    std::vector<typename Way::Perf> all;
    for (int a = Way::algorithms - 1; a >= 0; a--) { // the heuristic likes the later one
        typename Way::Perf p{};
        const bool fits = Way::there(a) && (!measured || workspace_of<Way>(v, a) <= workspace);
        p.algo = (typename Way::Algo)a;
        p.status = fits ? CUDNN_STATUS_SUCCESS : Way::there(a) ? CUDNN_STATUS_ALLOC_FAILED : CUDNN_STATUS_NOT_SUPPORTED;
        p.time = fits && measured ? 0.01f + (float)random_below(1000) * 1e-4f : -1;
        p.memory = Way::there(a) ? workspace_of<Way>(v, a) : 0;
        p.determinism = Way::shuffles(a) ? CUDNN_NON_DETERMINISTIC : CUDNN_DETERMINISTIC;
        p.mathType = d->math;
        all.push_back(p);
    }
    std::stable_sort(all.begin(), all.end(), [](const typename Way::Perf &a, const typename Way::Perf &b) {
        const bool x = a.status == CUDNN_STATUS_SUCCESS, y = b.status == CUDNN_STATUS_SUCCESS;
        return x != y ? x : x && a.time < b.time;
    });
    *found = std::min(wanted, (int)all.size());
    Visible visible;
    memcpy(results, all.data(), (size_t)*found * sizeof *results);
    return CUDNN_STATUS_SUCCESS;
}

struct Pointer { // of one tensor of a call
    const void *at;
    size_t bytes;
    bool written;
};

// Checks, translates, and gives the work to the handle's stream.
template <class Way> static cudnnStatus_t start(cudnnHandle_t h, const char *name, Conv v, int algo, std::vector<Pointer> pointers,
                                                void *workspace, size_t bytes, std::function<void(const Conv &, float *const *)> work)
{
    if (!h) return CUDNN_STATUS_NOT_INITIALIZED;
    if (!Way::there(algo)) return CUDNN_STATUS_NOT_SUPPORTED;
    if (!h->stream) die("%s: the handle has no stream: cudnnSetStream", name);
    check_stream(h->stream);
    for (const Pointer &p : pointers) {
        if (!p.at) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
        if (!aligned(p.at, 16)) return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
    }
    const size_t needed = workspace_of<Way>(v, algo);
    if (needed && (!workspace || bytes < needed)) return CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT;
    if (needed && !aligned(workspace, 16)) return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
    v.shuffled = Way::shuffles(algo);
    std::vector<float *> at;
    for (const Pointer &p : pointers) at.push_back((float *)reach(p.at, p.bytes, h->device, name));
    void *const scratch = needed ? reach(workspace, needed, h->device, name) : nullptr;
    const cudaError_t failed = submit(h->stream, Op{Kind::library, name, [=] {
                                                        Busy busy(scratch, needed, name);
                                                        for (size_t i = 0; i < at.size(); i++)
                                                            pointers[i].written ? ts_write(at[i], pointers[i].bytes)
                                                                                : ts_read(at[i], pointers[i].bytes);
                                                        work(v, at.data());
                                                    }});
    return failed ? CUDNN_STATUS_EXECUTION_FAILED_CUDART : CUDNN_STATUS_SUCCESS;
}

// The measurement runs each algorithm on the caller's memory, which it overwrites, and waits.
static cudnnStatus_t spoil(cudnnHandle_t h, const char *name, void *out, size_t bytes)
{
    if (!h || !h->stream) return CUDNN_STATUS_NOT_INITIALIZED;
    check_stream(h->stream);
    if (h->stream->capture) return CUDNN_STATUS_NOT_SUPPORTED;
    float *const at = (float *)reach(out, bytes, h->device, name);
    if (submit(h->stream, Op{Kind::library, name, [=] { memset(at, 0xFF, bytes); }})) return CUDNN_STATUS_EXECUTION_FAILED_CUDART;
    synchronize(h->stream);
    return CUDNN_STATUS_SUCCESS;
}

} // namespace cusim

using namespace cusim;

#define DNN extern "C" cudnnStatus_t CUDNNWINAPI
#define ENTER_DNN(flags)                                                                                                       \
    Hidden hidden_;                                                                                                            \
    if (const int e_ = enter_library(__func__, flags, CUDNN_STATUS_EXECUTION_FAILED_CUDART)) return (cudnnStatus_t)e_
#define TRY(call)                                                                                                              \
    if (const cudnnStatus_t s_ = (call)) return s_

extern "C" size_t CUDNNWINAPI cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}
extern "C" size_t CUDNNWINAPI cudnnGetCudartVersion(void)
{
    return CUDART_VERSION;
}
extern "C" const char *CUDNNWINAPI cudnnGetErrorString(cudnnStatus_t s)
{
    switch (s) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_BAD_PARAM_NULL_POINTER: return "CUDNN_STATUS_BAD_PARAM_NULL_POINTER";
    case CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER: return "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER";
    case CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT: return "CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT";
    case CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH: return "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    case CUDNN_STATUS_EXECUTION_FAILED_CUDART: return "CUDNN_STATUS_EXECUTION_FAILED_CUDART";
    case CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED: return "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED";
    default: return "CUDNN_STATUS_UNKNOWN";
    }
}
extern "C" void CUDNNWINAPI cudnnGetLastErrorString(char *message, size_t n)
{
    if (n) snprintf(message, n, "simulated");
}

// -- handle and descriptors --

DNN cudnnCreate(cudnnHandle_t *h)
{
    ENTER_DNN(CONTEXT | ALIVE | UNSAFE);
    if (!take_handle(true, HANDLE_BYTES)) return CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    *h = new cudnnContext{here().index, nullptr};
    return CUDNN_STATUS_SUCCESS;
}
DNN cudnnDestroy(cudnnHandle_t h)
{
    ENTER_DNN(CONTEXT);
    if (!h) return CUDNN_STATUS_NOT_INITIALIZED;
    if (h->device != here().index) die("cudnnDestroy: the handle is of another device than the thread's");
    take_handle(false, HANDLE_BYTES);
    delete h;
    return CUDNN_STATUS_SUCCESS;
}
DNN cudnnSetStream(cudnnHandle_t h, cudaStream_t s)
{
    ENTER_DNN(CONTEXT);
    check_stream(s);
    if (s->device->index != h->device) return CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH;
    h->stream = s;
    return CUDNN_STATUS_SUCCESS;
}
DNN cudnnGetStream(cudnnHandle_t h, cudaStream_t *s)
{
    ENTER_DNN(0);
    *s = h->stream;
    return CUDNN_STATUS_SUCCESS;
}

#define DESCRIPTOR(Name, type, ...)                                                                                            \
    DNN cudnnCreate##Name##Descriptor(cudnn##Name##Descriptor_t *d)                                                            \
    {                                                                                                                          \
        ENTER_DNN(0);                                                                                                          \
        *d = new type{__VA_ARGS__};                                                                                            \
        count_descriptor(true);                                                                                                \
        return CUDNN_STATUS_SUCCESS;                                                                                           \
    }                                                                                                                          \
    DNN cudnnDestroy##Name##Descriptor(cudnn##Name##Descriptor_t d)                                                            \
    {                                                                                                                          \
        ENTER_DNN(0);                                                                                                          \
        count_descriptor(false);                                                                                               \
        delete d;                                                                                                              \
        return CUDNN_STATUS_SUCCESS;                                                                                           \
    }
DESCRIPTOR(Tensor, cudnnTensorStruct, 0, 0, 0, 0)
DESCRIPTOR(Filter, cudnnFilterStruct, 0, 0, 0, 0)
DESCRIPTOR(Convolution, cudnnConvolutionStruct, {0, 0}, {1, 1}, {1, 1}, 1, CUDNN_DEFAULT_MATH)
DESCRIPTOR(Activation, cudnnActivationStruct, CUDNN_ACTIVATION_IDENTITY, CUDNN_NOT_PROPAGATE_NAN)

DNN cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t d, cudnnTensorFormat_t format, cudnnDataType_t type, int n, int c, int h, int w)
{
    ENTER_DNN(0);
    const bool vector = n == 1 && h == 1 && w == 1; // a bias is the same in both formats
    if (type != CUDNN_DATA_FLOAT || (format != CUDNN_TENSOR_NHWC && !vector))
        die("cudnnSetTensor4dDescriptor: format %d with type %d is not modelled", (int)format, (int)type);
    if (n < 1 || c < 1 || h < 1 || w < 1) return CUDNN_STATUS_BAD_PARAM;
    *d = cudnnTensorStruct{n, c, h, w};
    return CUDNN_STATUS_SUCCESS;
}
DNN cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t type, cudnnTensorFormat_t format, int k, int c, int h, int w)
{
    ENTER_DNN(0);
    if (type != CUDNN_DATA_FLOAT || format != CUDNN_TENSOR_NHWC)
        die("cudnnSetFilter4dDescriptor: format %d with type %d is not modelled", (int)format, (int)type);
    if (k < 1 || c < 1 || h < 1 || w < 1) return CUDNN_STATUS_BAD_PARAM;
    *d = cudnnFilterStruct{k, c, h, w};
    return CUDNN_STATUS_SUCCESS;
}
DNN cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t d, int pad_h, int pad_w, int u, int v, int dilation_h,
                                    int dilation_w, cudnnConvolutionMode_t mode, cudnnDataType_t type)
{
    ENTER_DNN(0);
    if (mode != CUDNN_CROSS_CORRELATION || type != CUDNN_DATA_FLOAT)
        die("cudnnSetConvolution2dDescriptor: mode %d with type %d is not modelled", (int)mode, (int)type);
    if (pad_h < 0 || pad_w < 0 || u < 1 || v < 1 || dilation_h < 1 || dilation_w < 1) return CUDNN_STATUS_BAD_PARAM;
    *d = cudnnConvolutionStruct{{pad_h, pad_w}, {u, v}, {dilation_h, dilation_w}, d->groups, d->math};
    return CUDNN_STATUS_SUCCESS;
}
DNN cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t d, cudnnMathType_t math)
{
    ENTER_DNN(0);
    d->math = math;
    return CUDNN_STATUS_SUCCESS;
}
DNN cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t d, int groups)
{
    ENTER_DNN(0);
    d->groups = groups;
    return CUDNN_STATUS_SUCCESS;
}
DNN cudnnGetConvolution2dForwardOutputDim(cudnnConvolutionDescriptor_t d, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t f,
                                          int *n, int *c, int *h, int *w)
{
    ENTER_DNN(0);
    *n = x->n;
    *c = f->k;
    *h = (x->h + 2 * d->pad[0] - d->dilation[0] * (f->h - 1) - 1) / d->stride[0] + 1;
    *w = (x->w + 2 * d->pad[1] - d->dilation[1] * (f->w - 1) - 1) / d->stride[1] + 1;
    return CUDNN_STATUS_SUCCESS;
}
DNN cudnnSetActivationDescriptor(cudnnActivationDescriptor_t d, cudnnActivationMode_t mode, cudnnNanPropagation_t nan, double)
{
    ENTER_DNN(0);
    if (mode != CUDNN_ACTIVATION_RELU && mode != CUDNN_ACTIVATION_IDENTITY) die("cudnn: activation %d is not modelled", (int)mode);
    *d = cudnnActivationStruct{mode, nan};
    return CUDNN_STATUS_SUCCESS;
}

// -- forward --

DNN cudnnGetConvolutionForwardAlgorithmMaxCount(cudnnHandle_t, int *n)
{
    *n = Forward::algorithms;
    return CUDNN_STATUS_SUCCESS;
}
DNN cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                            cudnnConvolutionDescriptor_t d, cudnnTensorDescriptor_t y, cudnnConvolutionFwdAlgo_t algo,
                                            size_t *bytes)
{
    ENTER_DNN(0);
    Conv v;
    TRY(describe(x, w, d, y, &v));
    return size<Forward>(v, algo, bytes);
}
DNN cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                           cudnnConvolutionDescriptor_t d, cudnnTensorDescriptor_t y, int wanted, int *found,
                                           cudnnConvolutionFwdAlgoPerf_t *results)
{
    ENTER_DNN(0);
    Conv v;
    TRY(describe(x, w, d, y, &v));
    return choices<Forward>(d, v, wanted, found, results, false, 0);
}
DNN cudnnFindConvolutionForwardAlgorithmEx(cudnnHandle_t h, cudnnTensorDescriptor_t x, const void *, cudnnFilterDescriptor_t w,
                                           const void *, cudnnConvolutionDescriptor_t d, cudnnTensorDescriptor_t y, void *out,
                                           int wanted, int *found, cudnnConvolutionFwdAlgoPerf_t *results, void *, size_t bytes)
{
    ENTER_DNN(CONTEXT | ALIVE | UNSAFE | BLOCKS);
    Conv v;
    TRY(describe(x, w, d, y, &v));
    TRY(spoil(h, __func__, out, output_bytes(v)));
    return choices<Forward>(d, v, wanted, found, results, true, bytes);
}
DNN cudnnConvolutionForward(cudnnHandle_t h, const void *alpha, cudnnTensorDescriptor_t xd, const void *x, cudnnFilterDescriptor_t wd,
                            const void *w, cudnnConvolutionDescriptor_t d, cudnnConvolutionFwdAlgo_t algo, void *workspace,
                            size_t bytes, const void *beta, cudnnTensorDescriptor_t yd, void *y)
{
    ENTER_DNN(CONTEXT | ALIVE);
    Conv v;
    TRY(describe(xd, wd, d, yd, &v));
    const float a = host_float(alpha, __func__), b = host_float(beta, __func__);
    return start<Forward>(h, __func__, v, algo, {{x, input_bytes(v), false}, {w, filter_bytes(v), false}, {y, output_bytes(v), true}},
                          workspace, bytes, [a, b](const Conv &c, float *const *at) { conv_forward(c, at[0], at[1], at[2], a, b); });
}

DNN cudnnConvolutionBiasActivationForward(cudnnHandle_t h, const void *alpha1, cudnnTensorDescriptor_t xd, const void *x,
                                          cudnnFilterDescriptor_t wd, const void *w, cudnnConvolutionDescriptor_t d,
                                          cudnnConvolutionFwdAlgo_t algo, void *workspace, size_t bytes, const void *alpha2,
                                          cudnnTensorDescriptor_t zd, const void *z, cudnnTensorDescriptor_t bd, const void *bias,
                                          cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t yd, void *y)
{
    ENTER_DNN(CONTEXT | ALIVE);
    Conv v;
    TRY(describe(xd, wd, d, yd, &v));
    if (!bd || bd->n != 1 || bd->h != 1 || bd->w != 1 || bd->c != yd->c) return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
    if (!zd || memcmp(zd, yd, sizeof *zd)) return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
    const float a = host_float(alpha1, __func__), a2 = host_float(alpha2, __func__);
    const cudnnActivationStruct act = *activation;
    return start<Forward>(h, __func__, v, algo,
                          {{x, input_bytes(v), false},
                           {w, filter_bytes(v), false},
                           {z, output_bytes(v), z == y},
                           {bias, (size_t)v.k * 4, false},
                           {y, output_bytes(v), true}},
                          workspace, bytes, [=](const Conv &c, float *const *at) {
                              Hidden hidden;
                              const int64_t n = c.n * c.p * c.q * c.k;
                              std::vector<float> out((size_t)n);
                              conv_forward(c, at[0], at[1], out.data(), a, 0);
                              for (int64_t i = 0; i < n; i++) {
                                  float o = out[(size_t)i] + at[3][i % c.k];
                                  if (a2 != 0) o += a2 * at[2][i];
                                  if (act.mode == CUDNN_ACTIVATION_RELU && !(o > 0) && !(act.nan == CUDNN_PROPAGATE_NAN && std::isnan(o)))
                                      o = 0;
                                  at[4][i] = o;
                              }
                          });
}

// -- backward data --

DNN cudnnGetConvolutionBackwardDataAlgorithmMaxCount(cudnnHandle_t, int *n)
{
    *n = BackwardData::algorithms;
    return CUDNN_STATUS_SUCCESS;
}
DNN cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t dy,
                                                 cudnnConvolutionDescriptor_t d, cudnnTensorDescriptor_t dx,
                                                 cudnnConvolutionBwdDataAlgo_t algo, size_t *bytes)
{
    ENTER_DNN(0);
    Conv v;
    TRY(describe(dx, w, d, dy, &v));
    return size<BackwardData>(v, algo, bytes);
}
DNN cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t dy,
                                                cudnnConvolutionDescriptor_t d, cudnnTensorDescriptor_t dx, int wanted, int *found,
                                                cudnnConvolutionBwdDataAlgoPerf_t *results)
{
    ENTER_DNN(0);
    Conv v;
    TRY(describe(dx, w, d, dy, &v));
    return choices<BackwardData>(d, v, wanted, found, results, false, 0);
}
DNN cudnnFindConvolutionBackwardDataAlgorithmEx(cudnnHandle_t h, cudnnFilterDescriptor_t w, const void *, cudnnTensorDescriptor_t dy,
                                                const void *, cudnnConvolutionDescriptor_t d, cudnnTensorDescriptor_t dx, void *out,
                                                int wanted, int *found, cudnnConvolutionBwdDataAlgoPerf_t *results, void *, size_t bytes)
{
    ENTER_DNN(CONTEXT | ALIVE | UNSAFE | BLOCKS);
    Conv v;
    TRY(describe(dx, w, d, dy, &v));
    TRY(spoil(h, __func__, out, input_bytes(v)));
    return choices<BackwardData>(d, v, wanted, found, results, true, bytes);
}
DNN cudnnConvolutionBackwardData(cudnnHandle_t h, const void *alpha, cudnnFilterDescriptor_t wd, const void *w,
                                 cudnnTensorDescriptor_t dyd, const void *dy, cudnnConvolutionDescriptor_t d,
                                 cudnnConvolutionBwdDataAlgo_t algo, void *workspace, size_t bytes, const void *beta,
                                 cudnnTensorDescriptor_t dxd, void *dx)
{
    ENTER_DNN(CONTEXT | ALIVE);
    Conv v;
    TRY(describe(dxd, wd, d, dyd, &v));
    const float a = host_float(alpha, __func__), b = host_float(beta, __func__);
    return start<BackwardData>(h, __func__, v, algo,
                               {{w, filter_bytes(v), false}, {dy, output_bytes(v), false}, {dx, input_bytes(v), true}}, workspace, bytes,
                               [a, b](const Conv &c, float *const *at) { conv_backward_data(c, at[0], at[1], at[2], a, b); });
}

// -- backward filter and bias --

DNN cudnnGetConvolutionBackwardFilterAlgorithmMaxCount(cudnnHandle_t, int *n)
{
    *n = BackwardFilter::algorithms;
    return CUDNN_STATUS_SUCCESS;
}
DNN cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t dy,
                                                   cudnnConvolutionDescriptor_t d, cudnnFilterDescriptor_t dw,
                                                   cudnnConvolutionBwdFilterAlgo_t algo, size_t *bytes)
{
    ENTER_DNN(0);
    Conv v;
    TRY(describe(x, dw, d, dy, &v));
    return size<BackwardFilter>(v, algo, bytes);
}
DNN cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t dy,
                                                  cudnnConvolutionDescriptor_t d, cudnnFilterDescriptor_t dw, int wanted, int *found,
                                                  cudnnConvolutionBwdFilterAlgoPerf_t *results)
{
    ENTER_DNN(0);
    Conv v;
    TRY(describe(x, dw, d, dy, &v));
    return choices<BackwardFilter>(d, v, wanted, found, results, false, 0);
}
DNN cudnnFindConvolutionBackwardFilterAlgorithmEx(cudnnHandle_t h, cudnnTensorDescriptor_t x, const void *, cudnnTensorDescriptor_t dy,
                                                  const void *, cudnnConvolutionDescriptor_t d, cudnnFilterDescriptor_t dw, void *out,
                                                  int wanted, int *found, cudnnConvolutionBwdFilterAlgoPerf_t *results, void *,
                                                  size_t bytes)
{
    ENTER_DNN(CONTEXT | ALIVE | UNSAFE | BLOCKS);
    Conv v;
    TRY(describe(x, dw, d, dy, &v));
    TRY(spoil(h, __func__, out, filter_bytes(v)));
    return choices<BackwardFilter>(d, v, wanted, found, results, true, bytes);
}
DNN cudnnConvolutionBackwardFilter(cudnnHandle_t h, const void *alpha, cudnnTensorDescriptor_t xd, const void *x,
                                   cudnnTensorDescriptor_t dyd, const void *dy, cudnnConvolutionDescriptor_t d,
                                   cudnnConvolutionBwdFilterAlgo_t algo, void *workspace, size_t bytes, const void *beta,
                                   cudnnFilterDescriptor_t dwd, void *dw)
{
    ENTER_DNN(CONTEXT | ALIVE);
    Conv v;
    TRY(describe(xd, dwd, d, dyd, &v));
    const float a = host_float(alpha, __func__), b = host_float(beta, __func__);
    return start<BackwardFilter>(h, __func__, v, algo,
                                 {{x, input_bytes(v), false}, {dy, output_bytes(v), false}, {dw, filter_bytes(v), true}}, workspace,
                                 bytes, [a, b](const Conv &c, float *const *at) { conv_backward_filter(c, at[0], at[1], at[2], a, b); });
}
DNN cudnnConvolutionBackwardBias(cudnnHandle_t h, const void *alpha, cudnnTensorDescriptor_t dyd, const void *dy, const void *beta,
                                 cudnnTensorDescriptor_t dbd, void *db)
{
    static const char *const name = "cudnnConvolutionBackwardBias";
    ENTER_DNN(CONTEXT | ALIVE);
    if (!h || !h->stream) return CUDNN_STATUS_NOT_INITIALIZED;
    check_stream(h->stream);
    if (dbd->n != 1 || dbd->h != 1 || dbd->w != 1 || dbd->c != dyd->c) return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
    const int64_t rows = (int64_t)dyd->n * dyd->h * dyd->w, k = dyd->c;
    const float a = host_float(alpha, name), b = host_float(beta, name);
    float *const from = (float *)reach(dy, (size_t)(rows * k) * 4, h->device, name);
    float *const to = (float *)reach(db, (size_t)k * 4, h->device, name);
    const cudaError_t failed = submit(h->stream, Op{Kind::library, name, [=] {
                                                        ts_read(from, (size_t)(rows * k) * 4);
                                                        ts_write(to, (size_t)k * 4);
                                                        for (int64_t c = 0; c < k; c++) {
                                                            float sum = 0;
                                                            for (int64_t r = 0; r < rows; r++) sum += from[r * k + c];
                                                            to[c] = b != 0 ? a * sum + b * to[c] : a * sum;
                                                        }
                                                    }});
    return failed ? CUDNN_STATUS_EXECUTION_FAILED_CUDART : CUDNN_STATUS_SUCCESS;
}
