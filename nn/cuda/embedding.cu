/* embedding (a row of a table per token) and position (a learned row added to each position).
 *
 * The gradient of a table is made without atomics: the tokens are sorted, keeping the order of equal ones, and each row of the table adds up
 * what belongs to it in that order; where table and batch are small, it finds that without sorting. A token outside the table gives a row of NaN, which the loss reports; it has no gradient. */
#include "columns.h"

enum { FEW = 1 << 18 }; /* comparisons that cost less than a sort */

typedef struct table {
    int64_t positions, width, vocab; /* positions of one sample; width of a row of the table */
} table;

static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_embedding(float *y, const int32_t *token, const float *weight, int64_t width, int64_t vocab, int64_t n)
{
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const int64_t t = token[i / width];
        y[i] = t < 0 || t >= vocab ? NAN : weight[t * width + i % width];
    }
}

/* One block sorts by four bits at a time, lowest first. Each thread owns a run of elements: it counts its digits, the counts of all
 * threads are summed digit by digit, and each thread places its run. A pair is (token, where it stood). */
enum { DIGITS = 16 };
static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_sort(int2 *sorted, int2 *spare, const int32_t *token, int32_t n, int32_t vocab, int passes)
{
    __shared__ int32_t count[DIGITS * DP_BLOCK], total[DP_BLOCK];
    const int32_t t = (int32_t)threadIdx.x, run = (n + DP_BLOCK - 1) / DP_BLOCK;
    const int32_t first = t * run < n ? t * run : n, last = n - first < run ? n : first + run;
    int2 *from = passes % 2 ? spare : sorted, *to = passes % 2 ? sorted : spare;
    for (int32_t i = first; i < last; i++) from[i] = make_int2(token[i] < 0 || token[i] > vocab ? vocab : token[i], i);
    for (int pass = 0; pass < passes; pass++) {
        const int shift = 4 * pass;
        for (int d = 0; d < DIGITS; d++) count[d * DP_BLOCK + t] = 0;
        for (int32_t i = first; i < last; i++) count[(from[i].x >> shift & (DIGITS - 1)) * DP_BLOCK + t]++;
        __syncthreads();
        /* sums in front of each count: those of 16 neighbours by one thread, then over the threads */
        int32_t sum = 0;
        for (int k = 0; k < DIGITS; k++) sum += count[t * DIGITS + k];
        total[t] = sum;
        __syncthreads();
        for (int reach = 1; reach < DP_BLOCK; reach *= 2) {
            const int32_t before = t >= reach ? total[t - reach] : 0;
            __syncthreads();
            total[t] += before;
            __syncthreads();
        }
        int32_t at = total[t] - sum;
        for (int k = 0; k < DIGITS; k++) {
            const int32_t c = count[t * DIGITS + k];
            count[t * DIGITS + k] = at;
            at += c;
        }
        __syncthreads();
        for (int32_t i = first; i < last; i++) {
            const int2 p = from[i];
            to[count[(p.x >> shift & (DIGITS - 1)) * DP_BLOCK + t]++] = p;
        }
        __syncthreads();
        int2 *other = from;
        from = to;
        to = other;
    }
}

static __device__ __forceinline__ int32_t first_of(const int2 *sorted, int32_t n,
                                                   int64_t token) /* the first that is not smaller */
{
    int32_t low = 0, high = n;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (sorted[middle].x < token)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A block for a row of the table: 32 columns by 8 shares of its tokens. sorted NULL: it looks through all of them. */
static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_embedding_backward(float *grad, const float *dy, const int2 *sorted, const int32_t *tokens, int32_t n, int64_t width,
                            int64_t vocab)
{
    __shared__ float part[DP_BLOCK];
    const int t = (int)threadIdx.x;
    for (int64_t token = blockIdx.x; token < vocab; token += gridDim.x) {
        const int32_t first = sorted ? first_of(sorted, n, token) : 0, last = sorted ? first_of(sorted, n, token + 1) : n;
        for (int64_t base = 0; base < width; base += 32) {
            const int64_t c = base + t % 32;
            float sum = 0;
            for (int32_t i = first + t / 32; c < width && i < last; i += DP_BLOCK / 32) {
                if (sorted)
                    sum += dy[sorted[i].y * width + c];
                else if (tokens[i] == token)
                    sum += dy[i * width + c];
            }
            part[t] = sum;
            __syncthreads();
            if (t < 32 && c < width) {
                for (int k = 1; k < DP_BLOCK / 32; k++) sum += part[t + 32 * k];
                grad[token * width + c] = sum;
            }
            __syncthreads();
        }
    }
}

static dp_status open_table(const dp_chain *chain, table **out, dp_error *err)
{
    const dp_node *n = chain->node[0];
    table *p = (table *)dp_calloc(1, sizeof *p);
    if (!p) return dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
    p->width = n->shape[n->rank - 1];
    p->positions = n->width / p->width;
    *out = p;
    return DP_OK;
}

static size_t pairs_bytes(int64_t n)
{
    return ((size_t)n * sizeof(int2) + 255) & ~(size_t)255;
}

static dp_status embedding_open(dp_be_device *, const dp_chain *chain, int64_t capacity, dp_need *need, void **state,
                                dp_error *err)
{
    table *p = nullptr;
    const dp_node *n = chain->node[0];
    DP_TRY(open_table(chain, &p, err));
    p->vocab = (int64_t)n->opt[DP_EMBEDDING_VOCAB];
    if (capacity * p->positions > INT32_MAX || p->vocab >= INT32_MAX) {
        free(p);
        return dp_fail(err, DP_EARGUMENT, "%s: more than 2^31 tokens on one device; use a smaller batch.", n->name);
    }
    need->workspace = 2 * pairs_bytes(capacity * p->positions);
    need->reads_in[0] = 1;
    *state = p;
    return DP_OK;
}

static dp_status embedding_forward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const table *p = (const table *)state;
    const int64_t n = run->rows * p->positions * p->width;
    DP_TRY_LAUNCH(s, dp_k_embedding, dp_blocks(s->device, n, DP_BLOCK), DP_BLOCK, 0, (float *)io->out,
                  (const int32_t *)io->in[0], io->param[0], p->width, p->vocab, n);
    return DP_OK;
}

