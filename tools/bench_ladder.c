/* dpbench ladder: from what PyTorch's DataParallel does to balanced load, one switch at a time, and what each is worth. */
#include "bench.h"
#include <string.h>

typedef struct rung {
    const char *name, *keys, *about;
} rung;
static const rung rungs[] = {
    {"classic", "devices.mode=classic", "as PyTorch's DataParallel does it"},
    {"persistent threads",
     "devices.mode=dp devices.scatter=master devices.loss=master devices.broadcast=always devices.reduce=master "
     "devices.overlap=off",
     "a thread per device for the whole run"},
    {"scatter = direct",
     "devices.mode=dp devices.loss=master devices.broadcast=always devices.reduce=master devices.overlap=off",
     "rows go straight to their device, not through the master"},
    {"loss = replica", "devices.mode=dp devices.broadcast=always devices.reduce=master devices.overlap=off",
     "each device computes the loss of its rows; outputs stay where they are"},
    {"broadcast = on_update", "devices.mode=dp devices.reduce=master devices.overlap=off",
     "parameters travel when they changed, not before each forward"},
    {"reduce = sliced", "devices.mode=dp devices.overlap=off",
     "every device adds its slice of the gradients, not the master all"},
    {"overlap = reduce", "devices.mode=dp", "gradients are added under the rest of backward: mode = dp"},
    {"update = sliced", "devices.mode=dp devices.update=sliced", "every device steps its slice"},
    {"overlap = all", "devices.mode=balanced", "update and gather run under computation too: mode = balanced"},
    {"ddp", "devices.mode=ddp", "no rung: all-reduce and an optimizer per replica, to compare with"},
};
enum { RUNGS = sizeof rungs / sizeof *rungs, LAST = RUNGS - 2 };

typedef struct ladder {
    bench_case b;
    side side[RUNGS];
    int n, rounds;
    double gain[RUNGS], whole[RUNGS]; /* over the rung before; over classic; medians over the turns */
} ladder;

static double paired(const side *a, const side *b, int rounds)
{
    double ratio[MAX_ROUNDS];
    for (int k = 0; k < rounds; k++) ratio[k] = a->rate[k] / b->rate[k];
    return bench_median(ratio, rounds);
}

static int open_rungs(ladder *l)
{
    dp_error err;
    for (int i = 0; i < RUNGS; i++) {
        dp_status status = side_open(&l->side[i], &l->b, rungs[i].name, rungs[i].keys, rungs[i].about, &err);
        l->n++;
        if (!status) continue;
        fprintf(stderr, "dpbench: %s: ", rungs[i].name);
        return bench_failed(status, &err);
    }
    return 0;
}

/* Equal work, or nothing is compared. */
static int check(const ladder *l)
{
    char why[200];
    for (int i = 1; i < RUNGS; i++) {
        int64_t k = sides_loss_differs(&l->side[0], &l->side[i]);
        if (sides_unequal(&l->side[0], &l->side[i], why, sizeof why)) {
            fprintf(stderr, "dpbench: no gains: the %s\n", why);
            return 1;
        }
        if (k < 0) continue;
        fprintf(stderr, "dpbench: no gains: the loss of step %lld is %.8g in classic and %.8g in %s\n", (long long)k,
                l->side[0].loss[k], l->side[i].loss[k], l->side[i].name);
        return 1;
    }
    return 0;
}

static void print(const ladder *l)
{
    char a[32];
    printf("%-22s %11s %9s %9s %12s %13s  %s\n", "", "samples/s", "+-", "gain", "of classic", "busiest port", "");
    for (int i = 0; i < RUNGS; i++) {
        const side *s = &l->side[i];
        if (i == LAST + 1) printf("\n");
        printf("%-22s %11.1f %9.1f", s->name, s->samples_per_s, s->spread);
        if (i && i <= LAST)
            printf(" %+8.1f%%", 100 * (l->gain[i] - 1));
        else
            printf(" %9s", "");
        printf(" %11.2fx %13s  %s\n", l->whole[i], bytes_text(a, sizeof a, (double)figures_busiest_port(&s->figures)),
               rungs[i].about);
    }
    printf("balanced against ddp: %.1f %%\n", 100 * paired(&l->side[LAST], &l->side[LAST + 1], l->rounds));
}

