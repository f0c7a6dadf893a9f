/* devices.on_device_failure = continue: a device is lost in each phase, under every update mode, and training goes on without it. With
 * shards = 8 every result and the trained bytes are those of a run in which nothing failed. */
#include "engine_rig.h"
#include <unistd.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
enum { WATCHDOG_S = 240, STEPS = 7, ROWS = 16, MICRO_MAX = 3 * STEPS };

typedef struct course { /* of a run */
    dp_result result[MICRO_MAX];
    float *weights;
    int64_t count;
    int devices, n;
    char warning[1024];
} course;

typedef struct plan {
    const rig_net *net;
    const char *settings;
    int devices, accumulate, ahead; /* ahead: two in flight */
    int fail_at;                    /* batch before which the faults are armed */
    const late_fault *fault;
    int n_faults;
} plan;

static dp_status follow(const plan *p, course *c, dp_error *err)
{
    rig r;
    char settings[256];
    rig_data data = rig_data_new(p->net, ROWS * 3, 5);
    const dp_backend *b = late_backend(&(late_options){.seed = 2, .delay_us = 20});
    dp_status status = DP_OK;
    int batches = STEPS * p->accumulate, submitted = 0;
    alarm(WATCHDOG_S);
    memset(c, 0, sizeof *c);
    snprintf(settings, sizeof settings, "devices.timeout_s=20 data.accumulate=%d %s", p->accumulate, p->settings);
    rig_open(&r, p->net, b, p->devices, 0, settings);
    for (int i = 0; i < batches && !status; i++) {
        for (; submitted < batches && submitted <= i + p->ahead && !status; submitted++) {
            dp_batch batch = rig_batch(&data, submitted % 3 * ROWS, ROWS);
            batch.last_of_window = submitted % p->accumulate == p->accumulate - 1;
            batch.epoch = (uint64_t)submitted;
            dp_engine_set_lr(r.e, 0.1 / (1 + submitted));
            if (submitted == p->fail_at)
                for (int f = 0; f < p->n_faults; f++) late_arm(&p->fault[f]);
            status = dp_engine_submit(r.e, &batch, err);
        }
        if (!status) status = dp_engine_wait(r.e, &c->result[i], err);
        c->n += !status;
    }
    c->devices = dp_engine_devices(r.e);
    memcpy(c->warning, r.warning, sizeof c->warning);
    if (!status) c->weights = rig_weights(&r, &c->count);
    rig_close(&r);
    rig_data_free(&data);
    return status;
}

static void same_course(const course *a, const course *b, const char *what)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        const dp_result *x = &a->result[i], *y = &b->result[i];
        if (x->step != y->step || x->step != i || x->samples != y->samples || x->targets != y->targets ||
            x->correct != y->correct || memcmp(&x->loss_sum, &y->loss_sum, 8) || memcmp(&x->grad_norm, &y->grad_norm, 8) ||
            x->lr != y->lr || x->updates != y->updates)
            fail_msg("%s: batch %d: step %lld, loss %.17g, norm %.17g, updates %lld; wanted %lld, %.17g, %.17g, %lld", what, i,
                     (long long)x->step, x->loss_sum, x->grad_norm, (long long)x->updates, (long long)y->step, y->loss_sum,
                     y->grad_norm, (long long)y->updates);
    }
    assert_int_equal(a->count, b->count);
    rig_same_bytes(a->weights, b->weights, (size_t)a->count * 4, what);
}

static const char *const goes_on = "devices.on_device_failure=continue run.snapshot_every=2 devices.shards=8";

static void settings_of(char *text, size_t size, const char *more)
{
    snprintf(text, size, "%s %s", goes_on, more);
}

/* Which calls this device makes under these settings. */
static int meets(const late_fault *f, const char *settings)
{
    int master_only = strstr(settings, "mode=dp") || strstr(settings, "mode=classic") || !*settings;
    if (f->kind == LATE_UPDATE || f->kind == LATE_NORM) return !master_only || f->device == 0;
    if (f->kind == LATE_LOSS) return !strstr(settings, "mode=classic") || f->device == 0;
    return 1;
}

