/* Devices, streams, events, memory and failures of the CUDA backend, on simulated GPUs. */
#include "../../dp/base/clock.h"
#include "../../nn/cuda/cuda.h"
#include "../../nn/cuda/near.h"
#include "cuda_rig.h"
#include "cusim.h"
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COUNT = 4096 };

/* An NVML: a context takes 300 MB of the device of which the address is asked. */
int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **device);
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory);
static int nvml_open, nvml_asked, nvml_fails;
static char nvml_pci[16];
int nvmlInit_v2(void)
{
    nvml_open++;
    return 0;
}
int nvmlShutdown(void)
{
    nvml_open--;
    return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **device)
{
    snprintf(nvml_pci, sizeof nvml_pci, "%s", pci);
    *device = &nvml_open;
    return nvml_fails;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory)
{
    assert_ptr_equal(device, &nvml_open);
    memory[1] = 4000000000ull - (nvml_asked++ % 2 ? 300000000ull : 0);
    return 0;
}

/* -- order and time -- */

static void test_events(void **state)
{
    (void)state;
    const dp_backend *be = cuda();
    dp_error err;
    rig r;
    dp_be_stream *other;
    float *x = floats(COUNT, 2);
    rig_open(&r, be);
    assert_int_equal(be->stream_open(r.device, 1, &other, &err), DP_OK);
    const int64_t created = be->created(r.device);
    assert_int_equal(created, 3); /* two streams, an event */
    const double begin = dp_now();
    float *a = put(&r, x, COUNT * 4), *b = put(&r, NULL, COUNT * 4);
    assert_int_equal(be->record(r.stream, r.event), DP_OK);
    assert_int_equal(be->wait(other, r.event), DP_OK);
    assert_int_equal(be->copy(other, b, a, COUNT * 4), DP_OK);
    assert_int_equal(be->record(other, r.event), DP_OK);
    assert_int_equal(be->wait(r.stream, r.event), DP_OK);
    assert_memory_equal(get(&r, b, COUNT * 4), x, COUNT * 4);
    const double when = be->when(r.event), end = dp_now();
    assert_true(when > begin - 0.01 && when < end + 0.01); /* the reference is known to less than that */
    assert_int_equal(be->created(r.device), created);
    be->stream_close(other);
    free(x);
    rig_close(&r);
}

/* -- memory -- */

static void test_memory(void **state)
{
    (void)state;
    const dp_backend *be = cuda();
    dp_be_options o = {.memory_limit = 1 << 20};
    dp_be_device *d;
    dp_error err;
    void *p = NULL, *q = NULL;
    nvml_fails = 1;
    assert_int_equal(be->open(&d, &o, &err), DP_OK);
    assert_int_equal(be->alloc(d, DP_MEM_PARAMETERS, 1000000, "parameters", &p, &err), DP_OK);
    assert_true((uintptr_t)p % be->alignment == 0);
    assert_int_equal(be->alloc(d, DP_MEM_ACTIVATIONS, 100000, "activations of conv1", &q, &err), DP_ENOMEM);
    assert_non_null(strstr(err.text, "activations of conv1"));
    assert_int_equal(be->memory(d)->total_live, 1000000);
    be->free(d, DP_MEM_PARAMETERS, p, 1000000);
    assert_int_equal(be->memory(d)->total_live, 0);
    assert_int_equal(be->memory(d)->peak[DP_MEM_PARAMETERS], 1000000);
    be->close(d);

    o.memory_limit = 0;
    assert_int_equal(be->open(&d, &o, &err), DP_OK);
    nvml_fails = 0;
    assert_int_equal(be->alloc(d, DP_MEM_WORKSPACE, (size_t)1 << 50, "too much", &p, &err), DP_ENOMEM);
    assert_non_null(strstr(err.text, "cuda:0"));
    assert_non_null(strstr(err.text, "too much (workspace) wants"));
    assert_non_null(strstr(err.text, "others hold"));
    assert_int_equal(be->memory(d)->total_live, 0);
    assert_int_equal(be->alloc(d, DP_MEM_WORKSPACE, 0, "nothing", &p, &err), DP_OK); /* the device goes on */
    be->free(d, DP_MEM_WORKSPACE, p, 0);
    be->free(d, DP_MEM_WORKSPACE, NULL, 5);
    be->bind(d);
    be->close(d);
    be->close(NULL);

    o.index = 63;
    assert_int_equal(be->open(&d, &o, &err), DP_EDEVICE);
    assert_non_null(strstr(err.text, "cuda:63"));
}

