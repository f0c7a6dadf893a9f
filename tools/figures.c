/* Taking figures from an engine: counters as differences, spans as they come, links by bytes and time. */
#include "figures.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- counters ---- */

static void subtract(dp_device_stats *now, const dp_device_stats *then)
{
    now->busy -= then->busy, now->wait -= then->wait, now->hidden -= then->hidden;
    now->bytes_in -= then->bytes_in, now->bytes_out -= then->bytes_out;
    now->host_in -= then->host_in, now->host_out -= then->host_out;
    now->created -= then->created, now->steps -= then->steps;
    for (int i = 0; i < DP_PHASES; i++) now->phase[i] -= then->phase[i];
}

static void ignore_span(void *user, const dp_span *s)
{
    (void)user, (void)s;
}

int figures_open(figures *f, int devices, const char *name)
{
    memset(f, 0, sizeof *f);
    snprintf(f->name, sizeof f->name, "%s", name);
    f->devices = devices, f->newest = -1;
    f->device = calloc((size_t)devices, sizeof *f->device);
    f->health = calloc((size_t)devices, sizeof *f->health);
    f->link = calloc((size_t)devices * (size_t)devices, sizeof *f->link);
    return f->device && f->health && f->link;
}

int figures_begin(figures *f, dp_engine *e, const char *name)
{
    if (!figures_open(f, dp_engine_devices(e), name)) return 0;
    for (int d = 0; d < f->devices; d++) {
        dp_engine_stats(e, d, &f->device[d]);
        for (int from = 0; from < f->devices; from++) dp_engine_link(e, from, d, &f->link[from * f->devices + d].link);
    }
    dp_engine_trace(e, ignore_span, NULL, NULL);
    return 1;
}

void figures_free(figures *f)
{
    free(f->device);
    free(f->health);
    free(f->link);
    free(f->span);
    memset(f, 0, sizeof *f);
}

/* ---- spans ---- */

void figures_forget_spans(figures *f)
{
    f->n_span = 0;
}

/* A span that read several devices is shared among them evenly: what is read of each is a slice, and slices are of one size. */
static void book_links(figures *f, const dp_span *s)
{
    int peers = __builtin_popcountll(s->peers);
    for (int from = 0; peers && from < f->devices; from++)
        if (s->peers >> from & 1) f->link[from * f->devices + s->device].measured += (s->end - s->begin - s->waited) / peers;
}

void figures_add_span(void *user, const dp_span *s)
{
    figures *f = user;
    if (s->phase == DP_PHASE_IDLE || s->device >= f->devices) return;
    book_links(f, s);
    if (s->device == 0 && s->step > f->newest) f->covered++, f->newest = s->step;
    if (f->n_span == f->room) {
        int64_t room = f->room ? 2 * f->room : 512;
        dp_span *more = realloc(f->span, (size_t)room * sizeof *more);
        if (!more) {
            f->lost = 1;
            return;
        }
        f->span = more, f->room = room;
    }
    f->span[f->n_span++] = *s;
}

void figures_take_spans(figures *f, dp_engine *e)
{
    dp_engine_trace(e, figures_add_span, f, NULL);
}

/* ---- health ---- */

void figures_look(figures *f, dp_engine *e)
{
    for (int d = 0; d < f->devices; d++) {
        dp_device_health now, *worst = &f->health[d];
        if (!dp_engine_health(e, d, &now)) continue;
        if (!worst->clock_mhz || now.clock_mhz < worst->clock_mhz) worst->clock_mhz = now.clock_mhz;
        worst->max_clock_mhz = now.max_clock_mhz;
        if (now.xid) worst->xid = now.xid;
        if (now.others_bytes > worst->others_bytes) worst->others_bytes = now.others_bytes;
        if (*now.throttled) memcpy(worst->throttled, now.throttled, sizeof now.throttled);
    }
}

int figures_know_health(const figures *f, int n)
{
    for (int i = 0; i < n; i++)
        for (int d = 0; d < f[i].devices; d++)
            if (f[i].health[d].clock_mhz) return 1;
    return 0;
}

const char *figures_throttled(const dp_device_health *h, char *buf, size_t size)
{
    if (h->xid)
        snprintf(buf, size, "%s%sXid %d", h->throttled, *h->throttled ? ", " : "", (int)h->xid);
    else
        snprintf(buf, size, "%s", *h->throttled ? h->throttled : "no");
    return buf;
}

/* ---- the end ---- */

/* A device that idles while others are measured is not waiting for anything. */
static void leave_out_pauses(dp_device_stats *s, double seconds)
{
    double sum = 0, *idle = &s->phase[DP_PHASE_IDLE];
    for (int i = 0; i < DP_PHASES; i++) sum += s->phase[i];
    double outside = sum - seconds < *idle ? sum - seconds : *idle;
    if (seconds <= 0 || outside <= 0) return;
    *idle -= outside, s->wait -= outside;
}

