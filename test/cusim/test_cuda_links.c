/* Routes between simulated GPUs (devices.transport): equal bytes over each, no driver call that a step may not make, and what becomes of
 * pairs that are missing, wrong, stuck or too many (P35, P36, P37). */
#include "engine_cuda.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static float *trained(const rig_net *net, int devices, const char *settings, const rig_data *data, int64_t *n)
{
    rig r;
    dp_error err;
    rig_open(&r, net, cuda(), devices, 0, settings);
    for (int i = 0; i <= 4; i++) {
        dp_batch batch = rig_batch(data, i, i == 2 ? 3 : 12);
        if (i < 4 && dp_engine_submit(r.e, &batch, &err)) fail_msg("%s: %s", settings, err.text);
        if (i && dp_engine_wait(r.e, NULL, &err)) fail_msg("%s: %s", settings, err.text);
    }
    float *w = rig_weights(&r, n);
    rig_close(&r);
    return w;
}

/* ---- groups ---- */

typedef struct told {
    char text[2048];
} told;

static void keep(void *user, dp_level level, const char *text)
{
    told *t = user;
    size_t at = strlen(t->text);
    if (level >= DP_LOG_INFO) snprintf(t->text + at, sizeof t->text - at, "%s\n", text);
}

static dp_status group_try(dp_group **g, told *t, const char *use, const char *transport, const char *timeout_s, dp_error *err)
{
    memset(t, 0, sizeof *t);
    dp_config *c = dp_config_new(keep, t);
    assert_non_null(c);
    assert_int_equal(dp_config_set(c, "devices.use", use), DP_OK);
    assert_int_equal(dp_config_set(c, "devices.transport", transport), DP_OK);
    assert_int_equal(dp_config_set(c, "devices.timeout_s", timeout_s), DP_OK);
    dp_status status = dp_group_open(g, c, err);
    dp_config_free(c);
    return status;
}

static int lines(const char *text)
{
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

/* P37: the driver's limit costs a pair its short way, not the run; among the chosen devices only. The first test: access stays. */
static void too_many_peers(void **state)
{
    int64_t n, m;
    told t;
    dp_error err;
    dp_group *g;
    dp_link l;
    int host = 0;
    (void)state;
    cusim_fault("peers:1");
    assert_int_equal(group_try(&g, &t, "cuda:0,cuda:1,cuda:2", "auto", "30", &err), DP_OK);
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++)
            if (dp_group_link(g, from, to, &l)) host += !strcmp(l.kind, "host");
    rig_data data = rig_data_new(&rig_conv, 32, 5);
    float *want = trained(&rig_conv, 3, "devices.transport=host", &data, &m);
    float *got = trained(&rig_conv, 3, "", &data, &n); /* and no error of the runtime is left to be found by a launch */
    rig_same_bytes(got, want, (size_t)n * 4, "with too many peers");
    free(got);
    free(want);
    rig_data_free(&data);
    assert_int_equal(host, 3);
    assert_int_equal(lines(t.text), 1);
    assert_non_null(strstr(t.text, "3 of 6 pairs"));
    assert_int_equal(dp_group_close(g, &err), DP_OK);
    assert_int_equal(group_try(&g, &t, "cuda:3,cuda:4", "peer", "30", &err), DP_OK); /* others do not count */
    assert_string_equal(t.text, "");
    assert_int_equal(dp_group_close(g, &err), DP_OK);
    cusim_release();
}

/* P36. */
static void wrong_bytes_are_found(void **state)
{
    told t;
    dp_error err;
    dp_group *g;
    dp_link l;
    static const char *const strict[] = {"peer", "copy"};
    (void)state;
    cusim_fault("corrupt:1:0");
    assert_int_equal(group_try(&g, &t, "cuda:0,cuda:1", "auto", "30", &err), DP_OK);
    assert_int_equal(dp_group_link(g, 1, 0, &l), 1);
    assert_string_equal(l.kind, "host");
    assert_int_equal(dp_group_link(g, 0, 1, &l), 1);
    assert_string_equal(l.kind, "peer");
    assert_non_null(strstr(t.text, "Device 0 reads wrong bytes from device 1"));
    assert_non_null(strstr(t.text, "cuda:0 (0000:"));
    assert_non_null(strstr(t.text, "cuda:1 (0000:"));
    assert_non_null(strstr(t.text, "IOMMU"));
    assert_int_equal(dp_group_close(g, &err), DP_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(group_try(&g, &t, "cuda:0,cuda:1", strict[i], "30", &err), DP_ECONFIG);
        assert_non_null(strstr(err.text, strict[i]));
        assert_non_null(strstr(err.text, "use auto or host"));
    }
    cusim_release();
}

