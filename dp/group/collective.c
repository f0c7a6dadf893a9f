/* Collectives, the caller's side. Each call is one job; a description of it goes to the members, made of what the arrays are now. */
#include "collective.h"
#include "split.h"
#include <stdlib.h>

static const dp_collective_kind broadcast = {"dp_collective_broadcast", DP_PHASE_REPLICATE, 0, 1, DP_WHOLE, DP_WHOLE, 1, 0};
static const dp_collective_kind reduce = {"dp_collective_reduce", DP_PHASE_REDUCE, 1, 1, DP_WHOLE, DP_WHOLE, 0, 1};
static const dp_collective_kind all_reduce = {"dp_collective_all_reduce", DP_PHASE_REDUCE, 1, 1, DP_WHOLE, DP_WHOLE, 0, 0};
static const dp_collective_kind gather = {"dp_collective_gather", DP_PHASE_GATHER, 0, 0, DP_PART, DP_WHOLE, 0, 1};
static const dp_collective_kind all_gather = {"dp_collective_all_gather", DP_PHASE_GATHER, 0, 0, DP_PART, DP_WHOLE, 0, 0};
static const dp_collective_kind scatter = {"dp_collective_scatter", DP_PHASE_SCATTER, 0, 0, DP_WHOLE, DP_PART, 1, 0};
static const dp_collective_kind reduce_scatter = {
    "dp_collective_reduce_scatter", DP_PHASE_REDUCE, 1, 0, DP_WHOLE, DP_PART, 0, 0};
static const dp_collective_kind barrier = {"dp_collective_barrier", DP_PHASE_SHARE, 0, 0, DP_NOTHING, DP_NOTHING, 0, 0};

/* ---- calls ---- */

static int takes_part(const dp_collective_call *k, int only_root, int rank)
{
    return !only_root || rank == k->root;
}

/* What member r gives: of the shape of those before it, when rows were seen there. */
static dp_status check_given(dp_collective_call *k, const dp_array *a, int r, dp_error *err)
{
    const dp_collective_kind *kind = k->kind;
    k->from[r] = (dp_rows){a->data, a->dtype, a->layout, a->rows, a->width};
    if (!a->rows && kind->give == DP_PART) return DP_OK;
    if (!a->rows) return dp_fail(err, DP_EARGUMENT, "%s wants rows; the array has none.", kind->name);
    if (kind->sums && a->dtype != DP_F32) return dp_fail(err, DP_EARGUMENT, "%s adds f32 numbers only.", kind->name);
    if (!k->whole.n) {
        k->whole = k->from[r], k->first = a->first;
        return DP_OK;
    }
    int fits = a->width == k->whole.width && a->dtype == k->whole.dtype && a->layout == k->whole.layout;
    if (!fits || (kind->give == DP_WHOLE && a->rows != k->whole.n))
        return dp_fail(err, DP_EARGUMENT,
                       "%s got (%lld, %lld) and (%lld, %lld); wanted arrays of one type and layout, and equal %s.", kind->name,
                       (long long)k->whole.n, (long long)k->whole.width, (long long)a->rows, (long long)a->width,
                       kind->give == DP_WHOLE ? "shapes" : "widths");
    if (kind->give == DP_PART) k->whole.n += a->rows;
    return DP_OK;
}

static dp_status check_from(const dp_collective *c, dp_collective_call *k, dp_array *const *from, dp_error *err)
{
    for (int r = 0; r < c->n; r++) {
        int d = c->member[r];
        dp_status status;
        if (!takes_part(k, k->kind->give_root, r)) continue;
        if (!from[d] || from[d]->w != &c->group->worker[d])
            status = dp_fail(err, DP_EARGUMENT, "%s: from[%d] is %s; wanted an array of device %d.", k->kind->name, d,
                             from[d] ? "of another device or group" : "NULL", d);
        else
            status = check_given(k, from[d], r, err);
        if (status) return dp_on_device(err, d, status);
    }
    if (!k->whole.n) return dp_fail(err, DP_EARGUMENT, "%s wants rows; no device has any.", k->kind->name);
    if (k->whole.width > c->max_count / k->whole.n)
        return dp_fail(err, DP_EARGUMENT, "%s got %lld rows of %lld elements; it was opened for max_count = %lld.",
                       k->kind->name, (long long)k->whole.n, (long long)k->whole.width, (long long)c->max_count);
    return DP_OK;
}

