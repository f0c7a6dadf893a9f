/* The simulator itself: peers, faults, devices that end, graphs and what a capture refuses. */
#include "cusim_world.h"

/* -- peers, faults -- */

static void test_peers(void **state)
{
    world *w = *state;
    int can = 0;
    float *d;
    OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    assert_true(can);
    OK(cudaDeviceCanAccessPeer(&can, 0, 0));
    assert_false(can);
    cusim_fault("nopeer:0:1");
    OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    assert_false(can);
    GIVES(cudaErrorPeerAccessUnsupported, cudaDeviceEnablePeerAccess(1, 0));
    cusim_release();
    OK(cudaDeviceEnablePeerAccess(1, 0));
    assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
    OK(k_empty(1, 1, 0, w->s[0])); /* a good call leaves the last error where it is */
    assert_int_equal(cudaPeekAtLastError(), cudaErrorPeerAccessAlreadyEnabled);
    assert_int_equal(cudaGetLastError(), cudaErrorPeerAccessAlreadyEnabled);
    OK(cudaGetLastError());
    cusim_fault("peers:1");
    GIVES(cudaErrorTooManyPeers, cudaDeviceEnablePeerAccess(2, 0));
    OK(cudaSetDevice(1));
    OK(cudaMalloc((void **)&d, N * sizeof *d));
    OK(cudaSetDevice(0));
    OK(k_fill(N, 3, d, w->s[0])); /* device 0 may now */
    OK(cudaMemcpyAsync(w->h, d, N * sizeof *d, cudaMemcpyDefault, w->s[0]));
    OK(cudaStreamSynchronize(w->s[0]));
    assert_true(w->h[N - 1] == 3);
    OK(cudaMemcpyAsync(w->d[0], d, N * sizeof *d, cudaMemcpyDefault, w->s[0]));
    OK(cudaStreamSynchronize(w->s[0]));
    assert_int_equal(counted().unmapped_copies, 0);
    OK(cudaDeviceDisablePeerAccess(1));
    GIVES(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(1));
    OK(cudaFree(d));
}

static void test_pair_faults(void **state)
{
    world *w = *state;
    memset(w->h, 0, N * sizeof(float));
    cusim_fault("corrupt:h:0");
    cusim_fault("slow:0:h:100");
    up(w, w->d[0], w->s[0]);
    down(w, w->d[0], w->s[0]);
    int wrong = 0;
    for (int i = 0; i < N; i++) wrong += w->h[i] != 0;
    assert_int_equal(wrong, 1);
    cusim_release();
    cusim_fault("stall:0:h");
    OK(cudaMemcpyAsync(w->h, w->d[0], 4, cudaMemcpyDeviceToHost, w->s[0]));
    usleep(2000);
    assert_int_equal(cudaStreamQuery(w->s[0]), cudaErrorNotReady);
    cusim_release();
    OK(cudaStreamSynchronize(w->s[0]));
    cusim_fault("hang:0:2");
    OK(k_fill(1, 1, w->d[0], w->s[0]));
    OK(cudaStreamSynchronize(w->s[0]));
    OK(k_fill(1, 2, w->d[0], w->s[0]));
    usleep(2000);
    assert_int_equal(cudaStreamQuery(w->s[0]), cudaErrorNotReady);
    cusim_release();
    OK(cudaStreamSynchronize(w->s[0]));
    (void)cudaGetLastError();
}

static void test_device_dies(void **state) /* device 2, which no other test uses */
{
    world *w = *state;
    cudaStream_t s;
    cudaEvent_t e;
    float *d;
    OK(cudaSetDevice(2));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    OK(cudaMalloc((void **)&d, N * sizeof *d));
    OK(k_fill(N, 1, d, s));
    OK(cudaStreamSynchronize(s));
    static atomic_int open;
    atomic_store(&open, 0);
    cusim_fault("die:2:3:719");
    OK(cudaLaunchHostFunc(s, wait_gate, &open));
    OK(k_fill(N, 2, d, s));
    OK(k_fill(N, 3, d, s)); /* this one; the call itself knows nothing */
    OK(cudaEventRecord(e, s));
    atomic_store(&open, 1);
    cudaError_t code;
    while ((code = cudaEventQuery(e)) == cudaErrorNotReady) usleep(100);
    assert_int_equal(code, cudaErrorLaunchFailure);
    assert_int_equal(cudaMalloc((void **)&d, 4), cudaErrorLaunchFailure); /* calls that have nothing to do with it */
    assert_int_equal(cudaStreamSynchronize(s), cudaErrorLaunchFailure);
    assert_int_equal(cudaMemcpyAsync(w->h, d, 4, cudaMemcpyDeviceToHost, s), cudaErrorLaunchFailure);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure); /* sticky */
    assert_int_equal(cudaStreamDestroy(s), cudaErrorLaunchFailure);
    assert_int_equal(cudaEventDestroy(e), cudaErrorLaunchFailure);
    OK(cudaSetDevice(0)); /* the others live */
    (void)cudaGetLastError();
    OK(k_fill(N, 1, w->d[0], w->s[0]));
    OK(cudaStreamSynchronize(w->s[0]));
    assert_int_equal(cudaMemcpyAsync(w->d[0], d, 4, cudaMemcpyDefault, w->s[0]), cudaErrorLaunchFailure);
    (void)cudaGetLastError();
    assert_string_equal(cudaGetErrorName(cudaErrorLaunchFailure), "cudaErrorLaunchFailure");
}

