/* Flat arrays on the CPU: the halving tree, sums of squares, the verdict, optimizers against PyTorch, conversion of rows. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../nn/cpu/cpu.h"

static dp_be_device device;
static dp_be_stream stream = {&device};

static float noise(uint32_t i)
{
    i = (i ^ 0x9E3779B9u) * 0x85EBCA6Bu;
    i = (i ^ (i >> 13)) * 0xC2B2AE35u;
    return (float)(i >> 8) / 8388608.0f - 1.0f;
}

/* ---- sum ---- */

static float tree(const float *const *src, int n, int64_t i, int *any) /* by the definition, one element */
{
    if (n == 1) {
        *any = src[0] != NULL;
        return *any ? src[0][i] : 0;
    }
    int left, right;
    float a = tree(src, (n + 1) / 2, i, &left), b = tree(src + (n + 1) / 2, n / 2, i, &right);
    *any = left || right;
    return left && right ? a + b : left ? a : b;
}

static void sum(void **state)
{
    enum { N = 64, COUNT = 1040 };
    static float data[N][COUNT], dst[COUNT], want[COUNT];
    const int sizes[] = {1, 2, 3, 5, 8, 13, 64};
    (void)state;
    for (int i = 0; i < N * COUNT; i++) data[i / COUNT][i % COUNT] = noise((uint32_t)i);
    for (int isa = 0; dp_vec_at(isa); isa++)
        for (int s = 0; s < 7; s++)
            for (int holes = 0; holes < 4; holes++) { /* none; each third; all but the last; all */
                int n = sizes[s], any;
                const float *src[N];
                device.vec = dp_vec_at(isa);
                for (int k = 0; k < n; k++)
                    src[k] = holes == 3 || (holes == 2 && k != n - 1) || (holes == 1 && k % 3 == 1) ? NULL : data[k];
                for (int64_t i = 0; i < COUNT; i++) want[i] = tree(src, n, i, &any);
                assert_int_equal(dp_cpu_sum(&stream, dst, src, n, COUNT), DP_OK);
                assert_memory_equal(dst, want, sizeof want);
                for (int k = 0; k < n; k += 1 + n / 4) { /* into one of the sources */
                    float keep[COUNT];
                    if (!src[k]) continue;
                    memcpy(keep, data[k], sizeof keep);
                    assert_int_equal(dp_cpu_sum(&stream, data[k], src, n, COUNT), DP_OK);
                    assert_memory_equal(data[k], want, sizeof want);
                    memcpy(data[k], keep, sizeof keep);
                }
            }
    assert_int_equal(dp_cpu_sum(&stream, dst, NULL, 65, COUNT), DP_EARGUMENT);
}

/* ---- norm ---- */

static void sumsq(void **state)
{
    enum { COUNT = DP_CHUNK + 2048 };
    static float buffer[COUNT + 3];
    double want[2] = {0}, first[2], other[2];
    (void)state;
    for (int shift = 0; shift < 4; shift++)
        for (int isa = 0; dp_vec_at(isa); isa++) {
            float *x = buffer + shift;
            device.vec = dp_vec_at(isa);
            for (int i = 0; i < COUNT; i++) x[i] = noise((uint32_t)i);
            assert_int_equal(dp_cpu_sumsq(&stream, x, COUNT, shift || isa ? other : first), DP_OK);
            if (shift || isa)
                assert_memory_equal(first, other, sizeof first); /* every build and alignment: the same bits */
            else
                for (int i = 0; i < COUNT; i++) want[i / DP_CHUNK] += (double)x[i] * (double)x[i];
        }
    assert_true(fabs(first[0] - want[0]) < 1e-12 * want[0] && fabs(first[1] - want[1]) < 1e-12 * want[1]);
}

