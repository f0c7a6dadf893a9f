/* NVML by dlopen, with own prototypes: neither its header nor its library comes with the toolkit. It knows a device's memory where there
 * is no context yet, so it can tell what the context itself takes; and it still answers when the context is gone. Critical errors (Xid)
 * come as events, from the registration on. */
#include "nvml.h"
#include "../../dp/base/memory.h"
#include "../../dp/base/text.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CLOCK_SM = 1, EVENT_XID = 8, PROCESSES = 64, LISTED = 4 };
typedef unsigned long long u64;
typedef struct nvml_memory {
    u64 total, free, used;
} nvml_memory;
typedef struct nvml_process {
    unsigned pid;
    u64 bytes; /* all ones: not known */
    unsigned gpu_instance, compute_instance;
} nvml_process;
typedef struct nvml_event {
    void *device;
    u64 type, data;
    unsigned gpu_instance, compute_instance;
} nvml_event;

typedef struct functions {
    int (*init)(void);
    int (*shutdown)(void);
    int (*device)(const char *pci, void **device);
    int (*memory)(void *device, nvml_memory *m);
    /* from here on: NULL in old drivers, and then not known */
    int (*clock)(void *device, int which, unsigned *mhz);
    int (*most)(void *device, int which, unsigned *mhz);
    int (*reasons)(void *device, u64 *bits);
    int (*processes)(void *device, unsigned *n, nvml_process *list);
    int (*set_create)(void **set);
    int (*set_free)(void *set);
    int (*set_register)(void *device, u64 types, void *set);
    int (*set_wait)(void *set, nvml_event *event, unsigned wait_ms);
} functions;
enum { NEEDED = 4 };

struct dp_nvml {
    functions f;
    void *device, *events; /* events NULL: not to be had */
    int xid;               /* __atomic */
};

static int find(functions *f)
{
    static const char *const name[] = {"nvmlInit_v2",
                                       "nvmlShutdown",
                                       "nvmlDeviceGetHandleByPciBusId_v2",
                                       "nvmlDeviceGetMemoryInfo",
                                       "nvmlDeviceGetClockInfo",
                                       "nvmlDeviceGetMaxClockInfo",
                                       "nvmlDeviceGetCurrentClocksThrottleReasons",
                                       "nvmlDeviceGetComputeRunningProcesses_v3",
                                       "nvmlEventSetCreate",
                                       "nvmlEventSetFree",
                                       "nvmlDeviceRegisterEvents",
                                       "nvmlEventSetWait_v2"};
    const int linked = dlsym(RTLD_DEFAULT, name[0]) != NULL;
    void *library = linked ? RTLD_DEFAULT : dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void *found[sizeof name / sizeof *name];
    _Static_assert(sizeof found == sizeof *f, "a name for each function");
    if (!linked && !library) return 0;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        found[i] = dlsym(library, name[i]);
        if (!found[i] && i < NEEDED) return 0;
    }
    memcpy(f, found, sizeof *f);
    return 1;
}

static void watch_errors(dp_nvml *n)
{
    const functions *f = &n->f;
    if (!f->set_create || !f->set_free || !f->set_register || !f->set_wait || f->set_create(&n->events)) {
        n->events = NULL;
        return;
    }
    if (!f->set_register(n->device, EVENT_XID, n->events)) return;
    (void)f->set_free(n->events);
    n->events = NULL;
}

dp_nvml *dp_nvml_open(const char *pci)
{
    dp_nvml *n = dp_calloc(1, sizeof *n);
    if (!n || !find(&n->f) || n->f.init()) {
        free(n);
        return NULL;
    }
    if (n->f.device(pci, &n->device)) {
        dp_nvml_close(n);
        return NULL;
    }
    watch_errors(n);
    return n;
}

void dp_nvml_close(dp_nvml *n)
{
    if (!n) return;
    if (n->events) (void)n->f.set_free(n->events);
    (void)n->f.shutdown();
    free(n);
}