static void test_enumerate(void **state)
{
    (void)state;
    const dp_backend *be = cuda();
    dp_device_info info;
    int n = 0, driver;
    assert_int_equal(dp_cuda_count(&n, &driver, NULL), DP_OK);
    for (int i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "cuda:%d", i);
        assert_int_equal(be->enumerate(i, &info), 1);
        assert_string_equal(info.name, name);
        assert_true(info.usable && info.memory > 0 && info.units > 0 && *info.pci && !strncmp(info.uuid, "GPU-", 4));
        assert_int_equal(strlen(info.uuid), 40);
    }
    assert_int_equal(be->enumerate(n, &info), 0);
    assert_int_equal(be->enumerate(-1, &info), 0);
}

/* What the context takes is counted as the library's, and against the limit. */
static void test_context(void **state)
{
    (void)state;
    const dp_backend *be = cuda();
    dp_be_options o = {.index = 0};
    dp_be_device *d;
    dp_error err;
    assert_int_equal(be->open(&d, &o, &err), DP_OK);
    assert_true(be->memory(d)->live[DP_MEM_LIBRARY] >= 300000000);
    assert_string_equal(nvml_pci, d->pci);
    be->close(d);
    assert_int_equal(nvml_open, 0);
    o.memory_limit = 200000000;
    assert_int_equal(be->open(&d, &o, &err), DP_ENOMEM);
    assert_non_null(strstr(err.text, "CUDA context (library) wants 300.0 MB"));
    nvml_fails = 1;
    o.memory_limit = 0;
    assert_int_equal(be->open(&d, &o, &err), DP_OK);
    assert_true(be->memory(d)->live[DP_MEM_LIBRARY] < 300000000);
    be->close(d);
    nvml_fails = 0;
}

/* What libraries take beside our allocations is theirs. */
static void test_library(void **state)
{
    (void)state;
    dp_error err;
    void *theirs, *ours;
    rig r;
    rig_open(&r, cuda());
    const int64_t before = r.be->memory(r.device)->live[DP_MEM_LIBRARY];
    const dp_cuda_mark mark = dp_cuda_mark_memory(r.device);
    assert_int_equal(cudaMalloc(&theirs, 1 << 20), cudaSuccess);
    assert_int_equal(r.be->alloc(r.device, DP_MEM_STAGING, 2 << 20, "ours", &ours, &err), DP_OK);
    assert_int_equal(dp_cuda_book_library(r.device, &mark, "handles", &err), DP_OK);
    assert_int_equal(r.be->memory(r.device)->live[DP_MEM_LIBRARY] - before, 1 << 20);
    assert_int_equal(dp_cuda_book_library(r.device, &(dp_cuda_mark){0, 0}, "not known", &err), DP_OK);
    assert_int_equal(r.be->memory(r.device)->live[DP_MEM_LIBRARY] - before, 1 << 20);
    r.be->free(r.device, DP_MEM_STAGING, ours, 2 << 20);
    assert_int_equal(cudaFree(theirs), cudaSuccess);
    rig_close(&r);
}

/* One line for a device that cannot be opened. */
static void test_refused(void **state)
{
    (void)state;
    const dp_be_options o = {.index = 0};
    dp_be_device *d;
    dp_error err;
    cusim_fault("fail:cudaSetDevice:1:46");
    assert_int_equal(cuda()->open(&d, &o, &err), DP_EDEVICE);
    assert_non_null(strstr(err.text, "is busy: another process has it"));
    cusim_release();
    setenv("CUSIM_DRIVER", "11080", 1);
    assert_int_equal(cuda()->open(&d, &o, &err), DP_EDEVICE);
    assert_non_null(strstr(err.text, "needs a newer driver: it is for CUDA 11.8, this build for"));
    unsetenv("CUSIM_DRIVER");
    assert_int_equal(cuda()->open(&d, &o, &err), DP_OK);
    cuda()->close(d);
}

