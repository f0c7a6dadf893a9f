/* Devices that cannot read each other meet in host memory: the same bytes in every mode, and the bytes through each port. The late backend
 * fails work that touches another device's memory. */
#include "../late/late.h"
#include "engine_rig.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static const dp_backend *apart(void)
{
    return late_backend(&(late_options){.seed = 4, .delay_us = 100, .no_peer_reads = 1});
}

static float *trained(const rig_net *net, const dp_backend *b, int devices, const char *settings, const rig_data *data,
                      int64_t *n)
{
    rig r;
    dp_error err;
    rig_open(&r, net, b, devices, 0, settings);
    for (int i = 0; i <= 6; i++) {
        dp_batch batch = rig_batch(data, i % 5, i % 4 == 3 ? 3 : 12 - i % 3);
        batch.epoch = (uint64_t)i;
        batch.last_of_window = strstr(settings, "accumulate") ? i % 2 : 1;
        if (i < 6 && dp_engine_submit(r.e, &batch, &err)) fail_msg("%s: %s", settings, err.text);
        if (i && dp_engine_wait(r.e, NULL, &err)) fail_msg("%s: %s", settings, err.text);
    }
    dp_result result = {0};
    dp_batch all = rig_batch(data, 0, 24);
    if (dp_engine_eval(r.e, &all, &result, &err)) fail_msg("%s: %s", settings, err.text);
    assert_int_equal(result.samples, 24);
    float *w = rig_weights(&r, n);
    rig_close(&r);
    return w;
}

static void every_mode_trains_the_same_bytes(void **state)
{
    static const char *const settings[] = {"devices.mode=classic",
                                           "devices.mode=dp",
                                           "devices.mode=balanced",
                                           "devices.mode=ddp",
                                           "devices.reduce=tree",
                                           "devices.reduce=master devices.broadcast=always",
                                           "devices.mode=dp devices.scatter=master devices.loss=master",
                                           "devices.mode=balanced optimizer.clip_norm=0.1 data.accumulate=2",
                                           "devices.mode=ddp devices.shards=8 data.accumulate=2",
                                           "devices.mode=dp devices.bn_stats=merged",
                                           "devices.mode=balanced devices.bn_stats=sync",
                                           "devices.mode=classic devices.bn_stats=merged devices.shards=8"};
    static const rig_net *const nets[] = {&rig_wide, &rig_conv};
    (void)state;
    for (int i = 0; i < COUNT(settings); i++)
        for (int k = 0; k < COUNT(nets); k++) {
            int64_t n, m;
            int devices = 2 + (i + k) % 3;
            rig_data data = rig_data_new(nets[k], 32, 6);
            float *got = trained(nets[k], apart(), devices, settings[i], &data, &n);
            float *want = trained(nets[k], dp_backend_cpu(), devices, settings[i], &data, &m);
            assert_int_equal(n, m);
            rig_same_bytes(got, want, (size_t)n * 4, settings[i]);
            free(got);
            free(want);
            rig_data_free(&data);
        }
}

/* By choice where devices could read each other, too. */
static void the_host_can_be_chosen(void **state)
{
    int64_t n, m;
    rig_data data = rig_data_new(&rig_wide, 32, 6);
    float *got = trained(&rig_wide, rig_backend(state), 3, "devices.transport=host devices.mode=balanced", &data, &n);
    float *want = trained(&rig_wide, dp_backend_cpu(), 3, "devices.mode=balanced", &data, &m);
    rig_same_bytes(got, want, (size_t)n * 4, "through the host");
    free(got);
    free(want);
    rig_data_free(&data);
}

static void peer_alone_is_refused_where_it_cannot_be(void **state)
{
    rig r;
    dp_error err;
    (void)state;
    assert_int_equal(rig_try(&r, &rig_mlp, apart(), 2, 0, "devices.transport=peer", &err), DP_ECONFIG);
    assert_non_null(strstr(err.text, "use auto or host"));
    rig_close(&r);
    assert_int_equal(rig_try(&r, &rig_mlp, apart(), 2, 0, "devices.transport=copy", &err), DP_ECONFIG);
    rig_close(&r);
    rig_open(&r, &rig_mlp, apart(), 1, 0, "devices.transport=peer");
    rig_close(&r);
}

/* ... and so can copies, where kernels could read: on late streams an inbox that is filled too early, or read too late, changes a result. */
static void copies_can_be_chosen(void **state)
{
    static const char *const settings[] = {"devices.mode=classic",
                                           "devices.mode=dp",
                                           "devices.mode=balanced",
                                           "devices.mode=ddp devices.shards=8 data.accumulate=2",
                                           "devices.reduce=tree",
                                           "devices.mode=dp devices.bn_stats=merged",
                                           "devices.mode=balanced devices.bn_stats=sync"};
    for (int i = 0; i < COUNT(settings); i++) {
        int64_t n, m;
        char copies[200];
        const rig_net *net = strstr(settings[i], "bn_stats") ? &rig_conv : &rig_wide;
        rig_data data = rig_data_new(net, 32, 6);
        snprintf(copies, sizeof copies, "devices.transport=copy %s", settings[i]);
        float *got = trained(net, rig_backend(state), 2 + i % 3, copies, &data, &n);
        float *want = trained(net, dp_backend_cpu(), 2 + i % 3, settings[i], &data, &m);
        rig_same_bytes(got, want, (size_t)n * 4, copies);
        free(got);
        free(want);
        rig_data_free(&data);
    }
}

