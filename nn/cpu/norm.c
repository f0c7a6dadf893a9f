/* batchnorm2d with its pointwise followers (relu, add, add | relu) and layernorm.
 *
 * Batchnorm works on wide rows: some pixels' channels side by side, so that few channels fill vectors too. Sums are taken in
 * float over BLOCK wide rows about a shift near the mean, then in double. Kept for backward: mean and 1/std; the mask of a relu
 * comes from x, or from the output where something was added. */
#include "cpu.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 128, WIDTH = 256, VECTOR = 16 };
enum { WEIGHT, BIAS, MEAN, VAR, TRACKED }; /* tensors, in PyTorch's order */

/* ---- batchnorm ---- */

typedef struct batchnorm {
    const dp_vec *vec;
    int64_t channels, pixels; /* of one sample */
    int64_t w, part;
    int add, relu;
    double eps, momentum;
} batchnorm;

/* Workspace: tables and sums of one wide row each. */
typedef struct scratch {
    float *k, *h, *mean, *a, *p, *c, *sum, *square;
    double *total, *total_square;
} scratch;
static scratch carve(const batchnorm *s, void *workspace)
{
    int64_t w = s->w;
    float *f = workspace;
    double *d = (double *)(f + 8 * w);
    return (scratch){f, f + w, f + 2 * w, f + 3 * w, f + 4 * w, f + 5 * w, f + 6 * w, f + 7 * w, d, d + w};
}
static dp_bn_tables tables(const batchnorm *s, const scratch *t)
{
    return (dp_bn_tables){s->w, t->k, t->h, t->mean, t->a, t->p, t->c};
}

static int bn_fuses(const dp_chain *chain, const dp_node *next)
{
    const dp_node *last = chain->node[chain->n - 1];
    if (last->op->kind == DP_OP_RELU) return 0;
    if (next->op->kind == DP_OP_RELU) return 1;
    return chain->n == 1 && next->op->kind == DP_OP_ADD && next->n_in == 2 && next->in[0] != next->in[1];
}

static dp_status bn_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state, dp_error *err)
{
    const dp_node *n = chain->node[0];
    batchnorm *s = dp_calloc(1, sizeof *s);
    (void)capacity;
    if (!s) return dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
    s->vec = d->vec;
    s->channels = n->shape[n->rank - 1];
    s->pixels = n->width / s->channels;
    s->eps = n->opt[DP_NORM_EPS];
    s->momentum = n->opt[DP_NORM_MOMENTUM];
    for (int i = 1; i < chain->n; i++) {
        s->add |= chain->node[i]->op->kind == DP_OP_ADD;
        s->relu |= chain->node[i]->op->kind == DP_OP_RELU;
    }
    s->w = s->channels;
    while (s->w < WIDTH || s->w % VECTOR) s->w += s->channels;
    need->saved = (size_t)s->channels * 2 * sizeof(float);
    need->workspace = (size_t)s->w * (8 * sizeof(float) + 2 * sizeof(double));
    need->part = s->part = (2 * s->channels + VECTOR - 1) / VECTOR * VECTOR;
    need->reads_in[0] = 1;
    need->reads_out = s->add && s->relu;
    need->in_place = 1;
    need->passes[s->add] = 1; /* with an add its other input takes d_out over: without a relu there is nothing to do then */
    *state = s;
    return DP_OK;
}

static void repeat(float *x, int64_t channels, int64_t w)
{
    for (int64_t i = channels; i < w; i += channels) memcpy(x + i, x, (size_t)channels * sizeof *x);
}

