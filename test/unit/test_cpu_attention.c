/* attention on the CPU against torch.nn.MultiheadAttention's formulas in double, for every instruction set that runs here. */
#include "cpu_kernel.h"

typedef struct reference {
    double *out, *d_in, *grad[4];
} reference;

/* y (m, n) = x (m, k) w' + bias */
static double *project(const double *x, const float *w, const float *bias, int64_t m, int64_t n, int64_t k)
{
    double *y = doubles(m * n);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = (double)bias[j];
            for (int64_t l = 0; l < k; l++) sum += x[i * k + l] * (double)w[j * k + l];
            y[i * n + j] = sum;
        }
    }
    return y;
}

/* dx = dy w, dw = dy' x, db = column sums */
static double *project_back(const double *dy, const double *x, const float *w, double *dw, double *db, int64_t m, int64_t n,
                            int64_t k)
{
    double *dx = doubles(m * k);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            const double g = dy[i * n + j];
            db[j] += g;
            for (int64_t l = 0; l < k; l++) {
                dx[i * k + l] += g * (double)w[j * k + l];
                dw[j * k + l] += g * x[i * k + l];
            }
        }
    }
    return dx;
}

static reference reference_of(const bed *b, int64_t rows)
{
    const dp_node *n = b->chain.node[0];
    const int64_t t = n->shape[0], d = n->shape[1], heads = (int64_t)n->opt[DP_ATTENTION_HEADS], w = d / heads, m = rows * t;
    const int causal = n->opt[DP_ATTENTION_CAUSAL] != 0;
    const double scale = 1 / sqrt((double)w);
    float *drawn = floats(m * d);
    double *x = doubles(m * d), *dy = doubles(m * d), *result = doubles(m * d), *d_qkv = doubles(m * 3 * d),
           *p = doubles(t * t);
    reference r = {NULL, NULL, {doubles(3 * d * d), doubles(3 * d), doubles(d * d), doubles(d)}};
    fill(drawn, m * d, 3);
    for (int64_t i = 0; i < m * d; i++) x[i] = (double)b->in[i], dy[i] = (double)drawn[i];
    double *qkv = project(x, b->param[0], b->param[1], m, 3 * d, d);
    /* Two passes over the heads: the result must be whole before its gradient can come back through the output's projection. */
    double *d_result = NULL;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t row = 0; row < rows; row++) {
            for (int64_t h = 0; h < heads; h++) {
                const double *q = qkv + row * t * 3 * d + h * w, *k = q + d, *v = k + d;
                double *dq = d_qkv + row * t * 3 * d + h * w, *dk = dq + d, *dv = dk + d;
                for (int64_t i = 0; i < t; i++) {
                    const int64_t keys = causal ? i + 1 : t;
                    const double *g = d_result ? d_result + (row * t + i) * d + h * w : NULL;
                    double top = -INFINITY, sum = 0, mean = 0;
                    for (int64_t j = 0; j < keys; j++) {
                        double s = 0;
                        for (int64_t l = 0; l < w; l++) s += q[i * 3 * d + l] * k[j * 3 * d + l];
                        p[j] = s * scale;
                        if (p[j] > top) top = p[j];
                    }
                    for (int64_t j = 0; j < keys; j++) sum += p[j] = exp(p[j] - top);
                    for (int64_t j = 0; j < keys; j++) {
                        p[j] /= sum;
                        for (int64_t l = 0; l < w; l++) {
                            if (!pass)
                                result[(row * t + i) * d + h * w + l] += p[j] * v[j * 3 * d + l];
                            else
                                mean += p[j] * g[l] * v[j * 3 * d + l];
                        }
                    }
                    for (int64_t j = 0; j < keys && pass; j++) {
                        double dp = 0;
                        for (int64_t l = 0; l < w; l++) dp += g[l] * v[j * 3 * d + l];
                        const double ds = p[j] * (dp - mean) * scale;
                        for (int64_t l = 0; l < w; l++) {
                            dv[j * 3 * d + l] += p[j] * g[l];
                            dq[i * 3 * d + l] += ds * k[j * 3 * d + l];
                            dk[j * 3 * d + l] += ds * q[i * 3 * d + l];
                        }
                    }
                }
            }
        }
        if (pass) break;
        r.out = project(result, b->param[2], b->param[3], m, d, d);
        d_result = project_back(dy, result, b->param[2], r.grad[2], r.grad[3], m, d, d);
    }
    r.d_in = project_back(d_qkv, x, b->param[0], r.grad[0], r.grad[1], m, 3 * d, d);
    free(drawn), free(x), free(dy), free(result), free(d_qkv), free(p), free(qkv), free(d_result);
    return r;
}

static void reference_free(reference *r)
{
    free(r->out), free(r->d_in);
    for (int i = 0; i < 4; i++) free(r->grad[i]);
}

/* Several sums in a row, and exp: a little above one product's 2e-6. The keys' bias has no gradient but rounding, since a softmax
 * does not change when all its inputs move together, so the bias is measured as a whole. */
