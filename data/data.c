/* Opening a set by format, and what all sets share: facts, lifetime, the part cut off for evaluation. */
#include "../dp/base/memory.h"
#include "../dp/base/text.h"
#include "loader.h"
#include "set.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    dp_status (*open)(dp_data **d, const dp_set_request *q, dp_error *err);
    int needs_path;
} formats[] = {
    {"idx", dp_set_open_idx, 1},
    {"csv", dp_set_open_csv, 1},
    {"tokens", dp_set_open_tokens, 1},
    {"synthetic", dp_set_open_synthetic, 0},
};

/* "last 10%": 1 and the percentage; 0: something else (a path); -1: "last" with a wrong number. */
static int parse_last(const char *text, double *percent)
{
    char number[32];
    if (strncmp(text, "last", 4) != 0 || (text[4] != ' ' && text[4] != '\t')) return 0;
    text += 4;
    size_t n = strlen(text);
    while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\t')) n--;
    if (n == 0 || text[n - 1] != '%') return 0;
    n--;
    if (n >= sizeof number) return -1;
    memcpy(number, text, n);
    number[n] = 0;
    return dp_parse_double(number, percent) == 1 && *percent > 0 && *percent < 100 ? 1 : -1;
}

/* Which file and which part of it serve as the evaluation set. *none = 1: no evaluation set is configured. */
static dp_status plan_eval(dp_set_request *q, const char *format, int *none, dp_error *err)
{
    char where[256];
    const dp_config *c = q->c;
    const char *path = dp_config_text(c, "data.eval");
    *none = 0;
    int synthetic = strcmp(format, "synthetic") == 0;
    int last = parse_last(path, &q->last);
    if (last < 0) {
        return dp_fail(err, DP_ECONFIG, "%s: wanted \"last P%%\" with 0 < P < 100 or a path, found \"%s\"",
                       dp_config_where(c, "data.eval", where, sizeof where), path);
    }
    if (last) return DP_OK;
    q->last = 0;
    if (q->train || synthetic) return DP_OK;
    if (*path) {
        q->key = "data.eval";
        q->test_files = 1;
        if (strcmp(format, "idx") != 0 && strcmp(path, dp_config_text(c, "data.train")) == 0) {
            dp_log(c, DP_LOG_WARN, "data.eval is the same file as data.train: the evaluation says nothing about new samples");
        }
        return DP_OK;
    }
    q->test_files = 1;
    *none = strcmp(format, "idx") != 0 || !dp_set_idx_has_test(c);
    return DP_OK;
}

/* The message names the resolved path; the user wrote another, and knows it by its place (P92). */
static dp_status as_written(const dp_config *c, const char *key, dp_status status, dp_error *err)
{
    char where[256];
    const char *written = dp_config_path_as_written(c, key);
    if (status != DP_EIO || !err || !strcmp(written, dp_config_text(c, key))) return status;
    size_t at = strlen(err->text);
    dp_format(err->text + at, sizeof err->text - at, " (%s = %s)", dp_config_where(c, key, where, sizeof where), written);
    return status;
}

dp_status dp_data_open(dp_data **d, const dp_config *c, int train, dp_error *err)
{
    char where[256];
    if (!d || !c) return dp_fail(err, DP_EARGUMENT, "dp_data_open: d and c must not be NULL");
    *d = NULL;
    DP_TRY(dp_config_ok(c, err));
    const char *format = dp_config_get(c, "data.format");
    dp_set_request q = {.c = c, .key = "data.train", .train = train != 0};
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        int none;
        if (!format || strcmp(format, formats[i].name) != 0) continue;
        DP_TRY(plan_eval(&q, format, &none, err));
        if (none) return DP_OK;
        if (formats[i].needs_path && !*dp_config_text(c, q.key)) {
            return dp_fail(err, DP_ECONFIG, "%s is not set: format %s needs a path",
                           dp_config_where(c, q.key, where, sizeof where), format);
        }
        return as_written(c, q.key, formats[i].open(d, &q, err), err);
    }
    return dp_fail(err, DP_ECONFIG, "%s: unknown format \"%s\"", dp_config_where(c, "data.format", where, sizeof where),
                   format ? format : "");
}

dp_status dp_data_facts(const dp_data *d, dp_data_info *info)
{
    if (!d || !info) return DP_EARGUMENT;
    *info = d->info;
    return DP_OK;
}

