/* Each op against the core's peak. An op is measured through the engine, as the difference of two networks: one with
 * three of it and one with one of it in a row (two where shapes do not allow a row: with it and without it), so that
 * everything around it drops out. */
#include "bench.h"
#include <stdio.h>
#include <string.h>

typedef struct op_case {
    const char *name, *input, *layer;
    int row; /* 1: keeps its shape, so that several stand in a row */
    int batch;
} op_case;

/* Layers as the benchmark models have them. */
static const op_case cases[] = {
    {"conv2d 3x3, 16 of 32x32", "16x32x32", "conv2d out=16 kernel=3 pad=1", 1, 64},
    {"conv2d 3x3, 64 of 32x32", "64x32x32", "conv2d out=64 kernel=3 pad=1", 1, 16},
    {"conv2d 3x3, 128 of 16x16", "128x16x16", "conv2d out=128 kernel=3 pad=1", 1, 32},
    {"conv2d 3x3, 256 of 8x8", "256x8x8", "conv2d out=256 kernel=3 pad=1", 1, 32},
    {"conv2d 3x3, 512 of 4x4", "512x4x4", "conv2d out=512 kernel=3 pad=1", 1, 64},
    {"conv2d 3x3 stride 2, 64 to 128", "64x32x32", "conv2d out=128 kernel=3 stride=2 pad=1", 0, 32},
    {"conv2d 1x1 stride 2, 64 to 128", "64x32x32", "conv2d out=128 kernel=1 stride=2", 0, 64},
    {"conv2d 5x5, 6 to 16 of 14x14", "6x14x14", "conv2d out=16 kernel=5", 0, 64},
    {"batchnorm2d | relu, 64 of 32x32", "64x32x32", "batchnorm2d | relu", 1, 32},
    {"maxpool2d 2x2, 64 of 24x24", "64x24x24", "maxpool2d kernel=2", 0, 64},
    {"linear 512 to 512", "512", "linear out=512", 1, 128},
    {"linear 9216 to 128", "9216", "linear out=128", 0, 64},
    {"gelu (tanh), 65536", "65536", "gelu approximate=tanh", 1, 16},
    {"dropout, 9216", "9216", "dropout p=0.5", 1, 64},
};

typedef struct op_cost {
    double seconds, flops;
} op_cost;

static dp_status measure(const op_case *c, int copies, double seconds, op_cost *cost, dp_error *err)
{
    bench_case b = {0};
    bench_rate s;
    char batch[16], name[16];
    dp_status status = DP_ENOMEM;
    b.config = dp_config_new(NULL, NULL);
    b.graph = dp_graph_new();
    if (!b.config || !b.graph) goto done;
    snprintf(batch, sizeof batch, "%d", c->batch);
    dp_config_set(b.config, "data.batch_size", batch);
    dp_config_set(b.config, "eval.batch_size", "1");
    dp_config_set(b.config, "optimizer.lr", "1e-6");
    dp_layer(b.graph, "input", c->input);
    /* Something that trains stands in front, else the op's input gradient would not be wanted. */
    dp_layer(b.graph, "front", strchr(c->input, 'x') ? "batchnorm2d" : "layernorm");
    for (int i = 0; i < copies; i++) {
        snprintf(name, sizeof name, "op%d", i);
        dp_layer(b.graph, name, c->layer);
    }
    if (strchr(c->input, 'x')) dp_layer(b.graph, "pool", "globalavgpool | flatten");
    if ((status = dp_graph_finish(b.graph, err))) goto done;
    if ((status = bench_case_rows(&b, err))) goto done;
    if ((status = bench_measure(&b, "cpu:0", seconds, &s, err))) goto done;
    cost->seconds = (double)b.batch / s.samples_per_s;
    cost->flops = (double)b.batch * b.flops;
done:
    bench_case_close(&b);
    return status;
}

typedef struct op_row {
    double us, flops, of_peak;
} op_row;

static int measure_op(const op_case *c, op_row *row, double peak, double seconds, dp_error *err)
{
    op_cost few = {0}, many = {0};
    dp_status status = measure(c, c->row, seconds, &few, err);
    if (!status) status = measure(c, c->row ? 3 : 1, seconds, &many, err);
    if (status) {
        fprintf(stderr, "dpbench: %s: %s\n", c->name, err->text);
        return 0;
    }
    double n = c->row ? 2 : 1;
    row->us = (many.seconds - few.seconds) / n * 1e6;
    row->flops = (many.flops - few.flops) / n;
    row->of_peak = row->flops / row->us * 1e6 / peak;
    return 1;
}

static void write_page(page *p, const op_row *row, int n)
{
    char text[64];
    page_section(p, "Share of the peak of one core");
    page_bars(p);
    for (int i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%.0f %%", 100 * row[i].of_peak);
        page_bar(p, cases[i].name, text, row[i].of_peak, "bar-main");
    }
    page_bars_end(p);
    page_table(p, "Forward and backward of one op, as the difference of two networks", "op|batch|us|GF/s|of peak");
    for (int i = 0; i < n; i++) {
        page_row(p);
        page_cell(p, "%s", cases[i].name);
        page_cell(p, "%d", cases[i].batch);
        page_cell(p, "%.1f", row[i].us);
        page_cell(p, "%.1f", row[i].flops / row[i].us / 1e3);
        page_cell(p, "%.0f %%", 100 * row[i].of_peak);
    }
    page_table_end(p);
}

int bench_ops(const request *r)
{
    enum { OPS = sizeof cases / sizeof *cases };
    dp_error err = {0};
    op_row row[OPS];
    json j;
    page *p = NULL;
    double peak = bench_peak();
    if (!json_open(&j, r->json)) return bench_wrong("cannot write %s", r->json);
    printf("one core, forward and backward; peak %.0f GF/s\n%-34s %6s %10s %8s %6s\n", peak / 1e9, "op", "batch", "us", "GF/s",
           "peak");
    json_begin(&j, NULL, '{');
    json_number(&j, "peak", peak);
    json_begin(&j, "ops", '[');
    for (int i = 0; i < OPS; i++) {
        const op_case *c = &cases[i];
        if (!measure_op(c, &row[i], peak, r->seconds / 6, &err)) {
            json_close(&j);
            return 1;
        }
        printf("%-34s %6d %10.1f %8.1f %5.0f%%\n", c->name, c->batch, row[i].us, row[i].flops / row[i].us / 1e3,
               100 * row[i].of_peak);
        fflush(stdout);
        json_begin(&j, NULL, '{');
        json_text(&j, "op", c->name);
        json_int(&j, "batch", c->batch);
        json_number(&j, "us", row[i].us);
        json_number(&j, "flops", row[i].flops);
        json_end(&j, '}');
    }
    json_end(&j, ']');
    json_end(&j, '}');
    if (!json_close(&j)) return bench_wrong("cannot write %s", r->json);
    if (!r->html) return 0;
    if ((p = bench_page(r, "Ops against the peak of a core", NULL, ""))) write_page(p, row, OPS);
    return p && page_close(p) ? 0 : bench_wrong("cannot write %s", r->html);
}
