/* Internal: the trainer's parts. trainer.c runs the loop; setup.c opens and checks everything before it; resume.c takes
 * weights and states in; report.c writes log.jsonl and sends the events. */
#ifndef DP_TRAIN_TRAINER_H
#define DP_TRAIN_TRAINER_H
#include "../../data/loader.h"
#include "../engine/engine.h"
#include "checkpoint.h"
#include "log.h"
#include "rundir.h"
#include "schedule.h"
#include "trace.h"
#include <stdatomic.h>

typedef struct dp_rhythm { /* "every N epochs" or "every N steps"; 0 = at the end only */
    int64_t every;
    int epochs;
} dp_rhythm;

enum { DP_MAX_CHANNELS = 16 };
typedef struct dp_normalize {
    int channels; /* 0: none */
    double mean[DP_MAX_CHANNELS], std[DP_MAX_CHANNELS];
} dp_normalize;

typedef struct dp_phases { /* means over the devices */
    double seconds[DP_PHASES], waited, hidden;
} dp_phases;
typedef struct dp_meter { /* what happened since the last line, for rates */
    double begin, data_wait;
    int64_t samples, steps;
    dp_phases since; /* open, at the begin */
    int from_rest;   /* nothing was in flight then */
} dp_meter;

struct dp_trainer {
    dp_config *config; /* own copy */
    const dp_graph *graph;
    dp_graph *own_graph; /* NULL: the caller's; likewise own_* below */
    dp_data *train, *eval, *own_train, *own_eval;
    dp_data_info info; /* of the training set */
    dp_engine *engine;
    dp_loader *train_loader, *eval_loader;
    dp_event_fn fn;
    void *user;

    dp_rundir dir;
    dp_run_log log;
    dp_schedule schedule;
    dp_rhythm save_every, eval_every;
    int64_t log_every, keep;
    int save_may_fail; /* on_save_error = warn */
    int one_in_flight; /* a window may be skipped: its outcome is needed for the next rate */
    int64_t windows;   /* of one epoch */
    int64_t steps;     /* of the whole run */
    int64_t epochs;    /* begun in the whole run */
    dp_normalize normalize;
    char normalize_text[DP_MAX_CHANNELS * 2 * 26 + 8];
    dp_facts facts;

    dp_progress now;
    int64_t saved_step;   /* step of the newest state written or read; -1: none */
    dp_progress snapshot; /* where the run was at the engine's last snapshot */
    dp_result window;     /* sums of the window being collected */
    int epoch_open;       /* batches of the epoch were trained, DP_EVENT_EPOCH is not sent yet */
    int hinted;           /* bit HINT_ of report.c: the user was told */
    double run_begin;
    int64_t run_samples;
    dp_meter line_meter, epoch_meter;
    double step_begin;
    double paused_at;
    dp_phases paused; /* then */
    dp_trace trace;
    char start_text[512];
    atomic_int stop;
};

/* setup.c */
dp_status dp_setup_data(dp_trainer *t, const dp_graph *g, dp_data *train, dp_data *eval,
                        dp_error *err);                  /* sets, graph, their fit */
dp_status dp_setup_engine(dp_trainer *t, dp_error *err); /* engine, loaders, schedule */
void dp_setup_notes(dp_trainer *t);                      /* start text; notes about the split to the log callback */

/* resume.c: data.normalize, run.init_from, run.resume */
dp_status dp_setup_weights(dp_trainer *t, dp_error *err);

/* report.c: every function returns the event callback's wish by raising t->stop */
void dp_report_meters(dp_trainer *t);
void dp_report_pause(dp_trainer *t); /* what follows is not training: rates and phases leave it out */
void dp_report_go_on(dp_trainer *t);
dp_status dp_report_start(dp_trainer *t, dp_error *err);
dp_status dp_report_step(dp_trainer *t, const dp_result *r, int64_t epoch, int64_t batch, dp_error *err);
void dp_report_epoch(dp_trainer *t);
dp_status dp_report_eval(dp_trainer *t, const dp_result *r, double seconds, dp_error *err);
dp_status dp_report_save(dp_trainer *t, const char *path, dp_error *err);
dp_status dp_report_end(dp_trainer *t, const char *reason, dp_error *err);
/* A warning of the trainer's own: to the log callback and to log.jsonl. */
void dp_report_warn(dp_trainer *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#endif
