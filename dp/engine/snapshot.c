/* devices.on_device_failure = continue: a state on the host that can be gone back to, and copies of the batches since then.
 *
 * Every run.snapshot_every windows the batch that closes one also copies the state to the host, behind its update and in the lanes that
 * write it, each device its own part: the next update waits for the copy, nothing else does. It counts when that batch has been waited
 * for. Two sets take turns; while one is on its way none is begun. Where values come from outside (start, load, put) the next batch
 * waits for a snapshot. */
#include "internal.h"
#include <stdlib.h>
#include <string.h>

/* ---- life ---- */

/* Of a group that is closed: nothing is page-locked any more. */
static void free_set(const dp_keep *k, dp_snapshot *s)
{
    k->backend->free_pinned(s->param, k->param_bytes);
    k->backend->free_pinned(s->m, k->param_bytes);
    k->backend->free_pinned(s->v, k->param_bytes);
    k->backend->free_pinned(s->buffer, k->buffer_bytes);
    k->backend->free_pinned(s->verdict, sizeof *s->verdict);
}

/* Sets in the layout of e->params; each array has one element more than it needs, since an empty one cannot be had. */
static dp_status make_sets(dp_engine *e, dp_keep *k, dp_error *err)
{
    int states = dp_optimizer_states(&e->optimizer);
    k->param_bytes = ((size_t)e->params->count + 1) * 4;
    k->buffer_bytes = ((size_t)e->params->buffer_count + 1) * 4;
    for (int i = 0; i < 2; i++) {
        dp_snapshot *s = &k->set[i];
        float **part[] = {&s->param, &s->buffer, states > 0 ? &s->m : NULL, states > 1 ? &s->v : NULL};
        void *p;
        for (size_t j = 0; j < sizeof part / sizeof *part; j++) {
            if (!part[j]) continue;
            DP_TRY(dp_group_pinned(e->group, part[j] == &s->buffer ? k->buffer_bytes : k->param_bytes, &p, err));
            *part[j] = memset(p, 0, part[j] == &s->buffer ? k->buffer_bytes : k->param_bytes);
        }
        DP_TRY(dp_group_pinned(e->group, sizeof *s->verdict, &p, err));
        s->verdict = p;
    }
    return DP_OK;
}

dp_status dp_keep_open(dp_engine *e, dp_error *err)
{
    int64_t every = dp_config_int(e->config, "run.snapshot_every");
    if (dp_config_choice(e->config, "devices.on_device_failure") == 0) return DP_OK;
    dp_keep *k = e->keep = dp_calloc(1, sizeof *k);
    if (!k) return dp_fail(err, DP_ENOMEM, "Out of host memory for snapshots.");
    k->backend = e->group->backend;
    k->every = every;
    k->stale = 1;
    return make_sets(e, k, err);
}

void dp_keep_close(dp_keep *k)
{
    if (!k) return;
    for (int i = 0; i < 2; i++) free_set(k, &k->set[i]);
    for (int i = 0; i < k->room; i++) free(k->batch[i].memory);
    free(k->batch);
    free(k->mean);
    free(k->deviation);
    free(k);
}

dp_status dp_keep_normalize(dp_engine *e, const double *mean, const double *deviation, int n, dp_error *err)
{
    dp_keep *k = e->keep;
    if (!k || k->replaying) return DP_OK;
    double *m = dp_calloc((size_t)n + 1, sizeof *m), *d = dp_calloc((size_t)n + 1, sizeof *d);
    if (!m || !d) {
        free(m);
        free(d);
        return dp_fail(err, DP_ENOMEM, "Out of memory while setting the normalisation.");
    }
    if (n) memcpy(m, mean, sizeof *m * (size_t)n), memcpy(d, deviation, sizeof *d * (size_t)n);
    free(k->mean);
    free(k->deviation);
    k->mean = m, k->deviation = d, k->channels = n;
    return DP_OK;
}

/* ---- the state ---- */

/* A flat array of which this device holds the slices that it steps (all of them, or its own only): those go to the host. */
static dp_status send_slices(dp_engine *e, dp_replica *r, float *host, const float *memory, int packed, dp_error *err)
{
    for (int b = 0; b < e->params->n_buckets; b++) {
        int64_t at = dp_slice_at(e, b, r->w->device);
        int64_t from = packed ? e->params->bucket[b].offset / e->n : at;
        DP_TRY(dp_send(r->w, host + at, memory + from, (size_t)dp_slice_size(e, b) * 4, err));
    }
    return DP_OK;
}

dp_status dp_snapshot_take(dp_engine *e, dp_replica *r, dp_snapshot *s, dp_error *err)
{
    int me = r->w->device, sliced = e->on.update == DP_UPDATE_SLICED;
    size_t all = (size_t)e->params->count * 4, buffers = (size_t)e->params->buffer_count * 4;
    if (me == 0 && buffers) { /* committed in this lane */
        dp_lane_enter(r->w, DP_LANE_COMPUTE);
        dp_phase_begin(r->w, DP_PHASE_SHARE);
        DP_TRY(dp_send(r->w, s->buffer, r->buffer, buffers, err));
    }
    dp_lane_enter(r->w, dp_update_lane(e));
    dp_phase_begin(r->w, DP_PHASE_SHARE);
    if (me == 0) DP_TRY(dp_send(r->w, s->verdict, r->verdict, sizeof *s->verdict, err));
    if (e->on.update == DP_UPDATE_MASTER) {
        if (me) return DP_OK;
        DP_TRY(dp_send(r->w, s->param, r->param, all, err));
        if (s->m) DP_TRY(dp_send(r->w, s->m, r->m, all, err));
        return s->v ? dp_send(r->w, s->v, r->v, all, err) : DP_OK;
    }
    DP_TRY(send_slices(e, r, s->param, r->param, 0, err));
    if (s->m) DP_TRY(send_slices(e, r, s->m, r->m, sliced, err));
    return s->v ? send_slices(e, r, s->v, r->v, sliced, err) : DP_OK;
}

