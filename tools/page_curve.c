/* A run on a page: loss over steps, and the shares of the phases. */
#include "page.h"
#include <math.h>
#include <stdio.h>

enum { SHOWN = 600 }; /* points of a line: more than pixels help nobody */

static void extend(const page_point *v, int64_t n, double *lo, double *hi, double *x_lo, double *x_hi)
{
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(v[i].y)) continue;
        *lo = fmin(*lo, v[i].y), *hi = fmax(*hi, v[i].y);
        *x_lo = fmin(*x_lo, v[i].x), *x_hi = fmax(*x_hi, v[i].x);
    }
}

typedef struct frame {
    double lo, hi, x_lo, x_hi;
} frame;

static double x_of(const frame *f, double x)
{
    return f->x_hi > f->x_lo ? 1000 * (x - f->x_lo) / (f->x_hi - f->x_lo) : 500;
}

static double y_of(const frame *f, double y)
{
    return f->hi > f->lo ? 1000 - 1000 * (y - f->lo) / (f->hi - f->lo) : 500;
}

static void line(page *p, const frame *f, const page_point *v, int64_t n, int kind)
{
    int64_t every = n / SHOWN + 1;
    page_raw(p, "<polyline class=\"line s%d\" points=\"", kind);
    for (int64_t i = 0; i < n; i += every) {
        double sum = 0;
        int64_t k = 0;
        for (int64_t j = i; j < n && j < i + every; j++)
            if (isfinite(v[j].y)) sum += v[j].y, k++;
        if (k) page_raw(p, "%.1f,%.1f ", x_of(f, v[i].x), y_of(f, sum / (double)k));
    }
    page_raw(p, "\"/>");
}

void page_curve(page *p, const char *a_name, const page_point *a, int64_t na, const char *b_name, const page_point *b,
                int64_t nb)
{
    frame f = {INFINITY, -INFINITY, INFINITY, -INFINITY};
    extend(a, na, &f.lo, &f.hi, &f.x_lo, &f.x_hi);
    extend(b, nb, &f.lo, &f.hi, &f.x_lo, &f.x_hi);
    if (!(f.hi >= f.lo)) return;
    double room = 0.04 * (f.hi - f.lo);
    f.lo = f.lo >= 0 && f.lo - room < 0 ? 0 : f.lo - room;
    f.hi += room;
    page_raw(p,
             "<ul class=\"legend\"><li><svg aria-hidden=\"true\"><rect class=\"k0\" width=\"12\" height=\"12\"/></svg>%s</li>",
             a_name);
    if (nb) page_raw(p, "<li><svg aria-hidden=\"true\"><rect class=\"k1\" width=\"12\" height=\"12\"/></svg>%s</li>", b_name);
    page_raw(p, "</ul><figure class=\"plot\"><div class=\"ys\" aria-hidden=\"true\">");
    for (int i = 4; i >= 0; i--) page_raw(p, "<span>%.3g</span>", f.lo + (f.hi - f.lo) * i / 4);
    page_raw(
        p,
        "</div><svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"%s from step %.0f to %.0f",
        a_name, f.x_lo, f.x_hi);
    if (na) page_raw(p, ", from %.4g to %.4g", a[0].y, a[na - 1].y);
    page_raw(p, "\">");
    for (int i = 0; i < 4; i++)
        page_raw(p, "<line class=\"grid\" x1=\"0\" x2=\"1000\" y1=\"%d\" y2=\"%d\"/>", 250 * i, 250 * i);
    line(p, &f, a, na, 0);
    line(p, &f, b, nb, 1);
    page_raw(p,
             "</svg><span></span><div class=\"axis\" aria-hidden=\"true\"><span>step "
             "%.0f</span><span>%.0f</span><span>%.0f</span></div></figure>\n",
             f.x_lo, (f.x_lo + f.x_hi) / 2, f.x_hi);
}

void page_intervals(page *p, const page_interval *v, int64_t n)
{
    enum { COLUMNS = 60 };
    int64_t each = n / COLUMNS + 1, columns = (n + each - 1) / each;
    if (!n) return;
    page_raw(p, "<figure class=\"plot flat\"><div class=\"ys\" aria-hidden=\"true\"><span>100 "
                "%%</span><span>50</span><span>0</span></div>"
                "<svg role=\"img\" aria-label=\"Shares of the phases over the run; the table below has the sums\">");
    for (int64_t c = 0; c < columns; c++) {
        double sum[DP_PHASES] = {0}, all = 0, y = 0;
        int64_t last = c * each;
        for (int64_t i = c * each; i < n && i < (c + 1) * each; i++, last++)
            for (int k = 0; k < DP_PHASES; k++) sum[k] += v[i].phase[k], all += v[i].phase[k];
        page_raw(p, "<svg x=\"%.3f%%\" width=\"%.3f%%\" height=\"100%%\">", 100.0 * (double)c / (double)columns,
                 100.0 / (double)columns - (columns > 1 ? 0.12 : 0));
        for (int k = 0; k < DP_PHASES && all > 0; k++) {
            double h = 100 * sum[k] / all;
            if (h <= 0) continue;
            page_raw(p,
                     "<rect width=\"100%%\" y=\"%.2f%%\" height=\"%.2f%%\" style=\"fill:var(--%s)\"><title>to step %.0f: %s "
                     "%.1f %%</title></rect>",
                     y, h, dp_phase_name(k), v[last - 1].step, dp_phase_name(k), h);
            y += h;
        }
        page_raw(p, "</svg>");
    }
    page_raw(p,
             "</svg><span></span><div class=\"axis\" aria-hidden=\"true\"><span>first interval</span><span>step "
             "%.0f</span></div></figure>\n",
             v[n - 1].step);
}
