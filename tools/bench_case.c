/* A network under measurement: the model of a config, random input that stays in memory (as bench/peers/torch_speed.py
 * does it). */
#include "bench.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t next_random(uint64_t *state) /* splitmix64: any bits will do */
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

dp_status bench_case_rows(bench_case *b, dp_error *err)
{
    dp_layer_info in, out = {0}, l;
    int64_t width = 1, targets = 1, classes = 0;
    uint64_t state = 1;
    dp_tensor_info tensor;
    dp_graph_layer(b->graph, 0, &in);
    for (int i = 0; dp_graph_tensor(b->graph, i, &tensor); i++) b->parameters += tensor.is_buffer ? 0 : tensor.count;
    for (int i = 0; dp_graph_layer(b->graph, i, &l); i++) {
        out = l;
        b->flops += 3.0 * (double)l.flops;
    }
    for (int i = 0; i < in.rank; i++) width *= in.shape[i];
    int tokens = !strcmp(dp_config_get(b->config, "data.format"), "tokens");
    if (out.rank == 2) targets = out.shape[0];
    classes = out.shape[out.rank - 1];
    b->batch = strtoll(dp_config_get(b->config, "data.batch_size"), NULL, 10);
    float *x = malloc((size_t)(b->batch * width) * 4);
    int32_t *y = malloc((size_t)(b->batch * targets) * 4);
    b->x = x, b->y = y;
    if (!x || !y) {
        snprintf(err->text, sizeof err->text, "Out of memory for a batch of %lld.", (long long)b->batch);
        return DP_ENOMEM;
    }
    for (int64_t i = 0; i < b->batch * width; i++) {
        uint64_t r = next_random(&state);
        if (tokens)
            ((int32_t *)b->x)[i] = (int32_t)(r % 65);
        else
            x[i] = (float)(r >> 40) / 16777216.0f;
    }
    for (int64_t i = 0; i < b->batch * targets; i++) y[i] = (int32_t)(next_random(&state) % (uint64_t)classes);
    b->rows = dp_batch_of(dp_view(b->x, tokens ? DP_I32 : DP_F32, b->batch, width), dp_view(y, DP_I32, b->batch, targets));
    return DP_OK;
}

dp_status bench_set(dp_config *c, const char *assignment, dp_error *err)
{
    char key[128];
    const char *equals = strchr(assignment, '=');
    snprintf(key, sizeof key, "%.*s", equals ? (int)(equals - assignment) : 0, assignment);
    dp_status status = dp_config_set(c, key, equals ? equals + 1 : "");
    if (status)
        snprintf(err->text, sizeof err->text, "%s is not a setting that can be made; wanted section.key=value.", assignment);
    return status;
}

int bench_on_gpus(const bench_case *b)
{
    const char *use = dp_config_get(b->config, "devices.use");
    return strcmp(use, "auto") && strncmp(use, "cpu:", 4);
}

void bench_devices_text(char *buf, size_t size, const char *kind, int n)
{
    size_t at = 0;
    buf[0] = 0;
    for (int d = 0; d < n && at < size; d++) at += (size_t)snprintf(buf + at, size - at, "%s%s:%d", d ? "," : "", kind, d);
}

int bench_is_switch(const char *key)
{
    static const char *const keys[] = {"devices.mode",   "devices.scatter", "devices.loss",   "devices.broadcast",
                                       "devices.reduce", "devices.update",  "devices.overlap"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(key, keys[i])) return 1;
    return 0;
}

dp_config *bench_without_switches(const bench_case *b)
{
    dp_config *c = dp_config_new(NULL, NULL);
    dp_key k;
    for (int i = 0; c && dp_config_key(b->config, i, &k); i++)
        if (strcmp(k.value, k.def) && !bench_is_switch(k.name)) dp_config_set(c, k.name, k.value);
    return c;
}