static dp_status check_to(const dp_collective *c, dp_collective_call *k, dp_array *const *from, dp_array **to, dp_error *err)
{
    DP_TRY(dp_arrays_make(c->group, to, err));
    for (int r = 0; r < c->n; r++) {
        int d = c->member[r];
        if (!takes_part(k, k->kind->get_root, r)) continue;
        if (to[d] == from[d] && takes_part(k, k->kind->give_root, r) && !k->kind->in_place)
            return dp_on_device(
                err, d,
                dp_fail(err, DP_EARGUMENT, "%s cannot give and get the same array on device %d; use two.", k->kind->name, d));
        k->to[r] = to[d];
    }
    return DP_OK;
}

static void find_parts(const dp_collective *c, dp_collective_call *k)
{
    dp_splitter even = {.kind = DP_SPLIT_EVEN, .leaves = c->n, .devices = c->n, .min_rows = 1};
    dp_split s;
    dp_split_plan(&s, &even, k->whole.n);
    for (int r = 0; r < c->n; r++) k->begin[r + 1] = k->begin[r] + (k->kind->give == DP_PART ? k->from[r].n : s.leaf[r].rows);
}

static dp_status collect(dp_collective *c, const dp_collective_kind *kind, int root, dp_array *const *from, dp_array **to,
                         dp_error *err)
{
    dp_collective_call k = {.kind = kind, .root = -1};
    int rooted = kind->give_root || kind->get_root, moves = kind->give != DP_NOTHING;
    if (!c || (moves && (!from || !to)))
        return dp_fail(err, DP_EARGUMENT, "%s wants a collective%s.", kind->name, moves ? " and two lists of arrays" : "");
    if (rooted && (root < 0 || root >= c->group->n || c->rank[root] < 0))
        return dp_fail(err, DP_EARGUMENT, "%s: device %d is not one of the %d that this collective was opened on.", kind->name,
                       root, c->n);
    if (rooted) k.root = c->rank[root];
    if (moves) {
        DP_TRY(check_from(c, &k, from, err));
        DP_TRY(check_to(c, &k, from, to, err));
        find_parts(c, &k);
    }
    if (!atomic_load(&c->group->aborted)) c->call = k; /* else it may be in use, and no job starts any more */
    return dp_group_call(c->group, (dp_job){.run = dp_collective_run, .finished = dp_collective_ended, .user = c}, err);
}

dp_status dp_collective_broadcast(dp_collective *c, int root, dp_array **from, dp_array **to, dp_error *err)
{
    return collect(c, &broadcast, root, from, to, err);
}

dp_status dp_collective_reduce(dp_collective *c, int root, dp_array **from, dp_array **to, dp_error *err)
{
    return collect(c, &reduce, root, from, to, err);
}

dp_status dp_collective_all_reduce(dp_collective *c, dp_array **from, dp_array **to, dp_error *err)
{
    return collect(c, &all_reduce, -1, from, to, err);
}

dp_status dp_collective_gather(dp_collective *c, int root, dp_array **from, dp_array **to, dp_error *err)
{
    return collect(c, &gather, root, from, to, err);
}

dp_status dp_collective_all_gather(dp_collective *c, dp_array **from, dp_array **to, dp_error *err)
{
    return collect(c, &all_gather, -1, from, to, err);
}

dp_status dp_collective_scatter(dp_collective *c, int root, dp_array **from, dp_array **to, dp_error *err)
{
    return collect(c, &scatter, root, from, to, err);
}

dp_status dp_collective_reduce_scatter(dp_collective *c, dp_array **from, dp_array **to, dp_error *err)
{
    return collect(c, &reduce_scatter, -1, from, to, err);
}

dp_status dp_collective_barrier(dp_collective *c, dp_error *err)
{
    return collect(c, &barrier, -1, NULL, NULL, err);
}

/* ---- open and close ---- */

static int needs_inbox(const dp_collective *c, int me)
{
    for (int r = 0; r < c->n; r++)
        if (r != me && dp_route(c->group, c->member[me], c->member[r]) != DP_ROUTE_PEER) return 1;
    return 0;
}

static size_t inbox_bytes(const dp_collective *c)
{
    return (size_t)(c->n - 1) * (size_t)c->share * 4;
}

/* Whatever the type: an element has 8 bytes at most. */
static size_t mirror_bytes(const dp_collective *c)
{
    return ((size_t)c->max_count * 8 + 63) / 64 * 64;
}

static dp_status open_mirrors(dp_collective *c, dp_error *err)
{
    for (int r = 0; r < c->n; r++) {
        int missed = 0;
        void *p;
        for (int k = 0; k < c->n; k++) missed |= !dp_reaches(c->group, c->member[k], c->member[r]);
        if (!missed) continue;
        DP_TRY(dp_group_pinned(c->group, mirror_bytes(c), &p, err));
        c->mirror[r] = p;
    }
    return DP_OK;
}