static void verdict(void **state)
{
    const double chunks[] = {9, 16}, bad[] = {9, NAN}, huge[] = {9, INFINITY};
    dp_run run = {.inv_count = 0.5};
    dp_optimizer o = {0};
    dp_verdict v = {.steps = 6};
    (void)state;
    device.vec = dp_vec_select();
    dp_cpu_norm(&stream, chunks, 2, &run, &o, &v);
    assert_true(v.norm == 2.5 && v.scale == 0.5 && v.steps == 7 && v.finite && v.take);
    o.clip_norm = 1;
    dp_cpu_norm(&stream, chunks, 2, &run, &o, &v);
    assert_true(fabs(v.scale - 0.5 / (2.5 + 1e-6)) < 1e-15 && v.steps == 8);
    o.clip_norm = 3;
    dp_cpu_norm(&stream, chunks, 2, &run, &o, &v);
    assert_true(v.scale == 0.5 && v.steps == 9);
    dp_cpu_norm(&stream, bad, 2, &run, &o, &v);
    assert_true(!v.finite && !v.take && v.steps == 9);
    dp_cpu_norm(&stream, huge, 2, &run, &o, &v);
    assert_true(!v.finite && !v.take && v.steps == 9);
    run.inv_count = 0;
    dp_cpu_norm(&stream, chunks, 2, &run, &o, &v);
    assert_true(v.finite && !v.take && v.steps == 9 && v.norm == 0);
}

/* ---- optimizers: three steps of torch.optim (2.15) on these numbers ---- */

enum { N = 16 };
static const float start[N] = {-2.390625f, -1.171875f, -1.015625f, -2.515625f, -0.15625f, -0.953125f, -1.53125f, -2.515625f,
                               -1.109375f, 0.46875f,   -1.21875f,  -0.390625f, -0.34375f, 2.640625f,  0.359375f, 0.734375f};
static const float gradient[3][N] = {
    {-0.546875f, -0.90625f, 0.546875f, 0.15625f, 0.6796875f, 0.1875f, -0.515625f, 0.6328125f, 0.859375f, -0.140625f,
     -1.7578125f, -1.1328125f, 0.046875f, -0.484375f, -0.625f, -0.1015625f},
    {1.46875f, -0.0546875f, 0.125f, -0.6015625f, 0.15625f, 0.0390625f, 0.1171875f, -0.375f, -0.0859375f, 0.2265625f, -0.125f,
     -0.0234375f, 1.84375f, -0.8125f, 1.2265625f, -0.4921875f},
    {-0.7265625f, 0.4296875f, 0.0546875f, -0.34375f, 0.59375f, 0.34375f, 0.9140625f, 1.578125f, 0.109375f, 0.734375f,
     -0.1484375f, -0.5f, 1.203125f, -0.6796875f, -2.6015625f, -0.5859375f}};

typedef struct optimizer_case {
    dp_optimizer o;
    double lr;
    float want[N];
} optimizer_case;
static const optimizer_case cases[] = {
    {{.kind = DP_SGD, .weight_decay = 0.01},
     0.1,
     {-2.4029541f, -1.11542451f, -1.08511555f, -2.42920828f, -0.298598975f, -1.00725842f, -1.57831466f, -2.69159055f,
      -1.19416833f, 0.385308474f, -1.01233625f, -0.224058107f, -0.651901007f, 2.83018923f, 0.558295667f, 0.850073338f}},
    {{.kind = DP_SGD, .momentum = 0.9, .weight_decay = 0.01},
     0.1,
     {-2.43548894f, -0.952640533f, -1.18713379f, -2.39519715f, -0.428358167f, -1.0403167f, -1.49678862f, -2.75937629f,
      -1.33033895f, 0.3877168f, -0.697638035f, -0.0274228603f, -0.824949145f, 2.97916794f, 0.553730249f, 0.909803689f}},
    {{.kind = DP_SGD, .momentum = 0.9, .nesterov = 1},
     0.1,
     {-2.46253896f, -0.927035928f, -1.24796104f, -2.34102321f, -0.545150757f, -1.09350467f, -1.55935633f, -2.93146825f,
      -1.40240622f, 0.316181242f, -0.552160144f, 0.100300781f, -1.08812034f, 3.15652966f, 0.736210942f, 1.01401329f}},
    {{.kind = DP_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1},
     0.01,
     {-2.38148904f, -1.15009749f, -1.03742945f, -2.48867536f, -0.183240488f, -0.97128731f, -1.51536357f, -2.52725196f,
      -1.12746131f, 0.466572613f, -1.19441962f, -0.365905434f, -0.369564891f, 2.66964936f, 0.369629204f, 0.761048555f}},
    {{.kind = DP_ADAMW, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1},
     0.01,
     {-2.37903929f, -1.15024972f, -1.03683519f, -2.5048213f, -0.182605028f, -0.976919651f, -1.51683211f, -2.52630615f,
      -1.12634993f, 0.46650207f, -1.19274032f, -0.365864962f, -0.369402409f, 2.66262078f, 0.368996054f, 0.760669112f}},
    {{.kind = DP_SGD, .clip_norm = 1.5},
     0.1,
     {-2.40876555f, -1.13905013f, -1.05251825f, -2.4793992f, -0.222878382f, -0.978393614f, -1.5465591f, -2.59145999f,
      -1.15383053f, 0.435495287f, -1.11540079f, -0.311002195f, -0.487925828f, 2.73408747f, 0.431596398f, 0.787916541f}},
};