static const double tolerance = 5e-6;

static void check(const bed *b, int64_t rows)
{
    static const char *const name[] = {"in_proj_weight's gradient", "in_proj_bias's gradient", "out_proj.weight's gradient",
                                       "out_proj.bias's gradient"};
    bed_forward(b, rows);
    bed_backward(b, rows, 0, 1);
    reference r = reference_of(b, rows);
    assert_near(b, "output", b->out, r.out, rows * b->out_node->width, tolerance);
    assert_near(b, "input's gradient", b->d_in, r.d_in, rows * b->in_node->width, tolerance);
    for (int i = 0; i < 4; i++) assert_near(b, name[i], b->grad[i], r.grad[i], b->count[i], tolerance);
    reference_free(&r);
}

static const struct {
    const char *input, *spec;
    int64_t capacity, fewer;
} shapes[] = {
    {"128x64", "attention heads=2 causal=1", 2, 1}, /* the benchmark's head */
    {"48x32", "attention heads=2", 3, 1},
    {"37x40", "attention heads=2 causal=1", 2, 1}, /* neither whole tiles nor whole vectors */
    {"37x40", "attention heads=2", 2, 1},
    {"5x12", "attention heads=3 causal=1", 4, 3},
    {"1x8", "attention heads=1", 3, 2},
    {"9x3", "attention heads=3", 2, 1},
    {"70x96", "attention heads=1 causal=1", 1, 1},
};

static void test_shapes(void **state)
{
    (void)state;
    const dp_vec *vec;
    for (int isa = 0; (vec = dp_vec_at(isa)) != NULL; isa++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            bed b;
            bed_open(&b, shapes[i].input, shapes[i].spec, shapes[i].capacity);
            b.device->vec = vec;
            bed_prepare(&b, shapes[i].capacity);
            bed_prepare(&b, shapes[i].fewer);
            check(&b, shapes[i].capacity);
            check(&b, shapes[i].fewer);
            check(&b, shapes[i].capacity);
            bed_close(&b);
        }
    }
}

/* Scores of a thousand: without subtracting the largest, exp would give infinity. */
static void test_large_scores(void **state)
{
    (void)state;
    bed b;
    bed_open(&b, "20x16", "attention heads=2 causal=1", 1);
    bed_prepare(&b, 1);
    for (int64_t i = 0; i < b.count[0]; i++) b.param[0][i] *= 20;
    bed_forward(&b, 1);
    bed_backward(&b, 1, 0, 1);
    reference r = reference_of(&b, 1);
    /* A score of 1,000 carries 6e-5 of rounding, which exp turns into relative error. */
    assert_near(&b, "output", b.out, r.out, b.out_node->width, 2e-4);
    assert_near(&b, "output's weight gradient", b.grad[2], r.grad[2], b.count[2], 2e-4);
    for (int64_t i = 0; i < b.in_node->width; i++) assert_true(isfinite(b.d_in[i]));
    reference_free(&r);
    bed_close(&b);
}

/* A causal position does not change when a later one does, by bytes. */
static void test_causal(void **state)
{
    (void)state;
    bed b;
    bed_open(&b, "40x32", "attention heads=4 causal=1", 2);
    bed_prepare(&b, 2);
    bed_forward(&b, 2);
    float *before = floats(40 * 32);
    memcpy(before, b.out, 40 * 32 * sizeof *before);
    for (int64_t i = 23 * 32; i < 40 * 32; i++) b.in[i] += 1;
    bed_forward(&b, 2);
    assert_memory_equal(before, b.out, 23 * 32 * sizeof *before);
    assert_memory_not_equal(before + 23 * 32, b.out + 23 * 32, 32 * sizeof *before);
    free(before);
    bed_close(&b);
}

static void test_frozen(void **state)
{
    (void)state;
    bed b;
    bed_open(&b, "10x16", "attention heads=2", 2);
    bed_prepare(&b, 2);
    bed_forward(&b, 2);
    reference r = reference_of(&b, 2);
    for (unsigned frozen = 0; frozen < 16; frozen++) {
        for (int d_in = 0; d_in < 2; d_in++) {
            for (int i = 0; i < 4; i++) forget(b.grad[i], b.count[i]);
            forget(b.d_in, 2 * b.in_node->width);
            bed_backward(&b, 2, frozen, d_in);
            for (int i = 0; i < 4; i++) {
                if (frozen & 1u << i)
                    assert_untouched(b.grad[i], b.count[i]);
                else
                    assert_near(&b, "gradient", b.grad[i], r.grad[i], b.count[i], tolerance);
            }
            if (!d_in)
                assert_untouched(b.d_in, 2 * b.in_node->width);
            else
                assert_near(&b, "input's gradient", b.d_in, r.d_in, 2 * b.in_node->width, tolerance);
        }
    }
    reference_free(&r);
    bed_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_large_scores),
        cmocka_unit_test(test_causal),
        cmocka_unit_test(test_frozen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
