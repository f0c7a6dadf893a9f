/* Internal: the learning rate as a pure function of the optimizer step. It knows neither devices nor epochs, so it is
 * the same on any number of devices and a resumed run continues it from the step count alone. */
#ifndef DP_TRAIN_SCHEDULE_H
#define DP_TRAIN_SCHEDULE_H
#include "../base/config.h"

enum { DP_SCHEDULE_CONSTANT, DP_SCHEDULE_COSINE };
typedef struct dp_schedule {
    int kind;
    double lr, min_lr;
    int64_t warmup; /* steps in which lr rises linearly; the last of them has the full rate */
    int64_t total;  /* optimizer steps of the run */
} dp_schedule;

/* [schedule] and optimizer.lr; global_batch = samples of one optimizer step, for optimizer.lr_base_batch. */
dp_status dp_schedule_config(dp_schedule *s, const dp_config *c, int64_t total, int64_t global_batch, dp_error *err);
/* Rate of optimizer step `step`, counted from 1. Cosine reaches min_lr exactly at step `total` and stays there. */
double dp_schedule_lr(const dp_schedule *s, int64_t step);
#endif
