/* Devices that die or hang, in every mode, in every phase, the master too (P39, P40): the error names the device, the others leave, the
 * engine can be closed, and nothing of a dead device is touched again. */
#include "engine_rig.h"
#include <sys/mman.h>
#include <unistd.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
enum { WATCHDOG_S = 240 };

static const dp_backend *fresh(void)
{
    alarm(WATCHDOG_S);
    return late_backend(&(late_options){.seed = 3, .delay_us = 30});
}

typedef struct phase {
    const char *name;
    late_kind kind;
    int64_t nth;
} phase;
static const phase phases[] = {{"upload", LATE_COPY, 1},       {"forward", LATE_FORWARD, 2}, {"loss", LATE_LOSS, 1},
                               {"backward", LATE_BACKWARD, 2}, {"reduce", LATE_SUM, 1},      {"update", LATE_UPDATE, 1},
                               {"event", LATE_RECORD, 4},      {"wait", LATE_WAIT, 2},       {"arrival", LATE_COPY, 7},
                               {"part", LATE_PARTIAL, 2},      {"merge", LATE_MERGE, 1}};
static const char *const modes[] = {"devices.mode=dp",
                                    "devices.mode=classic",
                                    "devices.mode=balanced",
                                    "devices.mode=ddp",
                                    "devices.mode=dp devices.bn_stats=sync",
                                    "devices.mode=balanced devices.bn_stats=merged",
                                    "devices.mode=ddp devices.bn_stats=sync",
                                    "devices.mode=dp devices.reduce=tree"};

/* Whether the device makes this call at all. */
static int meets(const char *mode, const phase *p, int device)
{
    int master_steps = strstr(mode, "=dp") || strstr(mode, "classic");
    switch (p->kind) {
    case LATE_LOSS: return !device || !strstr(mode, "classic");
    case LATE_UPDATE: return !device || !master_steps;
    case LATE_SUM:
        return !device || strstr(mode, "tree") == NULL ? !strstr(mode, "classic") || !device : device != 3 && device != 1;
    case LATE_PARTIAL: return strstr(mode, "sync") != NULL;
    case LATE_MERGE: return !device && strstr(mode, "bn_stats");
    default: return 1;
    }
}

/* A seventh of the grid unless it is to be full: each phase, mode and device in turn. */
static int skipped(int m, int i, int d)
{
    return !rig_full() && (m + 2 * i + 3 * d) % 7;
}

static dp_status two_steps(rig *r, const rig_data *data, dp_error *err)
{
    dp_batch b = rig_batch(data, 0, 24);
    dp_result result;
    dp_status status = dp_engine_submit(r->e, &b, err);
    if (!status) status = dp_engine_submit(r->e, &b, err);
    if (!status) status = dp_engine_wait(r->e, &result, err);
    return status ? status : dp_engine_wait(r->e, &result, err);
}

static void named(dp_status status, dp_status wanted, const dp_error *err, int device, const char *what)
{
    if (status != wanted || err->code != (int)status || err->device != device || err->phase < 0 || !*err->phase_name)
        fail_msg("%s: status %d, code %d, device %d, phase %d: %s", what, (int)status, err->code, err->device, err->phase,
                 status ? err->text : "");
}

static void stays_failed(rig *r, const rig_data *data)
{
    dp_error err;
    dp_batch b = rig_batch(data, 0, 12);
    float out[4];
    assert_int_equal(dp_engine_step(r->e, &b, NULL, &err), DP_EFAILED);
    assert_int_equal(dp_engine_get(r->e, "fc.bias", out, 4, &err), DP_EFAILED);
}