/* total, total_square = sums of (x - shift) and its square per channel; the shift is the mean of the first rows. */
static void statistics(const batchnorm *s, const scratch *t, const float *x, int64_t n, float *shift)
{
    const dp_vec *v = s->vec;
    int64_t w = s->w, channels = s->channels, first = n < BLOCK / 4 * w ? n : BLOCK / 4 * w;
    size_t bytes = (size_t)w * sizeof(float);
    memset(t->sum, 0, 2 * bytes); /* sum and square lie side by side */
    memset(t->total, 0, 4 * bytes);
    memset(shift, 0, bytes);
    v->norm->moments(x, first, w, shift, t->sum, t->square);
    for (int64_t c = 0; c < channels; c++) {
        double sum = 0;
        for (int64_t i = c; i < w; i += channels) sum += (double)t->sum[i];
        shift[c] = (float)(sum / (double)(first / channels));
    }
    repeat(shift, channels, w);
    for (int64_t i = 0; i < n; i += BLOCK * w) {
        memset(t->sum, 0, 2 * bytes);
        v->norm->moments(x + i, n - i < BLOCK * w ? n - i : BLOCK * w, w, shift, t->sum, t->square);
        v->flat->accumulate(t->total, t->sum, w);
        v->flat->accumulate(t->total_square, t->square, w);
    }
}

static void fold_totals(const batchnorm *s, const scratch *t)
{
    for (int64_t c = 0; c < s->channels; c++)
        for (int64_t i = c + s->channels; i < s->w; i += s->channels) {
            t->total[c] += t->total[i];
            t->total_square[c] += t->total_square[i];
        }
}

/* y = x k + h from mean and 1/std. Forward and backward must come to the same bits: the relu's mask hangs on them. */
static void affine(const batchnorm *s, const scratch *t, const dp_io *io, const float *mean, const float *inv_std)
{
    for (int64_t c = 0; c < s->channels; c++) {
        t->mean[c] = mean[c];
        t->k[c] = io->param[WEIGHT][c] * inv_std[c];
        t->h[c] = io->param[BIAS][c] - mean[c] * t->k[c];
    }
    repeat(t->mean, s->channels, s->w);
    repeat(t->k, s->channels, s->w);
    repeat(t->h, s->channels, s->w);
}

/* Mean and biased variance of a leaf, in double; they take the place of the totals. */
static void leaf_statistics(const batchnorm *s, const scratch *t, const dp_run *run, const float *x)
{
    double n = (double)(run->rows * s->pixels);
    statistics(s, t, x, run->rows * s->pixels * s->channels, t->mean);
    fold_totals(s, t);
    for (int64_t c = 0; c < s->channels; c++) {
        double offset = t->total[c] / n, var = t->total_square[c] / n - offset * offset;
        t->total[c] = (double)t->mean[c] + offset;
        t->total_square[c] = var < 0 ? 0 : var;
    }
}

/* What a pass leaves of mean and biased variance: as they are, or in the running statistics (variance unbiased there, as PyTorch's;
 * a single pixel has none but the biased). */
static void keep_statistics(const batchnorm *s, const dp_run *run, const dp_io *io, const double *mean, const double *var)
{
    int64_t n = (io->whole ? run->batch_rows : run->rows) * s->pixels;
    double unbiased = n > 1 ? (double)n / (double)(n - 1) : 1, now = s->momentum, old = 1 - now;
    float *new_mean = io->stats[MEAN], *new_var = io->stats[VAR];
    for (int64_t c = 0; run->stats == DP_STATS_LEAF && c < s->channels; c++) {
        new_mean[c] = (float)mean[c];
        new_var[c] = (float)var[c];
    }
    if (run->stats != DP_STATS_RUNNING) return;
    for (int64_t c = 0; c < s->channels; c++) {
        new_mean[c] = (float)(old * (double)io->param[MEAN][c] + now * mean[c]);
        new_var[c] = (float)(old * (double)io->param[VAR][c] + now * var[c] * unbiased);
    }
    *io->stats[TRACKED] = *io->param[TRACKED] + 1;
}

static dp_status bn_forward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const batchnorm *s = state;
    scratch t = carve(s, io->workspace);
    (void)run_device;
    if (run->train) {
        float *mean = io->saved, *inv_std = mean + s->channels;
        if (!io->whole) leaf_statistics(s, &t, run, io->in[0]);
        for (int64_t c = 0; c < s->channels; c++) {
            if (io->whole) t.total[c] = (double)io->whole[c], t.total_square[c] = (double)io->whole[s->channels + c];
            mean[c] = (float)t.total[c];
            inv_std[c] = (float)(1 / sqrt(t.total_square[c] + s->eps));
        }
        keep_statistics(s, run, io, t.total, t.total_square);
        affine(s, &t, io, mean, inv_std);
    } else {
        for (int64_t c = 0; c < s->channels; c++) t.a[c] = (float)(1 / sqrt((double)io->param[VAR][c] + s->eps));
        affine(s, &t, io, io->param[MEAN], t.a);
    }
    dp_bn_tables b = tables(s, &t);
    s->vec->norm->apply(io->out, io->in[0], s->add ? io->in[1] : NULL, s->relu, run->rows * s->pixels * s->channels, &b);
    return DP_OK;
}

