/* The late backend itself: when work has passed, and how devices die. What other tests conclude from it rests on this. */
#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "../../dp/base/clock.h"
#include "../late/late.h"

enum { N = 1000 };

typedef struct place {
    dp_be_device *device;
    dp_be_stream *stream;
    dp_be_event *event;
    float *x;
} place;

static const dp_backend *b;
static dp_error err;

static place open_place(int index)
{
    place p;
    void *x;
    assert_int_equal(b->open(&p.device, &(dp_be_options){.index = index, .threads = 2}, &err), DP_OK);
    assert_int_equal(b->stream_open(p.device, 0, &p.stream, &err), DP_OK);
    assert_int_equal(b->event_open(p.device, &p.event, &err), DP_OK);
    assert_int_equal(b->alloc(p.device, DP_MEM_GRADIENTS, N * 4, "x", &x, &err), DP_OK);
    p.x = x;
    return p;
}

static void close_place(place *p)
{
    b->free(p->device, DP_MEM_GRADIENTS, p->x, N * 4);
    b->event_close(p->event);
    b->stream_close(p->stream);
    b->close(p->device);
}

static int settle(const place *p) /* 1, or a dp_status negated */
{
    int done = 0;
    dp_status status = b->record(p->stream, p->event);
    if (status) return -(int)status;
    while (!(done = b->done(p->event))) sched_yield();
    return done;
}

/* Does the memory answer? Asked of the kernel, which reports what would be a signal here. */
static int readable(const void *p)
{
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    ssize_t n = write(pipes[1], p, 1);
    int error = errno;
    close(pipes[0]), close(pipes[1]);
    assert_true(n == 1 || error == EFAULT);
    return n == 1;
}

/* Records stand at the time at which the work before them was done, not at that of the call. */
static void events_tell_when(void **state)
{
    (void)state;
    b = late_backend(&(late_options){.seed = 1});
    assert_int_equal(b->in_line, 0);
    place p = open_place(0);
    dp_be_event *first;
    assert_int_equal(b->event_open(p.device, &first, &err), DP_OK);
    late_arm(&(late_fault){.kind = LATE_FILL, .device = 0, .nth = 1, .hang = 1});
    double called = dp_now();
    assert_int_equal(b->record(p.stream, first), DP_OK);
    assert_int_equal(b->fill(p.stream, p.x, 0, N * 4), DP_OK);
    assert_int_equal(b->record(p.stream, p.event), DP_OK);
    while (b->done(first) != 1) sched_yield();
    double between = dp_now();
    assert_int_equal(b->done(p.event), 0);
    late_release();
    while (b->done(p.event) != 1) sched_yield();
    assert_true(called <= b->when(first) && b->when(first) <= between);
    assert_true(between <= b->when(p.event) && b->when(p.event) <= dp_now());
    b->event_close(first);
    close_place(&p);
}

static void *team_of(void *device)
{
    b->bind(device);
    return (void *)(intptr_t)omp_get_max_threads();
}

static void a_new_thread_is_bound(void **state)
{
    (void)state;
    b = late_backend(&(late_options){.seed = 1});
    place p = open_place(0);
    pthread_t thread;
    void *threads;
    assert_int_equal(pthread_create(&thread, NULL, team_of, p.device), 0);
    pthread_join(thread, &threads);
    assert_int_equal((intptr_t)threads, 2);
    close_place(&p);
}

/* Before and after memory there is nothing to write on; and it is booked as on any device. */
static void memory_is_booked(void **state)
{
    (void)state;
    b = late_backend(&(late_options){.seed = 1});
    place p = open_place(0);
    const dp_memory *m = b->memory(p.device);
    assert_int_equal(m->live[DP_MEM_GRADIENTS], N * 4);
    assert_int_equal((uintptr_t)p.x % b->alignment, 0);
    assert_true(p.x[0] != p.x[0]); /* NaN before anything was written */
    assert_false(readable((char *)p.x + 4096));
    close_place(&p);
    dp_be_device *d;
    void *x;
    assert_int_equal(b->open(&d, &(dp_be_options){.memory_limit = 100}, &err), DP_OK);
    assert_int_equal(b->alloc(d, DP_MEM_WORKSPACE, 101, "too much", &x, &err), DP_ENOMEM);
    assert_non_null(strstr(err.text, "too much"));
    b->close(d);
}

static void all_calls_fail(const place *dead)
{
    void *x;
    dp_be_event *e;
    dp_be_stream *s;
    const float *src = dead->x;
    assert_int_equal(b->fill(dead->stream, dead->x, 0, 4), DP_EDEVICE_LOST);
    assert_int_equal(b->sum(dead->stream, dead->x, &src, 1, N), DP_EDEVICE_LOST);
    assert_int_equal(b->record(dead->stream, dead->event), DP_EDEVICE_LOST);
    assert_int_equal(b->wait(dead->stream, dead->event), DP_EDEVICE_LOST);
    assert_int_equal(b->done(dead->event), -DP_EDEVICE_LOST);
    assert_int_equal(b->alloc(dead->device, DP_MEM_WORKSPACE, 4, "x", &x, &err), DP_EDEVICE_LOST);
    assert_int_equal(b->event_open(dead->device, &e, &err), DP_EDEVICE_LOST);
    assert_int_equal(b->stream_open(dead->device, 0, &s, &err), DP_EDEVICE_LOST);
    assert_int_equal(b->pin(dead->device, &err, sizeof err, &err), DP_EDEVICE_LOST);
}

