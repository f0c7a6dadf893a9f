/* Host memory that copies read fast: allocated on any thread, page-locked by the master's worker, for only workers may call a device's
 * driver. A range that cannot be locked works as it is, only slower; that is said once (P25). What is still locked when the worker
 * ends is unlocked there. */
#include "group.h"
#include "../base/memory.h"
#include <stdlib.h>
#include <string.h>

struct dp_pinned { /* the caller's list: only its thread, or the worker at its end, touches it */
    dp_pinned *next;
    void *p;
    size_t bytes;
};

typedef struct pin_job {
    void *p;
    size_t bytes;
    int lock, locked;
} pin_job;

static dp_status run_pin(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    pin_job *j = user;
    const dp_backend *b = w->group->backend;
    dp_error why;
    (void)seq, (void)err;
    if (w->device != 0 || dp_lost(w)) return DP_OK;
    if (j->lock)
        j->locked = b->pin(w->be, j->p, j->bytes, &why) == DP_OK;
    else
        b->unpin(w->be, j->p);
    return DP_OK;
}

dp_status dp_group_pinned(dp_group *g, size_t bytes, void **p, dp_error *err)
{
    pin_job j = {.bytes = bytes, .lock = 1};
    DP_TRY(g->backend->alloc_pinned(bytes, p, err));
    if (!g->backend->pin) return DP_OK;
    dp_pinned *range = dp_calloc(1, sizeof *range);
    j.p = *p;
    if (!range || dp_group_call(g, (dp_job){.run = run_pin, .user = &j}, NULL) || !j.locked) {
        free(range);
        g->unlocked += bytes;
        return DP_OK;
    }
    *range = (dp_pinned){g->pinned, *p, bytes};
    g->pinned = range;
    return DP_OK;
}

void dp_group_unpinned(dp_group *g, void *p, size_t bytes)
{
    pin_job j = {.p = p, .bytes = bytes};
    for (dp_pinned **at = &g->pinned; p && *at; at = &(*at)->next) {
        dp_pinned *range = *at;
        if (range->p != p) continue;
        *at = range->next;
        free(range);
        dp_group_closing(g, (dp_job){.run = run_pin, .user = &j}, NULL);
        break;
    }
    g->backend->free_pinned(p, bytes);
}

void dp_pinned_end(dp_worker *w)
{
    dp_group *g = w->group;
    while (w->device == 0 && g->pinned) {
        dp_pinned *range = g->pinned;
        g->pinned = range->next;
        if (!dp_lost(w)) g->backend->unpin(w->be, range->p);
        free(range);
    }
}
