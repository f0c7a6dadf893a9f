/* The functional parts: a loop of them is the engine's step, byte for byte; what they refuse; what they leave behind. */
#include "../../dp/group/parts.h"
#include "engine_rig.h"
#include <math.h>

enum { MOST = 4 };

typedef struct loop {
    rig engine; /* graph and config, and an engine to compare with */
    dp_group *group;
    dp_model *master, *replica[MOST];
    dp_array *x[MOST], *y[MOST], *out[MOST];
} loop;

/* A group of `devices`, a master on device `home` for 24 rows a device, replicas and arrays not made yet; settings as in rig_try. */
static void loop_open(loop *l, const rig_net *net, const dp_backend *b, int devices, int home, const char *settings)
{
    dp_error err;
    memset(l, 0, sizeof *l);
    rig_open(&l->engine, net, b, devices, 0, settings);
    if (dp_group_open_on(&l->group, l->engine.config, b, 24, &err)) fail_msg("%s", err.text);
    assert_int_equal(dp_group_size(l->group), devices);
    if (dp_model_open(&l->master, l->group, home, l->engine.graph, l->engine.config, 24, &err)) fail_msg("%s", err.text);
}

static void loop_close(loop *l)
{
    dp_error err;
    for (int d = 0; d < MOST; d++) {
        dp_model_close(l->replica[d]);
        dp_array_free(l->x[d]);
        dp_array_free(l->y[d]);
        dp_array_free(l->out[d]);
    }
    dp_model_close(l->master);
    for (int d = 0; d < l->group->n; d++) /* every byte has come back */
        assert_int_equal(l->group->backend->memory(l->group->worker[d].be)->total_live, 0);
    if (dp_group_close(l->group, &err)) fail_msg("%s", err.text);
    rig_close(&l->engine);
}

static dp_status loop_forward(loop *l, const dp_batch *b, const int64_t *sizes, int train, dp_error *err)
{
    DP_TRY(dp_replicate(l->group, l->master, l->replica, err));
    DP_TRY(dp_scatter(l->group, b->x, sizes, l->x, err));
    DP_TRY(dp_scatter(l->group, b->y, sizes, l->y, err));
    return dp_parallel_apply(l->group, l->replica, l->x, l->out, train, err);
}

static dp_status loop_step(loop *l, const dp_batch *b, const int64_t *sizes, dp_result *sum, dp_error *err)
{
    DP_TRY(loop_forward(l, b, sizes, 1, err));
    DP_TRY(dp_parallel_backward(l->group, l->replica, l->y, sum, err));
    DP_TRY(dp_reduce(l->group, l->replica, l->master, err));
    return dp_model_update(l->master, 0.1, (double)sum->targets, err);
}

static dp_batch unnamed(const rig_data *d, int64_t first, int64_t n) /* draws by position and count of batches */
{
    dp_batch b = rig_batch(d, first, n);
    b.ids = NULL;
    return b;
}

static void same_model(loop *l, dp_model *m, rig *engine)
{
    dp_tensor_info t;
    dp_error err;
    int64_t count, at = 0;
    float *want = rig_weights(engine, &count);
    for (int i = 0; dp_graph_tensor(l->engine.graph, i, &t); at += t.count, i++) {
        float *got = malloc((size_t)t.count * 4);
        assert_non_null(got);
        if (dp_model_get(m, t.name, got, t.count, &err)) fail_msg("%s", err.text);
        rig_same_bytes(got, want + at, (size_t)t.count * 4, t.name);
        free(got);
    }
    assert_int_equal(at, count);
    free(want);
}

/* Steps with batches down to fewer rows than devices; `sizes` NULL: even, and the engine's own split. */
static void same_steps(loop *l, rig *engine, const rig_data *data, const int64_t *rows, int steps, const int64_t *sizes)
{
    dp_error err;
    dp_result sum, want;
    same_model(l, l->master, engine);
    for (int i = 0; i < steps; i++) {
        dp_batch b = unnamed(data, i, rows[i]);
        if (loop_step(l, &b, sizes, &sum, &err)) fail_msg("step %d: %s", i, err.text);
        if (dp_engine_step(engine->e, &b, &want, &err)) fail_msg("step %d: %s", i, err.text);
        assert_int_equal(sum.samples, want.samples);
        assert_int_equal(sum.targets, want.targets);
        assert_int_equal(sum.correct, want.correct);
        assert_true(sum.loss_sum == want.loss_sum);
        same_model(l, l->master, engine);
    }
}

