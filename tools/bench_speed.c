/* dpbench speed: samples/s over numbers of devices. */
#include "bench.h"
#include <string.h>
#include <unistd.h>

typedef struct speed_row {
    int devices;
    bench_rate rate;
    double scaling, efficiency, flops_per_s, of_peak;
} speed_row;

static void write_page(page *p, const speed_row *row, int n)
{
    double most = 0;
    char text[64], label[32], a[32];
    for (int i = 0; i < n; i++)
        if (row[i].rate.samples_per_s > most) most = row[i].rate.samples_per_s;
    page_section(p, "Samples per second");
    page_bars(p);
    for (int i = 0; i < n; i++) {
        snprintf(label, sizeof label, "%d device%s", row[i].devices, row[i].devices == 1 ? "" : "s");
        snprintf(text, sizeof text, "%.1f, %.0f %%", row[i].rate.samples_per_s, 100 * row[i].efficiency);
        page_bar(p, label, text, row[i].rate.samples_per_s / most, "bar-main");
    }
    page_bars_end(p);
    page_note(p, "The percentage is efficiency: samples per second of each device, against those of the first row.");
    page_table(p, "Median of five rounds; flops count as three forward passes",
               "devices|samples/s|efficiency|GF/s|of peak|first step|fullest device");
    for (int i = 0; i < n; i++) {
        page_row(p);
        page_cell(p, "%d", row[i].devices);
        page_cell(p, "%.1f", row[i].rate.samples_per_s);
        page_cell(p, "%.1f %%", 100 * row[i].efficiency);
        page_cell(p, "%.1f", row[i].flops_per_s / 1e9);
        page_cell(p, "%.0f %%", 100 * row[i].of_peak);
        page_cell(p, "%s", seconds_text(a, sizeof a, row[i].rate.first_step_s));
        page_cell(p, "%s", bytes_text(a, sizeof a, (double)row[i].rate.peak_bytes));
    }
    page_table_end(p);
}

static void write_json(json *j, const request *r, const bench_case *b, double peak, const speed_row *row, int n)
{
    json_begin(j, NULL, '{');
    json_text(j, "config", r->config);
    json_int(j, "batch", b->batch);
    json_number(j, "flops", b->flops);
    json_number(j, "peak", peak);
    json_begin(j, "runs", '[');
    for (int i = 0; i < n; i++) {
        json_begin(j, NULL, '{');
        json_int(j, "devices", row[i].devices);
        json_number(j, "samples_per_s", row[i].rate.samples_per_s);
        json_number(j, "efficiency", row[i].efficiency);
        json_number(j, "first_step_s", row[i].rate.first_step_s);
        json_int(j, "device_bytes", row[i].rate.peak_bytes);
        json_int(j, "resident_bytes", bench_resident());
        json_end(j, '}');
    }
    json_end(j, ']');
    json_end(j, '}');
}

static long gpus(void)
{
    dp_device_info d;
    long n = 0;
    for (int i = 0; dp_device(i, &d); i++) n += !strncmp(d.name, "cuda:", 5);
    return n;
}

static int counts(const request *r, int on_gpus, int *count)
{
    long most = on_gpus ? gpus() : sysconf(_SC_NPROCESSORS_ONLN);
    int n = r->n_counts;
    memcpy(count, r->count, sizeof r->count);
    while (n < 1 || (!r->n_counts && n < most && n < 8)) count[n] = n + 1, n++;
    return n;
}

int bench_speed(const request *r)
{
    bench_case b;
    dp_error err;
    json j = {0};
    page *p = NULL;
    speed_row row[MAX_COUNTS];
    int count[MAX_COUNTS], n = 0, on_gpus = 0, code = 0;
    char more[64];
    dp_status status = bench_case_open(&b, r->config, r->set, r->n_set, &err);
    if (status) {
        code = bench_failed(status, &err);
        goto done;
    }
    if (!json_open(&j, r->json)) {
        code = bench_wrong("cannot write %s", r->json);
        goto done;
    }
    on_gpus = bench_on_gpus(&b);
    n = counts(r, on_gpus, count);
    double peak = on_gpus ? 0 : bench_peak(), one = 0; /* of a GPU: not known */
    int end = snprintf(more, sizeof more, "%.1f Mflop a sample", b.flops / 1e6);
    if (!on_gpus) snprintf(more + end, sizeof more - (size_t)end, ", peak of a core %.0f GF/s", peak / 1e9);
    printf("%s: batch %lld, %s\n", r->config, (long long)b.batch, more);
    printf("%8s %14s %8s %10s %8s %7s %12s %10s\n", "devices", "samples/s", "scaling", "efficiency", "GF/s", "peak",
           "first step", "MB/device");
    for (int i = 0; i < n; i++) {
        char devices[1024];
        speed_row *s = &row[i];
        s->devices = count[i];
        bench_devices_text(devices, sizeof devices, on_gpus ? "cuda" : "cpu", count[i]);
        if ((status = bench_measure(&b, devices, r->seconds, &s->rate, &err))) {
            code = bench_failed(status, &err);
            goto done;
        }
        if (!i) one = s->rate.samples_per_s / count[i];
        s->scaling = s->rate.samples_per_s / one;
        s->efficiency = s->scaling / count[i];
        s->flops_per_s = s->rate.samples_per_s * b.flops;
        s->of_peak = on_gpus ? 0 : s->flops_per_s / peak / count[i];
        printf("%8d %14.1f %8.2f %9.0f%% %8.1f %6.0f%% %9.1f ms %10.1f\n", count[i], s->rate.samples_per_s, s->scaling,
               100 * s->efficiency, s->flops_per_s / 1e9, 100 * s->of_peak, s->rate.first_step_s * 1e3,
               (double)s->rate.peak_bytes / 1e6);
        fflush(stdout);
    }
    if (j.f) write_json(&j, r, &b, peak, row, n);
    if (r->html) {
        if ((p = bench_page(r, "Training speed", &b, more))) write_page(p, row, n);
        if (!p || !page_close(p)) code = bench_wrong("cannot write %s", r->html);
    }
done:
    if (!json_close(&j)) code = bench_wrong("cannot write %s", r->json);
    bench_case_close(&b);
    return code;
}
