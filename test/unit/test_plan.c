/* The plan's stops: buckets before they are read and when they are complete, batchnorm's parts in turn. On in-line and late streams. */
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "../../nn/plan.h"
#include "../late/late.h"

enum { ROWS = 5 };

typedef struct rig {
    const dp_backend *b;
    dp_be_device *device;
    dp_be_stream *stream;
    dp_be_event *event;
    dp_graph *graph;
    dp_params *params;
    dp_plan *plan;
    dp_run run;
    float *x, *start, *buffer, *shadow; /* start: all parameters */
    float *param, *grad;
    dp_pass pass;
} rig;

typedef struct result {
    float *out, *grad;
} result;

static const dp_backend *backend(void **state)
{
    return strcmp(*state, "late") ? dp_backend_cpu() : late_backend(&(late_options){.seed = 5, .delay_us = 100});
}

static float *array(int64_t n, uint32_t seed) /* in (-1, 1) */
{
    float *x = dp_calloc((size_t)n + 1, sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) {
        uint32_t h = ((uint32_t)i + seed * 7919u) * 2654435761u;
        h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
        x[i] = (float)(int32_t)h / 2147483648.0f;
    }
    return x;
}

static void settle(const rig *r)
{
    assert_int_equal(r->b->record(r->stream, r->event), DP_OK);
    for (int done = 0; !done; sched_yield()) {
        done = r->b->done(r->event);
        assert_true(done >= 0);
    }
}

/* lines: name, spec, ... NULL; freeze: NULL or a pattern. */
static void rig_open(rig *r, const dp_backend *b, const char *const *lines, const char *freeze)
{
    dp_error err = {0};
    dp_config *c = dp_config_new(NULL, NULL);
    memset(r, 0, sizeof *r);
    r->b = b;
    r->graph = dp_graph_new();
    for (; *lines; lines += 2) dp_layer(r->graph, lines[0], lines[1]);
    if (dp_graph_finish(r->graph, &err)) fail_msg("%s", err.text);
    assert_int_equal(dp_config_set(c, "devices.bucket_mb", "0.004"), DP_OK); /* a thousand elements */
    if (freeze) assert_int_equal(dp_config_set(c, "optimizer.freeze", freeze), DP_OK);
    if (dp_params_open(&r->params, r->graph, c, 1, &err)) fail_msg("%s", err.text);
    dp_config_free(c);
    assert_int_equal(b->open(&r->device, &(dp_be_options){.threads = 1}, &err), DP_OK);
    assert_int_equal(b->stream_open(r->device, 0, &r->stream, &err), DP_OK);
    assert_int_equal(b->event_open(r->device, &r->event, &err), DP_OK);
    if (dp_plan_open(&r->plan, b, r->device, r->graph, r->params, ROWS, 1, &err)) fail_msg("%s", err.text);
    r->x = array(ROWS * r->graph->node[0].width, 1);
    r->start = array(r->params->count, 2);
    r->buffer = array(r->params->buffer_count, 3);
    r->shadow = array(r->params->buffer_count, 4);
    r->param = array(r->params->count, 5);
    r->grad = array(r->params->count, 6);
    r->run = (dp_run){.rows = ROWS, .batch_rows = ROWS, .train = 1, .param_version = 1};
    r->pass = (dp_pass){.run = r->run,
                        .run_device = &r->run,
                        .x = r->x,
                        .param = r->param,
                        .grad = r->grad,
                        .buffer = r->buffer,
                        .stats = r->shadow};
    memcpy(r->param, r->start, (size_t)r->params->count * sizeof(float));
}

static void rig_close(rig *r)
{
    dp_plan_close(r->plan);
    r->b->event_close(r->event);
    r->b->stream_close(r->stream);
    r->b->close(r->device);
    dp_params_free(r->params);
    dp_graph_free(r->graph);
    free(r->x), free(r->start), free(r->buffer), free(r->shadow), free(r->param), free(r->grad);
}

static dp_stop next(rig *r, int backward, int *which)
{
    dp_error err = {0};
    dp_stop stop;
    dp_status status = backward ? dp_plan_backward(r->plan, r->stream, &r->pass, &stop, which, &err)
                                : dp_plan_forward(r->plan, r->stream, &r->pass, &stop, which, &err);
    if (status) fail_msg("%s", err.text);
    return stop;
}

/* A part of one leaf alone is the whole. */
static void exchange(rig *r, int channels, int backward, uint64_t number)
{
    const float *part = dp_plan_part(r->plan, number);
    int64_t rows = ROWS, floats = (2 * channels + 15) / 16 * 16;
    float *whole = dp_plan_whole(r->plan);
    if (backward)
        assert_int_equal(r->b->sum(r->stream, whole, &part, 1, floats), DP_OK);
    else
        assert_int_equal(r->b->pool(r->stream, whole, &part, &rows, 1, channels), DP_OK);
}

static int64_t output_count(const rig *r)
{
    return ROWS * r->graph->node[r->graph->out].width;
}

