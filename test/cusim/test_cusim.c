/* The simulator itself: right programs give right values and are silent; each misuse is caught. Misuses that end a process, and races that
 * ThreadSanitizer must see, run in a process of their own: this program with the name of the case (cusim_cases.c). */
#include "cusim_cases.h"
#include "cusim_world.h"

/* -- kernels -- */

static void test_values(void **state)
{
    world *w = *state;
    cudaEvent_t e;
    for (int i = 0; i < N; i++) w->h[i] = (float)i;
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    up(w, w->d[0], w->s[0]);
    OK(k_fill(N, 1, w->d[1], w->s[0]));
    OK(cudaEventRecord(e, w->s[0]));
    OK(cudaStreamWaitEvent(w->s[1], e, 0));
    OK(k_axpy(N, 2, w->d[0], w->d[1], w->s[1]));
    down(w, w->d[1], w->s[1]);
    for (int i = 0; i < N; i++) assert_true(w->h[i] == 2 * (float)i + 1);
    OK(k_reverse(N, w->d[1], w->d[0], 1, w->s[1]));
    down(w, w->d[0], w->s[1]);
    for (int i = 0; i < N; i++) assert_true(w->h[i] == 2 * (float)(i / K_BLOCK * K_BLOCK + K_BLOCK - 1 - i % K_BLOCK) + 1);
    OK(cudaMemsetAsync(w->d[0], 0, 4, w->s[1]));
    OK(k_sum(N, w->d[1], w->d[0], w->s[1]));
    down(w, w->d[0], w->s[1]);
    assert_true(w->h[0] == N * (N - 1) + N);
    assert_int_equal(counted().launches, 4);
    assert_int_equal(cusim_calls("axpy"), 1);
    OK(cudaEventDestroy(e));
}

static void test_language(void **state)
{
    world *w = *state;
    unsigned *u = (unsigned *)(void *)w->d[0];
    const unsigned *h = (const unsigned *)(const void *)w->h;
    OK(k_warp(u, w->s[0]));
    down(w, w->d[0], w->s[0]);
    for (unsigned i = 0; i < 32; i++) {
        const unsigned *o = h + 6 * i;
        assert_int_equal(o[0], 5);
        assert_int_equal(o[1], i + 2 < 32 ? i + 2 : i);
        assert_int_equal(o[2], i % 8 >= 3 ? i - 3 : i);
        assert_int_equal(o[3], 0x49249249u);
        assert_int_equal(o[4], i < 16 ? i ^ 1 : 100 + (i ^ 2));
        assert_int_equal(o[5], 3);
    }
    OK(k_early(40, w->d[0], w->s[0]));
    OK(k_votes((int *)u + 60, w->s[0]));
    down(w, w->d[0], w->s[0]);
    for (int i = 0; i < 40; i++) assert_true(w->h[i] == (float)(39 - i));
    assert_int_equal(h[60], 10);
    assert_int_equal(h[61], 1);
    assert_int_equal(h[62], 0);
}

static void test_pointers(void **state)
{
    world *w = *state;
    OK(k_fill(N, 5, w->d[0], w->s[0]));
    OK(k_pairs(N, (k_pair){3, w->d[0], w->d[1]}, w->s[0]));
    down(w, w->d[1], w->s[0]);
    assert_true(w->h[0] == 8 && w->h[N - 1] == 8);
    memcpy(w->h, &w->d[1], sizeof w->d[1]); /* a device address in device memory */
    up(w, w->d[0], w->s[0]);
    OK(k_indirect((float *const *)(void *)w->d[0], w->d[0] + 8, w->s[0]));
    down(w, w->d[0], w->s[0]);
    assert_true(w->h[8] == 8);
    OK(k_fill(4, 9, w->h, w->s[0])); /* page-locked memory is mapped */
    OK(cudaStreamSynchronize(w->s[0]));
    assert_true(w->h[3] == 9);
}

