/* batchnorm2d with its followers, and layernorm, against double references. */
#include "cpu_rig.h"

enum { WEIGHT, BIAS, MEAN, VAR, TRACKED };

static int has(const rig *r, dp_op_kind kind)
{
    for (int i = 1; i < r->chain.n; i++)
        if (r->chain.node[i]->op->kind == kind) return 1;
    return 0;
}

/* Mean and biased variance of a channel over rows and pixels. */
static void moments(const double *x, int64_t pixels, int64_t channels, int64_t c, double *mean, double *var)
{
    *mean = *var = 0;
    for (int64_t i = 0; i < pixels; i++) *mean += x[i * channels + c] / (double)pixels;
    for (int64_t i = 0; i < pixels; i++) *var += (x[i * channels + c] - *mean) * (x[i * channels + c] - *mean) / (double)pixels;
}

static void ref_batchnorm(const rig *r, double *const *in, double *const *param, double *out)
{
    int64_t channels = r->node[0].shape[2], pixels = r->rows * r->out_width / channels;
    int add = has(r, DP_OP_ADD), relu = has(r, DP_OP_RELU);
    for (int64_t c = 0; c < channels; c++) {
        double mean = param[MEAN][c], var = param[VAR][c];
        if (r->run.train) moments(in[0], pixels, channels, c, &mean, &var);
        for (int64_t i = c; i < pixels * channels; i += channels) {
            out[i] = (in[0][i] - mean) / sqrt(var + r->chain.node[0]->opt[DP_NORM_EPS]) * param[WEIGHT][c] + param[BIAS][c];
            if (add) out[i] += in[1][i];
            if (relu && out[i] < 0) out[i] = 0;
        }
    }
}

static void start_batchnorm(rig *r, int64_t rows, int64_t h, int64_t w, int64_t c, int add, int relu, float offset)
{
    const int64_t shape[] = {h, w, c};
    rig_start(r,
              add    ? relu ? "batchnorm | add | relu" : "batchnorm | add"
              : relu ? "batchnorm | relu"
                     : "batchnorm",
              &dp_cpu_batchnorm2d, ref_batchnorm);
    r->rows = rows;
    r->tolerance = 5e-6;
    rig_input(r, 3, shape);
    if (add) rig_input(r, 3, shape);
    dp_node *n = rig_op(r, DP_OP_BATCHNORM2D, 3, shape);
    n->opt[DP_NORM_EPS] = 1e-5;
    n->opt[DP_NORM_MOMENTUM] = 0.1;
    for (int t = 0; t < 4; t++) rig_param(r, c, t > 1);
    rig_param(r, 1, 2);
    if (add) rig_op(r, DP_OP_ADD, 3, shape);
    if (relu) rig_op(r, DP_OP_RELU, 3, shape);
    rig_fill(r);
    for (int64_t i = 0; i < rows * r->in_width[0]; i++) r->in[0][i] += offset;
    for (int64_t i = 0; i < c; i++) r->param[VAR][i] = fabsf(r->param[VAR][i]) + 0.1f;
    r->param[TRACKED][0] = 4;
}

static void batchnorm(void **state)
{
    /* channels below, at, and across vector widths; rows that fill wide rows and that do not */
    const int64_t shape[][4] = {{2, 3, 3, 3}, {3, 4, 5, 16}, {2, 2, 2, 64}, {5, 1, 1, 33}, {3, 1, 1, 260}};
    (void)state;
    for (int i = 0; i < 5; i++)
        for (int form = 0; form < 4; form++)
            for (int train = 0; train < 2; train++) {
                rig r;
                start_batchnorm(&r, shape[i][0], shape[i][1], shape[i][2], shape[i][3], form & 1, form >> 1, 0);
                r.run.train = train;
                rig_check(&r);
                rig_end(&r);
            }
}

