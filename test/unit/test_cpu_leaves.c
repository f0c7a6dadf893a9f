/* Batchnorm over several leaves: parts, pooling, merging of running statistics; and checksums. Through the backend's table, on in-line and
 * late streams, against one device that takes the batch whole and against double. */
#include "../late/late.h"
#include "cpu_rig.h"
#include <sched.h>

enum { WEIGHT, BIAS, MEAN, VAR, TRACKED };
enum { CHANNELS = 5, LEAVES = 4 };

typedef struct place {
    const dp_backend *b;
    dp_be_device *device;
    dp_be_stream *stream;
    dp_be_event *event;
} place;

static place open_place(void **state)
{
    place p = {.b = strcmp(*state, "late") ? dp_backend_cpu() : late_backend(&(late_options){.seed = 7, .delay_us = 100})};
    dp_error err;
    assert_int_equal(p.b->open(&p.device, &(dp_be_options){.threads = 1}, &err), DP_OK);
    assert_int_equal(p.b->stream_open(p.device, 0, &p.stream, &err), DP_OK);
    assert_int_equal(p.b->event_open(p.device, &p.event, &err), DP_OK);
    return p;
}

static void settle(const place *p)
{
    assert_int_equal(p->b->record(p->stream, p->event), DP_OK);
    for (int done = 0; !done; sched_yield()) {
        done = p->b->done(p->event);
        assert_true(done >= 0);
    }
}

static void close_place(place *p)
{
    settle(p);
    p->b->event_close(p->event);
    p->b->stream_close(p->stream);
    p->b->close(p->device);
}

/* ---- leaves of a batch ---- */

typedef struct leaf {
    dp_kernel *kernel;
    dp_need need;
    dp_run run;
    dp_io io;
    float *part[2], *saved, *workspace;
} leaf;

/* What a batch leaves: rows of all leaves in order; gradients and running statistics of every leaf. */
typedef struct outcome {
    float *out, *d_in[2], *grad[LEAVES][2], *stats[LEAVES][3];
} outcome;

static void start(rig *r, int64_t rows, int64_t h, int64_t w, int add, int relu)
{
    const int64_t shape[] = {h, w, CHANNELS};
    rig_start(r, "batchnorm", &dp_cpu_batchnorm2d, NULL);
    r->rows = rows;
    rig_input(r, 3, shape);
    if (add) rig_input(r, 3, shape);
    dp_node *n = rig_op(r, DP_OP_BATCHNORM2D, 3, shape);
    n->opt[DP_NORM_EPS] = 1e-5;
    n->opt[DP_NORM_MOMENTUM] = 0.1;
    for (int t = 0; t < 4; t++) rig_param(r, CHANNELS, t > 1);
    rig_param(r, 1, 2);
    if (add) rig_op(r, DP_OP_ADD, 3, shape);
    if (relu) rig_op(r, DP_OP_RELU, 3, shape);
    rig_fill(r);
    const int64_t count = rows * r->in_width[0]; /* the mean drifts over the batch, so leaves differ */
    for (int64_t i = 0; i < count; i++) r->in[0][i] = 3 * r->in[0][i] + (float)(i * 7 / count);
    for (int c = 0; c < CHANNELS; c++) r->param[VAR][c] = fabsf(r->param[VAR][c]) + 0.1f;
    r->param[TRACKED][0] = 4;
}

