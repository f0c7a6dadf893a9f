/* Time on a page: what every lane did in one step, and the phases as a table. Positions are percentages, so that a
 * picture fills what width there is and its text is not scaled. */
#include "page.h"
#include <stdio.h>
#include <string.h>

static int occurs(const figures *f, int n, int phase)
{
    for (int i = 0; i < n; i++)
        for (int d = 0; d < f[i].devices; d++)
            if (f[i].device[d].phase[phase] > 0) return 1;
    return 0;
}

static const char *plain(const char *phase, char *buf, size_t size) /* "data wait" */
{
    snprintf(buf, size, "%s", phase);
    for (char *c = buf; *c; c++)
        if (*c == '_') *c = ' ';
    return buf;
}

static void swatch(page *p, const char *colour, const char *name)
{
    page_raw(p, "<li><svg aria-hidden=\"true\"><rect width=\"12\" height=\"12\" style=\"fill:var(--%s)\"/></svg>%s</li>",
             colour, name);
}

void page_legend(page *p, const figures *f, int n, int idle)
{
    char name[32];
    page_raw(p, "<ul class=\"legend\">");
    for (int i = 0; i < DP_PHASES; i++)
        if (occurs(f, n, i) && (idle || i != DP_PHASE_IDLE))
            swatch(p, dp_phase_name(i), plain(dp_phase_name(i), name, sizeof name));
    if (!idle)
        page_raw(p, "<li><svg aria-hidden=\"true\"><rect width=\"12\" height=\"12\" style=\"fill:var(--ref)\"/>"
                    "<rect width=\"12\" height=\"12\" class=\"wait\"/></svg>hatched: of it waiting for another device</li>");
    page_raw(p, "</ul>\n");
}

/* ---- one step ---- */

typedef struct window {
    const figures *f;
    int64_t step;
    double begin, end, scale; /* scale: seconds of the whole width */
} window;

static void describe(page *p, const window *w, const dp_span *s)
{
    char a[32], b[32], name[32];
    page_text(p, "%s%s%s: %s, from %s", plain(dp_phase_name(s->phase), name, sizeof name), s->layer[0] ? " " : "", s->layer,
              seconds_text(a, sizeof a, s->end - s->begin), seconds_text(b, sizeof b, s->begin - w->begin));
    if (s->step >= 0 && s->step != w->step) page_text(p, " (step %lld)", (long long)s->step);
    if (s->waited > 0) page_text(p, "; of it waiting %s", seconds_text(a, sizeof a, s->waited));
    if (s->bucket >= 0) page_text(p, "; bucket %d", s->bucket);
    if (s->host_in > 0) page_text(p, "; %s from the host", bytes_text(a, sizeof a, (double)s->host_in));
    if (s->bytes_in > 0) {
        page_text(p, "; %s from", bytes_text(a, sizeof a, (double)s->bytes_in));
        for (int d = 0; d < w->f->devices; d++)
            if (s->peers >> d & 1) page_text(p, " %s", w->f->device[d].name);
    }
}

static void span(page *p, const window *w, const dp_span *s)
{
    double x = 100 * (s->begin - w->begin) / w->scale, width = 100 * (s->end - s->begin) / w->scale;
    char name[32];
    if (x < 0) width += x, x = 0;
    if (x + width > 100) width = 100 - x;
    if (width <= 0) return;
    page_raw(p, "<svg x=\"%.3f%%\" width=\"%.3f%%\" height=\"100%%\"%s><title>", x, width,
             s->step == w->step ? "" : " class=\"other\"");
    describe(p, w, s);
    page_raw(p, "</title><rect width=\"100%%\" height=\"100%%\" style=\"fill:var(--%s)\"/>", dp_phase_name(s->phase));
    double waiting = s->end > s->begin ? 100 * s->waited / (s->end - s->begin) : 0;
    if (waiting > 0) page_raw(p, "<rect width=\"%.2f%%\" height=\"100%%\" class=\"wait\"/>", waiting < 100 ? waiting : 100);
    if (width > 6 && waiting < 50 && s->lane == DP_LANE_COMPUTE)
        page_raw(p, "<text x=\"5\" y=\"15\" aria-hidden=\"true\">%s</text>", plain(dp_phase_name(s->phase), name, sizeof name));
    page_raw(p, "</svg>");
}