static void every_device_in_every_phase(void **state)
{
    static const struct {
        const char *name;
        late_kind kind;
        int64_t nth;
    } phase[] = {{"upload", LATE_COPY, 1},       {"forward", LATE_FORWARD, 2}, {"loss", LATE_LOSS, 1},
                 {"backward", LATE_BACKWARD, 1}, {"reduce", LATE_SUM, 1},      {"update", LATE_UPDATE, 1},
                 {"arrival", LATE_COPY, 9},      {"late copy", LATE_COPY, 14}, {"event", LATE_RECORD, 5}};
    static const char *const mode[] = {"devices.mode=dp", "devices.mode=balanced", "devices.mode=ddp", "devices.mode=classic"};
    (void)state;
    for (int m = 0; m < COUNT(mode); m++) {
        char settings[256], what[128];
        course clean, broken;
        dp_error err;
        settings_of(settings, sizeof settings, mode[m]);
        plan p = {.net = &rig_wide, .settings = settings, .devices = 4, .accumulate = 1, .ahead = 1};
        assert_int_equal(follow(&p, &clean, &err), DP_OK);
        assert_int_equal(clean.devices, 4);
        for (int i = 0; i < COUNT(phase); i++)
            for (int d = 0; d < 4; d++) {
                if (!rig_full() && d != ((i + m) % 2 ? 1 + (i + m) / 2 % 3 : 0)) continue; /* the master, another in turn */
                late_fault f = {phase[i].kind, d, phase[i].nth, i % 3 == 2 ? DP_ENOMEM : DP_EDEVICE, (i + d) % 2, 0, 0};
                snprintf(what, sizeof what, "%s, %s of device %d, %s", mode[m], phase[i].name, d,
                         f.at_once ? "at once" : "late");
                p.fault = &f, p.n_faults = 1, p.fail_at = 2 + (i + d) % 4;
                if (follow(&p, &broken, &err)) fail_msg("%s: %s", what, err.text);
                if (broken.devices != 4 - meets(&f, mode[m])) fail_msg("%s: %d devices", what, broken.devices);
                same_course(&broken, &clean, what);
                snprintf(what, sizeof what, ":%d failed in ", d);
                if (meets(&f, mode[m]) && !strstr(broken.warning, what)) fail_msg("no \"%s\" in: %s", what, broken.warning);
                free(broken.weights);
            }
        free(clean.weights);
    }
}

/* Each with its own trap: statistics of batchnorm, dropout, adam's two slices, windows, the first snapshot, no run-ahead. */
static void other_runs(void **state)
{
    static const struct {
        const rig_net *net;
        const char *settings;
        int accumulate, fail_at;
        late_fault fault[2];
    } cases[] = {
        {&rig_conv, "devices.mode=dp", 1, 3, {{LATE_FORWARD, 0, 3, DP_EDEVICE, 0, 0, 0}}},
        {&rig_conv, "devices.mode=balanced devices.bn_stats=merged", 1, 3, {{LATE_BACKWARD, 0, 2, DP_EDEVICE, 0, 0, 0}}},
        {&rig_dropout, "devices.mode=ddp", 1, 4, {{LATE_FORWARD, 1, 3, DP_EDEVICE, 0, 0, 0}}},
        {&rig_wide,
         "devices.mode=balanced optimizer.kind=adam optimizer.momentum=0",
         1,
         5,
         {{LATE_SUM, 2, 1, DP_EDEVICE, 0, 0, 0}}},
        {&rig_wide,
         "devices.mode=ddp optimizer.kind=adam optimizer.momentum=0",
         1,
         5,
         {{LATE_UPDATE, 3, 2, DP_EDEVICE, 1, 0, 0}}},
        {&rig_wide, "devices.mode=dp optimizer.clip_norm=0.5", 3, 10, {{LATE_BACKWARD, 1, 1, DP_EDEVICE, 0, 0, 0}}},
        {&rig_wide, "devices.mode=balanced", 3, 10, {{LATE_BACKWARD, 0, 3, DP_EDEVICE, 0, 0, 0}}},
        {&rig_wide, "devices.mode=ddp", 3, 13, {{LATE_FORWARD, 3, 1, DP_EDEVICE, 1, 0, 0}}},
        {&rig_wide, "devices.mode=dp", 1, 0, {{LATE_FORWARD, 0, 9, DP_EDEVICE, 0, 0, 0}}}, /* before the first of its own */
        {&rig_wide, "devices.mode=balanced", 1, 1, {{LATE_UPDATE, 1, 1, DP_EDEVICE, 0, 0, 0}}},
        {&rig_wide, "devices.mode=balanced run.snapshot_every=1", 1, 4, {{LATE_UPDATE, 1, 1, DP_EDEVICE, 0, 0, 0}}},
        {&rig_wide, "devices.mode=ddp run.snapshot_every=100", 1, 5, {{LATE_LOSS, 2, 1, DP_EDEVICE, 0, 0, 0}}},
        /* Two in a row: the second while the first is being made good, or soon after. */
        {&rig_wide,
         "devices.mode=balanced",
         1,
         4,
         {{LATE_FORWARD, 1, 1, DP_EDEVICE, 0, 0, 0}, {LATE_BACKWARD, 2, 20, DP_EDEVICE, 0, 0, 0}}},
        {&rig_wide,
         "devices.mode=dp",
         1,
         4,
         {{LATE_FORWARD, 0, 1, DP_EDEVICE, 1, 0, 0}, {LATE_FORWARD, 1, 30, DP_EDEVICE, 0, 0, 0}}},
        {&rig_wide,
         "devices.mode=ddp",
         1,
         4,
         {{LATE_UPDATE, 3, 1, DP_EDEVICE, 0, 0, 0}, {LATE_UPDATE, 0, 5, DP_EDEVICE, 0, 0, 0}}},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++)
        for (int ahead = 0; ahead < 2; ahead++) {
            char settings[256], what[300];
            course clean, broken;
            dp_error err;
            int n = 1 + (cases[i].fault[1].nth > 0);
            settings_of(settings, sizeof settings, cases[i].settings);
            snprintf(what, sizeof what, "case %d, %s", i, settings);
            plan p = {cases[i].net, settings, 4, cases[i].accumulate, ahead, cases[i].fail_at, NULL, 0};
            assert_int_equal(follow(&p, &clean, &err), DP_OK);
            p.fault = cases[i].fault, p.n_faults = n;
            if (follow(&p, &broken, &err)) fail_msg("%s: %s", what, err.text);
            if (broken.devices != 4 - n) fail_msg("%s: %d devices; %s", what, broken.devices, broken.warning);
            same_course(&broken, &clean, what);
            free(clean.weights);
            free(broken.weights);
        }
}