static void sums(const batchnorm *s, const scratch *t, const dp_io *io, const float *dy, float *masked, dp_mask mask, int64_t n)
{
    const dp_vec *v = s->vec;
    const float *x = io->in[0], *y = io->out;
    dp_bn_tables b = tables(s, t);
    int64_t w = s->w;
    memset(t->total, 0, (size_t)w * 2 * sizeof(double));
    for (int64_t i = 0; i < n; i += BLOCK * w) {
        memset(t->sum, 0, (size_t)w * 2 * sizeof(float));
        v->norm->reduce(dy + i, x + i, mask == DP_MASK_OUTPUT ? y + i : NULL, masked ? masked + i : NULL, mask,
                        n - i < BLOCK * w ? n - i : BLOCK * w, &b, t->sum, t->square);
        v->flat->accumulate(t->total, t->sum, w);
        v->flat->accumulate(t->total_square, t->square, w);
    }
    fold_totals(s, t);
}

/* How the mask of a relu is found, and where the gradient behind it lies. */
static dp_mask mask_of(const batchnorm *s)
{
    return !s->relu ? DP_MASK_NONE : s->add ? DP_MASK_OUTPUT : DP_MASK_INPUT;
}
static float *masked_at(const batchnorm *s, const dp_io *io)
{
    if (mask_of(s) != DP_MASK_OUTPUT) return NULL;
    return io->d_in[1] ? io->d_in[1] : io->d_out;
}

/* Sums of dy and dy (x - mean) over the leaf into the totals, and what follows from them alone: the gradients of weight and bias, that of
 * what was added, and the mask where it comes from the output. */
static void leaf_gradient(const batchnorm *s, const scratch *t, const dp_run *run, const dp_io *io, const float *inv_std)
{
    float *other = s->add ? io->d_in[1] : NULL, *masked = masked_at(s, io);
    int64_t n = run->rows * s->pixels * s->channels;
    if (!masked && other && other != io->d_out) memcpy(other, io->d_out, (size_t)n * sizeof *other);
    sums(s, t, io, io->d_out, masked, mask_of(s), n);
    for (int64_t c = 0; c < s->channels; c++) {
        if (io->grad[BIAS]) io->grad[BIAS][c] = (float)t->total[c];
        if (io->grad[WEIGHT]) io->grad[WEIGHT][c] = (float)(t->total_square[c] * (double)inv_std[c]);
    }
}

static dp_status bn_backward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const batchnorm *s = state;
    scratch t = carve(s, io->workspace);
    const float *mean = io->saved, *inv_std = mean + s->channels, *masked = masked_at(s, io);
    double pixels = (double)((io->whole ? run->batch_rows : run->rows) * s->pixels);
    dp_mask mask = mask_of(s);
    (void)run_device;
    affine(s, &t, io, mean, inv_std);
    if (!io->whole) leaf_gradient(s, &t, run, io, inv_std); /* else it came with the part */
    if (!io->d_in[0]) return DP_OK;
    for (int64_t c = 0; c < s->channels; c++) {
        double sum = io->whole ? (double)io->whole[c] : t.total[c], r = inv_std[c];
        double product = io->whole ? (double)io->whole[s->channels + c] : t.total_square[c];
        t.a[c] = t.k[c];
        t.c[c] = (float)(sum / pixels);
        t.p[c] = (float)(product * r * r / pixels);
    }
    repeat(t.a, s->channels, s->w);
    repeat(t.c, s->channels, s->w);
    repeat(t.p, s->channels, s->w);
    dp_bn_tables b = tables(s, &t);
    s->vec->norm->backward(io->d_in[0], masked ? masked : io->d_out, io->in[0], mask == DP_MASK_INPUT ? mask : DP_MASK_NONE,
                           run->rows * s->pixels * s->channels, &b);
    return DP_OK;
}