static void lane(page *p, const window *w, int device, int lane_index)
{
    const figures *f = w->f;
    static const char *const what[DP_LANES] = {
        [DP_LANE_COMPUTE] = "compute", [DP_LANE_REDUCE] = "reduce", [DP_LANE_SHARE] = "share"};
    int first = lane_index == DP_LANE_COMPUTE;
    page_raw(p, first ? "<span class=\"who\">" : "<span class=\"lane\">");
    page_text(p, "%s", first ? f->device[device].name : what[lane_index]);
    page_raw(p, "</span><svg class=\"%s\" role=\"img\" aria-label=\"", first ? "" : "thin");
    page_text(p, "%s, lane %s of one step; the table has its phases", f->device[device].name, what[lane_index]);
    page_raw(p, "\">");
    for (int64_t i = 0; i < f->n_span; i++) {
        const dp_span *s = &f->span[i];
        if (s->device == device && s->lane == lane_index && s->end > w->begin && s->begin < w->begin + w->scale) span(p, w, s);
    }
    page_raw(p, "</svg>\n");
}

static int used(const figures *f, int lane_index)
{
    for (int64_t i = 0; i < f->n_span; i++)
        if (f->span[i].lane == lane_index) return 1;
    return 0;
}

static void axis(page *p, double seconds)
{
    char a[32];
    page_raw(p, "<span class=\"axis\" aria-hidden=\"true\">");
    for (int i = 0; i <= 4; i++) page_raw(p, "<span>%s</span>", i ? seconds_text(a, sizeof a, seconds * i / 4) : "0");
    page_raw(p, "</span>");
}

void page_timelines(page *p, const figures *f, int n)
{
    double begin, end, scale = 0;
    char a[32];
    for (int i = 0; i < n; i++)
        if (figures_typical_step(&f[i], &begin, &end) >= 0 && end - begin > scale) scale = end - begin;
    if (scale <= 0) {
        page_note(p, "The devices' rings do not hold a whole step any more.");
        return;
    }
    page_legend(p, f, n, 0);
    for (int i = 0; i < n; i++) {
        window w = {.f = &f[i], .scale = scale};
        w.step = figures_typical_step(&f[i], &w.begin, &w.end);
        if (w.step < 0) continue;
        if (n > 1) page_heading(p, "%s: %s", f[i].name, seconds_text(a, sizeof a, w.end - w.begin));
        page_raw(p, "<div class=\"rows\">\n");
        for (int d = 0; d < f[i].devices; d++)
            for (int l = 0; l < DP_LANES; l++)
                if (l == DP_LANE_COMPUTE || used(&f[i], l)) lane(p, &w, d, l);
        axis(p, scale);
        page_raw(p, "</div>\n");
    }
}

/* ---- the table ---- */

static void phase_cells(page *p, const figures *f, int n, const figures *one, int device)
{
    const dp_device_stats *s = &one->device[device];
    double steps = one->steps ? (double)one->steps : 1, sum = 0;
    char a[32];
    for (int i = 0; i < DP_PHASES; i++) {
        sum += s->phase[i];
        if (occurs(f, n, i)) page_cell(p, "%s", seconds_text(a, sizeof a, s->phase[i] / steps));
    }
    page_cell(p, "%s", seconds_text(a, sizeof a, sum / steps));
    page_cell(p, "%s", seconds_text(a, sizeof a, s->hidden / steps));
}

void page_phases(page *p, const figures *f, int n)
{
    char columns[512] = "device", name[32];
    for (int i = 0; i < DP_PHASES; i++)
        if (occurs(f, n, i))
            snprintf(columns + strlen(columns), sizeof columns - strlen(columns), "|%s",
                     plain(dp_phase_name(i), name, sizeof name));
    snprintf(columns + strlen(columns), sizeof columns - strlen(columns), "|sum|hidden");
    page_table(p, "Mean time of a step by phase; hidden is communication under computation, beside the sum", columns);
    for (int i = 0; i < n; i++)
        for (int d = 0; d < f[i].devices; d++) {
            page_row(p);
            if (n > 1)
                page_cell(p, "%s %s", f[i].name, f[i].device[d].name);
            else
                page_cell(p, "%s", f[i].device[d].name);
            phase_cells(p, f, n, &f[i], d);
        }
    page_table_end(p);
}
