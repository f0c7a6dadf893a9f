/* CPU kernels of activations, pools, shapes, dropout, embedding, softmax against double references. */
#include "cpu_rig.h"
#include "../../dp/base/philox.h"

/* ---- activations and add ---- */

static double activation(const dp_node *n, double x)
{
    const double c = 0.7978845608028654; /* sqrt(2 / pi) */
    switch (n->op->kind) {
    case DP_OP_RELU: return x > 0 ? x : 0;
    case DP_OP_SIGMOID: return 1 / (1 + exp(-x));
    case DP_OP_TANH: return tanh(x);
    default:
        return n->opt[DP_GELU_TANH] != 0 ? 0.5 * x * (1 + tanh(c * (x + 0.044715 * x * x * x)))
                                         : 0.5 * x * erfc(-x * 0.7071067811865476);
    }
}
static void ref_activation(const rig *r, double *const *in, double *const *param, double *out)
{
    (void)param;
    for (int64_t i = 0; i < r->rows * r->out_width; i++) out[i] = activation(r->chain.node[0], in[0][i]);
}
static void check_activation(const char *name, dp_op_kind kind, double option, float scale)
{
    rig r;
    const int64_t shape[] = {61};
    rig_start(&r, name, &dp_cpu_pointwise, ref_activation);
    rig_input(&r, 1, shape);
    rig_op(&r, kind, 1, shape)->opt[DP_GELU_TANH] = option;
    rig_fill(&r);
    for (int64_t i = 0; i < r.rows * r.in_width[0]; i++) r.in[0][i] *= scale;
    rig_check(&r);
    rig_end(&r);
}
static void activations(void **state)
{
    (void)state;
    check_activation("relu", DP_OP_RELU, 0, 1);
    check_activation("sigmoid", DP_OP_SIGMOID, 0, 8);
    check_activation("tanh", DP_OP_TANH, 0, 0.7f);
    check_activation("tanh, wide", DP_OP_TANH, 0, 12);
    check_activation("gelu", DP_OP_GELU, 0, 2);
    check_activation("gelu, wide", DP_OP_GELU, 0, 12);
    check_activation("gelu tanh", DP_OP_GELU, 1, 2);
    check_activation("gelu tanh, wide", DP_OP_GELU, 1, 12);
}

/* exp, tanh and gelu near their limits: no overflow to NaN, and tanh to a few units in the last place near 0 */
static void extremes(void **state)
{
    const float x[] = {-INFINITY, -1e4f, -100, -88, -1e-6f, 0, 1e-6f, 88, 100, 1e4f, INFINITY};
    enum { N = 11 };
    float y[N];
    (void)state;
    for (int i = 0; dp_vec_at(i); i++) {
        const dp_vec_pointwise *v = dp_vec_at(i)->pointwise;
        v->sigmoid(y, x, N);
        assert_true(y[0] == 0 && y[1] == 0 && y[5] == 0.5f && y[9] == 1 && y[10] == 1);
        v->tanh(y, x, N);
        assert_true(y[0] == -1 && y[1] == -1 && y[4] == -1e-6f && y[5] == 0 && y[6] == 1e-6f && y[10] == 1);
        v->gelu_erf(y, x + 1, N - 2);
        assert_true(y[0] == 0 && y[1] == 0 && y[4] == 0 && y[7] == 100 && y[8] == 1e4f);
        v->gelu_tanh(y, x + 1, N - 2);
        assert_true(y[0] == 0 && y[1] == 0 && y[4] == 0 && y[7] == 100 && y[8] == 1e4f);
        v->relu(y, (const float[]){NAN, -1, 2}, 3);
        assert_true(isnan(y[0]) && y[1] == 0 && y[2] == 2);
    }
}