static void write_list(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_near(void **state)
{
    (void)state;
    char root[] = "/tmp/dp_near_XXXXXX", folder[64], path[96], list[32];
    cpu_set_t before, now;
    int first = 0;
    assert_non_null(mkdtemp(root));
    snprintf(folder, sizeof folder, "%s/0000:0a:00.0", root);
    snprintf(path, sizeof path, "%s/local_cpulist", folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(pthread_getaffinity_np(pthread_self(), sizeof before, &before), 0);
    while (!CPU_ISSET((size_t)first, &before)) first++;
    assert_int_equal(dp_cuda_go_near(root, "0000:0A:00.0"), 0); /* no list */
    write_list(path, "1022-1023,9999\n");
    if (!CPU_ISSET(1022, &before)) assert_int_equal(dp_cuda_go_near(root, "0000:0A:00.0"), 0); /* none of ours */
    write_list(path, "?\n");
    assert_int_equal(dp_cuda_go_near(root, "0000:0A:00.0"), 0);
    snprintf(list, sizeof list, "1020,%d-%d\n", first, first);
    write_list(path, list);
    assert_int_equal(dp_cuda_go_near(root, "0000:0A:00.0"), 1);
    assert_int_equal(pthread_getaffinity_np(pthread_self(), sizeof now, &now), 0);
    assert_true(CPU_COUNT(&now) == 1 && CPU_ISSET((size_t)first, &now));
    assert_int_equal(pthread_setaffinity_np(pthread_self(), sizeof before, &before), 0);
    unlink(path);
    rmdir(folder);
    rmdir(root);
}

/* -- several devices -- */

static void test_peers(void **state)
{
    (void)state;
    enum { N = 1000 };
    const dp_backend *be = cuda();
    rig a, b;
    float *x = floats(N, 3);
    rig_open(&a, be);
    const dp_be_options o = {.index = 1};
    dp_error err;
    memset(&b, 0, sizeof b);
    b.be = be;
    assert_int_equal(be->open(&b.device, &o, &err), DP_OK);
    assert_int_equal(be->stream_open(b.device, 0, &b.stream, &err), DP_OK);
    assert_int_equal(be->event_open(b.device, &b.event, &err), DP_OK);
    assert_int_equal(be->reads_peer(b.device, a.device), 1);
    assert_int_equal(be->reads_peer(b.device, a.device), 1); /* asked again: already there, and no error stays behind */
    assert_int_equal(be->reads_peer(b.device, b.device), 1);
    cusim_fault("nopeer:1:2");
    assert_int_equal(be->reads_peer(b.device, &(dp_be_device){.gpu = 2}), 0);
    cusim_release();
    cusim_fault("peers:1"); /* it has one */
    assert_int_equal(be->reads_peer(b.device, &(dp_be_device){.gpu = 2}), 0);
    cusim_release();
    float *to = put(&b, NULL, N * 4);
    be->bind(a.device);
    const float *from = put(&a, x, N * 4);
    assert_int_equal(be->record(a.stream, a.event), DP_OK);
    be->bind(b.device);
    assert_int_equal(be->wait(b.stream, a.event), DP_OK);
    assert_int_equal(be->copy(b.stream, to, from, N * 4), DP_OK);
    assert_memory_equal(get(&b, to, N * 4), x, N * 4);
    rig_close(&b);
    be->bind(a.device);
    rig_close(&a);
    free(x);
}

/* -- failures -- */

static void test_status(void **state)
{
    (void)state;
    static const int hard[] = {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 911, 999};
    static const int soft[] = {1, 2, 46, 98, 217, 400, 701, 704, 711, 720, 801, 900, 909};
    dp_error err;
    rig r;
    rig_open(&r, cuda());
    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++) assert_true(dp_cuda_hard((cudaError_t)hard[i]));
    for (size_t i = 0; i < sizeof soft / sizeof *soft; i++) {
        assert_false(dp_cuda_hard((cudaError_t)soft[i]));
        assert_int_equal(dp_cuda_check(r.device, (cudaError_t)soft[i], "cudaSomething(x)", &err),
                         soft[i] == 2 ? DP_ENOMEM : DP_EDEVICE);
        assert_non_null(strstr(err.text, "cudaSomething returned"));
    }
    assert_int_equal(dp_cuda_check(r.device, cudaSuccess, "", NULL), DP_OK);
    rig_close(&r); /* alive */
}

/* After a hard failure every call says so, and none reaches the device: closing leaves everything where it is. */
static void test_lost(void **state)
{
    (void)state;
    const dp_backend *be = cuda();
    dp_error err;
    void *p;
    dp_be_stream *stream;
    dp_be_event *event;
    rig r;
    rig_open(&r, be);
    float *x = put(&r, NULL, 64);
    rig_finish(&r);
    assert_int_equal(dp_cuda_check(r.device, cudaErrorIllegalAddress, "cudaEventQuery(e)", &err), DP_EDEVICE_LOST);
    assert_non_null(strstr(err.text, "cudaEventQuery returned 700"));
    assert_int_equal(be->alloc(r.device, DP_MEM_STAGING, 64, "x", &p, &err), DP_EDEVICE_LOST);
    assert_non_null(strstr(err.text, "was lost before (cudaEventQuery returned 700)"));
    assert_int_equal(be->stream_open(r.device, 0, &stream, &err), DP_EDEVICE_LOST);
    assert_int_equal(be->event_open(r.device, &event, &err), DP_EDEVICE_LOST);
    assert_int_equal(be->record(r.stream, r.event), DP_EDEVICE_LOST);
    assert_int_equal(be->wait(r.stream, r.event), DP_EDEVICE_LOST);
    assert_int_equal(be->done(r.event), -DP_EDEVICE_LOST);
    assert_int_equal(be->copy(r.stream, x, x + 8, 32), DP_EDEVICE_LOST);
    assert_int_equal(be->fill(r.stream, x, 0, 64), DP_EDEVICE_LOST);
    assert_int_equal(be->pin(r.device, x, 64, &err), DP_EDEVICE_LOST);
    assert_int_equal(be->checksum(r.stream, x, 16, NULL), DP_EDEVICE_LOST);
    assert_int_equal(be->sumsq(r.stream, x, 16, NULL), DP_EDEVICE_LOST);
    assert_int_equal(be->forward(NULL, r.stream, NULL, NULL, NULL), DP_EDEVICE_LOST);
    assert_int_equal(be->backward(NULL, r.stream, NULL, NULL, NULL), DP_EDEVICE_LOST);
    assert_int_equal(be->partial(NULL, r.stream, NULL, NULL, NULL, 0), DP_EDEVICE_LOST);
    assert_int_equal(be->reads_peer(r.device, &(dp_be_device){.gpu = 1}), 0);
    const double now = dp_now();
    assert_true(fabs(be->when(r.event) - now) < 1); /* nothing better is known */
    be->bind(r.device);
    be->unpin(r.device, x);
    be->free(r.device, DP_MEM_STAGING, x, 64);
    be->event_close(r.event);
    be->stream_close(r.stream);
    be->close(r.device);
}

/* Everything that a worker opens, then closes. */
static dp_status open_and_close(dp_error *err)
{
    const dp_backend *be = cuda();
    const dp_be_options o = {.index = 1};
    dp_be_device *d = NULL;
    dp_be_stream *s = NULL;
    dp_be_event *e = NULL;
    void *p = NULL, *h = NULL;
    dp_status status = be->open(&d, &o, err);
    if (status) return status;
    status = be->stream_open(d, 1, &s, err);
    if (!status) status = be->event_open(d, &e, err);
    if (!status) status = be->alloc(d, DP_MEM_STAGING, 4096, "rows", &p, err);
    if (!status) status = be->alloc_pinned(4096, &h, err);
    if (!status) status = be->pin(d, h, 4096, err);
    const int pinned_now = !status;
    if (!status) status = be->copy(s, p, h, 4096);
    if (!status) status = be->fill(s, p, 0, 64);
    if (!status) status = be->record(s, e);
    if (!status) status = be->wait(s, e);
    for (int done = 0; !status && done != 1;)
        if ((done = be->done(e)) < 0) status = (dp_status)-done;
    if (!status) (void)be->when(e);
    be->free(d, DP_MEM_STAGING, p, 4096); /* waits for the copy */
    if (pinned_now) be->unpin(d, h);
    be->free_pinned(h, 4096);
    be->event_close(e);
    be->stream_close(s);
    be->close(d);
    return status;
}

/* Each call fails in turn: the error comes back, and after closing nothing is left. Which calls there are is asked of the simulator. */
static void test_each_call_fails(void **state)
{
    (void)state;
    static const struct {
        const char *api;
        int tolerated; /* a count or a time is then not known, and the work goes on */
    } calls[] = {{"cudaSetDevice", 0},
                 {"cudaDeviceGetAttribute", 0},
                 {"cudaMemGetInfo", 1},
                 {"cudaStreamCreateWithFlags", 0},
                 {"cudaStreamCreateWithPriority", 0},
                 {"cudaDeviceGetStreamPriorityRange", 0},
                 {"cudaEventCreateWithFlags", 0},
                 {"cudaEventRecord", 0},
                 {"cudaEventQuery", 0},
                 {"cudaMalloc", 0},
                 {"cudaHostRegister", 0},
                 {"cudaMemcpyAsync", 0},
                 {"cudaMemsetAsync", 0},
                 {"cudaStreamWaitEvent", 0},
                 {"cudaEventElapsedTime", 1}};
    dp_error err;
    cusim_counters c, before; /* what a lost device left is there still */
    cusim_read(&before);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        cusim_reset();
        assert_int_equal(open_and_close(&err), DP_OK);
        const int64_t n = cusim_calls(calls[i].api);
        /* how often the clock tries depends on time */
        const int64_t most = !strcmp(calls[i].api, "cudaEventRecord") || !strcmp(calls[i].api, "cudaEventQuery") ? 1 : 8;
        assert_true(n > 0);
        for (int64_t k = 1; k <= n && k <= most; k++) {
            char fault[64];
            const int code = !strcmp(calls[i].api, "cudaMalloc") ? cudaErrorMemoryAllocation : cudaErrorNotSupported;
            snprintf(fault, sizeof fault, "fail:%s:%lld:%d", calls[i].api, (long long)k, code);
            cusim_fault(fault);
            const dp_status status = open_and_close(&err);
            cusim_release();
            if (!calls[i].tolerated) assert_int_equal(status, code == cudaErrorMemoryAllocation ? DP_ENOMEM : DP_EDEVICE);
            cusim_read(&c);
            assert_int_equal(c.live_allocations, before.live_allocations);
            assert_int_equal(c.live_pinned, before.live_pinned);
            assert_int_equal(c.live_streams, before.live_streams);
            assert_int_equal(c.live_events, before.live_events);
        }
    }
    assert_int_equal(open_and_close(&err), DP_OK);
}

