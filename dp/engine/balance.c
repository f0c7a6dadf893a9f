/* Uneven devices: how fast each one is, a warning when the slowest holds the others up (P45), and with split = auto new shares every epoch.
 *
 * A device's rate is rows per second that it computed, waits left out: since the last look, so that it follows a machine whose load
 * changes. */
#include "../base/text.h"
#include "internal.h"
#include <math.h>

static const double weak = 0.75;    /* of the strongest */
static const double least_busy = 2; /* seconds of each device: less is noise, and not worth a word */

/* Rates since the last look; 0: a device has done nothing yet, there is none. *shortest: seconds of the least busy one. */
static int rates(dp_engine *e, double *rate, double *shortest)
{
    *shortest = INFINITY;
    for (int d = 0; d < e->n; d++) {
        dp_measured *m = &e->measured[d];
        double busy = 0;
        static const int phases[] = {DP_PHASE_UPLOAD, DP_PHASE_FORWARD, DP_PHASE_LOSS, DP_PHASE_BACKWARD};
        for (size_t i = 0; i < sizeof phases / sizeof *phases; i++) busy += e->stats[d].phase[phases[i]];
        *shortest = fmin(*shortest, busy - m->busy_before);
        rate[d] = busy > m->busy_before ? (double)(m->rows - m->rows_before) / (busy - m->busy_before) : 0;
        m->busy_before = busy;
        m->rows_before = m->rows;
        if (!(rate[d] > 0)) return 0;
    }
    return 1;
}

static void extremes(const double *x, int n, int *least, int *most)
{
    *least = *most = 0;
    for (int d = 1; d < n; d++) {
        if (x[d] < x[*least]) *least = d;
        if (x[d] > x[*most]) *most = d;
    }
}

void dp_balance_epoch(dp_engine *e, uint64_t epoch)
{
    double rate[DP_MAX_DEVICES] = {0}, shortest;
    int least, most, seen = e->epoch_seen;
    if (seen && e->epoch == epoch) return;
    e->epoch_seen = 1;
    e->epoch = epoch;
    if (!seen || e->n == 1 || !rates(e, rate, &shortest)) return;
    extremes(rate, e->n, &least, &most);
    if (rate[least] < weak * rate[most] && shortest > least_busy && !e->warned_weak && e->splitter.kind != DP_SPLIT_AUTO) {
        e->warned_weak = 1;
        dp_log(e->config, DP_LOG_WARN,
               "Device %d computes at %.0f %% of the rate of device %d and holds it up; try devices.split = auto, or weights.",
               least, 100 * rate[least] / rate[most], most);
    }
    if (e->splitter.kind != DP_SPLIT_AUTO) return;
    for (int d = 0; d < e->n; d++) e->splitter.weight[d] = rate[d];
}

/* Before anything is measured: what the devices say of themselves. */
void dp_balance_warn(dp_engine *e)
{
    double units[DP_MAX_DEVICES] = {0}, memory[DP_MAX_DEVICES] = {0};
    dp_device_info info;
    int least, most;
    for (int d = 0; d < e->n; d++) {
        if (!e->group->backend->enumerate(e->group->list.index[d], &info) || info.units < 1 || info.memory < 1) return;
        units[d] = info.units, memory[d] = (double)info.memory;
    }
    const double *by = units;
    extremes(units, e->n, &least, &most);
    if (units[least] >= weak * units[most]) by = memory, extremes(memory, e->n, &least, &most);
    if (by[least] >= weak * by[most] || e->splitter.kind == DP_SPLIT_AUTO || e->splitter.kind == DP_SPLIT_WEIGHTS) return;
    dp_log(e->config, DP_LOG_WARN,
           "Device %d has %.0f %% of the %s of device %d; equal parts hold that one up: try devices.split = auto.", least,
           100 * by[least] / by[most], by == units ? "computing units" : "memory", most);
}
