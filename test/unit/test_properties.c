/* The strict properties of data-parallel training: N devices give the bytes of one device that runs the same leaves; `shards` gives equal
 * bytes on any number of devices; against the whole batch at once only rounding differs. On the plain CPU backend and on late streams. */
#include "../../nn/plan_internal.h"
#include "engine_rig.h"
#include <math.h>

static const rig_net *const nets[] = {&rig_mlp, &rig_wide, &rig_conv, &rig_dropout, &rig_gpt};
static const int device_counts[] = {1, 2, 3, 4, 7};
static const char *const splits[] = {"devices.split=even", "devices.split=chunk", "devices.split=weights devices.weights="};
static const char *const reduces[] = {"sliced", "master"}, *const losses[] = {"replica", "master"},
                         *const broadcasts[] = {"on_update", "always"};
#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* ---- what a training leaves behind, as bytes ---- */

typedef struct trace {
    char *bytes;
    size_t used, size;
} trace;

static void put(trace *t, const void *p, size_t bytes)
{
    if (t->used + bytes > t->size) {
        t->size = (t->used + bytes) * 2;
        t->bytes = realloc(t->bytes, t->size);
        assert_non_null(t->bytes);
    }
    memcpy(t->bytes + t->used, p, bytes);
    t->used += bytes;
}

static void put_step(trace *t, rig *r, dp_result result)
{
    int64_t n;
    float *g = rig_gradient(r, &n);
    put(t, g, (size_t)n * 4);
    free(g);
    put(t, &result.loss_sum, sizeof result.loss_sum);
    put(t, &result.grad_norm, sizeof result.grad_norm);
    put(t, &result.correct, sizeof result.correct);
    put(t, &result.targets, sizeof result.targets);
}

static void put_weights(trace *t, rig *r)
{
    int64_t n;
    float *w = rig_weights(r, &n);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(w[i])) fail_msg("weight %lld is not finite", (long long)i);
    put(t, w, (size_t)n * 4);
    free(w);
}

static void same(const trace *a, const trace *b, const char *what)
{
    assert_int_equal(a->used, b->used);
    rig_same_bytes(a->bytes, b->bytes, a->used, what);
}

/* Batches of 1 .. 3n + 1 samples, `window` of them a step; the result of the last. Two are in flight, as in the trainer, so that a step may run
 * into the one before. */
static dp_result run_ahead(rig *r, const rig_data *data, int n, int window)
{
    dp_result result;
    dp_error err;
    for (int i = 0; i <= 3 * n + 1; i++) {
        dp_batch batch = rig_batch(data, i % 5, i + 1);
        batch.epoch = (uint64_t)i;
        batch.last_of_window = i % window == window - 1 || i == 3 * n;
        if (i <= 3 * n && dp_engine_submit(r->e, &batch, &err)) fail_msg("%s", err.text);
        if (i && dp_engine_wait(r->e, &result, &err)) fail_msg("%s", err.text);
    }
    return result;
}

/* The same batches twice: one after the other with a look at the gradient, then running ahead. */
static trace train(const rig_net *net, const dp_backend *b, int devices, int leaves, int n, const char *settings,
                   const rig_data *data)
{
    rig r;
    trace t = {0};
    rig_open(&r, net, b, devices, leaves, settings);
    for (int64_t batch = 1; batch <= 3 * n + 1; batch++) put_step(&t, &r, rig_step(&r, data, batch % 5, batch));
    put_weights(&t, &r);
    put_step(&t, &r, run_ahead(&r, data, n, 1));
    put_weights(&t, &r);
    rig_close(&r);
    return t;
}

static void split_text(int split, int n, char *text, size_t size)
{
    snprintf(text, size, "%s", splits[split]);
    for (int i = 0; split == 2 && i < n; i++)
        snprintf(text + strlen(text), size - strlen(text), "%s%d", i ? "," : "", 1 + (i * 2 + 2) % 4);
}

/* ---- tests ---- */

