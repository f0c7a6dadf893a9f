/* Every call that an engine makes to CUDA, cublasLt and cuDNN, from open to close, fails once in turn with a code that leaves the context
 * alive. Either the call of the library returns the error, with the device; or it did not matter, and the trained bytes are as they were. The engine
 * closes, and nothing is left: no memory, no stream, no event, no graph, no handle, no thread. */
#include "engine_cuda.h"
#include <unistd.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
enum { WATCHDOG_S = 300 };
enum { MEMORY = 2, UNSUPPORTED = 801, LT_FAILED = 13, DNN_UNSUPPORTED = 3000, DNN_FAILED = 5000 };

static const struct {
    const char *api;
    int code;
    int gives_back; /* what it should give back is there still when it fails */
    int may_not;    /* training goes on without it */
} calls[] = {
    {"cudaSetDevice", UNSUPPORTED, 0, 0},
    {"cudaDeviceGetAttribute", UNSUPPORTED, 0, 1},
    {"cudaDeviceGetStreamPriorityRange", UNSUPPORTED, 0, 0},
    {"cudaDeviceCanAccessPeer", UNSUPPORTED, 0, 1},
    {"cudaDeviceEnablePeerAccess", UNSUPPORTED, 0, 1},
    {"cudaMemGetInfo", UNSUPPORTED, 0, 1},
    {"cudaMalloc", MEMORY, 0, 0},
    {"cudaFree", UNSUPPORTED, 1, 1},
    {"cudaHostRegister", MEMORY, 0, 1},
    {"cudaHostUnregister", UNSUPPORTED, 1, 1},
    {"cudaStreamCreateWithPriority", UNSUPPORTED, 0, 0},
    {"cudaStreamCreateWithFlags", UNSUPPORTED, 0, 0},
    {"cudaStreamDestroy", UNSUPPORTED, 1, 1},
    {"cudaStreamWaitEvent", UNSUPPORTED, 0, 0},
    {"cudaStreamBeginCapture", UNSUPPORTED, 0, 1},
    {"cudaStreamEndCapture", UNSUPPORTED, 0, 1},
    {"cudaEventCreateWithFlags", UNSUPPORTED, 0, 0},
    {"cudaEventDestroy", UNSUPPORTED, 1, 1},
    {"cudaEventRecord", UNSUPPORTED, 0, 0},
    {"cudaEventRecordWithFlags", UNSUPPORTED, 0, 1},
    {"cudaEventQuery", UNSUPPORTED, 0, 0},
    {"cudaEventElapsedTime", UNSUPPORTED, 0, 1},
    {"cudaMemcpyAsync", UNSUPPORTED, 0, 0},
    {"cudaMemsetAsync", UNSUPPORTED, 0, 0},
    {"cudaGraphInstantiate", MEMORY, 0, 1},
    {"cudaGraphGetNodes", UNSUPPORTED, 0, 1},
    {"cudaGraphNodeGetType", UNSUPPORTED, 0, 1},
    {"cudaGraphEventRecordNodeGetEvent", UNSUPPORTED, 0, 1},
    {"cudaGraphExecEventRecordNodeSetEvent", UNSUPPORTED, 0, 0},
    {"cudaGraphLaunch", UNSUPPORTED, 0, 0},
    {"cudaGraphExecDestroy", UNSUPPORTED, 1, 1},
    {"cudaGraphDestroy", UNSUPPORTED, 1, 1},
    {"cublasLtCreate", LT_FAILED, 0, 0},
    {"cublasLtDestroy", LT_FAILED, 1, 1},
    {"cublasLtMatmulDescCreate", LT_FAILED, 0, 0},
    {"cublasLtMatmulDescSetAttribute", LT_FAILED, 0, 1},
    {"cublasLtMatmulDescDestroy", LT_FAILED, 1, 1},
    {"cublasLtMatrixLayoutCreate", LT_FAILED, 0, 0},
    {"cublasLtMatrixLayoutDestroy", LT_FAILED, 1, 1},
    {"cublasLtMatmulPreferenceCreate", LT_FAILED, 0, 0},
    {"cublasLtMatmulPreferenceDestroy", LT_FAILED, 1, 1},
    {"cublasLtMatmulAlgoGetHeuristic", LT_FAILED, 0, 1},
    {"cublasLtMatmul", LT_FAILED, 0, 1},
    {"cudnnCreate", DNN_FAILED, 0, 1},
    {"cudnnDestroy", DNN_FAILED, 1, 1},
    {"cudnnSetStream", DNN_FAILED, 0, 1},
    {"cudnnCreateTensorDescriptor", DNN_FAILED, 0, 1},
    {"cudnnSetTensor4dDescriptor", DNN_UNSUPPORTED, 0, 1},
    {"cudnnDestroyTensorDescriptor", DNN_FAILED, 1, 1},
    {"cudnnSetConvolution2dDescriptor", DNN_UNSUPPORTED, 0, 1},
    {"cudnnGetConvolutionForwardWorkspaceSize", DNN_UNSUPPORTED, 0, 1},
    {"cudnnConvolutionForward", DNN_FAILED, 0, 1},
    {"cudnnConvolutionBackwardData", DNN_FAILED, 0, 1},
    {"cudnnConvolutionBackwardFilter", DNN_FAILED, 0, 1},
};

