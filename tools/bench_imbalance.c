/* dpbench imbalance: the same batch, seed and steps under several arrangements, and what each device had of it. Ratios
 * are printed only between sides that did the same work. */
#include "bench.h"
#include <string.h>
#include <unistd.h>

static const char *const switches[] = {"devices.scatter", "devices.loss",   "devices.broadcast",
                                       "devices.reduce",  "devices.update", "devices.overlap"};

typedef struct comparison {
    bench_case b;
    side side[4 + 1 + MAX_SIDES];
    int n, rounds;
    const char *refused; /* why no ratios may be printed; NULL: they may */
    char why[400];
    double against[4 + 1 + MAX_SIDES]; /* samples/s, as a share of `reference`'s: median over the turns */
    int reference;
} comparison;

/* ---- the sides ---- */

/* Its mode with what was set by hand; 0: a preset as it is. */
static int as_configured(const dp_config *c, char *keys, size_t size)
{
    int by_hand = 0;
    size_t at = (size_t)snprintf(keys, size, "devices.mode=%s", dp_config_get(c, "devices.mode"));
    for (size_t i = 0; i < sizeof switches / sizeof *switches && at < size; i++) {
        const char *value = dp_config_get(c, switches[i]);
        if (!*value) continue;
        at += (size_t)snprintf(keys + at, size - at, " %s=%s", switches[i], value);
        by_hand = 1;
    }
    return by_hand;
}

static int add(comparison *c, const char *name, const char *keys, const char *about)
{
    char why[200];
    dp_error err;
    side *s = &c->side[c->n];
    dp_status status = side_open(s, &c->b, name, keys, about, &err);
    c->n++; /* is closed, whatever became of it */
    if (status) {
        fprintf(stderr, "dpbench: %s: ", name);
        return bench_failed(status, &err);
    }
    if (sides_unequal(&c->side[0], s, why, sizeof why)) {
        fprintf(stderr, "dpbench: these cannot be compared: the %s. Give all sides the same.\n", why);
        return 2;
    }
    return 0;
}

static int open_sides(comparison *c, const request *r)
{
    static const char *const presets[][3] = {
        {"classic", "devices.mode=classic", "as PyTorch's DataParallel"},
        {"dp", "devices.mode=dp", "the same shape without its waste"},
        {"balanced", "devices.mode=balanced", "every device reduces and updates a slice"},
        {"ddp", "devices.mode=ddp", "all-reduce, an optimizer per replica"},
    };
    char keys[512], name[48];
    int code = 0;
    for (size_t i = 0; i < sizeof presets / sizeof *presets && !code; i++)
        code = add(c, presets[i][0], presets[i][1], presets[i][2]);
    c->reference = 3;
    if (!code && as_configured(c->b.config, keys, sizeof keys)) code = add(c, "configured", keys, "as the configuration says");
    for (int i = 0; i < r->n_side && !code; i++) {
        const char *space = strchr(r->side[i], ' ');
        snprintf(name, sizeof name, "%.*s", (int)(space - r->side[i]), r->side[i]);
        code = add(c, name, space + 1, "--side");
    }
    return code;
}

/* ---- what may be said ---- */

static void judge(comparison *c)
{
    double ratio[MAX_ROUNDS];
    const side *ref = &c->side[c->reference];
    for (int i = 0; i < c->n && !c->refused; i++) {
        char why[200];
        int64_t k = sides_loss_differs(ref, &c->side[i]);
        if (sides_unequal(ref, &c->side[i], why, sizeof why)) {
            snprintf(c->why, sizeof c->why, "the %s", why);
            c->refused = c->why;
        } else if (k >= 0) {
            snprintf(c->why, sizeof c->why, "the loss of step %lld is %.8g in %s and %.8g in %s", (long long)k, ref->loss[k],
                     ref->name, c->side[i].loss[k], c->side[i].name);
            c->refused = c->why;
        }
    }
    for (int i = 0; i < c->n; i++) {
        for (int k = 0; k < c->rounds; k++) ratio[k] = c->side[i].rate[k] / ref->rate[k];
        c->against[i] = bench_median(ratio, c->rounds);
    }
}