/* Relative error of the exponential over its range */
static void exponential(void **state)
{
    enum { N = 1000 };
    float x[N], y[N];
    (void)state;
    for (int i = 0; i < N; i++) x[i] = -86.5f + 0.175f * (float)i;
    for (int i = 0; dp_vec_at(i); i++) {
        dp_vec_at(i)->softmax->exp_sum(y, x, 0, N);
        for (int k = 0; k < N; k++) {
            double want = exp((double)x[k]);
            if (x[k] > 88.7f)
                assert_true(isinf(y[k]));
            else
                assert_true(fabs((double)y[k] - want) <= 2e-7 * want);
        }
    }
}

static void ref_add(const rig *r, double *const *in, double *const *param, double *out)
{
    int relu = r->chain.n == 2;
    (void)param;
    for (int64_t i = 0; i < r->rows * r->out_width; i++) {
        out[i] = 0;
        for (int k = 0; k < r->n_in; k++) out[i] += in[k][i];
        if (relu && out[i] < 0) out[i] = 0;
    }
}
static void add(void **state)
{
    const int64_t shape[] = {37};
    (void)state;
    for (int n = 2; n <= 4; n++)
        for (int relu = 0; relu < 2; relu++) {
            rig r;
            rig_start(&r, "add", &dp_cpu_pointwise, ref_add);
            for (int k = 0; k < n; k++) rig_input(&r, 1, shape);
            rig_op(&r, DP_OP_ADD, 1, shape);
            if (relu) rig_op(&r, DP_OP_RELU, 1, shape);
            rig_fill(&r);
            rig_check(&r);
            rig_end(&r);
        }
}

/* ---- pools ---- */

static void ref_pool(const rig *r, double *const *in, double *const *param, double *out)
{
    const dp_node *n = r->chain.node[0], *from = &r->node[0];
    int64_t h = from->shape[0], w = from->shape[1], c = from->shape[2], oh = n->shape[0], ow = n->shape[1];
    int64_t kernel = (int64_t)n->opt[DP_POOL_KERNEL], stride = (int64_t)n->opt[DP_POOL_STRIDE],
            pad = (int64_t)n->opt[DP_POOL_PAD];
    int max = n->op->kind == DP_OP_MAXPOOL2D;
    (void)param;
    for (int64_t i = 0; i < r->rows * r->out_width; i++) {
        int64_t row = i / r->out_width, oy = i / (ow * c) % oh, ox = i / c % ow, ch = i % c;
        double best = -INFINITY, sum = 0;
        for (int64_t y = oy * stride - pad; y < oy * stride - pad + kernel; y++)
            for (int64_t x = ox * stride - pad; x < ox * stride - pad + kernel; x++) {
                if (y < 0 || y >= h || x < 0 || x >= w) continue;
                double v = in[0][((row * h + y) * w + x) * c + ch];
                best = fmax(best, v);
                sum += v;
            }
        out[i] = max ? best : sum / (double)(kernel * kernel);
        if (r->chain.n == 2) { /* dropout */
            int64_t e = i % r->out_width;
            dp_u32x4 d = dp_draw(r->run.seed, r->chain.node[1]->key, r->ids[row], r->run.epoch, (uint32_t)(e / 4));
            double p = r->chain.node[1]->opt[DP_DROPOUT_P];
            out[i] = (double)dp_uniform(d.v[e % 4]) >= p ? out[i] / (1 - p) : 0;
        }
    }
}
static void check_pool(dp_op_kind kind, int64_t h, int64_t w, int64_t c, int64_t kernel, int64_t stride, int64_t pad, int drop)
{
    rig r;
    char name[96];
    const int64_t in[] = {h, w, c}, out[] = {(h + 2 * pad - kernel) / stride + 1, (w + 2 * pad - kernel) / stride + 1, c};
    snprintf(name, sizeof name, "pool %d: %dx%dx%d kernel %d stride %d pad %d", kind, (int)h, (int)w, (int)c, (int)kernel,
             (int)stride, (int)pad);
    rig_start(&r, name, kind == DP_OP_MAXPOOL2D ? &dp_cpu_maxpool2d : &dp_cpu_avgpool2d, ref_pool);
    rig_input(&r, 3, in);
    dp_node *n = rig_op(&r, kind, 3, out);
    n->opt[DP_POOL_KERNEL] = (double)kernel;
    n->opt[DP_POOL_STRIDE] = (double)stride;
    n->opt[DP_POOL_PAD] = (double)pad;
    if (drop) rig_op(&r, DP_OP_DROPOUT, 3, out)->opt[DP_DROPOUT_P] = 0.25;
    rig_fill(&r);
    rig_check(&r);
    rig_end(&r);
}
static void pools(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        dp_op_kind kind = k ? DP_OP_AVGPOOL2D : DP_OP_MAXPOOL2D;
        check_pool(kind, 4, 6, 6, 2, 2, 0, 0);  /* tiles; fewer channels than lanes */
        check_pool(kind, 5, 5, 17, 2, 2, 0, 0); /* a row and a column left over */
        check_pool(kind, 6, 6, 16, 3, 3, 0, 0);
        check_pool(kind, 6, 5, 5, 3, 2, 1, 0); /* overlapping, padded */
        check_pool(kind, 4, 4, 3, 3, 1, 1, 0);
        check_pool(kind, 7, 7, 2, 2, 3, 0, 0); /* gaps between windows */
    }
    check_pool(DP_OP_MAXPOOL2D, 18, 17, 2, 17, 1, 0, 0); /* place does not fit a byte */
    check_pool(DP_OP_MAXPOOL2D, 8, 8, 6, 2, 2, 0, 1);
    check_pool(DP_OP_MAXPOOL2D, 5, 7, 20, 3, 2, 1, 1);
}

