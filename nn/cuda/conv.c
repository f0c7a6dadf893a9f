/* conv2d, with a relu behind it. The way is chosen at open, the first that takes the shape: a matrix product (1x1, stride 1), cuDNN (one
 * group), the own kernel. devices.conv = own leaves the last one only; devices.tune = measure tries the last two, pass by pass. */
#include "../../dp/base/text.h"
#include "affine.h"
#include "conv.h"
#include "tune.h"

enum { WEIGHT, BIAS };
typedef enum way { PRODUCT, LIBRARY, OWN } way;

typedef struct dp_made {
    int64_t rows;
    dp_dnn_conv *conv; /* NULL: the library does not take this row count within the workspace; the own kernel does */
} dp_made;

typedef struct conv {
    dp_be_device *device;
    dp_conv shape;
    int64_t pixels, pixels_out; /* of one sample */
    way way;
    int fused;               /* LIBRARY: takes bias and relu; cleared when the first try is refused */
    dp_cuda_affine affine;   /* PRODUCT */
    dp_made *made;           /* LIBRARY */
    int algo[DP_DNN_PASSES]; /* ... for all row counts that can have it */
    int own[DP_DNN_PASSES];  /* ... but the own kernel is faster */
    int n_made;
    size_t library; /* workspace for the largest row count: what the library may take for others */
} conv;

static int conv_fuses(const dp_chain *chain, const dp_node *next)
{
    return chain->n == 1 && next->op->kind == DP_OP_RELU;
}

static void conv_close(void *state)
{
    conv *c = state;
    for (int i = 0; i < c->n_made; i++) dp_dnn_free(c->made[i].conv);
    free(c->made);
    dp_cuda_affine_close(&c->affine);
    free(c);
}

static const dp_made *find(const conv *c, int64_t rows)
{
    for (int i = 0; i < c->n_made; i++)
        if (c->made[i].rows == rows) return &c->made[i];
    return NULL;
}

/* DP_OK without a descriptor: the library does not take it, the own kernel does. */
static dp_status make(conv *c, int64_t rows, size_t limit, dp_error *err)
{
    dp_dnn_conv *p = NULL;
    void *more = realloc(c->made, (size_t)(c->n_made + 1) * sizeof *c->made);
    if (!more) return dp_fail(err, DP_ENOMEM, "Out of memory: convolutions for %lld rows", (long long)rows);
    c->made = more;
    DP_TRY(dp_dnn_make(c->device, &c->shape, rows, limit, &p, err));
    c->made[c->n_made].rows = rows;
    c->made[c->n_made++].conv = p;
    for (int pass = 0, taken; p && c->way == LIBRARY && pass < DP_DNN_PASSES; pass++)
        DP_TRY(dp_dnn_use(p, pass, c->algo[pass], limit, &taken, err));
    return DP_OK;
}

/* ---- measuring ---- */

typedef struct tuning {
    dp_conv shape; /* bare: bias and relu are the same for all */
    dp_dnn_conv *conv;
    int64_t rows;
    int pass, n, algo[DP_DNN_CANDIDATES]; /* the own kernel is candidate n */
    size_t limit, w, y, workspace;        /* bytes; where they begin behind x */
} tuning;

static dp_status run_candidate(void *user, int i, dp_be_stream *s, void *memory)
{
    tuning *t = user;
    char *m = memory;
    float *x = memory, *w = (float *)(void *)(m + t->w), *y = (float *)(void *)(m + t->y);
    void *workspace = m + t->workspace;
    int taken = 1;
    if (i < t->n) DP_TRY(dp_dnn_use(t->conv, t->pass, t->algo[i], t->limit, &taken, NULL));
    if (!taken) return DP_ECONFIG;
    switch (t->pass) {
    case DP_DNN_FORWARD:
        return i < t->n ? dp_dnn_forward(t->conv, s, x, w, y, workspace)
                        : dp_direct_forward(s, &t->shape, t->rows, x, w, NULL, y);
    case DP_DNN_DATA:
        return i < t->n ? dp_dnn_backward_data(t->conv, s, y, w, x, workspace)
                        : dp_direct_backward_data(s, &t->shape, t->rows, y, w, x);
    default:
        return i < t->n ? dp_dnn_backward_weights(t->conv, s, x, y, w, workspace)
                        : dp_direct_backward_weights(s, &t->shape, t->rows, x, y, w, workspace);
    }
}

static size_t floats(int64_t n)
{
    return ((size_t)n * sizeof(float) + DP_CUDA_ALIGNMENT - 1) / DP_CUDA_ALIGNMENT * DP_CUDA_ALIGNMENT;
}