static dp_status run_open(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    dp_collective *c = user;
    const dp_backend *b = w->group->backend;
    int me = c->rank[w->device];
    void *p;
    (void)seq;
    if (me < 0) return DP_OK;
    if (needs_inbox(c, me)) {
        DP_TRY(b->alloc(w->be, DP_MEM_STAGING, inbox_bytes(c), "what a collective copies before it adds", &p, err));
        c->inbox[me] = p;
    }
    DP_TRY(b->alloc(w->be, DP_MEM_STAGING, (size_t)c->share * 4, "slices of a collective", &p, err));
    c->scratch[me] = p;
    DP_TRY(b->event_open(w->be, &c->end[me], err));
    DP_TRY(dp_signal_open(&c->given[me], w, err));
    return dp_signal_open(&c->ready[me], w, err);
}

static dp_status run_close(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    dp_collective *c = user;
    const dp_backend *b = w->group->backend;
    int me = c->rank[w->device];
    (void)seq;
    if (me < 0) return DP_OK;
    if (dp_finish_stream(w, err) == DP_ETIMEOUT) return DP_ETIMEOUT; /* something may still use it */
    if (dp_lost(w)) return DP_OK;
    dp_signal_close(&c->ready[me], w);
    dp_signal_close(&c->given[me], w);
    if (c->end[me]) b->event_close(c->end[me]);
    b->free(w->be, DP_MEM_STAGING, c->scratch[me], (size_t)c->share * 4);
    b->free(w->be, DP_MEM_STAGING, c->inbox[me], inbox_bytes(c));
    return DP_OK;
}

static dp_status choose_members(dp_collective *c, const int *devices, int n, dp_error *err)
{
    int size = c->group->n;
    for (int d = 0; d < size; d++) c->rank[d] = devices ? -1 : 0;
    for (int i = 0; devices && i < n; i++) {
        int d = devices[i];
        if (d < 0 || d >= size) return dp_fail(err, DP_EARGUMENT, "devices[%d] = %d; wanted 0 to %d.", i, d, size - 1);
        if (!c->rank[d]) return dp_fail(err, DP_EARGUMENT, "Device %d is twice in the list of a collective.", d);
        c->rank[d] = 0;
    }
    for (int d = 0; d < size; d++) {
        if (c->rank[d] < 0) continue;
        c->rank[d] = c->n;
        c->member[c->n++] = d;
    }
    return DP_OK;
}

dp_status dp_collective_open(dp_collective **out, dp_group *g, const int *devices, int n, int64_t max_count, dp_error *err)
{
    dp_status status;
    if (!out || !g) return dp_fail(err, DP_EARGUMENT, "dp_collective_open wants a place for the collective and a group.");
    *out = NULL;
    if (devices && (n < 1 || n > g->n))
        return dp_fail(err, DP_EARGUMENT, "dp_collective_open wants a list of 1 to %d devices, not %d.", g->n, n);
    if (max_count < 1 || max_count > INT64_MAX / 16)
        return dp_fail(err, DP_EARGUMENT, "dp_collective_open wants max_count, the elements of the largest array, not %lld.",
                       (long long)max_count);
    dp_collective *c = dp_calloc(1, sizeof *c);
    if (!c) return dp_fail(err, DP_ENOMEM, "Out of host memory for a collective.");
    c->group = g;
    c->max_count = max_count;
    if ((status = choose_members(c, devices, n, err))) {
        free(c);
        return status;
    }
    c->share = dp_collective_share(max_count, c->n);
    if ((status = dp_group_call(g, (dp_job){.run = run_open, .user = c}, err))) goto fail;
    if ((status = open_mirrors(c, err))) goto fail;
    *out = c;
    return DP_OK;
fail:
    dp_collective_close(c);
    return status;
}

void dp_collective_close(dp_collective *c)
{
    if (!c || dp_group_closing(c->group, (dp_job){.run = run_close, .user = c}, NULL)) return;
    for (int r = 0; r < c->n; r++) dp_group_unpinned(c->group, c->mirror[r], mirror_bytes(c));
    free(c);
}

/* ---- what moved ---- */

int dp_group_bytes(const dp_group *g, int device, int64_t *in, int64_t *out)
{
    if (!g || !in || !out || device < 0 || device >= g->n) return 0;
    *in = *out = 0;
    for (int d = 0; d < g->n; d++) {
        *in += atomic_load_explicit(&g->worker[device].received[d], memory_order_relaxed);
        *out += atomic_load_explicit(&g->worker[d].received[device], memory_order_relaxed);
    }
    return 1;
}
