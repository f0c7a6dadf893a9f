/* Uneven devices (P45): what split = auto makes of measured rates, its bounds, the warnings; check_replicas (P36). */
#include "engine_rig.h"
#include <math.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* As if device d had computed for seconds[d] since the last look. */
static void measured(rig *r, const double *seconds, int64_t rows)
{
    for (int d = 0; d < r->e->n; d++) {
        r->e->stats[d].phase[DP_PHASE_BACKWARD] = 1000 + seconds[d];
        r->e->measured[d].rows = rows;
        r->e->measured[d].busy_before = 1000;
        r->e->measured[d].rows_before = 0;
    }
}

static void next_epoch(rig *r, const double *seconds)
{
    uint64_t epoch = r->e->epoch_seen ? r->e->epoch + 1 : 0;
    if (!r->e->epoch_seen) dp_balance_epoch(r->e, epoch++);
    measured(r, seconds, 1000);
    dp_balance_epoch(r->e, epoch);
}

static void shares_follow_the_rates(void **state)
{
    static const struct {
        double seconds[4];
        int64_t rows[4];
    } cases[] = {
        {{3, 3, 3, 3}, {6, 6, 6, 6}},
        {{3, 6, 6, 6}, {9, 5, 5, 5}},     /* 2 : 1 : 1 : 1 of 24: 9.6 and three times 4.8 */
        {{3, 30, 30, 30}, {12, 4, 4, 4}}, /* not above twice the even share */
        {{4, 4, 4, 12}, {7, 7, 7, 3}},    /* 7.2 7.2 7.2 2.4: the remainder goes to the largest fraction */
    };
    rig r;
    rig_open(&r, &rig_mlp, rig_backend(state), 4, 0, "devices.split=auto");
    for (int i = 0; i < COUNT(cases); i++) {
        int64_t rows[4], sum = 0;
        next_epoch(&r, cases[i].seconds);
        assert_int_equal(dp_engine_split(r.e, 24, rows, 4), 4);
        for (int d = 0; d < 4; d++) {
            if (rows[d] != cases[i].rows[d]) fail_msg("case %d, device %d: %d rows", i, d, (int)rows[d]);
            sum += rows[d];
        }
        assert_int_equal(sum, 24);
    }
    assert_string_equal(r.warning, "");
    rig_close(&r);
}

/* The largest part that may occur was planned for, and training goes on with it. */
static void training_goes_on_with_new_shares(void **state)
{
    static const double seconds[] = {3, 60, 60};
    rig r;
    rig_data data = rig_data_new(&rig_tight, 32, 3);
    rig_open(&r, &rig_tight, rig_backend(state), 3, 0, "devices.split=auto devices.mode=balanced");
    double first = rig_step(&r, &data, 0, 24).loss_sum;
    next_epoch(&r, seconds);
    for (int64_t n = 2; n <= 24; n++) {
        int64_t rows[3], sum = 0;
        dp_engine_split(r.e, n, rows, 3);
        for (int d = 0; d < 3; d++) {
            sum += rows[d];
            assert_true(rows[d] == 0 || rows[d] >= 2); /* a batchnorm on 1 x 1 maps */
            assert_true(rows[d] <= r.e->replica[d].capacity);
        }
        assert_int_equal(sum, n);
    }
    for (uint64_t i = 0; i < 10; i++) {
        dp_batch b = rig_batch(&data, 0, 24);
        dp_result result;
        dp_error err;
        b.epoch = r.e->epoch;
        if (dp_engine_step(r.e, &b, &result, &err)) fail_msg("%s", err.text);
        if (i == 9) assert_true(result.loss_sum < first);
    }
    rig_close(&r);
    rig_data_free(&data);
}

static void a_slow_device_is_named_once(void **state)
{
    static const double even[] = {3, 3.9, 3}, slow[] = {3, 4.1, 3}, noise[] = {0.3, 3, 0.3};
    rig r;
    rig_open(&r, &rig_mlp, rig_backend(state), 3, 0, "");
    next_epoch(&r, noise);
    next_epoch(&r, even);
    assert_string_equal(r.warning, "");
    next_epoch(&r, slow);
    assert_non_null(strstr(r.warning, "Device 1 computes at 73 % of the rate of device"));
    size_t length = strlen(r.warning);
    next_epoch(&r, slow);
    assert_int_equal(strlen(r.warning), length);
    rig_close(&r);
}

static void auto_is_refused_where_runs_must_repeat(void **state)
{
    rig r;
    dp_error err;
    assert_int_equal(rig_try(&r, &rig_mlp, rig_backend(state), 2, 0, "devices.split=auto run.deterministic=1", &err),
                     DP_ECONFIG);
    assert_non_null(strstr(err.text, "deterministic"));
    rig_close(&r);
    assert_int_equal(rig_try(&r, &rig_mlp, rig_backend(state), 2, 0, "devices.split=auto devices.shards=4", &err), DP_ECONFIG);
    rig_close(&r);
}

/* P36: one flipped bit on one device is found at the next look and named. */
static void a_flipped_bit_is_found(void **state)
{
    static const char *const modes[] = {"dp", "balanced", "ddp", "classic"};
    for (int m = 0; m < COUNT(modes); m++) {
        rig r;
        dp_error err;
        dp_result result;
        char settings[120];
        rig_data data = rig_data_new(&rig_wide, 32, 3);
        snprintf(settings, sizeof settings, "devices.check_replicas=3 devices.mode=%s", modes[m]);
        rig_open(&r, &rig_wide, rig_backend(state), 3, 0, settings);
        for (int i = 0; i < 7; i++) rig_step(&r, &data, 0, 24); /* two looks: all is well */
        int tensor = dp_graph_find_tensor(r.graph, "fc2.weight");
        uint32_t *at = (uint32_t *)(void *)(r.e->replica[2].param + r.e->params->param[tensor].offset + 77);
        dp_batch b = rig_batch(&data, 0, 24);
        dp_status status = DP_OK;
        int looks = 0;
        for (; !status && looks < 4; looks++) {
            *at ^= 0x80000000u; /* the sign of a weight that only this device reads: nothing else tells */
            status = dp_engine_step(r.e, &b, &result, &err);
        }
        if (!strcmp(modes[m], "ddp")) { /* elsewhere the next parameters cover it up */
            assert_int_equal(status, DP_EDEVICE);
            assert_int_equal(err.device, 2);
            assert_string_equal(err.layer, "fc2.weight");
            assert_int_equal(dp_engine_step(r.e, &b, &result, &err), DP_EFAILED);
        } else {
            assert_int_equal(status, DP_OK);
        }
        rig_close(&r);
        rig_data_free(&data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON(shares_follow_the_rates),     ON(training_goes_on_with_new_shares),
        ON(a_slow_device_is_named_once), ON(auto_is_refused_where_runs_must_repeat),
        ON(a_flipped_bit_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
