/* Where one device finds what another has, by the route of the pair (links.h).
 *
 * Devices that do not reach each other meet in host memory: what others read of a device has a mirror there. Its owner publishes before it
 * raises the signal, in the same lane; who reaches the device takes it from there, the others from the mirror. So every handover keeps its
 * signal and its order, whatever the route. Where copies are the route the reader makes them, too: the owner's signal says when, and the
 * reader's stream knows when its inbox is free again; an owner that pushed would have to be told so by each reader, bucket by bucket. */
#include "internal.h"
#include <stdlib.h>
#include <string.h>

/* ---- open, close: on the device's worker ---- */

static dp_status add(dp_engine *e, dp_worker *w, const void *memory, size_t bytes, char *host, dp_error *err)
{
    const dp_backend *b = e->group->backend;
    dp_mirror *m = &e->mirror[w->device];
    void *p = host;
    if (!memory || !bytes) return DP_OK;
    if (m->n == m->room) {
        int room = m->room ? 2 * m->room : 16;
        dp_mirrored *more = realloc(m->range, (size_t)room * sizeof *more);
        if (!more) return dp_fail(err, DP_ENOMEM, "Out of host memory while opening device %d.", w->device);
        m->range = more, m->room = room;
    }
    if (!p) DP_TRY(b->alloc_pinned(bytes, &p, err));
    int locked = !host && b->pin && b->pin(w->be, p, bytes, NULL) == DP_OK; /* else copies are slower */
    m->range[m->n++] = (dp_mirrored){memory, p, bytes, !host, locked};
    return DP_OK;
}

dp_status dp_mirror_open(dp_engine *e, dp_worker *w, dp_error *err)
{
    int me = w->device;
    const dp_replica *r = &e->replica[me];
    size_t params = (size_t)e->params->count * 4, buffers = (size_t)e->params->buffer_count * 4,
           width = (size_t)e->graph->node[e->graph->out].width * 4, chunks = (size_t)(e->params->count / DP_CHUNK + 1) * 8;
    if (dp_reached(e->group, me)) return DP_OK;
    DP_TRY(add(e, w, r->grad[0], params, NULL, err));
    if (r->window) DP_TRY(add(e, w, r->window, params, e->mirror[me].range[0].host, err)); /* one of the two takes part */
    DP_TRY(add(e, w, r->param, params, NULL, err));
    DP_TRY(add(e, w, r->buffer, buffers, NULL, err));
    DP_TRY(add(e, w, r->verdict, 2 * sizeof *r->verdict, NULL, err));
    for (int i = 0; i < 2; i++) DP_TRY(add(e, w, r->chunk_sums[i], chunks, NULL, err));
    for (int i = 0; i < r->n_leaf_stats; i++) DP_TRY(add(e, w, r->leaf_stats[i], buffers, NULL, err));
    for (uint64_t i = 0; e->n_parts && i < 2; i++)
        DP_TRY(add(e, w, dp_plan_part(r->plan, i), dp_plan_part_bytes(r->plan), NULL, err));
    if (e->on.loss_on_master) DP_TRY(add(e, w, dp_plan_output(r->plan), (size_t)r->capacity * width, NULL, err));
    if (me) return DP_OK;
    DP_TRY(add(e, w, e->all_rows, e->all_bytes, NULL, err));
    for (int d = 1; d < e->n; d++) DP_TRY(add(e, w, e->gathered[d].gradient, (size_t)r->capacity * width, NULL, err));
    return DP_OK;
}

void dp_mirror_close(dp_engine *e, dp_worker *w)
{
    const dp_backend *b = e->group->backend;
    dp_mirror *m = &e->mirror[w->device];
    for (int i = 0; i < m->n; i++) {
        if (m->range[i].locked && !dp_lost(w)) b->unpin(w->be, m->range[i].host);
        if (m->range[i].own) b->free_pinned(m->range[i].host, m->range[i].bytes);
    }
    free(m->range);
    memset(m, 0, sizeof *m);
}

/* ---- in a step ---- */

static char *mirror_of(const dp_engine *e, int owner, const void *memory)
{
    const dp_mirror *m = &e->mirror[owner];
    for (int i = 0; i < m->n; i++) {
        const dp_mirrored *x = &m->range[i];
        uintptr_t at = (uintptr_t)memory, begin = (uintptr_t)x->memory;
        if (at >= begin && at < begin + x->bytes) return x->host + (at - begin);
    }
    return NULL;
}

dp_status dp_publish(dp_engine *e, dp_worker *w, const void *memory, size_t bytes, int counted, dp_error *err)
{
    char *host = e->mirror[w->device].n ? mirror_of(e, w->device, memory) : NULL;
    if (!host || !bytes) return DP_OK;
    dp_status status = e->group->backend->copy(w->stream, host, memory, bytes);
    if (status) return dp_fail(err, status, "A copy of %zu bytes to host memory failed.", bytes);
    _Atomic int64_t *sum = &e->mirror[w->device].published; /* one writer */
    if (counted)
        atomic_store_explicit(sum, atomic_load_explicit(sum, memory_order_relaxed) + (int64_t)bytes, memory_order_relaxed);
    return DP_OK;
}

const void *dp_seen(const dp_engine *e, int reader, int owner, const void *memory)
{
    return dp_reaches(e->group, reader, owner) ? memory : mirror_of(e, owner, memory);
}

dp_status dp_take(dp_engine *e, dp_worker *w, void *dst, int owner, const void *memory, size_t bytes, dp_error *err)
{
    return dp_fetch(w, dst, dp_seen(e, w->device, owner, memory), bytes, owner, err);
}

dp_status dp_bring(dp_engine *e, dp_replica *r, const float **memory, int owner, int64_t count, int slot, dp_error *err)
{
    float *here;
    if (!*memory || dp_route(e->group, r->w->device, owner) == DP_ROUTE_PEER) {
        if (*memory && owner != r->w->device) dp_phase_bytes(r->w, count * 4, owner);
        return DP_OK;
    }
    here = r->inbox[r->w->lane] + slot * r->inbox_slot[r->w->lane];
    DP_TRY(dp_take(e, r->w, here, owner, *memory, (size_t)count * 4, err));
    *memory = here;
    return DP_OK;
}

int64_t dp_engine_sent(const dp_engine *e, int device)
{
    int64_t bytes = atomic_load_explicit(&e->mirror[device].published, memory_order_relaxed);
    for (int d = 0; d < e->n; d++)
        if (d != device && dp_reaches(e->group, d, device))
            bytes += atomic_load_explicit(&e->group->worker[d].received[device], memory_order_relaxed);
    return bytes;
}
