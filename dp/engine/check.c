/* devices.check_replicas: are all devices' parameters still the master's, bit for bit? A peer copy that returns wrong bytes without an error
 * shows here (P36). Behind everything in flight; checksums by chunk tell which tensor differs. */
#include "internal.h"
#include <stdlib.h>
#include <string.h>

typedef struct check {
    dp_engine *engine;
    uint64_t *sums; /* [device][chunk] */
    int64_t chunks;
} check;

static dp_status run_check(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    const check *c = user;
    dp_replica *r = &c->engine->replica[w->device];
    (void)seq;
    DP_TRY(dp_finish_stream(w, err)); /* both lanes: parameters are whole, the norm's parts of the last step have been read */
    dp_phase_begin(w, DP_PHASE_SHARE);
    void *sums = r->check_sums;
    dp_status status = r->b->checksum(w->stream, r->param, c->engine->params->count, sums);
    if (status) return dp_fail(err, status, "The checksum of the parameters failed (%s).", dp_status_name(status));
    DP_TRY(dp_send(w, c->sums + w->device * c->chunks, sums, (size_t)c->chunks * 8, err));
    return dp_finish_stream(w, err);
}

static const char *tensor_at(const dp_engine *e, int64_t chunk)
{
    for (int i = 0; i < e->params->n_params; i++) {
        const dp_param *p = &e->params->param[i];
        if (p->bucket >= 0 && p->offset / DP_CHUNK <= chunk && (p->offset + p->count - 1) / DP_CHUNK >= chunk)
            return e->graph->tensor[i].name;
    }
    return "padding";
}

dp_status dp_check_replicas(dp_engine *e, dp_error *err)
{
    check c = {.engine = e, .chunks = e->params->count / DP_CHUNK};
    e->checked = e->updates;
    if (e->n == 1) return DP_OK;
    DP_TRY(dp_engine_settle(e, err));
    c.sums = dp_calloc((size_t)(c.chunks * e->n), sizeof *c.sums);
    if (!c.sums) return dp_fail(err, DP_ENOMEM, "Out of host memory while checking the replicas.");
    dp_status status = dp_engine_job(e, (dp_job){.run = run_check, .user = &c}, err);
    for (int d = 1; d < e->n && !status; d++)
        for (int64_t i = 0; i < c.chunks && !status; i++) {
            if (c.sums[d * c.chunks + i] == c.sums[i]) continue;
            const char *tensor = tensor_at(e, i);
            status = dp_fail(
                err, DP_EDEVICE,
                "After %lld optimizer steps the parameters of device %d are not those of the master; first in %s. Copies "
                "between these devices cannot be trusted: try leaving that device out.",
                (long long)e->updates, d, tensor);
            dp_error_place(err, d, d, DP_PHASE_REPLICATE, dp_phase_name(DP_PHASE_REPLICATE), -1, tensor);
            e->failed = 1;
        }
    free(c.sums);
    return status;
}