static void a_dead_device_stays_dead(void **state)
{
    (void)state;
    b = late_backend(&(late_options){.seed = 2, .delay_us = 50});
    place p = open_place(0), q = open_place(1), r = open_place(2);
    dp_be_device *d;
    assert_int_equal(b->fill(p.stream, p.x, 0, N * 4), DP_OK);
    assert_int_equal(settle(&p), 1);
    assert_true(readable(p.x));
    late_kill(0);
    assert_false(readable(p.x));
    all_calls_fail(&p);
    assert_int_equal(b->open(&d, &(dp_be_options){.index = 0}, &err), DP_EDEVICE_LOST);

    /* a peer that reads it dies of that, in any kind of call; one that does not goes on */
    const float *pair[2] = {q.x, p.x};
    assert_int_equal(b->sum(q.stream, q.x, pair, 2, N), DP_OK);
    assert_int_equal(settle(&q), -DP_EDEVICE);
    assert_int_equal(b->fill(r.stream, r.x, 1, N * 4), DP_OK);
    assert_int_equal(settle(&r), 1);
    assert_int_equal(b->copy(r.stream, r.x, p.x + 10, 4), DP_OK);
    assert_int_equal(settle(&r), -DP_EDEVICE);
    assert_int_equal(late_touched_dead(), 0);
    close_place(&q), close_place(&r);

    /* whoever closes what is dead is counted, and changes nothing */
    b->event_close(p.event);
    b->free(p.device, DP_MEM_GRADIENTS, p.x, N * 4);
    assert_int_equal(late_touched_dead(), 2);
    b = late_backend(&(late_options){.seed = 2});
    assert_int_equal(late_touched_dead(), 0);
    p = open_place(0);
    assert_int_equal(settle(&p), 1);
    close_place(&p);
}

/* At a call: at once, or when the work's turn comes. What is queued behind it is dropped; a peer that waits for it goes on. */
static void a_fault_may_kill(void **state)
{
    (void)state;
    for (int at_once = 0; at_once < 2; at_once++) {
        b = late_backend(&(late_options){.seed = 3});
        place p = open_place(0), q = open_place(1);
        float mark = 7, *host = &mark;
        late_arm(&(late_fault){.kind = LATE_FILL, .device = 0, .nth = 2, .at_once = at_once, .kill = 1});
        assert_int_equal(b->fill(p.stream, p.x, 0, N * 4), DP_OK);
        dp_status status = b->fill(p.stream, p.x, 0, N * 4);
        if (at_once) {
            assert_int_equal(status, DP_EDEVICE_LOST);
        } else {
            (void)b->copy(p.stream, host, p.x, 4); /* may be refused already */
            if (b->record(p.stream, p.event) == DP_OK) assert_int_equal(b->wait(q.stream, p.event), DP_OK);
        }
        while (b->done(p.event) != -DP_EDEVICE_LOST) sched_yield();
        assert_int_equal(b->fill(q.stream, q.x, 0, N * 4), DP_OK);
        assert_int_equal(settle(&q), 1);
        assert_true(mark == 7 && q.x[N - 1] == 0);
        assert_false(readable(p.x));
        close_place(&q);
        assert_int_equal(late_touched_dead(), 0);
    }
    late_backend(&(late_options){0});
}

/* What hangs when its device dies is over. */
static void death_ends_a_hang(void **state)
{
    (void)state;
    b = late_backend(&(late_options){.seed = 4});
    place p = open_place(0);
    late_arm(&(late_fault){.kind = LATE_COPY, .device = 0, .nth = 1, .hang = 1});
    assert_int_equal(b->copy(p.stream, p.x, p.x + 1, 4), DP_OK);
    assert_int_equal(b->record(p.stream, p.event), DP_OK);
    assert_int_equal(b->done(p.event), 0);
    late_kill(0);
    assert_int_equal(b->done(p.event), -DP_EDEVICE_LOST);
    late_backend(&(late_options){0}); /* joins the stream's thread */
}

static void page_locks_are_counted(void **state)
{
    (void)state;
    void *x, *y;
    b = late_backend(&(late_options){.seed = 5});
    place p = open_place(0);
    assert_int_equal(b->alloc_pinned(100, &x, &err), DP_OK);
    assert_int_equal(b->alloc_pinned(100, &y, &err), DP_OK);
    assert_int_equal((uintptr_t)x % 4096, 0);
    assert_int_equal(b->pin(p.device, x, 100, &err), DP_OK);
    assert_int_equal(b->pin(p.device, y, 100, &err), DP_OK);
    assert_int_equal(late_pinned(), 2);
    b->unpin(p.device, x);
    b->free_pinned(y, 100); /* a mistake, which shows */
    b->free_pinned(x, 100);
    assert_int_equal(late_pinned(), 1);
    late_arm(&(late_fault){.kind = LATE_PIN, .device = 0, .nth = 1, .status = DP_ENOMEM});
    assert_int_equal(b->pin(p.device, &err, 1, &err), DP_ENOMEM);
    close_place(&p);
    late_backend(&(late_options){0});
    assert_int_equal(late_pinned(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(events_tell_when),      cmocka_unit_test(a_new_thread_is_bound),
                                       cmocka_unit_test(memory_is_booked),      cmocka_unit_test(a_dead_device_stays_dead),
                                       cmocka_unit_test(a_fault_may_kill),      cmocka_unit_test(death_ends_a_hang),
                                       cmocka_unit_test(page_locks_are_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
