/* What a step costs besides its kernels: a net of 1,000 parameters trained by an engine with two batches in flight, against the same plan's
 * kernels, loss and update called one after the other in one thread. Alternating rounds, medians, microseconds a step. */
#include "../dp/engine/internal.h"
#include "../nn/model.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 16, WIDTH = 24, CLASSES = 10, STEPS = 2000, ROUNDS = 15 };
static const char model[] = "[model]\ninput = 24\nfc1 = linear out=28 | relu\nfc2 = linear out=10\n";

static void must(dp_status status, const dp_error *err)
{
    if (!status) return;
    fprintf(stderr, "step_cost: %s\n", err->text);
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct bench {
    dp_config *config;
    dp_graph *graph;
    float x[ROWS * WIDTH];
    int32_t y[ROWS];
    dp_batch batch;
} bench;

static void open_bench(bench *b)
{
    dp_error err;
    b->config = dp_config_new(NULL, NULL);
    b->graph = dp_graph_new();
    must(dp_config_set(b->config, "optimizer.lr", "0.001"), &err);
    dp_config_set(b->config, "optimizer.momentum", "0.9");
    dp_config_set(b->config, "data.batch_size", "16");
    dp_config_set(b->config, "devices.threads", "1");
    must(dp_config_parse(b->config, model, sizeof model - 1, "model", NULL, &err), &err);
    dp_graph_config(b->graph, b->config);
    must(dp_graph_finish(b->graph, &err), &err);
    for (int i = 0; i < ROWS * WIDTH; i++) b->x[i] = (float)(i * 7919 % 101) / 101.0f;
    for (int i = 0; i < ROWS; i++) b->y[i] = i % CLASSES;
    b->batch = dp_batch_of(dp_view(b->x, DP_F32, ROWS, WIDTH), dp_view(b->y, DP_I32, ROWS, 1));
}

static double time_engine(dp_engine *e, const bench *b)
{
    dp_error err;
    double begin = dp_now();
    for (int i = 0; i <= STEPS; i++) {
        if (i < STEPS) must(dp_engine_submit(e, &b->batch, &err), &err);
        if (i) must(dp_engine_wait(e, NULL, &err), &err);
    }
    return (dp_now() - begin) / STEPS * 1e6;
}

/* The kernels of a step on device 0's own plan and memory, `rows` of them, while the engine rests. */
static double time_kernels(dp_engine *e, const bench *b, int64_t rows)
{
    dp_replica *r = &e->replica[0];
    dp_error err;
    dp_be_stream *s = r->w->lane_stream[DP_LANE_COMPUTE];
    dp_run run = {.rows = rows, .seed = 1, .ids = r->ids, .train = 1, .inv_count = 1.0 / ROWS, .lr = 0.001};
    double begin = dp_now();
    for (int i = 0; i < STEPS; i++) {
        dp_stop stop;
        int which;
        run.param_version = (uint64_t)i + 1000000000u;
        *r->run = run;
        memcpy(r->x, b->x, (size_t)rows * WIDTH * 4);
        memcpy(r->y, b->y, (size_t)rows * 4);
        dp_pass pass = {.run = run, .run_device = r->run, .x = r->x, .x_type = DP_F32, .param = r->param, .grad = r->grad[0]};
        do must(dp_plan_forward(r->plan, s, &pass, &stop, &which, &err), &err);
        while (stop != DP_STOP_END);
        r->b->loss(s, &e->loss, rows, dp_plan_output(r->plan), r->y, DP_I32, dp_plan_output_grad(r->plan), r->sums);
        do must(dp_plan_backward(r->plan, s, &pass, &stop, &which, &err), &err);
        while (stop != DP_STOP_END);
        must(dp_replica_update(r, r->grad[0], &e->optimizer, &err), &err);
    }
    return (dp_now() - begin) / STEPS * 1e6;
}

static void measure(bench *b, const char *devices, const char *mode, double limit)
{
    dp_error err;
    dp_engine *e = NULL;
    double step[ROUNDS], kernels[ROUNDS], cost[ROUNDS];
    dp_config_set(b->config, "devices.use", devices);
    dp_config_set(b->config, "devices.mode", mode);
    must(dp_engine_open(&e, b->graph, b->config, &err), &err);
    int64_t rows = ROWS / e->n;
    time_engine(e, b);
    for (int i = 0; i < ROUNDS; i++) {
        step[i] = time_engine(e, b);
        kernels[i] = time_kernels(e, b, rows);
        cost[i] = step[i] - kernels[i];
    }
    dp_engine_close(e, NULL);
    qsort(step, ROUNDS, sizeof *step, by_value);
    qsort(kernels, ROUNDS, sizeof *kernels, by_value);
    qsort(cost, ROUNDS, sizeof *cost, by_value);
    printf("%-12s %-9s %8.1f us a step, %6.1f us of kernels, %6.1f us besides (goal %.0f)\n", devices, mode, step[ROUNDS / 2],
           kernels[ROUNDS / 2], cost[ROUNDS / 2], limit);
}

/* What the timeline costs: records of a step, and nanoseconds of one. */
static void measure_timeline(bench *b)
{
    dp_error err;
    dp_engine *e = NULL;
    enum { RECORDS = 1000000 };
    dp_config_set(b->config, "devices.use", "cpu:0,cpu:1");
    dp_config_set(b->config, "devices.mode", "balanced");
    must(dp_engine_open(&e, b->graph, b->config, &err), &err);
    time_engine(e, b);
    dp_worker *w = e->replica[0].w;
    uint64_t before = w->timeline.written;
    time_engine(e, b);
    double records = (double)(w->timeline.written - before) / STEPS, begin = dp_now();
    for (int i = 0; i < RECORDS; i++) dp_phase_begin(w, DP_PHASE_FORWARD);
    double each = (dp_now() - begin) / RECORDS;
    printf("timeline: %.1f records a step and device, %.0f ns each: %.2f us a step\n", records, each * 1e9, records * each * 1e6);
    dp_engine_close(e, NULL);
}

int main(void)
{
    static const char *const modes[] = {"classic", "dp", "balanced", "ddp"};
    bench b = {0};
    open_bench(&b);
    for (int i = 1; i < 4; i++) measure(&b, "cpu:0", modes[i], 5);
    for (int i = 0; i < 4; i++) measure(&b, "cpu:0,cpu:1", modes[i], 50);
    measure_timeline(&b);
    dp_graph_free(b.graph);
    dp_config_free(b.config);
    return 0;
}
