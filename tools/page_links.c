/* Links on a page: who read how much of whom. */
#include "page.h"
#include <stdio.h>
#include <string.h>

static double bytes_of(const figures *f, int from, int to)
{
    return f->steps ? (double)f->link[from * f->devices + to].link.bytes / (double)f->steps : 0;
}

static void matrix(page *p, const figures *f)
{
    char columns[2400] = "from \\ to", a[32];
    double max = 0;
    for (int d = 0; d < f->devices; d++)
        snprintf(columns + strlen(columns), sizeof columns - strlen(columns), "|%s", f->device[d].name);
    strncat(columns, "|out", sizeof columns - strlen(columns) - 1);
    for (int i = 0; i < f->devices * f->devices; i++)
        if (bytes_of(f, i / f->devices, i % f->devices) > max) max = bytes_of(f, i / f->devices, i % f->devices);
    page_table(p, "Bytes a step", columns);
    for (int from = 0; from < f->devices; from++) {
        double sum = 0;
        page_row(p);
        page_cell(p, "%s", f->device[from].name);
        for (int to = 0; to < f->devices; to++) {
            double b = bytes_of(f, from, to);
            sum += b;
            if (from == to)
                page_raw(p, "<td aria-hidden=\"true\">&middot;</td>");
            else
                page_raw(p, "<td class=\"link\" style=\"--a:%.2f\">%s</td>", max > 0 ? b / max : 0, bytes_text(a, sizeof a, b));
        }
        page_cell(p, "%s", bytes_text(a, sizeof a, sum));
    }
    page_row(p);
    page_cell(p, "in");
    for (int to = 0; to < f->devices; to++) {
        double sum = 0;
        for (int from = 0; from < f->devices; from++) sum += from == to ? 0 : bytes_of(f, from, to);
        page_cell(p, "%s", bytes_text(a, sizeof a, sum));
    }
    page_cell(p, " ");
    page_table_end(p);
}

static void times(page *p, const figures *f)
{
    char a[32], b[32];
    page_table(p, "Time of a step on each link: its bytes at the measured rate, and what they took in the run (sums included)",
               "link|kind|bytes|rate|expected|measured");
    for (int from = 0; from < f->devices; from++)
        for (int to = 0; to < f->devices; to++) {
            const link_figures *l = &f->link[from * f->devices + to];
            if (from == to || !l->link.bytes) continue;
            page_row(p);
            page_cell(p, "%s to %s", f->device[from].name, f->device[to].name);
            page_cell(p, "%s", l->link.kind);
            page_cell(p, "%s", bytes_text(a, sizeof a, bytes_of(f, from, to)));
            page_cell(p, l->link.bytes_per_s > 0 ? "%s/s" : "-", bytes_text(a, sizeof a, l->link.bytes_per_s));
            page_cell(p, "%s", seconds_text(a, sizeof a, figures_expected(f, from, to)));
            page_cell(p, "%s", seconds_text(b, sizeof b, figures_measured(f, from, to)));
        }
    page_table_end(p);
}

void page_links(page *p, const figures *f)
{
    matrix(p, f);
    page_raw(p, "<details><summary>Time on each link</summary>");
    times(p, f);
    page_raw(p, "</details>\n");
}