static void loop_equals_the_engine(void **state)
{
    const dp_backend *b = rig_backend(state);
    static const rig_net *const nets[] = {&rig_mlp, &rig_dropout, &rig_conv, &rig_gpt};
    static const int64_t rows[] = {24, 7, 2, 23, 1, 24};
    for (int k = 0; k < 4; k++) {
        rig_data data = rig_data_new(nets[k], 32, 5);
        for (int devices = 1; devices <= 3; devices++) {
            loop l;
            loop_open(&l, nets[k], b, devices, 0, "optimizer.weight_decay=0.01 optimizer.clip_norm=1");
            same_steps(&l, &l.engine, &data, rows, 6, NULL);
            loop_close(&l);
        }
        rig_data_free(&data);
    }
}

/* Through the host, by copies, and where devices do not reach each other; more parameters than are copied at a time; any master. */
static void every_route_gives_the_same(void **state)
{
    static const rig_net large = {.name = "large",
                                  .text = "[model]\ninput = 300\nfc1 = linear out=900 | tanh\nfc2 = linear out=4\n",
                                  .width = 300,
                                  .targets = 1,
                                  .classes = 4,
                                  .smooth = 1};
    static const rig_net *const nets[] = {&rig_conv, &large};
    static const char *const settings[] = {"devices.transport=copy", "devices.transport=host", ""};
    static const int64_t rows[] = {24, 2, 7};
    (void)state;
    for (int k = 0; k < 2; k++) {
        rig_data data = rig_data_new(nets[k], 32, 5);
        for (int i = 0; i < 3; i++) {
            loop l;
            loop_open(&l, nets[k], late_backend(&(late_options){.seed = 4, .delay_us = 100, .no_peer_reads = i == 2}), 3, k,
                      settings[i]);
            same_steps(&l, &l.engine, &data, rows, 3, NULL);
            loop_close(&l);
        }
        rig_data_free(&data);
    }
}

/* Rows 5 and 3 on two devices of three, an idle one anywhere, are the engine's split 5, 3 on two devices. */
static void uneven_sizes_and_idle_devices(void **state)
{
    const dp_backend *b = rig_backend(state);
    static const int64_t sizes[][3] = {{5, 3, 0}, {5, 0, 3}, {0, 5, 3}};
    static const int64_t rows[] = {8, 8, 8};
    rig_data data = rig_data_new(&rig_dropout, 16, 6);
    for (int k = 0; k < 3; k++) {
        loop l;
        rig engine;
        rig_open(&engine, &rig_dropout, b, 2, 0, "devices.split=weights devices.weights=5,3");
        loop_open(&l, &rig_dropout, b, 3, 0, "");
        same_steps(&l, &engine, &data, rows, 3, sizes[k]);
        for (int d = 0; d < 3; d++) {
            assert_int_equal(dp_array_rows(l.x[d]), sizes[k][d]);
            assert_int_equal(dp_array_rows(l.out[d]), sizes[k][d]);
        }
        loop_close(&l);
        rig_close(&engine);
    }
    rig_data_free(&data);
}

/* Replicas are copies, the master is its own, wherever it lives; refreshing makes nothing new. */
static void replicas_are_the_masters_values(void **state)
{
    const dp_backend *b = rig_backend(state);
    rig_data data = rig_data_new(&rig_conv, 24, 7);
    dp_batch batch = unnamed(&data, 0, 24);
    dp_error err;
    dp_result sum;
    loop l;
    int64_t made[3] = {0};
    loop_open(&l, &rig_conv, b, 3, 1, "");
    for (int i = 0; i < 3; i++) {
        dp_model *before[3] = {l.replica[0], l.replica[1], l.replica[2]};
        if (loop_step(&l, &batch, NULL, &sum, &err)) fail_msg("%s", err.text);
        if (dp_replicate(l.group, l.master, l.replica, &err)) fail_msg("%s", err.text);
        assert_ptr_equal(l.replica[1], l.master);
        for (int d = 0; d < 3; d++) {
            const dp_memory *m = l.group->backend->memory(l.group->worker[d].be);
            if (i > 0) assert_ptr_equal(l.replica[d], before[d]);
            if (i > 0) assert_int_equal(m->allocations, made[d]);
            made[d] = m->allocations;
            rig_same_bytes(l.replica[d]->r.param, l.master->r.param, (size_t)l.master->params->count * 4,
                           "parameters of a replica");
            rig_same_bytes(l.replica[d]->r.buffer, l.master->r.buffer, (size_t)l.master->params->buffer_count * 4,
                           "its running statistics");
        }
    }
    loop_close(&l);
    rig_data_free(&data);
}