/* A device that nobody chose gets no context (P02), nor does listing make one. First: contexts stay. */
static void test_unchosen(void **state)
{
    (void)state;
    dp_device_info info;
    dp_error err;
    cusim_counters c;
    cusim_reset();
    for (int i = 0; cuda()->enumerate(i, &info); i++) continue;
    assert_int_equal(cusim_has_context(0) + cusim_has_context(1) + cusim_has_context(2), 0);
    assert_int_equal(open_and_close(&err), DP_OK);
    assert_int_equal(cusim_has_context(0), 0);
    assert_int_equal(cusim_has_context(1), 1);
    assert_int_equal(cusim_has_context(2), 0);
    cusim_read(&c);
    assert_int_equal(c.contexts, 1);
    assert_int_equal(c.implicit, 0);
}

/* In a step: nothing is made, nothing waits, one launch each. */
static void test_steady(void **state)
{
    (void)state;
    enum { N = 8192 };
    const dp_backend *be = cuda();
    const dp_be_options o = {.index = 1};
    const dp_optimizer adam = {.kind = DP_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    const dp_loss loss = {DP_LOSS_CROSS_ENTROPY, 1, 16, 0, INT64_MIN};
    const dp_range range = {0, N, 1};
    const dp_bn_layer layer = {0, 16, 32, 16, 4, 0.1};
    const int64_t shape[3] = {8, 8, 1}, rows = 128;
    const dp_run run = {.rows = 128, .inv_count = 1, .lr = 0.1};
    dp_error err;
    cusim_counters c;
    rig r;
    memset(&r, 0, sizeof r);
    r.be = be;
    assert_int_equal(be->open(&r.device, &o, &err), DP_OK);
    assert_int_equal(be->stream_open(r.device, 0, &r.stream, &err), DP_OK);
    assert_int_equal(be->event_open(r.device, &r.event, &err), DP_OK);
    float *zero = calloc(N, 4);
    assert_non_null(zero);
    float *a = put(&r, zero, N * 4), *b = put(&r, zero, N * 4), *m = put(&r, zero, N * 4), *v = put(&r, zero, N * 4);
    double *chunks = put(&r, zero, 64);
    void *bytes = put(&r, zero, N), *sums = put(&r, zero, 64);
    dp_verdict *verdict = put(&r, zero, sizeof *verdict);
    const dp_run *run_device = put(&r, &run, sizeof run);
    const float *two[2] = {a, b};
    rig_finish(&r);
    cusim_reset();
    assert_int_equal(be->convert(r.stream, &run, a, DP_F32, bytes, DP_U8, DP_HWC, shape, NULL, NULL), DP_OK);
    assert_int_equal(be->loss(r.stream, &loss, rows, a, bytes, DP_U8, b, sums), DP_OK);
    assert_int_equal(be->sum(r.stream, a, two, 2, N), DP_OK);
    assert_int_equal(be->sumsq(r.stream, a, N, chunks), DP_OK);
    assert_int_equal(be->norm(r.stream, chunks, 2, run_device, &adam, verdict), DP_OK);
    assert_int_equal(be->update(r.stream, &adam, &range, 1, 0, N, b, a, m, v, run_device, verdict), DP_OK);
    assert_int_equal(be->checksum(r.stream, a, N, (uint64_t *)chunks), DP_OK);
    assert_int_equal(be->pool(r.stream, b, two, &(int64_t[2]){1, 1}[0], 2, 16), DP_OK);
    assert_int_equal(be->merge(r.stream, m, v, &layer, 1, two, &(int64_t[2]){1, 1}[0], 2), DP_OK);
    rig_finish(&r);
    cusim_read(&c);
    assert_int_equal(c.launches, 9);
    assert_int_equal(c.allocations + c.pinned + c.streams + c.events + c.descriptors, 0);
    assert_int_equal(c.blocking, 0);
    assert_int_equal(c.copies + c.fills + c.library_calls, 0);
    assert_int_equal(c.implicit, 0);
    free(zero);
    rig_close(&r);
}

/* Work that ends the context: a later call, another one, says so, and closing touches nothing. Last: the device stays dead. */
static void test_dies(void **state)
{
    (void)state;
    dp_error err;
    int done;
    rig r;
    rig_open(&r, cuda());
    float *x = put(&r, NULL, 64);
    rig_finish(&r);
    cusim_fault("die:0:1:700");
    (void)r.be->fill(r.stream, x, 0, 64);
    dp_status status = r.be->record(r.stream, r.event);
    while (!status && !(done = r.be->done(r.event))) sched_yield();
    if (!status) status = (dp_status)-done;
    assert_int_equal(status, DP_EDEVICE_LOST);
    void *p;
    assert_int_equal(r.be->alloc(r.device, DP_MEM_STAGING, 64, "x", &p, &err), DP_EDEVICE_LOST);
    assert_non_null(strstr(err.text, "700"));
    cusim_reset();
    r.be->free(r.device, DP_MEM_STAGING, x, 64);
    r.be->event_close(r.event);
    r.be->stream_close(r.stream);
    r.be->close(r.device);
    assert_int_equal(cusim_calls("cudaFree") + cusim_calls("cudaStreamDestroy") + cusim_calls("cudaEventDestroy"), 0);
}

int main(void)
{
    setenv("CUSIM_DEVICES", "3", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unchosen),        cmocka_unit_test(test_steady),    cmocka_unit_test(test_events),
        cmocka_unit_test(test_memory),          cmocka_unit_test(test_enumerate), cmocka_unit_test(test_context),
        cmocka_unit_test(test_library),         cmocka_unit_test(test_refused),   cmocka_unit_test(test_near),
        cmocka_unit_test(test_peers),           cmocka_unit_test(test_status),    cmocka_unit_test(test_lost),
        cmocka_unit_test(test_each_call_fails), cmocka_unit_test(test_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
