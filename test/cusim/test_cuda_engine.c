/* The engine on simulated GPUs: the strict properties of test/unit, in every mode and over both transports, and what a step may cost. */
#include "engine_cuda.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
enum { MOST = 8 };

static float *trained(const rig_net *net, int devices, int leaves, const char *settings, const rig_data *data, int64_t *n)
{
    rig r;
    dp_error err;
    dp_result result = {0};
    rig_open(&r, net, cuda(), devices, leaves, settings);
    int window = strstr(settings, "accumulate=2") ? 2 : 1;
    for (int i = 0; i <= 6; i++) { /* two in flight; some devices idle now and then */
        dp_batch batch = rig_batch(data, i % 5, i % 4 == 3 ? 3 : 12 - i % 3);
        batch.epoch = (uint64_t)i;
        batch.last_of_window = i % window == window - 1;
        if (i < 6 && dp_engine_submit(r.e, &batch, &err)) fail_msg("%s: %s", settings, err.text);
        if (i && dp_engine_wait(r.e, NULL, &err)) fail_msg("%s: %s", settings, err.text);
    }
    dp_batch all = rig_batch(data, 0, 24);
    if (dp_engine_eval(r.e, &all, &result, &err)) fail_msg("%s: %s", settings, err.text);
    float *w = rig_weights(&r, n);
    rig_close(&r);
    return w;
}

static const char *const modes[] = {
    "devices.mode=dp",
    "devices.mode=balanced",
    "devices.mode=ddp",
    "devices.mode=classic",
    "devices.mode=dp devices.reduce=tree devices.loss=master",
    "devices.mode=balanced optimizer.clip_norm=0.05 data.accumulate=2",
    "devices.mode=ddp run.on_nan=warn data.accumulate=2",
    "devices.mode=balanced devices.bn_stats=merged",
};
static const char *const transports[] = {"", "devices.transport=host"};

/* shards: the trained bytes do not depend on the number of devices, the mode, or the transport. */
static void shards_train_the_same_bytes(void **state)
{
    static const rig_net *const nets[] = {&rig_wide, &rig_conv, &rig_dropout, &rig_gpt};
    (void)state;
    for (int i = 0; i < COUNT(modes); i++) {
        const rig_net *net = nets[i % COUNT(nets)];
        rig_data data = rig_data_new(net, 32, 5);
        char settings[200], plain[200];
        int64_t n, m;
        snprintf(plain, sizeof plain, "devices.shards=4 %s %s %s", strstr(modes[i], "accumulate") ? "data.accumulate=2" : "",
                 strstr(modes[i], "clip") ? "optimizer.clip_norm=0.05" : "",
                 strstr(modes[i], "merged") ? "devices.bn_stats=merged" : "");
        float *want = trained(net, 1, 0, plain, &data, &m);
        for (int devices = 1; devices <= 4; devices++) {
            if (!rig_full() && devices > 1 && (devices + i) % 2) continue;
            for (int t = 0; t < COUNT(transports); t++) {
                char what[300];
                snprintf(settings, sizeof settings, "devices.shards=4 %s %s", modes[i], transports[t]);
                snprintf(what, sizeof what, "%s on %d devices, %s", net->name, devices, settings);
                float *got = trained(net, devices, 0, settings, &data, &n);
                assert_int_equal(n, m);
                rig_same_bytes(got, want, (size_t)n * 4, what);
                free(got);
            }
        }
        free(want);
        rig_data_free(&data);
    }
}

/* N devices equal one that runs the same leaves. */
static void devices_equal_their_leaves(void **state)
{
    static const char *const splits[] = {"devices.split=chunk", "devices.split=even"};
    (void)state;
    rig_data data = rig_data_new(&rig_conv, 32, 5);
    for (int devices = 2; devices <= (rig_full() ? 8 : 4); devices++)
        for (int i = 0; i < COUNT(splits); i++) {
            char settings[100];
            int64_t n, m;
            snprintf(settings, sizeof settings, "%s devices.mode=balanced", splits[i]);
            float *got = trained(&rig_conv, devices, 0, settings, &data, &n);
            float *want = trained(&rig_conv, 1, devices, splits[i], &data, &m);
            rig_same_bytes(got, want, (size_t)n * 4, settings);
            free(got);
            free(want);
        }
    rig_data_free(&data);
}

