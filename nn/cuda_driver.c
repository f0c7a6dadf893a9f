/* The driver library by dlopen, with the few prototypes that are wanted: NVIDIA's header is not on every machine that builds this. A
 * program that is linked with the driver already brings its own. */
#include "cuda_driver.h"
#include "../dp/base/text.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { NO_DEVICE = 100, STUB = 34, MISMATCH = 803, NOT_SUPPORTED = 804, NOT_READY = 802 }; /* CUresult */
enum { MULTIPROCESSORS = 16, COMPUTE_MODE = 20, MAJOR = 75, MINOR = 76, PROHIBITED = 2 };  /* CUdevice_attribute */
typedef struct uuid {
    unsigned char byte[16];
} uuid;
typedef struct functions {
    int (*init)(unsigned flags);
    int (*version)(int *version);
    int (*count)(int *n);
    int (*device)(int *device, int ordinal);
    int (*name)(char *name, int size, int device);
    int (*memory)(size_t *bytes, int device);
    int (*uuid)(uuid *id, int device);
    int (*pci)(char *id, int size, int device);
    int (*attribute)(int *value, int which, int device);
} functions;

/* What is wrong with it: NULL when all were found. */
static const char *find(functions *d)
{
    static const char *const name[] = {"cuInit",
                                       "cuDriverGetVersion",
                                       "cuDeviceGetCount",
                                       "cuDeviceGet",
                                       "cuDeviceGetName",
                                       "cuDeviceTotalMem_v2",
                                       "cuDeviceGetUuid_v2",
                                       "cuDeviceGetPCIBusId",
                                       "cuDeviceGetAttribute"};
    const int linked = dlsym(RTLD_DEFAULT, name[0]) != NULL;
    void *library = linked ? RTLD_DEFAULT : dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void *found[sizeof name / sizeof *name];
    _Static_assert(sizeof found == sizeof *d, "a name for each function");
    if (!linked && !library) return "libcuda.so.1 was not found";
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (!(found[i] = dlsym(library, name[i]))) return "libcuda.so.1 is older than CUDA 11.4";
    memcpy(d, found, sizeof *d);
    return NULL;
}

static dp_status why_none(int code, dp_error *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char quoted[96];
    if (code == NO_DEVICE && visible && !visible[strspn(visible, " \t")])
        return dp_fail(err, DP_EDEVICE, "No GPU is visible because CUDA_VISIBLE_DEVICES is set to empty.");
    if (code == NO_DEVICE && visible)
        return dp_fail(err, DP_EDEVICE, "No GPU is visible; CUDA_VISIBLE_DEVICES is set to %s.",
                       dp_quote(quoted, sizeof quoted, visible));
    if (code == NO_DEVICE)
        return dp_fail(err, DP_EDEVICE,
                       "No GPU is visible: the driver finds none (with MIG on, an instance must be made first).");
    if (code == STUB) return dp_fail(err, DP_EDEVICE, "No GPU driver: the libcuda.so.1 that was found is the toolkit's stub.");
    if (code == MISMATCH || code == NOT_SUPPORTED)
        return dp_fail(err, DP_EDEVICE,
                       "The GPU driver cannot be used (CUDA error %d): libcuda.so.1 and the kernel's module are of different "
                       "versions; restart after the driver's update.",
                       code);
    if (code == NOT_READY)
        return dp_fail(err, DP_EDEVICE, "The GPU driver is not ready (CUDA error %d): is the fabric manager running?", code);
    return dp_fail(err, DP_EDEVICE, "The GPU driver does not start (CUDA error %d); nvidia-smi may say more.", code);
}

/* cuInit makes no context, and is quick when it was called before. */
static dp_status start(functions *d, dp_error *err)
{
    const char *missing = find(d);
    if (missing) return dp_fail(err, DP_EDEVICE, "No GPU driver: %s.", missing);
    const int code = d->init(0);
    return code ? why_none(code, err) : DP_OK;
}

/* DP_CUDA_LOGICAL=N (tests): every GPU is there N times, the second time behind all of the first, so that one does what several would. */
static int times(void)
{
    const char *text = getenv("DP_CUDA_LOGICAL");
    int n = text ? atoi(text) : 1;
    return n < 1 || n > 8 ? 1 : n;
}

