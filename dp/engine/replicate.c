/* replicate: new parameters from the master to every device.
 *
 * With reduce = sliced: scatter and all-gather. Device d takes slice d of every bucket from the master and says so, then takes each
 * other slice from the device that has it: the master sends its parameters once, not N - 1 times. With reduce = master every device
 * takes all of them from the master. Slices are equal parts of a bucket (nn/params.h). A device's parameters are read by the others, so it
 * takes new ones only when those have all of job `before`, the last that replicated: a reduction need not lie between. */
#include "internal.h"

static dp_status pull_slice(dp_engine *e, dp_replica *r, int slice, int from, dp_error *err)
{
    const dp_params *p = e->params;
    for (int b = 0; b < p->n_buckets; b++) {
        int64_t size = p->bucket[b].count / e->n, at = p->bucket[b].offset + slice * size;
        DP_TRY(dp_fetch(r->w, r->param + at, e->replica[from].param + at, (size_t)size * 4, from, err));
    }
    return DP_OK;
}

dp_status dp_phase_replicate(dp_engine *e, dp_replica *r, uint64_t version, uint64_t job, uint64_t before, dp_error *err)
{
    int me = r->w->device;
    if (me == 0) return DP_OK;
    dp_phase_begin(r->w, DP_PHASE_REPLICATE);
    DP_TRY(dp_signal_wait(&e->params_ready, r->w, version, "the master's parameters", err));
    if (e->on.reduce_on_master) return dp_fetch(r->w, r->param, e->replica[0].param, (size_t)e->params->count * 4, 0, err);
    for (int d = 1; d < e->n; d++)
        if (before && d != me) DP_TRY(dp_signal_wait(&e->has_params[d], r->w, before, "a device's last parameters", err));
    DP_TRY(pull_slice(e, r, me, 0, err));
    DP_TRY(dp_signal_raise(&e->has_slice[me], r->w, job, err));
    DP_TRY(pull_slice(e, r, 0, 0, err));
    for (int d = 1; d < e->n; d++) {
        if (d == me) continue;
        DP_TRY(dp_signal_wait(&e->has_slice[d], r->w, job, "a slice of the parameters", err));
        DP_TRY(pull_slice(e, r, d, d, err));
    }
    return dp_signal_raise(&e->has_params[me], r->w, job, err);
}