/* y = W x + b in double; the largest of 12 products of |x| < 1, |w| < 0.29 rounds to below 1e-6 */
static void gathered_outputs_are_the_networks(void **state)
{
    static const rig_net linear = {.name = "linear",
                                   .text = "[model]\ninput = 12\nfc = linear out=4\n",
                                   .width = 12,
                                   .targets = 1,
                                   .classes = 4,
                                   .smooth = 1};
    static const int64_t sizes[] = {4, 0, 3};
    rig_data data = rig_data_new(&linear, 7, 8);
    dp_batch batch = unnamed(&data, 0, 7);
    float w[48], bias[4], out[28];
    dp_error err;
    loop l;
    loop_open(&l, &linear, rig_backend(state), 3, 0, "");
    if (loop_forward(&l, &batch, sizes, 0, &err)) fail_msg("%s", err.text);
    assert_int_equal(dp_gather(l.group, l.out, out, sizeof out, &err), DP_OK);
    assert_int_equal(dp_model_get(l.replica[2], "fc.weight", w, 48, &err), DP_OK);
    assert_int_equal(dp_model_get(l.replica[2], "fc.bias", bias, 4, &err), DP_OK);
    for (int i = 0; i < 7; i++)
        for (int k = 0; k < 4; k++) {
            double want = (double)bias[k];
            for (int j = 0; j < 12; j++) want += (double)w[k * 12 + j] * (double)data.x[i * 12 + j];
            assert_true(fabs((double)out[i * 4 + k] - want) < 1e-6);
        }
    loop_close(&l);
    rig_data_free(&data);
}

/* P85: scalars join to a vector in device order; rows of other shapes are refused, both named. */
static void gather_joins_rows_in_device_order(void **state)
{
    static const float v[] = {1, 2, 3, 4, 5, 6};
    static const uint8_t bytes[] = {9, 8, 7};
    dp_array *one[3] = {NULL}, *two[3] = {NULL}, *u8[3] = {NULL};
    float back[6] = {0};
    dp_error err;
    loop l;
    loop_open(&l, &rig_mlp, rig_backend(state), 3, 0, "");
    assert_int_equal(dp_scatter(l.group, dp_view(v, DP_F32, 3, 1), NULL, one, &err), DP_OK);
    assert_int_equal(dp_gather(l.group, one, back, 12, &err), DP_OK);
    rig_same_bytes(back, v, 12, "three scalars");

    assert_int_equal(dp_scatter(l.group, dp_view(v, DP_F32, 3, 2), (int64_t[]){0, 1, 2}, two, &err), DP_OK);
    assert_int_equal(dp_gather(l.group, two, back, sizeof back, &err), DP_OK);
    rig_same_bytes(back, v, sizeof v, "rows of two");
    assert_int_equal(dp_gather(l.group, two, back, 20, &err), DP_EARGUMENT);
    assert_non_null(strstr(err.text, "24 bytes"));

    dp_array *mixed[3] = {two[0], one[1], two[2]}; /* device 0 is empty and has no say */
    assert_int_equal(dp_gather(l.group, mixed, back, sizeof back, &err), DP_EARGUMENT);
    assert_non_null(strstr(err.text, "(1, 1)"));
    assert_non_null(strstr(err.text, "(2, 2)"));
    assert_int_equal(err.device, 2);

    assert_int_equal(dp_scatter(l.group, dp_view(bytes, DP_U8, 3, 1), NULL, u8, &err), DP_OK);
    dp_array *types[3] = {one[0], u8[1], one[2]};
    assert_int_equal(dp_gather(l.group, types, back, 9, &err), DP_EARGUMENT);
    dp_array *order[3] = {one[1], one[0], one[2]};
    assert_int_equal(dp_gather(l.group, order, back, 12, &err), DP_EARGUMENT);
    assert_int_equal(err.device, 0);
    assert_int_equal(dp_gather(l.group, one, back, 12, &err), DP_OK); /* nothing was harmed */

    for (int d = 0; d < 3; d++) dp_array_free(one[d]), dp_array_free(two[d]), dp_array_free(u8[d]);
    loop_close(&l);
}

