/* A loop of one's own over collectives: y = a x + b fitted on two devices, each with its rows, gradients added by all_reduce. */
#include <dp/dp.h>
#include <stdio.h>

enum { SAMPLES = 60, DEVICES = 2, STEPS = 60, TERMS = 3 };

typedef struct fit {
    dp_array *rows[DEVICES], *sums[DEVICES]; /* (x, y); gradients of a and b, loss */
    float a[DEVICES], b[DEVICES];            /* equal on all devices, since the sums are */
} fit;

/* On CPU devices their memory is the program's; on others a kernel would be launched and waited for here. */
static int gradient(void *user, int device)
{
    fit *f = user;
    const float *row = dp_array_data(f->rows[device]);
    float *sum = dp_array_data(f->sums[device]);
    sum[0] = sum[1] = sum[2] = 0;
    for (int64_t i = 0; i < dp_array_rows(f->rows[device]); i++, row += 2) {
        float off = f->a[device] * row[0] + f->b[device] - row[1];
        sum[0] += off * row[0], sum[1] += off, sum[2] += off * off;
    }
    return 0;
}

static int step(void *user, int device)
{
    fit *f = user;
    const float *sum = dp_array_data(f->sums[device]);
    f->a[device] -= sum[0] / SAMPLES;
    f->b[device] -= sum[1] / SAMPLES;
    return 0;
}

static dp_status run(const float *xy, double *loss, dp_error *err)
{
    const float zeros[DEVICES * TERMS] = {0};
    float sums[DEVICES * TERMS];
    dp_config *cfg = dp_config_new(NULL, NULL);
    dp_group *dev = NULL;
    dp_collective *all = NULL;
    fit f = {{NULL}, {NULL}, {0}, {0}};
    dp_status s = DP_ENOMEM;
    if (!cfg) goto done;
    dp_config_set(cfg, "devices.use", "cpu:0,cpu:1");
    if ((s = dp_group_open(&dev, cfg, err)) || (s = dp_collective_open(&all, dev, NULL, 0, TERMS, err))) goto done;
    if ((s = dp_scatter(dev, dp_view(xy, DP_F32, SAMPLES, 2), NULL, f.rows, err))) goto done;
    if ((s = dp_scatter(dev, dp_view(zeros, DP_F32, DEVICES, TERMS), NULL, f.sums, err))) goto done;
    for (int i = 0; i < STEPS; i++) {
        if ((s = dp_group_run(dev, gradient, &f, err))) goto done;               /* on every device at once */
        if ((s = dp_collective_all_reduce(all, f.sums, f.sums, err))) goto done; /* in place: the same bytes everywhere */
        if ((s = dp_group_run(dev, step, &f, err))) goto done;
        if ((s = dp_gather(dev, f.sums, sums, sizeof sums, err))) goto done;
        if (i == 0) loss[0] = (double)sums[2] / SAMPLES;
        loss[1] = (double)sums[2] / SAMPLES;
    }
done:
    for (int d = 0; d < DEVICES; d++) dp_array_free(f.rows[d]), dp_array_free(f.sums[d]);
    dp_collective_close(all);
    dp_group_close(dev, NULL);
    dp_config_free(cfg);
    return s;
}

int main(void)
{
    float xy[SAMPLES * 2];
    double loss[2] = {0, 0};
    dp_error err = {0};
    for (int i = 0; i < SAMPLES; i++) {
        xy[2 * i] = (float)(i % 7) / 3.0f - 1.0f;
        xy[2 * i + 1] = 3.0f * xy[2 * i] + 1.0f;
    }
    dp_status status = run(xy, loss, &err);
    if (status)
        fprintf(stderr, "%s: %s\n", dp_status_name(status), err.text);
    else
        printf("loss %.3f, then %.3f\n", loss[0], loss[1]);
    return status || !(loss[1] < 0.001 * loss[0]);
}
