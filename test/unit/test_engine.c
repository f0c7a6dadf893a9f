/* The engine's behaviour beyond the strict properties: what users of data-parallel training report as faults (numbers P..), bytes moved,
 * and that nothing is made after the first epoch. */
#include "engine_rig.h"
#include <math.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* ---- replicas ---- */

static void evaluate(rig *r, const rig_data *data, int64_t n) /* a replicate without a step */
{
    dp_batch b = rig_batch(data, 0, n);
    dp_result sum = {0};
    dp_error err;
    if (dp_engine_eval(r->e, &b, &sum, &err)) fail_msg("%s", err.text);
}

static void replicas_are_equal(rig *r) /* CPU memory may be looked at while nothing is in flight */
{
    for (int d = 1; d < r->e->n; d++)
        rig_same_bytes(r->e->replica[d].param, r->e->replica[0].param, (size_t)r->e->params->count * 4,
                       "parameters of a replica");
}

/* P83, P56 */
static void replicas_start_and_stay_equal_and_learn(void **state)
{
    const dp_backend *b = rig_backend(state);
    static const char *const switches[] = {"devices.reduce=sliced", "devices.reduce=master"};
    for (int i = 0; i < 2; i++) {
        rig r, one;
        int64_t count;
        rig_data data = rig_data_new(&rig_conv, 24, 3);
        rig_open(&r, &rig_conv, b, 4, 0, switches[i]);
        rig_open(&one, &rig_conv, dp_backend_cpu(), 1, 4, "");
        evaluate(&r, &data, 4);
        replicas_are_equal(&r);
        float *before = rig_weights(&r, &count), *same_start = rig_weights(&one, &count);
        rig_same_bytes(before, same_start, (size_t)count * 4, "start values");
        rig_step(&r, &data, 0, 10);
        rig_step(&one, &data, 0, 10);
        float *after = rig_weights(&r, &count), *want = rig_weights(&one, &count);
        assert_true(rig_distance(after, before, count) > 1e-4);
        rig_same_bytes(after, want, (size_t)count * 4, "weights after a step");
        evaluate(&r, &data, 4);
        replicas_are_equal(&r);
        free(before);
        free(same_start);
        free(after);
        free(want);
        rig_close(&r);
        rig_close(&one);
        rig_data_free(&data);
    }
}

/* P82: dropout draws by sample id, not by device. */
static void masks_belong_to_samples(void **state)
{
    const dp_backend *b = rig_backend(state);
    rig r;
    rig_data data = rig_data_new(&rig_dropout, 2, 3);
    memcpy(data.x + 12, data.x, 12 * sizeof *data.x); /* two equal samples, one a device */
    data.y[1] = data.y[0];
    rig_open(&r, &rig_dropout, b, 2, 0, "");
    assert_int_equal(dp_engine_set_lr(r.e, 0), DP_OK);
    for (int same = 0; same < 2; same++) {
        data.ids[1] = data.ids[0] + (same ? 0 : 1);
        rig_step(&r, &data, 0, 2);
        const dp_loss_sums *sums = r.e->step[same].sums;
        if (same)
            assert_true(sums[0].loss == sums[1].loss);
        else
            assert_true(fabs(sums[0].loss - sums[1].loss) > 1e-3);
    }
    rig_close(&r);
    rig_data_free(&data);
}

/* ---- loss, windows ---- */

/* P48: ln 10 before training, whatever the number of devices. */
static void the_start_loss_is_the_log_of_the_classes(void **state)
{
    const dp_backend *b = rig_backend(state);
    rig_data data = rig_data_new(&rig_flat, 24, 3);
    for (int n = 1; n <= 4; n *= 2) {
        rig r;
        rig_open(&r, &rig_flat, b, n, 0, "");
        dp_result result = rig_step(&r, &data, 0, 24);
        double loss = result.loss_sum / (double)result.targets;
        if (!(fabs(loss - 2.3026) < 0.1)) fail_msg("loss %g on %d devices", loss, n);
        rig_close(&r);
    }
    rig_data_free(&data);
}

