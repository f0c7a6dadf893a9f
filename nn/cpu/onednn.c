/* Every oneDNN call of the project. The v2 interface (2.5 .. 2.7) describes an operation in a struct of its own before it makes the
 * primitive; v3 dropped that step and made memory descriptors handles. The differences are kept in the first part of this file. */
#include "onednn.h"
#include "../../dp/base/memory.h"
#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>

struct dp_dnnl {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int64_t *created;
};
struct dp_dnnl_op {
    dp_dnnl *x;
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    int n; /* arguments in use; the scratch stands last when there is one */
    dnnl_exec_arg_t arg[DP_DNNL_ARGS + 1];
    dp_dnnl_sizes sizes;
    dp_dnnl_pass pass; /* of a convolution */
    dp_dnnl_conv conv;
};

/* ---- v2 and v3 ---- */

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t layout; /* borrowed */
typedef struct own_layout {
    dnnl_memory_desc_t md;
} own_layout;
static layout borrow(const own_layout *l)
{
    return l->md;
}
static void layout_free(own_layout *l)
{
    if (l->md) dnnl_memory_desc_destroy(l->md);
}
#else
typedef const dnnl_memory_desc_t *layout;
typedef struct own_layout {
    dnnl_memory_desc_t md;
} own_layout;
static layout borrow(const own_layout *l)
{
    return l->md.ndims ? &l->md : NULL;
}
static void layout_free(own_layout *l)
{
    (void)l;
}
#endif

static dnnl_status_t layout_strided(own_layout *l, int n, const int64_t *dims, const int64_t *strides)
{
    dnnl_dims_t d, s; /* both interfaces want arrays of the largest rank */
    for (int i = 0; i < n; i++) d[i] = dims[i], s[i] = strides[i];
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_strides(&l->md, n, d, dnnl_f32, s);
#else
    return dnnl_memory_desc_init_by_strides(&l->md, n, d, dnnl_f32, s);
#endif
}

static dnnl_status_t layout_tagged(own_layout *l, int n, const int64_t *dims, dnnl_format_tag_t tag)
{
    dnnl_dims_t d;
    for (int i = 0; i < n; i++) d[i] = dims[i];
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_tag(&l->md, n, d, dnnl_f32, tag);
#else
    return dnnl_memory_desc_init_by_tag(&l->md, n, d, dnnl_f32, tag);
#endif
}

static dnnl_status_t append_relu(dnnl_post_ops_t ops)
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_relu, 0, 0);
#else
    return dnnl_post_ops_append_eltwise(ops, 1, dnnl_eltwise_relu, 0, 0);
#endif
}

static dnnl_status_t describe_matmul(dnnl_primitive_desc_t *desc, dnnl_engine_t engine, layout a, layout b, layout bias,
                                     layout c, const_dnnl_primitive_attr_t attr)
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_matmul_primitive_desc_create(desc, engine, a, b, bias, c, attr);
#else
    dnnl_matmul_desc_t d;
    const dnnl_status_t failed = dnnl_matmul_desc_init(&d, a, b, bias, c);
    return failed ? failed : dnnl_primitive_desc_create(desc, &d, attr, engine, NULL);
#endif
}

/* Sizes of a convolution in oneDNN's terms. */
typedef struct window {
    dnnl_dims_t stride, dilation, pad;
} window;

static dnnl_status_t describe_conv(dnnl_primitive_desc_t *desc, dnnl_engine_t engine, dp_dnnl_pass pass, layout src,
                                   layout weights, layout bias, layout dst, const window *w, const_dnnl_primitive_desc_t hint,
                                   const_dnnl_primitive_attr_t attr)
{
    const dnnl_alg_kind_t direct = dnnl_convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
    switch (pass) {
    case DP_DNNL_FORWARD:
        return dnnl_convolution_forward_primitive_desc_create(desc, engine, dnnl_forward_training, direct, src, weights, bias,
                                                              dst, w->stride, w->dilation, w->pad, w->pad, attr);
    case DP_DNNL_BACKWARD_DATA:
        return dnnl_convolution_backward_data_primitive_desc_create(desc, engine, direct, src, weights, dst, w->stride,
                                                                    w->dilation, w->pad, w->pad, hint, attr);
    default:
        return dnnl_convolution_backward_weights_primitive_desc_create(desc, engine, direct, src, weights, bias, dst, w->stride,
                                                                       w->dilation, w->pad, w->pad, hint, attr);
    }
#else
    dnnl_convolution_desc_t d;
    dnnl_status_t failed;
    switch (pass) {
    case DP_DNNL_FORWARD:
        failed = dnnl_dilated_convolution_forward_desc_init(&d, dnnl_forward_training, direct, src, weights, bias, dst,
                                                            w->stride, w->dilation, w->pad, w->pad);
        break;
    case DP_DNNL_BACKWARD_DATA:
        failed = dnnl_dilated_convolution_backward_data_desc_init(&d, direct, src, weights, dst, w->stride, w->dilation, w->pad,
                                                                  w->pad);
        break;
    default:
        failed = dnnl_dilated_convolution_backward_weights_desc_init(&d, direct, src, weights, bias, dst, w->stride,
                                                                     w->dilation, w->pad, w->pad);
    }
    return failed ? failed : dnnl_primitive_desc_create(desc, &d, attr, engine, hint);
#endif
}