dp_status figures_end(figures *f, dp_engine *e, dp_error *err)
{
    dp_status status = DP_OK;
    int n = f->devices;
    for (int d = 0; d < n; d++) {
        dp_device_stats now;
        if (!dp_engine_stats(e, d, &now)) continue;
        subtract(&now, &f->device[d]);
        leave_out_pauses(&now, f->seconds);
        f->device[d] = now;
        f->steps = now.steps;
    }
    if (n > 1) status = dp_engine_measure_links(e, err); /* after the peaks were read: it allocates */
    for (int i = 0; i < n * n; i++) {
        dp_link now;
        if (!dp_engine_link(e, i / n, i % n, &now)) continue;
        now.bytes -= f->link[i].link.bytes;
        f->link[i].link = now;
    }
    return status;
}

/* ---- questions ---- */

static double per_step(const figures *f, double v)
{
    return f->steps ? v / (double)f->steps : 0;
}

double figures_busy(const figures *f, int device)
{
    return per_step(f, f->device[device].busy);
}

int64_t figures_peak(const figures *f, int device)
{
    int64_t sum = 0;
    for (int c = 0; c < DP_MEM_CLASSES; c++) sum += c == DP_MEM_LIBRARY ? 0 : f->device[device].peak[c];
    return sum;
}

double figures_peak_value(const figures *f, int device)
{
    return (double)figures_peak(f, device);
}

double figures_expected(const figures *f, int from, int to)
{
    const dp_link *l = &f->link[from * f->devices + to].link;
    return l->bytes_per_s > 0 ? per_step(f, (double)l->bytes / l->bytes_per_s) : 0;
}

double figures_measured(const figures *f, int from, int to)
{
    return f->covered ? f->link[from * f->devices + to].measured / (double)f->covered : 0;
}

double figures_uneven(const figures *f, double (*of)(const figures *, int))
{
    double sum = 0, max = 0;
    for (int d = 0; d < f->devices; d++) {
        double v = of(f, d);
        sum += v;
        if (v > max) max = v;
    }
    return sum > 0 ? max * f->devices / sum : 1;
}

int64_t figures_busiest_port(const figures *f)
{
    int64_t max = 0;
    for (int d = 0; d < f->devices; d++) {
        if (f->device[d].bytes_in > max) max = f->device[d].bytes_in;
        if (f->device[d].bytes_out > max) max = f->device[d].bytes_out;
    }
    return f->steps ? max / f->steps : 0;
}

typedef struct extent {
    int64_t step;
    double begin, end;
} extent;

static int by_length(const void *a, const void *b)
{
    const extent *x = a, *y = b;
    double u = x->end - x->begin, v = y->end - y->begin;
    return (u > v) - (u < v);
}

static int64_t extents(const figures *f, extent *e, int64_t first, int64_t n)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) e[i] = (extent){-1, 0, 0};
    for (int64_t i = 0; i < f->n_span; i++) {
        const dp_span *s = &f->span[i];
        if (s->step < first || s->step >= first + n) continue;
        extent *x = &e[s->step - first];
        if (x->step < 0) *x = (extent){s->step, s->begin, s->end};
        if (s->begin < x->begin) x->begin = s->begin;
        if (s->end > x->end) x->end = s->end;
    }
    for (int64_t i = 0; i < n; i++)
        if (e[i].step >= 0) e[kept++] = e[i];
    return kept;
}

int64_t figures_typical_step(const figures *f, double *begin, double *end)
{
    int64_t first = 0, last = -1;
    for (int d = 0; d < f->devices; d++) { /* a ring may have lost the oldest, of one device more than of another */
        int64_t from = -1, to = -1;
        for (int64_t i = 0; i < f->n_span; i++) {
            const dp_span *s = &f->span[i];
            if (s->device != d || s->step < 0) continue;
            if (from < 0 || s->step < from) from = s->step;
            if (s->step > to) to = s->step;
        }
        if (from > first) first = from;
        if (!d || to < last) last = to;
    }
    if (last > first) first++; /* of the first one a part may be lost */
    if (last < first || f->lost) return -1;
    int64_t n = last - first + 1, step = -1;
    extent *e = malloc((size_t)n * sizeof *e);
    if (!e) return -1;
    int64_t kept = extents(f, e, first, n);
    if (kept > 0) {
        qsort(e, (size_t)kept, sizeof *e, by_length);
        step = e[kept / 2].step, *begin = e[kept / 2].begin, *end = e[kept / 2].end;
    }
    free(e);
    return step;
}