/* Every net, number of devices and split; of the eight combinations of the other switches two each, all eight over neighbours. */
static void devices_equal_leaves_byte_for_byte(void **state)
{
    const dp_backend *b = rig_backend(state);
    int turn = 0, late = b != dp_backend_cpu();
    for (int k = 0; k < COUNT(nets); k++) {
        rig_data data = rig_data_new(nets[k], 32, 17);
        for (int i = 0; i < COUNT(device_counts); i++) {
            int n = device_counts[i];
            if (late && n > 4 && !rig_full()) continue;
            for (int split = 0; split < COUNT(splits); split++) {
                char how[128], settings[256];
                split_text(split, n, how, sizeof how);
                trace one = train(nets[k], dp_backend_cpu(), 1, n, n, how, &data);
                int tries = rig_full() ? 8 : late ? 1 : 2;
                for (int c = 0; c < tries; c++, turn += rig_full() ? 1 : 3) {
                    snprintf(settings, sizeof settings, "%s devices.reduce=%s devices.loss=%s devices.broadcast=%s", how,
                             reduces[turn & 1], losses[turn >> 1 & 1], broadcasts[turn >> 2 & 1]);
                    trace many = train(nets[k], b, n, 0, n, settings, &data);
                    char what[400];
                    snprintf(what, sizeof what, "%s on %d devices, %s", nets[k]->name, n, settings);
                    same(&many, &one, what);
                    free(many.bytes);
                }
                free(one.bytes);
            }
        }
        rig_data_free(&data);
    }
}

/* 20 windows of two micro-batches, every fifth batch short; two in flight. */
static trace train_shards(const rig_net *net, const dp_backend *b, int devices, const char *settings, const rig_data *data)
{
    rig r;
    trace t = {0};
    dp_error err;
    dp_result result;
    rig_open(&r, net, b, devices, 0, settings);
    for (int i = 0; i < 40; i++) {
        int64_t n = i % 5 == 4 ? 3 : 13;
        dp_batch batch = rig_batch(data, i % 7, n);
        batch.epoch = (uint64_t)i;
        batch.last_of_window = i % 2;
        if (dp_engine_submit(r.e, &batch, &err)) fail_msg("%s", err.text);
        if (i && dp_engine_wait(r.e, &result, &err)) fail_msg("%s", err.text);
        if (i) put(&t, &result.loss_sum, sizeof result.loss_sum);
    }
    if (dp_engine_wait(r.e, &result, &err)) fail_msg("%s", err.text);
    assert_int_equal(result.updates, 20);
    put_step(&t, &r, result);
    put_weights(&t, &r);
    rig_close(&r);
    return t;
}

static void shards_train_the_same_bytes_on_any_devices(void **state)
{
    const dp_backend *b = rig_backend(state);
    static const char *const rules[] = {"optimizer.kind=adamw optimizer.lr=0.01", "optimizer.nesterov=1 devices.reduce=master",
                                        "optimizer.weight_decay=0.01 devices.loss=master"};
    for (int k = 0; k < COUNT(nets); k++) {
        char settings[256];
        rig_data data = rig_data_new(nets[k], 24, 5);
        snprintf(settings, sizeof settings, "devices.shards=4 data.accumulate=2 data.batch_size=13 optimizer.clip_norm=0.2 %s",
                 rules[k % 3]);
        trace one = train_shards(nets[k], dp_backend_cpu(), 1, settings, &data);
        for (int n = b == dp_backend_cpu() ? 2 : 1; n <= 4; n++) {
            char what[64];
            trace many = train_shards(nets[k], b, n, settings, &data);
            snprintf(what, sizeof what, "%s, shards = 4 on %d devices", nets[k]->name, n);
            same(&many, &one, what);
            free(many.bytes);
        }
        free(one.bytes);
        rig_data_free(&data);
    }
}