static dp_status embedding_backward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const table *p = (const table *)state;
    const int32_t n = (int32_t)(run->rows * p->positions);
    int2 *sorted = (int2 *)io->workspace, *spare = (int2 *)((char *)io->workspace + pairs_bytes(n));
    const int32_t *token = (const int32_t *)io->in[0];
    if (!io->grad[0]) return DP_OK;
    if (n * p->vocab <= FEW) {
        sorted = nullptr;
    } else {
        int passes = 1;
        while (p->vocab >> (4 * passes)) passes++; /* `vocab` itself stands for all that is outside */
        DP_TRY_LAUNCH(s, dp_k_sort, 1, DP_BLOCK, 0, sorted, spare, token, n, (int32_t)p->vocab, passes);
    }
    DP_TRY_LAUNCH(s, dp_k_embedding_backward, dp_blocks(s->device, p->vocab, 1), DP_BLOCK, 0, io->grad[0],
                  (const float *)io->d_out, sorted, token, n, p->width, p->vocab);
    return DP_OK;
}

const dp_family dp_cuda_embedding = {.fuses = nullptr,
                                     .open = embedding_open,
                                     .prepare = nullptr,
                                     .forward = embedding_forward,
                                     .backward = embedding_backward,
                                     .partial = nullptr,
                                     .close = nullptr};

/* ---- position ---- */

static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_position(float *y, const float *x, const float *weight, int64_t sample, int64_t n)
{
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) y[i] = x[i] + weight[i % sample];
}

struct over_samples {
    const float *dy;
    float *grad;
    int64_t n;
    __device__ void column(int64_t)
    {
    }
    __device__ float2 at(int64_t r, int64_t c) const
    {
        return make_float2(dy[r * n + c], 0);
    }
    __device__ void finish(int64_t c, double sum, double) const
    {
        grad[c] = (float)sum;
    }
};

static dp_status position_open(dp_be_device *, const dp_chain *chain, int64_t, dp_need *need, void **state, dp_error *err)
{
    table *p = nullptr;
    DP_TRY(open_table(chain, &p, err));
    need->in_place = need->passes[0] = 1;
    need->workspace = dp_columns_workspace(p->positions * p->width);
    *state = p;
    return DP_OK;
}

static dp_status position_forward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const table *p = (const table *)state;
    const int64_t sample = p->positions * p->width, n = run->rows * sample;
    DP_TRY_LAUNCH(s, dp_k_position, dp_blocks(s->device, n, DP_BLOCK), DP_BLOCK, 0, (float *)io->out, (const float *)io->in[0],
                  io->param[0], sample, n);
    return DP_OK;
}

static dp_status position_backward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const table *p = (const table *)state;
    const int64_t sample = p->positions * p->width;
    if (io->grad[0]) {
        const over_samples f = {(const float *)io->d_out, io->grad[0], sample};
        DP_TRY(dp_columns_run(s, f, run->rows, sample, io->workspace));
    }
    if (!io->d_in[0] || io->d_in[0] == io->d_out) return DP_OK;
    return dp_cuda_copy(s, io->d_in[0], io->d_out, (size_t)(run->rows * sample) * sizeof(float));
}

const dp_family dp_cuda_position = {.fuses = nullptr,
                                    .open = position_open,
                                    .prepare = nullptr,
                                    .forward = position_forward,
                                    .backward = position_backward,
                                    .partial = nullptr,
                                    .close = nullptr};
