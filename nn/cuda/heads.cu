/* Attention over the heads: after Dao, Fu, Ermon, Rudra, Re, "FlashAttention", NeurIPS 2022. 256 threads hold a square of 64 x 64 numbers,
 * 4 x 4 each: thread (ty, tx) has rows 4 ty .. and columns 4 tx .. . A result wider than 64 is made by several blocks, which all make the
 * scores. Backward has two kinds of block: one adds up dq of its queries over the keys, the other dk and dv of its keys over the queries;
 * nothing is added from two sides. Two blocks share a multiprocessor: few registers beat a few spills. */
#include "heads.h"
#include "launch.h"

enum { SIDE = 64, DEEP = 16, STRIDE = SIDE + 4, EACH = 4 };

typedef struct heads {
    int64_t t, width, row, out_row; /* steps from one position to the next in qkv and in out */
    int64_t heads, blocks;          /* of a sample; of 64 positions in t */
    int causal;
    float scale;
} heads;

/* A (t, width) array whose rows are `step` apart, bias added to each; NULL: none. */
typedef struct array {
    const float *x, *bias;
    int64_t step;
} array;

static __device__ __forceinline__ float value_of(const array &a, int64_t r, int64_t c)
{
    return a.x[r * a.step + c] + (a.bias ? a.bias[c] : 0.0f);
}

/* Rows first .., columns from `left`: transposed (depth by 64 rows) or as they are (64 rows by 64 columns). What lies outside is zero. */
static __device__ __forceinline__ void load_deep(float *to, const array &x, int64_t first, int64_t t, int64_t left,
                                                 int64_t width)
{
    for (int i = (int)threadIdx.x; i < SIDE * DEEP; i += DP_BLOCK) {
        const int r = i / DEEP, c = i % DEEP;
        to[c * STRIDE + r] = first + r < t && left + c < width ? value_of(x, first + r, left + c) : 0;
    }
}
static __device__ __forceinline__ void load_square(float *to, const array &x, int64_t first, int64_t t, int64_t left,
                                                   int64_t width)
{
    for (int i = (int)threadIdx.x; i < SIDE * SIDE; i += DP_BLOCK) {
        const int r = i / SIDE, c = i % SIDE;
        to[r * STRIDE + c] = first + r < t && left + c < width ? value_of(x, first + r, left + c) : 0;
    }
}

static __device__ __forceinline__ void read4(float v[EACH], const float *from)
{
    const float4 q = *reinterpret_cast<const float4 *>(from);
    v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
}

/* c += a b' for rows a0 .. of a and b0 .. of b, both `width` wide. */
static __device__ __forceinline__ void rows_by_rows(float c[EACH][EACH], float *deep_a, float *deep_b, const array &a,
                                                    int64_t a0, const array &b, int64_t b0, int64_t t, int64_t width)
{
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int64_t k = 0; k < width; k += DEEP) {
        __syncthreads();
        load_deep(deep_a, a, a0, t, k, width);
        load_deep(deep_b, b, b0, t, k, width);
        __syncthreads();
#pragma unroll
        for (int d = 0; d < DEEP; d++) {
            float x[EACH], y[EACH];
            read4(x, deep_a + d * STRIDE + EACH * ty);
            read4(y, deep_b + d * STRIDE + EACH * tx);
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++) c[i][j] = fmaf(x[i], y[j], c[i][j]);
        }
    }
}

/* c += s v, or s' v: s and v are squares in shared memory. */
template <int TRANSPOSED>
static __device__ __forceinline__ void square_by_square(float c[EACH][EACH], const float *s, const float *v)
{
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll 8
    for (int k = 0; k < SIDE; k++) {
        float x[EACH], y[EACH];
        if (TRANSPOSED) {
            read4(x, s + k * STRIDE + EACH * ty);
        } else {
            for (int i = 0; i < EACH; i++) x[i] = s[(EACH * ty + i) * STRIDE + k];
        }
        read4(y, v + k * STRIDE + EACH * tx);
        for (int i = 0; i < EACH; i++)
            for (int j = 0; j < EACH; j++) c[i][j] = fmaf(x[i], y[j], c[i][j]);
    }
}

static __device__ __forceinline__ void store_square(float *s, const float c[EACH][EACH])
{
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) s[(EACH * ty + i) * STRIDE + EACH * tx + j] = c[i][j];
}

/* c to rows first .. of x, columns from `left`. */
static __device__ __forceinline__ void write_rows(float *x, int64_t step, int64_t first, int64_t t, int64_t left, int64_t width,
                                                  const float c[EACH][EACH])
{
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            const int64_t r = first + EACH * ty + i, k = left + EACH * tx + j;
            if (r < t && k < width) x[r * step + k] = c[i][j];
        }
}

static __device__ __forceinline__ void clear(float c[EACH][EACH])
{
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) c[i][j] = 0;
}