static int teardown_dead(void **state) /* what device 2 held is gone with it */
{
    world *w = *state;
    cusim_release();
    for (int i = 0; i < 2; i++) {
        OK(cudaStreamDestroy(w->s[i]));
        OK(cudaFree(w->d[i]));
    }
    OK(cudaFreeHost(w->h));
    free(w);
    return 0;
}

/* -- graphs -- */

static void test_graph(void **state)
{
    world *w = *state;
    cudaGraph_t g;
    cudaGraphExec_t x;
    cudaEvent_t fork, join, outside;
    size_t nodes;
    OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&outside, cudaEventDisableTiming));
    OK(k_fill(N, 0, w->d[0], w->s[0]));
    OK(k_axpy(0, 0, w->d[1], w->d[0], w->s[0])); /* loads it before the capture */
    OK(cudaStreamSynchronize(w->s[0]));
    cusim_reset();
    OK(cudaStreamBeginCapture(w->s[0], cudaStreamCaptureModeThreadLocal));
    up(w, w->d[1], w->s[0]);
    OK(cudaEventRecord(fork, w->s[0]));
    OK(cudaStreamWaitEvent(w->s[1], fork, 0));
    OK(k_axpy(N / 2, 1, w->d[1], w->d[0], w->s[0]));
    OK(k_axpy(N / 2, 2, w->d[1] + N / 2, w->d[0] + N / 2, w->s[1]));
    OK(cudaEventRecordWithFlags(outside, w->s[1], cudaEventRecordExternal));
    OK(cudaEventRecord(join, w->s[1]));
    OK(cudaStreamWaitEvent(w->s[0], join, 0));
    OK(cudaStreamEndCapture(w->s[0], &g));
    OK(cudaGraphGetNodes(g, NULL, &nodes));
    assert_int_equal(nodes, 4);
    assert_int_equal(counted().launches, 0); /* nothing has run */
    assert_int_equal(counted().captured_loads, 0);
    OK(cudaGraphInstantiate(&x, g, 0));
    OK(cudaGraphDestroy(g));
    OK(cudaGraphUpload(x, w->s[0]));
    for (int i = 0; i < 3; i++) { /* reads what the memory holds then */
        for (int k = 0; k < N; k++) w->h[k] = (float)(i + 1);
        OK(cudaGraphLaunch(x, w->s[0]));
        OK(cudaStreamWaitEvent(w->s[1], outside, 0));
        OK(cudaStreamSynchronize(w->s[1]));
        OK(cudaStreamSynchronize(w->s[0]));
    }
    down(w, w->d[0], w->s[0]);
    assert_true(w->h[0] == 6 && w->h[N - 1] == 12);
    assert_int_equal(counted().graph_launches, 3);
    assert_int_equal(counted().graph_nodes, 9);
    assert_int_equal(cudaEventQuery(join), cudaErrorCapturedEvent);
    (void)cudaGetLastError();
    OK(cudaGraphExecDestroy(x));
    OK(cudaEventDestroy(fork));
    OK(cudaEventDestroy(join));
    OK(cudaEventDestroy(outside));
}