/* P54: 125 micro-batches in windows of 4 are 32 updates; the last window, of one batch, is divided by its own count. */
static void the_last_window_has_its_own_count(void **state)
{
    const dp_backend *b = rig_backend(state);
    rig r, one;
    int64_t count;
    dp_tensor_info t;
    dp_result result = {0};
    rig_data data = rig_data_new(&rig_flat, 24, 3);
    rig_open(&r, &rig_flat, b, 2, 0, "data.accumulate=4 data.batch_size=3 optimizer.momentum=0");
    rig_open(&one, &rig_flat, dp_backend_cpu(), 1, 0, "optimizer.momentum=0");
    float *before = NULL;
    for (int i = 0; i < 125; i++) {
        if (i == 124) before = rig_weights(&r, &count);
        result = rig_micro_step(&r, &data, i % 21, 3, i % 4 == 3 || i == 124);
    }
    assert_int_equal(result.updates, 32);
    const float *at = before;
    for (int i = 0; dp_graph_tensor(r.graph, i, &t); at += t.count, i++)
        assert_int_equal(dp_engine_put(one.e, t.name, at, t.count, NULL), DP_OK);
    dp_result single = rig_step(&one, &data, 124 % 21, 3);
    float *got = rig_weights(&r, &count), *want = rig_weights(&one, &count);
    assert_true(rig_distance(got, before, count) > 1e-4);
    assert_true(rig_distance(got, want, count) < 1e-6);
    assert_true(fabs(result.grad_norm - single.grad_norm) < 1e-5 * single.grad_norm);
    free(before);
    free(got);
    free(want);
    rig_close(&r);
    rig_close(&one);
    rig_data_free(&data);
}

/* Targets that are ignored do not count; a window of them changes nothing. */
static void ignored_targets_are_not_counted(void **state)
{
    const dp_backend *b = rig_backend(state);
    rig r, one;
    int64_t count;
    dp_batch batch;
    dp_result result;
    dp_error err;
    rig_data data = rig_data_new(&rig_gpt, 8, 3);
    for (int i = 0; i < 20; i++) data.y[i] = -1; /* the first four samples */
    rig_open(&r, &rig_gpt, b, 2, 0, "loss.ignore_label=-1 optimizer.weight_decay=0.1");
    rig_open(&one, &rig_gpt, dp_backend_cpu(), 1, 0, "optimizer.weight_decay=0.1");
    float *before = rig_weights(&r, &count);
    batch = rig_batch(&data, 0, 4);
    if (dp_engine_step(r.e, &batch, &result, &err)) fail_msg("%s", err.text);
    assert_true(result.targets == 0 && result.skipped == 1 && result.updates == 0);
    assert_non_null(strstr(r.warning, "no target counted"));
    float *after = rig_weights(&r, &count);
    rig_same_bytes(after, before, (size_t)count * 4, "weights after a window without targets");
    free(after);
    result = rig_step(&r, &data, 0, 8); /* device 0 has nothing that counts */
    dp_result single = rig_step(&one, &data, 4, 4);
    assert_int_equal(result.targets, 20);
    assert_true(fabs(result.grad_norm - single.grad_norm) < 1e-5 * single.grad_norm);
    after = rig_weights(&r, &count);
    float *want = rig_weights(&one, &count);
    assert_true(rig_distance(after, want, count) < 1e-6);
    free(before);
    free(after);
    free(want);
    rig_close(&r);
    rig_close(&one);
    rig_data_free(&data);
}

/* ---- parameters without gradient ---- */

static const rig_net rig_unused = {.name = "unused",
                                   .text = "[model]\ninput = 12\nfc1 = linear out=8 | relu\n"
                                           "side = linear out=5 from=input\nfc2 = linear out=4 from=fc1\n",
                                   .width = 12,
                                   .targets = 1,
                                   .classes = 4};

