/* The CUDA backend's flat functions, on simulated GPUs, against the CPU backend or a formula: sums, optimizer, loss, input rows,
 * statistics. Where the order of additions is the CPU's, bytes must be equal. */
#include "cuda_rig.h"

/* -- flat arrays -- */

enum { COUNT = 1040 };
/* The halving tree as it is written: 0 when nothing is there. */
static int tree(const float x[64][COUNT], unsigned long long missing, int first, int n, float *out)
{
    float left[COUNT], right[COUNT];
    if (n == 1) {
        memcpy(out, x[first], sizeof left);
        return !(missing >> first & 1);
    }
    const int half = (n + 1) / 2;
    const int l = tree(x, missing, first, half, left), r = tree(x, missing, first + half, n - half, right);
    for (int i = 0; i < COUNT; i++) out[i] = l && r ? left[i] + right[i] : l ? left[i] : right[i];
    return l || r;
}

static void sum_case(rig r[SIDES], int n, unsigned long long missing, int dst_is)
{
    float *result[SIDES], wanted[COUNT];
    static float all[64][COUNT];
    for (int side = 0; side < SIDES; side++) {
        const float *src[64];
        float *dst = NULL;
        for (int i = 0; i < n; i++) {
            float *x = floats(COUNT, 7u + (uint32_t)i);
            memcpy(all[i], x, sizeof all[i]);
            src[i] = missing >> i & 1 ? NULL : put(&r[side], x, COUNT * 4);
            if (i == dst_is) dst = (float *)(uintptr_t)src[i];
            free(x);
        }
        if (!dst) dst = put(&r[side], NULL, COUNT * 4);
        assert_int_equal(r[side].be->sum(r[side].stream, dst, src, n, COUNT), DP_OK);
        memset(src, 0, sizeof src); /* read at call time */
        result[side] = get(&r[side], dst, COUNT * 4);
    }
    if (!tree(all, missing, 0, n, wanted)) memset(wanted, 0, sizeof wanted);
    assert_memory_equal(result[1], wanted, sizeof wanted);
    assert_memory_equal(result[0], wanted, sizeof wanted);
    rigs_clear(r);
}

static void test_sum(void **state)
{
    (void)state;
    rig r[SIDES];
    rigs_open(r);
    for (int n = 1; n <= 9; n++) sum_case(r, n, 0, -1);
    sum_case(r, 3, 0, 0);
    sum_case(r, 4, 0, 3);
    sum_case(r, 8, 0x2C, 1);
    sum_case(r, 5, 0x1F, -1); /* nothing: zeros */
    sum_case(r, 6, 0x1F, 5);
    sum_case(r, 64, 0, 63);
    sum_case(r, 64, 0x8001000300050000ull, -1);
    const float *src[65] = {0};
    assert_int_equal(r[1].be->sum(r[1].stream, NULL, src, 0, 16), DP_EARGUMENT);
    assert_int_equal(r[1].be->sum(r[1].stream, NULL, src, 65, 16), DP_EARGUMENT);
    rigs_close(r);
}

static void norm_case(rig r[SIDES], int64_t count, double inv, double clip, int64_t bad, float value, dp_verdict *out)
{
    void *chunks[SIDES];
    dp_verdict verdict[SIDES];
    const size_t n = (size_t)((count + DP_CHUNK - 1) / DP_CHUNK);
    float *x = floats((size_t)count, 3);
    const dp_run run = {.inv_count = inv};
    const dp_optimizer o = {.clip_norm = clip};
    if (bad >= 0) x[bad] = value;
    for (int side = 0; side < SIDES; side++) {
        const dp_verdict start = {.steps = 41};
        rig *s = &r[side];
        const float *dx = put(s, x, (size_t)count * 4);
        const dp_run *drun = put(s, &run, sizeof run);
        double *dc = put(s, NULL, n * 8);
        dp_verdict *dv = put(s, &start, sizeof start);
        assert_int_equal(s->be->sumsq(s->stream, dx, count, dc), DP_OK);
        assert_int_equal(s->be->norm(s->stream, dc, (int64_t)n, drun, &o, dv), DP_OK);
        chunks[side] = get(s, dc, n * 8);
        memcpy(&verdict[side], get(s, dv, sizeof *dv), sizeof *dv);
    }
    if (bad < 0) assert_memory_equal(chunks[0], chunks[1], n * 8);
    if (bad < 0) assert_memory_equal(&verdict[0], &verdict[1], sizeof *verdict);
    *out = verdict[1];
    free(x);
    rigs_clear(r);
}