/* The first of equal values wins, NaN wins, padding never */
static void maxpool_ties(void **state)
{
    const dp_pool p = {.h = 2, .w = 2, .c = 1, .oh = 1, .ow = 1, .kernel = 2, .stride = 2};
    const dp_pool padded = {.h = 2, .w = 2, .c = 1, .oh = 2, .ow = 2, .kernel = 2, .stride = 2, .pad = 1};
    float y[4];
    uint8_t mark[4];
    (void)state;
    for (int i = 0; dp_vec_at(i); i++) {
        const dp_vec_pool *v = dp_vec_at(i)->pool;
        v->max(&p, y, (const float[]){1, 3, 3, 2}, mark);
        assert_true(y[0] == 3 && mark[0] == 1);
        v->max(&p, y, (const float[]){1, NAN, 3, 2}, mark);
        assert_true(isnan(y[0]) && mark[0] == 1);
        v->max(&p, y, (const float[]){-INFINITY, -INFINITY, -INFINITY, -INFINITY}, mark);
        assert_true(y[0] == -INFINITY && mark[0] == 0);
        v->max(&padded, y, (const float[]){-1, -2, -3, -4}, mark);
        assert_true(y[0] == -1 && y[1] == -2 && y[2] == -3 && y[3] == -4 && mark[0] == 3 && mark[3] == 0);
    }
}

static void ref_global(const rig *r, double *const *in, double *const *param, double *out)
{
    int64_t c = r->out_width, pixels = r->in_width[0] / c;
    (void)param;
    for (int64_t i = 0; i < r->rows * c; i++) {
        out[i] = 0;
        for (int64_t p = 0; p < pixels; p++) out[i] += in[0][(i / c * pixels + p) * c + i % c] / (double)pixels;
    }
}
static void globalavgpool(void **state)
{
    rig r;
    (void)state;
    rig_start(&r, "globalavgpool", &dp_cpu_globalavgpool, ref_global);
    rig_input(&r, 3, (const int64_t[]){3, 5, 19});
    rig_op(&r, DP_OP_GLOBALAVGPOOL, 3, (const int64_t[]){1, 1, 19});
    rig_fill(&r);
    rig_check(&r);
    rig_end(&r);
}

