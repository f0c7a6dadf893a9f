/* Statistics of batchnorm over the parts of a batch (P78-P80): bn_stats = primary, merged, sync, with unequal parts, idle devices and windows,
 * on the plain CPU backend and on late streams. */
#include "engine_rig.h"
#include <math.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static const rig_net rig_smooth = {
    .name = "smooth",
    .text = "[model]\ninput = 3x5x5\nconv1 = conv2d out=6 kernel=3 pad=1 bias=0\n"
            "bn1 = batchnorm2d | tanh\nconv2 = conv2d out=6 kernel=3 pad=1 bias=0\n"
            "bn2 = batchnorm2d\nsum = add from=bn2,bn1 | sigmoid\npool = globalavgpool | flatten\n"
            "fc = linear out=4\n",
    .width = 75,
    .targets = 1,
    .classes = 4,
    .smooth = 1};
/* Batchnorm reads the input as it is: its statistics are known. */
static const rig_net rig_first = {.name = "first",
                                  .text = "[model]\ninput = 3x2x2\nbn = batchnorm2d\nflat = flatten\nfc = linear out=4\n",
                                  .width = 12,
                                  .targets = 1,
                                  .classes = 4,
                                  .smooth = 1};

typedef struct sums {
    double mean[3], var[3]; /* biased */
    int64_t n;
} sums;

/* Channel c of a sample: rig data lies as it comes, h, w, c. */
static sums of_rows(const rig_data *d, int64_t first, int64_t rows)
{
    sums s = {{0}, {0}, rows * 4};
    for (int c = 0; c < 3; c++) {
        double sum = 0, square = 0;
        for (int64_t i = first; i < first + rows; i++)
            for (int p = 0; p < 4; p++) sum += (double)d->x[i * 12 + p * 3 + c];
        s.mean[c] = sum / (double)s.n;
        for (int64_t i = first; i < first + rows; i++)
            for (int p = 0; p < 4; p++) square += pow((double)d->x[i * 12 + p * 3 + c] - s.mean[c], 2);
        s.var[c] = square / (double)s.n;
    }
    return s;
}

/* P78: primary takes the first part's, merged and sync the whole batch's; momentum 0.1, the variance unbiased. */
static void running_statistics_are_by_the_rule(void **state)
{
    static const char *const kinds[] = {"primary", "merged", "sync"};
    static const int parts[][3] = {{3, 3, 1}, {1, 4, 2}, {7, 0, 0}};
    rig_data data = rig_data_new(&rig_first, 8, 4);
    for (int k = 0; k < COUNT(kinds); k++)
        for (int i = 0; i < COUNT(parts); i++) {
            rig r;
            dp_error err;
            char settings[160];
            float mean[3], var[3];
            snprintf(settings, sizeof settings, "devices.bn_stats=%s devices.split=weights devices.weights=%d,%g,%g", kinds[k],
                     parts[i][0], fmax(parts[i][1], 1e-6), fmax(parts[i][2], 1e-6));
            rig_open(&r, &rig_first, rig_backend(state), 3, 0, settings);
            rig_step(&r, &data, 0, 7);
            sums want = of_rows(&data, 0, k ? 7 : parts[i][0]);
            assert_int_equal(dp_engine_get(r.e, "bn.running_mean", mean, 3, &err), DP_OK);
            assert_int_equal(dp_engine_get(r.e, "bn.running_var", var, 3, &err), DP_OK);
            for (int c = 0; c < 3; c++) {
                double unbiased = want.var[c] * (double)want.n / (double)(want.n - 1);
                assert_true(fabs((double)mean[c] - 0.1 * want.mean[c]) < 1e-6);
                assert_true(fabs((double)var[c] - (0.9 + 0.1 * unbiased)) < 1e-6);
            }
            float tracked;
            assert_int_equal(dp_engine_get(r.e, "bn.num_batches_tracked", &tracked, 1, &err), DP_OK);
            assert_true(tracked == 1);
            rig_close(&r);
        }
    rig_data_free(&data);
}

/* P80: parts of 3, 3 and 1 (and others) equal one device that takes the batch whole: loss, gradients, weights, statistics. The nets have no
 * relu, so that only rounding tells them apart. */
