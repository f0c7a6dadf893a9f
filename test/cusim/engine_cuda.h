/* For tests of the engine on simulated GPUs: the backend as the plugin gives it, and what the simulator has counted. */
#ifndef DP_TEST_ENGINE_CUDA_H
#define DP_TEST_ENGINE_CUDA_H
#include "../../nn/cuda_plugin.h"
#include "../unit/engine_rig.h"
#include "cusim.h"

static inline const dp_backend *cuda(void)
{
    const dp_backend *b = NULL;
    dp_error err;
    if (dp_cuda_plugin_load(&b, &err)) fail_msg("%s", err.text);
    return b;
}

static inline cusim_counters counted(void)
{
    cusim_counters c;
    cusim_read(&c);
    return c;
}
#endif