/* Rows [first, first + rows) of the batch. pass: the last input's gradient takes the memory of d_out. */
static void open_leaf(leaf *l, const place *p, const rig *r, outcome *y, int i, int64_t first, int64_t rows, float *d_out,
                      int pass)
{
    int64_t at = first * r->out_width;
    dp_error err;
    memset(l, 0, sizeof *l);
    assert_int_equal(p->b->kernel_open(p->device, &r->chain, r->rows, &l->need, &l->kernel, &err), DP_OK);
    assert_int_equal(p->b->kernel_prepare(l->kernel, rows, &err), DP_OK);
    assert_int_equal(l->need.part, 16);
    for (int k = 0; k < 2; k++) {
        l->part[k] = dp_calloc((size_t)l->need.part, sizeof(float));
        memset(l->part[k], 0xff, (size_t)l->need.part * sizeof(float));
    }
    l->saved = dp_calloc(l->need.saved, 1);
    l->workspace = dp_calloc(l->need.workspace, 1);
    l->run = r->run;
    l->run.rows = rows;
    l->run.batch_rows = r->rows;
    l->io = (dp_io){.out = y->out + at, .saved = l->saved, .workspace = l->workspace, .d_out = d_out + at};
    for (int k = 0; k < r->n_in; k++) {
        l->io.in[k] = r->in[k] + at;
        l->io.d_in[k] = y->d_in[k] + at;
    }
    if (pass) l->io.d_in[r->n_in - 1] = d_out + at;
    for (int t = 0; t < r->n_param; t++) l->io.param[t] = r->param[t];
    for (int t = 0; t < 2; t++) l->io.grad[t] = y->grad[i][t] = rig_array(CHANNELS, 1);
    for (int t = MEAN; t <= TRACKED; t++) l->io.stats[t] = y->stats[i][t - MEAN] = rig_array(CHANNELS, 1);
}

static void close_leaf(leaf *l, const place *p)
{
    p->b->kernel_close(l->kernel);
    free(l->part[0]), free(l->part[1]), free(l->saved), free(l->workspace);
}

static void walk_apart(const place *p, leaf *l, int n, int backward)
{
    for (int i = 0; i < n; i++)
        assert_int_equal((backward ? p->b->backward : p->b->forward)(l[i].kernel, p->stream, &l[i].run, &l[i].run, &l[i].io),
                         DP_OK);
}

static void walk_together(const place *p, leaf *l, int n, int backward, float *whole)
{
    const float *part[LEAVES];
    int64_t rows[LEAVES];
    for (int i = 0; i < n; i++) {
        l[i].io.part = l[i].part[backward];
        assert_int_equal(p->b->partial(l[i].kernel, p->stream, &l[i].run, &l[i].run, &l[i].io, backward), DP_OK);
        part[i] = l[i].io.part, rows[i] = l[i].run.rows;
    }
    if (backward)
        assert_int_equal(p->b->sum(p->stream, whole, part, n, l->need.part), DP_OK);
    else
        assert_int_equal(p->b->pool(p->stream, whole, part, rows, n, CHANNELS), DP_OK);
    for (int i = 0; i < n; i++) {
        l[i].io.part = NULL, l[i].io.whole = whole;
        /* the workspace is the plan's: others have used it meanwhile */
        assert_int_equal(p->b->fill(p->stream, l[i].workspace, 0xff, l[i].need.workspace), DP_OK);
    }
    walk_apart(p, l, n, backward);
}

/* The batch in leaves of rows[i]; sync = 0: each with its own statistics. */
static outcome run_leaves(const place *p, const rig *r, const int64_t *rows, int n, int sync, int pass)
{
    outcome y = {0};
    leaf l[LEAVES];
    int64_t count = r->rows * r->out_width, first = 0;
    float *d_out = rig_array(count, 1), *whole = rig_array(16, 1);
    memcpy(d_out, r->d_out, (size_t)count * sizeof(float));
    y.out = rig_array(count, 1);
    for (int k = 0; k < r->n_in; k++) y.d_in[k] = rig_array(count, 1);
    for (int i = 0; i < n; first += rows[i++]) open_leaf(&l[i], p, r, &y, i, first, rows[i], d_out, pass);
    for (int backward = 0; backward < 2; backward++) {
        if (sync)
            walk_together(p, l, n, backward, whole);
        else
            walk_apart(p, l, n, backward);
    }
    settle(p);
    if (pass) memcpy(y.d_in[r->n_in - 1], d_out, (size_t)count * sizeof(float));
    for (int i = 0; i < n; i++) close_leaf(&l[i], p);
    free(d_out), free(whole);
    return y;
}

static void outcome_free(outcome *y)
{
    free(y->out), free(y->d_in[0]), free(y->d_in[1]);
    for (int i = 0; i < LEAVES; i++) {
        for (int t = 0; t < 2; t++) free(y->grad[i][t]);
        for (int t = 0; t < 3; t++) free(y->stats[i][t]);
    }
}