static void arrays_are_reused_while_they_fit(void **state)
{
    static const float v[64] = {0};
    dp_error err;
    loop l;
    loop_open(&l, &rig_mlp, rig_backend(state), 2, 0, "");
    const dp_memory *m = l.group->backend->memory(l.group->worker[0].be);
    assert_int_equal(dp_scatter(l.group, dp_view(v, DP_F32, 8, 4), NULL, l.x, &err), DP_OK);
    int64_t made = m->allocations, live = m->total_live;
    const dp_array *first = l.x[0];
    const int64_t rows[] = {3, 8, 1, 6};
    for (int i = 0; i < 4; i++) assert_int_equal(dp_scatter(l.group, dp_view(v, DP_F32, rows[i], 4), NULL, l.x, &err), DP_OK);
    assert_ptr_equal(l.x[0], first);
    assert_int_equal(m->allocations, made);
    assert_int_equal(dp_scatter(l.group, dp_view(v, DP_F32, 16, 4), NULL, l.x, &err), DP_OK);
    assert_int_equal(m->total_live, live + 4 * 4 * 4);
    assert_int_equal(dp_array_rows(l.x[1]), 8);
    loop_close(&l);
}

/* ---- refusals ---- */

static void missing_arguments_are_refused(void **state)
{
    rig_data data = rig_data_new(&rig_mlp, 8, 9);
    dp_batch batch = unnamed(&data, 0, 8);
    dp_rows x = batch.x, none = x, odd = x;
    float f[4];
    dp_error err;
    dp_result sum;
    dp_model *m = NULL;
    loop l;
    loop_open(&l, &rig_mlp, rig_backend(state), 2, 0, "");
    dp_group *g = l.group;
    const dp_graph *net = l.engine.graph;
    const dp_config *c = l.engine.config;
    assert_int_equal(loop_forward(&l, &batch, NULL, 0, &err), DP_OK);
    dp_model *hole[MOST] = {l.replica[0], NULL};
    dp_array *gap[MOST] = {l.x[0], NULL};
    none.data = NULL;
    odd.n = 0;
#define REFUSED(call) assert_int_equal((call), DP_EARGUMENT)
    REFUSED(dp_model_open(NULL, g, 0, net, c, 8, &err));
    REFUSED(dp_model_open(&m, NULL, 0, net, c, 8, &err));
    REFUSED(dp_model_open(&m, g, 0, NULL, c, 8, &err));
    REFUSED(dp_model_open(&m, g, 0, net, NULL, 8, &err));
    REFUSED(dp_model_open(&m, g, 2, net, c, 8, &err));
    REFUSED(dp_model_open(&m, g, -1, net, c, 8, &err));
    REFUSED(dp_model_open(&m, g, 0, net, c, 0, &err));
    assert_null(m);
    REFUSED(dp_model_update(NULL, 0.1, 1, &err));
    REFUSED(dp_model_update(l.replica[1], 0.1, 1, &err));
    REFUSED(dp_model_update(l.master, NAN, 1, &err));
    REFUSED(dp_model_update(l.master, 0.1, -1, &err));
    REFUSED(dp_model_get(NULL, "fc2.bias", f, 4, &err));
    REFUSED(dp_model_get(l.master, NULL, f, 4, &err));
    REFUSED(dp_model_get(l.master, "fc2.bias", NULL, 4, &err));
    REFUSED(dp_model_get(l.master, "fc3.bias", f, 4, &err));
    REFUSED(dp_model_get(l.master, "fc2.bias", f, 3, &err));
    REFUSED(dp_replicate(NULL, l.master, l.replica, &err));
    REFUSED(dp_replicate(g, NULL, l.replica, &err));
    REFUSED(dp_replicate(g, l.master, NULL, &err));
    REFUSED(dp_replicate(g, l.replica[1], l.replica, &err));
    REFUSED(dp_scatter(NULL, x, NULL, l.x, &err));
    REFUSED(dp_scatter(g, x, NULL, NULL, &err));
    REFUSED(dp_scatter(g, none, NULL, l.x, &err));
    REFUSED(dp_scatter(g, odd, NULL, l.x, &err));
    REFUSED(dp_scatter(g, x, (int64_t[]){3, 4}, l.x, &err));
    REFUSED(dp_scatter(g, x, (int64_t[]){9, -1}, l.x, &err));
    REFUSED(dp_parallel_apply(NULL, l.replica, l.x, l.out, 0, &err));
    REFUSED(dp_parallel_apply(g, NULL, l.x, l.out, 0, &err));
    REFUSED(dp_parallel_apply(g, l.replica, NULL, l.out, 0, &err));
    REFUSED(dp_parallel_apply(g, l.replica, l.x, NULL, 0, &err));
    REFUSED(dp_parallel_apply(g, hole, l.x, l.out, 0, &err));
    assert_int_equal(err.device, 1);
    REFUSED(dp_parallel_apply(g, l.replica, gap, l.out, 0, &err));
    assert_int_equal(err.device, 1);
    REFUSED(dp_parallel_apply(g, l.replica, l.y, l.out, 0, &err)); /* rows of 1, not 12 */
    REFUSED(dp_parallel_backward(NULL, l.replica, l.y, &sum, &err));
    REFUSED(dp_parallel_backward(g, NULL, l.y, &sum, &err));
    REFUSED(dp_parallel_backward(g, l.replica, NULL, &sum, &err));
    REFUSED(dp_parallel_backward(g, l.replica, l.y, NULL, &err));
    REFUSED(dp_gather(NULL, l.out, f, sizeof f, &err));
    REFUSED(dp_gather(g, NULL, f, sizeof f, &err));
    REFUSED(dp_gather(g, gap, f, sizeof f, &err));
    REFUSED(dp_gather(g, l.out, NULL, sizeof f, &err));
    REFUSED(dp_reduce(NULL, l.replica, l.master, &err));
    REFUSED(dp_reduce(g, NULL, l.master, &err));
    REFUSED(dp_reduce(g, l.replica, NULL, &err));
    REFUSED(dp_reduce(g, l.replica, l.replica[1], &err));
    REFUSED(dp_gather(g, l.out, NULL, 0, NULL)); /* err is not needed */
#undef REFUSED
    dp_model_close(NULL);
    dp_array_free(NULL);
    assert_int_equal(dp_array_rows(NULL), 0);
    assert_int_equal(loop_step(&l, &batch, NULL, &sum, &err), DP_OK); /* nothing was harmed */
    loop_close(&l);
    rig_data_free(&data);
}

