/* Shared by the files of dptrain: options, and what prints. Only the public interface of libdp is used. */
#ifndef DP_TOOLS_TOOL_H
#define DP_TOOLS_TOOL_H
#include "../dp/dp.h"

enum { EXIT_OK = 0, EXIT_RUN = 1, EXIT_USAGE = 2, EXIT_NONFINITE = 3, EXIT_SIGNAL = 128 };

typedef struct options {
    const char *program, *config, *eval, *predict;
    const char **overrides; /* "section.key=value", in order */
    int n_overrides;
    int check, resume, devices, measure, keys, version, help, quiet;
} options;
/* 0 = ok, else a message has gone to stderr. o->overrides is malloc'd. */
int options_parse(options *o, int argc, char **argv);
void options_help(void);

/* progress.c: what a running training shows */
typedef struct progress {
    int quiet, live; /* live: stdout is a terminal */
    int line_open;   /* the live line stands on the terminal */
    int errors;      /* printed for the library so far */
    int accuracy;    /* targets are classes */
    int64_t log_every;
    double begin, drawn; /* of this process's training; of the last drawing */
    int64_t first_step;
    double epoch_begin, epoch_loss;
    int64_t epoch_samples, epoch_targets;
    double interval_begin, interval_wait;
    int64_t interval_samples;
    dp_result eval; /* of the step in eval_step, shown with its epoch */
    int64_t eval_step;
} progress;
void progress_log(void *user, dp_level level, const char *text); /* dp_log_fn; user = progress */
int progress_event(void *user, const dp_event *ev);              /* dp_event_fn */
void progress_error(progress *p, const dp_error *e);             /* to stderr, with its place */

/* show.c: tables */
void show_devices(void);
dp_status show_links(const dp_config *c, dp_error *err); /* opens the devices of devices.use */
void show_keys(const dp_config *c);
void show_model(const dp_graph *g);
void show_check(dp_engine *e, const dp_config *c);
void show_stats(dp_engine *e);
void show_eval(const char *what, const dp_result *r, int accuracy);

/* predict.c */
dp_status predict_to(dp_engine *e, const dp_graph *g, const dp_config *c, const char *path, int64_t *rows, dp_error *err);
#endif
