/* The frame of a page: style, sections, tables, escaping. */
#include "page.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct page {
    FILE *f;
    char *path, *temporary;
    int in_section, in_row, in_cell, tables;
};

/* Colours are variables, so that the dark scheme is a second list of them. Computation is cool, communication warm. */
static const char style[] =
    ":root{color-scheme:light "
    "dark;--bg:#f7f7f5;--card:#fff;--ink:#1b1d21;--soft:#5d636c;--line:#e2e2de;--track:#efefec;--on:#fff;"
    "--main:#2f6db3;--ref:#8b929d;--good:#2e7d4f;--warn:#a05a00;"
    "--data_wait:#a8adb5;--upload:#7b8494;--replicate:#a9790b;--forward:#3a80c9;--gather:#8c5a2b;--loss:#1d8a83;--scatter:#"
    "8f7f1a;"
    "--backward:#2d4f9e;--reduce:#c43d55;--update:#3f8a45;--share:#d4652a;--idle:#dfe1e4;"
    "--m0:#2f6db3;--m1:#c43d55;--m2:#b7800d;--m3:#1d8a83;--m4:#7d5bb0;--m5:#7b8494;--m6:#c3c7cd}"
    "@media(prefers-color-scheme:dark){:root{--bg:#131518;--card:#1b1e23;--ink:#e9e9e6;--soft:#a0a6b0;--line:#2d3138;--track:#"
    "24282e;"
    "--on:#0d0f12;--main:#6aa9ec;--ref:#7d8592;--good:#6fcf97;--warn:#f0b35a;"
    "--data_wait:#767d88;--upload:#97a1b2;--replicate:#e2b33c;--forward:#6cb0f2;--gather:#c8935f;--loss:#4fc3ba;--scatter:#"
    "cdbb48;"
    "--backward:#8ea2f0;--reduce:#f0758a;--update:#78c67e;--share:#f39a63;--idle:#353a42;"
    "--m0:#6aa9ec;--m1:#f0758a;--m2:#e2b33c;--m3:#4fc3ba;--m4:#b79be6;--m5:#97a1b2;--m6:#565d68}}"
    "*{box-sizing:border-box}"
    "body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu "
    "Sans',sans-serif;"
    "-webkit-text-size-adjust:100%}"
    "main{max-width:1080px;margin:0 auto;padding:28px 20px 56px}"
    "h1{font-size:1.6rem;line-height:1.2;margin:0 0 .3em;letter-spacing:-.01em;overflow-wrap:anywhere}"
    "h2{font-size:1.08rem;margin:0 0 .6em}h3{font-size:.95rem;margin:1.5em 0 .5em}"
    "p{margin:.4em 0 .9em}p.lead,p.note{color:var(--soft);overflow-wrap:anywhere}p.lead{margin:.1em 0}"
    "section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:18px 20px;margin:18px 0 0}"
    ".facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:12px;margin:20px 0 0}"
    ".facts div{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:11px 15px;min-width:0}"
    ".facts "
    "b{display:block;font-size:1.3rem;font-weight:600;line-height:1.25;font-variant-numeric:tabular-nums;overflow-wrap:"
    "anywhere}"
    ".facts span{color:var(--soft);font-size:.82rem}"
    "p.cap{color:var(--soft);font-size:.86rem;margin:1.3em 0 .3em}h2+.cap{margin-top:0}.rows+p.note{margin-top:.8em}"
    ".scroll{overflow-x:auto;margin:0 -4px;padding:0 4px}.scroll:focus-visible{outline:2px solid var(--main);border-radius:4px}"
    "table{border-collapse:collapse;width:100%;font-size:.86rem;font-variant-numeric:tabular-nums}"
    "th,td{padding:5px 7px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line);font-weight:400}"
    "th:first-child{text-align:left;padding-left:0}tr>:last-child{padding-right:0}th.w,td.w{text-align:left;padding-left:18px}"
    "td.w{white-space:normal;min-width:17rem}thead th{color:var(--soft);font-size:.8rem;border-bottom-color:var(--soft);"
    "vertical-align:bottom}tbody th{font-weight:500}tbody tr:last-child>*{border-bottom:0}"
    ".legend{display:flex;flex-wrap:wrap;gap:4px 16px;margin:0 0 "
    "12px;padding:0;list-style:none;font-size:.82rem;color:var(--soft)}"
    ".legend svg{width:12px;height:12px;border-radius:3px;vertical-align:-1px;margin-right:6px}"
    ".rows{display:grid;grid-template-columns:minmax(64px,max-content) minmax(0,1fr);gap:4px "
    "12px;align-items:center;font-size:.86rem}"
    ".rows.say{grid-template-columns:minmax(64px,max-content) minmax(0,1fr) max-content}"
    ".rows>svg{width:100%;height:22px;display:block;border-radius:4px;background:var(--track)}.rows>svg.thin{height:9px}"
    ".rows>.who{white-space:nowrap}.rows>.lane{color:var(--soft);font-size:.74rem;line-height:1;padding-left:10px}.rows>.num{"
    "text-align:right;white-space:nowrap;"
    "font-variant-numeric:tabular-nums}.rows>.gap{grid-column:1/-1;height:6px}"
    ".axis{display:flex;justify-content:space-between;color:var(--soft);font-size:.76rem;font-variant-numeric:tabular-nums;"
    "border-top:1px solid var(--line);padding-top:2px;grid-column:2;white-space:nowrap}"
    "svg text{fill:var(--on);font-size:11px}"
    ".bar-main{fill:var(--main)}.bar-ref{fill:var(--ref)}"
    ".other{opacity:.35}.wait{fill:url(#wait)}"
    "td.link{--a:0;background:color-mix(in srgb,var(--share) calc(var(--a)*55%),transparent)}"
    "figure{margin:0}.plot{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:2px 8px}"
    ".plot>.ys{display:flex;flex-direction:column;justify-content:space-between;text-align:right;color:var(--soft);font-size:."
    "76rem;"
    "font-variant-numeric:tabular-nums}.plot>svg{width:100%;height:240px;display:block;border-left:1px solid var(--line);"
    "border-bottom:1px solid var(--line);overflow:visible}.plot.flat>svg{height:150px}"
    ".line{fill:none;stroke-width:1.8;vector-effect:non-scaling-stroke;stroke-linejoin:round}.s0{stroke:var(--main)}.s1{stroke:"
    "var(--share)}"
    ".k0{fill:var(--main)}.k1{fill:var(--share)}.grid{stroke:var(--line);stroke-width:1;vector-effect:non-scaling-stroke}"
    "details{margin:.8em 0 "
    "0}summary{cursor:pointer;color:var(--soft);font-size:.88rem}summary:hover{color:var(--ink)}details>*{margin-top:.6em}"
    "footer{color:var(--soft);font-size:.8rem;margin-top:20px}"
    "@media(max-width:560px){main{padding:18px 12px 40px}section{padding:14px 12px;border-radius:8px}h1{font-size:1.3rem}"
    ".facts{grid-template-columns:repeat(2,minmax(0,1fr));gap:8px}.facts b{font-size:1.05rem}"
    ".rows.say{grid-template-columns:minmax(0,1fr) max-content;grid-auto-flow:dense}.rows.say>svg{grid-column:1/-1}"
    ".rows.say>.who{white-space:normal}.rows{gap:4px 8px}.axis>:nth-child(even):not(:last-child){display:none}"
    "th,td{padding:5px 6px}}"
    "@media print{body{background:#fff}section{break-inside:avoid}.scroll{overflow:visible}}";