static void test_norm(void **state)
{
    (void)state;
    rig r[SIDES];
    rigs_open(r);
    dp_verdict v;
    norm_case(r, 16, 1, 0, -1, 0, &v);
    assert_int_equal(v.steps, 42);
    norm_case(r, 4096, 1.0 / 32, 0, -1, 0, &v);
    norm_case(r, 3 * 4096 + 48, 1.0 / 7, 0.5, -1, 0, &v);
    assert_true(v.scale < 1.0 / 7);
    norm_case(r, 40 * 4096 + 16, 0, 1, -1, 0, &v); /* nothing counted */
    assert_int_equal(v.take, 0);
    assert_int_equal(v.steps, 41);
    norm_case(r, 8192, 1, 1, 5000, NAN, &v);
    assert_int_equal(v.finite, 0);
    assert_int_equal(v.take, 0);
    norm_case(r, 8192, 1, 0, 0, -INFINITY, &v);
    assert_int_equal(v.finite, 0);
    norm_case(r, 8192, 1, 0, 1, 3e38f, &v); /* its square is no float */
    assert_int_equal(v.finite, 1);
    rigs_close(r);
}

static void test_checksum(void **state)
{
    (void)state;
    enum { LONG = 2 * DP_CHUNK + 272, CHUNKS = 3 };
    uint64_t wanted[CHUNKS] = {0};
    float *x = floats(LONG, 11);
    rig r;
    rig_open(&r, cuda());
    for (int64_t i = 0; i < LONG; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        wanted[i / DP_CHUNK] += (uint64_t)bits * (uint64_t)(2 * (i % DP_CHUNK) + 1);
    }
    uint64_t *sums = put(&r, NULL, sizeof wanted);
    assert_int_equal(r.be->checksum(r.stream, put(&r, x, LONG * 4), LONG, sums), DP_OK);
    assert_memory_equal(get(&r, sums, sizeof wanted), wanted, sizeof wanted);
    free(x);
    rig_close(&r);
}

/* -- optimizer -- */

typedef struct update_case {
    dp_optimizer o;
    const dp_range *ranges;
    int n_ranges;
    int64_t first, count;
    int skip; /* the second step is not taken */
} update_case;

static void run_update(rig *s, const update_case *u, float *result[3])
{
    const size_t bytes = (size_t)u->count * 4;
    float *p = floats((size_t)u->count, 21), *zero = calloc((size_t)u->count, 4);
    assert_non_null(zero);
    const int states = u->o.kind == DP_SGD ? u->o.momentum != 0 : 2;
    float *dp = put(s, p, bytes), *dm = states > 0 ? put(s, zero, bytes) : NULL, *dv = states > 1 ? put(s, zero, bytes) : NULL;
    for (int step = 1; step <= 3; step++) {
        float *g = floats((size_t)u->count, 100 + (uint32_t)step);
        const dp_run run = {.lr = 0.1 / step, .inv_count = 1};
        const dp_verdict v = {.scale = 0.25, .steps = step, .finite = 1, .take = !(u->skip && step == 2)};
        assert_int_equal(s->be->update(s->stream, &u->o, u->ranges, u->n_ranges, u->first, u->count, dp, put(s, g, bytes), dm,
                                       dv, put(s, &run, sizeof run), put(s, &v, sizeof v)),
                         DP_OK);
        free(g);
    }
    result[0] = get(s, dp, bytes);
    result[1] = dm ? get(s, dm, bytes) : NULL;
    result[2] = dv ? get(s, dv, bytes) : NULL;
    free(p);
    free(zero);
}

static void check_update(rig r[SIDES], const update_case *u)
{
    float *result[SIDES][3];
    for (int side = 0; side < SIDES; side++) run_update(&r[side], u, result[side]);
    for (int k = 0; k < 3; k++)
        if (result[0][k]) assert_memory_equal(result[0][k], result[1][k], (size_t)u->count * 4);
    rigs_clear(r);
}