/* P72: a branch that does not reach the output stays as it is, and is named once; idle devices count as 0. */
static void unused_parameters_stay(void **state)
{
    const dp_backend *b = rig_backend(state);
    rig r;
    int64_t count;
    float weight[2][60], gradient[60];
    dp_error err;
    rig_data data = rig_data_new(&rig_unused, 24, 3);
    rig_open(&r, &rig_unused, b, 3, 0, "optimizer.weight_decay=0");
    assert_non_null(strstr(r.warning, "side.weight, side.bias"));
    assert_null(strstr(r.warning, "fc1"));
    assert_int_equal(dp_engine_get(r.e, "side.weight", weight[0], 60, &err), DP_OK);
    for (int i = 0; i < 3; i++) rig_step(&r, &data, 0, 1 + i);
    assert_int_equal(dp_engine_get(r.e, "side.weight", weight[1], 60, &err), DP_OK);
    rig_same_bytes(weight[0], weight[1], sizeof weight[0], "side.weight");
    assert_int_equal(dp_engine_gradient(r.e, "side.weight", gradient, 60, &err), DP_OK);
    for (int i = 0; i < 60; i++) assert_true(gradient[i] == 0);
    assert_int_equal(dp_engine_gradient(r.e, "fc2.weight", gradient, 32, &err), DP_OK);
    float *all = rig_gradient(&r, &count);
    assert_true(all[0] != 0 || all[1] != 0);
    free(all);
    rig_close(&r);
    rig_data_free(&data);
}

/* Poison in the gradient arrays, busy devices and idle ones, must not be seen by a step. */
static void gradients_are_made_anew(void **state)
{
    const dp_backend *b = rig_backend(state);
    static const char *const switches[] = {"devices.reduce=sliced", "devices.reduce=master", "devices.shards=8"};
    for (int i = 0; i < COUNT(switches); i++) {
        rig r, clean;
        int64_t count;
        rig_data data = rig_data_new(&rig_mlp, 24, 3);
        rig_open(&r, &rig_mlp, b, 4, 0, switches[i]);
        rig_open(&clean, &rig_mlp, b, 4, 0, switches[i]);
        for (int64_t n = 9; n >= 1; n -= 2) {
            for (int d = 0; d < 4; d++)
                for (int slot = 0; slot < r.e->replica[d].slots; slot++)
                    for (int k = 0; k < r.e->params->n_params; k++)
                        memset(r.e->replica[d].grad[slot] + r.e->params->param[k].offset, 0xff,
                               (size_t)r.e->params->param[k].count * 4);
            rig_step(&r, &data, 0, n);
            rig_step(&clean, &data, 0, n);
        }
        float *got = rig_weights(&r, &count), *want = rig_weights(&clean, &count);
        rig_same_bytes(got, want, (size_t)count * 4, switches[i]);
        free(got);
        free(want);
        rig_close(&r);
        rig_close(&clean);
        rig_data_free(&data);
    }
}

/* ---- evaluation ---- */

/* P79: after training with batchnorm a sample gives the same bytes wherever it stands. */
static void a_sample_does_not_depend_on_its_place(void **state)
{
    const dp_backend *b = rig_backend(state);
    rig r;
    dp_error err;
    float x[16][75], out[16][4], first[4];
    rig_data data = rig_data_new(&rig_conv, 24, 3);
    rig_open(&r, &rig_conv, b, 4, 0, "");
    for (int i = 0; i < 3; i++) rig_step(&r, &data, i, 12);
    for (int place = 0; place < 16; place++) {
        memcpy(x, data.x, sizeof x);
        memcpy(x[place], data.x + 20 * 75, sizeof x[0]);
        if (dp_engine_predict(r.e, dp_view(x, DP_F32, 16, 75), out[0], sizeof out, &err)) fail_msg("%s", err.text);
        if (!place) memcpy(first, out[0], sizeof first);
        rig_same_bytes(out[place], first, sizeof first, "prediction in another place");
    }
    rig_close(&r);
    rig_data_free(&data);
}

/* P31: evaluation takes a batch of one, and does not move the running statistics. */
static void evaluation_of_one_sample_works(void **state)
{
    const dp_backend *b = rig_backend(state);
    rig r;
    int64_t count;
    float out[4];
    dp_error err;
    rig_data data = rig_data_new(&rig_tight, 24, 3);
    rig_open(&r, &rig_tight, b, 2, 0, "");
    rig_step(&r, &data, 0, 8);
    float *before = rig_weights(&r, &count);
    evaluate(&r, &data, 1);
    if (dp_engine_predict(r.e, rig_batch(&data, 0, 1).x, out, sizeof out, &err)) fail_msg("%s", err.text);
    for (int i = 0; i < 4; i++) assert_true(isfinite(out[i]));
    float *after = rig_weights(&r, &count);
    rig_same_bytes(after, before, (size_t)count * 4, "weights and statistics after evaluation");
    free(before);
    free(after);
    rig_close(&r);
    rig_data_free(&data);
}