static layout query(const_dnnl_primitive_desc_t desc, dnnl_query_t what)
{
    return dnnl_primitive_desc_query_md(desc, what, 0);
}

/* ---- the same for both ---- */

static dp_status failure(dnnl_status_t failed, const char *what, dp_error *err)
{
    if (failed == dnnl_out_of_memory) return dp_fail(err, DP_ENOMEM, "Out of memory in oneDNN: %s", what);
    return dp_fail(err, DP_EDEVICE, "oneDNN %d.%d.%d refuses %s (dnnl_status %d)", dnnl_version()->major, dnnl_version()->minor,
                   dnnl_version()->patch, what, (int)failed);
}

dp_status dp_dnnl_open(dp_dnnl **out, int64_t *created, dp_error *err)
{
    dp_dnnl *x = dp_calloc(1, sizeof *x);
    if (!x) return dp_fail(err, DP_ENOMEM, "Out of memory: oneDNN's engine");
    x->created = created;
    dnnl_status_t failed = dnnl_engine_create(&x->engine, dnnl_cpu, 0);
    if (!failed) failed = dnnl_stream_create(&x->stream, x->engine, dnnl_stream_default_flags);
    if (failed) {
        dp_dnnl_close(x);
        return failure(failed, "its engine", err);
    }
    *out = x;
    return DP_OK;
}

void dp_dnnl_close(dp_dnnl *x)
{
    if (!x) return;
    if (x->stream) dnnl_stream_destroy(x->stream);
    if (x->engine) dnnl_engine_destroy(x->engine);
    free(x);
}

void dp_dnnl_op_free(dp_dnnl_op *op)
{
    if (!op) return;
    for (int i = 0; i < op->n; i++) {
        if (op->arg[i].memory) dnnl_memory_destroy(op->arg[i].memory);
    }
    if (op->primitive) dnnl_primitive_destroy(op->primitive);
    if (op->desc) dnnl_primitive_desc_destroy(op->desc);
    free(op);
}

/* Scratch comes from the caller (a step allocates nothing); relu rides on the output. */
static dnnl_status_t attributes(dnnl_primitive_attr_t *attr, int relu)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t failed = dnnl_primitive_attr_create(attr);
    if (!failed) failed = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (!failed && relu) {
        failed = dnnl_post_ops_create(&ops);
        if (!failed) failed = append_relu(ops);
        if (!failed) failed = dnnl_primitive_attr_set_post_ops(*attr, ops);
        if (ops) dnnl_post_ops_destroy(ops);
    }
    return failed;
}

