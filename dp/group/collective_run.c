/* A member's side of the collectives. Calls return when everything has ended, so what the arrays hold at the call may be read at once;
 * only what a member makes in the call itself is waited for, by that member's signal.
 *
 * Whole arrays are cut into slices of whole blocks, so that every port carries a share: a sum is made slice by slice, each by the
 * member that owns it, and then collected where it is wanted; a broadcast goes out in slices that the receivers exchange. The tree
 * of a sum is over the members in device order whatever the slice, so its bytes do not depend on who adds.
 *
 * A member that some other does not reach first copies what it gives to its mirror, and later what it makes; the others wait for that. Both
 * have the place in the mirror that they have in the array: what they share is only a slice that its owner alone reads. */
#include "collective.h"

typedef struct walk {
    dp_collective *c;
    const dp_collective_call *call;
    dp_worker *w;
    int me;
    uint64_t seq;
} walk;

typedef struct slice {
    int64_t at, count;
} slice;

static int64_t whole_blocks(int64_t count)
{
    return (count + DP_BLOCK - 1) / DP_BLOCK;
}

static slice cut(int64_t blocks, int parts, int i) /* sizes differ by at most one block */
{
    int64_t each = blocks / parts, larger = blocks % parts;
    int64_t at = each * i + (i < larger ? i : larger);
    return (slice){at * DP_BLOCK, (each + (i < larger)) * DP_BLOCK};
}

int64_t dp_collective_share(int64_t count, int parts)
{
    return cut(whole_blocks(count), parts, 0).count;
}

static int reaches(const walk *k, int r)
{
    return dp_reaches(k->c->group, k->w->device, k->c->member[r]);
}

/* Bytes of this member's memory that stand at `at` in its array, for those who do not reach it. */
static dp_status publish(const walk *k, const void *memory, int64_t at, int64_t bytes, dp_error *err)
{
    char *mirror = k->c->mirror[k->me];
    if (!mirror || !bytes) return DP_OK;
    dp_status status = k->w->group->backend->copy(k->w->stream, mirror + at, memory, (size_t)bytes);
    return status ? dp_fail(err, status, "A copy of %lld bytes to host memory failed.", (long long)bytes) : DP_OK;
}

static dp_status give(const walk *k, dp_error *err)
{
    const dp_collective_kind *kind = k->call->kind;
    const dp_rows *x = &k->call->from[k->me];
    int gives = kind->give != DP_NOTHING && x->data && (!kind->give_root || k->me == k->call->root);
    int64_t bytes = x->n * x->width * (int64_t)dp_dtype_size(x->dtype);
    if (!k->c->mirror[k->me]) return DP_OK;
    if (gives) DP_TRY(publish(k, x->data, 0, (bytes + 63) / 64 * 64, err)); /* sums are of whole blocks */
    return dp_signal_raise(&k->c->given[k->me], k->w, k->seq, err);
}

static dp_status await_given(const walk *k, int r, dp_error *err)
{
    return r == k->me || reaches(k, r) ? DP_OK : dp_signal_wait(&k->c->given[r], k->w, k->seq, "what a device gives", err);
}

/* src: memory of member `from`, where it stands at `at` in that member's array. */
static dp_status take(const walk *k, void *dst, const void *src, int64_t at, int64_t bytes, int from, dp_error *err)
{
    if (!bytes || dst == src) return DP_OK;
    if (from != k->me)
        return dp_fetch(k->w, dst, reaches(k, from) ? src : k->c->mirror[from] + at, (size_t)bytes, k->c->member[from], err);
    dp_status status = k->w->group->backend->copy(k->w->stream, dst, src, (size_t)bytes);
    return status ? dp_fail(err, status, "A copy of %lld bytes failed.", (long long)bytes) : DP_OK;
}

/* A slice that others want stands at `memory`. */
static dp_status raise_ready(const walk *k, const float *memory, slice s, dp_error *err)
{
    DP_TRY(publish(k, memory, s.at * 4, s.count * 4, err));
    return dp_signal_raise(&k->c->ready[k->me], k->w, k->seq, err);
}

static dp_status await_slice(const walk *k, int rank, dp_error *err)
{
    return dp_signal_wait(&k->c->ready[rank], k->w, k->seq, "a device's slice", err);
}

/* The n - 1 others hold a slice each: the root sends every byte once, and the receivers pass them on. In floats, whatever the type. */
static dp_status run_broadcast(const walk *k, dp_error *err)
{
    const dp_collective_call *x = k->call;
    int n = k->c->n;
    int64_t bytes = x->whole.n * x->whole.width * (int64_t)dp_dtype_size(x->whole.dtype),
            blocks = whole_blocks((bytes + 3) / 4);
    const float *src = x->from[x->root].data;
    float *dst = x->to[k->me]->data;
    DP_TRY(await_given(k, x->root, err));
    if (k->me == x->root) return take(k, dst, src, 0, bytes, x->root, err);
    slice s = cut(blocks, n - 1, k->me - (k->me > x->root));
    DP_TRY(take(k, dst + s.at, src + s.at, s.at * 4, s.count * 4, x->root, err));
    DP_TRY(raise_ready(k, dst + s.at, s, err));
    for (int i = 1; i < n; i++) {
        int r = (k->me + i) % n; /* not all from the same one at once */
        if (r == x->root) continue;
        s = cut(blocks, n - 1, r - (r > x->root));
        DP_TRY(await_slice(k, r, err));
        DP_TRY(take(k, dst + s.at, (const float *)x->to[r]->data + s.at, s.at * 4, s.count * 4, r, err));
    }
    return DP_OK;
}

