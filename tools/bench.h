/* Shared by the files of dpbench. Only the public interface of libdp is used. */
#ifndef DP_TOOLS_BENCH_H
#define DP_TOOLS_BENCH_H
#include "figures.h"
#include "page.h"
#include <stdio.h>

/* The command line. */
enum { MAX_SETS = 64, MAX_COUNTS = 16, MAX_SIDES = 12 };
typedef struct request {
    const char *config, *json, *html;
    const char *set[MAX_SETS];   /* "section.key=value" */
    const char *side[MAX_SIDES]; /* "NAME section.key=value ..." of imbalance */
    int count[MAX_COUNTS];       /* numbers of devices */
    int n_counts, n_set, n_side;
    int64_t steps, warmup; /* 0: from seconds */
    double seconds;        /* of measuring, a side */
} request;
int bench_wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* to stderr; EXIT 2 */
int bench_failed(dp_status status, const dp_error *err); /* to stderr; 1, or 2 when the configuration is wrong */
int bench_speed(const request *r);
int bench_ops(const request *r);
int bench_imbalance(const request *r);
int bench_ladder(const request *r);

/* bench_peak.c */
double bench_now(void);                /* seconds, CLOCK_MONOTONIC */
double bench_peak(void);               /* flop/s of one core */
double bench_median(double *v, int n); /* sorts v */
double bench_spread(double *v, int n); /* half the distance of the quartiles; sorts v */

/* bench_case.c */
typedef struct bench_case { /* one network with a batch that stays in memory */
    dp_config *config;
    dp_graph *graph;
    int64_t batch;
    double flops; /* of one training sample: forward, and twice that backward */
    int64_t parameters;
    dp_batch rows;
    void *x, *y;
} bench_case;
/* The config with overrides ("section.key=value"); symbols classes = 10, vocab = 65 unless data.classes is set. */
dp_status bench_case_open(bench_case *b, const char *path, const char *const *set, int n_set, dp_error *err);
/* The request's config on its devices: --devices, else devices.use, else a CPU device per core, at least 2. */
dp_status bench_case_open_on(bench_case *b, const request *r, dp_error *err);
dp_status bench_case_rows(bench_case *b, dp_error *err); /* the batch and the flops for b's finished graph */
void bench_case_close(bench_case *b);
dp_status bench_set(dp_config *c, const char *assignment, dp_error *err); /* "section.key=value" */
int bench_on_gpus(const bench_case *b);                                   /* devices.use names GPUs */
void bench_devices_text(char *buf, size_t size, const char *kind, int n); /* "cpu:0,cpu:1" */
int bench_is_switch(const char *key);                                     /* one of those that a mode presets, or the mode */
/* b's settings without the switches, which a later set may give. NULL: out of memory. */
dp_config *bench_without_switches(const bench_case *b);

typedef struct bench_rate {
    double samples_per_s, first_step_s; /* median of the rounds; open to the end of the first step */
    int64_t peak_bytes;                 /* of the fullest device */
} bench_rate;
/* Trains on these devices, with one thread each, for about `seconds`. */
dp_status bench_measure(bench_case *b, const char *devices, double seconds, bench_rate *s, dp_error *err);
int64_t bench_resident(void); /* bytes of this process */

/* bench_side.c: arrangements that are compared. All are open at once and train in turns of a few steps, so that what
 * disturbs the machine disturbs all of them. */
enum { MAX_ROUNDS = 400 };
typedef struct side {
    char name[48], about[160];
    char key[160]; /* the switches as text */
    dp_config *config;
    dp_engine *engine;
    int64_t batch, accumulate, parameters, warmup, steps; /* as far as it came */
    int64_t seed;
    double *loss;                         /* [warmup + steps] */
    double rate[MAX_ROUNDS];              /* samples/s of each turn */
    double samples_per_s, spread, step_s; /* median over the turns; step_s: seconds of a warm step */
    figures figures;
    int64_t done;
} side;
/* The switches as "devices.mode=dp devices.reduce=tree"; about: one line. b's other settings hold for all. */
dp_status side_open(side *s, const bench_case *b, const char *name, const char *keys, const char *about, dp_error *err);
/* Why two sides may not be compared (P46), as text; NULL: they may. */
const char *sides_unequal(const side *a, const side *b, char *buf, size_t size);
/* Warms up all, then measures all in turns. steps 0: as many as fit in `seconds` a side. */
dp_status sides_run(side *s, int n, const bench_case *b, int64_t warmup, int64_t steps, double seconds, int *rounds,
                    dp_error *err);
/* The first step whose losses differ by more than 1e-5, relative; -1: none. */
int64_t sides_loss_differs(const side *a, const side *b);
void side_close(side *s);

/* bench_out.c: the JSON file and the page, both optional */
typedef struct json {
    FILE *f;
    const char *path;
    int comma;
} json;
int json_open(json *j, const char *path); /* path NULL: nothing is written; 0: cannot be */
int json_close(json *j);                  /* 0: could not be written */
void json_begin(json *j, const char *key, char bracket);
void json_end(json *j, char bracket);
void json_text(json *j, const char *key, const char *value);
void json_int(json *j, const char *key, int64_t value);
void json_number(json *j, const char *key, double value);
void json_side(json *j, const side *s);    /* an object */
void machine_text(char *buf, size_t size); /* processor and version */
/* Title, what was run, on what. */
page *bench_page(const request *r, const char *title, const bench_case *b, const char *more);
#endif
