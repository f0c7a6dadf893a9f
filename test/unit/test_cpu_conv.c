/* conv2d on the CPU against plain loops in double. */
#include "../../nn/cpu/onednn.h"
#include "cpu_kernel.h"
#include <pthread.h>

/* Output and gradients of a bed's convolution for `rows`; d_out comes from `fill` as in bed_backward, masked by the bed's own output
 * where a relu stands behind (so that rounding near zero does not matter). */
typedef struct reference {
    double *out, *d_in, *weight, *bias;
} reference;

static reference reference_of(const bed *b, int64_t rows)
{
    const dp_node *n = b->chain.node[0];
    const int64_t h = b->in_node->shape[0], w = b->in_node->shape[1], c = b->in_node->shape[2];
    const int64_t oh = n->shape[0], ow = n->shape[1], oc = n->shape[2];
    const int64_t kernel = (int64_t)n->opt[DP_CONV_KERNEL], stride = (int64_t)n->opt[DP_CONV_STRIDE],
                  pad = (int64_t)n->opt[DP_CONV_PAD];
    const int64_t dilation = (int64_t)n->opt[DP_CONV_DILATION], groups = (int64_t)n->opt[DP_CONV_GROUPS];
    const int64_t cg = c / groups, og = oc / groups;
    const int relu = b->chain.n > 1, bias = b->n > 1;
    reference r = {doubles(rows * n->width), doubles(rows * b->in_node->width), doubles(b->count[0]), doubles(oc)};
    float *d_out = floats(rows * n->width);
    fill(d_out, rows * n->width, 3);
    for (int64_t i = 0; i < rows * n->width; i++) {
        const int64_t o = i % oc, x = i / oc % ow, y = i / oc / ow % oh, row = i / n->width;
        const double g = relu && b->out[i] <= 0 ? 0 : (double)d_out[i];
        double sum = bias ? (double)b->param[1][o] : 0;
        r.bias[o] += g;
        for (int64_t ky = 0; ky < kernel; ky++) {
            for (int64_t kx = 0; kx < kernel; kx++) {
                const int64_t iy = y * stride - pad + ky * dilation, ix = x * stride - pad + kx * dilation;
                if (iy < 0 || iy >= h || ix < 0 || ix >= w) continue;
                for (int64_t k = 0; k < cg; k++) {
                    const int64_t at = ((row * h + iy) * w + ix) * c + o / og * cg + k,
                                  wt = ((o * kernel + ky) * kernel + kx) * cg + k;
                    sum += (double)b->in[at] * (double)b->param[0][wt];
                    r.d_in[at] += g * (double)b->param[0][wt];
                    r.weight[wt] += g * (double)b->in[at];
                }
            }
        }
        r.out[i] = relu && sum < 0 ? 0 : sum;
    }
    free(d_out);
    return r;
}

static void reference_free(reference *r)
{
    free(r->out), free(r->d_in), free(r->weight), free(r->bias);
}

static void check(const bed *b, int64_t rows)
{
    bed_forward(b, rows);
    bed_backward(b, rows, 0, 1);
    reference r = reference_of(b, rows);
    assert_near(b, "output", b->out, r.out, rows * b->out_node->width, 2e-6);
    assert_near(b, "input's gradient", b->d_in, r.d_in, rows * b->in_node->width, 2e-6);
    assert_near(b, "weight's gradient", b->grad[0], r.weight, b->count[0], 2e-6);
    if (b->n > 1) assert_near(b, "bias's gradient", b->grad[1], r.bias, b->count[1], 2e-6);
    reference_free(&r);
}

static const struct {
    const char *input, *spec;
    int64_t capacity, fewer;
} shapes[] = {
    {"1x28x28", "conv2d out=6 kernel=5 pad=2 | relu", 3, 1},
    {"6x14x14", "conv2d out=16 kernel=5", 4, 3},
    {"3x9x7", "conv2d out=16 kernel=3 pad=1 bias=0", 5, 2},
    {"16x8x8", "conv2d out=32 kernel=3 stride=2 pad=1 bias=0 | relu", 4, 1},
    {"64x8x8", "conv2d out=64 kernel=3 pad=1", 3, 2},
    {"32x9x9", "conv2d out=48 kernel=1 stride=2 bias=0", 4, 3},
    {"16x9x9", "conv2d out=16 kernel=3 pad=2 dilation=2 | relu", 2, 1},
    {"5x10x10", "conv2d out=7 kernel=3 stride=2 pad=1 dilation=2", 3, 2},
    {"32x8x8", "conv2d out=32 kernel=3 pad=1 groups=32 | relu", 3, 1},   /* depthwise */
    {"20x8x8", "conv2d out=20 kernel=5 stride=2 pad=2 groups=20", 3, 2}, /* depthwise, no whole vectors */
    {"32x6x6", "conv2d out=64 kernel=3 pad=1 groups=32", 2, 1},          /* depthwise with two outputs a channel */
    {"24x7x7", "conv2d out=36 kernel=3 pad=1 groups=3 bias=0", 3, 2},
    {"32x4x4", "conv2d out=7 kernel=1", 1, 1},
    {"8x3x3", "conv2d out=12 kernel=3", 4, 2}, /* 1 x 1 left */
};

static void test_shapes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        bed b;
        bed_open(&b, shapes[i].input, shapes[i].spec, shapes[i].capacity);
        bed_prepare(&b, shapes[i].capacity);
        bed_prepare(&b, shapes[i].fewer);
        check(&b, shapes[i].capacity);
        check(&b, shapes[i].fewer);
        check(&b, shapes[i].capacity);
        bed_close(&b);
    }
}

