/* Shared by the files of dpbench. Only the public interface of libdp is used. */
#ifndef DP_TOOLS_BENCH_H
#define DP_TOOLS_BENCH_H
#include "../dp/dp.h"

double bench_now(void);  /* seconds, CLOCK_MONOTONIC */
double bench_peak(void); /* flop/s of one core */

typedef struct bench_case { /* one network with a batch that stays in memory */
    dp_config *config;
    dp_graph *graph;
    int64_t batch;
    double flops; /* of one training sample: forward, and twice that backward */
    dp_batch rows;
    void *x, *y;
} bench_case;
/* The config with overrides ("section.key=value"); symbols classes = 10, vocab = 65 unless data.classes is set. */
dp_status bench_case_open(bench_case *b, const char *path, const char *const *set, int n_set, dp_error *err);
dp_status bench_case_rows(bench_case *b, dp_error *err); /* the batch and the flops for b's finished graph */
void bench_case_close(bench_case *b);

typedef struct bench_speed {
    double samples_per_s, first_step_s; /* median of the rounds; open to the end of the first step */
    int64_t peak_bytes;                 /* of the fullest device */
} bench_speed;
/* Trains on devices cpu:0 .. cpu:(n-1) with one thread each for about `seconds`. */
dp_status bench_measure(bench_case *b, const char *devices, double seconds, bench_speed *s, dp_error *err);
int bench_ops(const char *json); /* the `ops` command; an exit code */
int64_t bench_resident(void);    /* bytes of this process */
#endif