/* ---- what is refused, and policies ---- */

#define REFUSED(call, code, ...)                                                                                               \
    do {                                                                                                                       \
        const char *const says[] = {__VA_ARGS__};                                                                              \
        memset(&err, 0, sizeof err);                                                                                           \
        assert_int_equal(call, code);                                                                                          \
        for (int says_i = 0; says_i < COUNT(says); says_i++)                                                                   \
            if (!strstr(err.text, says[says_i])) fail_msg("\"%s\" lacks \"%s\"", err.text, says[says_i]);                      \
    } while (0)

/* A token that the embedding does not know, anywhere and of any kind of call, is told before any device has work. */
static void unknown_tokens_are_refused(void **state)
{
    rig r;
    dp_error err;
    dp_result result = {0};
    float out[6 * 5 * 11];
    rig_data data = rig_data_new(&rig_gpt, 8, 3);
    rig_open(&r, &rig_gpt, rig_backend(state), 2, 0, "");
    dp_batch b = rig_batch(&data, 0, 6);
    data.tokens[5 * 5 + 3] = 11;
    REFUSED(dp_engine_submit(r.e, &b, &err), DP_EDATA, "Row 5 of x, position 3", "token 11", "layer e has 11 tokens");
    REFUSED(dp_engine_eval(r.e, &b, &result, &err), DP_EDATA, "token 11");
    REFUSED(dp_engine_predict(r.e, b.x, out, sizeof out, &err), DP_EDATA, "token 11");
    data.tokens[5 * 5 + 3] = -2;
    REFUSED(dp_engine_submit(r.e, &b, &err), DP_EDATA, "token -2");
    data.tokens[5 * 5 + 3] = 10;
    assert_int_equal(dp_engine_step(r.e, &b, &result, &err), DP_OK);
    rig_close(&r);
    rig_data_free(&data);
}

