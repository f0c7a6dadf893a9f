/* [devices] read once: a mode presets the switches, a key set by hand overrides, and one that then has no effect is an error. */
#include "../base/text.h"
#include "internal.h"

enum { CLASSIC, DP, BALANCED, DDP, MODES }; /* in another order than keys.c has them: see mode_of */

typedef struct row {
    const char *key;
    int preset[MODES]; /* index among the key's choices */
} row;
enum { SCATTER, LOSS, BROADCAST, REDUCE, UPDATE, OVERLAP, ROWS };
static const row rows[ROWS] = {
    /*                          classic, dp, balanced, ddp */
    [SCATTER] = {"devices.scatter", {1, 0, 0, 0}},
    [LOSS] = {"devices.loss", {1, 0, 0, 0}},
    [BROADCAST] = {"devices.broadcast", {1, 0, 0, 0}},
    [REDUCE] = {"devices.reduce", {DP_REDUCE_MASTER, DP_REDUCE_SLICED, DP_REDUCE_SLICED, DP_REDUCE_SLICED}},
    [UPDATE] = {"devices.update", {DP_UPDATE_MASTER, DP_UPDATE_MASTER, DP_UPDATE_SLICED, DP_UPDATE_REPLICATED}},
    [OVERLAP] = {"devices.overlap", {DP_OVERLAP_OFF, DP_OVERLAP_REDUCE, DP_OVERLAP_ALL, DP_OVERLAP_ALL}},
};

static int mode_of(const dp_config *c)
{
    static const int mode[] = {DP, CLASSIC, BALANCED, DDP}; /* the default stands first there */
    return mode[dp_config_choice(c, "devices.mode")];
}

/* What the config means: the presets of its mode with what is set by hand. */
static void resolve(const dp_config *c, int *value)
{
    int mode = mode_of(c);
    for (int i = 0; i < ROWS; i++)
        value[i] = dp_config_is_set(c, rows[i].key) ? dp_config_choice(c, rows[i].key) : rows[i].preset[mode];
}

static dp_status refuse(const dp_config *c, const char *key, const char *reason, dp_error *err)
{
    char where[512];
    return dp_fail(err, DP_ECONFIG, "%s: %s", dp_config_where(c, key, where, sizeof where), reason);
}

static dp_status check(const dp_config *c, const int *value, dp_error *err)
{
    int update = value[UPDATE], goes_on = dp_config_choice(c, "devices.on_device_failure");
    if (goes_on && !dp_config_int(c, "run.snapshot_every"))
        return refuse(
            c, "devices.on_device_failure",
            "continue goes back to a snapshot: it wants run.snapshot_every, every how many optimizer steps one is taken", err);
    if (!goes_on && dp_config_int(c, "run.snapshot_every"))
        return refuse(c, "run.snapshot_every", "it has no effect unless devices.on_device_failure = continue; leave it out",
                      err);
    if (update != DP_UPDATE_MASTER && value[REDUCE] != DP_REDUCE_SLICED)
        return refuse(c, dp_config_is_set(c, "devices.update") ? "devices.update" : "devices.reduce",
                      "update = sliced and update = replicated want reduce = sliced", err);
    if (update == DP_UPDATE_REPLICATED && value[LOSS])
        return refuse(c, dp_config_is_set(c, "devices.loss") ? "devices.loss" : "devices.update",
                      "update = replicated wants loss = replica", err);
    if (update == DP_UPDATE_REPLICATED && value[SCATTER])
        return refuse(c, dp_config_is_set(c, "devices.scatter") ? "devices.scatter" : "devices.update",
                      "update = replicated wants scatter = direct", err);
    if (value[OVERLAP] == DP_OVERLAP_ALL && update == DP_UPDATE_MASTER)
        return refuse(c, dp_config_is_set(c, "devices.overlap") ? "devices.overlap" : "devices.update",
                      "overlap = all wants update = sliced or replicated", err);
    if (update != DP_UPDATE_MASTER && dp_config_is_set(c, "devices.broadcast"))
        return refuse(c, "devices.broadcast", "it has no effect unless update = master; leave it out", err);
    return DP_OK;
}

dp_status dp_switches_read(dp_engine *e, dp_error *err)
{
    const dp_config *c = e->config;
    int value[ROWS];
    resolve(c, value);
    DP_TRY(check(c, value, err));
    if (!dp_config_is_set(c, "optimizer.lr"))
        return dp_fail(err, DP_ECONFIG,
                       "optimizer.lr is not set; it has no default (0.1 for sgd or 0.001 for adamw are common starts).");
    DP_TRY(dp_optimizer_config(&e->optimizer, c, err));
    DP_TRY(dp_loss_config(&e->loss, c, e->graph, err));
    e->on = (dp_switches){.scatter_on_master = value[SCATTER],
                          .loss_on_master = value[LOSS],
                          .broadcast_always = value[UPDATE] == DP_UPDATE_MASTER && value[BROADCAST],
                          .reduce = value[REDUCE],
                          .update = value[UPDATE],
                          .overlap = value[OVERLAP],
                          .thread_per_step = mode_of(c) == CLASSIC,
                          .shards = (int)dp_config_int(c, "devices.shards"),
                          .small_batch = dp_config_choice(c, "devices.small_batch"),
                          .stop_on_nan = dp_config_choice(c, "run.on_nan") == 0,
                          .bn_stats = dp_config_choice(c, "devices.bn_stats")};
    e->on.early = e->on.overlap == DP_OVERLAP_ALL && e->optimizer.clip_norm <= 0 && e->on.stop_on_nan;
    e->check_every = dp_config_int(c, "devices.check_replicas");
    e->seed = (uint64_t)dp_config_int(c, "run.seed");
    e->lr = dp_config_number(c, "optimizer.lr");
    double base = dp_config_number(c, "optimizer.lr_base_batch");
    if (base > 0) e->lr *= (double)(dp_config_int(c, "data.batch_size") * dp_config_int(c, "data.accumulate")) / base;
    return DP_OK;
}