/* P35: a read that never ends. */
static void a_stuck_pair_is_refused_with_advice(void **state)
{
    told t;
    dp_error err;
    dp_group *g;
    const char *sanitizer = getenv("DP_SANITIZER");
    (void)state;
    if (sanitizer && !strcmp(sanitizer, "asan")) skip(); /* what is left behind on the host is a leak */
    cusim_fault("stall:1:0");
    double begin = dp_now();
    assert_int_equal(group_try(&g, &t, "cuda:0,cuda:1", "auto", "1", &err), DP_ETIMEOUT);
    assert_true(dp_now() - begin < 30);
    assert_non_null(strstr(err.text, "cuda:0 (0000:"));
    assert_non_null(strstr(err.text, "cuda:1 (0000:"));
    assert_non_null(strstr(err.text, "ACS"));
    assert_non_null(strstr(err.text, "set devices.transport = host"));
    if (group_try(&g, &t, "cuda:2,cuda:3", "host", "30", &err)) fail_msg("%s", err.text);
    assert_int_equal(dp_group_close(g, &err), DP_OK);
    cusim_release();
}

/* With a pair that has no access or flips bits, kernels and the host are mixed. */
static void every_route_trains_the_same_bytes(void **state)
{
    static const char *const modes[] = {"devices.mode=dp",
                                        "devices.mode=balanced",
                                        "devices.mode=ddp",
                                        "devices.mode=classic",
                                        "devices.mode=dp devices.reduce=tree",
                                        "devices.mode=balanced devices.bn_stats=sync",
                                        "devices.mode=dp devices.bn_stats=merged"};
    static const struct {
        const char *settings, *fault;
    } routes[] = {
        {"devices.transport=peer", NULL},          {"devices.transport=copy", NULL},
        {"devices.transport=host", NULL},          {"devices.transport=auto", "nopeer:0:1"},
        {"devices.transport=auto", "corrupt:1:0"}, {"run.deterministic=1", "corrupt:1:2"},
    };
    (void)state;
    rig_data data = rig_data_new(&rig_conv, 32, 5);
    for (int i = 0; i < COUNT(modes); i++) {
        int64_t n, m;
        int devices = 2 + i % 3;
        float *want = trained(&rig_conv, devices, modes[i], &data, &m);
        for (int k = 0; k < COUNT(routes); k++) {
            char settings[200];
            if (!rig_full() && k > 2 && k % 4 != i % 4) continue;
            snprintf(settings, sizeof settings, "%s %s", modes[i], routes[k].settings);
            if (routes[k].fault) cusim_fault(routes[k].fault);
            float *got = trained(&rig_conv, devices, settings, &data, &n);
            cusim_release();
            assert_int_equal(n, m);
            rig_same_bytes(got, want, (size_t)n * 4, settings);
            free(got);
        }
        free(want);
    }
    rig_data_free(&data);
}

/* Copies are the engine's bytes, and no kernel reads a peer: what moves is all in the simulator's count, which has copies alone. */
static void copies_are_what_moves(void **state)
{
    rig r;
    cusim_counters c;
    dp_device_stats before[3], after;
    (void)state;
    rig_data data = rig_data_new(&rig_wide, 24, 3);
    rig_open(&r, &rig_wide, cuda(), 3, 0, "devices.mode=balanced devices.transport=copy");
    for (int k = 0; k < 3; k++) rig_step(&r, &data, 0, 24);
    for (int d = 0; d < 3; d++) dp_engine_stats(r.e, d, &before[d]);
    cusim_reset();
    for (int k = 0; k < 4; k++) rig_step(&r, &data, 0, 24);
    cusim_read(&c);
    int64_t p = r.e->params->count * 4;
    for (int d = 0; d < 3; d++) {
        int64_t in = 0;
        for (int from = 0; from < 3; from++) in += from == d ? 0 : c.bytes[from][d];
        dp_engine_stats(r.e, d, &after);
        assert_int_equal(after.bytes_in - before[d].bytes_in, 4 * 2 * 2 * p / 3);
        assert_int_equal(after.bytes_out - before[d].bytes_out, 4 * 2 * 2 * p / 3);
        assert_in_range(in, 4 * 2 * 2 * p / 3, 4 * 2 * 2 * p / 3 + 4 * 2 * (p / DP_CHUNK + 64)); /* and the norm's parts */
    }
    assert_int_equal(c.allocations + c.pinned + c.streams + c.events + c.blocking + c.unmapped_copies, 0);
    rig_close(&r);
    rig_data_free(&data);
}