/* ---- writing ---- */

static void escaped(FILE *f, const char *s)
{
    for (; *s; s++) {
        switch (*s) {
        case '<': fputs("&lt;", f); break;
        case '>': fputs("&gt;", f); break;
        case '&': fputs("&amp;", f); break;
        case '"': fputs("&quot;", f); break;
        default: fputc(*s, f);
        }
    }
}

static void escaped_args(page *p, const char *fmt, va_list ap)
{
    char text[2048];
    vsnprintf(text, sizeof text, fmt, ap);
    escaped(p->f, text);
}

void page_raw(page *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfprintf(p->f, fmt, ap);
    va_end(ap);
}

/* fmt stands last; the list of what precedes it is an element's tag. */
#define ELEMENT(p, open, close, fmt)                                                                                           \
    do {                                                                                                                       \
        va_list ap_;                                                                                                           \
        va_start(ap_, fmt);                                                                                                    \
        fputs(open, (p)->f);                                                                                                   \
        escaped_args(p, fmt, ap_);                                                                                             \
        fputs(close, (p)->f);                                                                                                  \
        va_end(ap_);                                                                                                           \
    } while (0)

void page_text(page *p, const char *fmt, ...)
{
    ELEMENT(p, "", "", fmt);
}

void page_lead(page *p, const char *fmt, ...)
{
    ELEMENT(p, "<p class=\"lead\">", "</p>\n", fmt);
}