static dp_status tune_pass(conv *c, tuning *t, dp_error *err)
{
    static const char *const name[] = {"forward", "data gradient", "weight gradient"};
    const dp_conv *s = &c->shape;
    const size_t own = dp_direct_workspace(s, t->rows);
    char key[256];
    int choice, taken;
    t->n = dp_dnn_candidates(t->conv, t->pass, t->limit, t->algo);
    t->w = floats(t->rows * c->pixels * s->in[2]);
    t->y = t->w + floats(s->out[2] * s->kernel * s->kernel * s->in[2]);
    t->workspace = t->y + floats(t->rows * c->pixels_out * s->out[2]);
    size_t most = own;
    for (int i = 0; i < t->n; i++) {
        DP_TRY(dp_dnn_use(t->conv, t->pass, t->algo[i], t->limit, &taken, err));
        if (dp_dnn_workspace(t->conv) > most) most = dp_dnn_workspace(t->conv);
    }
    dp_format(
        key, sizeof key,
        "convolution %lldx%lldx%lldx%lld to %lld, kernel %lld, stride %lld, pad %lld, dilation %lld%s, %s within %zu bytes",
        (long long)t->rows, (long long)s->in[0], (long long)s->in[1], (long long)s->in[2], (long long)s->out[2],
        (long long)s->kernel, (long long)s->stride, (long long)s->pad, (long long)s->dilation, s->tf32 ? ", tf32" : "",
        name[t->pass], t->limit);
    DP_TRY(dp_tune_pick(c->device, key, t->n + 1, run_candidate, t, t->workspace + most, &choice, err));
    c->own[t->pass] = choice == t->n;
    c->algo[t->pass] = t->algo[c->own[t->pass] ? 0 : choice];
    return dp_dnn_use(t->conv, t->pass, c->algo[t->pass], t->limit, &taken, err);
}

/* The documented algorithms, or the fastest ones of this row count. */
static dp_status tune(conv *c, int no_dx, size_t limit, dp_error *err)
{
    tuning t = {.shape = c->shape, .conv = c->made[0].conv, .rows = c->made[0].rows, .limit = limit};
    t.shape.bias = t.shape.relu = 0;
    for (t.pass = 0; t.pass < DP_DNN_PASSES; t.pass++) {
        c->algo[t.pass] = dp_dnn_algo(t.conv, t.pass);
        if (c->device->options.tune_measure && !(no_dx && t.pass == DP_DNN_DATA)) DP_TRY(tune_pass(c, &t, err));
    }
    return DP_OK;
}

static dp_status choose(conv *c, int64_t capacity, int no_dx, size_t *workspace, dp_error *err)
{
    const dp_conv *s = &c->shape;
    const dp_be_options *o = &c->device->options;
    c->way = OWN;
    *workspace = dp_direct_workspace(s, capacity);
    if (o->conv_own) return DP_OK;
    if (s->kernel == 1 && s->stride == 1 && s->pad == 0 && s->groups == 1) {
        c->way = PRODUCT;
        c->affine = (dp_cuda_affine){.device = c->device,
                                     .in = s->in[2],
                                     .out = s->out[2],
                                     .bias = s->bias,
                                     .act = s->relu ? DP_ACT_RELU : DP_ACT_NONE,
                                     .tf32 = s->tf32,
                                     .no_dx = no_dx};
        DP_TRY(dp_cuda_affine_open(&c->affine, capacity * c->pixels, err));
        *workspace = c->affine.workspace;
        return DP_OK;
    }
    const size_t limit = o->workspace > 0 ? (size_t)o->workspace : SIZE_MAX;
    DP_TRY(make(c, capacity, limit, err));
    if (!c->made[0].conv) return DP_OK;
    c->way = LIBRARY;
    for (int tuned = 0; tuned < 2; tuned++) { /* other row counts may have to do with the documented ones */
        if (tuned) DP_TRY(tune(c, no_dx, limit, err));
        if (dp_dnn_workspace(c->made[0].conv) > *workspace) *workspace = dp_dnn_workspace(c->made[0].conv);
    }
    c->library = *workspace;
    return DP_OK;
}

static dp_status conv_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, void **state, dp_error *err)
{
    const dp_node *n = chain->node[0], *in = &chain->graph->node[n->in[0]];
    conv *c = dp_calloc(1, sizeof *c);
    if (!c) return dp_fail(err, DP_ENOMEM, "Out of memory: layer %s", n->name);
    c->device = d;
    c->shape = (dp_conv){.in = {in->shape[0], in->shape[1], in->shape[2]},
                         .out = {n->shape[0], n->shape[1], n->shape[2]},
                         .kernel = (int64_t)n->opt[DP_CONV_KERNEL],
                         .stride = (int64_t)n->opt[DP_CONV_STRIDE],
                         .pad = (int64_t)n->opt[DP_CONV_PAD],
                         .dilation = (int64_t)n->opt[DP_CONV_DILATION],
                         .groups = (int64_t)n->opt[DP_CONV_GROUPS],
                         .bias = n->opt[DP_CONV_BIAS] != 0,
                         .relu = chain->n > 1,
                         .tf32 = d->options.tf32 > 0};
    c->pixels = in->shape[0] * in->shape[1];
    c->pixels_out = n->shape[0] * n->shape[1];
    const dp_status status = choose(c, capacity, in->op->kind == DP_OP_INPUT, &need->workspace, err);
    if (status) {
        conv_close(c);
        return status;
    }
    c->fused = c->shape.bias && !d->options.no_epilogue;
    if (need->workspace < dp_act_workspace(c->shape.out[2])) need->workspace = dp_act_workspace(c->shape.out[2]);
    need->reads_in[0] = 1;
    need->reads_out = (uint8_t)c->shape.relu;
    *state = c;
    return DP_OK;
}

