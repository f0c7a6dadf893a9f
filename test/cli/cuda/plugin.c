/* A libdpcuda.so for tests: it lists the fake driver's GPUs as one made for sm_80 and sm_90 would, and opens none. FAKE_ABI and FAKE_VERSION
 * (macros) make it one of another version. */
#include "../../../nn/cuda_plugin.h"
#include "../../../dp/base/error.h"

#ifndef FAKE_ABI
#define FAKE_ABI     DP_BACKEND_ABI
#define FAKE_VERSION DP_VERSION_TEXT
#endif
static const int archs[] = {80, 90};
static const dp_cuda_build built = {.runtime = 13000, .ptx = 80, .n_arch = 2, .arch = archs};

static int fake_enumerate(int i, dp_device_info *info)
{
    return dp_cuda_info(i, &built, info);
}

static dp_status fake_open(dp_be_device **d, const dp_be_options *o, dp_error *err)
{
    (void)d;
    return dp_fail(err, DP_EDEVICE, "The fake device %d was to be opened.", o->index);
}

static const dp_backend *fake_backend(void)
{
    static const dp_backend table = {.abi = DP_BACKEND_ABI, .kind = "cuda", .enumerate = fake_enumerate, .open = fake_open};
    return &table;
}

const dp_plugin dp_cuda_plugin = {FAKE_ABI, sizeof(dp_plugin), FAKE_VERSION, &built, fake_backend};