/* ---- shapes ---- */

static void ref_flatten(const rig *r, double *const *in, double *const *param, double *out)
{
    const dp_node *from = &r->node[0];
    int64_t c = from->shape[2], pixels = from->width / c;
    int file = r->chain.node[0]->to_file_order;
    (void)param;
    for (int64_t i = 0; i < r->rows * from->width; i++) {
        int64_t row = i / from->width, e = i % from->width;
        out[i] = file ? in[0][row * from->width + e % pixels * c + e / pixels] : in[0][i];
    }
}
static void flatten(void **state)
{
    (void)state;
    for (int file = 0; file < 2; file++) {
        rig r;
        rig_start(&r, "flatten", &dp_cpu_flatten, ref_flatten);
        rig_input(&r, 3, (const int64_t[]){5, 4, 18});
        rig_op(&r, DP_OP_FLATTEN, 1, (const int64_t[]){360})->to_file_order = file;
        rig_fill(&r);
        rig_check(&r);
        rig_end(&r);
    }
}

static void ref_concat(const rig *r, double *const *in, double *const *param, double *out)
{
    int64_t positions = 6;
    (void)param;
    for (int64_t i = 0; i < r->rows * positions; i++)
        for (int k = 0; k < r->n_in; k++) {
            int64_t c = r->in_width[k] / positions;
            for (int64_t j = 0; j < c; j++) *out++ = in[k][i * c + j];
        }
}
static void concat(void **state)
{
    rig r;
    (void)state;
    rig_start(&r, "concat", &dp_cpu_concat, ref_concat);
    rig_input(&r, 3, (const int64_t[]){2, 3, 5});
    rig_input(&r, 3, (const int64_t[]){2, 3, 1});
    rig_input(&r, 3, (const int64_t[]){2, 3, 16});
    rig_op(&r, DP_OP_CONCAT, 3, (const int64_t[]){2, 3, 22});
    rig_fill(&r);
    rig_check(&r);
    rig_end(&r);
}

/* ---- dropout ---- */

static void ref_dropout(const rig *r, double *const *in, double *const *param, double *out)
{
    const dp_node *n = r->chain.node[0];
    double p = n->opt[DP_DROPOUT_P];
    (void)param;
    for (int64_t i = 0; i < r->rows * r->out_width; i++) {
        int64_t e = i % r->out_width;
        dp_u32x4 d = dp_draw(r->run.seed, n->key, r->ids[i / r->out_width], r->run.epoch, (uint32_t)(e / 4));
        int kept = (double)dp_uniform(d.v[e % 4]) >= p;
        out[i] = !r->run.train ? in[0][i] : kept ? in[0][i] / (1 - p) : 0;
    }
}
static void dropout(void **state)
{
    const double p[] = {0, 0.1, 0.5, 1};
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int train = 0; train < 2; train++) {
            rig r;
            rig_start(&r, "dropout", &dp_cpu_dropout, ref_dropout);
            rig_input(&r, 1, (const int64_t[]){203});
            rig_op(&r, DP_OP_DROPOUT, 1, (const int64_t[]){203})->opt[DP_DROPOUT_P] = p[i];
            rig_fill(&r);
            r.run.train = train;
            rig_check(&r);
            rig_end(&r);
        }
}

/* ---- embedding, position, softmax ---- */