static void test_update(void **state)
{
    (void)state;
    rig r[SIDES];
    rigs_open(r);
    static const dp_range some[] = {{0, 100, 1}, {112, 5000, 0}, {5120, 3, 1}, {5136, 4000, 1}, {12288, 64, 0}};
    const dp_optimizer rules[] = {
        {.kind = DP_SGD, .weight_decay = 0.01},
        {.kind = DP_SGD, .momentum = 0.9},
        {.kind = DP_SGD, .momentum = 0.9, .nesterov = 1, .weight_decay = 5e-4},
        {.kind = DP_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1},
        {.kind = DP_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1},
        {.kind = DP_ADAMW, .beta1 = 0.8, .beta2 = 0.99, .eps = 0},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        check_update(r, &(update_case){rules[i], some, 5, 0, 16384, 0});
        check_update(r, &(update_case){rules[i], some, 5, 4096, 4096, 1}); /* a slice: ranges begin before and end behind it */
    }
    dp_range many[400];
    for (int i = 0; i < 400; i++) many[i] = (dp_range){32 * i, 1 + i % 30, i % 2}; /* more than one launch holds */
    check_update(r, &(update_case){rules[4], many, 400, 0, 400 * 32, 0});
    check_update(r, &(update_case){rules[0], many, 400, 400 * 32, 4096, 0}); /* all of them end before the slice */
    rigs_close(r);
}

/* -- loss -- */

typedef struct loss_case {
    dp_loss loss;
    int64_t rows;
    dp_dtype type;
    float special; /* not 0: some logits are this */
    int bad;       /* some targets are out of range */
    int gradient;
} loss_case;

static size_t fill_targets(void *out, const loss_case *c, int64_t n)
{
    uint32_t seed = 77;
    for (int64_t i = 0; i < n; i++) {
        int64_t t = (int64_t)((double)(uniform(&seed) + 1) / 2 * (double)c->loss.classes) % c->loss.classes;
        if (c->bad && (i == 5 || i == 3)) t = c->loss.classes + i;
        if (c->loss.ignore_label >= 0 && i % 4 == 1) t = c->loss.ignore_label;
        if (c->type == DP_U8) ((uint8_t *)out)[i] = (uint8_t)t;
        if (c->type == DP_U16) ((uint16_t *)out)[i] = (uint16_t)t;
        if (c->type == DP_I32) ((int32_t *)out)[i] = (int32_t)t;
        if (c->type == DP_I64) ((int64_t *)out)[i] = t;
        if (c->type == DP_F32) ((float *)out)[i] = uniform(&seed);
    }
    return (size_t)n * (c->type == DP_U8 ? 1 : c->type == DP_U16 ? 2 : c->type == DP_I64 ? 8 : 4);
}

static void check_loss(rig r[SIDES], const loss_case *c)
{
    dp_loss_sums sums[SIDES];
    float *grad[SIDES];
    const int mse = c->loss.kind == DP_LOSS_MSE;
    const int64_t n = c->rows * (mse ? 1 : c->loss.groups), all = n * c->loss.classes;
    float *x = floats((size_t)all, 5);
    void *targets = malloc((size_t)all * 8);
    assert_non_null(targets);
    for (int64_t i = 0; i < all; i++) x[i] *= 8;
    if (c->special != 0)
        for (int64_t i = 0; i < all; i += 7) x[i] = c->special;
    const size_t target_bytes = fill_targets(targets, c, mse ? all : n);
    for (int side = 0; side < SIDES; side++) {
        rig *s = &r[side];
        float *d = c->gradient ? put(s, NULL, (size_t)all * 4) : NULL;
        dp_loss_sums *out = put(s, NULL, sizeof *out);
        const float *dx = put(s, x, (size_t)all * 4);
        const void *dt = put(s, targets, target_bytes);
        for (int again = 0; again < 2; again++) { /* the second run finds the ticket as the first did */
            assert_int_equal(s->be->loss(s->stream, &c->loss, c->rows, dx, dt, c->type, d, out), DP_OK);
            dp_loss_sums now;
            memcpy(&now, get(s, out, sizeof *out), sizeof now);
            if (again) assert_memory_equal(&now, &sums[side], sizeof now);
            sums[side] = now;
        }
        grad[side] = d ? get(s, d, (size_t)all * 4) : NULL;
    }
    assert_int_equal(sums[1].targets, sums[0].targets);
    assert_int_equal(sums[1].correct, sums[0].correct);
    assert_int_equal(sums[1].bad, sums[0].bad);
    if (isnan(sums[0].loss))
        assert_true(isnan(sums[1].loss));
    else if (isinf(sums[0].loss))
        assert_true(isinf(sums[1].loss));
    else /* exp in float: 2e-7 of a sum of exponentials, so of the loss */
        assert_true(fabs(sums[0].loss - sums[1].loss) <= 1e-6 * fabs(sums[0].loss) + 1e-7);
    for (int64_t i = 0; grad[0] && i < all; i++) {
        if (isnan(grad[0][i]))
            assert_true(isnan(grad[1][i]));
        else
            assert_true(fabsf(grad[0][i] - grad[1][i]) <= 1e-6f * fabsf(grad[0][i]) + 1e-7f);
    }
    free(x);
    free(targets);
    rigs_clear(r);
}

