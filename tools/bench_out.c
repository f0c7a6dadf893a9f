/* Where figures go besides the terminal: a JSON file and the head of a page. */
#include "bench.h"
#include <math.h>
#include <string.h>
#include <time.h>

/* ---- JSON: `"key": value`, one line ---- */

int json_open(json *j, const char *path)
{
    *j = (json){.path = path};
    return !path || (j->f = fopen(path, "w"));
}

int json_close(json *j)
{
    if (!j->f) return 1;
    fputc('\n', j->f);
    int ok = !ferror(j->f);
    ok = !fclose(j->f) && ok;
    j->f = NULL;
    return ok;
}

static void quoted(FILE *f, const char *s)
{
    fputc('"', f);
    for (; *s; s++) {
        if ((unsigned char)*s < 0x20)
            fprintf(f, "\\u%04x", (unsigned)*s);
        else
            fprintf(f, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
    }
    fputc('"', f);
}

static void key(json *j, const char *name)
{
    if (j->comma) fputs(", ", j->f);
    j->comma = 1;
    if (!name) return;
    quoted(j->f, name);
    fputs(": ", j->f);
}

void json_begin(json *j, const char *name, char bracket)
{
    if (!j->f) return;
    key(j, name);
    fputc(bracket, j->f);
    j->comma = 0;
}

void json_end(json *j, char bracket)
{
    if (!j->f) return;
    fputc(bracket, j->f);
    j->comma = 1;
}

void json_text(json *j, const char *name, const char *value)
{
    if (!j->f) return;
    key(j, name);
    quoted(j->f, value);
}

void json_int(json *j, const char *name, int64_t value)
{
    if (!j->f) return;
    key(j, name);
    fprintf(j->f, "%lld", (long long)value);
}

void json_number(json *j, const char *name, double value)
{
    if (!j->f) return;
    key(j, name);
    if (isfinite(value))
        fprintf(j->f, "%.9g", value);
    else
        fputs("null", j->f);
}

static void json_health(json *j, const dp_device_health *h)
{
    json_int(j, "clock_mhz", h->clock_mhz);
    json_int(j, "max_clock_mhz", h->max_clock_mhz);
    json_text(j, "throttled", h->throttled);
    json_int(j, "xid", h->xid);
    json_int(j, "others_bytes", h->others_bytes);
}

static void json_device(json *j, const dp_device_stats *s, const dp_device_health *h, double steps)
{
    json_begin(j, NULL, '{');
    json_text(j, "name", s->name);
    json_number(j, "busy_s", s->busy / steps);
    json_number(j, "wait_s", s->wait / steps);
    json_number(j, "hidden_s", s->hidden / steps);
    json_number(j, "bytes_in", (double)s->bytes_in / steps);
    json_number(j, "bytes_out", (double)s->bytes_out / steps);
    json_number(j, "host_in", (double)s->host_in / steps);
    json_number(j, "host_out", (double)s->host_out / steps);
    if (h->clock_mhz) json_health(j, h);
    json_begin(j, "phases", '{');
    for (int i = 0; i < DP_PHASES; i++) json_number(j, dp_phase_name(i), s->phase[i] / steps);
    json_end(j, '}');
    json_begin(j, "peak_bytes", '{');
    for (int c = 0; c < DP_MEM_CLASSES; c++) json_int(j, dp_memory_class_name(c), s->peak[c]);
    json_end(j, '}');
    json_end(j, '}');
}

void json_side(json *j, const side *s)
{
    const figures *f = &s->figures;
    double steps = f->steps ? (double)f->steps : 1;
    json_begin(j, NULL, '{');
    json_text(j, "name", s->name);
    json_text(j, "settings", s->key);
    json_number(j, "samples_per_s", s->samples_per_s);
    json_number(j, "spread", s->spread);
    json_number(j, "last_loss", s->done ? s->loss[s->done - 1] : 0);
    json_number(j, "busy_max_over_mean", figures_uneven(f, figures_busy));
    json_number(j, "peak_max_over_mean", figures_uneven(f, figures_peak_value));
    json_int(j, "busiest_port_bytes", figures_busiest_port(f));
    json_begin(j, "devices", '[');
    for (int d = 0; d < f->devices; d++) json_device(j, &f->device[d], &f->health[d], steps);
    json_end(j, ']');
    json_begin(j, "links", '[');
    for (int i = 0; i < f->devices * f->devices; i++) {
        const link_figures *l = &f->link[i];
        if (i / f->devices == i % f->devices) continue;
        json_begin(j, NULL, '{');
        json_text(j, "from", f->device[i / f->devices].name);
        json_text(j, "to", f->device[i % f->devices].name);
        json_text(j, "kind", l->link.kind);
        json_number(j, "bytes", (double)l->link.bytes / steps);
        json_number(j, "bytes_per_s", l->link.bytes_per_s);
        json_number(j, "expected_s", figures_expected(f, i / f->devices, i % f->devices));
        json_number(j, "measured_s", figures_measured(f, i / f->devices, i % f->devices));
        json_end(j, '}');
    }
    json_end(j, ']');
    json_end(j, '}');
}

/* ---- the page's head ---- */

void machine_text(char *buf, size_t size)
{
    dp_device_info d;
    int cores = 0;
    buf[0] = 0;
    for (int i = 0; dp_device(i, &d); i++) {
        if (!i) snprintf(buf, size, "%s", d.model[0] ? d.model : "CPU");
        cores++;
    }
    snprintf(buf + strlen(buf), size - strlen(buf), ", %d device%s", cores, cores == 1 ? "" : "s");
}

page *bench_page(const request *r, const char *title, const bench_case *b, const char *more)
{
    char machine[160], when[32], n[32];
    time_t now = time(NULL);
    struct tm tm;
    page *p = page_open(r->html, title);
    if (!p) return NULL;
    machine_text(machine, sizeof machine);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M", localtime_r(&now, &tm));
    if (b)
        page_lead(p, "%s: %s parameters, global batch %lld%s%s", r->config, count_text(n, sizeof n, b->parameters),
                  (long long)b->batch, *more ? ", " : "", more);
    page_lead(p, "%s; %s", machine, when);
    for (int i = 0; i < r->n_set; i++) page_lead(p, "%s", r->set[i]);
    return p;
}
