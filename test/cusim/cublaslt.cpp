// cublasLt: products of fp32 matrices with its epilogues, and what it refuses.
#include <mutex>
#include <set>
#include "library.h"
#include <cmath>
#include <cstring>
#include <cublasLt.h>

namespace cusim {

struct Handle {
    int device;
};
struct Desc {
    cublasComputeType_t compute;
    int32_t transpose[2] = {CUBLAS_OP_N, CUBLAS_OP_N};
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr, *aux = nullptr;
    int64_t bias_stride = 0, aux_ld = 0, aux_stride = 0;
};
struct Layout {
    int64_t rows, columns, ld, stride = 0;
    int32_t order = CUBLASLT_ORDER_COL, batches = 1;
};
struct Preference {
    uint64_t workspace = 0;
    uint32_t alignment[4] = {256, 256, 256, 256}; // A B C D
};
// What an algorithm was chosen for, as it lies in cublasLtMatmulAlgo_t.
struct Algo {
    uint32_t magic, epilogue;
    uint16_t alignment[4], bias_alignment, aux_alignment;
    uint8_t transpose[2], order[4];
    uint64_t workspace;
};
static_assert(sizeof(Algo) <= sizeof(cublasLtMatmulAlgo_t), "it fits");
constexpr uint32_t algo_magic = 0xA160A160;
enum { EP_RELU = 2, EP_BIAS = 4, EP_DRELU = 8, EP_BGRAD = 16, EP_GELU = 32, EP_DGELU = 64, EP_AUX = 128, EP_BGRADA = 256, EP_BGRADB = 512 };

static size_t alignment(const void *p)
{
    const uintptr_t u = (uintptr_t)p;
    return u ? (size_t)std::min<uintptr_t>(u & (~u + 1), 256) : 256;
}

static Matrix view(const Layout &l, bool transposed, const float *at)
{
    const bool row = l.order == CUBLASLT_ORDER_ROW;
    const int64_t r = row ? l.ld : 1, c = row ? 1 : l.ld;
    return transposed ? Matrix{at, c, r} : Matrix{at, r, c};
}
static size_t bytes(const Layout &l)
{
    const bool row = l.order == CUBLASLT_ORDER_ROW;
    const int64_t lines = row ? l.rows : l.columns, length = row ? l.columns : l.rows;
    return (size_t)((lines - 1) * l.ld + length + (l.batches - 1) * l.stride) * 4;
}
static void touch(const Layout &l, float *at, bool write)
{
    const bool row = l.order == CUBLASLT_ORDER_ROW;
    const int64_t lines = row ? l.rows : l.columns, length = row ? l.columns : l.rows;
    for (int64_t b = 0; b < l.batches; b++)
        for (int64_t i = 0; i < lines; i++) {
            float *const p = at + b * l.stride + i * l.ld;
            write ? ts_write(p, (size_t)length * 4) : ts_read(p, (size_t)length * 4);
        }
}

struct Problem {
    int64_t m, n, k;
};

// What the library says of the description alone.
static cublasStatus_t examine(const Desc &d, const Layout &a, const Layout &b, const Layout &c, const Layout &out, Problem *p)
{
    const Layout *all[] = {&a, &b, &c, &out};
    const bool ta = d.transpose[0] == CUBLAS_OP_T, tb = d.transpose[1] == CUBLAS_OP_T;
    p->m = ta ? a.columns : a.rows;
    p->k = ta ? a.rows : a.columns;
    p->n = tb ? b.rows : b.columns;
    if ((tb ? b.columns : b.rows) != p->k || out.rows != p->m || out.columns != p->n || c.rows != p->m || c.columns != p->n)
        return CUBLAS_STATUS_INVALID_VALUE;
    for (const Layout *l : all) {
        if (l->rows < 1 || l->columns < 1 || l->batches != out.batches) return CUBLAS_STATUS_INVALID_VALUE;
        if (l->ld < (l->order == CUBLASLT_ORDER_ROW ? l->columns : l->rows)) return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (c.order != out.order) return CUBLAS_STATUS_NOT_SUPPORTED;
    const uint32_t e = d.epilogue;
    if (e == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
    if (out.order != CUBLASLT_ORDER_COL) return CUBLAS_STATUS_NOT_SUPPORTED; // rows of D are what bias and aux are laid out by
    if ((e & (EP_BIAS | EP_BGRAD | EP_BGRADA | EP_BGRADB)) && (!d.bias || !aligned(d.bias, 4))) return CUBLAS_STATUS_INVALID_VALUE;
    if (!(e & EP_AUX)) return CUBLAS_STATUS_SUCCESS;
    const int64_t unit = e & (EP_RELU | EP_DRELU) ? 128 : 8;
    if (!d.aux || !aligned(d.aux, 16) || d.aux_ld % unit || d.aux_ld < p->m || d.aux_stride % unit)
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

static float gelu(float x)
{
    return 0.5f * x * (1 + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}
static float gelu_slope(float x)
{
    const float t = tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608028654f * (1 + 3 * 0.044715f * x * x);
}

struct Work {
    Desc d;
    Layout a, b, c, out;
    Problem p;
    float alpha, beta;
    float *A, *B, *C, *D, *bias;
    char *aux;
    void *workspace;
    size_t workspace_bytes;
};

static void tell_tsan(const Work &w)
{
    const uint32_t e = w.d.epilogue;
    touch(w.a, w.A, false);
    touch(w.b, w.B, false);
    if (w.beta != 0) touch(w.c, w.C, false);
    touch(w.out, w.D, true);
    for (int64_t b = 0; b < w.out.batches; b++) {
        if (e & EP_BIAS) ts_read(w.bias + b * w.d.bias_stride, (size_t)w.p.m * 4);
        if (e & (EP_BGRAD | EP_BGRADA)) ts_write(w.bias + b * w.d.bias_stride, (size_t)w.p.m * 4);
        if (e & EP_BGRADB) ts_write(w.bias + b * w.d.bias_stride, (size_t)w.p.n * 4);
        if (!(e & EP_AUX)) continue;
        for (int64_t j = 0; j < w.p.n; j++) {
            const bool bits = e & (EP_RELU | EP_DRELU);
            char *const p = w.aux + (bits ? (b * w.d.aux_stride + j * w.d.aux_ld) / 8 : (b * w.d.aux_stride + j * w.d.aux_ld) * 4);
            const size_t n = bits ? (size_t)(w.p.m + 7) / 8 : (size_t)w.p.m * 4;
            e & (EP_RELU | EP_GELU) ? ts_write(p, n) : ts_read(p, n);
        }
    }
}

static void run(const Work &w)
{
    const uint32_t e = w.d.epilogue;
    const bool round = tf32_rounds() && w.d.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const bool gradient = e & (EP_DRELU | EP_DGELU);
    Busy busy(w.workspace, w.workspace_bytes, "cublasLtMatmul");
    tell_tsan(w);
    std::vector<float> product((size_t)(w.p.m * w.p.n));
    for (int64_t b = 0; b < w.out.batches; b++) {
        const Matrix a = view(w.a, w.d.transpose[0] == CUBLAS_OP_T, w.A + b * w.a.stride);
        const Matrix x = view(w.b, w.d.transpose[1] == CUBLAS_OP_T, w.B + b * w.b.stride);
        multiply(product.data(), w.p.n, 1, a, x, w.p.m, w.p.n, w.p.k, false, round);
        const Matrix c = view(w.c, false, w.C + b * w.c.stride), out = view(w.out, false, w.D + b * w.out.stride);
        float *const bias = w.bias + b * w.d.bias_stride;
        for (int64_t i = 0; (e & EP_BGRAD) && i < w.p.m; i++) bias[i] = 0;
        for (int64_t j = 0; j < w.p.n; j++)
            for (int64_t i = 0; i < w.p.m; i++) {
                float v = w.alpha * product[(size_t)(i * w.p.n + j)];
                if (w.beta != 0) v += w.beta * c.at[i * c.row + j * c.column];
                if (e != CUBLASLT_EPILOGUE_DEFAULT) {
                    const int64_t at = b * w.d.aux_stride + j * w.d.aux_ld + i;
                    unsigned char *const bit = (unsigned char *)w.aux + at / 8;
                    float *const in = (float *)w.aux + at;
                    if (e & EP_BIAS) v += bias[i];
                    if ((e & EP_AUX) && (e & EP_RELU)) *bit = (unsigned char)((*bit & ~(1u << at % 8)) | (unsigned)(v > 0) << at % 8);
                    if ((e & EP_AUX) && (e & EP_GELU)) *in = v;
                    if (e & EP_RELU) v = v > 0 ? v : 0;
                    if (e & EP_GELU) v = gelu(v);
                    if (gradient) v = e & EP_DRELU ? *bit >> at % 8 & 1 ? v : 0 : v * gelu_slope(*in);
                    if (e & EP_BGRAD) bias[i] += v;
                }
                const_cast<float *>(out.at)[i * out.row + j * out.column] = v;
            }
        if (e & (EP_BGRADA | EP_BGRADB)) {
            for (int64_t i = 0; i < (e & EP_BGRADA ? w.p.m : w.p.n); i++) {
                float sum = 0;
                for (int64_t p = 0; p < w.p.k; p++)
                    sum += e & EP_BGRADA ? a.at[i * a.row + p * a.column] : x.at[p * x.row + i * x.column];
                bias[i] = sum;
            }
        }
    }
}

static bool known(uint32_t e)
{
    switch (e) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_RELU_AUX:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_RELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DRELU:
    case CUBLASLT_EPILOGUE_DRELU_BGRAD:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB: return true;
    default: return false;
    }
}

template <class T> static cublasStatus_t take(T *to, const void *from, size_t n)
{
    if (!from || n != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, n);
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace cusim

using namespace cusim;

#define LT extern "C" cublasStatus_t CUBLASWINAPI
#define ENTER_LT(flags)                                                                                                        \
    Hidden hidden_;                                                                                                            \
    if (const int e_ = enter_library(__func__, flags, CUBLAS_STATUS_EXECUTION_FAILED)) return (cublasStatus_t)e_

// Of a device that died nobody destroys the handle: it stays known here, for the leak checker.
static auto &handles = *new std::set<Handle *>; // never destroyed: the checker looks at the very end
static std::mutex handles_lock;

LT cublasLtCreate(cublasLtHandle_t *h)
{
    ENTER_LT(CONTEXT | ALIVE | UNSAFE);
    if (!take_handle(true, 0)) return CUBLAS_STATUS_ALLOC_FAILED;
    Handle *made = new Handle{here().index};
    std::lock_guard<std::mutex> lock(handles_lock);
    handles.insert(made);
    *h = (cublasLtHandle_t)made;
    return CUBLAS_STATUS_SUCCESS;
}
LT cublasLtDestroy(cublasLtHandle_t h)
{
    ENTER_LT(CONTEXT);
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (((Handle *)h)->device != here().index) die("cublasLtDestroy: the handle is of another device than the thread's");
    take_handle(false, 0);
    std::lock_guard<std::mutex> lock(handles_lock);
    handles.erase((Handle *)h);
    delete (Handle *)h;
    return CUBLAS_STATUS_SUCCESS;
}
extern "C" size_t CUBLASWINAPI cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}
extern "C" const char *CUBLASWINAPI cublasLtGetStatusName(cublasStatus_t s)
{
    switch (s) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_UNKNOWN";
    }
}
extern "C" const char *CUBLASWINAPI cublasLtGetStatusString(cublasStatus_t s)
{
    return cublasLtGetStatusName(s);
}

// -- descriptors --

LT cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute, cudaDataType_t scale)
{
    ENTER_LT(0);
    if ((compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32) || scale != CUDA_R_32F)
        die("cublasLtMatmulDescCreate: compute type %d with scale type %d is not modelled", (int)compute, (int)scale);
    auto *made = new Desc;
    made->compute = compute;
    *d = (cublasLtMatmulDesc_t)made;
    count_descriptor(true);
    return CUBLAS_STATUS_SUCCESS;
}
LT cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    ENTER_LT(0);
    count_descriptor(false);
    delete (Desc *)d;
    return CUBLAS_STATUS_SUCCESS;
}
LT cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t opaque, cublasLtMatmulDescAttributes_t which, const void *from, size_t n)
{
    ENTER_LT(0);
    Desc &d = *(Desc *)opaque;
    int32_t value = 0;
    switch (which) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
    case CUBLASLT_MATMUL_DESC_TRANSB: {
        if (take(&value, from, n) || (value != CUBLAS_OP_N && value != CUBLAS_OP_T)) return CUBLAS_STATUS_INVALID_VALUE;
        d.transpose[which == CUBLASLT_MATMUL_DESC_TRANSB] = value;
        return CUBLAS_STATUS_SUCCESS;
    }
    case CUBLASLT_MATMUL_DESC_EPILOGUE: {
        uint32_t e;
        if (take(&e, from, n) || !known(e)) return CUBLAS_STATUS_INVALID_VALUE;
        d.epilogue = e;
        return CUBLAS_STATUS_SUCCESS;
    }
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return take(&d.bias, from, n);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE: return take(&d.bias_stride, from, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return take(&d.aux, from, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return take(&d.aux_ld, from, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE: return take(&d.aux_stride, from, n);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        if (take(&value, from, n)) return CUBLAS_STATUS_INVALID_VALUE;
        if (value != CUBLASLT_POINTER_MODE_HOST) die("cublasLt: pointer mode %d is not modelled", value);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
        if (take(&value, from, n)) return CUBLAS_STATUS_INVALID_VALUE;
        if (value != CUDA_R_32F) die("cublasLt: data type %d is not modelled", value);
        return CUBLAS_STATUS_SUCCESS;
    default: die("cublasLtMatmulDescSetAttribute: attribute %d is not modelled", (int)which);
    }
}

LT cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld)
{
    ENTER_LT(0);
    if (type != CUDA_R_32F) die("cublasLtMatrixLayoutCreate: type %d is not modelled", (int)type);
    auto *made = new Layout;
    made->rows = (int64_t)rows, made->columns = (int64_t)columns, made->ld = ld;
    *l = (cublasLtMatrixLayout_t)made;
    count_descriptor(true);
    return CUBLAS_STATUS_SUCCESS;
}
LT cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    ENTER_LT(0);
    count_descriptor(false);
    delete (Layout *)l;
    return CUBLAS_STATUS_SUCCESS;
}
LT cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t opaque, cublasLtMatrixLayoutAttribute_t which, const void *from, size_t n)
{
    ENTER_LT(0);
    Layout &l = *(Layout *)opaque;
    switch (which) {
    case CUBLASLT_MATRIX_LAYOUT_ROWS: return take(&l.rows, from, n);
    case CUBLASLT_MATRIX_LAYOUT_COLS: return take(&l.columns, from, n);
    case CUBLASLT_MATRIX_LAYOUT_LD: return take(&l.ld, from, n);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return take(&l.batches, from, n);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return take(&l.stride, from, n);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
        if (take(&l.order, from, n)) return CUBLAS_STATUS_INVALID_VALUE;
        if (l.order != CUBLASLT_ORDER_COL && l.order != CUBLASLT_ORDER_ROW) die("cublasLt: matrix order %d is not modelled", l.order);
        return CUBLAS_STATUS_SUCCESS;
    default: die("cublasLtMatrixLayoutSetAttribute: attribute %d is not modelled", (int)which);
    }
}