static void test_loss(void **state)
{
    (void)state;
    rig r[SIDES];
    rigs_open(r);
    const dp_loss ten = {DP_LOSS_CROSS_ENTROPY, 1, 10, 0, INT64_MIN}, smooth = {DP_LOSS_CROSS_ENTROPY, 1, 10, 0.1, INT64_MIN};
    const dp_loss two = {DP_LOSS_CROSS_ENTROPY, 1, 2, 0, INT64_MIN};
    const dp_loss wide = {DP_LOSS_CROSS_ENTROPY, 3, 1000, 0, INT64_MIN}, one = {DP_LOSS_CROSS_ENTROPY, 1, 1, 0, INT64_MIN};
    const dp_loss ignore = {DP_LOSS_CROSS_ENTROPY, 4, 33, 0.2, 7}, square = {DP_LOSS_MSE, 1, 19, 0, INT64_MIN};
    check_loss(r, &(loss_case){ten, 128, DP_U8, 0, 0, 1});
    check_loss(r, &(loss_case){ten, 1, DP_I64, 0, 0, 1});
    check_loss(r, &(loss_case){ten, 37, DP_I32, 0, 1, 1});
    check_loss(r, &(loss_case){smooth, 37, DP_U16, 0, 0, 1});
    check_loss(r,
               &(loss_case){two, getenv("DP_SANITIZER") ? 300 : 8300, DP_I64, 0, 0, 0}); /* evaluation; more than one a warp */
    check_loss(r, &(loss_case){wide, 2, DP_I64, 0, 0, 1});
    check_loss(r, &(loss_case){one, 9, DP_U8, 0, 0, 1});
    check_loss(r, &(loss_case){ignore, 6, DP_I64, 0, 1, 1});
    check_loss(r, &(loss_case){wide, 1, DP_I64, -INFINITY, 0, 1});
    check_loss(r, &(loss_case){wide, 1, DP_I64, NAN, 0, 1});
    check_loss(r, &(loss_case){ten, 3, DP_U8, 1e30f, 0, 1}); /* the sum does not overflow */
    check_loss(r, &(loss_case){square, 11, DP_F32, 0, 0, 1});
    check_loss(r, &(loss_case){square, 900, DP_F32, 0, 0, 0});
    assert_int_equal(r[1].be->loss(r[1].stream, &ten, 1, NULL, NULL, DP_F32, NULL, NULL), DP_EARGUMENT);
    assert_int_equal(r[1].be->loss(r[1].stream, &square, 1, NULL, NULL, DP_U8, NULL, NULL), DP_EARGUMENT);
    rigs_close(r);
}

/* -- input rows -- */

