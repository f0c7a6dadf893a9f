/* flatten (nothing to do in memory order; a transpose into the files' C,H,W order) and concat over the last axis. */
#include "launch.h"

/* ---- flatten ---- */

typedef struct flatten {
    int64_t width, pixels, channels; /* pixels = 0: memory order stays */
} flatten;

/* (rows, cols) -> (cols, rows) for each sample, in squares of 32 through shared memory: both sides are read and written in lines. */
enum { SIDE = 32 };
static __global__ void __launch_bounds__(DP_BLOCK)
    dp_k_transpose(float *dst, const float *src, int64_t rows, int64_t cols, int64_t squares, int64_t n)
{
    __shared__ float tile[SIDE][SIDE + 1];
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    const int64_t across = (cols + SIDE - 1) / SIDE;
    for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
        const int64_t at = i / squares * rows * cols, top = i % squares / across * SIDE, left = i % across * SIDE;
        for (int k = y; k < SIDE; k += DP_BLOCK / SIDE)
            if (top + k < rows && left + x < cols) tile[k][x] = src[at + (top + k) * cols + left + x];
        __syncthreads();
        for (int k = y; k < SIDE; k += DP_BLOCK / SIDE)
            if (left + k < cols && top + x < rows) dst[at + (left + k) * rows + top + x] = tile[x][k];
        __syncthreads();
    }
}

static dp_status transpose(dp_be_stream *s, float *dst, const void *src, int64_t samples, int64_t rows, int64_t cols)
{
    const int64_t squares = (rows + SIDE - 1) / SIDE * ((cols + SIDE - 1) / SIDE);
    DP_TRY_LAUNCH(s, dp_k_transpose, dp_blocks(s->device, samples * squares, 1), DP_BLOCK, 0, dst, (const float *)src, rows,
                  cols, squares, samples * squares);
    return DP_OK;
}

static dp_status flatten_open(dp_be_device *, const dp_chain *chain, int64_t, dp_need *need, void **state, dp_error *err)
{
    const dp_node *n = chain->node[0], *in = &chain->graph->node[n->in[0]];
    flatten *p = (flatten *)dp_calloc(1, sizeof *p);
    if (!p) return dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
    p->width = n->width;
    if (n->to_file_order && in->rank == 3 && in->shape[2] > 1 && in->shape[2] < n->width) {
        p->channels = in->shape[2];
        p->pixels = n->width / p->channels;
    }
    need->in_place = need->passes[0] = p->pixels == 0;
    *state = p;
    return DP_OK;
}

static dp_status copy(dp_be_stream *s, void *dst, const void *src, int64_t n)
{
    return dst == src ? DP_OK : dp_cuda_copy(s, dst, src, (size_t)n * sizeof(float));
}

static dp_status flatten_forward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const flatten *p = (const flatten *)state;
    if (!p->pixels) return copy(s, io->out, io->in[0], run->rows * p->width);
    return transpose(s, (float *)io->out, io->in[0], run->rows, p->pixels, p->channels);
}

static dp_status flatten_backward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const flatten *p = (const flatten *)state;
    if (!io->d_in[0]) return DP_OK;
    if (!p->pixels) return copy(s, io->d_in[0], io->d_out, run->rows * p->width);
    return transpose(s, (float *)io->d_in[0], io->d_out, run->rows, p->channels, p->pixels);
}

const dp_family dp_cuda_flatten = {.fuses = nullptr,
                                   .open = flatten_open,
                                   .prepare = nullptr,
                                   .forward = flatten_forward,
                                   .backward = flatten_backward,
                                   .partial = nullptr,
                                   .close = nullptr};

/* ---- concat: one kernel for all parts; backward is the same with source and destination exchanged ---- */

typedef struct concat {
    int n_in;
    int64_t positions, channels, begin[DP_MAX_IN + 1]; /* positions of one sample; where the parts begin */
} concat;
typedef struct dp_parts {
    float *part[DP_MAX_IN]; /* NULL: not wanted */
    int64_t begin[DP_MAX_IN + 1];
    int n;
} dp_parts;

template <int JOIN>
static __global__ void __launch_bounds__(DP_BLOCK) dp_k_concat(float *whole, const dp_parts p, int64_t channels, int64_t n)
{
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const int64_t c = i % channels, at = i / channels;
        int k = 0;
        while (c >= p.begin[k + 1]) k++;
        if (!p.part[k]) continue;
        float *part = p.part[k] + at * (p.begin[k + 1] - p.begin[k]) + c - p.begin[k];
        if (JOIN)
            whole[i] = *part;
        else
            *part = whole[i];
    }
}

static dp_status concat_open(dp_be_device *, const dp_chain *chain, int64_t, dp_need *, void **state, dp_error *err)
{
    const dp_node *n = chain->node[0];
    concat *p = (concat *)dp_calloc(1, sizeof *p);
    if (!p) return dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
    p->n_in = n->n_in;
    p->channels = n->shape[n->rank - 1];
    p->positions = n->width / p->channels;
    for (int k = 0; k < n->n_in; k++) p->begin[k + 1] = p->begin[k] + chain->graph->node[n->in[k]].width / p->positions;
    *state = p;
    return DP_OK;
}

template <int JOIN>
static dp_status concat_as(const concat *p, dp_be_stream *s, const dp_run *run, void *whole, void *const *part)
{
    const int64_t n = run->rows * p->positions * p->channels;
    dp_parts parts = {};
    parts.n = p->n_in;
    for (int k = 0; k < p->n_in; k++) parts.part[k] = (float *)part[k];
    for (int k = 0; k <= p->n_in; k++) parts.begin[k] = p->begin[k];
    DP_TRY_LAUNCH(s, dp_k_concat<JOIN>, dp_blocks(s->device, n, DP_BLOCK), DP_BLOCK, 0, (float *)whole, parts, p->channels, n);
    return DP_OK;
}

static dp_status concat_forward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    return concat_as<1>((const concat *)state, s, run, io->out, const_cast<void *const *>(io->in));
}

static dp_status concat_backward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    return concat_as<0>((const concat *)state, s, run, io->d_out, io->d_in);
}

const dp_family dp_cuda_concat = {.fuses = nullptr,
                                  .open = concat_open,
                                  .prepare = nullptr,
                                  .forward = concat_forward,
                                  .backward = concat_backward,
                                  .partial = nullptr,
                                  .close = nullptr};
