/* Losses on the CPU: values and gradients of torch.nn.functional (2.15, reduction = sum), counts, bad targets, extremes. */
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

enum { ROWS = 4, CLASSES = 5 };
static const float logits[ROWS * CLASSES] = {-0.09375f, -3.1875f, -1.875f,   -3.15625f, -4.46875f, -1.5625f,  0.53125f,
                                             -0.5f,     -1.5625f, -4.59375f, -1.0625f,  -0.9375f,  -3.28125f, -1.46875f,
                                             0.90625f,  6.21875f, -2.875f,   -2.90625f, 4.46875f,  1.3125f};
static const int32_t targets[ROWS] = {2, 0, 4, 1};

typedef struct loss_case {
    double smoothing;
    int64_t ignore_label, counted, correct;
    double loss;
    float d[ROWS * CLASSES];
} loss_case;
static const loss_case cases[] = {
    {0, INT64_MIN, 4, 1, 14.1932869, {0.785473287f,  0.0356067903f, -0.867704749f,   0.0367370695f, 0.00988764875f,
                                      -0.923413575f, 0.621521294f,  0.221610248f,    0.0765864402f, 0.00369570125f,
                                      0.0993072763f, 0.112529881f,  0.0107991649f,   0.0661529079f, -0.288789272f,
                                      0.846456647f,  -0.999904871f, 9.21865285e-05f, 0.147092104f,  0.00626393873f}},
    {0.1, INT64_MIN, 4, 1, 14.0545369, {0.765473247f,  0.0156067889f, -0.787704706f,  0.0167370681f, -0.0101123517f,
                                        -0.843413532f, 0.601521194f,  0.201610222f,   0.0565864332f, -0.0163042992f,
                                        0.079307273f,  0.092529878f,  -0.0092008356f, 0.0461529046f, -0.208789274f,
                                        0.826456547f,  -0.919904828f, -0.0199078135f, 0.127092093f,  -0.0137360618f}},
    {0,
     4,
     3,
     0,
     13.8525005,
     {0.785473287f,
      0.0356067903f,
      -0.867704749f,
      0.0367370695f,
      0.00988764875f,
      -0.923413575f,
      0.621521294f,
      0.221610248f,
      0.0765864402f,
      0.00369570125f,
      0,
      0,
      0,
      0,
      0,
      0.846456647f,
      -0.999904871f,
      9.21865285e-05f,
      0.147092104f,
      0.00626393873f}},
    {0.2,
     0,
     3,
     1,
     11.3514517,
     {0.745473266f,
      -0.00439320877f,
      -0.707704782f,
      -0.00326292962f,
      -0.0301123504f,
      0,
      0,
      0,
      0,
      0,
      0.0593072772f,
      0.0725298822f,
      -0.0292008333f,
      0.0261529088f,
      -0.128789306f,
      0.806456745f,
      -0.839904904f,
      -0.0399078131f,
      0.10709212f,
      -0.0337360613f}},
};

static void cross_entropy(void **state)
{
    (void)state;
    for (int isa = 0; dp_vec_at(isa); isa++)
        for (int c = 0; c < 4; c++) {
            /* groups: four predictions in one row are the same as four rows */
            const dp_loss l = {DP_LOSS_CROSS_ENTROPY, c % 2 ? ROWS : 1, CLASSES, cases[c].smoothing, cases[c].ignore_label};
            float d[ROWS * CLASSES];
            dp_loss_sums s, without;
            device.vec = dp_vec_at(isa);
            assert_int_equal(dp_cpu_loss(&stream, &l, c % 2 ? 1 : ROWS, logits, targets, DP_I32, d, &s), DP_OK);
            assert_int_equal(dp_cpu_loss(&stream, &l, c % 2 ? 1 : ROWS, logits, targets, DP_I32, NULL, &without), DP_OK);
            assert_memory_equal(&s, &without, sizeof s);
            assert_true(fabs(s.loss - cases[c].loss) < 1e-6 * cases[c].loss);
            assert_int_equal(s.targets, cases[c].counted);
            assert_int_equal(s.correct, cases[c].correct);
            assert_int_equal(s.bad, 0);
            for (int i = 0; i < ROWS * CLASSES; i++) assert_true(fabsf(d[i] - cases[c].d[i]) < 3e-7f);
        }
}

static void target_types(void **state)
{
    const uint8_t u8[] = {2, 0, 4, 1};
    const uint16_t u16[] = {2, 0, 4, 1};
    const int64_t i64[] = {2, 0, 4, 1};
    const dp_loss l = {DP_LOSS_CROSS_ENTROPY, 1, CLASSES, 0, INT64_MIN};
    const struct {
        const void *t;
        dp_dtype type;
    } kinds[] = {{u8, DP_U8}, {u16, DP_U16}, {targets, DP_I32}, {i64, DP_I64}};
    dp_loss_sums s;
    (void)state;
    device.vec = dp_vec_select();
    for (int i = 0; i < 4; i++) {
        assert_int_equal(dp_cpu_loss(&stream, &l, ROWS, logits, kinds[i].t, kinds[i].type, NULL, &s), DP_OK);
        assert_true(fabs(s.loss - 14.1932869) < 1e-5 && s.targets == 4);
    }
    assert_int_equal(dp_cpu_loss(&stream, &l, ROWS, logits, targets, DP_F32, NULL, &s), DP_EARGUMENT);
}