/* Forward and backward with whatever stops the pass wants; the output's gradient is the same each time. */
static result both_ways(rig *r)
{
    result y;
    int which, buckets = 0;
    uint64_t number = 0;
    float *d_out = array(output_count(r), 9);
    for (int backward = 0; backward < 2; backward++) {
        r->pass.part = number;
        for (dp_stop stop = DP_STOP_PART; stop != DP_STOP_END;) {
            stop = next(r, backward, &which);
            if (stop == DP_STOP_PART) exchange(r, which, backward, ++number);
            buckets += backward && stop == DP_STOP_BUCKET;
        }
        if (backward) continue;
        settle(r);
        y.out = array(output_count(r), 0);
        memcpy(y.out, dp_plan_output(r->plan), (size_t)output_count(r) * sizeof(float));
        memcpy(dp_plan_output_grad(r->plan), d_out, (size_t)output_count(r) * sizeof(float));
    }
    settle(r);
    assert_int_equal(buckets, r->params->n_buckets);
    if (r->pass.sync) assert_int_equal(number, dp_plan_exchanges(r->plan));
    y.grad = array(r->params->count, 0);
    memcpy(y.grad, r->grad, (size_t)r->params->count * sizeof(float));
    free(d_out);
    return y;
}

static void result_free(result *y)
{
    free(y->out), free(y->grad);
}

/* Forward meets fc1 first, which is the last in memory; `unused` does not reach the output, and is still announced. */
static const char *const wide[] = {"input",  "40",
                                   "fc1",    "linear out=40 | relu",
                                   "fc2",    "linear out=40 | relu",
                                   "fc3",    "linear out=40",
                                   "sum",    "add from=fc2,fc3",
                                   "unused", "linear out=40 from=fc1",
                                   "head",   "linear out=4 from=sum",
                                   NULL};
static const char *const deep[] = {"input", "3x6x6",
                                   "conv1", "conv2d out=5 kernel=3 bias=0",
                                   "bn1",   "batchnorm2d | relu",
                                   "conv2", "conv2d out=9 kernel=3 bias=0",
                                   "bn2",   "batchnorm2d",
                                   "conv3", "conv2d out=9 kernel=1 bias=0",
                                   "bn3",   "batchnorm2d",
                                   "sum",   "add from=bn2,bn3 | relu",
                                   "flat",  "flatten",
                                   "fc",    "linear out=3",
                                   NULL};

/* Parameters are NaN until their bucket is asked for. So a bucket that is asked for late shows in the output, and one that is not
 * asked for at all is counted. The order is that of forward: what it reads first lies last. */
static void forward_asks_for_buckets(void **state)
{
    rig r;
    int which, seen = 0, order[16];
    rig_open(&r, backend(state), wide, NULL);
    assert_in_range(r.params->n_buckets, 4, 16);
    result want = both_ways(&r);
    for (int leaf = 0; leaf < 2; leaf++) {
        settle(&r);
        memset(r.param, 0xff, (size_t)r.params->count * sizeof(float));
        r.pass.run.param_version = r.run.param_version = 2 + (uint64_t)leaf;
        r.pass.by_bucket = 1;
        seen = 0;
        for (dp_stop stop; (stop = next(&r, 0, &which)) != DP_STOP_END;) {
            assert_int_equal(stop, DP_STOP_BUCKET);
            assert_in_range(which, 0, r.params->n_buckets - 1);
            for (int i = 0; i < seen; i++) assert_int_not_equal(order[i], which);
            order[seen++] = which;
            const dp_bucket *b = &r.params->bucket[which];
            assert_int_equal(r.b->copy(r.stream, r.param + b->offset, r.start + b->offset, (size_t)b->count * sizeof(float)),
                             DP_OK);
        }
        settle(&r);
        assert_int_equal(seen, r.params->n_buckets);
        assert_int_equal(order[0], r.params->n_buckets - 1);
        assert_memory_equal(dp_plan_output(r.plan), want.out, (size_t)output_count(&r) * sizeof(float));
    }
    result_free(&want);
    rig_close(&r);
}

/* One leaf that is the whole batch: the same as its own statistics, up to the rounding of the part to float. */
static void parts_of_one_leaf(void **state)
{
    rig r;
    rig_open(&r, backend(state), deep, NULL);
    assert_non_null(dp_plan_whole(r.plan));
    assert_int_equal(dp_plan_exchanges(r.plan), 6);
    result own = both_ways(&r);
    for (int by_bucket = 0; by_bucket < 2; by_bucket++) {
        r.pass.sync = 1;
        r.pass.by_bucket = by_bucket;
        memset(r.grad, 0xff, (size_t)r.params->count * sizeof(float));
        result y = both_ways(&r);
        for (int64_t i = 0; i < output_count(&r); i++)
            assert_true(fabsf(y.out[i] - own.out[i]) <= 1e-5f * (1 + fabsf(own.out[i])));
        for (int t = 0; t < r.params->n_params; t++) {
            const dp_param *p = &r.params->param[t];
            double size = 0, apart = 0;
            for (int64_t i = p->offset; p->bucket >= 0 && i < p->offset + p->count; i++) {
                size += (double)own.grad[i] * (double)own.grad[i];
                apart += pow((double)y.grad[i] - (double)own.grad[i], 2);
            }
            if (!(sqrt(apart) <= 1e-5 * sqrt(size))) fail_msg("%s: %g of %g", r.graph->tensor[t].name, sqrt(apart), sqrt(size));
        }
        result_free(&y);
    }
    result_free(&own);
    rig_close(&r);
}