static dp_status conv_prepare(void *state, int64_t rows, dp_error *err)
{
    conv *c = state;
    if (c->way == PRODUCT) return dp_cuda_affine_prepare(&c->affine, rows * c->pixels, err);
    return c->way == OWN || find(c, rows) ? DP_OK : make(c, rows, c->library, err);
}

static dp_status library_forward(conv *c, const dp_dnn_conv *p, dp_be_stream *s, int64_t rows, const dp_io *io)
{
    if (c->fused) {
        const dp_status status = dp_dnn_forward_fused(p, s, io->in[0], io->param[WEIGHT], io->param[BIAS], io->out,
                                                      io->workspace);
        if (status != DP_ECONFIG) return status;
        c->fused = 0; /* nothing was done; it is not asked again */
    }
    DP_TRY(dp_dnn_forward(p, s, io->in[0], io->param[WEIGHT], io->out, io->workspace));
    return dp_act_forward(s, c->shape.relu ? DP_ACT_RELU : DP_ACT_NONE, io->out, NULL, c->shape.bias ? io->param[BIAS] : NULL,
                          rows * c->pixels_out, c->shape.out[2]);
}

static dp_status conv_forward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    conv *c = state;
    (void)run_device;
    if (c->way == PRODUCT)
        return dp_cuda_affine_forward(&c->affine, s, run->rows * c->pixels, io->in[0], io->param[WEIGHT], io->param[BIAS], NULL,
                                      io->out, NULL, io->workspace);
    const dp_made *p = find(c, run->rows);
    if (p && p->conv && !c->own[DP_DNN_FORWARD]) return library_forward(c, p->conv, s, run->rows, io);
    return dp_direct_forward(s, &c->shape, run->rows, io->in[0], io->param[WEIGHT], c->shape.bias ? io->param[BIAS] : NULL,
                             io->out);
}

static dp_status backward_weights(const conv *c, const dp_made *p, dp_be_stream *s, int64_t rows, const dp_io *io)
{
    if (p && p->conv && !c->own[DP_DNN_WEIGHTS])
        return dp_dnn_backward_weights(p->conv, s, io->in[0], io->d_out, io->grad[WEIGHT], io->workspace);
    return dp_direct_backward_weights(s, &c->shape, rows, io->in[0], io->d_out, io->grad[WEIGHT], io->workspace);
}

static dp_status backward_data(const conv *c, const dp_made *p, dp_be_stream *s, int64_t rows, const dp_io *io)
{
    if (p && p->conv && !c->own[DP_DNN_DATA])
        return dp_dnn_backward_data(p->conv, s, io->d_out, io->param[WEIGHT], io->d_in[0], io->workspace);
    return dp_direct_backward_data(s, &c->shape, rows, io->d_out, io->param[WEIGHT], io->d_in[0]);
}

static dp_status conv_backward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    const conv *c = state;
    const int64_t m = run->rows * c->pixels_out, out = c->shape.out[2];
    (void)run_device;
    if (c->way == PRODUCT)
        return dp_cuda_affine_backward(&c->affine, s, m, io->in[0], io->param[WEIGHT], io->out, NULL, io->d_out, io->d_in[0],
                                       io->grad[WEIGHT], io->grad[BIAS], NULL, io->workspace);
    DP_TRY(dp_act_backward(s, c->shape.relu ? DP_ACT_RELU : DP_ACT_NONE, io->d_out, io->out, out, m, out,
                           c->shape.bias ? io->grad[BIAS] : NULL, io->workspace));
    const dp_made *p = find(c, run->rows);
    if (io->grad[WEIGHT]) DP_TRY(backward_weights(c, p, s, run->rows, io));
    return io->d_in[0] ? backward_data(c, p, s, run->rows, io) : DP_OK;
}

const dp_family dp_cuda_conv2d = {.fuses = conv_fuses,
                                  .open = conv_open,
                                  .prepare = conv_prepare,
                                  .forward = conv_forward,
                                  .backward = conv_backward,
                                  .close = conv_close};
