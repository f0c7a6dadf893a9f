/* What NVML tells of a GPU: clock, why it is slow, critical errors, who else has memory; and how it is told. An NVML made for it stands in. */
#include "../../dp/dp.h"
#include "../../nn/cuda/cuda.h"
#include "../../nn/cuda/nvml.h"
#include "cuda_rig.h"
#include "cusim.h"
#include <unistd.h>

typedef unsigned long long u64;
typedef struct process {
    unsigned pid;
    u64 bytes;
    unsigned gpu, compute;
} process;
typedef struct event {
    void *device;
    u64 type, data;
    unsigned gpu, compute;
} event;
int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **device);
int nvmlDeviceGetMemoryInfo(void *device, u64 *memory);
int nvmlDeviceGetClockInfo(void *device, int which, unsigned *mhz);
int nvmlDeviceGetMaxClockInfo(void *device, int which, unsigned *mhz);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, u64 *bits);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n, process *list);
int nvmlEventSetCreate(void **set);
int nvmlEventSetFree(void *set);
int nvmlDeviceRegisterEvents(void *device, u64 types, void *set);
int nvmlEventSetWait_v2(void *set, event *e, unsigned wait_ms);

/* The device is a pointer to the number of its bus. */
static struct {
    unsigned bus[256];
    int open, sets; /* that are not closed */
    int init_fails, create_fails, register_fails, list_fails;
    u64 used, reasons;
    process list[8];
    unsigned n_list;
    int xids[4], n_xids; /* that wait to be fetched */
    unsigned waited_ms;
} nvml;

static unsigned bus_of(const char *pci)
{
    unsigned domain, bus = 0;
    assert_int_equal(sscanf(pci, "%x:%x:", &domain, &bus), 2);
    assert_true(bus < 256);
    return bus;
}
int nvmlInit_v2(void)
{
    if (nvml.init_fails) return 1;
    (void)__atomic_add_fetch(&nvml.open, 1, __ATOMIC_RELAXED); /* workers close at once */
    return 0;
}
int nvmlShutdown(void)
{
    (void)__atomic_sub_fetch(&nvml.open, 1, __ATOMIC_RELAXED);
    return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **device)
{
    const unsigned bus = bus_of(pci);
    nvml.bus[bus] = bus;
    *device = &nvml.bus[bus];
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, u64 *memory)
{
    (void)device;
    memory[0] = 10000000000ull, memory[1] = memory[0] - nvml.used, memory[2] = nvml.used;
    return 0;
}
int nvmlDeviceGetClockInfo(void *device, int which, unsigned *mhz)
{
    assert_int_equal(which, 1); /* NVML_CLOCK_SM */
    *mhz = 1200 + 10 * *(unsigned *)device;
    return 0;
}
int nvmlDeviceGetMaxClockInfo(void *device, int which, unsigned *mhz)
{
    (void)device;
    assert_int_equal(which, 1);
    *mhz = 1980;
    return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, u64 *bits)
{
    (void)device;
    *bits = nvml.reasons;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n, process *list)
{
    (void)device;
    assert_true(*n >= nvml.n_list);
    memcpy(list, nvml.list, nvml.n_list * sizeof *list);
    *n = nvml.n_list;
    return nvml.list_fails;
}
int nvmlEventSetCreate(void **set)
{
    if (nvml.create_fails) return 999;
    (void)__atomic_add_fetch(&nvml.sets, 1, __ATOMIC_RELAXED);
    *set = &nvml.sets;
    return 0;
}
int nvmlEventSetFree(void *set)
{
    assert_ptr_equal(set, &nvml.sets);
    (void)__atomic_sub_fetch(&nvml.sets, 1, __ATOMIC_RELAXED);
    return 0;
}
int nvmlDeviceRegisterEvents(void *device, u64 types, void *set)
{
    assert_non_null(device);
    assert_ptr_equal(set, &nvml.sets);
    assert_int_equal(types, 8); /* nvmlEventTypeXidCriticalError */
    return nvml.register_fails ? 3 : 0;
}
int nvmlEventSetWait_v2(void *set, event *e, unsigned wait_ms)
{
    assert_ptr_equal(set, &nvml.sets);
    nvml.waited_ms += wait_ms;
    if (!nvml.n_xids) return 10; /* NVML_ERROR_TIMEOUT */
    *e = (event){NULL, 8, (u64)nvml.xids[--nvml.n_xids], 0, 0};
    return 0;
}

