/* devices.on_device_failure = continue, when the failed device's context lives: the engine is opened anew without it, in its place and behind
 * the same handle, gets the last snapshot, and trains again on the copies of the batches since. With devices.shards the bytes are
 * those of a run in which nothing failed. What has been returned is not returned again. */
#include "../base/text.h"
#include "internal.h"
#include <stdlib.h>
#include <string.h>

/* ---- settings without one device ---- */

/* "a,b,c" without entry k. */
static void leave_out(char *list, int k)
{
    char *at = list;
    for (; k > 0 && at; k--) at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL;
    if (!at) return;
    char *end = strchr(at, ',');
    if (end)
        memmove(at, end + 1, strlen(end));
    else
        at[at > list ? -1 : 0] = 0;
}

dp_status dp_config_without(dp_config *c, const dp_engine *e, int device, dp_error *err)
{
    const dp_group *g = e->group;
    char use[DP_MAX_DEVICES * 12] = "", threads[16], *weights = strdup(dp_config_text(e->config, "devices.weights"));
    const char *kind = strcmp(g->backend->kind, "cuda") ? "cpu" : "cuda";
    for (int d = 0; d < g->n; d++)
        if (d != device)
            dp_format(use + strlen(use), sizeof use - strlen(use), "%s%s:%d", *use ? "," : "", kind, g->list.index[d]);
    dp_format(threads, sizeof threads, "%d", g->list.threads);
    dp_status status = weights ? DP_OK : DP_ENOMEM;
    if (!status) status = dp_config_set(c, "devices.use", use);
    if (!status) status = dp_config_set(c, "devices.threads", threads); /* as many as before: they decide on rounding */
    if (!status && *weights) {
        leave_out(weights, device);
        status = dp_config_set(c, "devices.weights", weights);
    }
    free(weights);
    return status ? dp_fail(err, status, "The settings without device %d cannot be made.", device) : DP_OK;
}

dp_status dp_engine_without(const dp_engine *e, const dp_error *failure, dp_config *c, dp_error *err)
{
    if (!e->group || failure->device < 0 || failure->device >= e->n)
        return dp_fail(err, DP_EARGUMENT, "The failure names no device that could be left out.");
    if (e->n == 1) return dp_fail(err, DP_EARGUMENT, "It was the last device: none is left to go on with.");
    return dp_config_without(c, e, failure->device, err);
}

/* ---- what survives ---- */

typedef struct survivors { /* of the devices that go on, in their new order */
    int n;
    dp_device_stats stats[DP_MAX_DEVICES];
    dp_measured measured[DP_MAX_DEVICES];
    double booked_to[DP_MAX_DEVICES], weight[DP_MAX_DEVICES];
    int64_t moved[DP_MAX_DEVICES][DP_MAX_DEVICES]; /* from, to */
} survivors;

static int64_t moved(const dp_engine *e, int from, int to)
{
    return e->link_before[from * e->n + to] + atomic_load_explicit(&e->group->worker[to].received[from], memory_order_relaxed);
}

static void note(const dp_engine *e, int lost, survivors *s)
{
    s->n = 0;
    for (int d = 0; d < e->n; d++) {
        int me = s->n, to = 0;
        if (d == lost) continue;
        s->stats[me] = e->stats[d];
        s->stats[me].bytes_out += dp_engine_sent(e, d); /* of which the new workers will not know */
        s->measured[me] = e->measured[d];
        s->booked_to[me] = e->replica[d].booked_to;
        s->weight[me] = e->splitter.weight[d];
        for (int i = 0; i < e->n; i++)
            if (i != lost) s->moved[me][to++] = moved(e, d, i);
        s->n++;
    }
}

static void give(dp_engine *e, const survivors *s)
{
    for (int d = 0; d < e->n; d++) {
        e->stats[d] = s->stats[d];
        e->measured[d] = s->measured[d];
        e->replica[d].booked_to = s->booked_to[d];
        if (e->splitter.kind == DP_SPLIT_AUTO) e->splitter.weight[d] = s->weight[d];
        for (int i = 0; i < e->n; i++) e->link_before[d * e->n + i] = s->moved[d][i];
    }
}

/* ---- back to the snapshot ---- */