/* GPUs and CPU come to the same to rounding. */
static void the_cpu_agrees(void **state)
{
    static const rig_net *const nets[] = {&rig_wide, &rig_conv, &rig_gpt, &rig_dropout};
    (void)state;
    for (int i = 0; i < COUNT(nets); i++) {
        rig gpu, cpu;
        int64_t n, m;
        rig_data data = rig_data_new(nets[i], 32, 5);
        rig_open(&gpu, nets[i], cuda(), 2, 0, "devices.mode=balanced");
        rig_open(&cpu, nets[i], dp_backend_cpu(), 2, 0, "devices.mode=balanced");
        dp_result a = rig_step(&gpu, &data, 0, 12), b = rig_step(&cpu, &data, 0, 12);
        assert_true(a.loss_sum - b.loss_sum < 1e-4 * b.loss_sum && b.loss_sum - a.loss_sum < 1e-4 * b.loss_sum);
        float *g = rig_gradient(&gpu, &n), *h = rig_gradient(&cpu, &m);
        double distance = rig_tensor_distance(&cpu, g, h, 1);
        if (distance > (nets[i]->smooth ? 1e-4 : 5e-3)) fail_msg("%s: gradients differ by %g", nets[i]->name, distance);
        free(g);
        free(h);
        rig_close(&gpu);
        rig_close(&cpu);
        rig_data_free(&data);
    }
}

/* In the steady state a step creates, allocates, blocks and stages nothing, and no thread but a worker calls the runtime. */
static void a_step_costs_what_it_may(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        for (int t = 0; t < COUNT(transports); t++) {
            rig r;
            cusim_counters c;
            char settings[120];
            rig_data data = rig_data_new(&rig_conv, 32, 5);
            snprintf(settings, sizeof settings, "%s %s", modes[i], transports[t]);
            rig_open(&r, &rig_conv, cuda(), 3, 0, settings);
            for (int k = 0; k < 3; k++) rig_step(&r, &data, 0, 12);
            cusim_reset();
            for (int k = 0; k < 10; k++) rig_step(&r, &data, 0, 12);
            cusim_read(&c);
            assert_true(c.launches > 0);
            assert_int_equal(c.allocations, 0);
            assert_int_equal(c.pinned, 0);
            assert_int_equal(c.streams, 0);
            assert_int_equal(c.events, 0);
            assert_int_equal(c.descriptors, 0);
            assert_int_equal(c.blocking, 0);
            assert_int_equal(c.contexts, 0);
            assert_int_equal(c.implicit, 0);
            assert_int_equal(c.unmapped_copies, 0);
            if (!rig_full()) assert_int_equal(cusim_has_context(7), 0); /* no device but the chosen ones */
            rig_close(&r);
            rig_data_free(&data);
        }
}

/* The simulator's own count of bytes between devices and to the host is the engine's. */
static void bytes_are_those_of_the_table(void **state)
{
    (void)state;
    rig_data data = rig_data_new(&rig_wide, 24, 3);
    for (int n = 2; n <= 4; n++) {
        rig r;
        dp_device_stats before[MOST], after;
        rig_open(&r, &rig_wide, cuda(), n, 0, "devices.mode=balanced devices.transport=host");
        rig_step(&r, &data, 0, 24);
        rig_step(&r, &data, 0, 24);
        for (int d = 0; d < n; d++) dp_engine_stats(r.e, d, &before[d]);
        for (int k = 0; k < 3; k++) rig_step(&r, &data, 0, 24);
        int64_t p = r.e->params->count * 4;
        for (int d = 0; d < n; d++) {
            dp_engine_stats(r.e, d, &after);
            assert_int_equal(after.bytes_in - before[d].bytes_in, 3 * 2 * (n - 1) * p / n);
            assert_int_equal(after.bytes_out - before[d].bytes_out, 3 * p);
        }
        rig_close(&r);
    }
    rig_data_free(&data);
}

