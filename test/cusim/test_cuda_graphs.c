/* A leaf's computation as a CUDA graph: the same bytes as layer by layer, one launch a leaf, and a way back when a graph cannot be made. */
#include "engine_cuda.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* Batches of several sizes, some too small for all devices, two in flight. */
static float *trained(rig *r, const rig_data *data, int window, int64_t *n)
{
    dp_error err;
    for (int i = 0; i <= 12; i++) {
        dp_batch batch = rig_batch(data, i % 5, i % 6 == 5 ? 1 : 12 - i % 3);
        batch.epoch = (uint64_t)i;
        batch.last_of_window = i % window == window - 1;
        if (i < 12 && dp_engine_submit(r->e, &batch, &err)) fail_msg("%s", err.text);
        if (i && dp_engine_wait(r->e, NULL, &err)) fail_msg("%s", err.text);
    }
    return rig_weights(r, n);
}

/* Loss and predictions of 31 rows in leaves of 4 and one of 3, looked at three times. */
enum { LOOKED_AT = 31, MOST_OUT = LOOKED_AT * 64 };
static double looked_at(rig *r, const rig_data *data, float *out)
{
    dp_error err;
    dp_result sum = {0};
    int64_t width = r->graph->node[r->graph->out].width;
    assert_true(LOOKED_AT * width <= MOST_OUT);
    dp_batch all = rig_batch(data, 0, LOOKED_AT);
    for (int i = 0; i < 3; i++) {
        if (dp_engine_eval(r->e, &all, &sum, &err)) fail_msg("%s", err.text);
        if (dp_engine_predict(r->e, all.x, out, (size_t)(LOOKED_AT * width) * 4, &err)) fail_msg("%s", err.text);
    }
    return sum.loss_sum;
}

static const struct {
    const rig_net *net;
    const char *settings;
    int devices, window;
    int full; /* only at full scale */
} runs[] = {
    {&rig_wide, "devices.mode=dp", 1, 1, 1},
    {&rig_gpt, "devices.mode=balanced optimizer.clip_norm=0.05", 1, 1, 0},
    {&rig_conv, "devices.shards=3 data.accumulate=2", 1, 2, 0},
    {&rig_wide, "devices.mode=dp devices.overlap=off data.accumulate=2", 1, 2, 1},
    {&rig_dropout, "devices.mode=balanced devices.on_device_failure=continue run.snapshot_every=2", 1, 1, 0},
    {&rig_wide, "devices.mode=dp devices.overlap=off", 2, 1, 1},
    {&rig_conv, "devices.mode=balanced devices.bn_stats=merged", 2, 1, 0},
    {&rig_conv, "devices.mode=ddp devices.shards=3 data.accumulate=2", 2, 2, 0},
    {&rig_dropout, "devices.mode=balanced data.accumulate=3", 3, 3, 1},
    {&rig_gpt, "devices.mode=dp devices.reduce=tree devices.transport=host", 3, 1, 0},
    {&rig_gpt, "devices.mode=balanced optimizer.clip_norm=0.05", 2, 1, 1},
};

static void graphs_train_the_same_bytes(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(runs); i++) {
        if (runs[i].full && !rig_full()) continue;
        rig r;
        int64_t n, m;
        char settings[200];
        static float out[2][MOST_OUT];
        rig_data data = rig_data_new(runs[i].net, 32, 5);
        snprintf(settings, sizeof settings, "devices.graphs=off %s", runs[i].settings);
        rig_open(&r, runs[i].net, cuda(), runs[i].devices, 0, settings);
        cusim_reset();
        float *want = trained(&r, &data, runs[i].window, &m);
        double loss = looked_at(&r, &data, out[0]);
        assert_int_equal(counted().graph_launches, 0);
        rig_close(&r);
        rig_open(&r, runs[i].net, cuda(), runs[i].devices, 0, runs[i].settings);
        cusim_reset();
        float *got = trained(&r, &data, runs[i].window, &n);
        assert_true(counted().graph_launches > 0);
        assert_true(counted().live_graphs > 0);
        int64_t before = counted().graph_launches;
        assert_true(looked_at(&r, &data, out[1]) == loss);
        assert_true(counted().graph_launches > before);
        rig_same_bytes(out[0], out[1], sizeof out[0], "predictions");
        assert_int_equal(counted().captured_loads, 0); /* a kernel is never loaded in a capture */
        rig_close(&r);
        assert_int_equal(counted().live_graphs, 0);
        assert_int_equal(n, m);
        rig_same_bytes(got, want, (size_t)n * 4, runs[i].settings);
        free(got);
        free(want);
        rig_data_free(&data);
    }
}