static dp_status bn_partial(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io, int backward)
{
    const batchnorm *s = state;
    scratch t = carve(s, io->workspace);
    (void)run_device;
    if (backward) {
        const float *mean = io->saved, *inv_std = mean + s->channels;
        affine(s, &t, io, mean, inv_std);
        leaf_gradient(s, &t, run, io, inv_std);
    } else {
        leaf_statistics(s, &t, run, io->in[0]);
    }
    for (int64_t c = 0; c < s->channels; c++) {
        io->part[c] = (float)t.total[c];
        io->part[s->channels + c] = (float)t.total_square[c];
    }
    for (int64_t c = 2 * s->channels; c < s->part; c++) io->part[c] = 0; /* it is summed as a whole */
    return DP_OK;
}

const dp_family dp_cpu_batchnorm2d = {
    .fuses = bn_fuses, .open = bn_open, .forward = bn_forward, .backward = bn_backward, .partial = bn_partial};

/* ---- layernorm: over the last dimension ---- */

typedef struct layernorm {
    const dp_vec *vec;
    int64_t n, groups; /* of one sample */
    float eps;
} layernorm;

enum { ROWS = 32 }; /* summed in float before they go to double */

static dp_status ln_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state, dp_error *err)
{
    const dp_node *n = chain->node[0];
    layernorm *s = dp_calloc(1, sizeof *s);
    if (!s) return dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
    s->vec = d->vec;
    s->n = n->shape[n->rank - 1];
    s->groups = n->width / s->n;
    s->eps = (float)n->opt[DP_NORM_EPS];
    need->saved = (size_t)(capacity * s->groups) * 2 * sizeof(float);
    need->workspace = (size_t)s->n * (2 * sizeof(float) + 2 * sizeof(double));
    need->reads_in[0] = 1;
    need->in_place = 1;
    need->passes[0] = 1;
    *state = s;
    return DP_OK;
}

static dp_status ln_forward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const layernorm *s = state;
    const float *x = io->in[0];
    float *y = io->out, *saved = run->train ? io->saved : NULL;
    int64_t rows = run->rows * s->groups;
    (void)run_device;
    for (int64_t r = 0; r < rows; r++)
        s->vec->norm->layernorm(y + r * s->n, x + r * s->n, io->param[WEIGHT], io->param[BIAS], s->eps, s->n,
                                saved ? saved + 2 * r : NULL, saved ? saved + 2 * r + 1 : NULL);
    return DP_OK;
}

static dp_status ln_backward(void *state, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const layernorm *s = state;
    const dp_vec *v = s->vec;
    const float *x = io->in[0], *dy = io->d_out, *saved = io->saved;
    float *dx = io->d_in[0], *dw = io->workspace, *db = dw + s->n;
    double *total = (double *)(dw + 2 * s->n); /* (2, n): of dw, db */
    int64_t rows = run->rows * s->groups, n = s->n;
    int sums = io->grad[WEIGHT] || io->grad[BIAS];
    (void)run_device;
    memset(total, 0, (size_t)n * 2 * sizeof *total);
    for (int64_t first = 0; first < rows; first += ROWS) {
        memset(dw, 0, (size_t)n * 2 * sizeof *dw);
        for (int64_t r = first; r < rows && r < first + ROWS; r++)
            v->norm->layernorm_backward(dx ? dx + r * n : NULL, dy + r * n, x + r * n, io->param[WEIGHT], saved[2 * r],
                                        saved[2 * r + 1], n, sums ? dw : NULL, sums ? db : NULL);
        if (sums) v->flat->accumulate(total, dw, 2 * n);
    }
    for (int64_t i = 0; i < n; i++) {
        if (io->grad[WEIGHT]) io->grad[WEIGHT][i] = (float)total[i];
        if (io->grad[BIAS]) io->grad[BIAS][i] = (float)total[n + i];
    }
    return DP_OK;
}

const dp_family dp_cpu_layernorm = {.open = ln_open, .forward = ln_forward, .backward = ln_backward};