static void sync_equals_the_whole_batch(void **state)
{
    static const char *const how[] = {
        "devices.split=weights devices.weights=3,3,1", "devices.split=weights devices.weights=1,5,1 devices.mode=balanced",
        "devices.split=chunk devices.mode=ddp", "devices.split=weights devices.weights=4,1e-6,3 devices.mode=classic",
        "devices.split=weights devices.weights=1e-6,4,3 data.accumulate=2"};
    rig_data data = rig_data_new(&rig_smooth, 32, 4);
    for (int i = 0; i < COUNT(how); i++) {
        rig many, one;
        char settings[200];
        int64_t n, m;
        snprintf(settings, sizeof settings, "devices.bn_stats=sync %s", how[i]);
        rig_open(&many, &rig_smooth, rig_backend(state), 3, 0, settings);
        rig_open(&one, &rig_smooth, dp_backend_cpu(), 1, 0, strstr(how[i], "accumulate") ? "data.accumulate=2" : "");
        int window = strstr(how[i], "accumulate") ? 2 : 1;
        for (int step = 0; step < 4; step++) {
            dp_result a = rig_micro_step(&many, &data, step * 7, 7, step % window == window - 1),
                      b = rig_micro_step(&one, &data, step * 7, 7, step % window == window - 1);
            if (fabs(a.loss_sum - b.loss_sum) > 1e-5 * b.loss_sum)
                fail_msg("%s, step %d: loss %g, wanted %g", how[i], step, a.loss_sum, b.loss_sum);
            if (step % window != window - 1) continue;
            float *g = rig_gradient(&many, &n), *h = rig_gradient(&one, &m);
            double distance = rig_tensor_distance(&one, g, h, 1);
            if (distance > 2e-5) fail_msg("%s, step %d: gradients differ by %g", how[i], step, distance);
            free(g);
            free(h);
        }
        float *w = rig_weights(&many, &n), *v = rig_weights(&one, &m);
        double distance = rig_tensor_distance(&one, w, v, 0);
        if (distance > 1e-5) fail_msg("%s: weights and statistics differ by %g", how[i], distance);
        free(w);
        free(v);
        rig_close(&many);
        rig_close(&one);
    }
    rig_data_free(&data);
}

/* Not so with each part's own statistics: the tests above can fail. */
static void parts_alone_do_not(void **state)
{
    rig many, one;
    rig_data data = rig_data_new(&rig_smooth, 8, 4);
    rig_open(&many, &rig_smooth, rig_backend(state), 3, 0, "devices.bn_stats=merged");
    rig_open(&one, &rig_smooth, dp_backend_cpu(), 1, 0, "");
    dp_result a = rig_step(&many, &data, 0, 7), b = rig_step(&one, &data, 0, 7);
    assert_true(fabs(a.loss_sum - b.loss_sum) > 1e-4 * b.loss_sum);
    rig_close(&many);
    rig_close(&one);
    rig_data_free(&data);
}

/* The same bytes with late streams, two batches in flight, some without rows for everybody. */
static void statistics_run_ahead_without_harm(void **state)
{
    static const char *const kinds[] = {"merged", "sync"};
    rig_data data = rig_data_new(&rig_conv, 32, 4);
    for (int k = 0; k < 4; k++) {
        float *left[2];
        int64_t n = 0;
        for (int i = 0; i < 2; i++) {
            rig r;
            dp_error err;
            char settings[120];
            snprintf(settings, sizeof settings, "devices.bn_stats=%s devices.mode=%s", kinds[k % 2], k / 2 ? "ddp" : "dp");
            rig_open(&r, &rig_conv, i ? dp_backend_cpu() : rig_backend(state), 4, 0, settings);
            for (int step = 0; step <= 9; step++) {
                dp_batch b = rig_batch(&data, step, step % 3 == 2 ? 3 : 11 + step % 2);
                if (step < 9 && dp_engine_submit(r.e, &b, &err)) fail_msg("%s: %s", settings, err.text);
                if (step && dp_engine_wait(r.e, NULL, &err)) fail_msg("%s: %s", settings, err.text);
            }
            left[i] = rig_weights(&r, &n);
            rig_close(&r);
        }
        rig_same_bytes(left[0], left[1], (size_t)n * 4, kinds[k % 2]);
        free(left[0]);
        free(left[1]);
    }
    rig_data_free(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON(running_statistics_are_by_the_rule),
        ON(sync_equals_the_whole_batch),
        ON(parts_alone_do_not),
        ON(statistics_run_ahead_without_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
