/* A report as one HTML file: CSS and SVG inside, no scripts, nothing fetched; light, dark, on paper and on a phone.
 * Every number that a picture shows stands in text beside it. The file appears whole, by rename. */
#ifndef DP_TOOLS_PAGE_H
#define DP_TOOLS_PAGE_H
#include "figures.h"

typedef struct page page;

/* page.c */
page *page_open(const char *path, const char *title); /* NULL: cannot be written; errno says why */
int page_close(page *p);                              /* 0: cannot be written; p may be NULL: 0 */
void page_raw(page *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));  /* HTML */
void page_text(page *p, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* escaped */
void page_lead(page *p, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* under the title */
void page_section(page *p, const char *heading);                                     /* ends the one before */
void page_note(page *p, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* a paragraph */
void page_heading(page *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Big numbers in a row. */
void page_facts(page *p);
void page_fact(page *p, const char *label, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void page_facts_end(page *p);
/* Columns as "device|busy|<what": numbers stand right, words (<) left; the first cell of a row is its head. */
void page_table(page *p, const char *caption, const char *columns);
void page_row(page *p);
void page_cell(page *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void page_words(page *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void page_table_end(page *p);

/* page_bars.c */
void page_bars(page *p);
/* One labelled bar; share of the width in 0..1, kind = CSS class (bar-main, bar-ref, ...). */
void page_bar(page *p, const char *label, const char *text, double share, const char *kind);
void page_bars_end(page *p);
void page_memory(page *p, const figures *f, int n); /* bars by class, one scale for all, and the table */
void page_load(page *p, const figures *f, int n);   /* busy, wait, hidden, bytes a step, per device */

/* page_time.c */
void page_legend(page *p, const figures *f, int n,
                 int idle);                            /* of the phases that occur; idle: that too, else what hatching means */
void page_timelines(page *p, const figures *f, int n); /* one step of each, on one scale */
void page_phases(page *p, const figures *f, int n);    /* mean seconds of a step by phase: the table */

/* page_links.c */
void page_links(page *p, const figures *f); /* who read how much of whom a step, expected and measured time */

/* page_curve.c */
typedef struct page_point {
    double x, y;
} page_point;
/* Two lines over optimizer steps; b may be empty. */
void page_curve(page *p, const char *a_name, const page_point *a, int64_t na, const char *b_name, const page_point *b,
                int64_t nb);
typedef struct page_interval {
    double step, seconds, phase[DP_PHASES];
} page_interval;
void page_intervals(page *p, const page_interval *v, int64_t n); /* shares of the phases over a run */
#endif