void dp_data_close(dp_data *d)
{
    if (!d || __atomic_sub_fetch(&d->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
    if (d->release) d->release(d);
    free(d->vocab);
    free(d);
}

const char *dp_data_vocab(const dp_data *d)
{
    return d ? d->vocab : NULL;
}

void dp_set_retain(dp_data *d)
{
    __atomic_add_fetch(&d->refs, 1, __ATOMIC_RELAXED);
}

void *dp_set_new(size_t size, dp_error *err)
{
    dp_data *d = dp_calloc(1, size);
    if (!d) {
        dp_fail(err, DP_ENOMEM, "out of memory for a data set");
        return NULL;
    }
    d->refs = 1;
    return d;
}

size_t dp_set_dtype_bytes(dp_dtype t)
{
    switch (t) {
    case DP_U8: return 1;
    case DP_U16:
    case DP_F16:
    case DP_BF16: return 2;
    case DP_F32:
    case DP_I32: return 4;
    case DP_I64: return 8;
    }
    return 0;
}

dp_status dp_set_finish(dp_data *d, dp_error *err)
{
    const dp_data_info *f = &d->info;
    int x_ok = f->x_dtype == DP_F32 || f->x_dtype == DP_U8 || f->x_dtype == DP_I32;
    int y_ok = f->classes > 0 ? f->y_dtype == DP_I32 || f->y_dtype == DP_I64 || f->y_dtype == DP_U8 : f->y_dtype == DP_F32;
    if (f->samples < 1) {
        return dp_fail(err, DP_EARGUMENT, "data set: wanted at least 1 sample, found %lld", (long long)f->samples);
    }
    if (f->x_rank < 1 || f->x_rank > 4) return dp_fail(err, DP_EARGUMENT, "data set: x_rank %d, allowed 1..4", f->x_rank);
    if (f->x_layout != DP_HWC && f->x_layout != DP_CHW) return dp_fail(err, DP_EARGUMENT, "data set: unknown x_layout");
    if (!x_ok) return dp_fail(err, DP_EARGUMENT, "data set: x must be f32, u8 or i32");
    if (f->classes < 0) return dp_fail(err, DP_EARGUMENT, "data set: classes must not be negative");
    if (!y_ok) {
        return dp_fail(err, DP_EARGUMENT, "data set: y must be i32, i64 or u8 with classes, f32 with classes = 0 (numbers)");
    }
    int64_t width = 1, x_bytes, y_bytes, total;
    for (int i = 0; i < f->x_rank; i++) {
        if (f->x_shape[i] < 1 || __builtin_mul_overflow(width, f->x_shape[i], &width)) {
            return dp_fail(err, DP_EARGUMENT, "data set: x_shape[%d] = %lld is not possible", i, (long long)f->x_shape[i]);
        }
    }
    if (f->y_width < 1 || __builtin_mul_overflow(width, (int64_t)dp_set_dtype_bytes(f->x_dtype), &x_bytes) ||
        __builtin_mul_overflow(f->y_width, (int64_t)dp_set_dtype_bytes(f->y_dtype), &y_bytes) ||
        __builtin_mul_overflow(x_bytes, f->samples, &total) || __builtin_mul_overflow(y_bytes, f->samples, &total)) {
        return dp_fail(err, DP_EARGUMENT, "data set: y_width %lld or the size of all samples is not possible",
                       (long long)f->y_width);
    }
    d->x_width = width;
    d->x_bytes = (size_t)x_bytes, d->y_bytes = (size_t)y_bytes;
    return DP_OK;
}

dp_status dp_set_part(const dp_set_request *q, int64_t n, const char *what, int64_t *first, int64_t *count, dp_error *err)
{
    *first = 0, *count = n;
    if (q->last <= 0) return DP_OK;
    int64_t cut = (int64_t)floor((double)n * (100.0 - q->last) / 100.0);
    if (cut < 1 || cut >= n) {
        return dp_fail(err, DP_EDATA, "data.eval = last %g%%: of %lld %s this leaves one of the two sets empty", q->last,
                       (long long)n, what);
    }
    if (q->train)
        *count = cut;
    else
        *first = cut, *count = n - cut;
    return DP_OK;
}

int dp_set_model_input(const dp_config *c, dp_set_input *in)
{
    dp_model_line line;
    memset(in, 0, sizeof *in);
    for (int i = 0; dp_config_model_line(c, i, &line); i++) {
        if (line.block || strcmp(line.name, "input") != 0) continue;
        const char *s = line.spec;
        while (*s == ' ' || *s == '\t') s++;
        if (strncmp(s, "tokens", 6) == 0) in->tokens = 1, s += 6;
        for (;;) {
            char *end;
            long long v = strtoll(s, &end, 10);
            if (end == s || v < 1 || in->rank == 4) return -1;
            in->shape[in->rank++] = v;
            s = end;
            if (*s != 'x') break;
            s++;
        }
        while (*s == ' ' || *s == '\t') s++;
        return *s || (in->tokens && in->rank != 1) ? -1 : 1;
    }
    return 0;
}

int dp_set_looks_html(const uint8_t *data, size_t bytes)
{
    return bytes >= 2 && data[0] == '<' && (data[1] == '!' || data[1] == 'h' || data[1] == 'H' || data[1] == '?');
}