enum { FINE, OPEN, STEP, EVALUATE, CLOSE };
typedef struct life {
    int failed_in;
    dp_status status;
    dp_error err;
    float *weights;
    int64_t n;
} life;

/* Open, four steps (the third makes graphs, the fourth launches them), an evaluation, close. */
static life live(const rig_data *data, const char *settings)
{
    life l = {.failed_in = FINE};
    rig r;
    dp_result sum = {0};
    dp_batch all = rig_batch(data, 0, 7);
    if ((l.status = rig_try(&r, &rig_conv, cuda(), 2, 0, settings, &l.err))) l.failed_in = OPEN;
    for (int i = 0; i < 4 && !l.failed_in; i++) {
        dp_batch batch = rig_batch(data, i, 12);
        if ((l.status = dp_engine_step(r.e, &batch, NULL, &l.err))) l.failed_in = STEP;
    }
    if (!l.failed_in && (l.status = dp_engine_eval(r.e, &all, &sum, &l.err))) l.failed_in = EVALUATE;
    if (!l.failed_in) {
        int64_t at = 0, count;
        l.n = 0;
        for (int i = 0; i < r.graph->n_tensors; i++) l.n += r.graph->tensor[i].count;
        l.weights = calloc((size_t)l.n, 4);
        for (int i = 0; i < r.graph->n_tensors && !l.failed_in; i++, at += count) {
            count = r.graph->tensor[i].count;
            if ((l.status = dp_engine_get(r.e, r.graph->tensor[i].name, l.weights + at, count, &l.err))) l.failed_in = EVALUATE;
        }
    }
    dp_error closing;
    if (dp_engine_close(r.e, &closing)) {
        l.failed_in = CLOSE;
        l.err = closing;
    }
    dp_graph_free(r.graph);
    dp_config_free(r.config);
    return l;
}

/* Told one by one; the test fails at its end. */
static int problems;
#define PROBLEM(...) (print_error(__VA_ARGS__), print_error("\n"), problems++)

static void nothing_is_left(const cusim_counters *before, int gives_back, const char *what)
{
    cusim_counters c = counted();
    int64_t left = c.live_allocations - before->live_allocations + c.live_pinned - before->live_pinned + c.live_streams -
                   before->live_streams + c.live_events - before->live_events + c.live_graphs - before->live_graphs +
                   c.live_handles - before->live_handles + c.live_descriptors - before->live_descriptors;
    if (left < 0 || left > gives_back)
        PROBLEM("%s: left are %lld allocations, %lld pinned, %lld streams, %lld events, %lld graphs, %lld handles, %lld "
                "descriptors",
                what, (long long)(c.live_allocations - before->live_allocations),
                (long long)(c.live_pinned - before->live_pinned), (long long)(c.live_streams - before->live_streams),
                (long long)(c.live_events - before->live_events), (long long)(c.live_graphs - before->live_graphs),
                (long long)(c.live_handles - before->live_handles), (long long)(c.live_descriptors - before->live_descriptors));
}

/* Threads of the simulator end a moment after what they served. */
static int settled_threads(void)
{
    int n = rig_threads();
    for (int same = 0; same < 5; same++) {
        usleep(10000);
        const int now = rig_threads();
        if (now != n) same = 0;
        n = now;
    }
    return n;
}