/* ---- the choice ---- */

static const rig_net large = {.name = "large",
                              .text = "[model]\ninput = 300\nfc1 = linear out=900 | tanh\nfc2 = linear out=4\n",
                              .width = 300,
                              .targets = 1,
                              .classes = 4,
                              .smooth = 1,
                              .settings = "devices.mode=balanced"};

/* What is measured decides, for both directions alike, and nothing that it took stays. */
static void routes_are_measured(void **state)
{
    rig r;
    cusim_counters before, after;
    dp_link l, back;
    (void)state;
    cusim_read(&before);
    rig_open(&r, &large, cuda(), 2, 0, "");
    assert_int_equal(dp_engine_link(r.e, 0, 1, &l), 1);
    assert_int_equal(dp_engine_link(r.e, 1, 0, &back), 1);
    assert_int_equal(l.link_class, 0);
    assert_int_equal(back.link_class, 0);
    assert_string_equal(l.kind, back.kind);
    assert_true(l.by_peer > 0 && l.by_copy > 0 && l.by_host > 0);
    assert_true(l.bytes_per_s == (*l.kind == 'p' ? l.by_peer : *l.kind == 'c' ? l.by_copy : l.by_host));
    rig_close(&r);
    cusim_read(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
    assert_int_equal(after.live_pinned, before.live_pinned);
    rig_open(&r, &large, cuda(), 2, 0, "run.deterministic=1"); /* measures nothing */
    assert_int_equal(dp_engine_link(r.e, 0, 1, &l), 1);
    assert_string_equal(l.kind, "peer");
    assert_true(l.bytes_per_s == 0 && l.link_class == -1);
    rig_close(&r);
}

/* A call that fails while pairs are tested or measured ends that with its error, and all memory comes back. */
static void calls_that_fail_leave_nothing(void **state)
{
    static const char *const calls[] = {"fail:cudaMalloc:%d:2", "fail:cudaMemcpyAsync:%d:1", "fail:cudaHostRegister:%d:2",
                                        "fail:cudaEventRecord:%d:1"};
    told t;
    dp_error err;
    dp_group *g;
    cusim_counters before, after;
    (void)state;
    cusim_read(&before);
    for (int i = 0; i < COUNT(calls); i++) {
        int failures = 0, last = 0;
        for (int n = 1; last < 2; n = rig_full() ? n + 1 : 2 * n) {
            char fault[64];
            snprintf(fault, sizeof fault, calls[i], n);
            cusim_fault(fault);
            dp_status status = group_try(&g, &t, "cuda:5,cuda:6", "auto", "30", &err);
            if (!status) {
                status = dp_group_measure_links(g, &err);
                dp_group_close(g, NULL);
            }
            cusim_release();
            cusim_read(&after);
            assert_int_equal(after.live_bytes, before.live_bytes);
            assert_int_equal(after.live_pinned, before.live_pinned);
            failures += status != DP_OK;
            last = status ? 0 : last + 1;
        }
        if (i != 2) assert_true(failures > 0); /* what cannot be page-locked is slower, no more */
    }
}

/* Nothing but the measured rates may differ. */
static void what_was_chosen_does_not_show(void **state)
{
    static const char *const transports[] = {"auto", "peer", "copy", "host"};
    int64_t n, m;
    (void)state;
    rig_data data = rig_data_new(&large, 32, 5);
    float *want = trained(&large, 2, "run.deterministic=1", &data, &m);
    for (int i = 0; i < COUNT(transports); i++) {
        char settings[100];
        snprintf(settings, sizeof settings, "devices.transport=%s", transports[i]);
        float *got = trained(&large, 2, settings, &data, &n);
        rig_same_bytes(got, want, (size_t)n * 4, settings);
        free(got);
    }
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
        cmocka_unit_test(too_many_peers),
        cmocka_unit_test(every_route_trains_the_same_bytes),
        cmocka_unit_test(copies_are_what_moves),
        cmocka_unit_test(wrong_bytes_are_found),
        cmocka_unit_test(routes_are_measured),
        cmocka_unit_test(calls_that_fail_leave_nothing),
        cmocka_unit_test(what_was_chosen_does_not_show),
        cmocka_unit_test(a_stuck_pair_is_refused_with_advice),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
