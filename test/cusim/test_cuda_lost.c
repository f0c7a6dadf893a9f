/* A GPU that is lost in the middle of a step: what the report says of the place. Every case loses a device for good, so each has its own. */
#include "engine_cuda.h"
#include <unistd.h>

static int64_t given(void) /* pieces of work, to all devices */
{
    cusim_counters c;
    cusim_read(&c);
    return c.launches + c.library_calls + c.copies + c.fills;
}

/* Until nothing more is given, and events have been asked often since. */
static void wait_for_queries(void)
{
    for (int64_t before = -1, now; (now = given()) != before; before = now) {
        const int64_t asked = cusim_calls("cudaEventQuery");
        while (cusim_calls("cudaEventQuery") < asked + 1000) usleep(1000);
        usleep(50000);
    }
}

/* A device of its own for each loss: it is for good. */
static int fresh_device(void)
{
    static int next;
    return next++;
}

/* A step in which the n-th piece of work fails. hang: it hangs first, and the loss is found by whatever asks next. */
static void lose(int n, int hang, const char *settings, dp_error *err)
{
    const int d = fresh_device();
    char text[160];
    rig r;
    dp_result result;
    rig_data data = rig_data_new(&rig_wide, 32, 5);
    dp_batch batch = rig_batch(&data, 0, 12);
    snprintf(text, sizeof text, "devices.use=cuda:%d devices.overlap=off devices.graphs=off %s", d, settings);
    rig_open(&r, &rig_wide, cuda(), 1, 0, text);
    for (int i = 0; i < 3; i++)
        if (dp_engine_step(r.e, &batch, &result, err)) fail_msg("%s", err->text);
    snprintf(text, sizeof text, hang ? "hang:%d:%d" : "die:%d:%d:700", d, n);
    cusim_fault(text);
    if (hang) {
        assert_int_equal(dp_engine_submit(r.e, &batch, err), DP_OK);
        wait_for_queries();
        cusim_fault("fail:cudaEventQuery:1:700");
        assert_int_equal(dp_engine_wait(r.e, &result, err), DP_EDEVICE_LOST);
    } else {
        assert_int_equal(dp_engine_step(r.e, &batch, &result, err), DP_EDEVICE_LOST);
    }
    rig_close(&r);
    cusim_release();
    rig_data_free(&data);
    assert_int_equal(err->device, 0);
    assert_non_null(strstr(err->text, "was lost before ("));
    assert_non_null(strstr(err->text, "returned 700"));
}

static int rank_of_layer(const char *name, int backward)
{
    for (int i = 1; i <= 3; i++)
        if (!strncmp(name, "fc", 2) && name[2] == '0' + i) return backward ? 3 - i : i - 1;
    return 3;
}

/* run.debug_sync: the layer, in the order of a step. Without it: the phase that was seen to begin, which must be that one, and no layer. */
static void the_report_names_the_place(void **state)
{
    static const int nth[] = {5, 7, 9, 12, 15, 17};
    const char *sanitizer = getenv("DP_SANITIZER");
    int phase = -1, rank = -1, forward = 0, backward = 0;
    char want[80];
    dp_error exact, late;
    (void)state;
    if (sanitizer && !strcmp(sanitizer, "asan")) skip(); /* what is left behind on the host is a leak */
    for (size_t i = 0; i < sizeof nth / sizeof *nth; i++) {
        lose(nth[i], 0, "run.debug_sync=1", &exact);
        const int at = rank_of_layer(exact.layer, exact.phase == DP_PHASE_BACKWARD);
        if (exact.phase < phase || (exact.phase == phase && at < rank)) fail_msg("%d comes too early: %s", nth[i], exact.text);
        phase = exact.phase, rank = at;
        if (phase != DP_PHASE_FORWARD && phase != DP_PHASE_BACKWARD) continue;
        phase == DP_PHASE_FORWARD ? forward++ : backward++;
        assert_true(at < 3);
        assert_non_null(strstr(exact.text, exact.layer));
        lose(nth[i], 1, "", &late);
        snprintf(want, sizeof want, "Last seen at work: %s (batch 4)", exact.phase_name);
        if (!strstr(late.text, want) || late.phase != exact.phase || *late.layer)
            fail_msg("piece %d, %s expected: %s", nth[i], want, late.text);
    }
    assert_true(forward > 0 && backward > 1);
}

/* Nothing was seen at work: the report says so by silence. */
static void nothing_was_at_work(void **state)
{
    const char *sanitizer = getenv("DP_SANITIZER");
    rig r;
    dp_error err;
    (void)state;
    if (sanitizer && !strcmp(sanitizer, "asan")) skip();
    char use[32];
    float w[4];
    snprintf(use, sizeof use, "devices.use=cuda:%d", fresh_device());
    rig_open(&r, &rig_wide, cuda(), 1, 0, use);
    cusim_fault("fail:cudaMemcpyAsync:1:700");
    assert_int_equal(dp_engine_get(r.e, "fc3.bias", w, 4, &err), DP_EDEVICE_LOST);
    assert_null(strstr(err.text, "Last seen"));
    cusim_release();
    rig_close(&r);
}

int main(void)
{
    setenv("CUSIM_DEVICES", "16", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_report_names_the_place), cmocka_unit_test(nothing_was_at_work)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