static void a_dying_device_is_left_alone(void **state)
{
    (void)state;
    int threads = rig_threads();
    for (int m = 0; m < COUNT(modes); m++)
        for (int i = 0; i < COUNT(phases); i++)
            for (int d = 0; d < 4; d++) {
                rig r;
                dp_error err;
                char what[160];
                if (!meets(modes[m], &phases[i], d) || skipped(m, i, d)) continue;
                late_fault f = {phases[i].kind, d, phases[i].nth, DP_OK, (m + i + d) % 2, 0, 1};
                snprintf(what, sizeof what, "%s: device %d dies in %s, %s", modes[m], d, phases[i].name,
                         f.at_once ? "at once" : "late");
                rig_data data = rig_data_new(&rig_conv, 24, 3);
                rig_open(&r, &rig_conv, fresh(), 4, 0, modes[m]);
                rig_step(&r, &data, 0, 24);
                late_arm(&f);
                named(two_steps(&r, &data, &err), DP_EDEVICE_LOST, &err, d, what);
                stays_failed(&r, &data);
                assert_int_equal(dp_engine_close(r.e, &err), DP_OK);
                if (late_touched_dead()) fail_msg("%s: %d calls for what is dead", what, late_touched_dead());
                assert_non_null(strstr(r.warning, "is lost"));
                r.e = NULL;
                rig_close(&r);
                fresh();
                if (!rig_threads_back(threads)) fail_msg("%s: %d threads, %d before", what, rig_threads(), threads);
                rig_data_free(&data);
            }
}

static void dying_in_an_evaluation_or_a_save(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        rig r;
        dp_error err;
        dp_result sum = {0};
        float bias[4];
        int d = i % 4;
        rig_data data = rig_data_new(&rig_conv, 24, 3);
        rig_open(&r, &rig_conv, fresh(), 4, 0, "");
        rig_step(&r, &data, 0, 24);
        late_arm(&(late_fault){i < 4 ? LATE_FORWARD : LATE_COPY, d, 1, DP_OK, i % 2, 0, 1});
        dp_batch b = rig_batch(&data, 0, 24);
        named(i < 4 ? dp_engine_eval(r.e, &b, &sum, &err) : dp_engine_get(r.e, "fc.bias", bias, 4, &err), DP_EDEVICE_LOST, &err,
              d, "evaluation, dp_engine_get");
        rig_close(&r);
        assert_int_equal(late_touched_dead(), 0);
        rig_data_free(&data);
    }
    fresh();
}

static void a_hanging_device_is_named(void **state)
{
    (void)state;
    int threads = rig_threads();
    for (int m = 0; m < COUNT(modes); m++)
        for (int i = 0; i < COUNT(phases); i++)
            for (int d = 0; d < 4; d++) {
                rig r;
                dp_error err;
                char what[160], settings[160];
                if (!meets(modes[m], &phases[i], d) || (!rig_full() && (m + 3 * i + 5 * d) % 19)) continue;
                int event = phases[i].kind == LATE_RECORD || phases[i].kind == LATE_WAIT; /* no work: only the call can hang */
                late_fault f = {phases[i].kind, d, phases[i].nth, DP_OK, event || (m + i + d) % 2, 1, 0};
                snprintf(what, sizeof what, "%s: device %d hangs in %s, %s", modes[m], d, phases[i].name,
                         f.at_once ? "at once" : "late");
                snprintf(settings, sizeof settings, "devices.timeout_s=%s %s", rig_full() ? "3" : "1.5", modes[m]);
                rig_data data = rig_data_new(&rig_conv, 24, 3);
                rig_open(&r, &rig_conv, fresh(), 4, 0, settings);
                rig_step(&r, &data, 0, 24);
                late_arm(&f);
                named(two_steps(&r, &data, &err), DP_ETIMEOUT, &err, d, what);
                for (int k = 0; k < 4; k++) { /* for every device: where it is, and for how long */
                    char wanted[32];
                    snprintf(wanted, sizeof wanted, "device %d: ", k);
                    assert_non_null(strstr(err.text, wanted));
                }
                stays_failed(&r, &data);
                late_release();
                rig_close(&r);
                if (!rig_threads_back(threads)) fail_msg("%s: %d threads, %d before", what, rig_threads(), threads);
                rig_data_free(&data);
            }
}

/* It never comes back: close gives up, says so, and the threads that can end do. What the device may still touch has to stay for good, the
 * batch too. */