/* ---- the terminal ---- */

static void print_sides(const comparison *c)
{
    char a[32];
    printf("%-12s %11s %9s %9s %14s %14s %13s %11s\n", "", "samples/s", "+-", "of ddp", "busy max/mean", "peak max/mean",
           "busiest port", "last loss");
    for (int i = 0; i < c->n; i++) {
        const side *s = &c->side[i];
        printf("%-12s %11.1f %9.1f", s->name, s->samples_per_s, s->spread);
        if (c->refused)
            printf(" %9s %14s %14s", "-", "-", "-");
        else
            printf(" %8.1f%% %14.3f %14.3f", 100 * c->against[i], figures_uneven(&s->figures, figures_busy),
                   figures_uneven(&s->figures, figures_peak_value));
        printf(" %13s %11.6f\n", bytes_text(a, sizeof a, (double)figures_busiest_port(&s->figures)), s->loss[s->done - 1]);
    }
    if (c->refused) printf("No ratios: %s.\n", c->refused);
}

static void print_devices(const comparison *c)
{
    char a[32], b[32], h[32], in[32], out[32];
    printf("\nA step of each device, and its peak bytes by class\n%-12s %-8s %9s %9s %9s %9s %9s", "", "device", "busy", "wait",
           "hidden", "in", "out");
    for (int k = 0; k < DP_MEM_CLASSES; k++) printf(" %11s", dp_memory_class_name(k));
    printf("\n");
    for (int i = 0; i < c->n; i++)
        for (int d = 0; d < c->side[i].figures.devices; d++) {
            const dp_device_stats *s = &c->side[i].figures.device[d];
            double steps = (double)c->side[i].figures.steps;
            printf("%-12s %-8s %9s %9s %9s %9s %9s", c->side[i].name, s->name, seconds_text(a, sizeof a, s->busy / steps),
                   seconds_text(b, sizeof b, s->wait / steps), seconds_text(h, sizeof h, s->hidden / steps),
                   bytes_text(in, sizeof in, (double)s->bytes_in / steps),
                   bytes_text(out, sizeof out, (double)s->bytes_out / steps));
            for (int k = 0; k < DP_MEM_CLASSES; k++) printf(" %11s", bytes_text(a, sizeof a, (double)s->peak[k]));
            printf("\n");
        }
}

/* Of GPUs: how fast they were allowed to be. The lowest clock and the reasons seen after any turn. */
static void print_health(const comparison *c)
{
    char why[80], others[32];
    int known = 0;
    for (int i = 0; i < c->n; i++) known |= figures_know_health(&c->side[i].figures, 1);
    if (!known) return;
    printf("\nClocks right behind the turns, and who else has memory\n%-12s %-8s %9s %9s %9s  %s\n", "", "device", "clock MHz",
           "of", "others", "throttled");
    for (int i = 0; i < c->n; i++)
        for (int d = 0; d < c->side[i].figures.devices; d++) {
            const dp_device_health *h = &c->side[i].figures.health[d];
            printf("%-12s %-8s %9d %9d %9s  %s\n", c->side[i].name, c->side[i].figures.device[d].name, (int)h->clock_mhz,
                   (int)h->max_clock_mhz, bytes_text(others, sizeof others, (double)h->others_bytes),
                   figures_throttled(h, why, sizeof why));
        }
}

static void print_links(const comparison *c)
{
    char bytes[32], rate[32], want[32], got[32], name[80];
    printf("\nA step on each link: bytes, those at the measured rate, and the time they took (sums included)\n%-12s %-16s %-7s "
           "%9s %11s %10s %10s\n",
           "", "link", "kind", "bytes", "rate", "expected", "measured");
    for (int i = 0; i < c->n; i++) {
        const figures *f = &c->side[i].figures;
        for (int k = 0; k < f->devices * f->devices; k++) {
            const link_figures *l = &f->link[k];
            if (!l->link.bytes) continue;
            snprintf(name, sizeof name, "%s > %s", f->device[k / f->devices].name, f->device[k % f->devices].name);
            bytes_text(rate, sizeof rate - 2, l->link.bytes_per_s);
            printf("%-12s %-16s %-7s %9s %9s/s %10s %10s\n", f->name, name, l->link.kind,
                   bytes_text(bytes, sizeof bytes, (double)l->link.bytes / (double)f->steps), rate,
                   seconds_text(want, sizeof want, figures_expected(f, k / f->devices, k % f->devices)),
                   seconds_text(got, sizeof got, figures_measured(f, k / f->devices, k % f->devices)));
        }
    }
}

