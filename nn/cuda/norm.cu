/* batchnorm2d with its pointwise followers (relu, add, add | relu). Forward reads x twice and writes y; backward reads dy and x twice and
 * writes dx. The mask of a relu comes from x again, or, where something was added, from one bit per element that forward keeps. Sums in
 * double (columns.h), taken about the first pixel so that they lose nothing to a large mean. */
#include "act.h"
#include "columns.h"

enum { WEIGHT, BIAS, MEAN, VAR, TRACKED }; /* tensors, in PyTorch's order */
enum { PART = 16 };                        /* parts are padded to this many floats */

typedef struct batchnorm {
    int64_t channels, pixels; /* of one sample */
    int64_t part;
    int add, relu;
    double eps, momentum;
    size_t saved; /* bytes of mean and 1/std, in front of the bits */
    size_t sums;  /* bytes of workspace for the columns' partial sums; totals follow */
} batchnorm;

/* What finds or uses statistics, as kernels get it. */
typedef struct bn {
    int64_t channels, part;
    double count, eps, momentum;
    int stats; /* DP_STATS_ */
    const float *weight, *bias, *running_mean, *running_var, *tracked;
    float *new_mean, *new_var, *new_tracked;
    float *mean, *inv_std; /* saved */
} bn;

/* Mean and biased variance of a channel to what forward and backward use, and to the running statistics (variance unbiased there, as
 * PyTorch's; a single pixel has none but the biased). */
static __device__ void keep(const bn &b, int64_t c, double mean, double var)
{
    b.mean[c] = (float)mean;
    b.inv_std[c] = (float)(1 / sqrt(var + b.eps));
    if (b.stats == DP_STATS_LEAF) {
        b.new_mean[c] = (float)mean;
        b.new_var[c] = (float)var;
    }
    if (b.stats != DP_STATS_RUNNING) return;
    const double unbiased = b.count > 1 ? b.count / (b.count - 1) : 1, now = b.momentum, old = 1 - now;
    b.new_mean[c] = (float)(old * (double)b.running_mean[c] + now * mean);
    b.new_var[c] = (float)(old * (double)b.running_var[c] + now * var * unbiased);
    if (!c) *b.new_tracked = *b.tracked + 1;
}

/* A leaf's part: two numbers a channel, zeros behind them since parts are summed as a whole. */
static __device__ void give(const bn &b, float *part, int64_t c, double first, double second)
{
    part[c] = (float)first;
    part[b.channels + c] = (float)second;
    for (int64_t i = 2 * b.channels; !c && i < b.part; i++) part[i] = 0;
}

/* y = x k + h. Forward and backward must come to the same bits: the relu's mask hangs on them. */
static __device__ __forceinline__ float2 affine_of(const bn &b, int64_t c)
{
    const float k = b.weight[c] * b.inv_std[c];
    return make_float2(k, fmaf(-b.mean[c], k, b.bias[c]));
}

/* -- statistics -- */

struct moments {
    bn b;
    const float *x;
    float *part; /* sync: statistics go here instead */
    float shift;
    __device__ void column(int64_t c)
    {
        shift = x[c];
    }
    __device__ float2 at(int64_t r, int64_t c) const
    {
        const float v = x[r * b.channels + c] - shift;
        return make_float2(v, v * v);
    }
    __device__ void finish(int64_t c, double sum, double square) const
    {
        const double offset = sum / b.count, v = square / b.count - offset * offset;
        const double mean = (double)x[c] + offset, var = v < 0 ? 0 : v; /* NaN stays */
        if (part)
            give(b, part, c, mean, var);
        else
            keep(b, c, mean, var);
    }
};

/* Statistics that were exchanged, or (evaluation) the running ones. */
static __global__ void __launch_bounds__(DP_BLOCK) dp_k_bn_given(const bn b, const float *mean, const float *var)
{
    const int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c < b.channels) keep(b, c, (double)mean[c], (double)var[c]);
}

/* -- passes over a tensor -- */

template <int ADD, int RELU> struct apply {
    bn b;
    float *y;
    const float *x, *other;
    unsigned *bits;
    float2 a;
    __device__ void column(int64_t c)
    {
        a = affine_of(b, c);
    }
    __device__ void at(int64_t r, int64_t c, bool inside, int64_t word) const
    {
        const int64_t i = r * b.channels + c;
        float v = 0;
        if (inside) {
            v = fmaf(x[i], a.x, a.y);
            if (ADD) v += other[i];
            y[i] = RELU ? dp_relu(v) : v;
        }
        if (ADD && RELU) {
            const unsigned vote = __ballot_sync(0xffffffffu, inside && !(v <= 0.0f));
            if (threadIdx.x % 32 == 0) bits[word] = vote;
        }
    }
};