static void write_json(json *j, const request *r, const ladder *l)
{
    json_begin(j, NULL, '{');
    json_text(j, "config", r->config);
    json_int(j, "batch", l->b.batch);
    json_int(j, "warmup", l->side[0].warmup);
    json_int(j, "steps", l->side[0].steps);
    json_number(j, "balanced_of_ddp", paired(&l->side[LAST], &l->side[LAST + 1], l->rounds));
    json_begin(j, "rungs", '[');
    for (int i = 0; i < RUNGS; i++) {
        json_begin(j, NULL, '{');
        json_text(j, "name", l->side[i].name);
        json_text(j, "settings", l->side[i].key);
        json_number(j, "samples_per_s", l->side[i].samples_per_s);
        json_number(j, "spread", l->side[i].spread);
        if (i && i <= LAST) json_number(j, "gain", l->gain[i]);
        json_number(j, "of_classic", l->whole[i]);
        json_int(j, "busiest_port_bytes", figures_busiest_port(&l->side[i].figures));
        json_end(j, '}');
    }
    json_end(j, ']');
    json_end(j, '}');
}

static void page_rungs(page *p, const ladder *l)
{
    char text[96], a[32];
    double most = 0;
    for (int i = 0; i < RUNGS; i++)
        if (l->side[i].samples_per_s > most) most = l->side[i].samples_per_s;
    page_section(p, "The ladder");
    page_note(p, "Each rung changes one switch of the rung before. Gains are medians over turns in which all rungs trained one "
                 "after another.");
    page_bars(p);
    for (int i = 0; i < RUNGS; i++) {
        const side *s = &l->side[i];
        if (i && i <= LAST)
            snprintf(text, sizeof text, "%.0f, %+.1f %%", s->samples_per_s, 100 * (l->gain[i] - 1));
        else
            snprintf(text, sizeof text, "%.0f", s->samples_per_s);
        page_bar(p, s->name, text, s->samples_per_s / most, i <= LAST ? "bar-main" : "bar-ref");
    }
    page_bars_end(p);
    page_table(p, "Samples per second", "rung|samples/s|+-|gain|of classic|busiest port a step|<what changes");
    for (int i = 0; i < RUNGS; i++) {
        const side *s = &l->side[i];
        page_row(p);
        page_cell(p, "%s", s->name);
        page_cell(p, "%.1f", s->samples_per_s);
        page_cell(p, "%.1f", s->spread);
        page_cell(p, i && i <= LAST ? "%+.1f %%" : " ", 100 * (l->gain[i] - 1));
        page_cell(p, "%.2f x", l->whole[i]);
        page_cell(p, "%s", bytes_text(a, sizeof a, (double)figures_busiest_port(&s->figures)));
        page_words(p, "%s", rungs[i].about);
    }
    page_table_end(p);
}

static int write_page(const request *r, const ladder *l)
{
    figures all[RUNGS];
    char more[160];
    snprintf(more, sizeof more, "%lld steps in %d turns after %lld of warm-up", (long long)l->side[0].steps, l->rounds,
             (long long)l->side[0].warmup);
    page *p = bench_page(r, "From classic to balanced", &l->b, more);
    if (!p) return 0;
    for (int i = 0; i < RUNGS; i++) all[i] = l->side[i].figures; /* in a row, as pages take them; the sides keep owning them */
    page_rungs(p, l);
    page_section(p, "One step of each rung");
    page_timelines(p, all, RUNGS);
    page_phases(p, all, RUNGS);
    page_section(p, "Memory");
    page_memory(p, all, RUNGS);
    return page_close(p);
}

static int write_out(const request *r, const ladder *l)
{
    json j;
    if (!json_open(&j, r->json)) return bench_wrong("cannot write %s", r->json);
    if (j.f) write_json(&j, r, l);
    if (!json_close(&j)) return bench_wrong("cannot write %s", r->json);
    if (r->html && !write_page(r, l)) return bench_wrong("cannot write %s", r->html);
    return 0;
}

int bench_ladder(const request *r)
{
    ladder l = {0};
    dp_error err;
    char n[32];
    dp_status status = bench_case_open_on(&l.b, r, &err);
    int code = status ? bench_failed(status, &err) : open_rungs(&l);
    if (code) goto done;
    status = sides_run(l.side, RUNGS, &l.b, r->warmup, r->steps, r->seconds, &l.rounds, &err);
    code = status ? bench_failed(status, &err) : check(&l);
    if (code) goto done;
    for (int i = 0; i < RUNGS; i++) {
        l.whole[i] = paired(&l.side[i], &l.side[0], l.rounds);
        l.gain[i] = i ? paired(&l.side[i], &l.side[i - 1], l.rounds) : 1;
    }
    printf("%s: global batch %lld, %s parameters; %lld steps in %d turns after %lld of warm-up\n\n", r->config,
           (long long)l.b.batch, count_text(n, sizeof n, l.b.parameters), (long long)l.side[0].steps, l.rounds,
           (long long)l.side[0].warmup);
    print(&l);
    code = write_out(r, &l);
done:
    for (int i = 0; i < l.n; i++) side_close(&l.side[i]);
    bench_case_close(&l.b);
    return code;
}