/* ---- files ---- */

static void write_json(json *j, const request *r, const comparison *c)
{
    const side *first = &c->side[0];
    json_begin(j, NULL, '{');
    json_text(j, "config", r->config);
    json_int(j, "batch", c->b.batch);
    json_int(j, "parameters", c->b.parameters);
    json_int(j, "seed", first->seed);
    json_int(j, "warmup", first->warmup);
    json_int(j, "steps", first->steps);
    json_text(j, "refused", c->refused ? c->refused : "");
    if (!c->refused) {
        json_begin(j, "of_ddp", '{');
        for (int i = 0; i < c->n; i++) json_number(j, c->side[i].name, c->against[i]);
        json_end(j, '}');
    }
    json_begin(j, "sides", '[');
    for (int i = 0; i < c->n; i++) json_side(j, &c->side[i]);
    json_end(j, ']');
    json_end(j, '}');
}

static void page_sides(page *p, const comparison *c)
{
    char label[128], text[64], a[32];
    double most = 0;
    for (int i = 0; i < c->n; i++)
        if (c->side[i].samples_per_s > most) most = c->side[i].samples_per_s;
    page_section(p, "Samples per second");
    page_bars(p);
    for (int i = 0; i < c->n; i++) {
        const side *s = &c->side[i];
        snprintf(label, sizeof label, "%s", s->name);
        if (c->refused)
            snprintf(text, sizeof text, "%.0f", s->samples_per_s);
        else
            snprintf(text, sizeof text, "%.0f, %.1f %% of ddp", s->samples_per_s, 100 * c->against[i]);
        page_bar(p, label, text, s->samples_per_s / most, i == c->reference ? "bar-ref" : "bar-main");
    }
    page_bars_end(p);
    if (c->refused) page_note(p, "No ratios: %s.", c->refused);
    page_table(p,
               "Median over turns of a few steps each; max / mean over the devices, 1 = even; memory without the class library",
               "|samples/s|+-|busy max / mean|peak max / mean|busiest port a step|last loss|<what it is");
    for (int i = 0; i < c->n; i++) {
        const side *s = &c->side[i];
        page_row(p);
        page_cell(p, "%s", s->name);
        page_cell(p, "%.1f", s->samples_per_s);
        page_cell(p, "%.1f", s->spread);
        page_cell(p, c->refused ? "-" : "%.3f", figures_uneven(&s->figures, figures_busy));
        page_cell(p, c->refused ? "-" : "%.3f", figures_uneven(&s->figures, figures_peak_value));
        page_cell(p, "%s", bytes_text(a, sizeof a, (double)figures_busiest_port(&s->figures)));
        page_cell(p, "%.6f", s->loss[s->done - 1]);
        page_words(p, "%s: %s", s->about, s->key);
    }
    page_table_end(p);
}

static void page_summary(page *p, const comparison *c)
{
    enum { CLASSIC, DP, BALANCED };
    const figures *dp = &c->side[DP].figures, *balanced = &c->side[BALANCED].figures;
    char a[32], b[32];
    if (c->refused) return;
    page_facts(p);
    page_fact(p, "balanced, samples/s of ddp's", "%.1f %%", 100 * c->against[BALANCED]);
    page_fact(p, "dp, samples/s of ddp's", "%.1f %%", 100 * c->against[DP]);
    page_fact(p, "fullest device / mean: dp | balanced", "%.3f | %.3f", figures_uneven(dp, figures_peak_value),
              figures_uneven(balanced, figures_peak_value));
    page_fact(p, "busiest port a step: dp | balanced", "%s | %s", bytes_text(a, sizeof a, (double)figures_busiest_port(dp)),
              bytes_text(b, sizeof b, (double)figures_busiest_port(balanced)));
    page_facts_end(p);
}

