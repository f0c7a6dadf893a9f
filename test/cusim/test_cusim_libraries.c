/* The simulated cublasLt and cuDNN against loops that say what they mean, and what they refuse. */
#include "cusim.h"
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define OK(call) assert_int_equal(call, 0)
enum { MOST = 1 << 14, WORKSPACE = 1 << 16 };
static cudaStream_t stream;
static cublasLtHandle_t lt;
static cudnnHandle_t dnn;
static float *host, *workspace;

static int open_all(void **state)
{
    (void)state;
    OK(cudaSetDevice(0));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMallocHost((void **)&host, MOST * sizeof *host));
    OK(cudaMalloc((void **)&workspace, WORKSPACE));
    OK(cublasLtCreate(&lt));
    OK(cudnnCreate(&dnn));
    OK(cudnnSetStream(dnn, stream));
    return 0;
}
static int close_all(void **state)
{
    cusim_counters c;
    (void)state;
    OK(cublasLtDestroy(lt));
    OK(cudnnDestroy(dnn));
    OK(cudaFree(workspace));
    OK(cudaFreeHost(host));
    OK(cudaStreamDestroy(stream));
    cusim_read(&c);
    assert_int_equal(c.live_allocations + c.live_pinned + c.live_streams + c.live_handles + c.live_descriptors, 0);
    return 0;
}

static float *device(int64_t n, uint32_t seed, float *copy) /* filled with -1 .. 1, or zero for seed 0 */
{
    float *d;
    assert_true(n <= MOST);
    OK(cudaMalloc((void **)&d, (size_t)n * sizeof *d));
    for (int64_t i = 0; i < n; i++) {
        seed ^= seed << 13, seed ^= seed >> 17, seed ^= seed << 5;
        host[i] = seed ? (float)(int32_t)seed / 2147483648.0f : 0;
        if (copy) copy[i] = host[i];
    }
    OK(cudaMemcpyAsync(d, host, (size_t)n * sizeof *d, cudaMemcpyHostToDevice, stream));
    OK(cudaStreamSynchronize(stream));
    return d;
}
static void fetch(const float *d, int64_t n)
{
    OK(cudaMemcpyAsync(host, d, (size_t)n * sizeof *d, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
}
static void near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-4 * (1 + fabs(b)))) fail_msg("%.9g is not %.9g", a, b); /* sums of some ten products near 1 */
}

/* -- cublasLt -- */