/* The 16 threads of a row of the square lie side by side in a warp. */
static __device__ __forceinline__ float row_sum(float v)
{
    for (int o = 8; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
static __device__ __forceinline__ float row_max(float v)
{
    for (int o = 8; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}

/* q, k or v of a head. */
static __device__ __forceinline__ array part_of(const heads &h, const float *qkv, const float *bias, int64_t offset)
{
    return array{qkv + offset, bias ? bias + offset : nullptr, h.row};
}

static __device__ __forceinline__ bool seen(const heads &h, int64_t query, int64_t key)
{
    return key < h.t && query < h.t && (!h.causal || key <= query);
}

static __global__ void __launch_bounds__(DP_BLOCK, 2)
    dp_k_heads(const heads h, const float *qkv, const float *bias, float *out, float *log_sum)
{
    __shared__ __align__(16) float deep_a[DEEP * STRIDE], deep_b[DEEP * STRIDE], scores[SIDE * STRIDE], values[SIDE * STRIDE];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const int64_t sample = blockIdx.y / h.heads, head = blockIdx.y % h.heads, first = (int64_t)blockIdx.x * SIDE;
    const int64_t left = (int64_t)blockIdx.z * SIDE, model = h.heads * h.width;
    const float *from = qkv + sample * h.t * h.row + head * h.width, *more = bias ? bias + head * h.width : nullptr;
    const array q = part_of(h, from, more, 0), k = part_of(h, from, more, model), v = part_of(h, from, more, 2 * model);
    float o[EACH][EACH], most[EACH], sum[EACH];
    clear(o);
    for (int i = 0; i < EACH; i++) most[i] = -INFINITY, sum[i] = 0;
    const int64_t end = h.causal && first + SIDE < h.t ? first + SIDE : h.t;
    for (int64_t key = 0; key < end; key += SIDE) {
        float s[EACH][EACH];
        clear(s);
        rows_by_rows(s, deep_a, deep_b, q, first, k, key, h.t, h.width);
        for (int i = 0; i < EACH; i++) {
            float top = -INFINITY, part = 0;
            for (int j = 0; j < EACH; j++) {
                s[i][j] = seen(h, first + EACH * ty + i, key + EACH * tx + j) ? s[i][j] * h.scale : -INFINITY;
                top = fmaxf(top, s[i][j]);
            }
            top = fmaxf(most[i], row_max(top));
            const float shift = top == -INFINITY ? 0.0f : top, before = expf(most[i] - shift);
            for (int j = 0; j < EACH; j++) {
                s[i][j] = expf(s[i][j] - shift);
                part += s[i][j];
            }
            sum[i] = sum[i] * before + row_sum(part);
            most[i] = top;
            for (int j = 0; j < EACH; j++) o[i][j] *= before;
        }
        store_square(scores, s); /* the square before is used up: barriers have passed since */
        load_square(values, v, key, h.t, left, h.width);
        __syncthreads();
        square_by_square<0>(o, scores, values);
    }
    for (int i = 0; i < EACH; i++) {
        const float inverse = 1.0f / sum[i];
        const int64_t r = first + EACH * ty + i;
        for (int j = 0; j < EACH; j++) o[i][j] *= inverse;
        if (!tx && !blockIdx.z && r < h.t) log_sum[blockIdx.y * h.t + r] = most[i] + logf(sum[i]);
    }
    write_rows(out + sample * h.t * h.out_row + head * h.width, h.out_row, first, h.t, left, h.width, o);
}

/* Of 64 queries: delta = sum of out d_out, by four threads each. */
static __device__ void find_delta(float *delta, float *logs, const heads &h, const float *out, const float *d_out,
                                  const float *log_sum, int64_t first)
{
    const int64_t r = first + threadIdx.x / 4;
    float sum = 0;
    for (int64_t c = threadIdx.x % 4; r < h.t && c < h.width; c += 4)
        sum = fmaf(out[r * h.out_row + c], d_out[r * h.out_row + c], sum);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (threadIdx.x % 4 == 0) {
        delta[threadIdx.x / 4] = sum;
        logs[threadIdx.x / 4] = r < h.t ? log_sum[r] : 0;
    }
}

typedef struct dp_head_arrays {
    array q, k, v, d_out;
    const float *out, *log_sum;
} dp_head_arrays;

/* Probabilities and gradients of the scores of 64 queries by 64 keys; delta and logs are those of the queries. */
static __device__ void recompute(float p[EACH][EACH], float ds[EACH][EACH], float *deep_a, float *deep_b, const heads &h,
                                 const dp_head_arrays &x, const float *delta, const float *logs, int64_t query, int64_t key)
{
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    clear(p);
    clear(ds);
    rows_by_rows(p, deep_a, deep_b, x.q, query, x.k, key, h.t, h.width);
    rows_by_rows(ds, deep_a, deep_b, x.d_out, query, x.v, key, h.t, h.width);
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            const bool here = seen(h, query + EACH * ty + i, key + EACH * tx + j);
            p[i][j] = here ? expf(fmaf(p[i][j], h.scale, -logs[EACH * ty + i])) : 0.0f;
            ds[i][j] = here ? p[i][j] * (ds[i][j] - delta[EACH * ty + i]) * h.scale : 0.0f;
        }
}

static __global__ void __launch_bounds__(DP_BLOCK, 2)
    dp_k_heads_backward(const heads h, const float *qkv, const float *bias, const float *out, const float *log_sum,
                        const float *d_out, float *d_qkv)
{
    __shared__ __align__(16) float deep_a[DEEP * STRIDE], deep_b[DEEP * STRIDE], square[SIDE * STRIDE], values[SIDE * STRIDE];
    __shared__ float delta[SIDE], logs[SIDE];
    const int64_t sample = blockIdx.y / h.heads, head = blockIdx.y % h.heads;
    const int64_t left = (int64_t)blockIdx.z * SIDE, model = h.heads * h.width;
    const int64_t at = sample * h.t * h.row + head * h.width, at_out = sample * h.t * h.out_row + head * h.width;
    const float *more = bias ? bias + head * h.width : nullptr;
    const dp_head_arrays x = {part_of(h, qkv + at, more, 0),
                              part_of(h, qkv + at, more, model),
                              part_of(h, qkv + at, more, 2 * model),
                              array{d_out + at_out, nullptr, h.out_row},
                              out + at_out,
                              log_sum + blockIdx.y * h.t};
    const int queries = blockIdx.x < h.blocks;
    const int64_t first = (int64_t)(queries ? blockIdx.x : blockIdx.x - h.blocks) * SIDE;
    float p[EACH][EACH], ds[EACH][EACH], one[EACH][EACH], two[EACH][EACH];
    clear(one);
    clear(two);
    if (queries) {
        const int64_t end = h.causal && first + SIDE < h.t ? first + SIDE : h.t;
        find_delta(delta, logs, h, x.out, x.d_out.x, x.log_sum, first);
        for (int64_t key = 0; key < end; key += SIDE) {
            recompute(p, ds, deep_a, deep_b, h, x, delta, logs, first,
                      key); /* its barriers come before the first use of delta */
            store_square(square, ds);
            load_square(values, x.k, key, h.t, left, h.width);
            __syncthreads();
            square_by_square<0>(one, square, values);
        }
        write_rows(d_qkv + at, h.row, first, h.t, left, h.width, one);
        return;
    }
    for (int64_t query = h.causal ? first : 0; query < h.t; query += SIDE) {
        find_delta(delta, logs, h, x.out, x.d_out.x, x.log_sum, query);
        recompute(p, ds, deep_a, deep_b, h, x, delta, logs, query, first);
        store_square(square, p);
        load_square(values, x.d_out, query, h.t, left, h.width);
        __syncthreads();
        square_by_square<1>(two, square, values);
        __syncthreads();
        store_square(square, ds);
        load_square(values, x.q, query, h.t, left, h.width);
        __syncthreads();
        square_by_square<1>(one, square, values);
    }
    write_rows(d_qkv + at + model, h.row, first, h.t, left, h.width, one);
    write_rows(d_qkv + at + 2 * model, h.row, first, h.t, left, h.width, two);
}

static heads of(const dp_heads *a)
{
    heads h;
    h.t = a->t, h.width = a->width, h.heads = a->heads, h.causal = a->causal;
    h.out_row = a->heads * a->width;
    h.row = 3 * h.out_row;
    h.blocks = (a->t + SIDE - 1) / SIDE;
    h.scale = 1.0f / sqrtf((float)a->width);
    return h;
}

/* A grid's second axis ends at 65,535: samples in portions. */
static int64_t portion(const dp_heads *h)
{
    return 65535 / h->heads;
}

dp_status dp_heads_forward(dp_be_stream *s, const dp_heads *a, const float *qkv, const float *bias, float *out, float *log_sum)
{
    const heads h = of(a);
    for (int64_t r = 0; r < a->rows; r += portion(a)) {
        const int64_t rows = a->rows - r < portion(a) ? a->rows - r : portion(a);
        const dim3 grid((unsigned)h.blocks, (unsigned)(rows * h.heads), (unsigned)((h.width + SIDE - 1) / SIDE));
        DP_TRY_LAUNCH(s, dp_k_heads, grid, DP_BLOCK, 0, h, qkv + r * h.t * h.row, bias, out + r * h.t * h.out_row,
                      log_sum + r * h.heads * h.t);
    }
    return DP_OK;
}

dp_status dp_heads_backward(dp_be_stream *s, const dp_heads *a, const float *qkv, const float *bias, const float *out,
                            const float *log_sum, const float *d_out, float *d_qkv)
{
    const heads h = of(a);
    for (int64_t r = 0; r < a->rows; r += portion(a)) {
        const int64_t rows = a->rows - r < portion(a) ? a->rows - r : portion(a), at = r * h.t * h.row,
                      at_out = r * h.t * h.out_row;
        const dim3 grid((unsigned)(2 * h.blocks), (unsigned)(rows * h.heads), (unsigned)((h.width + SIDE - 1) / SIDE));
        DP_TRY_LAUNCH(s, dp_k_heads_backward, grid, DP_BLOCK, 0, h, qkv + at, bias, out + at_out, log_sum + r * h.heads * h.t,
                      d_out + at_out, d_qkv + at);
    }
    return DP_OK;
}