static int memory(const dp_nvml *n, nvml_memory *m)
{
    return n && !n->f.memory(n->device, m);
}

int64_t dp_nvml_free(const dp_nvml *n)
{
    nvml_memory m;
    return memory(n, &m) ? (int64_t)m.free : -1;
}

int dp_nvml_xid(dp_nvml *n, unsigned wait_ms)
{
    nvml_event e;
    if (!n) return 0;
    for (; n->events && !n->f.set_wait(n->events, &e, wait_ms); wait_ms = 0)
        if (e.type == EVENT_XID) __atomic_store_n(&n->xid, (int)e.data, __ATOMIC_RELAXED);
    return __atomic_load_n(&n->xid, __ATOMIC_RELAXED);
}

/* The other processes; < 0: the list does not even have us (another pid namespace, no right), so it tells nothing. */
static int others(const dp_nvml *n, nvml_process list[PROCESSES])
{
    unsigned count = PROCESSES, kept = 0;
    int ours = 0;
    if (!n || !n->f.processes || n->f.processes(n->device, &count, list)) return -1;
    for (unsigned i = 0; i < count; i++) {
        if (list[i].pid == (unsigned)getpid())
            ours = 1;
        else if (list[i].bytes != ~(u64)0)
            list[kept++] = list[i];
    }
    return ours ? (int)kept : -1;
}

int dp_nvml_others(const dp_nvml *n, char *text, size_t size)
{
    nvml_process list[PROCESSES];
    char bytes[32];
    const int count = others(n, list);
    if (count < 0) return 0;
    dp_format(text, size, "%d process%s", count, count == 1 ? "" : "es");
    for (int i = 0; i < count && i < LISTED; i++) {
        const size_t at = strlen(text);
        dp_format(text + at, size - at, "%s%s: %u%s", i ? ", " : " (",
                  dp_bytes_text(bytes, sizeof bytes, (int64_t)list[i].bytes), list[i].pid,
                  i + 1 < count && i + 1 < LISTED ? ""
                  : count > LISTED                ? ", ...)"
                                                  : ")");
    }
    return 1;
}

/* Bits of nvmlClocksThrottleReasons. Idling, and clocks that somebody asked for, are no trouble; a slowdown by the hardware has its
 * cause in a bit of its own where the GPU knows it. */
static void say_why(u64 bits, char *text, size_t size)
{
    static const struct {
        u64 bits;
        const char *why;
    } reason[] = {
        {0x4, "power cap"}, {0x60, "heat"}, {0x80, "power supply"}, {0x10, "slower GPU in a group"}, {0x8, "hardware"}};
    text[0] = 0;
    if (bits & 0xC0) bits &= ~(u64)0x8;
    for (size_t i = 0; i < sizeof reason / sizeof *reason; i++) {
        const size_t at = strlen(text);
        if (bits & reason[i].bits) dp_format(text + at, size - at, "%s%s", at ? ", " : "", reason[i].why);
    }
}

int dp_nvml_health(dp_nvml *n, int64_t held, dp_device_health *h)
{
    nvml_process list[PROCESSES];
    nvml_memory m;
    unsigned mhz = 0;
    u64 bits = 0;
    if (!memory(n, &m)) return 0;
    memset(h, 0, sizeof *h);
    if (n->f.clock && !n->f.clock(n->device, CLOCK_SM, &mhz)) h->clock_mhz = (int32_t)mhz;
    if (n->f.most && !n->f.most(n->device, CLOCK_SM, &mhz)) h->max_clock_mhz = (int32_t)mhz;
    if (n->f.reasons && !n->f.reasons(n->device, &bits)) say_why(bits, h->throttled, sizeof h->throttled);
    h->xid = dp_nvml_xid(n, 0);
    const int count = others(n, list);
    if (count < 0) h->others_bytes = (int64_t)m.used > held ? (int64_t)m.used - held : 0;
    for (int i = 0; i < count; i++) h->others_bytes += (int64_t)list[i].bytes;
    return 1;
}