enum { M = 10, NN = 7, K = 13, LD = 16 }; /* every matrix has lines of at most LD */
typedef struct product {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int ta, tb;
} product;
static cublasLtMatrixLayout_t layout(int rows, int columns, int row_order)
{
    cublasLtMatrixLayout_t l;
    const int32_t order = CUBLASLT_ORDER_ROW;
    OK(cublasLtMatrixLayoutCreate(&l, CUDA_R_32F, (uint64_t)rows, (uint64_t)columns, LD));
    if (row_order) OK(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order));
    return l;
}
static void set(product *p, cublasLtMatmulDescAttributes_t which, const void *value, size_t n)
{
    OK(cublasLtMatmulDescSetAttribute(p->desc, which, value, n));
}
static void product_open(product *p, int ta, int tb, uint32_t epilogue, int row_order)
{
    const int32_t t = CUBLAS_OP_T;
    const uint64_t bytes = WORKSPACE;
    memset(p, 0, sizeof *p);
    p->ta = ta, p->tb = tb;
    OK(cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    if (ta) set(p, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t);
    if (tb) set(p, CUBLASLT_MATMUL_DESC_TRANSB, &t, sizeof t);
    set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    p->a = ta ? layout(K, M, row_order) : layout(M, K, row_order);
    p->b = tb ? layout(NN, K, row_order) : layout(K, NN, row_order);
    p->c = layout(M, NN, row_order);
    p->d = layout(M, NN, row_order);
    OK(cublasLtMatmulPreferenceCreate(&p->preference));
    OK(cublasLtMatmulPreferenceSetAttribute(p->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
}
static void product_close(product *p)
{
    OK(cublasLtMatmulDescDestroy(p->desc));
    OK(cublasLtMatrixLayoutDestroy(p->a));
    OK(cublasLtMatrixLayoutDestroy(p->b));
    OK(cublasLtMatrixLayoutDestroy(p->c));
    OK(cublasLtMatrixLayoutDestroy(p->d));
    OK(cublasLtMatmulPreferenceDestroy(p->preference));
}
static cublasStatus_t choose(product *p)
{
    int n = 0;
    const cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic(lt, p->desc, p->a, p->b, p->c, p->d, p->preference, 1, &p->result,
                                                            &n);
    assert_int_equal(n, s == CUBLAS_STATUS_SUCCESS);
    return s;
}
static cublasStatus_t multiply(product *p, const float *a, const float *b, float *d, size_t bytes)
{
    const float alpha = 2, beta = 0;
    return cublasLtMatmul(lt, p->desc, &alpha, a, p->a, b, p->b, &beta, d, p->c, d, p->d, &p->result.algo, workspace, bytes,
                          stream);
}

static float A[MOST], B[MOST];
static float element(const float *x, int r, int c, int transposed, int row_order)
{
    return transposed != row_order ? x[r * LD + c] : x[c * LD + r];
}
static float exact(const product *p, int i, int j, int row_order)
{
    float sum = 0;
    for (int k = 0; k < K; k++) sum += element(A, i, k, p->ta, row_order) * element(B, k, j, p->tb, row_order);
    return 2 * sum;
}

static void test_products(void **state)
{
    (void)state;
    float *a = device(LD * LD, 1, A), *b = device(LD * LD, 2, B), *d = device(LD * LD, 0, NULL);
    for (int way = 0; way < 8; way++) {
        product p;
        const int row_order = way / 4;
        product_open(&p, way & 1, way >> 1 & 1, CUBLASLT_EPILOGUE_DEFAULT, row_order);
        OK(choose(&p));
        OK(multiply(&p, a, b, d, WORKSPACE));
        fetch(d, LD * LD);
        for (int i = 0; i < M; i++)
            for (int j = 0; j < NN; j++) near(element(host, i, j, 0, row_order), exact(&p, i, j, row_order));
        product_close(&p);
    }
    OK(cudaFree(a));
    OK(cudaFree(b));
    OK(cudaFree(d));
}

static void test_batches(void **state) /* and beta, into C's place */
{
    (void)state;
    const int32_t two = 2;
    const int64_t stride = LD * LD, none = 0;
    const float alpha = 1, beta = 3;
    static float C[2 * LD * LD];
    float *a = device(2 * LD * LD, 1, A), *b = device(LD * LD, 2, B), *d = device(2 * LD * LD, 3, C);
    product p;
    product_open(&p, 0, 0, CUBLASLT_EPILOGUE_DEFAULT, 0);
    cublasLtMatrixLayout_t all[] = {p.a, p.b, p.c, p.d};
    for (int i = 0; i < 4; i++) {
        OK(cublasLtMatrixLayoutSetAttribute(all[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &two, sizeof two));
        OK(cublasLtMatrixLayoutSetAttribute(all[i], CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, i == 1 ? &none : &stride, 8));
    }
    OK(choose(&p));
    OK(cublasLtMatmul(lt, p.desc, &alpha, a, p.a, b, p.b, &beta, d, p.c, d, p.d, &p.result.algo, workspace, WORKSPACE, stream));
    fetch(d, 2 * LD * LD);
    for (int batch = 0; batch < 2; batch++)
        for (int i = 0; i < M; i++)
            for (int j = 0; j < NN; j++) {
                float sum = 3 * C[batch * LD * LD + j * LD + i];
                for (int k = 0; k < K; k++) sum += A[batch * LD * LD + k * LD + i] * B[j * LD + k];
                near(host[batch * LD * LD + j * LD + i], sum);
            }
    product_close(&p);
    OK(cudaFree(a));
    OK(cudaFree(b));
    OK(cudaFree(d));
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static void test_epilogues(void **state)
{
    static const uint32_t all[] = {
        CUBLASLT_EPILOGUE_BIAS,          CUBLASLT_EPILOGUE_RELU,        CUBLASLT_EPILOGUE_RELU_BIAS,
        CUBLASLT_EPILOGUE_RELU_AUX_BIAS, CUBLASLT_EPILOGUE_GELU,        CUBLASLT_EPILOGUE_GELU_BIAS,
        CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DRELU,       CUBLASLT_EPILOGUE_DRELU_BGRAD,
        CUBLASLT_EPILOGUE_DGELU,         CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADA,
        CUBLASLT_EPILOGUE_BGRADB};
    (void)state;
    static float bias_in[LD], aux_in[LD * LD * 2];
    float *a = device(LD * LD, 1, A), *b = device(LD * LD, 2, B), *d = device(LD * LD, 0, NULL);
    for (size_t e = 0; e < sizeof all / sizeof *all; e++) {
        product p;
        const uint32_t ep = all[e];
        const int relu = ep == CUBLASLT_EPILOGUE_DRELU || ep == CUBLASLT_EPILOGUE_DRELU_BGRAD || (ep & CUBLASLT_EPILOGUE_RELU);
        const int forward = !(ep & (8 | 64));
        const int64_t ld = relu ? 128 : LD;
        float *bias = device(LD, 3, bias_in), *aux = device(LD * LD * 2, 4, aux_in);
        product_open(&p, 1, 0, ep, 0);
        set(&p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
        set(&p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux);
        set(&p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld);
        OK(choose(&p));
        OK(multiply(&p, a, b, d, WORKSPACE));
        static float out[LD * LD], bias_out[LD], aux_out[LD * LD * 2];
        fetch(bias, LD), memcpy(bias_out, host, sizeof bias_out);
        fetch(aux, LD * LD * 2), memcpy(aux_out, host, sizeof aux_out);
        fetch(d, LD * LD), memcpy(out, host, sizeof out);
        double sums[M] = {0};
        for (int j = 0; j < NN; j++)
            for (int i = 0; i < M; i++) {
                double v = exact(&p, i, j, 0);
                if (ep & CUBLASLT_EPILOGUE_BIAS) v += bias_in[i];
                const int bit = ((const unsigned char *)(forward ? aux_out : aux_in))[(j * 128 + i) / 8] >> i % 8 & 1;
                const double at = aux_in[j * LD + i], h = 1e-5;
                if ((ep & 128) && forward && relu) assert_int_equal(bit, v > 0);
                if ((ep & 128) && forward && !relu) near(aux_out[j * LD + i], v);
                if (forward && relu) v = v > 0 ? v : 0;
                if (ep & CUBLASLT_EPILOGUE_GELU) v = gelu(v);
                if (!forward) v *= relu ? bit : (gelu(at + h) - gelu(at - h)) / (2 * h);
                near(out[j * LD + i], v);
                sums[i] += v;
            }
        for (int i = 0; (ep & 16) && i < M; i++) near(bias_out[i], sums[i]);
        for (int i = 0; ep == CUBLASLT_EPILOGUE_BGRADA && i < M; i++) {
            float sum = 0;
            for (int k = 0; k < K; k++) sum += A[i * LD + k];
            near(bias_out[i], sum);
        }
        for (int j = 0; ep == CUBLASLT_EPILOGUE_BGRADB && j < NN; j++) {
            float sum = 0;
            for (int k = 0; k < K; k++) sum += B[j * LD + k];
            near(bias_out[j], sum);
        }
        product_close(&p);
        OK(cudaFree(bias));
        OK(cudaFree(aux));
    }
    OK(cudaFree(a));
    OK(cudaFree(b));
    OK(cudaFree(d));
}

static void test_products_refused(void **state)
{
    (void)state;
    product p;
    float *a = device(2 * LD * LD, 1, NULL), *none = NULL;
    const int64_t relu_ld = 120, short_ld = 0, good_ld = 128, gelu_ld = 12;
    product_open(&p, 0, 0, CUBLASLT_EPILOGUE_DEFAULT, 0);
    OK(choose(&p));
    assert_true(p.result.workspaceSize > 0);
    assert_int_equal(multiply(&p, a, a, a + LD * LD, p.result.workspaceSize - 1), CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(multiply(&p, a + 1, a, a + LD * LD, WORKSPACE), CUBLAS_STATUS_INVALID_VALUE); /* chosen for 256 bytes */
    const uint32_t four = 4;
    OK(cublasLtMatmulPreferenceSetAttribute(p.preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &four, sizeof four));
    OK(choose(&p));
    OK(multiply(&p, a + 1, a, a + LD * LD, WORKSPACE));
    uint32_t ep = CUBLASLT_EPILOGUE_BIAS;
    set(&p, CUBLASLT_MATMUL_DESC_EPILOGUE, &ep, sizeof ep);
    assert_int_equal(choose(&p), CUBLAS_STATUS_INVALID_VALUE); /* no bias */
    set(&p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &a, sizeof a);
    assert_int_equal(multiply(&p, a, a, a + LD * LD, WORKSPACE), CUBLAS_STATUS_INVALID_VALUE); /* chosen for another epilogue */
    OK(choose(&p));
    cusim_fault("lt:epilogue");
    assert_int_equal(choose(&p), CUBLAS_STATUS_NOT_SUPPORTED);
    cusim_release();
    ep = CUBLASLT_EPILOGUE_RELU_AUX;
    set(&p, CUBLASLT_MATMUL_DESC_EPILOGUE, &ep, sizeof ep);
    set(&p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &a, sizeof a);
    set(&p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &relu_ld, sizeof relu_ld);
    assert_int_equal(choose(&p), CUBLAS_STATUS_INVALID_VALUE);
    set(&p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &short_ld, sizeof short_ld);
    assert_int_equal(choose(&p), CUBLAS_STATUS_INVALID_VALUE);
    set(&p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &good_ld, sizeof good_ld);
    OK(choose(&p));
    set(&p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &none, sizeof none);
    assert_int_equal(choose(&p), CUBLAS_STATUS_INVALID_VALUE);
    ep = CUBLASLT_EPILOGUE_DGELU;
    set(&p, CUBLASLT_MATMUL_DESC_EPILOGUE, &ep, sizeof ep);
    set(&p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &a, sizeof a);
    set(&p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &gelu_ld, sizeof gelu_ld);
    assert_int_equal(choose(&p), CUBLAS_STATUS_INVALID_VALUE);
    product_close(&p);
    product_open(&p, 0, 0, CUBLASLT_EPILOGUE_RELU, 1); /* rows first: no epilogue */
    assert_int_equal(choose(&p), CUBLAS_STATUS_NOT_SUPPORTED);
    product_close(&p);
    product_open(&p, 0, 0, CUBLASLT_EPILOGUE_DEFAULT, 0);
    cusim_fault("lt:none");
    assert_int_equal(choose(&p), CUBLAS_STATUS_NOT_SUPPORTED);
    cusim_release();
    const uint64_t rows = K + 1; /* does not match */
    OK(cublasLtMatrixLayoutSetAttribute(p.b, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof rows));
    assert_int_equal(choose(&p), CUBLAS_STATUS_INVALID_VALUE);
    product_close(&p);
    cusim_fault("fail:cublasLtCreate:1:3");
    cublasLtHandle_t other;
    assert_int_equal(cublasLtCreate(&other), CUBLAS_STATUS_ALLOC_FAILED);
    cusim_release();
    OK(cudaFree(a));
}

/* -- cuDNN: 2 images of 6 x 5 x 3, 4 filters of 3 x 2, padding 1, stride 2 x 1, dilation 1 x 2 -- */

enum { IN_N = 2, IN_H = 6, IN_W = 5, IN_C = 3, OUT_C = 4, R = 3, S = 2, OUT_H = 3, OUT_W = 5 };
enum { IN = IN_N * IN_H * IN_W * IN_C, FILTER = OUT_C * R * S * IN_C, OUT = IN_N * OUT_H * OUT_W * OUT_C };
typedef struct conv {
    cudnnTensorDescriptor_t x, y, bias;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t d;
    cudnnActivationDescriptor_t act;
} conv;
static void conv_open(conv *c)
{
    int n, k, h, w;
    OK(cudnnCreateTensorDescriptor(&c->x));
    OK(cudnnCreateTensorDescriptor(&c->y));
    OK(cudnnCreateTensorDescriptor(&c->bias));
    OK(cudnnCreateFilterDescriptor(&c->w));
    OK(cudnnCreateConvolutionDescriptor(&c->d));
    OK(cudnnCreateActivationDescriptor(&c->act));
    OK(cudnnSetTensor4dDescriptor(c->x, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, IN_N, IN_C, IN_H, IN_W));
    OK(cudnnSetFilter4dDescriptor(c->w, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NHWC, OUT_C, IN_C, R, S));
    OK(cudnnSetTensor4dDescriptor(c->y, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, IN_N, OUT_C, OUT_H, OUT_W));
    OK(cudnnSetTensor4dDescriptor(c->bias, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 1, OUT_C, 1, 1));
    OK(cudnnSetConvolution2dDescriptor(c->d, 1, 1, 2, 1, 1, 2, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    OK(cudnnSetConvolutionMathType(c->d, CUDNN_FMA_MATH));
    OK(cudnnGetConvolution2dForwardOutputDim(c->d, c->x, c->w, &n, &k, &h, &w));
    assert_true(n == IN_N && k == OUT_C && h == OUT_H && w == OUT_W);
}
static void conv_close(conv *c)
{
    OK(cudnnDestroyTensorDescriptor(c->x));
    OK(cudnnDestroyTensorDescriptor(c->y));
    OK(cudnnDestroyTensorDescriptor(c->bias));
    OK(cudnnDestroyFilterDescriptor(c->w));
    OK(cudnnDestroyConvolutionDescriptor(c->d));
    OK(cudnnDestroyActivationDescriptor(c->act));
}

static float X[IN], W[FILTER], DY[OUT];
static double want_y[OUT], want_dx[IN], want_dw[FILTER];
static void by_definition(void)
{
    memset(want_y, 0, sizeof want_y), memset(want_dx, 0, sizeof want_dx), memset(want_dw, 0, sizeof want_dw);
    for (int n = 0; n < IN_N; n++)
        for (int p = 0; p < OUT_H; p++)
            for (int q = 0; q < OUT_W; q++)
                for (int k = 0; k < OUT_C; k++)
                    for (int r = 0; r < R; r++)
                        for (int s = 0; s < S; s++)
                            for (int c = 0; c < IN_C; c++) {
                                const int y = 2 * p - 1 + r, x = q - 1 + 2 * s;
                                if (y < 0 || y >= IN_H || x < 0 || x >= IN_W) continue;
                                const int out = ((n * OUT_H + p) * OUT_W + q) * OUT_C + k;
                                const int in = ((n * IN_H + y) * IN_W + x) * IN_C + c, w = ((k * R + r) * S + s) * IN_C + c;
                                want_y[out] += (double)X[in] * W[w];
                                want_dx[in] += (double)DY[out] * W[w];
                                want_dw[w] += (double)DY[out] * X[in];
                            }
}

static void test_convolution(void **state)
{
    (void)state;
    conv c;
    size_t bytes;
    const float one = 1, zero = 0;
    float bias_in[OUT_C];
    conv_open(&c);
    float *x = device(IN, 1, X), *w = device(FILTER, 2, W), *dy = device(OUT, 3, DY), *y = device(OUT, 0, NULL);
    float *dx = device(IN, 0, NULL), *dw = device(FILTER, 0, NULL), *bias = device(OUT_C, 4, bias_in);
    by_definition();
    OK(cudnnGetConvolutionForwardWorkspaceSize(dnn, c.x, c.w, c.d, c.y, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                                               &bytes));
    OK(cudnnConvolutionForward(dnn, &one, c.x, x, c.w, w, c.d, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, workspace,
                               bytes, &zero, c.y, y));
    fetch(y, OUT);
    for (int i = 0; i < OUT; i++) near(host[i], want_y[i]);
    for (int relu = 0; relu < 2; relu++) {
        OK(cudnnSetActivationDescriptor(c.act, relu ? CUDNN_ACTIVATION_RELU : CUDNN_ACTIVATION_IDENTITY, CUDNN_PROPAGATE_NAN,
                                        0));
        OK(cudnnConvolutionBiasActivationForward(dnn, &one, c.x, x, c.w, w, c.d,
                                                 CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, workspace, bytes, &zero, c.y,
                                                 y, c.bias, bias, c.act, c.y, y));
        fetch(y, OUT);
        for (int i = 0; i < OUT; i++) {
            const double v = want_y[i] + bias_in[i % OUT_C];
            near(host[i], relu && v < 0 ? 0 : v);
        }
    }
    for (int algo = 0; algo < 2; algo++) { /* ALGO_0 adds in any order */
        OK(cudnnConvolutionBackwardData(dnn, &one, c.w, w, c.y, dy, c.d, (cudnnConvolutionBwdDataAlgo_t)algo, workspace,
                                        WORKSPACE, &zero, c.x, dx));
        fetch(dx, IN);
        for (int i = 0; i < IN; i++) near(host[i], want_dx[i]);
        OK(cudnnConvolutionBackwardFilter(dnn, &one, c.x, x, c.y, dy, c.d, (cudnnConvolutionBwdFilterAlgo_t)algo, workspace,
                                          WORKSPACE, &zero, c.w, dw));
        fetch(dw, FILTER);
        for (int i = 0; i < FILTER; i++) near(host[i], want_dw[i]);
    }
    OK(cudnnConvolutionBackwardFilter(dnn, &one, c.x, x, c.y, dy, c.d, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, workspace,
                                      WORKSPACE, &one, c.w, dw)); /* adds to what is there */
    fetch(dw, FILTER);
    for (int i = 0; i < FILTER; i++) near(host[i], 2 * want_dw[i]);
    OK(cudnnConvolutionBackwardBias(dnn, &one, c.y, dy, &zero, c.bias, bias));
    fetch(bias, OUT_C);
    for (int k = 0; k < OUT_C; k++) {
        double sum = 0;
        for (int i = k; i < OUT; i += OUT_C) sum += DY[i];
        near(host[k], sum);
    }
    float *all[] = {x, w, dy, y, dx, dw, bias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) OK(cudaFree(all[i]));
    conv_close(&c);
}

static void test_convolution_refused(void **state)
{
    (void)state;
    conv c;
    size_t bytes = 0;
    const float one = 1, zero = 0;
    const cudnnConvolutionFwdAlgo_t good = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    conv_open(&c);
    float *x = device(IN + 4, 1, NULL), *w = device(FILTER, 2, NULL), *y = device(OUT, 0, NULL);
    for (int a = 0; a < CUDNN_CONVOLUTION_FWD_ALGO_COUNT; a++)
        assert_int_equal(cudnnGetConvolutionForwardWorkspaceSize(dnn, c.x, c.w, c.d, c.y, (cudnnConvolutionFwdAlgo_t)a, &bytes),
                         a == (int)good ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED);
    OK(cudnnGetConvolutionForwardWorkspaceSize(dnn, c.x, c.w, c.d, c.y, good, &bytes));
    assert_true(bytes > 0);
#define FORWARD(x, bytes) cudnnConvolutionForward(dnn, &one, c.x, x, c.w, w, c.d, good, workspace, bytes, &zero, c.y, y)
    assert_int_equal(FORWARD(x, bytes - 1), CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
    assert_int_equal((cudnnConvolutionForward(dnn, &one, c.x, x + 1, c.w, w, c.d, good, workspace, bytes, &zero, c.y, y)),
                     CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
    assert_int_equal((cudnnConvolutionForward(dnn, &one, c.x, x, c.w, w, c.d, CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, workspace,
                                              bytes, &zero, c.y, y)),
                     CUDNN_STATUS_NOT_SUPPORTED);
    OK(cudnnSetConvolutionGroupCount(c.d, 3));
    assert_int_equal(FORWARD(x, bytes), CUDNN_STATUS_NOT_SUPPORTED);
    OK(cudnnSetConvolutionGroupCount(c.d, 1));
    cusim_fault("dnn:none");
    assert_int_equal(FORWARD(x, bytes), CUDNN_STATUS_NOT_SUPPORTED);
    cusim_release();
    OK(cudnnSetTensor4dDescriptor(c.y, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, IN_N, OUT_C, OUT_H + 1, OUT_W));
    assert_int_equal(FORWARD(x, bytes), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
    OK(cudaFree(x));
    OK(cudaFree(w));
    OK(cudaFree(y));
    conv_close(&c);
}

static void test_choices(void **state) /* the heuristic is always the same, the measurement is not */
{
    (void)state;
    conv c;
    cudnnConvolutionBwdFilterAlgoPerf_t perf[8], before;
    int n, winners[2] = {0};
    cusim_counters count;
    conv_open(&c);
    float *x = device(IN, 1, NULL), *dy = device(OUT, 3, NULL), *dw = device(FILTER, 1, NULL);
    OK(cudnnGetConvolutionBackwardFilterAlgorithm_v7(dnn, c.x, c.y, c.d, c.w, 8, &n, perf));
    assert_int_equal(n, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT);
    assert_int_equal(perf[0].algo, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1);
    assert_int_equal(perf[0].determinism, CUDNN_DETERMINISTIC);
    assert_int_equal(perf[1].determinism, CUDNN_NON_DETERMINISTIC);
    assert_int_equal(perf[2].status, CUDNN_STATUS_NOT_SUPPORTED);
    before = perf[0];
    OK(cudnnGetConvolutionBackwardFilterAlgorithm_v7(dnn, c.x, c.y, c.d, c.w, 8, &n, perf));
    assert_memory_equal(&before, perf, sizeof before);
    cusim_reset();
    for (int i = 0; i < 40; i++) {
        OK(cudnnFindConvolutionBackwardFilterAlgorithmEx(dnn, c.x, x, c.y, dy, c.d, c.w, dw, 8, &n, perf, workspace,
                                                         WORKSPACE));
        assert_int_equal(perf[0].status, CUDNN_STATUS_SUCCESS);
        assert_true(perf[0].time <= perf[1].time);
        winners[perf[0].algo == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1]++;
    }
    assert_true(winners[0] > 0 && winners[1] > 0);
    cusim_read(&count);
    assert_int_equal(count.blocking, 40);
    fetch(dw, FILTER);
    assert_true(isnan(host[0])); /* the output was overwritten */
    OK(cudaFree(x));
    OK(cudaFree(dy));
    OK(cudaFree(dw));
    conv_close(&c);
}

static void test_random_sums(void **state) /* ALGO_0 gives other bytes from run to run, ALGO_1 does not */
{
    (void)state;
    conv c;
    static float first[2][FILTER];
    int differ[2] = {0};
    const float one = 1, zero = 0;
    conv_open(&c);
    enum { MANY = 16 };
    OK(cudnnSetTensor4dDescriptor(c.x, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, MANY, IN_C, IN_H, IN_W));
    OK(cudnnSetTensor4dDescriptor(c.y, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, MANY, OUT_C, OUT_H, OUT_W));
    float *x = device(IN / IN_N * MANY, 1, NULL), *dy = device(OUT / IN_N * MANY, 3, NULL), *dw = device(FILTER, 1, NULL);
    for (int round = 0; round < 6; round++)
        for (int algo = 0; algo < 2; algo++) {
            OK(cudnnConvolutionBackwardFilter(dnn, &one, c.x, x, c.y, dy, c.d, (cudnnConvolutionBwdFilterAlgo_t)algo, workspace,
                                              WORKSPACE, &zero, c.w, dw));
            fetch(dw, FILTER);
            if (!round) memcpy(first[algo], host, sizeof first[algo]);
            differ[algo] += memcmp(first[algo], host, sizeof first[algo]) != 0;
        }
    assert_true(differ[0] > 0);
    assert_int_equal(differ[1], 0);
    OK(cudaFree(x));
    OK(cudaFree(dy));
    OK(cudaFree(dw));
    conv_close(&c);
}

/* 1 + 2^-11 needs 11 bits: products that may use TF32 lose it, if CUSIM_TF32 is set. */
static int rounds(void)
{
    float lost[2];
    const float v = 1 + 1.0f / 2048, one = 1, zero = 0;
    float *a = device(1, 0, NULL);
    cublasLtMatrixLayout_t l;
    OK(cublasLtMatrixLayoutCreate(&l, CUDA_R_32F, 1, 1, 1));
    for (int fast = 0; fast < 2; fast++) {
        cublasLtMatmulDesc_t d;
        OK(cublasLtMatmulDescCreate(&d, fast ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
        host[0] = v;
        OK(cudaMemcpyAsync(a, host, 4, cudaMemcpyHostToDevice, stream));
        OK(cublasLtMatmul(lt, d, &one, a, l, a, l, &zero, a, l, a, l, NULL, NULL, 0, stream));
        fetch(a, 1);
        lost[fast] = host[0];
        OK(cublasLtMatmulDescDestroy(d));
    }
    OK(cublasLtMatrixLayoutDestroy(l));
    OK(cudaFree(a));
    return (lost[0] == v * v) | (lost[1] == 1.0f) << 1 | (lost[1] == v * v) << 2;
}
static void test_tf32(void **state)
{
    int status;
    (void)state;
    assert_int_equal(rounds(), 1 | 4);
    const pid_t pid = fork();
    if (!pid) {
        setenv("CUSIM_TF32", "1", 1);
        execl("/proc/self/exe", "test_cusim_libraries", "tf32", (char *)NULL);
        _exit(99);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1 | 2);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        (void)argv;
        open_all(NULL);
        return rounds();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),         cmocka_unit_test(test_batches),     cmocka_unit_test(test_epilogues),
        cmocka_unit_test(test_products_refused), cmocka_unit_test(test_convolution), cmocka_unit_test(test_convolution_refused),
        cmocka_unit_test(test_choices),          cmocka_unit_test(test_random_sums), cmocka_unit_test(test_tf32),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