/* An argument without memory yet; the order of calls is the order of dp_dnnl_run's pointers. */
static dnnl_status_t add_argument(dp_dnnl_op *op, int id, layout l)
{
    op->arg[op->n].arg = id;
    return dnnl_memory_create(&op->arg[op->n++].memory, l, op->x->engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t finish(dp_dnnl_op *op)
{
    dnnl_status_t failed = dnnl_primitive_create(&op->primitive, op->desc);
    if (failed) return failed;
    const layout scratch = query(op->desc, dnnl_query_scratchpad_md);
    op->sizes.scratch = scratch ? dnnl_memory_desc_get_size(scratch) : 0;
    if (op->sizes.scratch) failed = add_argument(op, DNNL_ARG_SCRATCHPAD, scratch);
    if (!failed) ++*op->x->created;
    return failed;
}

static dp_dnnl_op *op_new(dp_dnnl *x)
{
    dp_dnnl_op *op = dp_calloc(1, sizeof *op);
    if (op) op->x = x;
    return op;
}

dp_status dp_dnnl_run(dp_dnnl_op *op, const void *const arg[DP_DNNL_ARGS], void *scratch)
{
    const int n = op->sizes.scratch ? op->n - 1 : op->n;
    dnnl_status_t failed = dnnl_success;
    /* Outputs are among the pointers: oneDNN's memory objects do not tell reading from writing. */
    for (int i = 0; i < n && !failed; i++) failed = dnnl_memory_set_data_handle(op->arg[i].memory, (void *)(uintptr_t)arg[i]);
    if (!failed && op->sizes.scratch) failed = dnnl_memory_set_data_handle(op->arg[n].memory, scratch);
    if (!failed) failed = dnnl_primitive_execute(op->primitive, op->x->stream, op->n, op->arg);
    if (!failed) failed = dnnl_stream_wait(op->x->stream);
    return !failed ? DP_OK : failed == dnnl_out_of_memory ? DP_ENOMEM : DP_EDEVICE;
}

dp_dnnl_sizes dp_dnnl_op_sizes(const dp_dnnl_op *op)
{
    return op->sizes;
}

const char *dp_dnnl_implementation(const dp_dnnl_op *op)
{
    const char *name = NULL;
    return dnnl_primitive_desc_query(op->desc, dnnl_query_impl_info_str, 0, &name) || !name ? "" : name;
}

/* ---- matrix products ---- */

static dnnl_status_t matmul_desc(dp_dnnl *x, const dp_dnnl_matmul *mm, dnnl_primitive_desc_t *desc)
{
    const int64_t da[2] = {mm->m, mm->k}, db[2] = {mm->k, mm->n}, dc[2] = {mm->m, mm->n}, dbias[2] = {1, mm->n};
    const int64_t sa[2] = {mm->a_row, mm->a_col}, sb[2] = {mm->b_row, mm->b_col}, sc[2] = {mm->n, 1};
    own_layout a = {0}, b = {0}, c = {0}, bias = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t failed = attributes(&attr, mm->relu);
    if (!failed) failed = layout_strided(&a, 2, da, sa);
    if (!failed) failed = layout_strided(&b, 2, db, sb);
    if (!failed) failed = layout_strided(&c, 2, dc, sc);
    if (!failed && mm->bias) failed = layout_strided(&bias, 2, dbias, sc);
    if (!failed) failed = describe_matmul(desc, x->engine, borrow(&a), borrow(&b), borrow(&bias), borrow(&c), attr);
    layout_free(&a), layout_free(&b), layout_free(&c), layout_free(&bias);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return failed;
}

dp_status dp_dnnl_matmul_make(dp_dnnl *x, const dp_dnnl_matmul *mm, dp_dnnl_op **out, dp_error *err)
{
    dp_dnnl_op *op = op_new(x);
    if (!op) return dp_fail(err, DP_ENOMEM, "Out of memory: a matrix product");
    dnnl_status_t failed = matmul_desc(x, mm, &op->desc);
    if (!failed) failed = add_argument(op, DNNL_ARG_SRC, query(op->desc, dnnl_query_src_md));
    if (!failed) failed = add_argument(op, DNNL_ARG_WEIGHTS, query(op->desc, dnnl_query_weights_md));
    if (!failed) failed = add_argument(op, DNNL_ARG_DST, query(op->desc, dnnl_query_dst_md));
    if (!failed && mm->bias)
        failed = add_argument(op, DNNL_ARG_BIAS, dnnl_primitive_desc_query_md(op->desc, dnnl_query_weights_md, 1));
    if (!failed) failed = finish(op);
    if (failed) {
        dp_dnnl_op_free(op);
        return failure(failed, "a matrix product", err);
    }
    *out = op;
    return DP_OK;
}

size_t dp_dnnl_matmul_scratch(dp_dnnl *x, const dp_dnnl_matmul *mm)
{
    dnnl_primitive_desc_t desc = NULL;
    if (matmul_desc(x, mm, &desc)) return 0; /* making it will say why */
    const layout scratch = query(desc, dnnl_query_scratchpad_md);
    const size_t bytes = scratch ? dnnl_memory_desc_get_size(scratch) : 0;
    dnnl_primitive_desc_destroy(desc);
    return bytes;
}

dp_status dp_dnnl_sgemm(int a_transposed, int b_transposed, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                        const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    const dnnl_status_t failed = dnnl_sgemm(a_transposed ? 'T' : 'N', b_transposed ? 'T' : 'N', m, n, k, 1, a, lda, b, ldb,
                                            beta, c, ldc);
    return !failed ? DP_OK : failed == dnnl_out_of_memory ? DP_ENOMEM : DP_EDEVICE;
}

/* ---- convolutions ---- */

/* O,H,W,I per group, in oneDNN's order of dimensions: (groups,) O, I, H, W. */
static dnnl_status_t plain_weights(const dp_dnnl_conv *c, own_layout *l)
{
    const int64_t o = c->out[2] / c->groups, i = c->in[2] / c->groups, k = c->kernel;
    const int64_t dims[5] = {c->groups, o, i, k, k}, strides[5] = {o * k * k * i, k * k * i, 1, k * i, i};
    return c->groups > 1 ? layout_strided(l, 5, dims, strides) : layout_strided(l, 4, dims + 1, strides + 1);
}

static dnnl_status_t conv_desc(dp_dnnl *x, const dp_dnnl_conv *c, dp_dnnl_pass pass, const_dnnl_primitive_desc_t hint,
                               dnnl_primitive_desc_t *desc)
{
    const int64_t ds[4] = {c->rows, c->in[2], c->in[0], c->in[1]}, dd[4] = {c->rows, c->out[2], c->out[0], c->out[1]};
    const int64_t dw[5] = {c->groups, c->out[2] / c->groups, c->in[2] / c->groups, c->kernel, c->kernel}, db[1] = {c->out[2]};
    const window w = {{c->stride, c->stride}, {c->dilation - 1, c->dilation - 1}, {c->pad, c->pad}};
    const int flat = c->groups == 1;
    own_layout src = {0}, weights = {0}, bias = {0}, dst = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t failed = attributes(&attr, pass == DP_DNNL_FORWARD && c->relu);
    if (!failed) failed = layout_tagged(&src, 4, ds, dnnl_nhwc);
    if (!failed) failed = layout_tagged(&dst, 4, dd, dnnl_nhwc);
    if (!failed) failed = layout_tagged(&weights, flat ? 4 : 5, dw + flat, dnnl_format_tag_any);
    if (!failed && c->bias && pass != DP_DNNL_BACKWARD_DATA) failed = layout_tagged(&bias, 1, db, dnnl_a);
    if (!failed)
        failed = describe_conv(desc, x->engine, pass, borrow(&src), borrow(&weights), borrow(&bias), borrow(&dst), &w, hint,
                               attr);
    layout_free(&src), layout_free(&weights), layout_free(&bias), layout_free(&dst);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return failed;
}

/* A backward pass is described beside its forward pass. */
static dnnl_status_t conv_hinted(dp_dnnl *x, const dp_dnnl_conv *c, dp_dnnl_pass pass, dnnl_primitive_desc_t *desc)
{
    dnnl_primitive_desc_t hint = NULL;
    if (pass == DP_DNNL_FORWARD) return conv_desc(x, c, pass, NULL, desc);
    dnnl_status_t failed = conv_desc(x, c, DP_DNNL_FORWARD, NULL, &hint);
    if (!failed) failed = conv_desc(x, c, pass, hint, desc);
    if (hint) dnnl_primitive_desc_destroy(hint);
    return failed;
}

static layout conv_weights(const_dnnl_primitive_desc_t desc, dp_dnnl_pass pass)
{
    return query(desc, pass == DP_DNNL_BACKWARD_WEIGHTS ? dnnl_query_diff_weights_md : dnnl_query_weights_md);
}

static dnnl_status_t conv_measure(const dp_dnnl_conv *c, dp_dnnl_pass pass, const_dnnl_primitive_desc_t desc,
                                  dp_dnnl_sizes *sizes)
{
    const layout scratch = query(desc, dnnl_query_scratchpad_md), weights = conv_weights(desc, pass);
    own_layout plain = {0};
    const dnnl_status_t failed = plain_weights(c, &plain);
    if (failed) return failed;
    sizes->scratch = scratch ? dnnl_memory_desc_get_size(scratch) : 0;
    sizes->weights = dnnl_memory_desc_equal(weights, borrow(&plain)) ? 0 : dnnl_memory_desc_get_size(weights);
    layout_free(&plain);
    return dnnl_success;
}

dp_status dp_dnnl_conv_sizes(dp_dnnl *x, const dp_dnnl_conv *c, dp_dnnl_pass pass, dp_dnnl_sizes *sizes, dp_error *err)
{
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t failed = conv_hinted(x, c, pass, &desc);
    if (!failed) failed = conv_measure(c, pass, desc, sizes);
    if (desc) dnnl_primitive_desc_destroy(desc);
    return failed ? failure(failed, "a convolution", err) : DP_OK;
}

dp_status dp_dnnl_conv_make(dp_dnnl *x, const dp_dnnl_conv *c, dp_dnnl_pass pass, dp_dnnl_op **out, dp_error *err)
{
    /* Per pass: the arguments in the order of dp_dnnl_run's pointers, and where their layouts are found. */
    static const struct {
        int arg;
        dnnl_query_t layout;
        int index;
    } order[][DP_DNNL_ARGS] = {
        [DP_DNNL_FORWARD] = {{DNNL_ARG_SRC, dnnl_query_src_md, 0},
                             {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0},
                             {DNNL_ARG_DST, dnnl_query_dst_md, 0},
                             {DNNL_ARG_BIAS, dnnl_query_weights_md, 1}},
        [DP_DNNL_BACKWARD_DATA] = {{DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0},
                                   {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0},
                                   {DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md, 0}},
        [DP_DNNL_BACKWARD_WEIGHTS] = {{DNNL_ARG_SRC, dnnl_query_src_md, 0},
                                      {DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0},
                                      {DNNL_ARG_DIFF_WEIGHTS, dnnl_query_diff_weights_md, 0},
                                      {DNNL_ARG_DIFF_BIAS, dnnl_query_diff_weights_md, 1}},
    };
    const int n = pass == DP_DNNL_BACKWARD_DATA || !c->bias ? 3 : 4;
    dp_dnnl_op *op = op_new(x);
    if (!op) return dp_fail(err, DP_ENOMEM, "Out of memory: a convolution");
    op->pass = pass;
    op->conv = *c;
    dnnl_status_t failed = conv_hinted(x, c, pass, &op->desc);
    for (int i = 0; i < n && !failed; i++) {
        failed = add_argument(op, order[pass][i].arg,
                              dnnl_primitive_desc_query_md(op->desc, order[pass][i].layout, order[pass][i].index));
    }
    if (!failed) failed = finish(op);
    if (!failed) failed = conv_measure(c, pass, op->desc, &op->sizes);
    if (failed) {
        dp_dnnl_op_free(op);
        return failure(failed, "a convolution", err);
    }
    *out = op;
    return DP_OK;
}

dp_status dp_dnnl_weights_reorder(const dp_dnnl_op *conv, dp_dnnl_op **out, dp_error *err)
{
    const int back = conv->pass == DP_DNNL_BACKWARD_WEIGHTS;
    *out = NULL;
    if (!conv->sizes.weights) return DP_OK;
    dp_dnnl_op *op = op_new(conv->x);
    if (!op) return dp_fail(err, DP_ENOMEM, "Out of memory: a reorder of weights");
    own_layout plain = {0};
    dnnl_primitive_attr_t attr = NULL;
    const layout best = conv_weights(conv->desc, conv->pass);
    dnnl_status_t failed = plain_weights(&conv->conv, &plain);
    const layout from = back ? best : borrow(&plain), to = back ? borrow(&plain) : best;
    if (!failed) failed = attributes(&attr, 0);
    if (!failed) failed = dnnl_reorder_primitive_desc_create(&op->desc, from, conv->x->engine, to, conv->x->engine, attr);
    if (!failed) failed = add_argument(op, DNNL_ARG_FROM, from);
    if (!failed) failed = add_argument(op, DNNL_ARG_TO, to);
    if (!failed) failed = finish(op);
    layout_free(&plain);
    if (attr) dnnl_primitive_attr_destroy(attr);
    if (failed) {
        dp_dnnl_op_free(op);
        return failure(failed, "a reorder of weights", err);
    }
    *out = op;
    return DP_OK;
}

int dp_dnnl_same_weights(const dp_dnnl_op *a, const dp_dnnl_op *b)
{
    return dnnl_memory_desc_equal(conv_weights(a->desc, a->pass), conv_weights(b->desc, b->pass)) != 0;
}