/* The gradient behind the mask. */
enum { MASK_NONE, MASK_INPUT, MASK_BITS };
template <int MASK>
static __device__ __forceinline__ float masked(float dy, float x, float2 a, const unsigned *bits, int64_t word, int bit)
{
    if (MASK == MASK_INPUT) return dp_relu_gradient(dy, fmaf(x, a.x, a.y));
    if (MASK == MASK_BITS) return bits[word] >> bit & 1 ? dy : 0.0f;
    return dy;
}

template <int MASK> struct reduce {
    bn b;
    const float *x, *dy;
    const unsigned *bits;
    int log_width;
    double *totals;                  /* (2, channels) */
    float *part, *d_weight, *d_bias; /* NULL: not wanted */
    float mean;
    float2 a;
    __device__ void column(int64_t c)
    {
        mean = b.mean[c];
        a = affine_of(b, c);
    }
    __device__ float2 at(int64_t r, int64_t c) const
    {
        const int64_t i = r * b.channels + c;
        const float v = x[i];
        const float g = masked<MASK>(dy[i], v, a, bits, dp_walk_word(r, c, b.channels, log_width),
                                     dp_walk_bit(r, c, log_width));
        return make_float2(g, g * (v - mean));
    }
    __device__ void finish(int64_t c, double sum, double product) const
    {
        totals[c] = sum;
        totals[b.channels + c] = product;
        if (part) give(b, part, c, sum, product);
        if (d_bias) d_bias[c] = (float)sum;
        if (d_weight) d_weight[c] = (float)(product * (double)b.inv_std[c]);
    }
};

template <int MASK> struct gradient { /* dx = k (g - (x - mean) p - q) */
    bn b;
    const float *x, *dy, *whole;
    const unsigned *bits;
    const double *totals;
    float *dx, *other; /* NULL: not wanted; one of them may be dy */
    float mean, p, q;
    float2 a;
    __device__ void column(int64_t c)
    {
        const double sum = whole ? (double)whole[c] : totals[c], r = (double)b.inv_std[c];
        const double product = whole ? (double)whole[b.channels + c] : totals[b.channels + c];
        mean = b.mean[c];
        a = affine_of(b, c);
        q = (float)(sum / b.count);
        p = (float)(product * r * r / b.count);
    }
    __device__ void at(int64_t r, int64_t c, bool inside, int64_t word) const
    {
        const int64_t i = r * b.channels + c;
        if (!inside) return;
        const float v = x[i], g = masked<MASK>(dy[i], v, a, bits, word, (int)(threadIdx.x % 32));
        if (other) other[i] = g;
        if (dx) dx[i] = a.x * (fmaf(mean - v, p, g) - q);
    }
};

/* -- the family -- */

static int bn_fuses(const dp_chain *chain, const dp_node *next)
{
    const dp_node *last = chain->node[chain->n - 1];
    if (last->op->kind == DP_OP_RELU) return 0;
    if (next->op->kind == DP_OP_RELU) return 1;
    return chain->n == 1 && next->op->kind == DP_OP_ADD && next->n_in == 2 && next->in[0] != next->in[1];
}

static dp_status bn_open(dp_be_device *, const dp_chain *chain, int64_t capacity, dp_need *need, void **state, dp_error *err)
{
    const dp_node *n = chain->node[0];
    batchnorm *p = (batchnorm *)dp_calloc(1, sizeof *p);
    if (!p) return dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
    p->channels = n->shape[n->rank - 1];
    p->pixels = n->width / p->channels;
    p->eps = n->opt[DP_NORM_EPS];
    p->momentum = n->opt[DP_NORM_MOMENTUM];
    for (int i = 1; i < chain->n; i++) {
        p->add |= chain->node[i]->op->kind == DP_OP_ADD;
        p->relu |= chain->node[i]->op->kind == DP_OP_RELU;
    }
    p->saved = ((size_t)p->channels * 2 * sizeof(float) + 127) & ~(size_t)127;
    p->sums = dp_columns_workspace(p->channels);
    p->part = (2 * p->channels + PART - 1) / PART * PART;
    need->saved = p->saved + (p->add && p->relu ? dp_walk_words(capacity * p->pixels, p->channels) * sizeof(unsigned) : 0);
    need->workspace = p->sums + (size_t)p->channels * 2 * sizeof(double);
    need->part = p->part;
    need->reads_in[0] = 1;
    need->in_place = 1;
    need->passes[p->add] = 1; /* with an add its other input takes d_out over: without a relu there is nothing to do then */
    *state = p;
    return DP_OK;
}

static bn numbers(const batchnorm *p, const dp_run *run, const dp_io *io)
{
    bn b = {};
    b.channels = p->channels, b.part = p->part;
    b.count = (double)((io->whole ? run->batch_rows : run->rows) * p->pixels);
    b.eps = p->eps, b.momentum = p->momentum;
    b.stats = run->train ? run->stats : DP_STATS_NONE;
    b.weight = io->param[WEIGHT], b.bias = io->param[BIAS];
    b.running_mean = io->param[MEAN], b.running_var = io->param[VAR], b.tracked = io->param[TRACKED];
    b.new_mean = io->stats[MEAN], b.new_var = io->stats[VAR], b.new_tracked = io->stats[TRACKED];
    b.mean = (float *)io->saved, b.inv_std = b.mean + p->channels;
    return b;
}
static unsigned *bits_of(const batchnorm *p, const dp_io *io)
{
    return (unsigned *)((char *)io->saved + p->saved);
}