/* P29, P57 and their like: told before any device has work, and harmless. */
static void wrong_batches_are_refused(void **state)
{
    const dp_backend *b = rig_backend(state);
    rig r, clean;
    int64_t count, rows[2];
    dp_error err;
    dp_result result;
    float out[16 * 4];
    rig_data data = rig_data_new(&rig_mlp, 32, 3);
    rig_open(&r, &rig_mlp, b, 2, 0, "");
    rig_open(&clean, &rig_mlp, b, 2, 0, "");
    dp_batch good = rig_batch(&data, 0, 16), bad = good;
    bad.y.n = 15;
    REFUSED(dp_engine_submit(r.e, &bad, &err), DP_EARGUMENT, "x has 16 rows", "y has 15");
    REFUSED(dp_engine_eval(r.e, &bad, &result, &err), DP_EARGUMENT, "x has 16 rows", "y has 15");
    bad = good, bad.x.n = 0;
    REFUSED(dp_engine_submit(r.e, &bad, &err), DP_EARGUMENT, "empty");
    bad = good, bad.x.width = 11;
    REFUSED(dp_engine_submit(r.e, &bad, &err), DP_EARGUMENT, "11", "12");
    bad = good, bad.y.width = 2;
    REFUSED(dp_engine_submit(r.e, &bad, &err), DP_EARGUMENT, "2 targets");
    bad = good, bad.y.dtype = DP_F32;
    REFUSED(dp_engine_submit(r.e, &bad, &err), DP_EARGUMENT, "class numbers");
    bad = good, bad.x.dtype = DP_I64;
    REFUSED(dp_engine_submit(r.e, &bad, &err), DP_EARGUMENT, "f32 or u8");
    bad = good, bad.y.data = NULL;
    REFUSED(dp_engine_submit(r.e, &bad, &err), DP_EARGUMENT, "targets");
    bad = rig_batch(&data, 0, 25);
    REFUSED(dp_engine_submit(r.e, &bad, &err), DP_EARGUMENT, "25", "24");
    bad = good, bad.last_of_window = 0;
    REFUSED(dp_engine_submit(r.e, &bad, &err), DP_EARGUMENT, "data.accumulate");
    REFUSED(dp_engine_wait(r.e, &result, &err), DP_EARGUMENT, "Nothing is in flight");
    data.y[13] = 4;
    REFUSED(dp_engine_submit(r.e, &good, &err), DP_EDATA, "Sample 1091 ", "row 13", "label 4", "0 to 3");
    data.y[13] = -1;
    REFUSED(dp_engine_eval(r.e, &good, &result, &err), DP_EDATA, "label -1");
    data.y[13] = 2;
    REFUSED(dp_engine_predict(r.e, good.x, out, sizeof out - 4, &err), DP_EARGUMENT, "256 bytes");
    REFUSED(dp_engine_get(r.e, "fc9.weight", out, 4, &err), DP_EARGUMENT, "fc9.weight");
    REFUSED(dp_engine_get(r.e, "fc2.bias", out, 5, &err), DP_EARGUMENT, "4 elements");
    REFUSED(dp_engine_submit(NULL, &good, &err), DP_EARGUMENT, "engine");
    assert_int_equal(dp_engine_set_lr(r.e, NAN), DP_EARGUMENT);
    assert_int_equal(dp_engine_submit(r.e, &good, &err), DP_OK);
    assert_int_equal(dp_engine_submit(r.e, &good, &err), DP_OK);
    REFUSED(dp_engine_submit(r.e, &good, &err), DP_EARGUMENT, "Two batches are in flight");
    REFUSED(dp_engine_step(r.e, &good, &result, &err), DP_EARGUMENT, "in flight");
    REFUSED(dp_engine_put(r.e, "fc2.bias", out, 4, &err), DP_EARGUMENT, "in flight"); /* devices may be reading it */
    assert_int_equal(dp_engine_wait(r.e, &result, &err), DP_OK);
    assert_int_equal(dp_engine_wait(r.e, &result, &err), DP_OK);

    /* P29's other half: 16 rows on 2 devices are 8 and 8, and 16 rows come out. */
    assert_int_equal(dp_engine_split(r.e, 16, rows, 2), 2);
    assert_true(rows[0] == 8 && rows[1] == 8);
    for (int i = 0; i < COUNT(out); i++) out[i] = NAN;
    assert_int_equal(dp_engine_predict(r.e, good.x, out, sizeof out, &err), DP_OK);
    for (int i = 0; i < COUNT(out); i++) assert_true(isfinite(out[i]));

    /* What was refused has left no trace. */
    rig_step(&clean, &data, 0, 16);
    rig_step(&clean, &data, 0, 16);
    float *got = rig_weights(&r, &count), *want = rig_weights(&clean, &count);
    rig_same_bytes(got, want, (size_t)count * 4, "weights after refused calls");
    free(got);
    free(want);
    rig_close(&r);
    rig_close(&clean);
    rig_data_free(&data);
}

static void wrong_settings_are_refused(void **state)
{
    static const struct {
        const char *settings;
        int devices;
        const char *says;
    } cases[] = {
        {"devices.split=weights devices.weights=3,1,2", 2, "3 numbers for 2 devices"}, /* P45 */
        {"devices.split=weights devices.weights=3,x", 2, "\"x\" is not a positive number"},
        {"devices.split=weights", 2, "wants devices.weights"},
        {"devices.shards=4 devices.split=chunk", 2, "even only"},
        {"devices.shards=2", 3, "less than the 3 devices"},
    };
    const dp_backend *b = rig_backend(state);
    dp_error err;
    int threads = rig_threads();
    for (int i = 0; i < COUNT(cases); i++) {
        rig r;
        REFUSED(rig_try(&r, &rig_mlp, b, cases[i].devices, 0, cases[i].settings, &err), DP_ECONFIG, cases[i].says);
        assert_null(r.e);
        rig_close(&r);
    }
    assert_true(rig_threads_back(threads));
}