/* Every preset moves on GPUs what it moves on CPU devices, where test_bytes.c compares with the table; 8 devices train the bytes of one. */
static void presets_move_what_they_move_on_cpus(void **state)
{
    static const int counts[] = {1, 2, 3, 4, 8};
    (void)state;
    rig_data data = rig_data_new(&rig_conv, 32, 5);
    float *one = NULL;
    int64_t n, m;
    for (int mode = 0; mode < 4; mode++)
        for (int i = 0; i < COUNT(counts); i++) {
            const int devices = counts[i];
            rig gpu, cpu;
            dp_device_stats a, b;
            char settings[120];
            if (!rig_full() && devices == 3 && mode % 2) continue;
            snprintf(settings, sizeof settings, "devices.shards=8 %s", modes[mode]);
            rig_open(&gpu, &rig_conv, cuda(), devices, 0, settings);
            rig_open(&cpu, &rig_conv, dp_backend_cpu(), devices, 0, settings);
            for (int k = 0; k < 4; k++) {
                rig_step(&gpu, &data, k, 24);
                rig_step(&cpu, &data, k, 24);
            }
            for (int d = 0; d < devices; d++) {
                assert_true(dp_engine_stats(gpu.e, d, &a) && dp_engine_stats(cpu.e, d, &b));
                /* alone: the update's run block is the leaf's, once a graph holds both */
                if (a.bytes_in != b.bytes_in || a.bytes_out != b.bytes_out || (devices > 1 && a.host_in != b.host_in))
                    fail_msg(
                        "%s, device %d of %d: in %lld, wanted %lld; out %lld, wanted %lld; from the host %lld, wanted %lld",
                        settings, d, devices, (long long)a.bytes_in, (long long)b.bytes_in, (long long)a.bytes_out,
                        (long long)b.bytes_out, (long long)a.host_in, (long long)b.host_in);
            }
            float *w = rig_weights(&gpu, &n);
            if (!one) {
                one = w, m = n;
            } else {
                assert_int_equal(n, m);
                rig_same_bytes(w, one, (size_t)n * 4, settings);
                free(w);
            }
            rig_close(&gpu);
            rig_close(&cpu);
        }
    free(one);
    rig_data_free(&data);
}

/* P35, P36: a pair that flips bits goes through the host, with a word; one that hangs, or `peer` alone, is refused with advice. */
static void broken_peers_are_found(void **state)
{
    (void)state;
    rig r;
    dp_error err;
    int64_t n, m;
    rig_data data = rig_data_new(&rig_wide, 32, 5);
    float *want = trained(&rig_wide, 3, 0, "devices.mode=balanced", &data, &m);
    cusim_fault("corrupt:2:1");
    float *got = trained(&rig_wide, 3, 0, "devices.mode=balanced", &data, &n);
    rig_same_bytes(got, want, (size_t)n * 4, "over a pair that flips bits");
    rig_open(&r, &rig_wide, cuda(), 3, 0, "");
    assert_non_null(strstr(r.warning, "Device 1 reads wrong bytes from device 2"));
    rig_close(&r);
    assert_int_equal(rig_try(&r, &rig_wide, cuda(), 3, 0, "devices.transport=peer", &err), DP_ECONFIG);
    rig_close(&r);
    cusim_release();
    cusim_fault("nopeer:0:1");
    free(got);
    got = trained(&rig_wide, 3, 0, "devices.mode=dp", &data, &n);
    cusim_release();
    float *dp = trained(&rig_wide, 3, 0, "devices.mode=dp", &data, &m);
    rig_same_bytes(got, dp, (size_t)n * 4, "past a pair without access");
    free(dp);
    free(got);
    free(want);
    rig_data_free(&data);
}

static int setup(void **state)
{
    (void)state;
    return setenv("CUSIM_DEVICES", "8", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_train_the_same_bytes),
        cmocka_unit_test(devices_equal_their_leaves),
        cmocka_unit_test(the_cpu_agrees),
        cmocka_unit_test(a_step_costs_what_it_may),
        cmocka_unit_test(bytes_are_those_of_the_table),
        cmocka_unit_test(presets_move_what_they_move_on_cpus),
        cmocka_unit_test(broken_peers_are_found),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