static void down_to_one_and_none(void **state)
{
    course clean, broken;
    dp_error err;
    char settings[256];
    static const char *const mode[] = {"devices.mode=dp", "devices.mode=balanced", "devices.mode=ddp"};
    (void)state;
    for (int m = 0; m < COUNT(mode); m++) {
        settings_of(settings, sizeof settings, mode[m]);
        plan p = {&rig_wide, settings, 2, 1, 1, 3, NULL, 0};
        assert_int_equal(follow(&p, &clean, &err), DP_OK);
        late_fault f[] = {{LATE_FORWARD, 0, 1, DP_EDEVICE, 0, 0, 0}, {LATE_FORWARD, 1, 60, DP_EDEVICE, 0, 0, 0}};
        p.fault = f, p.n_faults = 1;
        if (follow(&p, &broken, &err)) fail_msg("%s", err.text);
        assert_int_equal(broken.devices, 1);
        same_course(&broken, &clean, "one is left");
        free(broken.weights);
        p.n_faults = 2;
        assert_int_equal(follow(&p, &broken, &err), DP_EDEVICE);
        assert_int_equal(err.code, DP_EDEVICE);
        assert_true(broken.n >= 2 && broken.n < STEPS);
        assert_int_equal(broken.devices, 1);
        free(clean.weights);
    }
}

/* Without shards the sums have another order: equal to rounding. weights: one less. */
static void without_shards(void **state)
{
    static const char *const settings[] = {"devices.on_device_failure=continue run.snapshot_every=2 devices.mode=dp",
                                           "devices.on_device_failure=continue run.snapshot_every=2 devices.mode=balanced "
                                           "devices.split=weights devices.weights=3,1,2,2",
                                           "devices.on_device_failure=continue run.snapshot_every=3 devices.mode=classic"};
    (void)state;
    for (int i = 0; i < COUNT(settings); i++) {
        course clean, broken;
        dp_error err;
        late_fault f = {LATE_BACKWARD, 1, 1, DP_EDEVICE, 0, 0, 0};
        plan p = {&rig_wide, settings[i], 4, 1, 1, 3, NULL, 0};
        assert_int_equal(follow(&p, &clean, &err), DP_OK);
        p.fault = &f, p.n_faults = 1;
        if (follow(&p, &broken, &err)) fail_msg("%s", err.text);
        assert_int_equal(broken.devices, 3);
        assert_true(rig_distance(broken.weights, clean.weights, clean.count) <
                    1e-5); /* float sums of 16 rows in another order */
        free(clean.weights);
        free(broken.weights);
    }
}

static void the_list_of_devices(void **state)
{
    static const struct {
        int lost;
        const char *use, *weights;
    } cases[] = {{0, "cpu:1,cpu:2", "1,2"}, {1, "cpu:0,cpu:2", "3,2"}, {2, "cpu:0,cpu:1", "3,1"}};
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        rig r;
        dp_error err;
        rig_open(&r, &rig_mlp, dp_backend_cpu(), 3, 0, "devices.split=weights devices.weights=3,1,2");
        assert_int_equal(dp_config_without(r.config, r.e, cases[i].lost, &err), DP_OK);
        assert_string_equal(dp_config_text(r.config, "devices.use"), cases[i].use);
        assert_string_equal(dp_config_text(r.config, "devices.weights"), cases[i].weights);
        rig_close(&r);
    }
}