/* In: as without the host. Out: each device sends the slices it does not own once, and its new slice once, whoever reads it. */
static void each_port_sends_its_parameters_once(void **state)
{
    static const int counts[] = {2, 3, 4, 8};
    (void)state;
    rig_data data = rig_data_new(&rig_wide, 24, 6);
    for (int k = 0; k < COUNT(counts); k++)
        for (int mode = 0; mode < 2; mode++) {
            rig r;
            dp_device_stats before[8], after;
            int n = counts[k];
            rig_open(&r, &rig_wide, apart(), n, 0, mode ? "devices.mode=ddp" : "devices.mode=balanced");
            rig_step(&r, &data, 0, 24);
            rig_step(&r, &data, 0, 24);
            for (int d = 0; d < n; d++) dp_engine_stats(r.e, d, &before[d]);
            for (int i = 0; i < 3; i++) rig_step(&r, &data, 0, 24);
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

/* ---- the choice ---- */

enum { QUAD = 4 };
static dp_links *links_of(const double *fast, const double *slow) /* seconds by route, two sizes: inside the halves, across */
{
    dp_links *l = calloc(1, sizeof *l + QUAD * QUAD * sizeof *l->pair);
    assert_non_null(l);
    l->n = QUAD;
    l->size[0] = 1 << 20, l->size[1] = 16 << 20;
    for (int i = 0; i < QUAD * QUAD; i++) {
        int reader = i / QUAD, owner = i % QUAD;
        l->pair[i].best = l->pair[i].route = DP_ROUTE_PEER;
        if (reader == owner) continue;
        memcpy(l->pair[i].seconds, reader / 2 == owner / 2 ? fast : slow, sizeof l->pair[i].seconds);
        for (int k = 0; k < DP_ROUTES * 2; k++) l->pair[i].seconds[k / 2][k % 2] *= 1 + 0.01 * i; /* some noise */
    }
    return l;
}

static void is_route(const dp_links *l, int across, int route, int link_class)
{
    for (int i = 0; i < QUAD * QUAD; i++) {
        int reader = i / QUAD, owner = i % QUAD;
        if (reader == owner || (reader / 2 != owner / 2) != across) continue;
        assert_int_equal(l->pair[i].fastest, route);
        assert_int_equal(l->pair[i].link_class, link_class);
    }
}

/* The fastest that works, one for all pairs of a class, for pieces of the size that this model moves; a tenth makes no difference. */
static void the_fastest_route_of_a_class_is_taken(void **state)
{
    static const double nvlink[] = {100e-6, 1600e-6, 12e-6, 105e-6, 10e-6, 102e-6},
                        pcie[] = {110e-6, 900e-6, 90e-6, 1200e-6, 80e-6, 1600e-6};
    dp_links *l = links_of(nvlink, pcie);
    (void)state;
    dp_links_pick(l, 16 << 20);
    is_route(l, 0, DP_ROUTE_PEER, 0);
    is_route(l, 1, DP_ROUTE_HOST, 1);
    dp_links_pick(l, 1 << 20); /* small pieces want what begins fast */
    is_route(l, 0, DP_ROUTE_PEER, 0);
    is_route(l, 1, DP_ROUTE_PEER, 1);
    l->pair[2].best = DP_ROUTE_COPY; /* kernels are wrong there */
    dp_links_pick(l, 1 << 20);
    is_route(l, 0, DP_ROUTE_PEER, 0);
    is_route(l, 1, DP_ROUTE_COPY, 1);
    l->pair[2].best = DP_ROUTE_HOST; /* no access: not of any class */
    dp_links_pick(l, 1 << 20);
    assert_int_equal(l->pair[2].fastest, -1);
    assert_int_equal(l->pair[2].link_class, -1);
    assert_int_equal(l->pair[3].fastest, DP_ROUTE_PEER);
    free(l);
}

/* Their steps are not about rates. */
static void small_models_are_not_measured(void **state)
{
    rig r;
    dp_link l;
    int in_line = rig_backend(state)->in_line;
    rig_open(&r, &rig_mlp, rig_backend(state), 3, 0, "");
    assert_int_equal(dp_engine_link(r.e, 0, 2, &l), 1);
    assert_string_equal(l.kind, in_line ? "memory" : "peer");
    assert_true(l.bytes_per_s == 0 && l.by_host == 0 && l.link_class == -1);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mode_trains_the_same_bytes),
        ON(the_host_can_be_chosen),
        ON(copies_can_be_chosen),
        cmocka_unit_test(the_fastest_route_of_a_class_is_taken),
        ON(small_models_are_not_measured),
        cmocka_unit_test(peer_alone_is_refused_where_it_cannot_be),
        cmocka_unit_test(each_port_sends_its_parameters_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