/* A gradient is made from one training pass, reduced once, and only then stepped with. */
static void calls_in_the_wrong_order_are_refused(void **state)
{
    rig_data data = rig_data_new(&rig_mlp, 25, 10);
    dp_batch batch = unnamed(&data, 0, 8);
    dp_error err;
    dp_result sum;
    loop l;
    loop_open(&l, &rig_mlp, rig_backend(state), 2, 0, "");
    dp_group *g = l.group;
    assert_int_equal(loop_forward(&l, &batch, NULL, 0, &err), DP_OK);
    assert_int_equal(dp_parallel_backward(g, l.replica, l.y, &sum, &err), DP_EARGUMENT); /* that was no training pass */
    assert_int_equal(dp_reduce(g, l.replica, l.master, &err), DP_EARGUMENT);
    assert_int_equal(dp_model_update(l.master, 0.1, 8, &err), DP_EARGUMENT);

    assert_int_equal(loop_forward(&l, &batch, NULL, 1, &err), DP_OK);
    dp_array *other[MOST] = {NULL};
    assert_int_equal(dp_scatter(g, batch.y, (int64_t[]){5, 3}, other, &err), DP_OK);
    assert_int_equal(dp_parallel_backward(g, l.replica, other, &sum, &err), DP_EARGUMENT);
    assert_non_null(strstr(err.text, "Device 0 has 5 rows of targets for 4 rows"));
    for (int d = 0; d < 2; d++) dp_array_free(other[d]);

    assert_int_equal(dp_parallel_backward(g, l.replica, l.y, &sum, &err), DP_OK);
    assert_int_equal(dp_parallel_backward(g, l.replica, l.y, &sum, &err), DP_EARGUMENT); /* its activations are used up */
    assert_int_equal(dp_reduce(g, l.replica, l.master, &err), DP_OK);
    assert_int_equal(dp_reduce(g, l.replica, l.master, &err), DP_EARGUMENT); /* would count device 1 twice */
    assert_int_equal(dp_model_update(l.master, 0.1, 8, &err), DP_OK);

    batch = unnamed(&data, 0, 25);
    assert_int_equal(loop_forward(&l, &batch, (int64_t[]){0, 25}, 1, &err), DP_EARGUMENT);
    assert_non_null(strstr(err.text, "max_rows = 24"));
    assert_int_equal(err.device, 1);
    loop_close(&l);
    rig_data_free(&data);
}