/* What the engine has counted goes on; spans, links and loaders of the devices that are left stay good. */
static void what_survives(void **state)
{
    rig r;
    dp_device_stats before[4], after;
    dp_link link, link_before;
    rig_data data = rig_data_new(&rig_wide, ROWS, 5);
    char settings[256];
    const dp_backend *b = late_backend(&(late_options){.seed = 2});
    (void)state;
    settings_of(settings, sizeof settings, "devices.mode=balanced");
    rig_open(&r, &rig_wide, b, 4, 0, settings);
    for (int i = 0; i < 4; i++) rig_step(&r, &data, 0, ROWS);
    for (int d = 0; d < 4; d++) assert_int_equal(dp_engine_stats(r.e, d, &before[d]), 1);
    assert_int_equal(dp_engine_link(r.e, 0, 3, &link_before), 1);
    late_arm(&(late_fault){LATE_FORWARD, 1, 1, DP_EDEVICE, 0, 0, 0});
    rig_step(&r, &data, 0, ROWS);
    assert_int_equal(dp_engine_devices(r.e), 3);
    static const int was[] = {0, 2, 3};
    for (int d = 0; d < 3; d++) {
        double sum = 0;
        assert_int_equal(dp_engine_stats(r.e, d, &after), 1);
        assert_string_equal(after.name, before[was[d]].name);
        assert_true(after.steps > before[was[d]].steps && after.busy > before[was[d]].busy);
        assert_true(after.bytes_in > before[was[d]].bytes_in && after.bytes_out > before[was[d]].bytes_out);
        for (int i = 0; i < DP_PHASES; i++) sum += after.phase[i];
        assert_true(sum <= dp_now() - r.e->opened_at + 1e-3); /* no second is booked twice */
    }
    assert_int_equal(dp_engine_stats(r.e, 3, &after), 0);
    assert_int_equal(dp_engine_link(r.e, 0, 2, &link), 1);
    assert_true(link.bytes > link_before.bytes);
    rig_close(&r);
    rig_data_free(&data);
}

static void the_settings_must_fit(void **state)
{
    rig r;
    dp_error err;
    (void)state;
    assert_int_equal(rig_try(&r, &rig_mlp, dp_backend_cpu(), 2, 0, "devices.on_device_failure=continue", &err), DP_ECONFIG);
    assert_non_null(strstr(err.text, "run.snapshot_every"));
    rig_close(&r);
    assert_int_equal(rig_try(&r, &rig_mlp, dp_backend_cpu(), 2, 0, "run.snapshot_every=3", &err), DP_ECONFIG);
    assert_non_null(strstr(err.text, "on_device_failure"));
    rig_close(&r);
}

/* Values put in from outside are what it goes back to. */
static void after_put(void **state)
{
    float bias[4] = {1, 2, 3, 4};
    float *got[2];
    int64_t count = 0;
    (void)state;
    for (int broken = 0; broken < 2; broken++) {
        rig r;
        dp_error err;
        char settings[256];
        rig_data data = rig_data_new(&rig_wide, ROWS, 5);
        settings_of(settings, sizeof settings, "devices.mode=dp run.snapshot_every=50");
        rig_open(&r, &rig_wide, late_backend(&(late_options){.seed = 4}), 3, 0, settings);
        rig_step(&r, &data, 0, ROWS);
        assert_int_equal(dp_engine_put(r.e, "fc3.bias", bias, 4, &err), DP_OK);
        if (broken) late_arm(&(late_fault){LATE_BACKWARD, 0, 3, DP_EDEVICE, 0, 0, 0});
        rig_step(&r, &data, 0, ROWS);
        rig_step(&r, &data, 0, ROWS);
        assert_int_equal(dp_engine_devices(r.e), 3 - broken);
        got[broken] = rig_weights(&r, &count);
        rig_close(&r);
        rig_data_free(&data);
    }
    rig_same_bytes(got[0], got[1], (size_t)count * 4, "after dp_engine_put");
    free(got[0]);
    free(got[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_device_in_every_phase), cmocka_unit_test(other_runs),
        cmocka_unit_test(down_to_one_and_none),        cmocka_unit_test(without_shards),
        cmocka_unit_test(the_list_of_devices),         cmocka_unit_test(what_survives),
        cmocka_unit_test(the_settings_must_fit),       cmocka_unit_test(after_put),
    };
    return cmocka_run_group_tests(tests, rig_warm_up, NULL);
}