/* A mean of 300 deviations: one-pass sums about zero would lose all but two digits of the variance. */
static void large_mean(void **state)
{
    rig r;
    (void)state;
    start_batchnorm(&r, 64, 8, 8, 3, 0, 1, 300);
    r.run.stats = DP_STATS_RUNNING;
    double mean, var, *x = rig_double(r.in[0], r.rows * r.in_width[0]);
    for (int i = 0; dp_vec_at(i); i++) {
        rig_result y = rig_once(&r, dp_vec_at(i), RIG_PLAIN);
        for (int64_t c = 0; c < 3; c++) {
            moments(x, 64 * 64, 3, c, &mean, &var);
            double want_mean = 0.9 * (double)r.param[MEAN][c] + 0.1 * mean;
            double want_var = 0.9 * (double)r.param[VAR][c] + 0.1 * var * 4096 / 4095;
            assert_true(fabs((double)y.stats[MEAN][c] - want_mean) < 1e-6 * fabs(want_mean));
            assert_true(fabs((double)y.stats[VAR][c] - want_var) < 1e-6 * want_var);
        }
        assert_true(y.stats[TRACKED][0] == 5);
        rig_result_free(&y);
    }
    free(x);
    rig_end(&r);
}

/* One pixel: variance 0, nothing divides by 0; without DP_STATS_RUNNING the shadow is not touched. */
static void single_pixel(void **state)
{
    rig r;
    (void)state;
    start_batchnorm(&r, 1, 1, 1, 5, 0, 0, 0);
    for (int update = 0; update < 2; update++) {
        r.run.stats = update ? DP_STATS_RUNNING : DP_STATS_NONE;
        rig_result y = rig_once(&r, dp_vec_select(), RIG_PLAIN);
        for (int c = 0; c < 5; c++) {
            assert_true(fabsf(y.out[c] - r.param[BIAS][c]) < 1e-4f); /* x k + h: 316 times the rounding of x */
            assert_true(fabsf(y.d_in[0][c]) == 0 && y.grad[WEIGHT][c] == 0 && y.grad[BIAS][c] == r.d_out[c]);
            if (update)
                assert_true(fabs((double)y.stats[VAR][c] - 0.9 * (double)r.param[VAR][c]) < 1e-7);
            else
                assert_true(y.stats[VAR][c] == 12345.0f && y.stats[TRACKED][0] == 12345.0f);
        }
        rig_result_free(&y);
    }
    rig_end(&r);
}

static void ref_layernorm(const rig *r, double *const *in, double *const *param, double *out)
{
    int64_t n = r->chain.node[0]->shape[r->chain.node[0]->rank - 1];
    for (int64_t i = 0; i < r->rows * r->out_width; i += n) {
        double mean = 0, var = 0;
        for (int64_t j = 0; j < n; j++) mean += in[0][i + j] / (double)n;
        for (int64_t j = 0; j < n; j++) var += (in[0][i + j] - mean) * (in[0][i + j] - mean) / (double)n;
        for (int64_t j = 0; j < n; j++) out[i + j] = (in[0][i + j] - mean) / sqrt(var + 1e-5) * param[0][j] + param[1][j];
    }
}
static void layernorm(void **state)
{
    const int64_t width[] = {3, 16, 37};
    (void)state;
    for (int i = 0; i < 3; i++) {
        rig r;
        const int64_t shape[] = {13, width[i]}; /* 39 rows: more than one block of sums */
        rig_start(&r, "layernorm", &dp_cpu_layernorm, ref_layernorm);
        r.tolerance = 5e-6;
        rig_input(&r, 2, shape);
        rig_op(&r, DP_OP_LAYERNORM, 2, shape)->opt[DP_NORM_EPS] = 1e-5;
        rig_param(&r, width[i], 0);
        rig_param(&r, width[i], 0);
        rig_fill(&r);
        rig_check(&r);
        rig_end(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(batchnorm), cmocka_unit_test(large_mean),
                                       cmocka_unit_test(single_pixel), cmocka_unit_test(layernorm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