static void page_health(page *p, const figures *f, int n)
{
    char why[80], others[32];
    if (!figures_know_health(f, n)) return;
    page_section(p, "Clocks");
    page_table(p, "Lowest clock and reasons seen right behind the turns, and memory of other processes",
               "|device|clock MHz|of|memory of others|<throttled");
    for (int i = 0; i < n; i++)
        for (int d = 0; d < f[i].devices; d++) {
            const dp_device_health *h = &f[i].health[d];
            page_row(p);
            page_cell(p, "%s", f[i].name);
            page_cell(p, "%s", f[i].device[d].name);
            page_cell(p, "%d", (int)h->clock_mhz);
            page_cell(p, "%d", (int)h->max_clock_mhz);
            page_cell(p, "%s", bytes_text(others, sizeof others, (double)h->others_bytes));
            page_words(p, "%s", figures_throttled(h, why, sizeof why));
        }
    page_table_end(p);
}

static int write_page(const request *r, const comparison *c, const figures *f)
{
    char more[160];
    snprintf(more, sizeof more, "seed %lld, %lld steps in %d turns after %lld of warm-up", (long long)c->side[0].seed,
             (long long)c->side[0].steps, c->rounds, (long long)c->side[0].warmup);
    page *p = bench_page(r, "Load and memory, device by device", &c->b, more);
    if (!p) return 0;
    page_summary(p, c);
    page_sides(p, c);
    page_section(p, "One step");
    page_note(p, "A step of median length of each, all on one scale. What belongs to the steps around it is pale.");
    page_timelines(p, f, c->n);
    page_phases(p, f, c->n);
    page_section(p, "Load");
    page_load(p, f, c->n);
    page_health(p, f, c->n);
    page_section(p, "Memory");
    page_memory(p, f, c->n);
    page_section(p, "Links");
    for (int i = 0; i < c->n; i++) {
        page_heading(p, "%s", c->side[i].name);
        page_links(p, &f[i]);
    }
    return page_close(p);
}

static int write_out(const request *r, const comparison *c)
{
    figures all[sizeof c->side / sizeof *c->side];
    json j;
    for (int i = 0; i < c->n; i++) all[i] = c->side[i].figures; /* in a row, as pages take them; the sides keep owning them */
    if (!json_open(&j, r->json)) return bench_wrong("cannot write %s", r->json);
    if (j.f) write_json(&j, r, c);
    if (!json_close(&j)) return bench_wrong("cannot write %s", r->json);
    if (r->html && !write_page(r, c, all)) return bench_wrong("cannot write %s", r->html);
    return 0;
}

int bench_imbalance(const request *r)
{
    comparison c = {0};
    dp_error err;
    char n[32];
    dp_status status = bench_case_open_on(&c.b, r, &err);
    int code = status ? bench_failed(status, &err) : open_sides(&c, r);
    if (code) goto done;
    status = sides_run(c.side, c.n, &c.b, r->warmup, r->steps, r->seconds, &c.rounds, &err);
    if (status) {
        code = bench_failed(status, &err);
        goto done;
    }
    judge(&c);
    printf("%s: global batch %lld, %s parameters, seed %lld; %lld steps in %d turns after %lld of warm-up\n\n", r->config,
           (long long)c.b.batch, count_text(n, sizeof n, c.b.parameters), (long long)c.side[0].seed, (long long)c.side[0].steps,
           c.rounds, (long long)c.side[0].warmup);
    print_sides(&c);
    print_devices(&c);
    print_health(&c);
    print_links(&c);
    code = write_out(r, &c);
    if (!code && c.refused) code = 1;
done:
    for (int i = 0; i < c.n; i++) side_close(&c.side[i]);
    bench_case_close(&c.b);
    return code;
}