/* The gradient comes as a sum over 8 targets. The update runs in pieces when `split`. */
static void three_steps(const optimizer_case *c, float *p, int split)
{
    float m[N], v[N] = {0}, g[N];
    const dp_range all[] = {{0, N, 1}};
    dp_verdict verdict_ = {0};
    const dp_run run = {.inv_count = 0.125, .lr = c->lr};
    double chunk;
    memcpy(p, start, sizeof start);
    memset(m, c->o.kind == DP_SGD ? 0xFF : 0, sizeof m); /* sgd's first step must not read the momentum */
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < N; i++) g[i] = 8 * gradient[step][i];
        dp_cpu_sumsq(&stream, g, N, &chunk);
        dp_cpu_norm(&stream, &chunk, 1, &run, &c->o, &verdict_);
        for (int at = 0; at < N; at += split ? 5 : N) {
            int n = split && N - at > 5 ? 5 : N - at;
            dp_cpu_update(&stream, &c->o, all, 1, at, n, p + at, g + at, m + at, v + at, &run, &verdict_);
        }
    }
}

static void optimizers(void **state)
{
    (void)state;
    for (int isa = 0; dp_vec_at(isa); isa++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            float p[N], pieces[N];
            device.vec = dp_vec_at(isa);
            three_steps(&cases[c], p, 0);
            for (int i = 0; i < N; i++) assert_true(fabsf(p[i] - cases[c].want[i]) <= 5e-7f * fmaxf(1, fabsf(p[i])));
            three_steps(&cases[c], pieces, 1);
            assert_memory_equal(p, pieces, sizeof p);
        }
}

static void ranges(void **state)
{
    enum { COUNT = 160 };
    float p[COUNT], g[COUNT];
    const dp_range r[] = {{0, 16, 1}, {48, 64, 0}, {128, 32, 1}};
    const dp_optimizer o = {.kind = DP_SGD, .weight_decay = 0.5};
    const dp_run run = {.lr = 0.25, .inv_count = 1};
    dp_verdict v = {.scale = 1, .take = 1, .steps = 1, .finite = 1};
    (void)state;
    device.vec = dp_vec_select();
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < COUNT; i++) p[i] = 8, g[i] = 4;
        v.take = pass;
        /* elements 96 .. 143: the end of the second range, the beginning of the third */
        dp_cpu_update(&stream, &o, r, 3, 96, 48, p + 96, g + 96, NULL, NULL, &run, &v);
        for (int i = 0; i < COUNT; i++)
            assert_true(p[i] == (!pass || i < 96 || (i >= 112 && i < 128) || i >= 144 ? 8 : i < 112 ? 7 : 6));
    }
}

/* ---- convert ---- */