/* P31, P32: a batchnorm on 1 x 1 maps. */
static void parts_too_small_for_a_batchnorm(void **state)
{
    const dp_backend *b = rig_backend(state);
    rig r;
    int64_t count, rows[4];
    dp_error err;
    rig_data data = rig_data_new(&rig_tight, 32, 3);

    rig_open(&r, &rig_tight, b, 4, 0, "devices.small_batch=drop");
    assert_int_equal(dp_engine_split(r.e, 5, rows, 4), 4);
    assert_true(rows[0] == 3 && rows[1] == 2 && rows[2] == 0 && rows[3] == 0);
    dp_result result = rig_step(&r, &data, 0, 5);
    assert_true(result.samples == 5 && result.updates == 1);
    float *before = rig_weights(&r, &count);
    result = rig_step(&r, &data, 0, 1);
    assert_true(result.samples == 0 && result.dropped == 1 && result.skipped == 1 && result.updates == 1);
    float *after = rig_weights(&r, &count);
    rig_same_bytes(after, before, (size_t)count * 4, "weights after a dropped batch");
    result = rig_step(&r, &data, 0, 9);
    assert_true(result.samples == 9 && result.updates == 2);
    free(before);
    free(after);
    rig_close(&r);

    rig_open(&r, &rig_tight, b, 4, 0, "devices.small_batch=error");
    dp_batch one = rig_batch(&data, 0, 1);
    REFUSED(dp_engine_submit(r.e, &one, &err), DP_EARGUMENT, "layer bn ", "Batch 1", "part of 1 row", "devices.small_batch");
    assert_string_equal(err.layer, "bn");
    rig_step(&r, &data, 0, 2);
    rig_close(&r);

    rig_open(&r, &rig_tight, b, 4, 0, "devices.small_batch=merge"); /* the loader joins: one row more fits */
    result = rig_step(&r, &data, 0, 25);
    assert_int_equal(result.samples, 25);
    rig_close(&r);
    rig_data_free(&data);
}

/* P33, P30: any batch on any devices; idle ones take no part. */
static void batches_need_not_divide(void **state)
{
    const dp_backend *b = rig_backend(state);
    rig r;
    int64_t rows[4];
    rig_data data = rig_data_new(&rig_mlp, 24, 3);
    rig_open(&r, &rig_mlp, b, 4, 0, "");
    assert_int_equal(dp_engine_split(r.e, 10, rows, 4), 4);
    assert_true(rows[0] == 3 && rows[1] == 3 && rows[2] == 2 && rows[3] == 2);
    assert_int_equal(rig_step(&r, &data, 0, 10).samples, 10);
    assert_int_equal(dp_engine_split(r.e, 3, rows, 4), 4);
    assert_true(rows[0] == 1 && rows[1] == 1 && rows[2] == 1 && rows[3] == 0);
    assert_int_equal(rig_step(&r, &data, 0, 3).samples, 3);
    assert_int_equal(rig_step(&r, &data, 0, 1).samples, 1);
    rig_close(&r);
    rig_data_free(&data);
}

/* NaN in one device's part: stop names device and tensor, warn skips on all. */
static void a_gradient_that_is_not_finite(void **state)
{
    const dp_backend *b = rig_backend(state);
    rig r;
    int64_t count;
    dp_result result;
    dp_error err;
    rig_data data = rig_data_new(&rig_flat, 24, 3);
    data.x[10 * 12] = NAN; /* sample 10 of 12: device 3 of 4 */
    dp_batch batch = rig_batch(&data, 0, 12);

    rig_open(&r, &rig_flat, b, 4, 0, "run.on_nan=warn");
    float *before = rig_weights(&r, &count);
    if (dp_engine_step(r.e, &batch, &result, &err)) fail_msg("%s", err.text);
    assert_true(result.skipped == 1 && result.updates == 0);
    float *after = rig_weights(&r, &count);
    rig_same_bytes(after, before, (size_t)count * 4, "weights after a skipped update");
    assert_int_equal(rig_step(&r, &data, 12, 12).updates, 1);
    free(before);
    free(after);
    rig_close(&r);

    rig_open(&r, &rig_flat, b, 4, 0, "");
    REFUSED(dp_engine_step(r.e, &batch, &result, &err), DP_ENONFINITE, "Batch 1", "fc1.weight");
    assert_int_equal(err.device, 3);
    REFUSED(dp_engine_step(r.e, &batch, &result, &err), DP_EFAILED, "failed before");
    rig_close(&r);
    rig_data_free(&data);
}

/* ---- things made ---- */

typedef struct made {
    int64_t created, allocations;
} made;

