/* NVML by dlopen, with own prototypes: neither its header nor its library comes with the toolkit. It knows a device's memory where there
 * is no context yet, so it can tell what the context itself takes. */
#include "nvml.h"
#include <dlfcn.h>
#include <string.h>

typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;
typedef struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*device)(const char *pci, void **device);
    int (*memory)(void *device, nvml_memory *m);
} nvml;

static int find(nvml *n)
{
    static const char *const name[] = {"nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetHandleByPciBusId_v2",
                                       "nvmlDeviceGetMemoryInfo"};
    const int linked = dlsym(RTLD_DEFAULT, name[0]) != NULL;
    void *library = linked ? RTLD_DEFAULT : dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void *found[sizeof name / sizeof *name];
    _Static_assert(sizeof found == sizeof *n, "a name for each function");
    if (!linked && !library) return 0;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (!(found[i] = dlsym(library, name[i]))) return 0;
    memcpy(n, found, sizeof *n);
    return 1;
}

int64_t dp_nvml_free(const char *pci)
{
    nvml n;
    void *device;
    nvml_memory m = {0, 0, 0};
    if (!find(&n) || n.init()) return -1;
    const int failed = n.device(pci, &device) || n.memory(device, &m);
    (void)n.shutdown();
    return failed ? -1 : (int64_t)m.free;
}