static void test_block_order(void **state)
{
    world *w = *state;
    int moved = 0, differ = 0;
    unsigned before[N] = {0};
    for (int round = 0; round < 4; round++) {
        OK(cudaMemsetAsync(w->d[0], 0, 4, w->s[0]));
        OK(k_order((unsigned *)(void *)w->d[0], (unsigned *)(void *)w->d[1], N, w->s[0]));
        down(w, w->d[1], w->s[0]);
        unsigned seen[N] = {0}, place[N];
        memcpy(place, w->h, sizeof place);
        for (unsigned i = 0; i < N; i++) {
            assert_true(place[i] < N);
            seen[place[i]]++;
            moved += place[i] != i;
        }
        for (int i = 0; i < N; i++) assert_int_equal(seen[i], 1);
        differ += memcmp(before, place, sizeof place) != 0;
        memcpy(before, place, sizeof place);
    }
    assert_true(moved > N);
    assert_true(differ >= 3);
}

static void test_launch_refused(void **state)
{
    world *w = *state;
    OK(k_empty(1, 1024, 48 << 10, w->s[0]));
    GIVES(cudaErrorInvalidConfiguration, k_empty(1, 1025, 0, w->s[0]));
    GIVES(cudaErrorInvalidConfiguration, k_empty(0, 1, 0, w->s[0]));
    GIVES(cudaErrorInvalidValue, k_empty(1, 1, (48 << 10) + 4, w->s[0]));
    OK(k_opt_in(64 << 10));
    OK(k_empty(1, 1, 64 << 10, w->s[0]));
    GIVES(cudaErrorInvalidValue, k_opt_in(128 << 10));
    OK(cudaSetDevice(1));
    GIVES(cudaErrorInvalidResourceHandle, k_empty(1, 1, 0, w->s[0]));
    OK(cudaSetDevice(0));
}

/* -- order -- */

static void test_generations(void **state)
{
    world *w = *state;
    cudaEvent_t e, never;
    float ms;
    static atomic_int first, second;
    atomic_store(&first, 0), atomic_store(&second, 0);
    OK(cudaEventCreateWithFlags(&e, cudaEventDefault));
    OK(cudaEventCreateWithFlags(&never, cudaEventDisableTiming));
    OK(cudaEventQuery(e)); /* never recorded: nothing to wait for */
    OK(cudaStreamWaitEvent(w->s[1], never, 0));
    OK(cudaStreamSynchronize(w->s[1]));
    OK(cudaLaunchHostFunc(w->s[0], wait_gate, &first));
    OK(cudaEventRecord(e, w->s[0]));
    OK(cudaStreamWaitEvent(w->s[1], e, 0)); /* of this record, not of the next */
    OK(cudaLaunchHostFunc(w->s[0], wait_gate, &second));
    OK(cudaEventRecord(e, w->s[0]));
    assert_int_equal(cudaEventQuery(e), cudaErrorNotReady);
    assert_int_equal(cudaStreamQuery(w->s[1]), cudaErrorNotReady);
    assert_int_equal(cudaGetLastError(), cudaErrorNotReady);
    atomic_store(&first, 1);
    OK(cudaStreamSynchronize(w->s[1])); /* would hang if it waited for the second */
    assert_int_equal(cudaEventQuery(e), cudaErrorNotReady);
    assert_int_equal(cudaEventElapsedTime(&ms, e, e), cudaErrorNotReady);
    atomic_store(&second, 1);
    OK(cudaEventSynchronize(e));
    OK(cudaEventElapsedTime(&ms, e, e));
    assert_true(ms == 0);
    (void)cudaGetLastError();
    GIVES(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, e, never));
    OK(cudaEventDestroy(e));
    OK(cudaEventDestroy(never));
}

static void test_devices_wait(void **state) /* an event of another device; records only on its own */
{
    world *w = *state;
    cudaStream_t s;
    cudaEvent_t e;
    float *d;
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    OK(cudaSetDevice(1));
    OK(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, -1));
    OK(cudaMalloc((void **)&d, N * sizeof *d));
    OK(k_fill(N, 0, d, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaSetDevice(0));
    OK(k_fill(N, 7, w->d[0], w->s[0]));
    OK(cudaEventRecord(e, w->s[0]));
    OK(cudaStreamWaitEvent(s, e, 0));
    OK(cudaMemcpyPeerAsync(d, 1, w->d[0], 0, N * sizeof *d, s));
    OK(cudaMemcpyAsync(w->h, d, N * sizeof *d, cudaMemcpyDefault, s));
    OK(cudaStreamSynchronize(s));
    assert_true(w->h[0] == 7 && w->h[N - 1] == 7);
    GIVES(cudaErrorInvalidResourceHandle, cudaEventRecord(e, s));
    const cusim_counters c = counted();
    assert_int_equal(c.bytes[0][1], N * sizeof *d);
    assert_int_equal(c.bytes[1][CUSIM_HOST], N * sizeof *d);
    assert_int_equal(c.unmapped_copies, 1);
    OK(cudaStreamDestroy(s));
    OK(cudaFree(d));
    OK(cudaEventDestroy(e));
}

