/* Arrays: rows on a device, and their way from host memory (scatter) and back (gather). */
#include "parts.h"
#include "split.h"
#include <stdlib.h>

/* ---- arrays ---- */

dp_status dp_arrays_check(const dp_group *g, dp_array *const *a, const char *what, dp_error *err)
{
    for (int d = 0; d < g->n; d++)
        if (!a[d] || a[d]->w != &g->worker[d])
            return dp_on_device(err, d,
                                dp_fail(err, DP_EARGUMENT,
                                        "Entry %d of the %s arrays is %s; wanted the array of device %d, in device order.", d,
                                        what, a[d] ? "of another device or group" : "NULL", d));
    return DP_OK;
}

dp_status dp_arrays_make(dp_group *g, dp_array **a, dp_error *err)
{
    for (int d = 0; d < g->n; d++) {
        if (a[d]) continue;
        if (!(a[d] = dp_calloc(1, sizeof **a))) return dp_fail(err, DP_ENOMEM, "Out of host memory for an array.");
        a[d]->w = &g->worker[d];
    }
    return dp_arrays_check(g, a, "result", err);
}

dp_status dp_array_fit(dp_array *a, dp_rows shape, int64_t first, dp_error *err)
{
    const dp_backend *b = a->w->group->backend;
    size_t bytes = (size_t)(shape.n * shape.width) * dp_dtype_size(shape.dtype);
    bytes = (bytes + 63) / 64 * 64; /* sums are of whole blocks (collective.c) */
    a->rows = 0;
    if (bytes > a->capacity) {
        b->free(a->w->be, DP_MEM_STAGING, a->data, a->capacity);
        a->data = NULL;
        a->capacity = 0;
        DP_TRY(b->alloc(a->w->be, DP_MEM_STAGING, bytes, "an array of rows", &a->data, err));
        a->capacity = bytes;
    }
    a->dtype = shape.dtype, a->layout = shape.layout;
    a->rows = shape.n, a->width = shape.width;
    a->first = first;
    return DP_OK;
}

int64_t dp_array_rows(const dp_array *a)
{
    return a ? a->rows : 0;
}

void *dp_array_data(const dp_array *a)
{
    return a && a->rows ? a->data : NULL;
}

static dp_status run_free(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    dp_array *a = user;
    (void)seq;
    if (w != a->w) return DP_OK;
    if (dp_finish_stream(w, err) == DP_ETIMEOUT) return DP_ETIMEOUT; /* something may still use it */
    if (!dp_lost(w)) w->group->backend->free(w->be, DP_MEM_STAGING, a->data, a->capacity);
    a->data = NULL;
    return DP_OK;
}

void dp_array_free(dp_array *a)
{
    if (!a || dp_group_closing(a->w->group, (dp_job){.run = run_free, .user = a}, NULL)) return;
    free(a);
}

/* ---- scatter ---- */

typedef struct scatter_call {
    dp_array **out;
    dp_rows part[DP_MAX_DEVICES];
    int64_t first[DP_MAX_DEVICES];
} scatter_call;

static dp_status run_scatter(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    const scatter_call *call = user;
    dp_array *a = call->out[w->device];
    dp_rows part = call->part[w->device];
    (void)seq;
    dp_phase_begin(w, DP_PHASE_SCATTER);
    DP_TRY(dp_array_fit(a, part, call->first[w->device], err));
    if (part.n) DP_TRY(dp_fetch(w, a->data, part.data, (size_t)(part.n * part.width) * dp_dtype_size(part.dtype), -1, err));
    return dp_finish_stream(w, err);
}

/* rows[d] of device d. */
static dp_status cut(const dp_group *g, int64_t n, const int64_t *sizes, int64_t *rows, dp_error *err)
{
    int64_t sum = 0;
    if (!sizes) {
        dp_splitter even = {.kind = DP_SPLIT_EVEN, .leaves = g->n, .devices = g->n, .min_rows = 1};
        dp_split s;
        dp_split_plan(&s, &even, n);
        for (int d = 0; d < g->n; d++) rows[d] = s.leaf[d].rows;
        return DP_OK;
    }
    for (int d = 0; d < g->n; d++) {
        if (sizes[d] < 0 || sizes[d] > n)
            return dp_on_device(err, d,
                                dp_fail(err, DP_EARGUMENT, "sizes[%d] = %lld; wanted 0 to the %lld rows that are there.", d,
                                        (long long)sizes[d], (long long)n));
        rows[d] = sizes[d];
        sum += sizes[d];
    }
    if (sum != n)
        return dp_fail(err, DP_EARGUMENT, "The sizes of %d devices add up to %lld; there are %lld rows.", g->n, (long long)sum,
                       (long long)n);
    return DP_OK;
}

