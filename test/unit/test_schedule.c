/* The learning rate is a pure function of the optimizer step. */
#include "../../dp/train/schedule.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <cmocka.h>

static dp_schedule make(int kind, double lr, double min_lr, int64_t warmup, int64_t total)
{
    dp_schedule s = {kind, lr, min_lr, warmup, total};
    return s;
}

static void constant_stays(void **state)
{
    (void)state;
    dp_schedule s = make(DP_SCHEDULE_CONSTANT, 0.1, 0, 0, 10);
    for (int64_t i = 1; i <= 12; i++) assert_true(dp_schedule_lr(&s, i) == 0.1);
}

static void warmup_is_linear_and_ends_at_the_rate(void **state)
{
    (void)state;
    dp_schedule s = make(DP_SCHEDULE_CONSTANT, 0.8, 0, 4, 10);
    const double want[] = {0.2, 0.4, 0.6, 0.8, 0.8, 0.8};
    for (int i = 0; i < 6; i++) assert_true(fabs(dp_schedule_lr(&s, i + 1) - want[i]) < 1e-15);
    assert_true(dp_schedule_lr(&s, 4) == 0.8);
}

static void cosine_reaches_its_end_exactly(void **state)
{
    (void)state;
    dp_schedule s = make(DP_SCHEDULE_COSINE, 0.1, 0.001, 0, 101);
    assert_true(dp_schedule_lr(&s, 1) == 0.1);
    assert_true(dp_schedule_lr(&s, 101) == 0.001);
    assert_true(dp_schedule_lr(&s, 500) == 0.001);
    assert_true(fabs(dp_schedule_lr(&s, 51) - 0.0505) < 1e-15); /* half way: the mean of both */
    assert_true(fabs(dp_schedule_lr(&s, 26) - (0.001 + 0.099 * (1 + sqrt(0.5)) / 2)) < 1e-15);
    for (int64_t i = 2; i <= 101; i++) assert_true(dp_schedule_lr(&s, i) < dp_schedule_lr(&s, i - 1));
}

static void cosine_falls_from_the_end_of_the_warmup(void **state)
{
    (void)state;
    dp_schedule s = make(DP_SCHEDULE_COSINE, 1.0, 0, 10, 30);
    assert_true(fabs(dp_schedule_lr(&s, 5) - 0.5) < 1e-15);
    assert_true(dp_schedule_lr(&s, 10) == 1.0);
    assert_true(fabs(dp_schedule_lr(&s, 20) - 0.5) < 1e-15);
    assert_true(dp_schedule_lr(&s, 30) == 0.0);
}

static void short_runs_have_no_hole(void **state)
{
    (void)state;
    for (int64_t warmup = 0; warmup < 6; warmup++)
        for (int64_t total = 1; total < 6; total++) {
            dp_schedule s = make(DP_SCHEDULE_COSINE, 0.5, 0.1, warmup, total);
            for (int64_t i = 1; i <= total; i++) {
                double lr = dp_schedule_lr(&s, i);
                assert_true(lr > 0 && lr <= 0.5);
            }
            if (total > 1 && total > warmup) assert_true(dp_schedule_lr(&s, total) == 0.1);
        }
}

static void settings(void **state)
{
    (void)state;
    dp_schedule s;
    dp_error err;
    dp_config *c = dp_config_new(NULL, NULL);
    assert_non_null(c);
    assert_int_equal(dp_schedule_config(&s, c, 10, 128, &err), DP_ECONFIG); /* a rate must be given */
    assert_int_equal(dp_config_set(c, "optimizer.lr", "0.1"), DP_OK);
    assert_int_equal(dp_schedule_config(&s, c, 10, 1024, &err), DP_OK);
    assert_true(s.lr == 0.1 && s.kind == DP_SCHEDULE_CONSTANT && s.total == 10); /* no hidden scaling */
    assert_int_equal(dp_config_set(c, "optimizer.lr_base_batch", "256"), DP_OK);
    assert_int_equal(dp_config_set(c, "schedule.kind", "cosine"), DP_OK);
    assert_int_equal(dp_config_set(c, "schedule.warmup_steps", "7"), DP_OK);
    assert_int_equal(dp_schedule_config(&s, c, 10, 1024, &err), DP_OK);
    assert_true(fabs(s.lr - 0.4) < 1e-15 && s.kind == DP_SCHEDULE_COSINE && s.warmup == 7);
    dp_config_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(constant_stays),
                                       cmocka_unit_test(warmup_is_linear_and_ends_at_the_rate),
                                       cmocka_unit_test(cosine_reaches_its_end_exactly),
                                       cmocka_unit_test(cosine_falls_from_the_end_of_the_warmup),
                                       cmocka_unit_test(short_runs_have_no_hole),
                                       cmocka_unit_test(settings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