dp_snapshot *dp_snapshot_begin(dp_engine *e, int64_t batches, int last_of_window)
{
    dp_keep *k = e->keep;
    if (!k || !last_of_window || ++k->windows < k->every || k->taking) return NULL;
    if (k->replaying && batches - 1 <= k->returned) return NULL; /* who keeps his place beside ours knows of none there */
    dp_snapshot *s = &k->set[!k->valid];
    k->windows = 0;
    k->taking = 1;
    s->batches = batches;
    return s;
}

/* The other set counts from now on; batches before it are no longer needed. */
void dp_snapshot_taken(dp_engine *e)
{
    dp_keep *k = e->keep;
    int64_t before = k->set[k->valid].batches;
    k->valid = !k->valid;
    k->taking = 0;
    int64_t over = k->set[k->valid].batches - before;
    if (over > k->n || k->stale) over = k->n;
    k->first = k->room ? (int)((k->first + over) % k->room) : 0;
    k->n -= (int)over;
}

typedef struct snapshot_job {
    dp_engine *engine;
    dp_snapshot *to;
} snapshot_job;

static dp_status run_snapshot(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    const snapshot_job *j = user;
    (void)seq;
    DP_TRY(dp_finish_stream(w, err)); /* whatever lane wrote it */
    DP_TRY(dp_snapshot_take(j->engine, &j->engine->replica[w->device], j->to, err));
    return dp_finish_stream(w, err);
}

dp_status dp_keep_renew(dp_engine *e, dp_error *err)
{
    dp_keep *k = e->keep;
    if (!k || !k->stale) return DP_OK;
    snapshot_job j = {e, &k->set[!k->valid]};
    j.to->batches = dp_engine_batches(e);
    DP_TRY(dp_engine_job(e, (dp_job){.run = run_snapshot, .user = &j}, err));
    dp_snapshot_taken(e);
    k->windows = 0;
    k->stale = 0;
    return DP_OK;
}

dp_status dp_keep_fit(dp_engine *e, const dp_params *before, dp_error *err)
{
    dp_keep *k = e->keep, old = *k;
    dp_snapshot *from = &old.set[k->valid], *to = &k->set[0];
    memset(k->set, 0, sizeof k->set);
    dp_status status = make_sets(e, k, err);
    if (status) goto done;
    for (int i = 0; i < e->params->n_params; i++) {
        const dp_param *a = &before->param[i], *b = &e->params->param[i];
        size_t bytes = (size_t)b->count * 4;
        if (b->bucket < 0) {
            memcpy(to->buffer + b->offset, from->buffer + a->offset, bytes);
            continue;
        }
        memcpy(to->param + b->offset, from->param + a->offset, bytes);
        if (to->m) memcpy(to->m + b->offset, from->m + a->offset, bytes);
        if (to->v) memcpy(to->v + b->offset, from->v + a->offset, bytes);
    }
    *to->verdict = *from->verdict;
    to->batches = from->batches;
    k->valid = k->taking = 0;
    k->windows = 0;
done:
    for (int i = 0; i < 2; i++) free_set(&old, &old.set[i]);
    k->stale = status != DP_OK;
    return status;
}

/* ---- batches since then ---- */

const dp_kept_batch *dp_kept(const dp_keep *k, int64_t number)
{
    return &k->batch[(k->first + number - k->set[k->valid].batches) % k->room];
}

static dp_status grow(dp_keep *k, dp_error *err)
{
    int room = k->room ? 2 * k->room : 8;
    dp_kept_batch *more = dp_calloc((size_t)room, sizeof *more);
    if (!more) return dp_fail(err, DP_ENOMEM, "Out of host memory for copies of batches.");
    for (int i = 0; i < k->room; i++) more[i] = k->batch[(k->first + i) % k->room];
    free(k->batch);
    k->batch = more, k->room = room, k->first = 0;
    return DP_OK;
}

dp_status dp_keep_batch(dp_engine *e, const dp_batch *b, dp_error *err)
{
    dp_keep *k = e->keep;
    size_t x = (size_t)(b->x.n * b->x.width) * dp_dtype_size(b->x.dtype),
           y = (size_t)(b->y.n * b->y.width) * dp_dtype_size(b->y.dtype);
    size_t ids = b->ids ? (size_t)b->x.n * 8 : 0, y_at = (x + 63) / 64 * 64, ids_at = (y_at + y + 63) / 64 * 64;
    if (!k || k->replaying) return DP_OK;
    if (k->n == k->room) DP_TRY(grow(k, err));
    dp_kept_batch *kept = &k->batch[(k->first + k->n) % k->room];
    if (ids_at + ids > kept->room) {
        free(kept->memory);
        kept->room = 0;
        kept->memory = malloc(ids_at + ids);
        if (!kept->memory) return dp_fail(err, DP_ENOMEM, "Out of host memory for the copy of a batch (run.snapshot_every).");
        kept->room = ids_at + ids;
    }
    kept->batch = *b;
    kept->lr = e->lr;
    kept->batch.x.data = memcpy(kept->memory, b->x.data, x);
    kept->batch.y.data = memcpy(kept->memory + y_at, b->y.data, y);
    if (ids) kept->batch.ids = memcpy(kept->memory + ids_at, b->ids, ids);
    k->n++;
    return DP_OK;
}
