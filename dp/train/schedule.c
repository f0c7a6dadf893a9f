/* Learning rate schedules: constant and cosine (Loshchilov and Hutter 2017), each with a linear warm-up. */
#include "schedule.h"
#include <math.h>
#include <string.h>

static const double pi = 3.14159265358979323846;

dp_status dp_schedule_config(dp_schedule *s, const dp_config *c, int64_t total, int64_t global_batch, dp_error *err)
{
    const char *kind = dp_config_get(c, "schedule.kind");
    char where[256];
    memset(s, 0, sizeof *s);
    if (!dp_config_is_set(c, "optimizer.lr"))
        return dp_fail(err, DP_ECONFIG, "optimizer.lr is not set: give the learning rate, such as optimizer.lr = 0.1.");
    s->kind = !strcmp(kind, "cosine") ? DP_SCHEDULE_COSINE : DP_SCHEDULE_CONSTANT;
    s->lr = dp_config_number(c, "optimizer.lr");
    s->min_lr = dp_config_number(c, "schedule.min_lr");
    s->warmup = dp_config_int(c, "schedule.warmup_steps");
    s->total = total;
    double base = dp_config_number(c, "optimizer.lr_base_batch");
    if (base > 0) s->lr *= (double)global_batch / base;
    if (s->min_lr > s->lr)
        return dp_fail(err, DP_ECONFIG, "%s: %g is above the learning rate %g it should fall to.",
                       dp_config_where(c, "schedule.min_lr", where, sizeof where), s->min_lr, s->lr);
    return DP_OK;
}

double dp_schedule_lr(const dp_schedule *s, int64_t step)
{
    int64_t top = s->warmup > 1 ? s->warmup : 1; /* the step with the full rate, from which cosine falls */
    if (step < top) return s->lr * (double)step / (double)top;
    if (s->kind == DP_SCHEDULE_CONSTANT || step == top) return s->lr;
    if (step >= s->total) return s->min_lr;
    return s->min_lr + (s->lr - s->min_lr) * 0.5 * (1.0 + cos(pi * (double)(step - top) / (double)(s->total - top)));
}