static dp_be_device *opened(int index)
{
    dp_be_device *d;
    dp_error err;
    if (cuda()->open(&d, &(dp_be_options){.index = index}, &err)) fail_msg("%s", err.text);
    return d;
}

static int fresh(void **state)
{
    (void)state;
    const int open = nvml.open, sets = nvml.sets;
    memset(&nvml, 0, sizeof nvml);
    nvml.open = open, nvml.sets = sets;
    return 0;
}

static void test_health(void **state)
{
    (void)state;
    const dp_backend *be = cuda();
    dp_device_health h;
    dp_be_device *d = opened(1);
    nvml.used = 3000000000ull + (u64)be->memory(d)->total_live;
    assert_int_equal(be->health(d, &h), 1);
    assert_int_equal(h.clock_mhz, 1200 + 10 * bus_of(d->pci));
    assert_int_equal(h.max_clock_mhz, 1980);
    assert_string_equal(h.throttled, "");
    assert_int_equal(h.xid, 0);
    assert_int_equal(h.others_bytes, 3000000000ll); /* the list does not have us: what is used and not ours */
    nvml.list[0] = (process){(unsigned)getpid(), 500000000, 0, 0};
    nvml.list[1] = (process){812, 2000000000, 0, 0};
    nvml.list[2] = (process){813, ~0ull, 0, 0}; /* not known */
    nvml.n_list = 3;
    nvml.xids[0] = 79, nvml.xids[1] = 31, nvml.n_xids = 2;
    assert_int_equal(be->health(d, &h), 1);
    assert_int_equal(h.others_bytes, 2000000000ll);
    assert_int_equal(h.xid, 79); /* the last one; and it is kept */
    assert_int_equal(be->health(d, &h), 1);
    assert_int_equal(h.xid, 79);
    assert_int_equal(nvml.waited_ms, 0);
    be->close(d);
    assert_int_equal(nvml.open + nvml.sets, 0);
}

static void test_reasons(void **state)
{
    (void)state;
    static const struct {
        u64 bits;
        const char *why;
    } cases[] = {{0x1, ""},
                 {0x2, ""},
                 {0x4, "power cap"},
                 {0x20, "heat"},
                 {0x48, "heat"},
                 {0x88, "power supply"},
                 {0x8, "hardware"},
                 {0x24, "power cap, heat"},
                 {0x10, "slower GPU in a group"}};
    dp_device_health h;
    dp_be_device *d = opened(0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        nvml.reasons = cases[i].bits;
        assert_int_equal(cuda()->health(d, &h), 1);
        assert_string_equal(h.throttled, cases[i].why);
    }
    cuda()->close(d);
}

/* Without events, without a list, without NVML. */
static void test_less(void **state)
{
    (void)state;
    dp_device_health h;
    nvml.create_fails = 1;
    dp_be_device *d = opened(0);
    assert_int_equal(cuda()->health(d, &h), 1);
    assert_int_equal(h.xid, 0);
    cuda()->close(d);
    nvml.create_fails = 0, nvml.register_fails = 1;
    d = opened(0);
    assert_int_equal(nvml.sets, 0);
    cuda()->close(d);
    nvml.init_fails = 1;
    d = opened(0);
    assert_int_equal(cuda()->health(d, &h), 0);
    cuda()->close(d);
    assert_int_equal(dp_nvml_xid(NULL, 0), 0);
    assert_int_equal(nvml.open, 0);
}