/* Within `tolerance` of the largest wanted. */
static void near(const char *what, const float *got, const float *want, int64_t n, float tolerance)
{
    float largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(want[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= tolerance * largest))
            fail_msg("%s[%lld] is %.9g, wanted %.9g", what, (long long)i, (double)got[i], (double)want[i]);
}

/* P80: leaves of 3, 3 and 1 rows are one device with 7. A device without rows has no leaf. */
static void shards_are_one_device(void **state)
{
    const int64_t shards[] = {3, 3, 1}, all[] = {7};
    place p = open_place(state);
    for (int form = 0; form < 4; form++)
        for (int pass = 0; pass < 2; pass++) {
            rig r;
            start(&r, 7, 3, 4, form & 1, form >> 1);
            outcome one = run_leaves(&p, &r, all, 1, 0, 0), y = run_leaves(&p, &r, shards, 3, 1, pass);
            int64_t count = 7 * r.out_width;
            near("output", y.out, one.out, count, 1e-5f);
            for (int k = 0; k < r.n_in; k++) near("gradient of the input", y.d_in[k], one.d_in[k], count, 1e-5f);
            for (int t = 0; t < 2; t++) {
                float sum[CHANNELS];
                for (int c = 0; c < CHANNELS; c++) sum[c] = y.grad[0][t][c] + y.grad[1][t][c] + y.grad[2][t][c];
                near(t ? "gradient of the bias" : "gradient of the weight", sum, one.grad[0][t], CHANNELS, 1e-5f);
            }
            for (int i = 0; i < 3; i++) {
                near("running mean", y.stats[i][0], one.stats[0][0], CHANNELS, 1e-5f);
                near("running variance", y.stats[i][1], one.stats[0][1], CHANNELS, 1e-5f);
                assert_true(y.stats[i][2][0] == 5);
            }
            outcome_free(&one);
            outcome_free(&y);
            rig_end(&r);
        }
    close_place(&p);
}

/* Against double: the running statistics after 84 values a channel, in leaves with other means. */
static void running_statistics_are_the_batch_s(void **state)
{
    const int64_t shards[] = {1, 2, 4};
    place p = open_place(state);
    rig r;
    start(&r, 7, 3, 4, 0, 0);
    outcome y = run_leaves(&p, &r, shards, 3, 1, 0);
    for (int c = 0; c < CHANNELS; c++) {
        double mean = 0, square = 0;
        for (int i = 0; i < 84; i++) mean += (double)r.in[0][i * CHANNELS + c] / 84;
        for (int i = 0; i < 84; i++) square += pow((double)r.in[0][i * CHANNELS + c] - mean, 2);
        double want_mean = 0.9 * (double)r.param[MEAN][c] + 0.1 * mean;
        double want_var = 0.9 * (double)r.param[VAR][c] + 0.1 * square / 83;
        assert_true(fabs((double)y.stats[2][0][c] - want_mean) < 1e-6 * (1 + fabs(want_mean)));
        assert_true(fabs((double)y.stats[2][1][c] - want_var) < 1e-6 * want_var);
    }
    outcome_free(&y);
    rig_end(&r);
    close_place(&p);
}

/* One value per channel in all: variance 0. And one each on two devices, where only the batch has a variance. */
static void one_row_is_finite(void **state)
{
    const int64_t shards[] = {1, 1};
    place p = open_place(state);
    for (int n = 1; n < 3; n++)
        for (int relu = 0; relu < 2; relu++) {
            rig r;
            start(&r, n, 1, 1, 1, relu);
            outcome y = run_leaves(&p, &r, shards, n, 1, 0);
            for (int i = 0; i < n * CHANNELS; i++)
                assert_true(isfinite(y.out[i]) && isfinite(y.d_in[0][i]) && isfinite(y.d_in[1][i]));
            for (int i = 0; i < n; i++)
                for (int c = 0; c < CHANNELS; c++)
                    assert_true(isfinite(y.grad[i][0][c]) && isfinite(y.grad[i][1][c]) && isfinite(y.stats[i][1][c]));
            for (int c = 0; n == 1 && c < CHANNELS; c++)
                assert_true(fabsf(y.stats[0][1][c] - 0.9f * r.param[VAR][c]) < 1e-6f && y.d_in[0][c] == 0);
            outcome_free(&y);
            rig_end(&r);
        }
    close_place(&p);
}