/* Windows of three batches without shards, on nets of one chunk and of many: what late streams give is what streams in line give, whatever is in flight. */
static void windows_run_ahead_without_harm(void **state)
{
    const dp_backend *b = rig_backend(state);
    static const char *const switches[] = {"", "devices.broadcast=always", "devices.reduce=master devices.loss=master",
                                           "devices.broadcast=always devices.reduce=master", "devices.loss=master"};
    for (int i = 0; i < COUNT(switches); i++) {
        trace t[2] = {{0}, {0}};
        const rig_net *net = i % 2 ? &rig_wide : &rig_dropout;
        rig_data data = rig_data_new(net, 32, 2);
        for (int k = 0; k < 2; k++) {
            rig r;
            char settings[128];
            snprintf(settings, sizeof settings, "data.accumulate=3 %s", k ? "" : switches[i]);
            rig_open(&r, net, k ? dp_backend_cpu() : b, 4, 0, settings);
            for (int again = 0; again < 3; again++) put_step(&t[k], &r, run_ahead(&r, &data, 4, 3));
            put_weights(&t[k], &r);
            rig_close(&r);
        }
        same(&t[0], &t[1], switches[i]);
        free(t[0].bytes);
        free(t[1].bytes);
        rig_data_free(&data);
    }
}

/* Without shards micro-batches are added up per device: the same gradient, in another order. */
static void accumulation_equals_the_large_batch(void **state)
{
    const dp_backend *b = rig_backend(state);
    int64_t count;
    for (int k = 0; k < COUNT(nets); k++) {
        if (nets[k] == &rig_conv || nets[k] == &rig_mlp) continue; /* batchnorm sees another batch; relu: below */
        rig large, small;
        rig_data data = rig_data_new(nets[k], 24, 5);
        rig_open(&large, nets[k], dp_backend_cpu(), 1, 0, "");
        rig_open(&small, nets[k], b, 3, 0, "data.accumulate=3");
        dp_result whole = rig_step(&large, &data, 0, 20);
        rig_micro_step(&small, &data, 0, 8, 0);
        rig_micro_step(&small, &data, 8, 2, 0);
        dp_result last = rig_micro_step(&small, &data, 10, 10, 1);
        float *want = rig_gradient(&large, &count), *got = rig_gradient(&small, &count);
        assert_true(rig_tensor_distance(&large, got, want, 1) < 1e-5);
        assert_true(fabs(last.grad_norm - whole.grad_norm) < 1e-5 * whole.grad_norm);
        free(want);
        free(got);
        rig_close(&large);
        rig_close(&small);
        rig_data_free(&data);
    }
}

/* Against one device that takes the batch whole: gradients, and weights after a step. Dropout draws by sample id, so it is in. */
static void whole_batch_within_rounding(void **state)
{
    const dp_backend *b = rig_backend(state);
    static const struct {
        int n;
        const char *split;
    } cases[] = {{2, "devices.split=even"},
                 {3, "devices.split=chunk"},
                 {4, "devices.split=even"},
                 {7, "devices.split=chunk"},
                 {3, "devices.split=weights devices.weights=3,1,2"}};
    static const int64_t batches[] = {7, 16, 5, 20, 2};
    for (int k = 0; k < COUNT(nets); k++) {
        if (nets[k] == &rig_conv) continue; /* its batchnorm normalises with the statistics of a part */
        rig_data data = rig_data_new(nets[k], 24, 23);
        for (int i = 0; i < COUNT(cases); i++) {
            rig one, many;
            int64_t count;
            rig_open(&one, nets[k], dp_backend_cpu(), 1, 0, "optimizer.momentum=0");
            rig_open(&many, nets[k], b, cases[i].n, 0, cases[i].split);
            dp_result whole = rig_step(&one, &data, 1, batches[i]), parts = rig_step(&many, &data, 1, batches[i]);
            float *want = rig_gradient(&one, &count), *got = rig_gradient(&many, &count);
            double limit = nets[k]->smooth ? 1e-5 : 5e-3, distance = rig_tensor_distance(&one, got, want, 1);
            if (!(distance <= limit)) fail_msg("%s on %d devices: gradients differ by %g", nets[k]->name, cases[i].n, distance);
            assert_true(fabs(parts.loss_sum - whole.loss_sum) <= 1e-6 * whole.loss_sum);
            assert_true(fabs(parts.grad_norm - whole.grad_norm) <= (nets[k]->smooth ? 1e-5 : 5e-3) * whole.grad_norm); /* P50 */
            assert_int_equal(parts.targets, whole.targets);
            assert_int_equal(parts.samples, batches[i]);
            free(want);
            free(got);
            want = rig_weights(&one, &count), got = rig_weights(&many, &count);
            distance = rig_tensor_distance(&one, got, want, 0);
            if (!(distance <= limit)) fail_msg("%s on %d devices: weights differ by %g", nets[k]->name, cases[i].n, distance);
            free(want);
            free(got);
            rig_close(&one);
            rig_close(&many);
        }
        rig_data_free(&data);
    }
}