void page_note(page *p, const char *fmt, ...)
{
    ELEMENT(p, "<p class=\"note\">", "</p>\n", fmt);
}

void page_heading(page *p, const char *fmt, ...)
{
    ELEMENT(p, "<h3>", "</h3>\n", fmt);
}

void page_section(page *p, const char *heading)
{
    if (p->in_section) fputs("</section>\n", p->f);
    fputs("<section><h2>", p->f);
    escaped(p->f, heading);
    fputs("</h2>\n", p->f);
    p->in_section = 1;
}

/* ---- facts and tables ---- */

void page_facts(page *p)
{
    fputs("<div class=\"facts\">\n", p->f);
}

void page_fact(page *p, const char *label, const char *fmt, ...)
{
    ELEMENT(p, "<div><b>", "</b><span>", fmt);
    escaped(p->f, label);
    fputs("</span></div>\n", p->f);
}

void page_facts_end(page *p)
{
    fputs("</div>\n", p->f);
}

void page_table(page *p, const char *caption, const char *columns)
{
    p->tables++;
    page_raw(p, "<p class=\"cap\" id=\"t%d\">", p->tables);
    escaped(p->f, caption);
    page_raw(p, "</p><div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-labelledby=\"t%d\">", p->tables);
    page_raw(p, "<table aria-labelledby=\"t%d\"><thead><tr>", p->tables);
    while (*columns) {
        char name[64];
        size_t n = strcspn(columns, "|");
        int words = *columns == '<';
        snprintf(name, sizeof name, "%.*s", (int)n - words, columns + words);
        fputs(words ? "<th scope=\"col\" class=\"w\">" : "<th scope=\"col\">", p->f);
        escaped(p->f, name);
        fputs("</th>", p->f);
        columns += n + (columns[n] == '|');
    }
    fputs("</tr></thead><tbody>\n", p->f);
    p->in_row = 0;
}

void page_row(page *p)
{
    fputs(p->in_row ? "</tr>\n<tr>" : "<tr>", p->f);
    p->in_row = 1, p->in_cell = 0;
}

void page_cell(page *p, const char *fmt, ...)
{
    ELEMENT(p, p->in_cell ? "<td>" : "<th scope=\"row\">", p->in_cell ? "</td>" : "</th>", fmt);
    p->in_cell = 1;
}

void page_words(page *p, const char *fmt, ...)
{
    ELEMENT(p, "<td class=\"w\">", "</td>", fmt);
}

void page_table_end(page *p)
{
    fputs(p->in_row ? "</tr></tbody></table></div>\n" : "</tbody></table></div>\n", p->f);
}

/* ---- life ---- */

static void free_page(page *p)
{
    free(p->path);
    free(p->temporary);
    free(p);
}

page *page_open(const char *path, const char *title)
{
    page *p = calloc(1, sizeof *p);
    size_t size = strlen(path) + 32;
    if (!p) return NULL;
    p->path = strdup(path);
    p->temporary = malloc(size);
    if (p->path && p->temporary) {
        snprintf(p->temporary, size, "%s.tmp-%ld", path, (long)getpid());
        p->f = fopen(p->temporary, "w");
    }
    if (!p->f) {
        free_page(p);
        return NULL;
    }
    page_raw(p, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>");
    escaped(p->f, title);
    page_raw(p,
             "</title>\n<style>%s</style></head>\n<body>"
             "<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\"><defs>"
             "<pattern id=\"wait\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
             "<rect width=\"3\" height=\"6\" style=\"fill:var(--track)\" opacity=\".75\"/></pattern></defs></svg>\n<main><h1>",
             style);
    escaped(p->f, title);
    page_raw(p, "</h1>\n");
    return p;
}

int page_close(page *p)
{
    if (!p) return 0;
    page_raw(p, "%s<footer>dp %s</footer>\n</main></body></html>\n", p->in_section ? "</section>\n" : "", dp_version_text());
    int ok = !ferror(p->f);
    ok = !fclose(p->f) && ok;
    ok = ok && !rename(p->temporary, p->path);
    if (!ok) {
        int why = errno;
        remove(p->temporary);
        errno = why;
    }
    free_page(p);
    return ok;
}