static made things_made(const rig *r, int device)
{
    dp_device_stats s;
    assert_int_equal(dp_engine_stats(r->e, device, &s), 1);
    return (made){s.created, r->e->group->backend->memory(r->e->group->worker[device].be)->allocations};
}

static void epoch(rig *r, const rig_data *data, int accumulate)
{
    for (int i = 0; i < 4; i++) rig_micro_step(r, data, i, i == 3 ? 7 : 20, i == 3 || i % accumulate == accumulate - 1);
    evaluate(r, data, 10);
}

/* P03, P44: the second epoch makes nothing: no memory, kernels, events, threads; short last batch and evaluation included. */
static void a_second_epoch_makes_nothing(void **state)
{
    const dp_backend *b = rig_backend(state);
    static const rig_net *const nets[] = {&rig_conv, &rig_gpt};
    static const char *const switches[] = {"data.accumulate=1",
                                           "devices.loss=master devices.broadcast=always data.accumulate=2",
                                           "devices.shards=5 data.accumulate=2"};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < COUNT(switches); i++) {
            rig r;
            made after_first[4];
            rig_data data = rig_data_new(nets[k], 24, 3);
            rig_open(&r, nets[k], b, 4, 0, switches[i]);
            int64_t allocations = things_made(&r, 0).allocations;
            epoch(&r, &data, i ? 2 : 1);
            for (int d = 0; d < 4; d++) after_first[d] = things_made(&r, d);
            int threads = rig_threads();
            for (int again = 0; again < 3; again++) epoch(&r, &data, i ? 2 : 1);
            assert_true(rig_threads_back(threads));
            assert_int_equal(after_first[0].allocations, allocations);
            for (int d = 0; d < 4; d++) {
                made now = things_made(&r, d);
                if (now.created != after_first[d].created)
                    fail_msg("%s, %s, device %d: %lld things made in later epochs", nets[k]->name, switches[i], d,
                             (long long)(now.created - after_first[d].created));
                assert_int_equal(now.allocations, after_first[d].allocations);
            }
            rig_close(&r);
            rig_data_free(&data);
        }
}

/* Two engines in one process, interleaved, are independent of each other (P95). */
static void two_engines_do_not_disturb_each_other(void **state)
{
    const dp_backend *b = rig_backend(state);
    rig a, c, alone;
    int64_t count;
    rig_data data = rig_data_new(&rig_dropout, 24, 3);
    rig_open(&alone, &rig_dropout, b, 2, 0, "run.seed=5");
    for (int i = 0; i < 4; i++) rig_step(&alone, &data, i, 11);
    rig_open(&a, &rig_dropout, b, 2, 0, "run.seed=5");
    rig_open(&c, &rig_dropout, b, 3, 0, "run.seed=6");
    for (int i = 0; i < 4; i++) {
        rig_step(&a, &data, i, 11);
        rig_step(&c, &data, i, 12);
    }
    float *got = rig_weights(&a, &count), *want = rig_weights(&alone, &count), *other = rig_weights(&c, &count);
    rig_same_bytes(got, want, (size_t)count * 4, "weights beside another engine");
    assert_true(rig_distance(other, want, count) > 0.1);
    free(got);
    free(want);
    free(other);
    rig_close(&a);
    rig_close(&c);
    rig_close(&alone);
    rig_data_free(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON(replicas_start_and_stay_equal_and_learn),
        ON(masks_belong_to_samples),
        ON(the_start_loss_is_the_log_of_the_classes),
        ON(the_last_window_has_its_own_count),
        ON(ignored_targets_are_not_counted),
        ON(unused_parameters_stay),
        ON(gradients_are_made_anew),
        ON(a_sample_does_not_depend_on_its_place),
        ON(evaluation_of_one_sample_works),
        ON(wrong_batches_are_refused),
        ON(unknown_tokens_are_refused),
        ON(wrong_settings_are_refused),
        ON(parts_too_small_for_a_batchnorm),
        ON(batches_need_not_divide),
        ON(a_gradient_that_is_not_finite),
        ON(a_second_epoch_makes_nothing),
        ON(two_engines_do_not_disturb_each_other),
    };
    return cmocka_run_group_tests(tests, rig_warm_up, NULL);
}
