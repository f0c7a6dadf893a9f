/* Samples/s of the modes on two CPU devices, side by side in one process: every mode trains a few steps in turn, many times; medians, and
 * each as a share of ddp's. usage: modes CONFIG... */
#include "../tools/bench.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODES = 4, ROUNDS = 41 };
static const double most_s = 60; /* of a model: a slow one has fewer rounds */
static const char *const modes[MODES] = {"classic", "dp", "balanced", "ddp"};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int fail(const dp_error *err)
{
    fprintf(stderr, "modes: %s\n", err->text);
    return 1;
}

static dp_status run(dp_engine *e, const bench_case *b, int n, dp_error *err)
{
    dp_status status;
    for (int i = 0; i <= n; i++) {
        if (i < n && (status = dp_engine_submit(e, &b->rows, err))) return status;
        if (i && (status = dp_engine_wait(e, NULL, err))) return status;
    }
    return DP_OK;
}

static int measure(const char *path)
{
    static const char *const set[] = {"devices.use=cpu:0,cpu:1", "devices.threads=1", "data.accumulate=1"};
    bench_case b;
    dp_error err;
    dp_engine *e[MODES] = {0};
    double rate[MODES][ROUNDS], share[MODES][ROUNDS];
    if (bench_case_open(&b, path, set, 3, &err)) return fail(&err);
    for (int m = 0; m < MODES; m++) {
        dp_config_set(b.config, "devices.mode", modes[m]);
        if (dp_engine_open(&e[m], b.graph, b.config, &err)) return fail(&err);
        if (run(e[m], &b, 3, &err)) return fail(&err);
    }
    double begin = bench_now();
    if (run(e[1], &b, 5, &err)) return fail(&err);
    double step = (bench_now() - begin) / 5;
    int n = (int)(0.06 / step); /* steps of a turn: some tens of milliseconds */
    if (n < 2) n = 2;
    int rounds = (int)(most_s / (MODES * n * step)) | 1; /* odd: a median is one of them */
    if (rounds < 5) rounds = 5;
    if (rounds > ROUNDS) rounds = ROUNDS;
    for (int i = 0; i < rounds; i++) {
        for (int k = 0; k < MODES; k++) {
            int m = (i + k) % MODES;
            begin = bench_now();
            if (run(e[m], &b, n, &err)) return fail(&err);
            rate[m][i] = (double)b.batch * n / (bench_now() - begin);
        }
        for (int m = 0; m < MODES; m++) share[m][i] = rate[m][i] / rate[MODES - 1][i];
    }
    printf("%-34s", path);
    for (int m = 0; m < MODES; m++) {
        qsort(rate[m], (size_t)rounds, sizeof(double), by_value);
        qsort(share[m], (size_t)rounds, sizeof(double), by_value);
        printf("  %s %.1f/s (%.3f)", modes[m], rate[m][rounds / 2], share[m][rounds / 2]);
        dp_engine_close(e[m], NULL);
    }
    printf("\n");
    bench_case_close(&b);
    return 0;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (measure(argv[i])) return 1;
    return argc < 2;
}
