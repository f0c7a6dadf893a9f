/* Checked allocation, and the books of a device's memory: exact under threads, and refusing over the limit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "../../dp/base/memory.h"

static void allocation(void **state)
{
    (void)state;
    for (size_t n = 0; n < 200; n += 33) {
        unsigned char *p = dp_calloc(n, 3);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < 3 * n; i++) assert_int_equal(p[i], 0);
        free(p);
    }
    assert_null(dp_calloc(SIZE_MAX / 2, 3));
    assert_null(dp_calloc(SIZE_MAX, 1));
}

static void books(void **state)
{
    dp_memory m = {.limit = 1000};
    dp_error err;
    (void)state;
    assert_int_equal(dp_memory_add(&m, DP_MEM_PARAMETERS, 300, "weights", &err), DP_OK);
    assert_int_equal(dp_memory_add(&m, DP_MEM_ACTIVATIONS, 600, "activations", &err), DP_OK);
    assert_int_equal(m.total_live, 900);
    assert_int_equal(dp_memory_add(&m, DP_MEM_ACTIVATIONS, 101, "one more", &err), DP_ENOMEM);
    assert_int_equal(err.code, DP_ENOMEM);
    assert_non_null(strstr(err.text, "one more"));
    assert_non_null(strstr(err.text, "101 B"));             /* wanted */
    assert_non_null(strstr(err.text, "activations 600 B")); /* held, by class */
    assert_non_null(strstr(err.text, "1.0 kB"));            /* the limit */
    assert_non_null(strstr(err.text, "100 B"));             /* free */
    /* A refusal leaves the books as they were; exactly the limit is allowed. */
    assert_int_equal(m.total_live, 900);
    assert_int_equal(m.allocations, 2);
    assert_int_equal(dp_memory_add(&m, DP_MEM_ACTIVATIONS, 100, "the rest", &err), DP_OK);
    dp_memory_sub(&m, DP_MEM_ACTIVATIONS, 700);
    assert_int_equal(m.live[DP_MEM_ACTIVATIONS], 0);
    assert_int_equal(m.peak[DP_MEM_ACTIVATIONS], 700);
    assert_int_equal(m.total_live, 300);
    assert_int_equal(dp_memory_add(&m, DP_MEM_PARAMETERS, 5000, "too much", NULL), DP_ENOMEM);
}

enum { ROUNDS = 20000, THREADS = 4 };

static void *add_and_sub(void *user)
{
    dp_memory *m = user;
    for (int i = 0; i < ROUNDS; i++) {
        if (dp_memory_add(m, DP_MEM_WORKSPACE, 7, "x", NULL)) return m;
        if (i % 2) dp_memory_sub(m, DP_MEM_WORKSPACE, 7);
    }
    return NULL;
}

static void many_writers(void **state)
{
    dp_memory m = {.limit = 0};
    pthread_t t[THREADS];
    (void)state;
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&t[i], NULL, add_and_sub, &m), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        assert_int_equal(pthread_join(t[i], &failed), 0);
        assert_null(failed);
    }
    assert_int_equal(m.live[DP_MEM_WORKSPACE], 7 * THREADS * ROUNDS / 2);
    assert_int_equal(m.total_live, 7 * THREADS * ROUNDS / 2);
    assert_int_equal(m.allocations, THREADS * ROUNDS);
    assert_true(m.peak[DP_MEM_WORKSPACE] >= m.live[DP_MEM_WORKSPACE]);
    assert_true(m.peak[DP_MEM_WORKSPACE] <= 7 * (THREADS * ROUNDS / 2 + THREADS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(allocation), cmocka_unit_test(books), cmocka_unit_test(many_writers)};
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
