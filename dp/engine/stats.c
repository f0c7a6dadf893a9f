/* What an engine tells about itself, and what it lends: loaders with its memory, input normalisation. */
#include "../../data/loader.h"
#include "internal.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int dp_engine_devices(const dp_engine *e)
{
    return e ? e->n : 0;
}

int dp_engine_stats(const dp_engine *e, int device, dp_device_stats *s)
{
    if (!e || !s || device < 0 || device >= e->n) return 0;
    const dp_memory *m = e->group->backend->memory(e->group->worker[device].be);
    *s = e->stats[device];
    dp_device_info info;
    if (e->group->backend->enumerate(e->group->list.index[device], &info))
        memcpy(s->name, info.name, sizeof s->name);
    else
        snprintf(s->name, sizeof s->name, "%s:%d", e->group->backend->kind, e->group->list.index[device]);
    for (int i = 0; i < DP_MEM_CLASSES; i++) {
        s->live[i] = __atomic_load_n(&m->live[i], __ATOMIC_RELAXED);
        s->peak[i] = __atomic_load_n(&m->peak[i], __ATOMIC_RELAXED);
    }
    for (int d = 0; d < e->n; d++)
        s->bytes_out += atomic_load_explicit(&e->group->worker[d].received[device], memory_order_relaxed);
    s->created = atomic_load_explicit(&e->replica[device].created, memory_order_relaxed);
    return 1;
}

int dp_engine_split(const dp_engine *e, int64_t n, int64_t *rows, int max)
{
    dp_split s;
    if (!e || !rows || n < 1) return 0;
    dp_split_plan(&s, &e->splitter, n);
    for (int d = 0; d < e->n && d < max; d++) {
        rows[d] = 0;
        for (int i = s.begin[d]; i < s.begin[d + 1]; i++) rows[d] += s.leaf[i].rows;
    }
    return e->n;
}

/* ---- loaders ---- */

static dp_status slot_alloc(void *user, size_t bytes, void **p, dp_error *err)
{
    const dp_backend *b = user;
    return b->alloc_pinned(bytes, p, err);
}

static void slot_release(void *user, void *p, size_t bytes)
{
    const dp_backend *b = user;
    b->free_pinned(p, bytes);
}

dp_status dp_engine_loader(dp_engine *e, dp_data *d, int train, dp_loader **l, dp_error *err)
{
    DP_TRY(dp_engine_check(e, "dp_engine_loader", err));
    if (!d || !l) return dp_fail(err, DP_EARGUMENT, "dp_engine_loader wants a data set and a place for the loader.");
    const dp_config *c = e->config;
    int min_rows = e->graph->min_rows;
    dp_slot_memory memory = {slot_alloc, slot_release, (void *)(uintptr_t)e->group->backend};
    dp_loader_options o = {.batch_size = train ? dp_config_int(c, "data.batch_size") : e->eval_rows * e->n,
                           .accumulate = train ? (int)dp_config_int(c, "data.accumulate") : 1,
                           .shuffle = train && dp_config_flag(c, "data.shuffle"),
                           .drop_last = train && dp_config_flag(c, "data.drop_last"),
                           .seed = e->seed,
                           .workers = (int)dp_config_int(c, "data.workers"),
                           .prefetch = (int)dp_config_int(c, "data.prefetch"),
                           .timeout_s = e->group->list.timeout_s};
    if (train && min_rows > 1 && e->on.small_batch == DP_SMALL_MERGE) o.merge_small = min_rows;
    if (train && min_rows > 1 && e->on.small_batch == DP_SMALL_DROP) o.drop_small = min_rows;
    return dp_loader_open(l, d, &o, &memory, err);
}

/* ---- normalisation ---- */

typedef struct normalize_job {
    dp_engine *engine;
    const float *mean, *inv_std;
    int n;
} normalize_job;

static dp_status run_normalize(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    const normalize_job *j = user;
    dp_replica *r = &j->engine->replica[w->device];
    (void)seq;
    r->normalize = j->n > 0;
    if (!j->n) return DP_OK;
    DP_TRY(dp_fetch(w, r->mean, j->mean, (size_t)j->n * 4, -1, err));
    DP_TRY(dp_fetch(w, r->inv_std, j->inv_std, (size_t)j->n * 4, -1, err));
    return dp_finish_stream(w, err);
}

dp_status dp_engine_set_normalize(dp_engine *e, const double *mean, const double *std, int n, dp_error *err)
{
    DP_TRY(dp_engine_check(e, "Setting the normalisation", err));
    int channels = n ? e->replica[0].channels : 0;
    if (n && n != 1 && n != channels)
        return dp_fail(err, DP_ECONFIG, "data.normalize has %d channels; the model's input has %d.", n, channels);
    float *m = dp_calloc((size_t)channels * 2, sizeof *m);
    if (!m) return dp_fail(err, DP_ENOMEM, "Out of memory while setting the normalisation.");
    float *s = m + channels;
    dp_status status = DP_OK;
    for (int i = 0; i < channels && !status; i++) {
        int k = n == 1 ? 0 : i; /* one value stands for all: a flat input has a channel a pixel */
        if (!(std[k] > 0) || !isfinite(std[k]) || !isfinite(mean[k]))
            status = dp_fail(err, DP_ECONFIG, "data.normalize: the deviation of channel %d is %g; wanted a positive number.", k,
                             std[k]);
        m[i] = (float)mean[k];
        s[i] = (float)(1 / std[k]);
    }
    normalize_job j = {e, m, s, channels};
    if (!status) status = dp_engine_job(e, (dp_job){.run = run_normalize, .user = &j}, err);
    free(m);
    return status;
}