/* P47: 7 samples as 3, 3, 1. A mean of means would be off by percents. */
static void uneven_parts_have_their_weight(void **state)
{
    const dp_backend *b = rig_backend(state);
    rig one, many;
    int64_t count, rows[3];
    rig_data data = rig_data_new(&rig_flat, 7, 3);
    rig_open(&one, &rig_flat, dp_backend_cpu(), 1, 0, "");
    rig_open(&many, &rig_flat, b, 3, 0, "devices.split=chunk");
    assert_int_equal(dp_engine_split(many.e, 7, rows, 3), 3);
    assert_true(rows[0] == 3 && rows[1] == 3 && rows[2] == 1);
    dp_result whole = rig_step(&one, &data, 0, 7), parts = rig_step(&many, &data, 0, 7);
    float *want = rig_gradient(&one, &count), *got = rig_gradient(&many, &count);
    assert_true(rig_distance(got, want, count) < 1e-6);
    assert_true(fabs(parts.loss_sum - whole.loss_sum) < 1e-6 * whole.loss_sum);
    free(want);
    free(got);
    rig_close(&one);
    rig_close(&many);
    rig_data_free(&data);
}

/* P49: five steps, equal and unequal parts. */
static void five_steps_end_at_the_same_weights(void **state)
{
    const dp_backend *b = rig_backend(state);
    int64_t count;
    rig_data data = rig_data_new(&rig_flat, 24, 11);
    for (int n = 2; n <= 4; n++)
        for (int64_t batch = 12; batch <= 13; batch++) {
            rig one, many;
            rig_open(&one, &rig_flat, dp_backend_cpu(), 1, 0, "optimizer.momentum=0");
            rig_open(&many, &rig_flat, b, n, 0, "optimizer.momentum=0");
            for (int i = 0; i < 5; i++) {
                rig_step(&one, &data, i, batch);
                rig_step(&many, &data, i, batch);
            }
            float *want = rig_weights(&one, &count), *got = rig_weights(&many, &count);
            assert_true(rig_distance(got, want, count) < 1e-6);
            free(want);
            free(got);
            rig_close(&one);
            rig_close(&many);
        }
    rig_data_free(&data);
}

/* P84 and the rest of evaluation: any number of devices gives the same bytes; nothing is counted twice. */
static void evaluation_and_prediction_are_equal_on_any_devices(void **state)
{
    const dp_backend *b = rig_backend(state);
    for (int k = 0; k < COUNT(nets); k++) {
        const rig_net *net = nets[k];
        rig_data data = rig_data_new(net, 32, 7);
        dp_result first = {0};
        float *want = NULL;
        for (int n = 1; n <= 4; n++) {
            static const int64_t samples[] = {10, 1, 24};
            rig r;
            dp_error err;
            dp_result sum = {0};
            rig_open(&r, net, n == 1 ? dp_backend_cpu() : b, n, 4, "eval.batch_size=3");
            for (int i = 0; i < 3; i++) rig_step(&r, &data, i, 9);
            for (int i = 0; i < 3; i++) {
                dp_batch batch = rig_batch(&data, i, samples[i]);
                if (dp_engine_eval(r.e, &batch, &sum, &err)) fail_msg("%s", err.text);
            }
            assert_int_equal(sum.samples, 35);
            assert_int_equal(sum.targets, 35 * net->targets);
            size_t bytes = (size_t)(10 * net->targets * net->classes) * 4;
            float *out = malloc(bytes);
            assert_non_null(out);
            if (dp_engine_predict(r.e, rig_batch(&data, 2, 10).x, out, bytes, &err)) fail_msg("%s", err.text);
            if (n == 1) {
                first = sum, want = out;
            } else {
                assert_true(sum.loss_sum == first.loss_sum);
                assert_int_equal(sum.correct, first.correct);
                rig_same_bytes(out, want, bytes, net->name);
                free(out);
            }
            rig_close(&r);
        }
        free(want);
        rig_data_free(&data);
    }
}

