/* The signals of one device: opened and closed on its worker. */
#include "internal.h"
#include <stdlib.h>

enum { BY_BUCKET = 6, SINGLE = 8 };

static void list(dp_device_signals *s, dp_signal ***by_bucket, dp_signal **single)
{
    dp_signal **b[BY_BUCKET] = {&s->gradient, &s->offered, &s->sum, &s->param, &s->slice, &s->here};
    dp_signal *o[SINGLE] = {&s->read, &s->taken, &s->rows, &s->output, &s->loss, &s->part, &s->buffers, &s->stats};
    for (int i = 0; i < BY_BUCKET; i++) by_bucket[i] = b[i];
    for (int i = 0; i < SINGLE; i++) single[i] = o[i];
}

dp_status dp_signals_open(dp_engine *e, dp_worker *w, dp_error *err)
{
    dp_device_signals *s = &e->at[w->device];
    dp_signal **by_bucket[BY_BUCKET], *single[SINGLE];
    int n = e->params->n_buckets;
    list(s, by_bucket, single);
    for (int i = 0; i < BY_BUCKET; i++) {
        *by_bucket[i] = dp_calloc((size_t)n + 1, sizeof(dp_signal));
        if (!*by_bucket[i]) return dp_fail(err, DP_ENOMEM, "Out of host memory for signals.");
        for (int b = 0; b < n; b++) DP_TRY(dp_signal_open(&(*by_bucket[i])[b], w, err));
    }
    for (int i = 0; i < SINGLE; i++) /* the loss of every device is the master's to raise */
        if (single[i] != &s->loss) DP_TRY(dp_signal_open(single[i], w, err));
    for (int i = 0; i < DP_JOBS; i++) {
        dp_job_end *end = &e->ended[w->device * DP_JOBS + i];
        for (int lane = 0; lane < DP_LANES; lane++) DP_TRY(e->group->backend->event_open(w->be, &end->lane[lane], err));
    }
    if (w->device != 0) return DP_OK;
    for (int d = 1; d < e->n; d++) DP_TRY(dp_signal_open(&e->at[d].loss, w, err));
    DP_TRY(dp_signal_open(&e->merged, w, err));
    return dp_signal_open(&e->committed, w, err);
}

void dp_signals_close(dp_engine *e, dp_worker *w)
{
    dp_device_signals *s = &e->at[w->device];
    dp_signal **by_bucket[BY_BUCKET], *single[SINGLE];
    list(s, by_bucket, single);
    for (int i = 0; i < BY_BUCKET; i++) {
        for (int b = 0; *by_bucket[i] && b < e->params->n_buckets; b++) dp_signal_close(&(*by_bucket[i])[b], w);
        free(*by_bucket[i]);
    }
    for (int i = 0; i < SINGLE; i++)
        if (single[i] != &s->loss) dp_signal_close(single[i], w);
    for (int i = 0; i < DP_JOBS; i++) {
        dp_job_end *end = &e->ended[w->device * DP_JOBS + i];
        for (int lane = 0; lane < DP_LANES; lane++)
            if (end->lane[lane] && !dp_lost(w)) e->group->backend->event_close(end->lane[lane]);
    }
    if (w->device != 0) return;
    for (int d = 1; d < e->n; d++) dp_signal_close(&e->at[d].loss, w);
    dp_signal_close(&e->merged, w);
    dp_signal_close(&e->committed, w);
}