static void closing_leaves_what_hangs(void **state)
{
    static rig left[2];
    static rig_data data[2];
    (void)state;
    for (int at_once = 0; at_once < 2; at_once++) {
        dp_error err;
        int threads = rig_threads();
        rig *r = &left[at_once];
        data[at_once] = rig_data_new(&rig_conv, 24, 3);
        rig_open(r, &rig_conv, fresh(), 4, 0, "devices.timeout_s=1.5 devices.mode=balanced");
        rig_step(r, &data[at_once], 0, 24);
        late_arm(&(late_fault){LATE_FORWARD, 2, 1, DP_OK, at_once, 1, 0});
        named(two_steps(r, &data[at_once], &err), DP_ETIMEOUT, &err, 2, "hangs for good");
        assert_int_equal(dp_engine_close(r->e, &err), DP_ETIMEOUT);
        assert_non_null(strstr(err.text, "left behind"));
        if (rig_threads() > threads + at_once + 4 * DP_LANES) /* streams are the devices'; a worker that stands in a call */
            fail_msg("%d threads, %d before", rig_threads(), threads);
        assert_int_equal(dp_engine_close(r->e, &err), DP_ETIMEOUT);
    }
}

/* The snapshot outlives the device: another engine goes on from it, and ends with the bytes of one in which nothing died. */
static void the_snapshot_outlives_it(void **state)
{
    float *got[2];
    int64_t count = 0;
    static const char *const settings = "devices.shards=8 optimizer.kind=adam optimizer.momentum=0 devices.mode=balanced";
    char path[48], all[200];
    rig r;
    dp_error err;
    dp_st_in *in = NULL;
    (void)state;
    rig_data data = rig_data_new(&rig_wide, 24, 3);
    rig_open(&r, &rig_wide, fresh(), 3, 0, settings);
    for (int i = 0; i < 8; i++) rig_step(&r, &data, i % 2 * 8, 16);
    got[0] = rig_weights(&r, &count);
    rig_close(&r);
    snprintf(all, sizeof all, "devices.on_device_failure=continue run.snapshot_every=2 %s", settings);
    rig_open(&r, &rig_wide, fresh(), 3, 0, all);
    for (int i = 0; i < 5; i++) rig_step(&r, &data, i % 2 * 8, 16);
    late_arm(&(late_fault){LATE_BACKWARD, 0, 1, DP_OK, 0, 0, 1});
    dp_batch b = rig_batch(&data, 8, 16);
    named(dp_engine_step(r.e, &b, NULL, &err), DP_EDEVICE_LOST, &err, 0, "the master dies");
    assert_int_equal(dp_engine_snapshot(r.e), 4);
    int fd = memfd_create("state", MFD_CLOEXEC);
    dp_st_out *o = dp_st_out_new();
    assert_true(fd >= 0 && o);
    assert_int_equal(dp_engine_rescue(r.e, o, &err), DP_OK);
    assert_int_equal(dp_st_commit_to(o, fd, &err), DP_OK);
    dp_st_out_free(o);
    assert_int_equal(dp_engine_without(r.e, &(dp_error){.device = -1}, r.config, NULL), DP_EARGUMENT);
    assert_int_equal(dp_engine_without(r.e, &(dp_error){.device = 0}, r.config, NULL), DP_OK);
    assert_string_equal(dp_config_text(r.config, "devices.use"), "cpu:1,cpu:2");
    rig_close(&r);
    assert_int_equal(late_touched_dead(), 0);
    fresh();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    rig_open(&r, &rig_wide, fresh(), 2, 0, settings);
    assert_int_equal(dp_st_open(&in, path, &err), DP_OK);
    assert_int_equal(dp_engine_read(r.e, in, 1, &err), DP_OK);
    dp_st_close(in);
    close(fd);
    assert_int_equal(dp_engine_batches(r.e), 4);
    for (int i = 4; i < 8; i++) rig_step(&r, &data, i % 2 * 8, 16);
    got[1] = rig_weights(&r, &count);
    rig_same_bytes(got[1], got[0], (size_t)count * 4, "from the snapshot of an engine whose master died");
    rig_close(&r);
    free(got[0]);
    free(got[1]);
    rig_data_free(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dying_device_is_left_alone), cmocka_unit_test(dying_in_an_evaluation_or_a_save),
        cmocka_unit_test(a_hanging_device_is_named),    cmocka_unit_test(the_snapshot_outlives_it),
        cmocka_unit_test(closing_leaves_what_hangs),
    };
    return cmocka_run_group_tests(tests, rig_warm_up, NULL);
}
