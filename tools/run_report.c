/* report.html of a run: what log.jsonl says about loss and phases, and what the engine knows about time, memory and links. */
#include "run_report.h"
#include "page.h"
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct points {
    page_point *v;
    int64_t n, room;
} points;
typedef struct history {
    points train, eval, accuracy;
    page_interval *interval;
    int64_t n, room;
    double samples_per_s, seconds, batch, parameters, last_step;
    char mode[32], reason[256];
    char notes[8][400]; /* the first warnings */
    int n_notes;
} history;

/* ---- the log ---- */

static void *grown(void *v, int64_t n, int64_t *room, size_t size)
{
    if (n < *room) return v;
    int64_t more = *room ? 2 * *room : 256;
    void *p = realloc(v, (size_t)more * size);
    if (p) *room = more;
    return p;
}

static int add_point(points *p, double x, double y)
{
    page_point *v = grown(p->v, p->n, &p->room, sizeof *v);
    if (!v) return 0;
    p->v = v;
    p->v[p->n++] = (page_point){x, y};
    return 1;
}

static double number(const cJSON *o, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsNumber(v) ? v->valuedouble : 0;
}

static const char *word(const cJSON *o, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsString(v) ? v->valuestring : "";
}

static int step_line(history *h, const cJSON *o)
{
    page_interval *v = grown(h->interval, h->n, &h->room, sizeof *v);
    const cJSON *phases = cJSON_GetObjectItemCaseSensitive(o, "phases");
    if (!v) return 0;
    h->interval = v;
    v = &h->interval[h->n++];
    *v = (page_interval){.step = number(o, "step"), .seconds = number(o, "seconds")};
    for (int i = 0; i < DP_PHASES; i++) v->phase[i] = number(phases, dp_phase_name(i));
    h->last_step = v->step;
    return add_point(&h->train, v->step, number(o, "loss"));
}

static int line(history *h, const cJSON *o)
{
    const char *type = word(o, "type");
    if (!strcmp(type, "step")) return step_line(h, o);
    if (!strcmp(type, "eval")) {
        if (cJSON_HasObjectItem(o, "accuracy") && !add_point(&h->accuracy, number(o, "step"), number(o, "accuracy"))) return 0;
        return add_point(&h->eval, number(o, "step"), number(o, "loss"));
    }
    if (!strcmp(type, "start")) {
        snprintf(h->mode, sizeof h->mode, "%s", word(o, "mode"));
        h->batch = number(o, "batch_size") * number(o, "accumulate"), h->parameters = number(o, "parameters");
    } else if (!strcmp(type, "end")) {
        h->samples_per_s = number(o, "samples_per_s"), h->seconds = number(o, "seconds");
        snprintf(h->reason, sizeof h->reason, "%s", word(o, "reason"));
    } else if (!strcmp(type, "warn") && h->n_notes < 8) {
        snprintf(h->notes[h->n_notes++], sizeof h->notes[0], "%s", word(o, "text"));
    }
    return 1;
}

static int read_log(history *h, const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = NULL;
    size_t room = 0;
    int ok = f != NULL;
    while (ok && getline(&text, &room, f) > 0) {
        cJSON *o = cJSON_Parse(text);
        if (o) ok = line(h, o);
        cJSON_Delete(o);
    }
    free(text);
    if (f) fclose(f);
    return ok;
}

static void free_history(history *h)
{
    free(h->train.v);
    free(h->eval.v);
    free(h->accuracy.v);
    free(h->interval);
}

/* ---- the page ---- */

static void summary(page *p, const history *h, const figures *f)
{
    char a[32];
    page_facts(p);
    page_fact(p, "samples per second", "%s", count_text(a, sizeof a, (int64_t)(h->samples_per_s + 0.5)));
    if (h->train.n) page_fact(p, "training loss, last interval", "%.4g", h->train.v[h->train.n - 1].y);
    if (h->accuracy.n)
        page_fact(p, "accuracy, last evaluation", "%.2f %%", 100 * h->accuracy.v[h->accuracy.n - 1].y);
    else if (h->eval.n)
        page_fact(p, "evaluation loss, last", "%.4g", h->eval.v[h->eval.n - 1].y);
    page_fact(p, "busy, max / mean", "%.3f", figures_uneven(f, figures_busy));
    page_fact(p, "peak bytes, max / mean", "%.3f", figures_uneven(f, figures_peak_value));
    page_fact(p, "busiest port, a step", "%s", bytes_text(a, sizeof a, (double)figures_busiest_port(f)));
    page_facts_end(p);
    if (!h->n_notes) return;
    page_section(p, "Notes");
    for (int i = 0; i < h->n_notes; i++) page_note(p, "%s", h->notes[i]);
}