LT cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    ENTER_LT(0);
    *p = (cublasLtMatmulPreference_t) new Preference;
    count_descriptor(true);
    return CUBLAS_STATUS_SUCCESS;
}
LT cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    ENTER_LT(0);
    count_descriptor(false);
    delete (Preference *)p;
    return CUBLAS_STATUS_SUCCESS;
}
LT cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t opaque, cublasLtMatmulPreferenceAttributes_t which,
                                        const void *from, size_t n)
{
    ENTER_LT(0);
    Preference &p = *(Preference *)opaque;
    uint32_t ignored;
    switch (which) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return take(&p.workspace, from, n);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return take(&p.alignment[0], from, n);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return take(&p.alignment[1], from, n);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return take(&p.alignment[2], from, n);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return take(&p.alignment[3], from, n);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return take(&ignored, from, n); // sums are in one order here anyway
    default: die("cublasLtMatmulPreferenceSetAttribute: attribute %d is not modelled", (int)which);
    }
}

// -- products --

LT cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                  cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
                                  int wanted, cublasLtMatmulHeuristicResult_t results[], int *found)
{
    ENTER_LT(CONTEXT | ALIVE);
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (wanted < 1 || !results || !found) return CUBLAS_STATUS_INVALID_VALUE;
    const Desc &x = *(Desc *)desc;
    const Preference &p = *(Preference *)preference;
    const Layout *all[] = {(Layout *)a, (Layout *)b, (Layout *)c, (Layout *)d};
    Problem problem;
    *found = 0;
    if (const cublasStatus_t s = examine(x, *all[0], *all[1], *all[2], *all[3], &problem)) return s;
    {
        Lock l(world);
        if (switched("lt", "none") || (x.epilogue != CUBLASLT_EPILOGUE_DEFAULT && switched("lt", "epilogue")))
            return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    for (uint64_t workspace : {(uint64_t)4096, (uint64_t)0}) {
        if (workspace > p.workspace || *found == wanted) continue;
        Algo algo{};
        algo.magic = algo_magic;
        algo.epilogue = x.epilogue;
        algo.bias_alignment = (uint16_t)std::min<size_t>(alignment(x.bias), 16);
        algo.aux_alignment = (uint16_t)std::min<size_t>(alignment(x.aux), 16);
        algo.workspace = workspace;
        for (int i = 0; i < 4; i++) {
            algo.alignment[i] = (uint16_t)p.alignment[i];
            algo.order[i] = (uint8_t)all[i]->order;
            if (i < 2) algo.transpose[i] = (uint8_t)x.transpose[i];
        }
        cublasLtMatmulHeuristicResult_t r{};
        memcpy(&r.algo, &algo, sizeof algo);
        r.workspaceSize = workspace;
        r.state = CUBLAS_STATUS_SUCCESS;
        r.wavesCount = 1;
        Visible v;
        memcpy(&results[(*found)++], &r, sizeof r);
    }
    return CUBLAS_STATUS_SUCCESS;
}

LT cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, const void *alpha, const void *A, cublasLtMatrixLayout_t a,
                  const void *B, cublasLtMatrixLayout_t b, const void *beta, const void *C, cublasLtMatrixLayout_t c, void *D,
                  cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                  cudaStream_t stream)
{
    static const char *const name = "cublasLtMatmul";
    ENTER_LT(CONTEXT | ALIVE);
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    check_stream(stream);
    if (((Handle *)h)->device != stream->device->index) die("%s: the handle is of another device than the stream", name);
    Work w{*(Desc *)desc, *(Layout *)a, *(Layout *)b, *(Layout *)c, *(Layout *)d, {}, host_float(alpha, name), host_float(beta, name),
           nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 0};
    const uint32_t e = w.d.epilogue;
    if (const cublasStatus_t s = examine(w.d, w.a, w.b, w.c, w.out, &w.p)) return s;
    const void *const pointer[] = {A, B, w.beta != 0 ? C : D, D};
    for (const void *p : pointer)
        if (!p || !aligned(p, 4)) return CUBLAS_STATUS_INVALID_VALUE;
    if (C == D && (w.c.ld != w.out.ld || w.c.stride != w.out.stride)) return CUBLAS_STATUS_INVALID_VALUE;
    if (algo) {
        Algo chosen;
        const uint8_t order[] = {(uint8_t)w.a.order, (uint8_t)w.b.order, (uint8_t)w.c.order, (uint8_t)w.out.order};
        memcpy(&chosen, algo, sizeof chosen);
        if (chosen.magic != algo_magic || chosen.epilogue != e || chosen.transpose[0] != w.d.transpose[0] ||
            chosen.transpose[1] != w.d.transpose[1] || memcmp(chosen.order, order, sizeof order))
            return CUBLAS_STATUS_INVALID_VALUE;
        for (int i = 0; i < 4; i++)
            if (!aligned(pointer[i], chosen.alignment[i])) return CUBLAS_STATUS_INVALID_VALUE;
        if (!aligned(w.d.bias, chosen.bias_alignment) || !aligned(w.d.aux, chosen.aux_alignment)) return CUBLAS_STATUS_INVALID_VALUE;
        if (workspace_bytes < chosen.workspace || (chosen.workspace && (!workspace || !aligned(workspace, 16))))
            return CUBLAS_STATUS_INVALID_VALUE;
        w.workspace_bytes = chosen.workspace;
    }
    const int device = stream->device->index;
    w.A = (float *)reach(A, bytes(w.a), device, name);
    w.B = (float *)reach(B, bytes(w.b), device, name);
    w.C = w.beta != 0 ? (float *)reach(C, bytes(w.c), device, name) : nullptr;
    w.D = (float *)reach(D, bytes(w.out), device, name);
    if (w.workspace_bytes) w.workspace = reach(workspace, w.workspace_bytes, device, name);
    if (e & (EP_BIAS | EP_BGRAD | EP_BGRADA | EP_BGRADB)) {
        const int64_t length = e & EP_BGRADB ? w.p.n : w.p.m;
        w.bias = (float *)reach(w.d.bias, (size_t)((w.out.batches - 1) * w.d.bias_stride + length) * 4, device, name);
    }
    if (e & EP_AUX) {
        const int64_t elements = (w.out.batches - 1) * w.d.aux_stride + (w.p.n - 1) * w.d.aux_ld + w.p.m;
        w.aux = (char *)reach(w.d.aux, (size_t)(e & (EP_RELU | EP_DRELU) ? (elements + 7) / 8 : elements * 4), device, name);
    }
    const cudaError_t failed = submit(stream, Op{Kind::library, name, [w] { run(w); }});
    return failed ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
