/* For tests of the CUDA backend on simulated GPUs: one device of a backend, with memory that it frees at the end. */
#ifndef DP_TEST_CUDA_RIG_H
#define DP_TEST_CUDA_RIG_H
#include "../../nn/cuda_plugin.h"
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MOST = 512 };
typedef struct rig {
    const dp_backend *be;
    dp_be_device *device;
    dp_be_stream *stream;
    dp_be_event *event;
    void *at[MOST], *host[MOST];
    size_t bytes[MOST], host_bytes[MOST];
    int n, n_host;
} rig;

static inline void rig_open_with(rig *r, const dp_backend *be, const dp_be_options *o)
{
    dp_error err;
    memset(r, 0, sizeof *r);
    r->be = be;
    assert_int_equal(be->open(&r->device, o, &err), DP_OK);
    assert_int_equal(be->stream_open(r->device, 0, &r->stream, &err), DP_OK);
    assert_int_equal(be->event_open(r->device, &r->event, &err), DP_OK);
}

static inline void rig_open(rig *r, const dp_backend *be)
{
    rig_open_with(r, be, &(dp_be_options){.threads = 1});
}

static inline void rig_finish(rig *r)
{
    int done;
    assert_int_equal(r->be->record(r->stream, r->event), DP_OK);
    while (!(done = r->be->done(r->event))) sched_yield();
    assert_int_equal(done, 1);
}

static inline void rig_clear(rig *r)
{
    rig_finish(r);
    for (int i = 0; i < r->n; i++) r->be->free(r->device, DP_MEM_STAGING, r->at[i], r->bytes[i]);
    for (int i = 0; i < r->n_host; i++) {
        if (r->be->unpin) r->be->unpin(r->device, r->host[i]);
        r->be->free_pinned(r->host[i], r->host_bytes[i]);
    }
    r->n = r->n_host = 0;
}

static inline void rig_close(rig *r)
{
    rig_clear(r);
    r->be->event_close(r->event);
    r->be->stream_close(r->stream);
    assert_int_equal(r->be->memory(r->device)->live[DP_MEM_STAGING], 0);
    assert_int_equal(r->be->memory(r->device)->live[DP_MEM_WORKSPACE], 0);
    r->be->close(r->device);
}

static inline void *pinned(rig *r, size_t bytes)
{
    dp_error err;
    void *p;
    assert_true(r->n_host < MOST);
    assert_int_equal(r->be->alloc_pinned(bytes, &p, &err), DP_OK);
    if (r->be->pin) assert_int_equal(r->be->pin(r->device, p, bytes, &err), DP_OK);
    r->host[r->n_host] = p, r->host_bytes[r->n_host++] = bytes;
    return p;
}

/* Device memory with this content; NULL: all bytes 0x5A. */
static inline void *put(rig *r, const void *data, size_t bytes)
{
    dp_error err;
    void *p;
    assert_true(r->n < MOST);
    assert_int_equal(r->be->alloc(r->device, DP_MEM_STAGING, bytes, "test", &p, &err), DP_OK);
    r->at[r->n] = p, r->bytes[r->n++] = bytes;
    if (!data) {
        assert_int_equal(r->be->fill(r->stream, p, 0x5A, bytes), DP_OK);
        return p;
    }
    void *from = pinned(r, bytes);
    memcpy(from, data, bytes);
    assert_int_equal(r->be->copy(r->stream, p, from, bytes), DP_OK);
    return p;
}

/* What it holds now; lives as long as the rig. */
static inline void *get(rig *r, const void *p, size_t bytes)
{
    void *to = pinned(r, bytes);
    assert_int_equal(r->be->copy(r->stream, to, p, bytes), DP_OK);
    rig_finish(r);
    return to;
}

static inline const dp_backend *cuda(void)
{
    dp_error err;
    const dp_backend *b = NULL;
    if (dp_cuda_plugin_load(&b, &err)) fail_msg("%s", err.text);
    return b;
}

enum { SIDES = 2 };
static inline void rigs_open(rig r[SIDES])
{
    rig_open(&r[0], dp_backend_cpu());
    rig_open(&r[1], cuda());
}
static inline void rigs_close(rig r[SIDES])
{
    rig_close(&r[0]);
    rig_close(&r[1]);
}

static inline void rigs_clear(rig r[SIDES])
{
    rig_clear(&r[0]);
    rig_clear(&r[1]);
}

static inline float uniform(uint32_t *state) /* -1 .. 1; xorshift: Marsaglia 2003 */
{
    *state ^= *state << 13, *state ^= *state >> 17, *state ^= *state << 5;
    return (float)((double)*state / 2147483648.0 - 1);
}
static inline float *floats(size_t n, uint32_t seed)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = uniform(&seed);
    return x;
}
#endif