dp_status dp_scatter(dp_group *g, dp_rows host, const int64_t *sizes, dp_array **out, dp_error *err)
{
    scatter_call call = {.out = out};
    int64_t rows[DP_MAX_DEVICES], first = 0;
    size_t size = dp_dtype_size(host.dtype);
    if (!g || !out) return dp_fail(err, DP_EARGUMENT, "dp_scatter wants a group and room for an array per device.");
    if (!host.data || host.n < 1 || host.width < 1 || !size)
        return dp_fail(err, DP_EARGUMENT, "dp_scatter wants rows; there are %lld of width %lld%s.", (long long)host.n,
                       (long long)host.width, host.data ? "" : " without data");
    DP_TRY(cut(g, host.n, sizes, rows, err));
    DP_TRY(dp_arrays_make(g, out, err));
    for (int d = 0; d < g->n; d++) {
        call.part[d] = host;
        call.part[d].data = (const char *)host.data + (size_t)(first * host.width) * size;
        call.part[d].n = rows[d];
        call.first[d] = first;
        first += rows[d];
    }
    return dp_group_call(g, (dp_job){.run = run_scatter, .user = &call}, err);
}

/* ---- gather ---- */

typedef struct gather_call {
    dp_array **in;
    char *to[DP_MAX_DEVICES];
} gather_call;

static size_t bytes_of(const dp_array *a)
{
    return (size_t)(a->rows * a->width) * dp_dtype_size(a->dtype);
}

static dp_status run_gather(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    const gather_call *call = user;
    const dp_array *a = call->in[w->device];
    (void)seq;
    if (!a->rows) return DP_OK;
    dp_phase_begin(w, DP_PHASE_GATHER);
    DP_TRY(dp_send(w, call->to[w->device], a->data, bytes_of(a), err));
    return dp_finish_stream(w, err);
}

/* Rows join when they are of one shape (P85); a device without rows has no say. */
static dp_status check_shapes(const dp_group *g, dp_array *const *in, dp_error *err)
{
    int first = -1;
    for (int d = 0; d < g->n; d++) {
        const dp_array *a = in[d], *b = first < 0 ? a : in[first];
        if (!a->rows) continue;
        if (first < 0) first = d;
        if (a->width == b->width && a->dtype == b->dtype) continue;
        return dp_on_device(
            err, d,
            dp_fail(err, DP_EARGUMENT,
                    "Rows of devices %d and %d do not fit together: (%lld, %lld) of %zu-byte elements and (%lld, %lld) of "
                    "%zu-byte elements; only the first number may differ.",
                    first, d, (long long)b->rows, (long long)b->width, dp_dtype_size(b->dtype), (long long)a->rows,
                    (long long)a->width, dp_dtype_size(a->dtype)));
    }
    return DP_OK;
}

dp_status dp_gather(dp_group *g, dp_array **in, void *host, size_t bytes, dp_error *err)
{
    gather_call call = {.in = in};
    size_t total = 0;
    if (!g || !in || !host) return dp_fail(err, DP_EARGUMENT, "dp_gather wants a group, an array per device and host memory.");
    DP_TRY(dp_arrays_check(g, in, "input", err));
    DP_TRY(check_shapes(g, in, err));
    for (int d = 0; d < g->n; d++) {
        call.to[d] = (char *)host + total;
        total += bytes_of(in[d]);
    }
    if (bytes != total)
        return dp_fail(err, DP_EARGUMENT, "dp_gather has %zu bytes of rows and got room for %zu; give their exact size.", total,
                       bytes);
    return dp_group_call(g, (dp_job){.run = run_gather, .user = &call}, err);
}