/* A peer may read a part until the stop after the next: it is still there at the next stop. Three batchnorms forward, three backward, over
 * two leaves, so that the turn goes on where it was. */
static void parts_take_turns(void **state)
{
    rig r;
    const int channels[] = {5, 9, 9};
    uint64_t number = 40;
    float before[32] = {0};
    int which;
    rig_open(&r, backend(state), deep, NULL);
    r.pass.sync = 1;
    for (int walk = 0; walk < 4; walk++) {
        r.pass.part = number;
        for (int i = 0; i < 3; i++) {
            dp_stop stop;
            while ((stop = next(&r, walk % 2, &which)) == DP_STOP_BUCKET) continue;
            assert_int_equal(stop, DP_STOP_PART);
            assert_int_equal(which, walk % 2 ? channels[2 - i] : channels[i]);
            number++;
            settle(&r);
            if (number > 41) assert_memory_equal(dp_plan_part(r.plan, number - 1), before, sizeof(float) * 10);
            for (int k = 2 * which; k < (2 * which + 15) / 16 * 16; k++) assert_true(dp_plan_part(r.plan, number)[k] == 0);
            memcpy(before, dp_plan_part(r.plan, number), sizeof(float) * 10);
            exchange(&r, which, walk % 2, number);
        }
        while (next(&r, walk % 2, &which) == DP_STOP_BUCKET) continue;
        settle(&r);
        if (walk % 2 == 0) memset(dp_plan_output_grad(r.plan), 0, (size_t)output_count(&r) * sizeof(float));
    }
    assert_ptr_not_equal(dp_plan_part(r.plan, 0), dp_plan_part(r.plan, 1));
    assert_ptr_equal(dp_plan_part(r.plan, 0), dp_plan_part(r.plan, 2));
    rig_close(&r);
}

/* A frozen beginning takes the statistics of all leaves, but has nothing to give backward. */
static void frozen_layers_exchange_forward_alone(void **state)
{
    rig r;
    int which, stops[2] = {0, 0};
    rig_open(&r, backend(state), deep, "conv1.*,bn1.*,conv2.*");
    assert_int_equal(dp_plan_exchanges(r.plan), 5);
    r.pass.sync = 1;
    uint64_t number = 0;
    for (int backward = 0; backward < 2; backward++) {
        r.pass.part = number;
        for (dp_stop stop = DP_STOP_PART; stop != DP_STOP_END;) {
            stop = next(&r, backward, &which);
            stops[backward] += stop == DP_STOP_PART;
            if (stop == DP_STOP_PART) exchange(&r, which, backward, ++number);
        }
        settle(&r);
        if (!backward) memset(dp_plan_output_grad(r.plan), 0, (size_t)output_count(&r) * sizeof(float));
    }
    assert_int_equal(stops[0], 3);
    assert_int_equal(stops[1], 2);
    rig_close(&r);
}

/* Nothing to exchange: no memory, no stops. A plan that never trains has none either. */
static void no_batchnorm_no_parts(void **state)
{
    rig r;
    dp_error err = {0};
    dp_plan *p = NULL;
    int which;
    rig_open(&r, backend(state), wide, NULL);
    assert_null(dp_plan_whole(r.plan));
    assert_null(dp_plan_part(r.plan, 1));
    r.pass.sync = 1;
    assert_int_equal(next(&r, 0, &which), DP_STOP_END);
    settle(&r);
    rig_close(&r);
    rig_open(&r, backend(state), deep, NULL);
    assert_int_equal(dp_plan_open(&p, r.b, r.device, r.graph, r.params, ROWS, 0, &err), DP_OK);
    assert_null(dp_plan_whole(p));
    assert_int_equal(dp_plan_exchanges(p), 0);
    dp_plan_close(p);
    rig_close(&r);
}

int main(void)
{
#define BOTH(f)                                                                                                                \
    {.name = #f " (cpu)", .test_func = f, .initial_state = "cpu"},                                                             \
    {                                                                                                                          \
        .name = #f " (late)", .test_func = f, .initial_state = "late"                                                          \
    }
    const struct CMUnitTest tests[] = {BOTH(forward_asks_for_buckets), BOTH(parts_of_one_leaf), BOTH(parts_take_turns),
                                       BOTH(frozen_layers_exchange_forward_alone), BOTH(no_batchnorm_no_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