static void check_convert(rig r[SIDES], dp_dtype to, dp_dtype from, dp_layout layout, const int64_t shape[3], int normalize)
{
    enum { ROWS = 3 };
    void *result[SIDES];
    const int64_t n = ROWS * shape[0] * shape[1] * shape[2];
    const size_t size = from == DP_U8 ? 1 : from == DP_U16 ? 2 : from == DP_I64 ? 8 : 4;
    float *raw = floats((size_t)n * 2, 9); /* any bytes; as floats they are small */
    const float mean[4] = {0.5f, 0.25f, 0.125f, 0.4f}, inv[4] = {4, 3.7f, 2, 5};
    const dp_run run = {.rows = ROWS};
    for (int side = 0; side < SIDES; side++) {
        rig *s = &r[side];
        void *out = put(s, NULL, (size_t)n * 4);
        const float *m = normalize ? put(s, mean, sizeof mean) : NULL, *i = normalize ? put(s, inv, sizeof inv) : NULL;
        assert_int_equal(s->be->convert(s->stream, &run, out, to, put(s, raw, (size_t)n * size), from, layout, shape, m, i),
                         DP_OK);
        result[side] = get(s, out, (size_t)n * 4);
    }
    assert_memory_equal(result[0], result[1], (size_t)n * 4);
    free(raw);
    rigs_clear(r);
}

static void test_convert(void **state)
{
    (void)state;
    rig r[SIDES];
    rigs_open(r);
    const int64_t colour[3] = {5, 7, 3}, grey[3] = {28, 28, 1}, vector[3] = {1, 1, 50}, tokens[3] = {1, 1, 40};
    for (int normalize = 0; normalize < 2; normalize++) {
        check_convert(r, DP_F32, DP_U8, DP_HWC, colour, normalize);
        check_convert(r, DP_F32, DP_U8, DP_CHW, colour, normalize);
        check_convert(r, DP_F32, DP_F32, DP_CHW, colour, normalize);
        check_convert(r, DP_F32, DP_F32, DP_HWC, colour, normalize);
        check_convert(r, DP_F32, DP_U8, DP_CHW, grey, normalize);
    }
    check_convert(r, DP_F32, DP_F32, DP_HWC, vector, 0);
    check_convert(r, DP_I32, DP_U8, DP_HWC, tokens, 0);
    check_convert(r, DP_I32, DP_U16, DP_HWC, tokens, 0);
    check_convert(r, DP_I32, DP_I32, DP_HWC, tokens, 0);
    check_convert(r, DP_I32, DP_I64, DP_HWC, tokens, 0);
    const dp_run run = {.rows = 1};
    assert_int_equal(r[1].be->convert(r[1].stream, &run, NULL, DP_F32, NULL, DP_I64, DP_HWC, vector, NULL, NULL), DP_EARGUMENT);
    assert_int_equal(r[1].be->convert(r[1].stream, &run, NULL, DP_I32, NULL, DP_F32, DP_HWC, tokens, NULL, NULL), DP_EARGUMENT);
    rigs_close(r);
}

/* -- statistics of several leaves, against the two-pass formula over all values -- */

enum { CHANNELS = 5, LEAVES = 4, PIXELS = 3 };
static const int64_t leaf_rows[LEAVES] = {4, 1, 0, 7};

/* part[l] = (mean, biased variance) of leaf l's values; whole = of all. Returns how many values a channel has. */
static int64_t statistics(float part[LEAVES][2 * CHANNELS], double whole[2 * CHANNELS])
{
    uint32_t seed = 31;
    int64_t all = 0;
    double total[CHANNELS] = {0}, square[CHANNELS] = {0};
    for (int l = 0; l < LEAVES; l++) {
        const int64_t n = leaf_rows[l] * PIXELS;
        for (int c = 0; c < CHANNELS; c++) {
            double sum = 0, sq = 0;
            for (int64_t i = 0; i < n; i++) {
                const double v = 3 * c + (double)uniform(&seed) * (1 + l);
                sum += v, sq += v * v;
            }
            part[l][c] = n ? (float)(sum / (double)n) : NAN; /* no rows: not to be read */
            part[l][CHANNELS + c] = n ? (float)(sq / (double)n - sum / (double)n * sum / (double)n) : NAN;
            total[c] += sum, square[c] += sq;
        }
        all += n;
    }
    for (int c = 0; c < CHANNELS; c++) {
        whole[c] = total[c] / (double)all;
        whole[CHANNELS + c] = square[c] / (double)all - whole[c] * whole[c];
    }
    return all;
}