static dp_status add(const walk *k, float *dst, slice s, dp_error *err)
{
    const float *src[DP_MAX_DEVICES];
    float *inbox = k->c->inbox[k->me];
    if (!s.count) return DP_OK;
    for (int r = 0; r < k->c->n; r++) {
        src[r] = (const float *)k->call->from[r].data + s.at;
        if (r == k->me) continue;
        if (dp_route(k->c->group, k->w->device, k->c->member[r]) == DP_ROUTE_PEER) {
            dp_phase_bytes(k->w, s.count * 4, k->c->member[r]);
            continue;
        }
        DP_TRY(await_given(k, r, err));
        DP_TRY(take(k, inbox, src[r], s.at * 4, s.count * 4, r, err));
        src[r] = inbox;
        inbox += k->c->share;
    }
    return dp_sum(k->w, dst, src, k->c->n, s.count, err);
}

/* Where member r puts the sum of its slice. In place is safe: nobody else reads that slice of its array. */
static float *place(const walk *k, int r, slice s)
{
    return k->call->to[r] ? (float *)k->call->to[r]->data + s.at : k->c->scratch[r];
}

static dp_status run_reduce(const walk *k, dp_error *err)
{
    int n = k->c->n, me = k->me;
    int64_t blocks = whole_blocks(k->call->whole.n * k->call->whole.width);
    slice s = cut(blocks, n, me);
    DP_TRY(add(k, place(k, me, s), s, err));
    DP_TRY(raise_ready(k, place(k, me, s), s, err));
    if (!k->call->to[me]) return DP_OK;
    for (int i = 1; i < n; i++) {
        int r = (me + i) % n;
        s = cut(blocks, n, r);
        DP_TRY(await_slice(k, r, err));
        DP_TRY(take(k, place(k, me, s), place(k, r, s), s.at * 4, s.count * 4, r, err));
    }
    return DP_OK;
}

/* A part may begin anywhere in a block: whole blocks are added, as many at a time as the scratch holds, and what is wanted of them
 * copied. */
static dp_status run_reduce_scatter(const walk *k, dp_error *err)
{
    const dp_collective_call *x = k->call;
    float *dst = x->to[k->me]->data, *scratch = k->c->scratch[k->me];
    int64_t begin = x->begin[k->me] * x->whole.width, end = x->begin[k->me + 1] * x->whole.width;
    slice s = {begin / DP_BLOCK * DP_BLOCK, 0};
    for (int64_t at = begin; at < end; at = s.at) {
        s.count = whole_blocks(end - s.at) * DP_BLOCK;
        if (s.count > k->c->share) s.count = k->c->share;
        DP_TRY(add(k, scratch, s, err));
        int64_t to = s.at + s.count < end ? s.at + s.count : end;
        DP_TRY(take(k, dst + (at - begin), scratch + (at - s.at), 0, (to - at) * 4, k->me, err));
        s.at += s.count;
    }
    return DP_OK;
}

static dp_status run_gather(const walk *k, dp_error *err)
{
    const dp_collective_call *x = k->call;
    int64_t row = x->whole.width * (int64_t)dp_dtype_size(x->whole.dtype);
    if (!x->to[k->me]) return DP_OK;
    for (int i = 0; i < k->c->n; i++) {
        int r = (k->me + i) % k->c->n;
        char *dst = (char *)x->to[k->me]->data + x->begin[r] * row;
        DP_TRY(await_given(k, r, err));
        DP_TRY(take(k, dst, x->from[r].data, 0, x->from[r].n * row, r, err));
    }
    return DP_OK;
}

static dp_status run_scatter(const walk *k, dp_error *err)
{
    const dp_collective_call *x = k->call;
    int64_t row = x->whole.width * (int64_t)dp_dtype_size(x->whole.dtype);
    int64_t begin = x->begin[k->me], rows = x->begin[k->me + 1] - begin;
    DP_TRY(await_given(k, x->root, err));
    return take(k, x->to[k->me]->data, (const char *)x->from[x->root].data + begin * row, begin * row, rows * row, x->root,
                err);
}

static dp_status run_part(const walk *k, dp_error *err)
{
    const dp_collective_kind *kind = k->call->kind;
    if (kind->give == DP_NOTHING) return DP_OK; /* all that there is to wait for is what was launched before */
    if (kind->sums) return kind->get == DP_PART ? run_reduce_scatter(k, err) : run_reduce(k, err);
    if (kind->give == DP_PART) return run_gather(k, err);
    return kind->get == DP_PART ? run_scatter(k, err) : run_broadcast(k, err);
}

dp_status dp_collective_run(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    dp_collective *c = user;
    const dp_collective_call *x = &c->call;
    int me = c->rank[w->device];
    if (me < 0) return DP_OK;
    dp_phase_begin(w, x->kind->phase);
    if (x->to[me]) {
        int64_t at = x->kind->get == DP_PART ? x->begin[me] : 0;
        dp_rows shape = x->whole;
        if (x->kind->get == DP_PART) shape.n = x->begin[me + 1] - at;
        DP_TRY(dp_array_fit(x->to[me], shape, x->first + at, err));
    }
    walk k = {c, x, w, me, seq};
    DP_TRY(give(&k, err));
    DP_TRY(run_part(&k, err));
    dp_status status = w->group->backend->record(w->stream, c->end[me]);
    return status ? dp_fail(err, status, "Recording an event failed.") : DP_OK;
}

int dp_collective_ended(void *user, dp_worker *w, uint64_t seq)
{
    const dp_collective *c = user;
    int me = c->rank[w->device];
    (void)seq;
    return me < 0 ? 1 : w->group->backend->done(c->end[me]);
}