static void *fill_queue(void *state)
{
    world *w = state;
    cudaError_t e = cudaSetDevice(0);
    for (int i = 0; !e && i < 1100; i++) e = k_fill(1, 1, w->d[0], w->s[0]);
    return (void *)(intptr_t)e;
}
static void test_long_queue(void **state) /* a call waits while 1024 pieces of work are queued */
{
    world *w = *state;
    static atomic_int open;
    pthread_t t;
    void *code;
    atomic_store(&open, 0);
    OK(cudaLaunchHostFunc(w->s[0], wait_gate, &open));
    assert_int_equal(pthread_create(&t, NULL, fill_queue, w), 0);
    while (cusim_calls("launch") < 1024) usleep(100);
    usleep(5000);
    assert_true(cusim_calls("launch") <= 1025);
    atomic_store(&open, 1);
    assert_int_equal(pthread_join(t, &code), 0);
    assert_int_equal((intptr_t)code, 0);
    OK(cudaStreamSynchronize(w->s[0]));
    assert_int_equal(counted().launches, 1100);
}

/* -- memory and copies -- */

static void test_memory(void **state)
{
    world *w = *state;
    size_t before, after, total;
    float *d, *other;
    down(w, w->d[0], w->s[0]);
    assert_true(isnan(w->h[0]) && isnan(w->h[N - 1])); /* fresh memory */
    OK(cudaMemGetInfo(&before, &total));
    OK(cudaMalloc((void **)&d, 1 << 20));
    OK(cudaMemGetInfo(&after, &total));
    assert_int_equal(before - after, 1 << 20);
    OK(cudaFree(d));
    d = (float *)4;
    GIVES(cudaErrorMemoryAllocation, cudaMalloc((void **)&d, total));
    cusim_fault("fail:cudaMalloc:2:2");
    OK(cudaMalloc((void **)&d, 64));
    GIVES(cudaErrorMemoryAllocation, cudaMalloc((void **)&other, 64));
    OK(cudaFree(d));
    GIVES(cudaErrorInvalidValue, cudaFree(w->h));
    GIVES(cudaErrorInvalidValue, cudaFree(w->d[0] + 1));
    float *plain = malloc(4096);
    OK(cudaHostRegister(plain, 4096, cudaHostRegisterPortable));
    GIVES(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(plain, 64, 0));
    OK(cudaHostUnregister(plain));
    GIVES(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(plain));
    free(plain);
    struct cudaPointerAttributes a;
    OK(cudaPointerGetAttributes(&a, w->d[0]));
    assert_true(a.type == cudaMemoryTypeDevice && a.device == 0);
    OK(cudaPointerGetAttributes(&a, &a));
    assert_true(a.type == cudaMemoryTypeUnregistered);
}

static void test_pageable(void **state)
{
    world *w = *state;
    float host[N];
    static atomic_int open;
    atomic_store(&open, 0);
    for (int i = 0; i < N; i++) host[i] = (float)i;
    OK(cudaLaunchHostFunc(w->s[0], wait_gate, &open));
    OK(cudaMemcpyAsync(w->d[0], host, sizeof host, cudaMemcpyHostToDevice, w->s[0])); /* staged now */
    memset(host, 0, sizeof host);
    assert_int_equal(counted().blocking, 0);
    atomic_store(&open, 1);
    OK(cudaMemcpyAsync(host, w->d[0], sizeof host, cudaMemcpyDeviceToHost, w->s[0])); /* waits */
    assert_true(host[N - 1] == N - 1);
    assert_int_equal(counted().pageable_copies, 2);
    assert_int_equal(counted().blocking, 1);
#ifndef __SANITIZE_THREAD__
    /* page-locked memory is read when the stream gets there */
    atomic_store(&open, 0);
    w->h[0] = 1;
    OK(cudaLaunchHostFunc(w->s[0], wait_gate, &open));
    up(w, w->d[0], w->s[0]);
    w->h[0] = 2; /* the race of test_races */
    atomic_store(&open, 1);
    down(w, w->d[0], w->s[0]);
    assert_true(w->h[0] == 2);
#endif
    GIVES(cudaErrorInvalidValue, cudaMemcpyAsync(w->d[0], w->h, 4, cudaMemcpyDeviceToHost, w->s[0]));
    OK(k_fill(1, 2, w->d[0], w->s[0]));
    OK(cudaStreamSynchronize(w->s[0]));
    OK(cudaMemcpy(host, w->d[0], 4, cudaMemcpyDefault));
    assert_true(host[0] == 2);
}

