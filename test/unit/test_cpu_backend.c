/* The CPU's backend table: devices, memory and its counters, order, copies. Kernels have tests of their own. */
#include "../../dp/base/clock.h"
#include "cpu_kernel.h"
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

/* Sanitizers stop at a wish that cannot be met unless told to return NULL, as malloc does. */
const char *__asan_default_options(void);
const char *__tsan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static dp_be_device *device(const dp_be_options *o)
{
    dp_error err = {0};
    dp_be_device *d = NULL;
    if (dp_backend_cpu()->open(&d, o, &err)) fail_msg("%s", err.text);
    return d;
}

static void test_enumerate(void **state)
{
    (void)state;
    const dp_backend *be = dp_backend_cpu();
    dp_device_info info;
    int n = 0;
    assert_int_equal(be->abi, DP_BACKEND_ABI);
    assert_string_equal(be->kind, "cpu");
    while (be->enumerate(n, &info)) {
        char name[32];
        snprintf(name, sizeof name, "cpu:%d", n++);
        assert_string_equal(info.name, name);
        assert_true(info.memory > 1 << 20);
        assert_int_equal(info.units, 1);
        assert_int_equal(info.usable, 1);
    }
    assert_int_equal(n, sysconf(_SC_NPROCESSORS_ONLN));
    assert_int_equal(be->enumerate(-1, &info), 0);
}

/* Devices are virtual: more of them than cores may be open. */
static void test_memory(void **state)
{
    (void)state;
    const dp_backend *be = dp_backend_cpu();
    const dp_be_options options = {.index = 99, .threads = 1, .memory_limit = 20 << 20};
    dp_be_device *d = device(&options);
    const dp_memory *m = be->memory(d);
    void *small = NULL, *large = NULL, *third = NULL;
    dp_error err = {0};
    assert_int_equal(be->alloc(d, DP_MEM_PARAMETERS, 1000, "small", &small, &err), DP_OK);
    assert_int_equal(be->alloc(d, DP_MEM_ACTIVATIONS, 9 << 20, "large", &large, &err), DP_OK);
    assert_int_equal((uintptr_t)small % be->alignment, 0);
    assert_int_equal((uintptr_t)large % be->alignment, 0);
    memset(small, 1, 1000), memset(large, 1, 9 << 20);
    assert_int_equal(m->live[DP_MEM_PARAMETERS], 1000);
    assert_int_equal(m->live[DP_MEM_ACTIVATIONS], 9 << 20);
    assert_int_equal(be->alloc(d, DP_MEM_GRADIENTS, 12 << 20, "too much", &third, &err), DP_ENOMEM);
    assert_int_equal(m->live[DP_MEM_GRADIENTS], 0);
    be->free(d, DP_MEM_ACTIVATIONS, large, 9 << 20);
    assert_int_equal(be->alloc(d, DP_MEM_GRADIENTS, 12 << 20, "fits now", &third, &err), DP_OK);
    be->free(d, DP_MEM_GRADIENTS, third, 12 << 20);
    be->free(d, DP_MEM_PARAMETERS, small, 1000);
    be->free(d, DP_MEM_PARAMETERS, NULL, 0);
    assert_int_equal(m->total_live, 0);
    assert_int_equal(m->peak[DP_MEM_ACTIVATIONS], 9 << 20);
    be->close(d);
    be->close(NULL);
}

/* More than the address space holds: an error with the size in it, and nothing booked. */
static void test_no_memory(void **state)
{
    (void)state;
    const dp_backend *be = dp_backend_cpu();
    const dp_be_options options = {.threads = 1};
    dp_be_device *d = device(&options);
    void *p = NULL;
    dp_error err = {0};
    assert_int_equal(be->alloc(d, DP_MEM_ACTIVATIONS, (size_t)1 << 60, "the arena", &p, &err), DP_ENOMEM);
    assert_non_null(strstr(err.text, "the arena"));
    assert_int_equal(be->memory(d)->total_live, 0);
    be->close(d);
}

static void test_order_and_copies(void **state)
{
    (void)state;
    const dp_backend *be = dp_backend_cpu();
    const dp_be_options options = {.threads = 1};
    dp_be_device *d = device(&options), *peer = device(&options);
    dp_be_stream *s = NULL, *t = NULL;
    dp_be_event *e = NULL;
    dp_error err = {0};
    void *pinned = NULL;
    assert_int_equal(be->created(d), 0);
    assert_int_equal(be->stream_open(d, 0, &s, &err), DP_OK);
    assert_int_equal(be->stream_open(peer, 1, &t, &err), DP_OK);
    assert_int_equal(be->event_open(d, &e, &err), DP_OK);
    assert_int_equal(be->created(d), 2);
    assert_int_equal(be->created(peer), 1);
    assert_int_equal(be->alloc_pinned(8, &pinned, &err), DP_OK);
    assert_int_equal(be->copy(s, pinned, "12345678", 8), DP_OK);
    assert_int_equal(be->fill(s, (char *)pinned + 4, 'x', 2), DP_OK);
    assert_int_equal((uintptr_t)pinned % 4096, 0);
    assert_int_equal(be->in_line, 1);
    const double before = dp_now();
    assert_int_equal(be->record(s, e), DP_OK);
    assert_int_equal(be->wait(t, e), DP_OK);
    assert_int_equal(be->done(e), 1);
    assert_true(before <= be->when(e) && be->when(e) <= dp_now());
    assert_memory_equal(pinned, "1234xx78", 8);
    assert_int_equal(be->copy(s, NULL, NULL, 0), DP_OK);
    assert_int_equal(be->reads_peer(d, peer), 1);
    assert_int_equal(be->record(t, e), DP_EARGUMENT); /* the event is d's */
    be->free_pinned(pinned, 8);
    be->event_close(e);
    be->stream_close(s), be->stream_close(t);
    be->close(d), be->close(peer);
}

static dp_be_device *bound;
static void *take_over(void *cores)
{
    dp_backend_cpu()->bind(bound);
    sched_getaffinity(0, sizeof(cpu_set_t), cores);
    return NULL;
}

static void test_pinning(void **state)
{
    (void)state;
    const dp_backend *be = dp_backend_cpu();
    cpu_set_t before, after;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    const int cores = CPU_COUNT(&before);
    dp_be_options options = {.threads = 1, .pin = 1, .first_core = cores - 1};
    dp_error err = {0};
    dp_be_device *d = device(&options);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_int_equal(CPU_COUNT(&after), 1);
    /* another thread, which may run anywhere, takes over */
    cpu_set_t taken = before;
    pthread_t thread;
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    bound = d;
    assert_int_equal(pthread_create(&thread, NULL, take_over, &taken), 0);
    pthread_join(thread, NULL);
    assert_true(CPU_EQUAL(&taken, &after));
    be->close(d);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    options.first_core = cores;
    assert_int_equal(be->open(&d, &options, &err), DP_EDEVICE);
    assert_non_null(strstr(err.text, "pin"));
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_enumerate),        cmocka_unit_test(test_memory),  cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_order_and_copies), cmocka_unit_test(test_pinning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