dp_status bench_case_open(bench_case *b, const char *path, const char *const *set, int n_set, dp_error *err)
{
    dp_status status;
    memset(b, 0, sizeof *b);
    memset(err, 0, sizeof *err);
    b->config = dp_config_new(NULL, NULL);
    b->graph = dp_graph_new();
    if (!b->config || !b->graph) return DP_ENOMEM;
    if ((status = dp_config_load(b->config, path, err))) return status;
    for (int i = 0; i < n_set; i++)
        if ((status = bench_set(b->config, set[i], err))) return status;
    long long classes = strtoll(dp_config_get(b->config, "data.classes"), NULL, 10);
    dp_graph_symbol(b->graph, "classes", classes ? classes : 10);
    dp_graph_symbol(b->graph, "vocab", 65);
    dp_graph_config(b->graph, b->config);
    if ((status = dp_graph_finish(b->graph, err))) return status;
    return bench_case_rows(b, err);
}

dp_status bench_case_open_on(bench_case *b, const request *r, dp_error *err)
{
    char devices[1024];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int n = r->n_counts ? r->count[0] : cores < 2 ? 2 : cores > 8 ? 8 : (int)cores;
    dp_status status = bench_case_open(b, r->config, r->set, r->n_set, err);
    if (status) return status;
    bench_devices_text(devices, sizeof devices, bench_on_gpus(b) ? "cuda" : "cpu", n);
    if (r->n_counts || !strcmp(dp_config_get(b->config, "devices.use"), "auto"))
        dp_config_set(b->config, "devices.use", devices);
    return DP_OK;
}

void bench_case_close(bench_case *b)
{
    dp_graph_free(b->graph);
    dp_config_free(b->config);
    free(b->x);
    free(b->y);
    memset(b, 0, sizeof *b);
}

/* Two batches in flight, as the trainer keeps them. */
static dp_status run_steps(dp_engine *e, const bench_case *b, int n, dp_error *err)
{
    dp_status status;
    for (int i = 0; i < n; i++) {
        if ((status = dp_engine_submit(e, &b->rows, err))) return status;
        if (i && (status = dp_engine_wait(e, NULL, err))) return status;
    }
    return dp_engine_wait(e, NULL, err);
}

dp_status bench_measure(bench_case *b, const char *devices, double seconds, bench_rate *s, dp_error *err)
{
    enum { ROUNDS = 5 };
    dp_engine *e = NULL;
    double rate[ROUNDS], begin = bench_now();
    dp_status status;
    dp_device_stats d;
    dp_config_set(b->config, "devices.use", devices);
    dp_config_set(b->config, "devices.threads", "1");
    dp_config_set(b->config, "data.accumulate", "1");
    memset(s, 0, sizeof *s);
    if ((status = dp_engine_open(&e, b->graph, b->config, err))) return status;
    if ((status = run_steps(e, b, 1, err))) goto done;
    s->first_step_s = bench_now() - begin;
    begin = bench_now();
    if ((status = run_steps(e, b, 3, err))) goto done;
    int n = (int)(seconds / ROUNDS / ((bench_now() - begin) / 3));
    if (n < 2) n = 2;
    for (int i = 0; i < ROUNDS; i++) {
        begin = bench_now();
        if ((status = run_steps(e, b, n, err))) goto done;
        rate[i] = (double)b->batch * n / (bench_now() - begin);
    }
    s->samples_per_s = bench_median(rate, ROUNDS);
    for (int i = 0; dp_engine_stats(e, i, &d); i++) {
        int64_t sum = 0;
        for (int c = 0; c < DP_MEM_CLASSES; c++) sum += d.peak[c];
        if (sum > s->peak_bytes) s->peak_bytes = sum;
    }
done:
    dp_engine_close(e, NULL);
    return status;
}

int64_t bench_resident(void)
{
    long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fscanf(f, "%*s %lld", &pages) != 1) pages = 0;
        fclose(f);
    }
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}