static void test_contexts(void **state)
{
    (void)state;
    pthread_t t;
    cudaError_t e;
    int n = 0;
    assert_false(cusim_has_context(3));
    OK(cudaGetDeviceCount(&n));
    assert_int_equal(n, 4);
    OK(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 3));
    assert_false(cusim_has_context(3));
    assert_int_equal(counted().contexts, 0);
    OK(cudaSetDevice(3));
    assert_true(cusim_has_context(3));
    OK(cudaSetDevice(0));
    assert_int_equal(counted().contexts, 1);
    assert_int_equal(pthread_create(&t, NULL, first_call, &e), 0); /* it chose no device */
    assert_int_equal(pthread_join(t, NULL), 0);
    OK(e);
    assert_int_equal(counted().implicit, 1);
    GIVES(cudaErrorInvalidDevice, cudaSetDevice(4));
}

/* -- misuse in processes of its own -- */

static char output[1 << 16];
static int run_case(const char *name, const char *setting, const char *value)
{
    int tube[2], status;
    size_t n = 0;
    ssize_t got;
    assert_int_equal(pipe(tube), 0);
    const pid_t pid = fork();
    if (!pid) {
        dup2(tube[1], 2);
        dup2(tube[1], 1);
        close(tube[0]);
        if (setting) setenv(setting, value, 1);
        execl("/proc/self/exe", "test_cusim", name, (char *)NULL);
        _exit(99);
    }
    close(tube[1]);
    while (n + 1 < sizeof output && (got = read(tube[0], output + n, sizeof output - 1 - n)) > 0) n += (size_t)got;
    output[n] = 0;
    close(tube[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 99);
    return status;
}

static void test_fatal(void **state)
{
    (void)state;
    for (const cusim_case *c = cusim_fatal; c->name; c++) {
        const int status = run_case(c->name, "CUSIM_JITTER_US", "300");
        if (status == 0 || !strstr(output, c->says))
            fail_msg("%s: wanted \"%s\", got status %d and: %s", c->name, c->says, status, output);
    }
}

static void test_silent(void **state) /* with late work, in other orders; and with TSan no report */
{
    (void)state;
    for (const cusim_case *c = cusim_fine; c->name; c++) {
        const int status = run_case(c->name, "CUSIM_JITTER_US", "300");
        if (status) fail_msg("%s: status %d and: %s", c->name, status, output);
        assert_non_null(strstr(output, "fine"));
    }
}

static void test_races(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    for (const cusim_case *c = cusim_races; c->name; c++) {
        const int status = run_case(c->name, "CUSIM_RACECHECK", strcmp(c->name, "block") ? "" : "1");
        if (status == 0 || !strstr(output, "data race")) fail_msg("%s: no report, status %d and: %s", c->name, status, output);
    }
#else
    skip();
#endif
}

int main(int argc, char **argv)
{
    setenv("CUSIM_DEVICES", "4", 1);
    if (argc > 1) return cusim_run_case(argv[1]);
    const struct CMUnitTest tests[] = {
        TEST(test_values),
        TEST(test_language),
        TEST(test_pointers),
        TEST(test_block_order),
        TEST(test_launch_refused),
        TEST(test_generations),
        TEST(test_devices_wait),
        TEST(test_long_queue),
        TEST(test_memory),
        TEST(test_pageable),
        TEST(test_contexts),
        cmocka_unit_test(test_fatal),
        cmocka_unit_test(test_silent),
        cmocka_unit_test(test_races),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