static dp_status find_moments(const batchnorm *p, dp_be_stream *s, const dp_run *run, const dp_io *io, float *part)
{
    const moments f = {numbers(p, run, io), (const float *)io->in[0], part, 0};
    return dp_columns_run(s, f, run->rows * p->pixels, p->channels, io->workspace);
}

template <int ADD, int RELU>
static dp_status apply_as(const batchnorm *p, dp_be_stream *s, const bn &b, const dp_run *run, const dp_io *io)
{
    const apply<ADD, RELU> f = {b, (float *)io->out, (const float *)io->in[0], (const float *)io->in[1], bits_of(p, io), {}};
    return dp_walk_run(s, f, run->rows * p->pixels, p->channels);
}

static dp_status bn_forward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const batchnorm *p = (const batchnorm *)state;
    const bn b = numbers(p, run, io);
    if (run->train && !io->whole) {
        DP_TRY(find_moments(p, s, run, io, nullptr));
    } else {
        const float *mean = run->train ? io->whole : io->param[MEAN],
                    *var = run->train ? io->whole + p->channels : io->param[VAR];
        DP_TRY_LAUNCH(s, dp_k_bn_given, (unsigned)((p->channels + DP_BLOCK - 1) / DP_BLOCK), DP_BLOCK, 0, b, mean, var);
    }
    if (p->add) return p->relu ? apply_as<1, 1>(p, s, b, run, io) : apply_as<1, 0>(p, s, b, run, io);
    return p->relu ? apply_as<0, 1>(p, s, b, run, io) : apply_as<0, 0>(p, s, b, run, io);
}

static double *totals_of(const batchnorm *p, const dp_io *io)
{
    return (double *)((char *)io->workspace + p->sums);
}

template <int MASK>
static dp_status reduce_as(const batchnorm *p, dp_be_stream *s, const dp_run *run, const dp_io *io, float *part)
{
    const reduce<MASK> f = {numbers(p, run, io),
                            (const float *)io->in[0],
                            (const float *)io->d_out,
                            bits_of(p, io),
                            dp_columns_width(p->channels),
                            totals_of(p, io),
                            part,
                            io->grad[WEIGHT],
                            io->grad[BIAS],
                            0,
                            {}};
    return dp_columns_run(s, f, run->rows * p->pixels, p->channels, io->workspace);
}

template <int MASK> static dp_status gradient_as(const batchnorm *p, dp_be_stream *s, const dp_run *run, const dp_io *io)
{
    /* without a relu what was added gets d_out as it is: nothing to write when it took its place */
    float *other = p->add && (MASK != MASK_NONE || io->d_in[1] != io->d_out) ? (float *)io->d_in[1] : nullptr;
    if (!io->d_in[0] && !other) return DP_OK;
    const gradient<MASK> f = {numbers(p, run, io),
                              (const float *)io->in[0],
                              (const float *)io->d_out,
                              io->whole,
                              bits_of(p, io),
                              totals_of(p, io),
                              (float *)io->d_in[0],
                              other,
                              0,
                              0,
                              0,
                              {}};
    return dp_walk_run(s, f, run->rows * p->pixels, p->channels);
}

static dp_status sum_gradients(const batchnorm *p, dp_be_stream *s, const dp_run *run, const dp_io *io, float *part)
{
    if (!p->relu) return reduce_as<MASK_NONE>(p, s, run, io, part);
    return p->add ? reduce_as<MASK_BITS>(p, s, run, io, part) : reduce_as<MASK_INPUT>(p, s, run, io, part);
}

static dp_status bn_backward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const batchnorm *p = (const batchnorm *)state;
    if (!io->whole) DP_TRY(sum_gradients(p, s, run, io, nullptr)); /* else they came with the part */
    if (!p->relu) return gradient_as<MASK_NONE>(p, s, run, io);
    return p->add ? gradient_as<MASK_BITS>(p, s, run, io) : gradient_as<MASK_INPUT>(p, s, run, io);
}

/* The mask of a relu is applied by backward, which comes with the same io: a pass less over the tensor. */
static dp_status bn_partial(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io, int backward)
{
    const batchnorm *p = (const batchnorm *)state;
    return backward ? sum_gradients(p, s, run, io, io->part) : find_moments(p, s, run, io, io->part);
}

const dp_family dp_cuda_batchnorm2d = {.fuses = bn_fuses,
                                       .open = bn_open,
                                       .prepare = nullptr,
                                       .forward = bn_forward,
                                       .backward = bn_backward,
                                       .partial = bn_partial,
                                       .close = nullptr};
