/* Internal: what a state file holds beside the tensors, and the writing of state, last and best files.
 * Progress is kept in units that do not depend on devices: epochs, batches of the epoch, samples, optimizer steps. */
#ifndef DP_TRAIN_CHECKPOINT_H
#define DP_TRAIN_CHECKPOINT_H
#include "../engine/engine.h"

typedef struct dp_progress {
    /* where the run is: between two windows, nothing in flight */
    int64_t step;         /* windows closed; = optimizer steps unless some were skipped */
    int64_t updates;      /* optimizer steps: what schedules count */
    int64_t epoch, batch; /* the next batch is number `batch` of `epoch`, both from 0 */
    int64_t samples;      /* trained on so far, over all epochs */
    /* the running epoch's sums, so that its mean loss is right after a resume, too */
    int64_t epoch_samples, epoch_targets, epoch_correct;
    double epoch_loss;
    /* the last and the best evaluation; step -1: none yet */
    int64_t eval_step, best_step, best_correct, best_targets;
    double best_loss; /* mean */
    /* what must stay (seed, batch_size, accumulate, batches), and what may change, with a word about it */
    int64_t seed, batch_size, accumulate, epoch_batches; /* batches of one epoch */
    int64_t devices, threads, shards;
} dp_progress;

typedef struct dp_facts { /* of the data, needed to use the weights; NULL: none */
    const char *normalize, *vocab;
} dp_facts;

/* state-STEP.safetensors and last.safetensors; then the oldest states above `keep` go. *path (malloc'd, may be NULL) =
 * the state's. */
dp_status dp_checkpoint_save(dp_engine *e, const char *dir, const dp_progress *p, const dp_facts *f, int64_t keep, char **path,
                             dp_error *err);
/* Weights only, under `name` in the directory. */
dp_status dp_checkpoint_weights(dp_engine *e, const char *dir, const char *name, const dp_progress *p, const dp_facts *f,
                                dp_error *err);

/* The engine's last snapshot as a state file, into an open descriptor; p: where the run was then. Touches no device. */
dp_status dp_checkpoint_rescue(dp_engine *e, int fd, const dp_progress *p, const dp_facts *f, dp_error *err);

int dp_checkpoint_is_state(const dp_st_in *in);
/* The progress in an open state file; path for messages. DP_EDATA when it is not a whole state. */
dp_status dp_checkpoint_progress(const dp_st_in *in, const char *path, dp_progress *p, dp_error *err);
#endif