static void a_batchnorm_on_one_value_is_refused(void **state)
{
    rig_data data = rig_data_new(&rig_tight, 3, 11);
    dp_batch batch = unnamed(&data, 0, 3);
    dp_error err;
    loop l;
    loop_open(&l, &rig_tight, rig_backend(state), 2, 0, "");
    assert_int_equal(loop_forward(&l, &batch, NULL, 1, &err), DP_EARGUMENT);
    assert_int_equal(err.device, 1);
    assert_int_equal(loop_forward(&l, &batch, NULL, 0, &err), DP_OK); /* evaluation needs no second row */
    assert_int_equal(loop_forward(&l, &batch, (int64_t[]){3, 0}, 1, &err), DP_OK);
    loop_close(&l);
    rig_data_free(&data);
}

static void a_wrong_label_names_its_row_and_harms_nothing(void **state)
{
    rig_data data = rig_data_new(&rig_gpt, 8, 12);
    static const int64_t rows[] = {8};
    dp_error err;
    dp_result sum;
    loop l;
    loop_open(&l, &rig_gpt, rig_backend(state), 2, 0, "");
    int32_t right = data.y[6 * 5 + 2];
    data.y[6 * 5 + 2] = 11; /* classes 0 to 10 */
    dp_batch batch = unnamed(&data, 0, 8);
    assert_int_equal(loop_step(&l, &batch, NULL, &sum, &err), DP_EDATA);
    assert_non_null(strstr(err.text, "Row 6"));
    assert_int_equal(err.device, 1);
    assert_int_equal(dp_reduce(l.group, l.replica, l.master, &err), DP_EARGUMENT);
    data.y[6 * 5 + 2] = right;
    same_steps(&l, &l.engine, &data, rows, 1, NULL); /* gpt draws nothing: the lost pass does not show */
    loop_close(&l);
    rig_data_free(&data);
}

/* ---- updates that do not step ---- */

static void no_target_or_no_number_changes_nothing(void **state)
{
    const dp_backend *b = rig_backend(state);
    for (int warn = 0; warn < 2; warn++) {
        rig_data data = rig_data_new(&rig_mlp, 8, 13);
        dp_error err;
        dp_result sum;
        loop l;
        loop_open(&l, &rig_mlp, b, 2, 0, warn ? "run.on_nan=warn loss.ignore_label=3" : "loss.ignore_label=3");
        for (int i = 0; i < 8; i++) data.y[i] = 3;
        dp_batch batch = unnamed(&data, 0, 8);
        assert_int_equal(loop_step(&l, &batch, NULL, &sum, &err), DP_OK);
        assert_int_equal(sum.targets, 0);
        assert_non_null(strstr(l.engine.warning, "No target counted"));
        same_model(&l, l.master, &l.engine);

        data.y[7] = 1;
        data.x[7 * 12] = INFINITY;
        assert_int_equal(loop_step(&l, &batch, NULL, &sum, &err), warn ? DP_OK : DP_ENONFINITE);
        if (warn) assert_non_null(strstr(l.engine.warning, "not finite"));
        same_model(&l, l.master, &l.engine);
        loop_close(&l);
        rig_data_free(&data);
    }
}

/* ---- failures, closing ---- */

static void a_full_device_is_named(void **state)
{
    dp_error err;
    loop l;
    static const float v[1] = {0};
    rig_data data = rig_data_new(&rig_mlp, 8, 14);
    loop_open(&l, &rig_mlp, rig_backend(state), 2, 0, "devices.memory_limit_mb=1");
    dp_rows wide = dp_view(v, DP_F32, 1, 1); /* rows that are never read: the device has no room for them */
    wide.n = 2, wide.width = 1000000;
    float *rows = calloc(2000000, 4);
    assert_non_null(rows);
    wide.data = rows;
    assert_int_equal(dp_scatter(l.group, wide, (int64_t[]){0, 2}, l.x, &err), DP_ENOMEM);
    assert_int_equal(err.device, 1);
    assert_string_equal(err.phase_name, "scatter");
    assert_int_equal(dp_replicate(l.group, l.master, l.replica, &err), DP_ENOMEM); /* the same failure again */
    assert_int_equal(err.device, 1);
    free(rows);
    loop_close(&l);
    rig_data_free(&data);
}

