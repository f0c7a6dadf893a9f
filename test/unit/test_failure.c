/* Failures (P39, P40, P41): a device that fails or hangs in any kind of call, at once or late. The error names it, the engine says so ever
 * after, closes, and leaves no thread. Nothing is timed; a watchdog ends the program if a call does not return. */
#include "engine_rig.h"
#include <unistd.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
enum { WATCHDOG_S = 120 };

static const dp_backend *fresh(void)
{
    alarm(WATCHDOG_S);
    return late_backend(&(late_options){.seed = 3, .delay_us = 100});
}

static void open_four(rig *r, const char *settings)
{
    char all[256];
    snprintf(all, sizeof all, "devices.timeout_s=20 %s", settings);
    rig_open(r, &rig_conv, fresh(), 4, 0, all);
}

static void stays_failed(rig *r, const rig_data *data)
{
    dp_error err;
    dp_result sum = {0};
    float out[4];
    dp_batch b = rig_batch(data, 0, 12);
    assert_int_equal(dp_engine_step(r->e, &b, NULL, &err), DP_EFAILED);
    assert_non_null(strstr(err.text, "failed before"));
    assert_int_equal(dp_engine_submit(r->e, &b, &err), DP_EFAILED);
    assert_int_equal(dp_engine_eval(r->e, &b, &sum, &err), DP_EFAILED);
    assert_int_equal(dp_engine_predict(r->e, rig_batch(data, 0, 1).x, out, sizeof out, &err), DP_EFAILED);
    assert_int_equal(dp_engine_get(r->e, "fc.bias", out, 4, &err), DP_EFAILED);
}

/* One good step, then the fault in a step of `rows`; two batches in flight when `ahead`. */
static void fail_in_a_step(const late_fault *f, const char *settings, int64_t rows, int ahead)
{
    rig r;
    dp_error err;
    dp_result result;
    int threads = rig_threads();
    char what[128];
    rig_data data = rig_data_new(&rig_conv, 24, 3);
    snprintf(what, sizeof what, "%s %lld of device %d, %s%s", late_kind_name(f->kind), (long long)f->nth, f->device,
             f->at_once ? "at once" : "late", ahead ? ", two in flight" : "");
    open_four(&r, settings);
    rig_step(&r, &data, 0, 12);
    late_arm(f);
    dp_batch b = rig_batch(&data, 0, rows);
    if (f->kind == LATE_CONVERT) b.x.layout = DP_CHW; /* rows in the order of the first layer are not converted */
    memset(&err, 0, sizeof err);
    dp_status status = dp_engine_submit(r.e, &b, &err);
    if (ahead && !status) status = dp_engine_submit(r.e, &b, &err);
    for (int i = 0; i <= ahead && !status; i++) status = dp_engine_wait(r.e, &result, &err);
    if (status != f->status || err.device != f->device || err.more)
        fail_msg("%s: status %d, device %d, more %d: %s", what, (int)status, err.device, err.more, err.text);
    assert_true(err.step == 1 || (ahead && err.step == 2));
    assert_int_equal(err.code, status);
    assert_true(err.phase >= 0 && *err.phase_name);
    stays_failed(&r, &data);
    rig_close(&r);
    if (f->status == DP_EDEVICE_LOST) fresh(); /* what a lost device leaves behind goes */
    if (!rig_threads_back(threads)) fail_msg("%s: %d threads, %d before", what, rig_threads(), threads);
    rig_data_free(&data);
}

static void a_failing_device_ends_the_step(void **state)
{
    static const struct {
        late_kind kind;
        int device;
        int64_t nth;
        const char *settings;
        int64_t rows;
    } cases[] = {
        {LATE_COPY, 2, 1, "", 12}, /* upload */
        {LATE_COPY, 2, 7, "", 12}, /* parameters */
        {LATE_CONVERT, 2, 1, "", 12},
        {LATE_FORWARD, 2, 2, "", 12},
        {LATE_LOSS, 2, 1, "", 12},
        {LATE_LOSS, 0, 3, "devices.loss=master", 12}, /* the master's, of device 2 */
        {LATE_BACKWARD, 2, 1, "", 12},
        {LATE_BACKWARD, 2, 3, "devices.reduce=master", 12},
        {LATE_SUM, 2, 2, "", 12},
        {LATE_SUM, 0, 2, "devices.reduce=master", 12},
        {LATE_SUMSQ, 0, 1, "", 12},
        {LATE_NORM, 0, 1, "", 12},
        {LATE_UPDATE, 0, 1, "", 12},
        {LATE_RECORD, 2, 1, "", 12},
        {LATE_RECORD, 2, 3, "", 12},
        {LATE_WAIT, 2, 1, "", 12},
        {LATE_WAIT, 0, 2, "devices.loss=master", 12},
        {LATE_PREPARE, 2, 1, "", 17}, /* a row count not seen before */
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++)
        for (int at_once = 0; at_once < 2; at_once++)
            for (int ahead = 0; ahead < 2; ahead++) {
                late_fault f = {
                    cases[i].kind, cases[i].device, cases[i].nth, i % 2 ? DP_EDEVICE_LOST : DP_EDEVICE, at_once, 0, 0};
                fail_in_a_step(&f, cases[i].settings, cases[i].rows, ahead);
            }
}

