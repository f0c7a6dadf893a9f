/* linear on the CPU against plain loops in double. */
#include "cpu_kernel.h"

typedef struct reference {
    double *out, *d_in, *weight, *bias;
} reference;

static reference reference_of(const bed *b, int64_t rows)
{
    const int64_t in = b->graph->tensor[0].shape[1], out = b->graph->tensor[0].shape[0], m = rows * b->out_node->width / out;
    const int relu = b->chain.n > 1, bias = b->n > 1;
    reference r = {doubles(m * out), doubles(m * in), doubles(out * in), doubles(out)};
    float *d_out = floats(m * out);
    fill(d_out, m * out, 3);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t o = 0; o < out; o++) {
            const float *x = b->in + i * in, *w = b->param[0] + o * in;
            const double g = relu && b->out[i * out + o] <= 0 ? 0 : (double)d_out[i * out + o];
            double sum = bias ? (double)b->param[1][o] : 0;
            r.bias[o] += g;
            for (int64_t k = 0; k < in; k++) {
                sum += (double)x[k] * (double)w[k];
                r.d_in[i * in + k] += g * (double)w[k];
                r.weight[o * in + k] += g * (double)x[k];
            }
            r.out[i * out + o] = relu && sum < 0 ? 0 : sum;
        }
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
    {"784", "linear out=64 | relu", 32, 7},
    {"64", "linear out=10", 128, 1},
    {"7", "linear out=1", 5, 2},
    {"1", "linear out=3 bias=0", 4, 1},
    {"13", "linear out=37 bias=0 | relu", 37, 20},
    {"128x24", "linear out=40 | relu", 9, 2}, /* 1,152 rows: the long sums' way; 256 rows */
    {"64x16", "linear out=1 bias=0", 16, 3},
    {"11x5", "linear out=6", 3, 1},
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

static void test_row_counts(void **state)
{
    (void)state;
    bed b;
    bed_open(&b, "20", "linear out=30 | relu", 8);
    const dp_run run = bed_run(&b, 5);
    const dp_io io = bed_io(&b);
    bed_prepare(&b, 8);
    check(&b, 8);
    const int64_t created = b.be->created(b.device);
    bed_prepare(&b, 8);
    check(&b, 8);
    assert_int_equal(b.be->created(b.device), created);
    assert_int_equal(b.be->forward(b.kernel, b.stream, &run, &run, &io), DP_EARGUMENT);
    assert_int_equal(b.be->backward(b.kernel, b.stream, &run, &run, &io), DP_EARGUMENT);
    bed_close(&b);
}

static void test_frozen(void **state)
{
    (void)state;
    bed b;
    bed_open(&b, "20", "linear out=30 | relu", 8);
    bed_prepare(&b, 8);
    bed_forward(&b, 8);
    reference r = reference_of(&b, 8);
    for (unsigned frozen = 0; frozen < 4; frozen++) {
        for (int d_in = 0; d_in < 2; d_in++) {
            forget(b.grad[0], b.count[0]), forget(b.grad[1], b.count[1]), forget(b.d_in, 8 * b.in_node->width);
            bed_backward(&b, 8, frozen, d_in);
            if (frozen & 1)
                assert_untouched(b.grad[0], b.count[0]);
            else
                assert_near(&b, "weight's gradient", b.grad[0], r.weight, b.count[0], 2e-6);
            if (frozen & 2)
                assert_untouched(b.grad[1], b.count[1]);
            else
                assert_near(&b, "bias's gradient", b.grad[1], r.bias, b.count[1], 2e-6);
            if (!d_in)
                assert_untouched(b.d_in, 8 * b.in_node->width);
            else
                assert_near(&b, "input's gradient", b.d_in, r.d_in, 8 * b.in_node->width, 2e-6);
        }
    }
    reference_free(&r);
    bed_close(&b);
}

/* Equal calls give equal bytes, on both ways of the weight's gradient. */
static void test_repeats(void **state)
{
    (void)state;
    static const int64_t rows[] = {64, 1200};
    bed b;
    bed_open(&b, "96", "linear out=80", 1200);
    for (int i = 0; i < 2; i++) {
        const size_t bytes[3] = {sizeof(float) * (size_t)(rows[i] * 80), sizeof(float) * (size_t)(rows[i] * 96),
                                 sizeof(float) * 80 * 96};
        float *const part[3] = {b.out, b.d_in, b.grad[0]};
        float *copy[3];
        bed_prepare(&b, rows[i]);
        for (int time = 0; time < 2; time++) {
            bed_forward(&b, rows[i]);
            bed_backward(&b, rows[i], 0, 1);
            for (int k = 0; k < 3; k++) {
                if (!time)
                    copy[k] = floats((int64_t)(bytes[k] / sizeof(float))), memcpy(copy[k], part[k], bytes[k]);
                else
                    assert_memory_equal(copy[k], part[k], bytes[k]), free(copy[k]);
            }
        }
    }
    bed_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_row_counts),
        cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_repeats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