static void bad_targets(void **state)
{
    const int64_t t[] = {2, 5, -1, -100};
    const dp_loss l = {DP_LOSS_CROSS_ENTROPY, 1, CLASSES, 0, -100};
    float d[ROWS * CLASSES];
    dp_loss_sums s;
    (void)state;
    device.vec = dp_vec_select();
    dp_cpu_loss(&stream, &l, ROWS, logits, t, DP_I64, d, &s);
    assert_int_equal(s.bad, 2); /* the first is at index 1; -100 is the label to ignore */
    assert_int_equal(s.targets, 1);
    for (int i = CLASSES; i < ROWS * CLASSES; i++) assert_true(d[i] == 0);
}

/* Many classes (several pieces of 1,024), many targets (two chunks), logits that overflow a bare exponential, equal maxima */
static void extremes(void **state)
{
    enum { MANY = 2500 };
    static float x[MANY], d[MANY], rows[5000 * 2];
    static uint8_t t[5000];
    dp_loss l = {DP_LOSS_CROSS_ENTROPY, 1, MANY, 0, INT64_MIN};
    const int32_t last = MANY - 1, zero = 0;
    dp_loss_sums s;
    (void)state;
    for (int isa = 0; dp_vec_at(isa); isa++) {
        device.vec = dp_vec_at(isa);
        for (int i = 0; i < MANY; i++) x[i] = 300;
        dp_cpu_loss(&stream, &l, 1, x, &last, DP_I32, NULL, &s);
        assert_true(fabs(s.loss - log(MANY)) < 1e-6 && s.correct == 0); /* the first of equal maxima is class 0 */
        dp_cpu_loss(&stream, &l, 1, x, &zero, DP_I32, d, &s);
        assert_true(s.correct == 1 && fabsf(d[1] - 1.0f / MANY) < 1e-9f);
        x[0] = -INFINITY;
        dp_cpu_loss(&stream, &l, 1, x, &last, DP_I32, d, &s);
        assert_true(fabs(s.loss - log(MANY - 1)) < 1e-6 && d[0] == 0);
        x[7] = NAN;
        dp_cpu_loss(&stream, &l, 1, x, &last, DP_I32, NULL, &s);
        assert_true(isnan(s.loss));

        dp_loss two = {DP_LOSS_CROSS_ENTROPY, 1, 2, 0, INT64_MIN};
        double want = 0;
        for (int i = 0; i < 5000; i++) {
            rows[2 * i] = (float)(i - 2500) * 0.001f;
            t[i] = (uint8_t)(i % 2);
            want += log1p(exp((double)rows[2 * i])) - (t[i] ? 0 : (double)rows[2 * i]);
        }
        dp_cpu_loss(&stream, &two, 5000, rows, t, DP_U8, NULL, &s);
        assert_true(fabs(s.loss - want) < 1e-6 * want && s.targets == 5000);
        /* row 2500 has two equal logits: class 0, the first, which is its target */
        assert_int_equal(s.correct, 2500);
    }
}

static void mse(void **state)
{
    enum { WIDTH = 4099 }; /* more than a chunk, not a multiple of 8 */
    static float x[2 * WIDTH], t[2 * WIDTH], d[2 * WIDTH];
    const dp_loss l = {.kind = DP_LOSS_MSE, .groups = 1, .classes = WIDTH};
    dp_loss_sums s;
    double want = 0;
    (void)state;
    for (int i = 0; i < 2 * WIDTH; i++) {
        x[i] = (float)(i % 17) * 0.5f;
        t[i] = (float)(i % 5);
        want += (double)((x[i] - t[i]) * (x[i] - t[i]));
    }
    for (int isa = 0; dp_vec_at(isa); isa++) {
        device.vec = dp_vec_at(isa);
        assert_int_equal(dp_cpu_loss(&stream, &l, 2, x, t, DP_F32, d, &s), DP_OK);
        assert_true(fabs(s.loss - want) < 1e-9 * want && s.targets == 2 * WIDTH && s.correct == 0 && s.bad == 0);
        for (int i = 0; i < 2 * WIDTH; i++) assert_true(d[i] == 2 * (x[i] - t[i]));
    }
    assert_int_equal(dp_cpu_loss(&stream, &l, 2, x, t, DP_U8, d, &s), DP_EARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cross_entropy), cmocka_unit_test(target_types),
                                       cmocka_unit_test(bad_targets), cmocka_unit_test(extremes), cmocka_unit_test(mse)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
