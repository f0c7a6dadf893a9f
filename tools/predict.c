/* dptrain --predict: the model's outputs for every sample of the evaluation set, in file order, as a NumPy array or as text. */
#include "tool.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dp_status fail(dp_error *err, dp_status code, const char *fmt, ...)
{
    va_list ap;
    memset(err, 0, sizeof *err);
    err->code = code, err->device = err->replica = err->phase = -1, err->step = -1;
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    return code;
}

/* The header of a .npy file: magic, version 1.0, length of a Python dictionary, padded to 64 bytes. */
static void npy_header(FILE *f, int64_t rows, int64_t width)
{
    char head[128];
    memset(head, ' ', sizeof head);
    memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10);
    int n = snprintf(head + 10, sizeof head - 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %lld), }",
                     (long long)rows, (long long)width);
    head[10 + n] = ' ';
    head[sizeof head - 1] = '\n';
    fwrite(head, 1, sizeof head, f);
}

static void text_row(FILE *f, int64_t sample, const float *y, int64_t width)
{
    int64_t best = 0;
    for (int64_t i = 1; i < width; i++)
        if (y[i] > y[best]) best = i;
    fprintf(f, "%lld,%lld", (long long)sample, (long long)best);
    for (int64_t i = 0; i < width; i++) fprintf(f, ",%.9g", (double)y[i]);
    fputc('\n', f);
}

static int64_t output_width(const dp_graph *g)
{
    dp_layer_info l;
    int64_t width = 0;
    for (int i = 0; dp_graph_layer(g, i, &l); i++) {
        width = 1;
        for (int k = 0; k < l.rank; k++) width *= l.shape[k];
    }
    return width;
}

dp_status predict_to(dp_engine *e, const dp_graph *g, const dp_config *c, const char *path, int64_t *rows, dp_error *err)
{
    dp_data *data = NULL;
    dp_loader *loader = NULL;
    dp_data_info info;
    FILE *f = NULL;
    float *y = NULL;
    int64_t width = output_width(g), room = 0, done = 0;
    int npy = strlen(path) > 4 && !strcmp(path + strlen(path) - 4, ".npy");
    dp_status s = dp_data_open(&data, c, 0, err);
    if (!s && !data)
        s = fail(err, DP_ECONFIG, "--predict needs an evaluation set: set data.eval = PATH or data.eval = last 10%%.");
    if (!s) s = dp_data_facts(data, &info);
    if (!s) s = dp_engine_loader(e, data, 0, &loader, err);
    if (!s && !(f = fopen(path, "wb"))) s = fail(err, DP_EIO, "Cannot write %s: %s.", path, strerror(errno));
    if (s) goto done;
    if (npy)
        npy_header(f, info.samples, width);
    else {
        fprintf(f, "sample,largest");
        for (int64_t i = 0; i < width; i++) fprintf(f, ",output%lld", (long long)i);
        fputc('\n', f);
    }
    for (;;) {
        dp_batch b;
        if ((s = dp_loader_next(loader, &b, err)) || !b.x.n) break;
        if (b.x.n > room) {
            free(y);
            room = b.x.n;
            y = malloc(sizeof *y * (size_t)(room * width));
        }
        if (!y) s = fail(err, DP_ENOMEM, "Out of memory for the predictions of %lld samples.", (long long)room);
        if (!s) s = dp_engine_predict(e, b.x, y, sizeof *y * (size_t)(b.x.n * width), err);
        if (!s && npy) fwrite(y, sizeof *y, (size_t)(b.x.n * width), f);
        for (int64_t i = 0; !s && !npy && i < b.x.n; i++)
            text_row(f, b.ids ? (int64_t)b.ids[i] : done + i, y + i * width, width);
        done += b.x.n;
        dp_loader_release(loader, &b);
        if (s) break;
    }
    if (!s && (fflush(f) || ferror(f))) s = fail(err, DP_ENOSPACE, "Cannot write %s: %s.", path, strerror(errno));
done:
    if (f && fclose(f) && !s) s = fail(err, DP_ENOSPACE, "Cannot write %s: %s.", path, strerror(errno));
    if (f && s) remove(path);
    free(y);
    dp_loader_close(loader);
    dp_data_close(data);
    *rows = done;
    return s;
}