static void the_error_has_its_place(void **state) /* P41 */
{
    rig r;
    dp_error err;
    dp_result result;
    rig_data data = rig_data_new(&rig_conv, 24, 3);
    (void)state;
    open_four(&r, "");
    rig_step(&r, &data, 0, 12);
    rig_step(&r, &data, 0, 12);
    late_arm(&(late_fault){LATE_FORWARD, 3, 2, DP_EDEVICE, 1, 0, 0});
    dp_batch b = rig_batch(&data, 0, 12);
    assert_int_equal(dp_engine_step(r.e, &b, &result, &err), DP_EDEVICE);
    assert_int_equal(err.code, DP_EDEVICE);
    assert_int_equal(err.device, 3);
    assert_int_equal(err.replica, 3);
    assert_int_equal(err.step, 2);
    assert_int_equal(err.phase, DP_PHASE_FORWARD);
    assert_string_equal(err.phase_name, "forward");
    assert_true(*err.layer && strstr(err.text, err.layer)); /* the second kernel of the net, whatever was fused */
    rig_close(&r);
    rig_data_free(&data);
}

static void two_failing_at_once(void **state) /* P41 */
{
    rig r;
    dp_error err;
    dp_result result;
    int threads = rig_threads();
    rig_data data = rig_data_new(&rig_conv, 24, 3);
    (void)state;
    open_four(&r, "");
    rig_step(&r, &data, 0, 12);
    /* Both stand in their launch until the other is there too, so that neither can leave because of the other. */
    late_arm(&(late_fault){LATE_FORWARD, 3, 1, DP_EDEVICE, 1, 1, 0});
    late_arm(&(late_fault){LATE_FORWARD, 1, 1, DP_EDEVICE, 1, 1, 0});
    dp_batch b = rig_batch(&data, 0, 12);
    assert_int_equal(dp_engine_submit(r.e, &b, &err), DP_OK);
    late_meet(2);
    assert_int_equal(dp_engine_wait(r.e, &result, &err), DP_EDEVICE);
    assert_int_equal(err.device, 1);
    assert_int_equal(err.more, 1);
    assert_non_null(strstr(err.text, "and 1 more"));
    stays_failed(&r, &data);
    rig_close(&r);
    assert_true(rig_threads_back(threads));
    rig_data_free(&data);
}

/* P40: nothing fails, nothing moves: after devices.timeout_s the message says who is where. */
static void a_hanging_device_is_named(void **state)
{
    static const struct {
        late_kind kind;
        int device;
        const char *settings;
        int at_once;
    } cases[] = {{LATE_FORWARD, 3, "", 0},
                 {LATE_BACKWARD, 2, "devices.reduce=master", 0},
                 {LATE_FORWARD, 3, "", 1},
                 {LATE_FORWARD, 1, "", 0},
                 {LATE_UPDATE, 0, "", 0}};
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        rig r;
        dp_error err;
        dp_result result;
        char settings[64];
        int threads = rig_threads();
        rig_data data = rig_data_new(&rig_conv, 24, 3);
        snprintf(settings, sizeof settings, "devices.timeout_s=%s %s", rig_full() ? "3" : "1", cases[i].settings);
        open_four(&r, settings);
        rig_step(&r, &data, 0, 12);
        late_arm(&(late_fault){cases[i].kind, cases[i].device, 1, DP_OK, cases[i].at_once, 1, 0});
        dp_batch b = rig_batch(&data, 0, 12);
        assert_int_equal(dp_engine_submit(r.e, &b, &err), DP_OK);
        if (i % 2) assert_int_equal(dp_engine_submit(r.e, &b, &err), DP_OK); /* the others run ahead into the next batch */
        assert_int_equal(dp_engine_wait(r.e, &result, &err), DP_ETIMEOUT);
        assert_int_equal(err.more, 0); /* one hang, however many wait for it */
        if (err.device != cases[i].device) fail_msg("case %d names device %d: %s", i, err.device, err.text);
        assert_non_null(strstr(err.text, "device 0: "));
        assert_non_null(strstr(err.text, "device 3: "));
        stays_failed(&r, &data);
        late_release();
        rig_close(&r);
        assert_true(rig_threads_back(threads));
        rig_data_free(&data);
    }
}

