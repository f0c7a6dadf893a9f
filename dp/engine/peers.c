/* Who reads whom (devices.transport). What a driver says of a pair is not believed: each device copies a pattern from every peer that it is
 * said to reach and looks at what came (P35, P36). Wrong bytes: that pair goes through the host, which is said once. A copy that does not end
 * has wedged its device: open fails and advises to go through the host. Where streams run in line devices share one memory: nothing
 * to test. */
#include "internal.h"
#include <stdlib.h>
#include <string.h>

enum { BYTES = 65536 };
static const double limit_s = 5;

typedef struct peer_test {
    dp_engine *engine; /* first, as in every job */
    int step;          /* 0: ask and lay out patterns; 1: read; 2: give memory back */
    void *memory[DP_MAX_DEVICES];
    uint8_t *host;   /* [device] BYTES: what each lays out; then [device] BYTES: what each has read */
    uint8_t *broken; /* [reader][owner] */
} peer_test;

static void pattern(uint8_t *p, int device)
{
    uint32_t x = 2654435761u * (uint32_t)(device + 1);
    for (int i = 0; i < BYTES; i++) {
        x = x * 1664525u + 1013904223u;
        p[i] = (uint8_t)(x >> 24);
    }
}

static dp_status finish(dp_worker *w, int from, dp_error *err)
{
    const dp_backend *b = w->group->backend;
    double begin = dp_now();
    int done = 0;
    dp_status status = b->record(w->stream, w->finish);
    while (!status && (done = b->done(w->finish)) == 0 && dp_now() - begin < limit_s) continue;
    if (!status && done < 0) status = (dp_status)-done;
    if (!status && !done) status = DP_ETIMEOUT;
    return status ? dp_fail(err, status,
                            "A test copy from device %d to device %d did not end (%s). Access control or an IOMMU between them "
                            "may break it: "
                            "set devices.transport = host.",
                            from, w->device, dp_status_name(status))
                  : DP_OK;
}

static dp_status lay_out(peer_test *t, dp_worker *w, dp_error *err)
{
    dp_engine *e = t->engine;
    const dp_backend *b = e->group->backend;
    int me = w->device;
    for (int d = 0; d < e->n; d++)
        e->reads[me * e->n + d] = d == me || (!e->on.through_host && b->reads_peer(w->be, e->group->worker[d].be));
    if (b->in_line || e->n == 1) return DP_OK;
    DP_TRY(b->alloc(w->be, DP_MEM_STAGING, 2 * BYTES, "memory to test peers", &t->memory[me], err));
    pattern(t->host + (size_t)me * BYTES, me);
    dp_status status = b->copy(w->stream, t->memory[me], t->host + (size_t)me * BYTES, BYTES);
    return status ? dp_fail(err, status, "A copy of %d bytes failed.", BYTES) : finish(w, me, err);
}

static dp_status read_all(peer_test *t, dp_worker *w, dp_error *err)
{
    dp_engine *e = t->engine;
    const dp_backend *b = e->group->backend;
    int me = w->device;
    uint8_t *got = t->host + (size_t)(e->n + me) * BYTES;
    char *here = (char *)t->memory[me] + BYTES;
    for (int i = 1; i < e->n && t->memory[me]; i++) {
        int d = (me + i) % e->n;
        if (!e->reads[me * e->n + d]) continue;
        dp_status status = b->copy(w->stream, here, t->memory[d], BYTES);
        if (!status) status = b->copy(w->stream, got, here, BYTES);
        if (status) return dp_fail(err, status, "A test copy from device %d to device %d failed.", d, me);
        DP_TRY(finish(w, d, err));
        t->broken[me * e->n + d] = memcmp(got, t->host + (size_t)d * BYTES, BYTES) != 0;
    }
    return DP_OK;
}

static dp_status run_test(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    peer_test *t = user;
    (void)seq;
    if (t->step == 0) return lay_out(t, w, err);
    if (t->step == 1) return read_all(t, w, err);
    if (!dp_lost(w)) t->engine->group->backend->free(w->be, DP_MEM_STAGING, t->memory[w->device], 2 * BYTES);
    return DP_OK;
}

static void take_out_broken(dp_engine *e, const peer_test *t)
{
    for (int r = 0; r < e->n; r++)
        for (int d = 0; d < e->n; d++) {
            if (!t->broken[r * e->n + d]) continue;
            e->reads[r * e->n + d] = 0;
            dp_log(e->config, DP_LOG_WARN,
                   "Device %d reads wrong bytes from device %d, without an error; this pair goes through the host. Access "
                   "control or an IOMMU "
                   "may be why.",
                   r, d);
        }
}

dp_status dp_peers_look(dp_engine *e, dp_error *err)
{
    size_t n = (size_t)e->n;
    peer_test t = {.engine = e};
    dp_status status = DP_OK;
    t.host = dp_calloc(2 * n, BYTES);
    t.broken = dp_calloc(n * n, 1);
    if (!t.host || !t.broken) status = dp_fail(err, DP_ENOMEM, "Out of host memory while opening the engine.");
    for (t.step = 0; t.step < 2 && !status; t.step++)
        status = dp_group_call(e->group, (dp_job){.run = run_test, .user = &t}, err);
    if (t.host && t.broken) {
        t.step = 2;
        dp_status freed = dp_group_closing(e->group, (dp_job){.run = run_test, .user = &t}, NULL);
        if (freed && !status) status = freed;
        if (freed) return status; /* a worker still reads all this */
        take_out_broken(e, &t);
    }
    free(t.host);
    free(t.broken);
    if (!status && dp_config_choice(e->config, "devices.transport") == 1 && !dp_all_read(e))
        return dp_fail(err, DP_ECONFIG, "devices.transport = peer: not every device can read the others; use auto or host.");
    return status;
}