/* P04: who has the memory. */
static void test_out_of_memory(void **state)
{
    (void)state;
    dp_error err;
    void *p;
    dp_be_device *d = opened(0);
    nvml.list[0] = (process){(unsigned)getpid(), 500000000, 0, 0};
    nvml.list[1] = (process){812, 2000000000, 0, 0};
    nvml.n_list = 2;
    assert_int_equal(cuda()->alloc(d, DP_MEM_STAGING, (size_t)1 << 50, "rows", &p, &err), DP_ENOMEM);
    assert_non_null(strstr(err.text, "others hold 2.0 GB, 1 process (2.0 GB: 812); use"));
    for (unsigned i = 2; i < 7; i++) nvml.list[i] = (process){900 + i, 1000000, 0, 0};
    nvml.n_list = 7;
    assert_int_equal(cuda()->alloc(d, DP_MEM_STAGING, (size_t)1 << 50, "rows", &p, &err), DP_ENOMEM);
    assert_non_null(strstr(err.text, "6 processes (2.0 GB: 812, 1.0 MB: 902, 1.0 MB: 903, 1.0 MB: 904, ...); use"));
    nvml.list_fails = 1;
    assert_int_equal(cuda()->alloc(d, DP_MEM_STAGING, (size_t)1 << 50, "rows", &p, &err), DP_ENOMEM);
    assert_null(strstr(err.text, "812"));
    cuda()->close(d);
}

/* The Xid is in the text of the loss, and of every later call. */
static void test_lost(void **state)
{
    (void)state;
    dp_error err;
    dp_be_device *d = opened(2);
    assert_int_equal(cuda()->failure(d, &err), DP_OK);
    nvml.xids[0] = 31, nvml.n_xids = 1;
    assert_int_equal(dp_cuda_check(d, cudaErrorIllegalAddress, "cudaEventQuery(e)", &err), DP_EDEVICE_LOST);
    assert_non_null(strstr(err.text, "The driver reported Xid 31."));
    assert_int_equal(cuda()->failure(d, &err), DP_EDEVICE_LOST);
    assert_non_null(strstr(err.text, "was lost before (cudaEventQuery returned 700, Xid 31)"));
    cuda()->close(d);
}

/* Through the engine, from the caller's thread; CPU devices tell nothing. */
static void test_engine(void **state)
{
    (void)state;
    static const char *const use[] = {"cuda:0,cuda:1", "cpu:0,cpu:1"};
    for (int i = 0; i < 2; i++) {
        dp_engine *e;
        dp_error err;
        dp_device_health h;
        dp_graph *g = dp_graph_new();
        dp_config *c = dp_config_new(NULL, NULL);
        dp_layer(g, "input", "8");
        dp_layer(g, "fc", "linear out=4");
        assert_int_equal(dp_graph_finish(g, &err), DP_OK);
        assert_int_equal(dp_config_set(c, "devices.use", use[i]), DP_OK);
        assert_int_equal(dp_config_set(c, "optimizer.lr", "0.1"), DP_OK);
        assert_int_equal(dp_config_set(c, "data.batch_size", "8"), DP_OK);
        if (dp_engine_open(&e, g, c, &err)) fail_msg("%s", err.text);
        nvml.reasons = 0x4;
        for (int d = 0; d < 2; d++) assert_int_equal(dp_engine_health(e, d, &h), !i);
        if (!i) assert_true(h.clock_mhz >= 1200);
        if (!i) assert_string_equal(h.throttled, "power cap");
        assert_int_equal(dp_engine_health(e, 2, &h), 0);
        assert_int_equal(dp_engine_health(NULL, 0, &h), 0);
        assert_int_equal(dp_engine_close(e, &err), DP_OK);
        dp_config_free(c);
        dp_graph_free(g);
    }
    assert_int_equal(nvml.open + nvml.sets, 0);
}

int main(void)
{
    setenv("CUSIM_DEVICES", "3", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_health, fresh), cmocka_unit_test_setup(test_reasons, fresh),
        cmocka_unit_test_setup(test_less, fresh),   cmocka_unit_test_setup(test_out_of_memory, fresh),
        cmocka_unit_test_setup(test_lost, fresh),   cmocka_unit_test_setup(test_engine, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