/* A batch may be in flight when evaluation is asked for: it sees the weights and the running
 * statistics behind that batch, in the middle of a window too, where the statistics alone have moved. */
static void evaluation_comes_behind_what_is_in_flight(void **state)
{
    const dp_backend *b = rig_backend(state);
    rig ahead, waited;
    dp_error err;
    rig_data data = rig_data_new(&rig_conv, 24, 9);
    rig_open(&ahead, &rig_conv, b, 4, 0, "data.accumulate=2");
    rig_open(&waited, &rig_conv, dp_backend_cpu(), 4, 0, "data.accumulate=2");
    for (int i = 0; i < 6; i++) {
        dp_batch batch = rig_batch(&data, i, 11), all = rig_batch(&data, 0, 24);
        dp_result got = {0}, want = {0}, result;
        batch.last_of_window = i % 2;
        if (dp_engine_submit(ahead.e, &batch, &err)) fail_msg("%s", err.text);
        if (dp_engine_eval(ahead.e, &all, &got, &err)) fail_msg("%s", err.text);
        if (dp_engine_wait(ahead.e, &result, &err)) fail_msg("%s", err.text);
        rig_micro_step(&waited, &data, i, 11, i % 2);
        if (dp_engine_eval(waited.e, &all, &want, &err)) fail_msg("%s", err.text);
        assert_true(got.loss_sum == want.loss_sum);
        assert_int_equal(got.correct, want.correct);
    }
    rig_close(&ahead);
    rig_close(&waited);
    rig_data_free(&data);
}

/* P81: two equal runs, with other delays. */
static void a_run_repeats_itself(void **state)
{
    const dp_backend *b = rig_backend(state);
    rig_data data = rig_data_new(&rig_dropout, 32, 41);
    trace first = train(&rig_dropout, b, 4, 0, 4, "", &data);
    if (b != dp_backend_cpu()) b = late_backend(&(late_options){.seed = 99, .delay_us = 400});
    trace second = train(&rig_dropout, b, 4, 0, 4, "", &data);
    same(&first, &second, "a second run");
    free(first.bytes);
    free(second.bytes);
    rig_data_free(&data);
}

/* DP_ARENA=split: no kernel reads or writes beyond its tensor, or what another has stopped using; the latter is NaN by then. */
static void memory_of_its_own_changes_nothing(void **state)
{
    const dp_backend *b = rig_backend(state);
    for (int k = 0; k < COUNT(nets); k++) {
        rig r;
        rig_data data = rig_data_new(nets[k], 32, 41);
        trace one = train(nets[k], b, 2, 0, 2, "", &data);
        assert_int_equal(setenv("DP_ARENA", "split", 1), 0);
        trace split = train(nets[k], b, 2, 0, 2, "", &data);
        same(&split, &one, nets[k]->name);
        free(one.bytes);
        free(split.bytes);
        rig_open(&r, nets[k], b, 1, 0, "");
        rig_step(&r, &data, 0, 12);
        const dp_plan *p = r.e->replica[0].plan;
        int dead = 0, nan = 0;
        for (int i = 0; i < p->n_lone; i++) {
            if (p->lone[i].last < 1 || p->lone[i].last == p->n_links || p->lone[i].bytes < 4) continue;
            dead++, nan += isnan(*(const float *)p->lone[i].memory) != 0;
        }
        assert_true(dead > 0 && nan > dead / 2); /* backward of what does not train is never reached */
        rig_close(&r);
        unsetenv("DP_ARENA");
        rig_data_free(&data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON(devices_equal_leaves_byte_for_byte),
        ON(shards_train_the_same_bytes_on_any_devices),
        ON(windows_run_ahead_without_harm),
        ON(accumulation_equals_the_large_batch),
        ON(whole_batch_within_rounding),
        ON(uneven_parts_have_their_weight),
        ON(five_steps_end_at_the_same_weights),
        ON(evaluation_and_prediction_are_equal_on_any_devices),
        ON(evaluation_comes_behind_what_is_in_flight),
        ON(a_run_repeats_itself),
        ON(memory_of_its_own_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