dp_status dp_cuda_count(int *n, int *version, dp_error *err)
{
    functions d;
    *n = *version = 0;
    DP_TRY(start(&d, err));
    int code = d.count(n);
    if (!code && !*n) code = NO_DEVICE;
    if (!code) code = d.version(version);
    *n *= times();
    return code ? why_none(code, err) : DP_OK;
}

int dp_cuda_gpu_at(int i, dp_cuda_gpu *g)
{
    functions d;
    int n = 0, device, major = 0, minor = 0, mode = 0;
    size_t bytes = 0;
    uuid id = {{0}};
    memset(g, 0, sizeof *g);
    if (i < 0 || start(&d, NULL) || d.count(&n) || n < 1 || i >= n * times() || d.device(&device, i % n)) return 0;
    g->index = i % n;
    if (d.name(g->model, sizeof g->model, device) || d.memory(&bytes, device) || d.pci(g->pci, sizeof g->pci, device) ||
        d.uuid(&id, device) || d.attribute(&major, MAJOR, device) || d.attribute(&minor, MINOR, device) ||
        d.attribute(&mode, COMPUTE_MODE, device) || d.attribute(&g->units, MULTIPROCESSORS, device))
        return 0;
    g->memory = (int64_t)bytes;
    g->arch = 10 * major + minor;
    g->prohibited = mode == PROHIBITED;
    size_t at = (size_t)dp_format(g->uuid, sizeof g->uuid, "%s-", strstr(g->model, " MIG ") ? "MIG" : "GPU");
    for (int b = 0; b < 16; b++)
        at += (size_t)dp_format(g->uuid + at, sizeof g->uuid - at, "%s%02x", b == 4 || b == 6 || b == 8 || b == 10 ? "-" : "",
                                id.byte[b]);
    return 1;
}

/* Machine code runs on devices of its major version from its minor one on; PTX on every later device, if the driver's compiler is
 * as new as the toolkit that wrote it. */
static int covers(const dp_cuda_build *b, int arch, int driver)
{
    for (int i = 0; i < b->n_arch; i++)
        if (b->arch[i] / 10 == arch / 10 && b->arch[i] <= arch) return 1;
    return b->ptx && b->ptx <= arch && driver >= b->runtime;
}

int dp_cuda_usable(const dp_cuda_gpu *g, int driver, const dp_cuda_build *b, char *why, size_t size)
{
    *why = 0;
    if (driver / 1000 < b->runtime / 1000) {
        dp_format(why, size, "needs a newer driver: it is for CUDA %d.%d, this build for %d.%d", driver / 1000,
                  driver % 1000 / 10, b->runtime / 1000, b->runtime % 1000 / 10);
        return 0;
    }
    if (g->prohibited) {
        dp_format(why, size, "is closed to all processes: its compute mode is prohibited (nvidia-smi -c 0 opens it)");
        return 0;
    }
    if (covers(b, g->arch, driver)) return 1;
    size_t at = (size_t)dp_format(why, size, "(sm_%d) is not covered by this build (", g->arch);
    for (int i = 0; i < b->n_arch && at < size; i++)
        at += (size_t)dp_format(why + at, size - at, "%ssm_%d", i ? ", " : "", b->arch[i]);
    if (b->ptx && at < size)
        at += (size_t)dp_format(why + at, size - at, ", later ones from sm_%d on with a driver for CUDA %d.%d", b->ptx,
                                b->runtime / 1000, b->runtime % 1000 / 10);
    if (at < size) dp_format(why + at, size - at, ")");
    return 0;
}

int dp_cuda_info(int i, const dp_cuda_build *b, dp_device_info *info)
{
    dp_cuda_gpu g;
    int n, driver;
    if (dp_cuda_count(&n, &driver, NULL) || !dp_cuda_gpu_at(i, &g)) return 0;
    memset(info, 0, sizeof *info);
    dp_format(info->name, sizeof info->name, "cuda:%d", i);
    dp_format(info->pci, sizeof info->pci, "%s", g.pci);
    dp_format(info->uuid, sizeof info->uuid, "%s", g.uuid);
    dp_format(info->model, sizeof info->model, "%s", g.model);
    info->memory = g.memory;
    info->units = g.units;
    info->usable = b && dp_cuda_usable(&g, driver, b, info->why, sizeof info->why);
    return 1;
}