static void losses(page *p, const history *h)
{
    enum { MOST = 12 };
    if (!h->train.n && !h->eval.n) return;
    page_section(p, "Loss");
    page_curve(p, "training", h->train.v, h->train.n, "evaluation", h->eval.v, h->eval.n);
    if (!h->eval.n) return;
    page_table(p, h->eval.n > MOST ? "Evaluations, the last twelve" : "Evaluations",
               h->accuracy.n ? "step|loss|accuracy" : "step|loss");
    for (int64_t i = h->eval.n > MOST ? h->eval.n - MOST : 0; i < h->eval.n; i++) {
        page_row(p);
        page_cell(p, "%.0f", h->eval.v[i].x);
        page_cell(p, "%.6f", h->eval.v[i].y);
        if (i < h->accuracy.n) page_cell(p, "%.2f %%", 100 * h->accuracy.v[i].y);
    }
    page_table_end(p);
}

static int write_page(const char *path, const char *config, const history *h, const figures *f)
{
    char n[32], title[128];
    const char *slash = strrchr(config, '/');
    snprintf(title, sizeof title, "Training run of %s", slash ? slash + 1 : config);
    page *p = page_open(path, title);
    if (!p) return 0;
    page_lead(p, "%s; %.*s", config, (int)(strlen(path) - strlen("/report.html")), path);
    page_lead(p, "mode = %s on %d device%s; %s parameters, %.0f samples a step; %.0f steps, %.1f s; %s", h->mode, f->devices,
              f->devices == 1 ? "" : "s", count_text(n, sizeof n, (int64_t)h->parameters), h->batch, h->last_step, h->seconds,
              h->reason);
    summary(p, h, f);
    losses(p, h);
    page_section(p, "Where the time went");
    page_legend(p, f, 1, 1);
    page_intervals(p, h->interval, h->n);
    page_phases(p, f, 1);
    page_section(p, "One step");
    page_note(p, "A batch of median length among the last ones. What belongs to the batches around it is pale.");
    page_timelines(p, f, 1);
    page_section(p, "Load");
    page_load(p, f, 1);
    page_section(p, "Memory");
    page_memory(p, f, 1);
    if (f->devices > 1) {
        page_section(p, "Links");
        page_links(p, f);
    }
    return page_close(p);
}

/* The engine does not know what its devices idle for; the log does. */
static void tell_data_wait(figures *f, const history *h)
{
    double sum = 0;
    for (int64_t i = 0; i < h->n; i++) sum += h->interval[i].phase[DP_PHASE_DATA_WAIT];
    for (int d = 0; d < f->devices; d++) {
        double *idle = &f->device[d].phase[DP_PHASE_IDLE], part = sum < *idle ? sum : *idle;
        *idle -= part, f->device[d].phase[DP_PHASE_DATA_WAIT] += part;
    }
}

/* Everything since the engine was opened. */
static dp_status take(figures *f, dp_trainer *t, dp_error *err)
{
    dp_engine *e = dp_trainer_engine(t);
    if (!figures_open(f, dp_engine_devices(e), "run")) return DP_ENOMEM;
    dp_trainer_trace(t, figures_add_span, f, NULL);
    return figures_end(f, e, err);
}

int run_report(dp_trainer *t, const char *config)
{
    history h = {0};
    figures f = {0};
    dp_error err;
    char path[4096];
    int ok = 0;
    snprintf(path, sizeof path, "%s/log.jsonl", dp_trainer_dir(t));
    if (take(&f, t, &err) == DP_ENOMEM || !read_log(&h, path)) {
        fprintf(stderr, "dptrain: out of memory for the report, or %s cannot be read\n", path);
        goto done;
    }
    snprintf(path, sizeof path, "%s/report.html", dp_trainer_dir(t));
    tell_data_wait(&f, &h);
    ok = write_page(path, config, &h, &f);
    if (!ok) fprintf(stderr, "dptrain: cannot write %s: %s\n", path, strerror(errno));
done:
    free_history(&h);
    figures_free(&f);
    return ok;
}