/* oneDNN falls back to reference loops, a thousand times slower, where it has nothing better: not for any of these shapes. */
static void test_implementations(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        bed b;
        bed_open(&b, shapes[i].input, shapes[i].spec, 16);
        const dp_node *n = b.chain.node[0];
        const dp_dnnl_conv shape = {
            .rows = 16,
            .in = {b.in_node->shape[0], b.in_node->shape[1], b.in_node->shape[2]},
            .out = {n->shape[0], n->shape[1], n->shape[2]},
            .kernel = (int64_t)n->opt[DP_CONV_KERNEL],
            .stride = (int64_t)n->opt[DP_CONV_STRIDE],
            .pad = (int64_t)n->opt[DP_CONV_PAD],
            .dilation = (int64_t)n->opt[DP_CONV_DILATION],
            .groups = (int64_t)n->opt[DP_CONV_GROUPS],
            .bias = b.n > 1,
        };
        for (int pass = DP_DNNL_FORWARD; pass <= DP_DNNL_BACKWARD_WEIGHTS; pass++) {
            dp_dnnl_op *op = NULL;
            dp_error err = {0};
            assert_int_equal(dp_dnnl_conv_make(b.device->dnnl, &shape, pass, &op, &err), DP_OK);
            if (!strncmp(dp_dnnl_implementation(op), "ref", 3))
                fail_msg("%s, pass %d: %s", b.spec, pass, dp_dnnl_implementation(op));
            dp_dnnl_op_free(op);
        }
        bed_close(&b);
    }
}

/* Weights that move with their version are taken up; a known row count creates nothing; an unknown one is refused. */
static void test_versions_and_row_counts(void **state)
{
    (void)state;
    bed b;
    bed_open(&b, "16x8x8", "conv2d out=16 kernel=3 pad=1", 4);
    const dp_run run = bed_run(&b, 3);
    const dp_io io = bed_io(&b);
    bed_prepare(&b, 4);
    check(&b, 4); /* the gradient of the model's input is made when it is first wanted: here */
    const int64_t created = b.be->created(b.device);
    assert_true(created > 1); /* more than the stream */
    bed_prepare(&b, 4);
    fill(b.param[0], b.count[0], 77);
    b.version++;
    check(&b, 4);
    check(&b, 4);
    assert_int_equal(b.be->created(b.device), created);
    assert_int_equal(b.be->forward(b.kernel, b.stream, &run, &run, &io), DP_EARGUMENT);
    assert_int_equal(b.be->backward(b.kernel, b.stream, &run, &run, &io), DP_EARGUMENT);
    bed_close(&b);
}

/* What is not wanted is not written, and the rest is right all the same. */
static void test_frozen(void **state)
{
    (void)state;
    bed b;
    bed_open(&b, "6x9x9", "conv2d out=10 kernel=3 pad=1 | relu", 3);
    bed_prepare(&b, 3);
    bed_forward(&b, 3);
    reference r = reference_of(&b, 3);
    for (unsigned frozen = 0; frozen < 4; frozen++) {
        for (int d_in = 0; d_in < 2; d_in++) {
            forget(b.grad[0], b.count[0]), forget(b.grad[1], b.count[1]), forget(b.d_in, 3 * b.in_node->width);
            bed_backward(&b, 3, frozen, d_in);
            if (frozen & 1)
                assert_untouched(b.grad[0], b.count[0]);
            else
                assert_near(&b, "weight's gradient", b.grad[0], r.weight, b.count[0], 2e-6);
            if (frozen & 2)
                assert_untouched(b.grad[1], b.count[1]);
            else
                assert_near(&b, "bias's gradient", b.grad[1], r.bias, b.count[1], 2e-6);
            if (!d_in)
                assert_untouched(b.d_in, 3 * b.in_node->width);
            else
                assert_near(&b, "input's gradient", b.d_in, r.d_in, 3 * b.in_node->width, 2e-6);
        }
    }
    reference_free(&r);
    bed_close(&b);
}

/* Two devices on two threads at once: each call gives the bytes of the first, and both devices the same. */
typedef struct worker {
    int64_t out, weight, d_in; /* floats */
    float *result;
    int equal;
} worker;

static void *work(void *p)
{
    worker *w = p;
    bed b;
    bed_open(&b, "16x12x12", "conv2d out=24 kernel=3 pad=1 | relu", 6);
    bed_prepare(&b, 6);
    w->out = 6 * b.out_node->width, w->weight = b.count[0], w->d_in = 6 * b.in_node->width;
    w->result = floats(w->out + w->weight + w->d_in);
    w->equal = 1;
    for (int i = 0; i < 4; i++) {
        b.version++; /* weights are reordered anew */
        bed_forward(&b, 6);
        bed_backward(&b, 6, 0, 1);
        const float *part[] = {b.out, b.grad[0], b.d_in};
        const int64_t n[] = {w->out, w->weight, w->d_in};
        float *at = w->result;
        for (int k = 0; k < 3; at += n[k], k++) {
            if (i)
                w->equal &= !memcmp(at, part[k], (size_t)n[k] * sizeof *at);
            else
                memcpy(at, part[k], (size_t)n[k] * sizeof *at);
        }
    }
    bed_close(&b);
    return NULL;
}

static void test_two_devices(void **state)
{
    (void)state;
    pthread_t thread;
    worker w[2];
    memset(w, 0, sizeof w);
    assert_int_equal(pthread_create(&thread, NULL, work, &w[1]), 0);
    work(&w[0]);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(w[0].equal && w[1].equal);
    assert_memory_equal(w[0].result, w[1].result, (size_t)(w[0].out + w[0].weight + w[0].d_in) * sizeof(float));
    free(w[0].result), free(w[1].result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes), cmocka_unit_test(test_implementations), cmocka_unit_test(test_versions_and_row_counts),
        cmocka_unit_test(test_frozen), cmocka_unit_test(test_two_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
