/* Tables: devices, settings, layers, and where time and bytes went. */
#include "figures.h"
#include "tool.h"
#include <stdio.h>
#include <string.h>

void show_devices(void)
{
    dp_device_info d;
    char b[32];
    for (int i = 0; dp_device(i, &d); i++) {
        printf("%-8s %s", d.name, d.model[0] ? d.model : "CPU");
        if (d.memory > 0) printf(", %s", bytes_text(b, sizeof b, (double)d.memory));
        if (d.units > 0) printf(", %d unit%s", d.units, d.units == 1 ? "" : "s");
        if (d.pci[0]) printf(", pci %s", d.pci);
        if (d.uuid[0]) printf(", %s", d.uuid);
        if (!d.usable) printf(", not usable: %s", d.why);
        printf("\n");
    }
    printf("CPU devices are virtual: devices.use = cpu:0,cpu:1,... takes any number.\n");
}

static const char *rate_text(char *buf, size_t size, double bytes_per_s)
{
    char bytes[32];
    snprintf(buf, size, bytes_per_s > 0 ? "%s/s" : "-", bytes_text(bytes, sizeof bytes, bytes_per_s));
    return buf;
}

/* The way from one device to another that is the fastest, or the only one, and its rate; then all ways. */
static void show_matrix(const dp_group *g)
{
    static const char *const kinds[] = {"host", "copy", "peer"};
    int n = dp_group_size(g);
    dp_device_info info[MAX_DEVICES] = {0};
    dp_link l;
    char a[40], b[40], c[40], cell[64];
    for (int d = 0; d < n && d < MAX_DEVICES; d++) dp_group_device(g, d, &info[d]);
    printf("\n%-10s", "from \\ to");
    for (int to = 0; to < n; to++) printf(" %-18s", info[to].name);
    for (int from = 0; from < n; from++) {
        printf("\n%-10s", info[from].name);
        for (int to = 0; to < n; to++) {
            snprintf(cell, sizeof cell, "-");
            if (dp_group_link(g, from, to, &l)) {
                const double rates[] = {l.by_host, l.by_copy, l.by_peer};
                snprintf(cell, sizeof cell, "%s %s", l.fastest < 0 ? l.kind : kinds[l.fastest],
                         rate_text(a, sizeof a, l.fastest < 0 ? l.bytes_per_s : rates[l.fastest]));
            }
            printf(" %-18s", cell);
        }
    }
    printf("\n");
    for (int i = 0, lines = 0; i < n * n; i++) {
        if (!dp_group_link(g, i / n, i % n, &l) || l.by_host <= 0) continue;
        if (!lines++) printf("\n%-20s %5s %14s %14s %14s\n", "link", "class", "peer (kernels)", "copy", "host");
        snprintf(cell, sizeof cell, "%.28s > %.28s", info[i / n].name, info[i % n].name);
        printf("%-20s %5d %14s %14s %14s\n", cell, l.link_class, rate_text(a, sizeof a, l.by_peer),
               rate_text(b, sizeof b, l.by_copy), rate_text(c, sizeof c, l.by_host));
    }
}

dp_status show_links(const dp_config *c, dp_error *err)
{
    dp_group *g;
    dp_status s = dp_group_open(&g, c, err);
    if (s) return s;
    printf("%d device%s, all at once, both directions, sums included\n", dp_group_size(g), dp_group_size(g) == 1 ? "" : "s");
    s = dp_group_measure_links(g, err);
    if (!s) show_matrix(g);
    dp_status closed = dp_group_close(g, s ? NULL : err);
    return s ? s : closed;
}

void show_keys(const dp_config *c)
{
    dp_key k;
    for (int i = 0; dp_config_key(c, i, &k); i++) {
        printf("%-28s %-12s", k.name, k.def && k.def[0] ? k.def : "-");
        printf(" %s", k.help);
        if (k.range && k.range[0])
            printf(" [%s%s%s]", k.range, k.unit && k.unit[0] ? " " : "", k.unit ? k.unit : "");
        else if (k.unit && k.unit[0])
            printf(" [%s]", k.unit);
        printf("\n");
    }
}

void show_model(const dp_graph *g)
{
    dp_layer_info l;
    char shape[64], a[40], b[40];
    int64_t parameters = 0, flops = 0;
    printf("%-28s %-14s %-14s %12s %16s\n", "layer", "op", "output", "parameters", "flops/sample");
    for (int i = 0; dp_graph_layer(g, i, &l); i++) {
        size_t at = 0;
        shape[0] = 0;
        for (int k = 0; k < l.rank; k++)
            at += (size_t)snprintf(shape + at, sizeof shape - at, "%s%lld", k ? "x" : "", (long long)l.shape[k]);
        printf("%-28s %-14s %-14s %12s %16s\n", l.name, l.op, shape, count_text(a, sizeof a, l.parameters),
               count_text(b, sizeof b, l.flops));
        parameters += l.parameters, flops += l.flops;
    }
    printf("%-28s %-14s %-14s %12s %16s\n", "total", "", "", count_text(a, sizeof a, parameters),
           count_text(b, sizeof b, flops));
}

void show_check(dp_engine *e, const dp_config *c)
{
    dp_device_stats s;
    int64_t rows[MAX_DEVICES] = {0}, batch = 0;
    char b[32];
    for (const char *p = dp_config_get(c, "data.batch_size"); *p >= '0' && *p <= '9'; p++) batch = batch * 10 + (*p - '0');
    int n = dp_engine_split(e, batch, rows, MAX_DEVICES);
    printf("\n%-10s %8s %12s", "device", "samples", "bytes");
    for (int k = 0; k < DP_MEM_CLASSES; k++) printf(" %12s", dp_memory_class_name(k));
    printf("\n");
    for (int i = 0; dp_engine_stats(e, i, &s); i++) {
        int64_t all = 0;
        for (int k = 0; k < DP_MEM_CLASSES; k++) all += s.live[k];
        printf("%-10s %8lld %12s", s.name, i < n && i < MAX_DEVICES ? (long long)rows[i] : 0,
               bytes_text(b, sizeof b, (double)all));
        for (int k = 0; k < DP_MEM_CLASSES; k++) printf(" %12s", bytes_text(b, sizeof b, (double)s.live[k]));
        printf("\n");
    }
}

void show_stats(dp_engine *e)
{
    dp_device_stats s;
    char in[32], out[32], b[32];
    printf("%-10s %9s %9s %10s %10s  %s\n", "device", "busy", "wait", "in", "out", "peak bytes");
    for (int i = 0; dp_engine_stats(e, i, &s); i++) {
        int64_t all = 0;
        for (int k = 0; k < DP_MEM_CLASSES; k++) all += s.peak[k];
        printf("%-10s %7.2f s %7.2f s %10s %10s  %s:", s.name, s.busy, s.wait,
               bytes_text(in, sizeof in, (double)(s.bytes_in + s.host_in)),
               bytes_text(out, sizeof out, (double)(s.bytes_out + s.host_out)), bytes_text(b, sizeof b, (double)all));
        for (int k = 0; k < DP_MEM_CLASSES; k++)
            if (s.peak[k]) printf(" %s %s", dp_memory_class_name(k), bytes_text(b, sizeof b, (double)s.peak[k]));
        printf("\n");
    }
}

void show_eval(const char *what, const dp_result *r, int accuracy)
{
    printf("%s: loss %.6f", what, r->targets ? r->loss_sum / (double)r->targets : 0);
    if (accuracy) printf(", accuracy %.4f %%", r->targets ? 100 * (double)r->correct / (double)r->targets : 0);
    printf(", %lld samples\n", (long long)r->samples);
}