static void *end_elsewhere(void *s)
{
    cudaGraph_t g;
    (void)cudaSetDevice(0);
    return (void *)(intptr_t)cudaStreamEndCapture((cudaStream_t)s, &g);
}
static cudaError_t bad_malloc(world *w)
{
    float *d;
    (void)w;
    return cudaMalloc((void **)&d, 4);
}
static cudaError_t bad_sync(world *w)
{
    return cudaStreamSynchronize(w->s[0]);
}
static cudaError_t bad_query(world *w)
{
    return cudaStreamQuery(w->s[0]);
}
static cudaError_t bad_device_sync(world *w)
{
    (void)w;
    return cudaDeviceSynchronize();
}
static cudaError_t bad_pageable(world *w)
{
    float host[4] = {0};
    return cudaMemcpyAsync(w->d[0], host, sizeof host, cudaMemcpyHostToDevice, w->s[0]);
}
static cudaError_t bad_isolation(world *w) /* work outside of the capture would be waited for */
{
    cudaEvent_t e;
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    OK(cudaEventRecord(e, w->s[1]));
    const cudaError_t code = cudaStreamWaitEvent(w->s[0], e, 0);
    OK(cudaEventDestroy(e));
    return code;
}
static cudaError_t bad_event(world *w)
{
    cudaEvent_t e;
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    OK(cudaEventRecord(e, w->s[0]));
    const cudaError_t code = cudaEventQuery(e);
    OK(cudaEventDestroy(e));
    return code;
}
static void test_capture_refused(void **state)
{
    static const struct {
        cudaError_t (*call)(world *w);
        cudaError_t code;
    } bad[] = {{bad_malloc, cudaErrorStreamCaptureUnsupported},
               {bad_sync, cudaErrorStreamCaptureUnsupported},
               {bad_query, cudaErrorStreamCaptureUnsupported},
               {bad_device_sync, cudaErrorStreamCaptureUnsupported},
               {bad_pageable, cudaErrorStreamCaptureUnsupported},
               {bad_isolation, cudaErrorStreamCaptureIsolation},
               {bad_event, cudaErrorCapturedEvent}};
    world *w = *state;
    cudaGraph_t g;
    cudaEvent_t e;
    pthread_t t;
    void *code;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        enum cudaStreamCaptureStatus status;
        OK(cudaStreamBeginCapture(w->s[0], cudaStreamCaptureModeThreadLocal));
        OK(k_fill(1, 1, w->d[0], w->s[0]));
        assert_int_equal(bad[i].call(w), bad[i].code);
        OK(cudaStreamIsCapturing(w->s[0], &status));
        assert_int_equal(status, cudaStreamCaptureStatusInvalidated);
        assert_int_equal(k_fill(1, 1, w->d[0], w->s[0]), cudaErrorStreamCaptureInvalidated);
        assert_int_equal(cudaStreamEndCapture(w->s[0], &g), cudaErrorStreamCaptureInvalidated);
        assert_null(g);
        OK(cudaStreamSynchronize(w->s[0])); /* back to what it was */
        (void)cudaGetLastError();
    }
    /* a branch that does not come back */
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    OK(cudaStreamBeginCapture(w->s[0], cudaStreamCaptureModeThreadLocal));
    OK(k_fill(1, 1, w->d[0], w->s[0]));
    OK(cudaEventRecord(e, w->s[0]));
    OK(cudaStreamWaitEvent(w->s[1], e, 0));
    OK(k_fill(1, 1, w->d[1], w->s[1]));
    assert_int_equal(cudaStreamEndCapture(w->s[1], &g), cudaErrorStreamCaptureUnmatched);
    assert_int_equal(cudaStreamEndCapture(w->s[0], &g), cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamBeginCapture(w->s[0], cudaStreamCaptureModeThreadLocal));
    OK(cudaEventRecord(e, w->s[0]));
    OK(cudaStreamWaitEvent(w->s[1], e, 0));
    OK(k_fill(1, 1, w->d[1], w->s[1]));
    assert_int_equal(cudaStreamEndCapture(w->s[0], &g), cudaErrorStreamCaptureUnjoined);
    OK(cudaEventDestroy(e));
    /* another thread may not end it, but may allocate meanwhile: the mode is this thread's */
    OK(cudaStreamBeginCapture(w->s[0], cudaStreamCaptureModeThreadLocal));
    cudaError_t other;
    assert_int_equal(pthread_create(&t, NULL, first_call, &other), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    OK(other);
    assert_int_equal(pthread_create(&t, NULL, end_elsewhere, w->s[0]), 0);
    assert_int_equal(pthread_join(t, &code), 0);
    assert_int_equal((intptr_t)code, cudaErrorStreamCaptureWrongThread);
    OK(k_overrun(w->d[0], w->s[0])); /* a kernel that has not been used is loaded in the capture: it is counted */
    OK(k_overrun(w->d[0], w->s[0]));
    assert_int_equal(counted().captured_loads, 1);
    OK(cudaStreamEndCapture(w->s[0], &g));
    OK(cudaGraphDestroy(g));
    /* in global mode it may not */
    OK(cudaStreamBeginCapture(w->s[0], cudaStreamCaptureModeGlobal));
    assert_int_equal(pthread_create(&t, NULL, first_call, &other), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(other, cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(w->s[0], &g), cudaErrorStreamCaptureInvalidated);
    (void)cudaGetLastError();
}

int main(void)
{
    setenv("CUSIM_DEVICES", "4", 1);
    const struct CMUnitTest tests[] = {
        TEST(test_peers),
        TEST(test_pair_faults),
        TEST(test_graph),
        TEST(test_capture_refused),
        cmocka_unit_test_setup_teardown(test_device_dies, setup, teardown_dead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