/* Opening fails in the n-th call of a kind on device 2: the error names it and nothing is left. */
static void opening_fails_clean(void **state)
{
    static const struct {
        late_kind kind;
        int64_t nth;
        int at_once;
        dp_status status;
    } cases[] = {{LATE_OPEN, 1, 1, DP_EDEVICE},        {LATE_STREAM_OPEN, 1, 1, DP_EDEVICE},
                 {LATE_ALLOC, 1, 1, DP_ENOMEM},        {LATE_ALLOC, 4, 1, DP_ENOMEM},
                 {LATE_ALLOC, 12, 1, DP_ENOMEM},       {LATE_EVENT_OPEN, 5, 1, DP_EDEVICE},
                 {LATE_KERNEL_OPEN, 2, 1, DP_EDEVICE}, {LATE_FILL, 1, 1, DP_EDEVICE},
                 {LATE_FILL, 3, 0, DP_EDEVICE_LOST},   {LATE_RECORD, 1, 0, DP_EDEVICE_LOST}};
    (void)state;
    int threads = rig_threads();
    for (int i = 0; i < COUNT(cases); i++) {
        rig r;
        dp_error err;
        const dp_backend *b = fresh();
        late_arm(&(late_fault){cases[i].kind, 2, cases[i].nth, cases[i].status, cases[i].at_once, 0, 0});
        dp_status status = rig_try(&r, &rig_conv, b, 4, 0, "devices.timeout_s=20", &err);
        if (status != cases[i].status || err.device != 2)
            fail_msg("%s %lld: status %d, device %d: %s", late_kind_name(cases[i].kind), (long long)cases[i].nth, (int)status,
                     err.device, err.text);
        assert_null(r.e);
        rig_close(&r);
        if (cases[i].status == DP_EDEVICE_LOST) fresh();
        assert_true(rig_threads_back(threads));
    }
}

/* Evaluation and the transfers of single tensors fail in the same way. */
static void evaluation_and_transfers_fail_too(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        rig r;
        dp_error err;
        dp_result sum = {0};
        float bias[4];
        int threads = rig_threads(), device = i < 2 ? 2 : 0;
        rig_data data = rig_data_new(&rig_conv, 24, 3);
        open_four(&r, "");
        rig_step(&r, &data, 0, 12);
        late_arm(&(late_fault){i < 2 ? LATE_FORWARD : LATE_COPY, device, 1, DP_EDEVICE, i % 2, 0, 0});
        dp_batch b = rig_batch(&data, 0, 24);
        dp_status status = i < 2 ? dp_engine_eval(r.e, &b, &sum, &err) : dp_engine_get(r.e, "fc.bias", bias, 4, &err);
        assert_int_equal(status, DP_EDEVICE);
        assert_int_equal(err.device, device);
        stays_failed(&r, &data);
        rig_close(&r);
        assert_true(rig_threads_back(threads));
        rig_data_free(&data);
    }
}

/* Closing with batches in flight waits for them: their memory is in use. */
static void closing_with_batches_in_flight(void **state)
{
    const dp_backend *b = rig_backend(state);
    int threads = rig_threads();
    for (int i = 0; i < 4; i++) {
        rig r;
        dp_error err;
        rig_data data = rig_data_new(&rig_conv, 24, 3);
        alarm(WATCHDOG_S);
        rig_open(&r, &rig_conv, b, 4, 0, i % 2 ? "devices.reduce=master devices.loss=master" : "");
        dp_batch batch = rig_batch(&data, 0, 24);
        for (int k = 0; k <= i / 2; k++)
            if (dp_engine_submit(r.e, &batch, &err)) fail_msg("%s", err.text);
        rig_close(&r);
        assert_true(rig_threads_back(threads));
        rig_data_free(&data);
    }
}

/* P93 in small: engines that are opened, used, failed and closed leave nothing (leaks are the sanitizer's to tell). */
static void many_engines_leave_no_thread(void **state)
{
    (void)state;
    int threads = rig_threads();
    rig_data data = rig_data_new(&rig_conv, 24, 3);
    for (int i = 0; i < (rig_full() ? 200 : 12); i++) {
        rig r;
        dp_batch b = rig_batch(&data, 0, 5 + i % 9);
        dp_result result;
        dp_error err;
        rig_open(&r, &rig_conv, fresh(), 1 + i % 4, 0, "");
        if (i % 3) late_arm(&(late_fault){(late_kind)(i % 5), 0, 1 + i % 2, DP_EDEVICE, i & 1, 0, 0});
        dp_status status = dp_engine_step(r.e, &b, &result, &err);
        assert_true(status == DP_OK || (i % 3 && status == DP_EDEVICE));
        rig_close(&r);
    }
    rig_data_free(&data);
    assert_true(rig_threads_back(threads));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failing_device_ends_the_step),
        cmocka_unit_test(the_error_has_its_place),
        cmocka_unit_test(two_failing_at_once),
        cmocka_unit_test(a_hanging_device_is_named),
        cmocka_unit_test(opening_fails_clean),
        cmocka_unit_test(evaluation_and_transfers_fail_too),
        ON(closing_with_batches_in_flight),
        cmocka_unit_test(many_engines_leave_no_thread),
    };
    return cmocka_run_group_tests(tests, rig_warm_up, NULL);
}