static void a_failing_device_is_named(void **state)
{
    static const struct {
        late_kind kind;
        int device, nth;
        const char *phase;
    } cases[] = {{LATE_COPY, 1, 1, "replicate"}, {LATE_COPY, 1, 2, "scatter"},      {LATE_FORWARD, 1, 2, "forward"},
                 {LATE_LOSS, 1, 1, "loss"},      {LATE_BACKWARD, 1, 1, "backward"}, {LATE_SUM, 0, 1, "reduce"},
                 {LATE_NORM, 0, 1, "update"}};
    rig_data data = rig_data_new(&rig_mlp, 8, 16);
    dp_batch batch = unnamed(&data, 0, 8);
    dp_error err;
    dp_result sum;
    float f[4];
    (void)state;
    for (int i = 0; i < 14; i++) {
        const dp_backend *b = late_backend(&(late_options){.seed = 2, .delay_us = 200});
        int k = i / 2, at_once = i % 2;
        loop l;
        loop_open(&l, &rig_mlp, b, 2, 0, "");
        assert_int_equal(loop_step(&l, &batch, NULL, &sum, &err), DP_OK);
        late_arm(&(late_fault){cases[k].kind, cases[k].device, cases[k].nth, DP_EDEVICE, at_once, 0, 0});
        assert_int_equal(loop_step(&l, &batch, NULL, &sum, &err), DP_EDEVICE);
        assert_int_equal(err.device, cases[k].device);
        if (at_once) assert_string_equal(err.phase_name, cases[k].phase);
        assert_int_equal(dp_model_get(l.master, "fc2.bias", f, 4, &err), DP_EDEVICE); /* the same failure again */
        assert_int_equal(err.device, cases[k].device);
        loop_close(&l);
    }
    rig_data_free(&data);
}

static void a_hanging_device_is_named(void **state)
{
    const dp_backend *b = late_backend(&(late_options){.seed = 3});
    rig_data data = rig_data_new(&rig_mlp, 8, 17);
    dp_batch batch = unnamed(&data, 0, 8);
    dp_error err;
    dp_result sum;
    loop l;
    (void)state;
    loop_open(&l, &rig_mlp, b, 2, 0, "devices.timeout_s=0.5");
    assert_int_equal(loop_step(&l, &batch, NULL, &sum, &err), DP_OK);
    late_arm(&(late_fault){LATE_FORWARD, 1, 1, DP_OK, 0, 1, 0});
    assert_int_equal(loop_step(&l, &batch, NULL, &sum, &err), DP_ETIMEOUT);
    assert_int_equal(err.device, 1);
    late_release();
    loop_close(&l);
    rig_data_free(&data);
}

static void a_master_may_be_closed_first(void **state)
{
    dp_error err;
    loop l;
    rig_data data = rig_data_new(&rig_conv, 8, 15);
    dp_batch batch = unnamed(&data, 0, 8);
    float f[4];
    loop_open(&l, &rig_conv, rig_backend(state), 2, 0, "");
    assert_int_equal(loop_forward(&l, &batch, NULL, 1, &err), DP_OK);
    dp_model_close(l.master);
    dp_model_close(l.replica[0]);
    l.master = l.replica[0] = NULL;
    assert_int_equal(dp_model_get(l.replica[1], "fc.bias", f, 4, &err), DP_OK);
    loop_close(&l);
    rig_data_free(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON(loop_equals_the_engine),
        cmocka_unit_test(every_route_gives_the_same),
        ON(uneven_sizes_and_idle_devices),
        ON(replicas_are_the_masters_values),
        ON(gathered_outputs_are_the_networks),
        ON(gather_joins_rows_in_device_order),
        ON(arrays_are_reused_while_they_fit),
        ON(missing_arguments_are_refused),
        ON(calls_in_the_wrong_order_are_refused),
        ON(a_batchnorm_on_one_value_is_refused),
        ON(a_wrong_label_names_its_row_and_harms_nothing),
        ON(no_target_or_no_number_changes_nothing),
        ON(a_full_device_is_named),
        cmocka_unit_test(a_failing_device_is_named),
        cmocka_unit_test(a_hanging_device_is_named),
        ON(a_master_may_be_closed_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