/* bn_stats = merged: leaves normalise alone and keep mean and variance raw; merged, they give what the whole batch would. Two layers in
 * flat arrays with gaps; the second has the numbers of the first, one pixel instead of six, and another momentum. */
static void leaves_merge_to_the_batch(void **state)
{
    const int64_t shards[] = {5, 1, 2}, all[] = {8};
    const dp_bn_layer layer[] = {{0, 16, 32, CHANNELS, 6, 0.1}, {56, 40, 50, CHANNELS, 1, 0.5}};
    place p = open_place(state);
    rig r;
    start(&r, 8, 2, 3, 0, 1);
    for (int64_t i = 0; i < 8 * r.out_width; i++) r.in[0][i] += 100; /* thirty deviations */
    outcome one = run_leaves(&p, &r, all, 1, 0, 0);
    r.run.stats = DP_STATS_LEAF;
    outcome y = run_leaves(&p, &r, shards, 3, 0, 0);
    float *flat[3], *buffer = rig_array(64, 3), *shadow = rig_array(64, 4), *kept = rig_array(64, 4), *fresh = rig_array(1, 1);
    for (int i = 0; i < 3; i++) {
        assert_true(y.stats[i][2][0] == *fresh); /* batches are counted by who merges */
        flat[i] = rig_array(64, 5);
        for (int k = 0; k < 2; k++) {
            memcpy(flat[i] + layer[k].mean, y.stats[i][0], CHANNELS * sizeof(float));
            memcpy(flat[i] + layer[k].var, y.stats[i][1], CHANNELS * sizeof(float));
        }
    }
    for (int k = 0; k < 2; k++) {
        memcpy(buffer + layer[k].mean, r.param[MEAN], CHANNELS * sizeof(float));
        memcpy(buffer + layer[k].var, r.param[VAR], CHANNELS * sizeof(float));
        buffer[layer[k].tracked] = 4;
    }
    assert_int_equal(p.b->merge(p.stream, shadow, buffer, layer, 2, (const float *const *)flat, shards, 3), DP_OK);
    settle(&p);
    near("running mean", shadow + layer[0].mean, one.stats[0][0], CHANNELS, 1e-6f);
    near("running variance", shadow + layer[0].var, one.stats[0][1], CHANNELS, 1e-5f);
    for (int c = 0; c < CHANNELS; c++) {
        double old_mean = (double)r.param[MEAN][c], old_var = (double)r.param[VAR][c];
        double mean = ((double)one.stats[0][0][c] - 0.9 * old_mean) / 0.1;
        double var = ((double)one.stats[0][1][c] - 0.9 * old_var) / 0.1 * 47 / 48; /* biased */
        double want = 0.5 * old_var + 0.5 * var * 8 / 7;
        assert_true(fabs((double)shadow[layer[1].mean + c] - 0.5 * (old_mean + mean)) < 1e-5 * mean);
        assert_true(fabs((double)shadow[layer[1].var + c] - want) < 1e-4 * want);
    }
    assert_true(shadow[32] == 5 && shadow[50] == 5);
    assert_memory_equal(shadow + CHANNELS, kept + CHANNELS, (16 - CHANNELS) * sizeof(float));
    for (int i = 0; i < 3; i++) free(flat[i]);
    free(buffer), free(shadow), free(kept), free(fresh);
    outcome_free(&one);
    outcome_free(&y);
    rig_end(&r);
    close_place(&p);
}