static void test_pool(void **state)
{
    (void)state;
    float part[LEAVES][2 * CHANNELS];
    double whole[2 * CHANNELS];
    const float *at[LEAVES], *got[SIDES];
    int64_t rows[LEAVES];
    rig r[SIDES];
    statistics(part, whole);
    rigs_open(r);
    for (int side = 0; side < SIDES; side++) {
        rig *s = &r[side];
        for (int l = 0; l < LEAVES; l++) at[l] = put(s, part[l], sizeof part[l]);
        memcpy(rows, leaf_rows, sizeof rows);
        float *out = put(s, NULL, sizeof part[0]);
        assert_int_equal(s->be->pool(s->stream, out, at, rows, LEAVES, CHANNELS), DP_OK);
        memset(at, 0, sizeof at), memset(rows, 0, sizeof rows); /* read at call time */
        got[side] = get(s, out, sizeof part[0]);
    }
    assert_memory_equal(got[0], got[1], sizeof part[0]);
    for (int i = 0; i < 2 * CHANNELS; i++) assert_true(fabs((double)got[1][i] - whole[i]) <= 1e-5 * (1 + fabs(whole[i])));
    assert_int_equal(r[1].be->pool(r[1].stream, NULL, at, rows, 0, CHANNELS), DP_EARGUMENT);
    rigs_close(r);
}

static void test_merge(void **state)
{
    (void)state;
    enum { LAYERS = 70, STRIDE = 2 * CHANNELS + 1, FLAT = LAYERS * STRIDE + 1 }; /* more layers than one launch holds */
    dp_bn_layer layer[LAYERS];
    float part[LEAVES][2 * CHANNELS], buffer[FLAT];
    double whole[2 * CHANNELS];
    const float *at[LEAVES], *got[SIDES];
    rig r[SIDES];
    const double n = (double)statistics(part, whole);
    for (int i = 0; i < FLAT; i++) buffer[i] = (float)(i % 11);
    for (int i = 0; i < LAYERS; i++) {
        const int64_t o = (int64_t)i * STRIDE;
        layer[i] = (dp_bn_layer){o, o + CHANNELS, o + 2 * CHANNELS, CHANNELS, PIXELS, i % 2 ? 0.1 : 0.3};
    }
    rigs_open(r);
    for (int side = 0; side < SIDES; side++) {
        rig *s = &r[side];
        for (int l = 0; l < LEAVES; l++) {
            float *flat = calloc(FLAT, sizeof(float));
            assert_non_null(flat);
            for (int i = 0; i < LAYERS; i++) memcpy(flat + i * STRIDE, part[l], sizeof part[l]);
            at[l] = put(s, flat, FLAT * sizeof(float));
            free(flat);
        }
        float *shadow = put(s, NULL, sizeof buffer);
        const float *old = put(s, buffer, sizeof buffer);
        assert_int_equal(s->be->merge(s->stream, shadow, old, layer, LAYERS, at, leaf_rows, LEAVES), DP_OK);
        got[side] = get(s, shadow, sizeof buffer);
    }
    assert_memory_equal(got[0], got[1], sizeof buffer);
    for (int i = 0; i < LAYERS; i++) {
        const double m = layer[i].momentum;
        for (int c = 0; c < CHANNELS; c++) {
            const int64_t mean = layer[i].mean + c, var = layer[i].var + c;
            const double a = (1 - m) * (double)buffer[mean] + m * whole[c];
            const double b = (1 - m) * (double)buffer[var] + m * whole[CHANNELS + c] * n / (n - 1);
            assert_true(fabs((double)got[1][mean] - a) <= 1e-5 * (1 + fabs(a)));
            assert_true(fabs((double)got[1][var] - b) <= 1e-5 * (1 + fabs(b)));
        }
        assert_true(got[1][layer[i].tracked] == buffer[layer[i].tracked] + 1);
    }
    assert_int_equal(((const unsigned char *)&got[1][FLAT - 1])[0], 0x5A); /* not theirs */
    rigs_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sum),    cmocka_unit_test(test_norm),  cmocka_unit_test(test_checksum),
        cmocka_unit_test(test_update), cmocka_unit_test(test_loss),  cmocka_unit_test(test_convert),
        cmocka_unit_test(test_pool),   cmocka_unit_test(test_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