static dp_status open_without(dp_engine *e, int lost, dp_error *err)
{
    dp_params *before = e->params;
    survivors *s = dp_calloc(1, sizeof *s);
    if (!s) return dp_fail(err, DP_ENOMEM, "Out of host memory.");
    note(e, lost, s);
    dp_status status = dp_config_without(e->config, e, lost, err);
    e->failed = 1; /* nothing in flight is waited for */
    if (!status) status = dp_engine_stop(e, err);
    if (status) goto done;
    dp_engine next = {.config = e->config,
                      .graph = e->graph,
                      .leaves = e->leaves,
                      .keep = e->keep,
                      .backend = e->backend,
                      .warned_unlocked = e->warned_unlocked,
                      .opened_at = e->opened_at,
                      .epoch = e->epoch,
                      .epoch_seen = e->epoch_seen,
                      .warned_weak = e->warned_weak};
    *e = next;
    status = dp_engine_start(e, next.backend, err);
    if (!status) status = dp_keep_fit(e, before, err);
    dp_params_free(before);
    if (!status) give(e, s);
done:
    e->failed = status != DP_OK;
    if (status) e->keep->stale = 1; /* its layout is gone */
    free(s);
    return status;
}

static dp_status restore(dp_engine *e, dp_error *err)
{
    const dp_keep *k = e->keep;
    const dp_snapshot *s = &k->set[k->valid];
    dp_host_state h = {s->param, s->buffer, s->m, s->v, *s->verdict};
    e->first_batch = s->batches;
    e->updates = e->checked = h.verdict.steps;
    DP_TRY(dp_engine_move(e, &h, 0, 1, err));
    DP_TRY(dp_engine_set_normalize(e, k->mean, k->deviation, k->channels, err));
    return dp_engine_renew(e, err);
}

/* Batches up to `wanted` are waited for, the rest (those the caller has in flight) are left in flight. */
static dp_status replay(dp_engine *e, int64_t wanted, int64_t end, dp_result *r, dp_error *err)
{
    for (int64_t i = e->first_batch; i < end; i++) {
        const dp_kept_batch *kept = dp_kept(e->keep, i);
        dp_result result;
        e->lr = kept->lr;
        DP_TRY(dp_engine_submit(e, &kept->batch, err));
        if (i > wanted) continue;
        DP_TRY(dp_wait_once(e, &result, err));
        if (i == wanted && r) *r = result;
    }
    return DP_OK;
}

/* ---- whether and how ---- */

/* The context lives, and somebody else is there. */
static int can_go_on(const dp_engine *e, dp_status cause, const dp_error *err)
{
    int soft = cause != DP_EDEVICE_LOST && cause != DP_ETIMEOUT && cause != DP_EFAILED && cause != DP_ENONFINITE;
    return e->keep && !e->keep->stale && soft && e->group && e->n > 1 && err->device >= 0 && err->device < e->n &&
           atomic_load(&e->group->aborted); /* a worker said so */
}

int dp_recovered(dp_engine *e, dp_status *status, int64_t wanted, dp_result *r, dp_error *err)
{
    dp_keep *k = e->keep;
    int64_t end = dp_engine_batches(e);
    double lr = e->lr;
    int64_t returned = e->first_batch + (int64_t)e->waited - 1;
    if (wanted < 0) wanted = returned;
    char name[32];
    while (*status && can_go_on(e, *status, err)) {
        dp_error why;
        dp_engine_device_name(e, err->device, name, sizeof name);
        dp_log(e->config, DP_LOG_WARN,
               "%s failed in %s: %s Going on with %d device%s; %lld batches since the last snapshot are trained again.", name,
               *err->phase_name ? err->phase_name : "a call", err->text, e->n - 1, e->n > 2 ? "s" : "",
               (long long)(end - k->set[k->valid].batches));
        k->replaying = 1;
        k->returned = returned;
        dp_status opened = open_without(e, err->device, &why);
        if (opened) {
            dp_log(e->config, DP_LOG_WARN, "That failed: %s", why.text);
            break; /* the first failure is what the caller is told */
        }
        *status = restore(e, err);
        if (!*status) *status = replay(e, wanted, end, r, err);
    }
    if (k) k->replaying = 0;
    e->lr = lr;
    return *status == DP_OK;
}