static void every_call_fails_once(void **state)
{
    const char *settings = *state;
    const char *sanitizer = getenv("DP_SANITIZER");
    const int asan = sanitizer && !strcmp(sanitizer, "asan");
    if (sanitizer && strstr(settings, "host") && !rig_full()) skip();
    rig_data data = rig_data_new(&rig_conv, 32, 5);
    life good = live(&data, settings);
    int reached[CLOSE + 1] = {0};
    if (good.failed_in) fail_msg("%s", good.err.text);
    int threads = settled_threads();
    for (int i = 0; i < COUNT(calls); i++) {
        if (asan && calls[i].gives_back) continue; /* what is not given back is a leak */
        cusim_reset();
        life count = live(&data, settings);
        int64_t n = cusim_calls(calls[i].api), step = rig_full() ? 1 : n / 2 > 0 ? n / 2 : 1;
        free(count.weights);
        for (int64_t k = 1; k <= n; k += step) {
            char fault[80], what[160];
            cusim_counters before = counted();
            alarm(WATCHDOG_S);
            snprintf(fault, sizeof fault, "fail:%s:%lld:%d", calls[i].api, (long long)k, calls[i].code);
            cusim_fault(fault);
            life l = live(&data, settings);
            cusim_release();
            snprintf(what, sizeof what, "%s number %lld of %lld, %s", calls[i].api, (long long)k, (long long)n, settings);
            reached[l.failed_in]++;
            if (l.failed_in == CLOSE) PROBLEM("%s: closing: %s", what, l.err.text);
            if (l.failed_in) {
                if (l.err.device != 0 && l.err.device != 1) PROBLEM("%s: device %d: %s", what, l.err.device, l.err.text);
                if (l.status == DP_EDEVICE_LOST) PROBLEM("%s: lost: %s", what, l.err.text);
                if (l.err.code != (int32_t)l.status || !l.err.text[0]) PROBLEM("%s: %d: %s", what, (int)l.status, l.err.text);
                if (l.failed_in == STEP && (l.err.step < 0 || l.err.phase < 0))
                    PROBLEM("%s: of no step or phase: %s", what, l.err.text);
            } else if (calls[i].may_not) {
                /* A library that refuses is got round, to rounding. */
                const int other_way = !strncmp(calls[i].api, "cudnn", 5) || !strncmp(calls[i].api, "cublas", 6);
                if (other_way ? rig_distance(l.weights, good.weights, good.n) > 1e-5
                              : memcmp(l.weights, good.weights, (size_t)good.n * 4) != 0)
                    PROBLEM("%s: other weights are trained", what);
            } else if (strcmp(calls[i].api, "cudaEventQuery") &&
                       strcmp(calls[i].api, "cudaEventRecord")) { /* how often goes by time */
                PROBLEM("%s: it went unnoticed", what);
            }
            nothing_is_left(&before, calls[i].gives_back, what);
            if (calls[i].gives_back)
                threads = settled_threads(); /* a simulated stream has one */
            else if (!rig_threads_back(threads))
                PROBLEM("%s: threads are left", what);
            free(l.weights);
        }
    }
    assert_int_equal(problems, 0);
    assert_true(reached[FINE] > 10 && reached[OPEN] > 10 && reached[STEP] > 10);
    free(good.weights);
    rig_data_free(&data);
    alarm(0);
}

/* Codes that end a context: the device is lost, wherever it happens, and closing touches it no more. Each case has devices of its own. */
static void a_hard_code_loses_the_device(void **state)
{
    static const struct {
        const char *api;
        int nth, code, open; /* open: before training */
    } hard[] = {{"cudaMalloc", 12, 700, 1},           {"cudaMemsetAsync", 3, 719, 1},  {"cudaMemcpyAsync", 9, 700, 0},
                {"cudaStreamWaitEvent", 5, 719, 0},   {"cudaEventRecord", 11, 710, 0}, {"cudaGraphLaunch", 1, 719, 0},
                {"cudaStreamBeginCapture", 1, 700, 0}};
    const char *sanitizer = getenv("DP_SANITIZER");
    (void)state;
    if (sanitizer && !strcmp(sanitizer, "asan")) skip(); /* what is left behind on the host is a leak */
    rig_data data = rig_data_new(&rig_conv, 32, 5);
    for (int i = 0; i < COUNT(hard); i++) {
        rig r;
        dp_error err;
        char settings[120], fault[80];
        dp_status status = DP_OK;
        alarm(WATCHDOG_S);
        snprintf(settings, sizeof settings, "devices.mode=balanced devices.use=cuda:%d,cuda:%d", 2 + 2 * i, 3 + 2 * i);
        snprintf(fault, sizeof fault, "fail:%s:%d:%d", hard[i].api, hard[i].nth, hard[i].code);
        if (hard[i].open) cusim_fault(fault);
        status = rig_try(&r, &rig_conv, cuda(), 2, 0, settings, &err);
        if (!hard[i].open) cusim_fault(fault);
        for (int k = 0; k < 6 && !status; k++) {
            dp_batch batch = rig_batch(&data, k, 12);
            status = dp_engine_step(r.e, &batch, NULL, &err);
        }
        if (status != DP_EDEVICE_LOST || (err.device != 0 && err.device != 1) || !strstr(err.text, hard[i].api))
            fail_msg("%s: %d, device %d: %s", fault, (int)status, err.device, err.text);
        cusim_reset();
        rig_close(&r);
        cusim_release();
        assert_int_equal(counted().launches + counted().copies + counted().fills, 0);
    }
    rig_data_free(&data);
    alarm(0);
}

static int setup(void **state)
{
    (void)state;
    return setenv("CUSIM_DEVICES", "16", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"every call fails once (balanced)", every_call_fails_once, NULL, NULL, (void *)(uintptr_t) "devices.mode=balanced"},
        {"every call fails once (dp through the host)", every_call_fails_once, NULL, NULL,
         (void *)(uintptr_t) "devices.mode=dp devices.transport=host"},
        cmocka_unit_test(a_hard_code_loses_the_device),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
