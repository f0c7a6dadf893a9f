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

const char *dp_engine_device_name(const dp_engine *e, int device, char *buf, size_t size)
{
    dp_device_info info;
    dp_group_device(e->group, device, &info);
    snprintf(buf, size, "%s", info.name);
    return buf;
}

int dp_engine_stats(const dp_engine *e, int device, dp_device_stats *s)
{
    if (!e || !s || device < 0 || device >= e->n) return 0;
    const dp_memory *m = e->group->backend->memory(e->group->worker[device].be);
    *s = e->stats[device];
    dp_engine_device_name(e, device, s->name, sizeof s->name);
    for (int i = 0; i < DP_MEM_CLASSES; i++) {
        s->live[i] = __atomic_load_n(&m->live[i], __ATOMIC_RELAXED);
        s->peak[i] = __atomic_load_n(&m->peak[i], __ATOMIC_RELAXED);
    }
    s->bytes_out += dp_engine_sent(e, device);
    s->created = atomic_load_explicit(&e->replica[device].created, memory_order_relaxed);
    return 1;
}

int dp_engine_health(const dp_engine *e, int device, dp_device_health *h)
{
    if (!e || !h || device < 0 || device >= e->n || !e->group->backend->health) return 0;
    return e->group->backend->health(e->group->worker[device].be, h);
}

/* The first device's: others of its kind chose the same (P05). */
void dp_choices_say(const dp_engine *e)
{
    const char *at = e->backend->notes ? e->backend->notes(e->group->worker[0].be) : "";
    for (size_t n; *at; at += n + (at[n] == '\n')) {
        n = strcspn(at, "\n");
        dp_log(e->config, DP_LOG_INFO, "%.*s", (int)n, at);
    }
}

/* ---- timeline ---- */

dp_status dp_engine_trace(dp_engine *e, dp_span_fn fn, void *user, dp_error *err)
{
    if (!e || !fn) return dp_fail(err, DP_EARGUMENT, "dp_engine_trace wants an engine and a function.");
    for (int d = 0; d < e->n; d++) {
        const dp_timeline *t = &e->group->worker[d].timeline;
        uint64_t end = e->replica[d].booked;
        if (end - e->traced[d] > DP_RECORDS) e->traced[d] = end - DP_RECORDS;
        for (; e->traced[d] < end; e->traced[d]++) {
            const dp_record *r = &t->record[e->traced[d] % DP_RECORDS];
            dp_span s = {.device = d,
                         .lane = r->lane,
                         .phase = r->phase,
                         .bucket = r->bucket,
                         .step = r->step,
                         .begin = r->begin - e->opened_at,
                         .end = r->end - e->opened_at,
                         .waited = r->waited,
                         .bytes_in = r->received,
                         .host_in = r->host_in,
                         .host_out = r->host_out,
                         .peers = r->peers};
            snprintf(s.layer, sizeof s.layer, "%s", r->layer);
            fn(user, &s);
        }
    }
    return DP_OK;
}

/* ---- links ---- */

dp_status dp_engine_measure_links(dp_engine *e, dp_error *err)
{
    DP_TRY(dp_engine_check(e, "dp_engine_measure_links", err));
    dp_status status = dp_group_measure_links(e->group, err);
    if (status) e->failed = 1;
    return status;
}

int dp_engine_link(const dp_engine *e, int from, int to, dp_link *l)
{
    if (!e || !dp_group_link(e->group, from, to, l)) return 0;
    l->bytes += e->link_before[from * e->n + to];
    return 1;
}

/* ---- split ---- */

int dp_engine_split(const dp_engine *e, int64_t n, int64_t *rows, int max)
{
    dp_split s;
    if (!e || !rows || n < 1 || e->n < 1) return 0;
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
    dp_engine *e = user;
    return dp_group_pinned(e->group, bytes, p, err);
}

static void slot_release(void *user, void *p, size_t bytes)
{
    dp_engine *e = user;
    if (e->group)
        dp_group_unpinned(e->group, p, bytes);
    else /* a recovery that failed closed it */
        e->backend->free_pinned(p, bytes);
}

dp_status dp_engine_loader(dp_engine *e, dp_data *d, int train, dp_loader **l, dp_error *err)
{
    DP_TRY(dp_engine_check(e, "dp_engine_loader", err));
    if (!d || !l) return dp_fail(err, DP_EARGUMENT, "dp_engine_loader wants a data set and a place for the loader.");
    const dp_config *c = e->config;
    int min_rows = e->graph->min_rows;
    dp_slot_memory memory = {slot_alloc, slot_release, e};
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
    DP_TRY(dp_loader_open(l, d, &o, &memory, err));
    dp_engine_warn_unlocked(e);
    return DP_OK;
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
    if (!status) status = dp_keep_normalize(e, mean, std, n, err);
    free(m);
    return status;
}
