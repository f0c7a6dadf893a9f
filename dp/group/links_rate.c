/* How fast the routes are: at each distance every device reads from the one so much further, all at once, so that each port works in both
 * directions as it does in a step. What is timed is what a reduction does: the other's numbers and its own, added up. */
#include "links.h"
#include <string.h>

enum { LAY_OUT, MEASURE, GIVE_BACK };
enum { TIMES = 3 };
typedef struct measurement {
    dp_group *group;
    int step, route, distance, size;
    size_t bytes;
    float *memory[DP_MAX_DEVICES]; /* what others read of a device */
    float *inbox[DP_MAX_DEVICES];  /* what it makes of that */
    char *host[DP_MAX_DEVICES];    /* (2, bytes): what others read; what it copies there */
    int locked[DP_MAX_DEVICES];
} measurement;

static dp_status lay_out(measurement *m, dp_worker *w, dp_error *err)
{
    const dp_backend *b = m->group->backend;
    int me = w->device;
    void *p;
    /* Counted as what a model will take in its place, so that no peak is higher for it. */
    DP_TRY(b->alloc(w->be, DP_MEM_PARAMETERS, m->bytes, "memory to measure links", &p, err));
    m->memory[me] = p;
    DP_TRY(b->alloc(w->be, DP_MEM_GRADIENTS, m->bytes, "memory to measure links", &p, err));
    m->inbox[me] = p;
    dp_status status = b->fill(w->stream, m->memory[me], 0, m->bytes);
    if (status) return dp_fail(err, status, "Clearing device memory failed.");
    if (!b->in_line) {
        DP_TRY(b->alloc_pinned(2 * m->bytes, &p, err));
        m->host[me] = memset(p, 0, 2 * m->bytes);
        m->locked[me] = b->pin && b->pin(w->be, p, 2 * m->bytes, NULL) == DP_OK;
    }
    const float *one = m->memory[me];
    status = b->sum(w->stream, m->inbox[me], &one, 1, (int64_t)m->bytes / 4); /* and a kernel's first run loads it */
    return status ? dp_fail(err, status, "A sum failed.") : dp_finish_stream(w, err);
}

static dp_status give_back(measurement *m, dp_worker *w)
{
    const dp_backend *b = m->group->backend;
    int me = w->device;
    if (m->locked[me] && !dp_lost(w)) b->unpin(w->be, m->host[me]);
    if (m->host[me]) b->free_pinned(m->host[me], 2 * m->bytes);
    if (dp_lost(w)) return DP_OK;
    b->free(w->be, DP_MEM_PARAMETERS, m->memory[me], m->bytes);
    b->free(w->be, DP_MEM_GRADIENTS, m->inbox[me], m->bytes);
    return DP_OK;
}

/* Through the host a device is owner and reader at once, in two streams: pieces of a step follow each other so, too. */
static dp_status read_once(const measurement *m, dp_worker *w, int owner, size_t bytes)
{
    const dp_backend *b = m->group->backend;
    int me = w->device;
    float *mine = m->memory[me], *inbox = m->inbox[me];
    const float *pair[2] = {mine, inbox};
    dp_status status = DP_OK;
    if (m->route == DP_ROUTE_HOST) {
        dp_lane_enter(w, DP_LANE_SHARE);
        status = b->copy(w->stream, m->host[me] + m->bytes, mine, bytes);
    }
    dp_lane_enter(w, DP_LANE_REDUCE);
    if (!status && m->route != DP_ROUTE_PEER)
        status = b->copy(w->stream, inbox, m->route == DP_ROUTE_HOST ? (void *)m->host[owner] : m->memory[owner], bytes);
    if (m->route == DP_ROUTE_PEER) pair[1] = m->memory[owner];
    return status ? status : b->sum(w->stream, inbox, pair, 2, (int64_t)bytes / 4);
}

static dp_status measure(const measurement *m, dp_worker *w, dp_error *err)
{
    dp_links *l = m->group->links;
    int n = m->group->n, owner = (w->device + m->distance) % n;
    dp_pair *p = &l->pair[w->device * n + owner];
    dp_status status = DP_OK;
    if (m->route > p->best) return DP_OK;
    dp_phase_idle(w);
    double begin = dp_now();
    for (int i = 0; i < TIMES && !status; i++) status = read_once(m, w, owner, (size_t)l->size[m->size]);
    if (status) dp_fail(err, status, "A read of the memory of device %d by device %d failed.", owner, w->device);
    if (!status) status = dp_finish_stream(w, err);
    p->seconds[m->route][m->size] = (dp_now() - begin) / TIMES;
    dp_lane_enter(w, DP_LANE_COMPUTE);
    return status;
}

static dp_status run(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    measurement *m = user;
    (void)seq;
    if (m->step == GIVE_BACK) return give_back(m, w);
    return m->step == LAY_OUT ? lay_out(m, w, err) : measure(m, w, err);
}

dp_status dp_links_measure(dp_group *g, int64_t bytes, dp_error *err)
{
    dp_links *l = g->links;
    measurement m = {.group = g, .bytes = (size_t)(bytes / 1024 * 1024)};
    dp_job job = {.run = run, .user = &m};
    l->size[0] = (int64_t)m.bytes / 16, l->size[1] = (int64_t)m.bytes;
    dp_status status = dp_group_call(g, job, err);
    m.step = MEASURE;
    for (m.distance = 1; m.distance < g->n; m.distance++)
        for (m.route = 0; m.route < DP_ROUTES; m.route++) {
            if (g->backend->in_line && m.route != DP_ROUTE_COPY) continue; /* one memory: there is but one way */
            for (m.size = 0; m.size < 2 && !status; m.size++) status = dp_group_call(g, job, err);
        }
    m.step = GIVE_BACK;
    dp_status left = status == DP_ETIMEOUT ? status : dp_group_closing(g, job, NULL);
    if (left) dp_group_leave(g); /* what hangs may still write to all this */
    return status ? status : left;
}