static void convert(void **state)
{
    const uint8_t hwc[] = {0, 51, 255, 10, 20, 30, 1, 2, 3, 4, 5, 6}, chw[] = {0, 10, 1, 4, 51, 20, 2, 5, 255, 30, 3, 6};
    const float mean[] = {0.1f, 0.2f, 0.3f}, inv_std[] = {2, 4, 5};
    const int64_t shape[] = {2, 1, 3};
    float planes[12], a[12];
    dp_run run = {.rows = 2};
    (void)state;
    for (int isa = 0; dp_vec_at(isa); isa++) {
        device.vec = dp_vec_at(isa);
        /* the two rows of chw hold (c, h, w) = (3, 2, 1) of the same pictures */
        const uint8_t rows[] = {0, 10, 51, 20, 255, 30, 1, 4, 2, 5, 3, 6};
        assert_int_equal(dp_cpu_convert(&stream, &run, a, DP_F32, hwc, DP_U8, DP_HWC, shape, NULL, NULL), DP_OK);
        for (int i = 0; i < 12; i++) assert_true(a[i] == (float)hwc[i] / 255.0f);
        assert_int_equal(dp_cpu_convert(&stream, &run, a, DP_F32, rows, DP_U8, DP_CHW, shape, mean, inv_std), DP_OK);
        for (int i = 0; i < 12; i++) assert_true(a[i] == ((float)hwc[i] / 255.0f - mean[i % 3]) * inv_std[i % 3]);
        for (int i = 0; i < 12; i++) planes[i] = (float)rows[i];
        assert_int_equal(dp_cpu_convert(&stream, &run, a, DP_F32, planes, DP_F32, DP_CHW, shape, NULL, NULL), DP_OK);
        for (int i = 0; i < 12; i++) assert_true(a[i] == (float)hwc[i]);
        run.rows = 1; /* one picture of 2 x 2 in planes */
        assert_int_equal(dp_cpu_convert(&stream, &run, a, DP_F32, chw, DP_U8, DP_CHW, (const int64_t[]){2, 2, 3}, NULL, NULL),
                         DP_OK);
        for (int i = 0; i < 12; i++) assert_true(a[i] == (float)hwc[i] / 255.0f);
        run.rows = 2;
        assert_int_equal(dp_cpu_convert(&stream, &run, a, DP_F32, hwc, DP_I64, DP_HWC, shape, NULL, NULL), DP_EARGUMENT);
    }
}

static void tokens(void **state)
{
    const uint8_t u8[] = {0, 7, 255, 3};
    const uint16_t u16[] = {0, 7, 65535, 3};
    const int32_t i32[] = {0, -7, 70000, 3};
    const int64_t i64[] = {0, -7, (int64_t)1 << 32, 3};
    const int64_t shape[] = {1, 1, 2};
    const dp_run run = {.rows = 2};
    int32_t t[4];
    (void)state;
    device.vec = dp_vec_select();
    assert_int_equal(dp_cpu_convert(&stream, &run, t, DP_I32, u8, DP_U8, DP_HWC, shape, NULL, NULL), DP_OK);
    assert_true(t[0] == 0 && t[1] == 7 && t[2] == 255 && t[3] == 3);
    assert_int_equal(dp_cpu_convert(&stream, &run, t, DP_I32, u16, DP_U16, DP_HWC, shape, NULL, NULL), DP_OK);
    assert_true(t[1] == 7 && t[2] == 65535 && t[3] == 3);
    assert_int_equal(dp_cpu_convert(&stream, &run, t, DP_I32, i32, DP_I32, DP_HWC, shape, NULL, NULL), DP_OK);
    assert_true(t[1] == -7 && t[2] == 70000);
    assert_int_equal(dp_cpu_convert(&stream, &run, t, DP_I32, i64, DP_I64, DP_HWC, shape, NULL, NULL), DP_OK);
    assert_true(t[0] == 0 && t[1] == -1 && t[2] == -1 && t[3] == 3); /* 2^32 does not become token 0 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sum),    cmocka_unit_test(sumsq),   cmocka_unit_test(verdict), cmocka_unit_test(optimizers),
        cmocka_unit_test(ranges), cmocka_unit_test(convert), cmocka_unit_test(tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
