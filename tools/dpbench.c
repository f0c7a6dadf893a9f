/* dpbench: how fast and how evenly training runs here. The commands are in bench_*.c. */
#include "bench.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void help(void)
{
    fputs("usage: dpbench speed     CONFIG [--devices N[,N...]] [options] [section.key=value ...]\n"
          "       dpbench imbalance CONFIG [--devices N] [--side \"NAME section.key=value ...\"]... [options] "
          "[section.key=value ...]\n"
          "       dpbench ladder    CONFIG [--devices N] [options] [section.key=value ...]\n"
          "       dpbench ops       [options]\n"
          "Trains the model of CONFIG on a random batch that stays in memory, two batches in flight.\n"
          "\n"
          "speed      samples/s for each number of devices (default: 1, 2, .. cores up to 8), efficiency, share of the cores' "
          "measured\n"
          "           multiply-add peak, time to the end of the first step, bytes of the fullest device\n"
          "imbalance  classic, dp, balanced, ddp, what CONFIG says if that is something else, and every --side, on the same "
          "batch and\n"
          "           seed: per device busy, wait, peak bytes by class, bytes in and out; per link bytes, expected and "
          "measured time.\n"
          "           Ratios are refused when batch, model, steps, warm-up or losses are not equal\n"
          "ladder     from classic to balanced one switch at a time: samples/s and gain of each\n"
          "ops        each op forward and backward against the peak of a core\n"
          "\n"
          "  --devices N    imbalance, ladder: N CPU devices; default: devices.use, or a device per core, at least 2\n"
          "  --seconds S    measure about S seconds, each side (3); ops: a third of that each\n"
          "  --steps N      imbalance, ladder: measure N steps instead\n"
          "  --warmup N     imbalance, ladder: steps before that (5)\n"
          "  --json FILE    the figures for programs\n"
          "  --html FILE    the figures as one page: timelines, memory, links\n"
          "  --version, --help\n"
          "\n"
          "exit code: 0 done, 1 failed while running or losses differ, 2 wrong command line or configuration, or nothing to "
          "compare\n",
          stdout);
}

int bench_wrong(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("dpbench: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputs("; see dpbench --help\n", stderr);
    va_end(ap);
    return 2;
}

int bench_failed(dp_status status, const dp_error *err)
{
    fprintf(stderr, "dpbench: %s\n", status == DP_ENOMEM && !err->text[0] ? "out of memory" : err->text);
    return status == DP_ECONFIG || status == DP_EIO || status == DP_EARGUMENT || status == DP_EDATA ? 2 : 1;
}

static int parse_counts(request *r, const char *text)
{
    for (const char *at = text; *at;) {
        char *end;
        long n = strtol(at, &end, 10);
        if (end == at || n < 1 || n > MAX_DEVICES || r->n_counts == MAX_COUNTS || (*end && *end != ',')) return 0;
        r->count[r->n_counts++] = (int)n;
        at = *end ? end + 1 : end;
    }
    return r->n_counts > 0;
}

static int whole(const char *text, int64_t *n)
{
    char *end;
    *n = strtoll(text, &end, 10);
    return end != text && !*end && *n > 0 && *n < 1000000;
}

/* An option with a value; 0: it is none, or the value is wrong. */
static int option(request *r, const char *name, const char *value)
{
    if (!strcmp(name, "--json") && *value) return r->json = value, 1;
    if (!strcmp(name, "--html") && *value) return r->html = value, 1;
    if (!strcmp(name, "--seconds")) return (r->seconds = atof(value)) > 0;
    if (!strcmp(name, "--steps")) return whole(value, &r->steps);
    if (!strcmp(name, "--warmup")) return whole(value, &r->warmup);
    if (!strcmp(name, "--devices")) return parse_counts(r, value);
    if (!strcmp(name, "--side") && strchr(value, ' ') && r->n_side < MAX_SIDES) return r->side[r->n_side++] = value, 1;
    return 0;
}

static int parse(request *r, int argc, char **argv)
{
    r->seconds = 3, r->warmup = 5;
    for (int i = 2; i < argc; i++) {
        if (argv[i][0] == '-') {
            if (!option(r, argv[i], i + 1 < argc ? argv[i + 1] : "")) return bench_wrong("wrong option or value: %s", argv[i]);
            i++;
        } else if (strchr(argv[i], '=') && r->n_set < MAX_SETS) {
            r->set[r->n_set++] = argv[i];
        } else if (!r->config) {
            r->config = argv[i];
        } else {
            return bench_wrong("what is this: %s", argv[i]);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const request *r);
        int wants_config;
    } commands[] = {
        {"speed", bench_speed, 1}, {"imbalance", bench_imbalance, 1}, {"ladder", bench_ladder, 1}, {"ops", bench_ops, 0}};
    request r = {0};
    if (argc < 2) return bench_wrong("a command is missing");
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return help(), 0;
        if (!strcmp(argv[i], "--version")) return printf("dpbench %s\n", dp_version_text()), 0;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name)) continue;
        if (parse(&r, argc, argv)) return 2;
        if (commands[i].wants_config && !r.config) return bench_wrong("%s wants a configuration file", argv[1]);
        if (!commands[i].wants_config && r.config) return bench_wrong("what is this: %s", r.config);
        return commands[i].run(&r);
    }
    return bench_wrong("unknown command %s", argv[1]);
}
