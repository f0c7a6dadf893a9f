/* Internal: which devices a run uses. */
#ifndef DP_GROUP_DEVICES_H
#define DP_GROUP_DEVICES_H
#include "../../nn/backend.h"
#include "../dp.h"

enum { DP_MAX_DEVICES = 64 };
typedef struct dp_device_list {
    const dp_backend *backend;
    int n, index[DP_MAX_DEVICES];
    int threads; /* of one device */
    int pin;     /* cores suffice for a core of its own per thread */
    double timeout_s;
    int64_t memory_limit, workspace; /* bytes; workspace: of one library call on a GPU */
    int deterministic, tf32, conv_direct, conv_own, tune_measure, debug_sync; /* as in dp_be_options */
} dp_device_list;

/* devices.use and what belongs to it. `auto` takes all GPUs that can be used; without any, one CPU device per core, up to 8, fewer when a
 * device would get less than 16 samples of `batch`. `all` takes all GPUs, `0,1` and `cuda:0,cuda:1` those, and there must be some.
 * backend NULL: by the names; tests give one of their own, whose devices are then named cpu:K too. */
dp_status dp_devices_choose(dp_device_list *list, const dp_config *c, const dp_backend *backend, int64_t batch, dp_error *err);
int dp_cores(void); /* that this process may use */
#endif