enum { TOKENS = 7, VOCAB = 5, DIM = 19 };
static void ref_embedding(const rig *r, double *const *in, double *const *param, double *out)
{
    (void)in;
    for (int64_t i = 0; i < r->rows * TOKENS * DIM; i++) {
        int32_t token;
        memcpy(&token, &r->in[0][i / DIM], sizeof token);
        out[i] = param[0][token * DIM + i % DIM];
    }
}
static void embedding(void **state)
{
    rig r;
    (void)state;
    rig_start(&r, "embedding", &dp_cpu_embedding, ref_embedding);
    rig_input(&r, 1, (const int64_t[]){TOKENS});
    rig_op(&r, DP_OP_EMBEDDING, 2, (const int64_t[]){TOKENS, DIM})->opt[DP_EMBEDDING_VOCAB] = VOCAB;
    rig_param(&r, VOCAB * DIM, 0);
    r.no_input_gradient = 1;
    rig_fill(&r);
    for (int32_t i = 0; i < r.rows * TOKENS; i++) {
        int32_t token = i * i % (VOCAB - 1); /* the last is never used: its gradient must come out as zero */
        memcpy(&r.in[0][i], &token, sizeof token);
    }
    rig_check(&r);

    /* a token outside the table is refused */
    dp_be_device device = {.vec = dp_vec_select()};
    dp_need need = {0};
    void *kernel;
    const int32_t bad[][2] = {{VOCAB, DP_EDATA}, {-1, DP_EDATA}, {VOCAB - 1, DP_OK}};
    float out[RIG_ROWS * TOKENS * DIM];
    assert_int_equal(dp_cpu_embedding.open(&device, &r.chain, r.rows, &need, &kernel, NULL), DP_OK);
    for (int i = 0; i < 3; i++) {
        memcpy(&r.in[0][4], &bad[i][0], sizeof bad[i][0]);
        const dp_io io = {.in = {r.in[0]}, .out = out, .param = {r.param[0]}};
        assert_int_equal(dp_cpu_embedding.forward(kernel, &r.run, &r.run, &io), bad[i][1]);
    }
    free(kernel);
    rig_end(&r);
}

static void ref_position(const rig *r, double *const *in, double *const *param, double *out)
{
    for (int64_t i = 0; i < r->rows * r->out_width; i++) out[i] = in[0][i] + param[0][i % r->out_width];
}
static void position(void **state)
{
    rig r;
    (void)state;
    rig_start(&r, "position", &dp_cpu_position, ref_position);
    r.rows = 7;
    rig_input(&r, 2, (const int64_t[]){TOKENS, DIM});
    rig_op(&r, DP_OP_POSITION, 2, (const int64_t[]){TOKENS, DIM});
    rig_param(&r, TOKENS * DIM, 0);
    rig_fill(&r);
    rig_check(&r);
    rig_end(&r);
}

static void ref_softmax(const rig *r, double *const *in, double *const *param, double *out)
{
    int64_t n = r->chain.node[0]->shape[1];
    (void)param;
    for (int64_t i = 0; i < r->rows * r->out_width; i += n) {
        double sum = 0;
        for (int64_t j = 0; j < n; j++) sum += exp(in[0][i + j]);
        for (int64_t j = 0; j < n; j++) out[i + j] = exp(in[0][i + j]) / sum;
    }
}
static void softmax(void **state)
{
    (void)state;
    for (int64_t n = 1; n < 40; n += 19) {
        rig r;
        rig_start(&r, "softmax", &dp_cpu_softmax, ref_softmax);
        rig_input(&r, 2, (const int64_t[]){4, n});
        rig_op(&r, DP_OP_SOFTMAX, 2, (const int64_t[]){4, n});
        rig_fill(&r);
        for (int64_t i = 0; i < r.rows * r.in_width[0]; i++) r.in[0][i] *= 5;
        rig_check(&r);
        rig_end(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations),   cmocka_unit_test(extremes),  cmocka_unit_test(exponential),
        cmocka_unit_test(add),           cmocka_unit_test(pools),     cmocka_unit_test(maxpool_ties),
        cmocka_unit_test(globalavgpool), cmocka_unit_test(flatten),   cmocka_unit_test(concat),
        cmocka_unit_test(dropout),       cmocka_unit_test(embedding), cmocka_unit_test(position),
        cmocka_unit_test(softmax),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