/* In the steady state: one graph a device. A device that is alone launches nothing else; several sum, judge and step each bucket. */
static void a_step_is_few_launches(void **state)
{
    enum { STEPS = 5 };
    (void)state;
    for (int devices = 1; devices <= 3; devices++) {
        rig r;
        dp_error err;
        rig_data data = rig_data_new(&rig_gpt, 32, 5);
        rig_open(&r, &rig_gpt, cuda(), devices, 0, "devices.mode=balanced devices.bucket_mb=0.001");
        int buckets = r.e->params->n_buckets;
        assert_true(buckets > 2);
        for (int k = 0; k < 4; k++) rig_step(&r, &data, 0, 12);
        cusim_reset();
        for (int k = 0; k < STEPS; k++) rig_step(&r, &data, 0, 12);
        cusim_counters c = counted();
        assert_int_equal(c.graph_launches, STEPS * devices);
        assert_int_equal(c.library_calls, 0);
        if (devices == 1) assert_int_equal(c.launches, 0);
        int outside = devices > 1;
        /* each bucket: its sum, the squares of its norm, its update, if not all of the slice is padding; and the norm
         * of nothing, then of all, the latter on the master alone */
        assert_int_equal(cusim_calls("dp_k_sum"), outside * STEPS * devices * buckets);
        assert_int_equal(cusim_calls("dp_k_sumsq"), outside * STEPS * devices * buckets);
        assert_int_equal(cusim_calls("dp_k_norm"), outside * STEPS * (devices + 1));
        assert_true(c.launches <= STEPS * (devices * (3 * buckets + 1) + 1));
        assert_int_equal(c.allocations + c.events + c.streams + c.blocking, 0);
        if (dp_engine_settle(r.e, &err)) fail_msg("%s", err.text);
        rig_close(&r);
        rig_data_free(&data);
    }
}

/* Where others stand in between layers by layer is what runs, with a word why. */
static void what_comes_between_ends_graphs(void **state)
{
    static const char *const settings[] = {"devices.mode=classic", "devices.bn_stats=sync", "run.trace=layer",
                                           "devices.graphs=off"};
    (void)state;
    for (int i = 0; i < COUNT(settings); i++) {
        rig r;
        rig_data data = rig_data_new(&rig_conv, 32, 5);
        rig_open(&r, &rig_conv, cuda(), 2, 0, settings[i]);
        cusim_reset();
        for (int k = 0; k < 4; k++) rig_step(&r, &data, 0, 12);
        assert_int_equal(counted().graph_launches, 0);
        rig_close(&r);
        rig_data_free(&data);
    }
}

/* A soft fault while a graph is made: that device goes on layer by layer, the bytes stay, and it is said once. */
static void a_capture_that_fails_is_given_up(void **state)
{
    static const char *const calls[] = {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphGetNodes",
                                        "cudaGraphInstantiate", "cudaEventRecordWithFlags"};
    (void)state;
    int64_t n, m;
    rig r;
    rig_data data = rig_data_new(&rig_wide, 32, 5);
    rig_open(&r, &rig_wide, cuda(), 2, 0, "devices.mode=balanced devices.graphs=off");
    float *want = trained(&r, &data, 1, &m);
    rig_close(&r);
    for (int i = 0; i < COUNT(calls); i++) {
        char fault[100];
        rig_open(&r, &rig_wide, cuda(), 2, 0, "devices.mode=balanced");
        cusim_reset();
        snprintf(fault, sizeof fault, "fail:%s:1:801", calls[i]); /* not supported */
        cusim_fault(fault);
        float *got = trained(&r, &data, 1, &n);
        cusim_release();
        assert_true(counted().graph_launches > 0); /* of the other device */
        assert_non_null(strstr(r.warning, "cannot make a graph of its work"));
        rig_close(&r);
        if (counted().live_graphs) fail_msg("%s: graphs are left", calls[i]);
        rig_same_bytes(got, want, (size_t)n * 4, calls[i]);
        free(got);
    }
    free(want);
    rig_data_free(&data);
}

/* A device that dies in a launch is lost; nothing of it is touched again. */
static void a_launch_that_kills_is_a_lost_device(void **state)
{
    (void)state;
    rig r;
    dp_error err;
    dp_result result;
    const char *sanitizer = getenv("DP_SANITIZER");
    if (sanitizer && !strcmp(sanitizer, "asan")) skip(); /* what is left behind on the host is a leak */
    rig_data data = rig_data_new(&rig_wide, 32, 5);
    rig_open(&r, &rig_wide, cuda(), 2, 0, "devices.mode=balanced");
    for (int k = 0; k < 3; k++) rig_step(&r, &data, 0, 12);
    cusim_fault("fail:cudaGraphLaunch:1:719");
    dp_batch batch = rig_batch(&data, 0, 12);
    assert_int_equal(dp_engine_step(r.e, &batch, &result, &err), DP_EDEVICE_LOST);
    assert_non_null(strstr(err.text, "cudaGraphLaunch returned 719"));
    cusim_release();
    rig_close(&r);
    rig_data_free(&data);
}

static int setup(void **state)
{
    (void)state;
    return setenv("CUSIM_DEVICES", "4", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_train_the_same_bytes),          cmocka_unit_test(a_step_is_few_launches),
        cmocka_unit_test(what_comes_between_ends_graphs),       cmocka_unit_test(a_capture_that_fails_is_given_up),
        cmocka_unit_test(a_launch_that_kills_is_a_lost_device),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