/* Unequal counts, one of them none: what that leaf holds is not read. */
static void pooling(void **state)
{
    enum { N = 4, MOST = 9, ALL = 14 };
    const int64_t rows[N] = {9, 0, 1, 4};
    float x[N][MOST], part[N][16], whole[16];
    const float *parts[N] = {part[0], part[1], part[2], part[3]};
    double mean = 0, var = 0;
    uint64_t random = 5;
    place p = open_place(state);
    memset(part, 0xff, sizeof part); /* NaN */
    for (int i = 0; i < N; i++) {
        double m = 0, v = 0;
        if (!rows[i]) continue;
        for (int k = 0; k < rows[i]; k++) m += (double)(x[i][k] = rig_random(&random) + 50 * (float)i) / (double)rows[i];
        for (int k = 0; k < rows[i]; k++) v += pow((double)x[i][k] - m, 2) / (double)rows[i];
        part[i][0] = (float)m, part[i][1] = 3, part[i][2] = (float)v, part[i][3] = 0.25f;
    }
    for (int i = 0; i < N; i++)
        for (int k = 0; k < rows[i]; k++) mean += (double)x[i][k] / ALL;
    for (int i = 0; i < N; i++)
        for (int k = 0; k < rows[i]; k++) var += pow((double)x[i][k] - mean, 2) / ALL;
    assert_int_equal(p.b->pool(p.stream, whole, parts, rows, N, 2), DP_OK);
    settle(&p);
    assert_true(fabs((double)whole[0] - mean) < 1e-6 * mean);
    assert_true(fabs((double)whole[2] - var) < 1e-6 * var);
    assert_true(whole[1] == 3 && whole[3] == 0.25f); /* equal leaves */
    assert_int_equal(p.b->pool(p.stream, whole, parts + 1, rows + 1, 1, 2), DP_OK);
    settle(&p);
    assert_true(whole[0] == 0 && whole[2] == 0);
    close_place(&p);
}

/* ---- checksums ---- */

static void a_checksum_is_its_formula(void **state)
{
    enum { N = DP_CHUNK + 777 };
    place p = open_place(state);
    uint64_t sums[2] = {1, 1}, want[2] = {0, 0};
    float *x = rig_array(N, 9);
    for (int i = 0; i < N; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        want[i / DP_CHUNK] += (uint64_t)bits * (2 * (uint64_t)(i % DP_CHUNK) + 1);
    }
    assert_int_equal(p.b->checksum(p.stream, x, N, sums), DP_OK);
    settle(&p);
    assert_true(sums[0] == want[0] && sums[1] == want[1]);
    for (int i = 0; dp_vec_at(i); i++) assert_true(dp_vec_at(i)->flat->checksum(x, DP_CHUNK) == want[0]);
    free(x);
    close_place(&p);
}

/* Every bit, sign and NaN's among them; and two elements that change places. */
static void any_changed_bit_shows(void **state)
{
    const int at[] = {0, 1, 7, 15, 16, 31, 500, 2047, 4094, DP_CHUNK - 1};
    const dp_vec_flat *v = dp_vec_select()->flat;
    float *x = rig_array(DP_CHUNK, 9);
    (void)state;
    x[1] = 0, x[7] = NAN, x[15] = INFINITY, x[16] = -0.0f;
    const uint64_t sum = v->checksum(x, DP_CHUNK);
    for (int i = 0; i < 10; i++)
        for (int bit = 0; bit < 32; bit++) {
            uint32_t keep, flipped;
            memcpy(&keep, &x[at[i]], sizeof keep);
            flipped = keep ^ (uint32_t)1 << bit;
            memcpy(&x[at[i]], &flipped, sizeof flipped);
            assert_true(v->checksum(x, DP_CHUNK) != sum);
            memcpy(&x[at[i]], &keep, sizeof keep);
        }
    assert_true(v->checksum(x, DP_CHUNK) == sum);
    float swap = x[31];
    x[31] = x[500], x[500] = swap;
    assert_true(v->checksum(x, DP_CHUNK) != sum);
    free(x);
}

int main(void)
{
#define BOTH(f)                                                                                                                \
    {.name = #f " (cpu)", .test_func = f, .initial_state = "cpu"},                                                             \
    {                                                                                                                          \
        .name = #f " (late)", .test_func = f, .initial_state = "late"                                                          \
    }
    const struct CMUnitTest tests[] = {BOTH(shards_are_one_device),
                                       BOTH(running_statistics_are_the_batch_s),
                                       BOTH(one_row_is_finite),
                                       BOTH(leaves_merge_to_the_batch),
                                       BOTH(pooling),
                                       BOTH(a_checksum_is_its_formula),
                                       cmocka_unit_test(any_changed_bit_shows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
