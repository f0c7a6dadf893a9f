/* Bars on a page: plain ones, and the memory of devices by class. */
#include "page.h"
#include <stdio.h>

void page_bars(page *p)
{
    page_raw(p, "<div class=\"rows say\">\n");
}

void page_bar(page *p, const char *label, const char *text, double share, const char *kind)
{
    page_raw(p, "<span class=\"who\">");
    page_text(p, "%s", label);
    page_raw(p, "</span><svg role=\"img\" aria-label=\"");
    page_text(p, "%s: %s", label, text);
    page_raw(p, "\"><rect class=\"%s\" width=\"%.2f%%\" height=\"100%%\"/></svg><span class=\"num\">", kind,
             100 * (share < 0   ? 0
                    : share > 1 ? 1
                                : share));
    page_text(p, "%s", text);
    page_raw(p, "</span>\n");
}

void page_bars_end(page *p)
{
    page_raw(p, "</div>\n");
}

/* ---- memory ---- */

static int64_t total(const dp_device_stats *s)
{
    int64_t sum = 0;
    for (int c = 0; c < DP_MEM_CLASSES; c++) sum += s->peak[c];
    return sum;
}

static int occurs(const figures *f, int n, int mem_class)
{
    for (int i = 0; i < n; i++)
        for (int d = 0; d < f[i].devices; d++)
            if (f[i].device[d].peak[mem_class]) return 1;
    return 0;
}

static void memory_bar(page *p, const dp_device_stats *s, double scale)
{
    char a[32];
    double x = 0;
    page_raw(p, "<span class=\"who\">");
    page_text(p, "%s", s->name);
    page_raw(p, "</span><svg role=\"img\" aria-label=\"");
    page_text(p, "%s: %s", s->name, bytes_text(a, sizeof a, (double)total(s)));
    page_raw(p, "\">");
    for (int c = 0; c < DP_MEM_CLASSES; c++) {
        double width = 100 * (double)s->peak[c] / scale;
        if (!s->peak[c]) continue;
        page_raw(p,
                 "<rect x=\"%.3f%%\" width=\"%.3f%%\" height=\"100%%\" style=\"fill:var(--m%d)\"><title>%s: %s</title></rect>",
                 x, width, c, dp_memory_class_name(c), bytes_text(a, sizeof a, (double)s->peak[c]));
        x += width;
    }
    page_raw(p, "</svg><span class=\"num\">%s</span>\n", bytes_text(a, sizeof a, (double)total(s)));
}

static void memory_table(page *p, const figures *f, int n)
{
    char columns[512] = "device", a[32];
    int at = 6;
    for (int c = 0; c < DP_MEM_CLASSES; c++)
        if (occurs(f, n, c)) at += snprintf(columns + at, sizeof columns - (size_t)at, "|%s", dp_memory_class_name(c));
    snprintf(columns + at, sizeof columns - (size_t)at, "|sum");
    page_table(p, "Peak bytes by class", columns);
    for (int i = 0; i < n; i++)
        for (int d = 0; d < f[i].devices; d++) {
            const dp_device_stats *s = &f[i].device[d];
            page_row(p);
            page_cell(p, n > 1 ? "%s %s" : "%s%s", n > 1 ? f[i].name : "", s->name);
            for (int c = 0; c < DP_MEM_CLASSES; c++)
                if (occurs(f, n, c)) page_cell(p, "%s", bytes_text(a, sizeof a, (double)s->peak[c]));
            page_cell(p, "%s", bytes_text(a, sizeof a, (double)total(s)));
        }
    page_table_end(p);
}

void page_memory(page *p, const figures *f, int n)
{
    double scale = 1;
    for (int i = 0; i < n; i++)
        for (int d = 0; d < f[i].devices; d++)
            if ((double)total(&f[i].device[d]) > scale) scale = (double)total(&f[i].device[d]);
    page_raw(p, "<ul class=\"legend\">");
    for (int c = 0; c < DP_MEM_CLASSES; c++)
        if (occurs(f, n, c))
            page_raw(p,
                     "<li><svg aria-hidden=\"true\"><rect width=\"12\" height=\"12\" style=\"fill:var(--m%d)\"/></svg>%s</li>",
                     c, dp_memory_class_name(c));
    page_raw(p, "</ul>\n");
    for (int i = 0; i < n; i++) {
        if (n > 1) page_heading(p, "%s: fullest / mean %.3f", f[i].name, figures_uneven(&f[i], figures_peak_value));
        page_bars(p);
        for (int d = 0; d < f[i].devices; d++) memory_bar(p, &f[i].device[d], scale);
        page_bars_end(p);
    }
    page_raw(p, "<details open><summary>In numbers</summary>");
    memory_table(p, f, n);
    page_raw(p, "</details>\n");
}

/* ---- load ---- */

void page_load(page *p, const figures *f, int n)
{
    char a[32];
    page_table(p, "A step of each device: time at work, time standing still, communication under computation, bytes",
               "device|busy|wait|hidden|in from devices|out to devices|from the host|to the host");
    for (int i = 0; i < n; i++) {
        double steps = f[i].steps ? (double)f[i].steps : 1;
        for (int d = 0; d < f[i].devices; d++) {
            const dp_device_stats *s = &f[i].device[d];
            const int64_t bytes[] = {s->bytes_in, s->bytes_out, s->host_in, s->host_out};
            page_row(p);
            page_cell(p, n > 1 ? "%s %s" : "%s%s", n > 1 ? f[i].name : "", s->name);
            page_cell(p, "%s", seconds_text(a, sizeof a, s->busy / steps));
            page_cell(p, "%s", seconds_text(a, sizeof a, s->wait / steps));
            page_cell(p, "%s", seconds_text(a, sizeof a, s->hidden / steps));
            for (int k = 0; k < 4; k++) page_cell(p, "%s", bytes_text(a, sizeof a, (double)bytes[k] / steps));
        }
    }
    page_table_end(p);
}
