/* dpbench speed CONFIG | ops: how fast training is here, per device count, and each op against the core's peak. */
#include "bench.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void help(void)
{
    fputs(
        "usage: dpbench speed CONFIG [--devices N[,N...]] [--seconds S] [--json FILE] [section.key=value ...]\n"
        "       dpbench ops [--json FILE]\n"
        "\n"
        "speed  trains the model of CONFIG on a random batch that stays in memory, one thread per CPU device, for each number "
        "of\n"
        "       devices (default: 1, 2, .. cores up to 8): samples/s (median), scaling, GF/s and share of the cores' measured\n"
        "       multiply-add peak, time from opening to the end of the first step, bytes of the fullest device\n"
        "ops    each op forward and backward against that peak\n",
        stdout);
}

static int wrong(const char *what, const char *name)
{
    fprintf(stderr, "dpbench: %s%s; see dpbench --help\n", what, name);
    return 2;
}

typedef struct request {
    const char *config, *json, *set[64];
    int count[16], n_counts, n_set;
    double seconds;
} request;

static int parse_counts(request *r, const char *text)
{
    for (const char *at = text; *at;) {
        char *end;
        long n = strtol(at, &end, 10);
        if (end == at || n < 1 || n > 64 || r->n_counts == 16 || (*end && *end != ',')) return 0;
        r->count[r->n_counts++] = (int)n;
        at = *end ? end + 1 : end;
    }
    return r->n_counts > 0;
}

static int parse(request *r, int argc, char **argv)
{
    r->seconds = 3;
    for (int i = 2; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--json") && *next)
            r->json = next, i++;
        else if (!strcmp(argv[i], "--seconds") && atof(next) > 0)
            r->seconds = atof(next), i++;
        else if (!strcmp(argv[i], "--devices") && parse_counts(r, next))
            i++;
        else if (argv[i][0] == '-')
            return wrong("wrong option or value: ", argv[i]);
        else if (strchr(argv[i], '=') && r->n_set < 64)
            r->set[r->n_set++] = argv[i];
        else if (!r->config)
            r->config = argv[i];
        else
            return wrong("what is this: ", argv[i]);
    }
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    for (int n = 1; !r->n_counts && n <= cores && n <= 8; n++) r->count[n - 1] = n;
    if (!r->n_counts) r->n_counts = cores < 8 ? (int)cores : 8;
    return 0;
}

static int speed(const request *r)
{
    bench_case b;
    dp_error err;
    FILE *json = NULL;
    double one = 0;
    if (!r->config) return wrong("speed wants a configuration file", "");
    dp_status status = bench_case_open(&b, r->config, r->set, r->n_set, &err);
    if (status) goto fail;
    if (r->json && !(json = fopen(r->json, "w"))) {
        bench_case_close(&b);
        return wrong("cannot write ", r->json);
    }
    double peak = bench_peak();
    printf("%s: batch %lld, %.1f Mflop a training sample, peak of a core %.0f GF/s\n", r->config, (long long)b.batch,
           b.flops / 1e6, peak / 1e9);
    printf("%8s %14s %8s %8s %7s %12s %10s\n", "devices", "samples/s", "scaling", "GF/s", "peak", "first step", "MB/device");
    if (json)
        fprintf(json, "{\"config\": \"%s\", \"batch\": %lld, \"flops\": %.0f, \"peak\": %.0f, \"runs\": [", r->config,
                (long long)b.batch, b.flops, peak);
    for (int i = 0; i < r->n_counts; i++) {
        char devices[1024] = "";
        bench_speed s;
        int n = r->count[i];
        for (int d = 0; d < n; d++)
            snprintf(devices + strlen(devices), sizeof devices - strlen(devices), "%scpu:%d", d ? "," : "", d);
        if ((status = bench_measure(&b, devices, r->seconds, &s, &err))) break;
        if (!i) one = s.samples_per_s / n;
        double rate = s.samples_per_s * b.flops;
        printf("%8d %14.1f %8.2f %8.1f %6.0f%% %9.1f ms %10.1f\n", n, s.samples_per_s, s.samples_per_s / one, rate / 1e9,
               100 * rate / peak / n, s.first_step_s * 1e3, (double)s.peak_bytes / 1e6);
        fflush(stdout);
        if (json)
            fprintf(json,
                    "%s{\"devices\": %d, \"samples_per_s\": %.2f, \"first_step_s\": %.6f, \"device_bytes\": %lld, "
                    "\"resident_bytes\": %lld}",
                    i ? ", " : "", n, s.samples_per_s, s.first_step_s, (long long)s.peak_bytes, (long long)bench_resident());
    }
    if (json) fprintf(json, "]}\n");
    if (json && fclose(json)) return wrong("cannot write ", r->json);
    bench_case_close(&b);
    if (!status) return 0;
fail:
    fprintf(stderr, "dpbench: %s\n", err.text);
    return status == DP_ECONFIG || status == DP_EIO || status == DP_EARGUMENT ? 2 : 1;
}

int main(int argc, char **argv)
{
    request r = {0};
    if (argc < 2) return wrong("a command is missing", "");
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) return help(), 0;
    if (!strcmp(argv[1], "--version")) return printf("dpbench %s\n", dp_version_text()), 0;
    if (parse(&r, argc, argv)) return 2;
    if (!strcmp(argv[1], "speed")) return speed(&r);
    if (!strcmp(argv[1], "ops")) return bench_ops(r.json);
    return wrong("unknown command ", argv[1]);
}
