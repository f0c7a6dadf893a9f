/* Sets whose samples lie ready in memory (idx, csv, the caller's rows), the caller's callback, and the check of labels. */
#include "set.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct arrays {
    dp_data base;
    const uint8_t *x, *y; /* (samples, x_bytes), (samples, y_bytes) */
    void *own[2];
} arrays;

typedef struct custom {
    dp_data base;
    int (*fetch)(void *user, int64_t index, void *x, void *y, char *why, size_t why_size);
    void *user;
} custom;

static dp_status arrays_fetch(const dp_data *d, int64_t index, void *x, void *y, dp_error *err)
{
    const arrays *a = (const arrays *)d;
    (void)err;
    memcpy(x, a->x + (size_t)index * d->x_bytes, d->x_bytes);
    memcpy(y, a->y + (size_t)index * d->y_bytes, d->y_bytes);
    return DP_OK;
}

static void arrays_release(dp_data *d)
{
    arrays *a = (arrays *)d;
    free(a->own[0]);
    free(a->own[1]);
}

dp_status dp_set_arrays(dp_data **d, const dp_data_info *info, const void *x, const void *y, void *own0, void *own1,
                        dp_error *err)
{
    dp_status s = DP_ENOMEM;
    arrays *a = dp_set_new(sizeof *a, err);
    if (!a) goto fail;
    a->base.info = *info;
    a->base.fetch = arrays_fetch;
    a->x = x, a->y = y;
    if ((s = dp_set_finish(&a->base, err)) != DP_OK) goto fail;
    a->own[0] = own0, a->own[1] = own1;
    a->base.release = arrays_release;
    *d = &a->base;
    return DP_OK;
fail:
    if (a) dp_data_close(&a->base);
    free(own0);
    free(own1);
    return s;
}

dp_status dp_data_rows(dp_data **d, dp_rows x, dp_rows y, int64_t classes, dp_error *err)
{
    if (!d) return dp_fail(err, DP_EARGUMENT, "dp_data_rows: d must not be NULL");
    *d = NULL;
    if (!x.data || !y.data) return dp_fail(err, DP_EARGUMENT, "dp_data_rows: %s.data must not be NULL", x.data ? "y" : "x");
    if (x.n != y.n) {
        return dp_fail(err, DP_EARGUMENT, "dp_data_rows: x has %lld rows and y has %lld: every sample needs its target",
                       (long long)x.n, (long long)y.n);
    }
    if (classes < 0) return dp_fail(err, DP_EARGUMENT, "dp_data_rows: classes must not be negative");
    dp_data_info f;
    memset(&f, 0, sizeof f);
    f.samples = x.n, f.x_rank = 1, f.x_shape[0] = x.width;
    f.x_dtype = x.dtype, f.x_layout = x.layout;
    f.y_dtype = y.dtype, f.y_width = y.width, f.classes = classes;
    if (y.dtype == DP_F32) {
        if (classes != 0) return dp_fail(err, DP_EARGUMENT, "dp_data_rows: y is f32 (numbers): classes must be 0");
    } else {
        int64_t found;
        dp_set_label_rule rule = {.limit = classes, .any_negative = 1};
        f.classes = 1; /* for the check of the types, sizes and counts before any label is read */
        dp_data probe = {.info = f};
        DP_TRY(dp_set_finish(&probe, err));
        DP_TRY(dp_set_label_scan(&rule, "y", y.data, y.dtype, y.n * y.width, y.width, &found, err));
        f.classes = found;
    }
    return dp_set_arrays(d, &f, x.data, y.data, NULL, NULL, err);
}

static dp_status custom_fetch(const dp_data *d, int64_t index, void *x, void *y, dp_error *err)
{
    const custom *u = (const custom *)d;
    char why[256] = "";
    if (u->fetch(u->user, index, x, y, why, sizeof why) != 0) {
        why[sizeof why - 1] = 0;
        return dp_fail(err, DP_EDATA, "%s", *why ? why : "the fetch callback failed without a reason");
    }
    dp_set_label_rule rule = {.limit = d->info.classes, .any_negative = 1};
    for (int64_t i = 0; rule.limit > 0 && i < d->info.y_width; i++) {
        char text[160];
        int64_t label = dp_set_label_at(y, d->info.y_dtype, i);
        if (!dp_set_label_ok(&rule, label)) {
            return dp_fail(err, DP_EDATA, "%s", dp_set_label_text(&rule, label, text, sizeof text));
        }
    }
    return DP_OK;
}

dp_status dp_data_custom(dp_data **d, const dp_data_source *s, dp_error *err)
{
    if (!d || !s) return dp_fail(err, DP_EARGUMENT, "dp_data_custom: d and s must not be NULL");
    *d = NULL;
    if (s->size < sizeof *s) {
        return dp_fail(err, DP_EVERSION, "dp_data_source: size %zu, this library wants at least %zu: compile with its header",
                       s->size, sizeof *s);
    }
    for (size_t i = sizeof *s; i < s->size; i++) {
        if (((const uint8_t *)s)[i]) {
            return dp_fail(err, DP_EVERSION, "dp_data_source: byte %zu is set but unknown to this library of version %s", i,
                           DP_VERSION_TEXT);
        }
    }
    if (!s->fetch) return dp_fail(err, DP_EARGUMENT, "dp_data_source: fetch must not be NULL");
    custom *u = dp_set_new(sizeof *u, err);
    if (!u) return DP_ENOMEM;
    u->base.info = s->info;
    u->base.fetch = custom_fetch;
    u->fetch = s->fetch, u->user = s->user;
    dp_status status = dp_set_finish(&u->base, err);
    if (status)
        dp_data_close(&u->base);
    else
        *d = &u->base;
    return status;
}

void dp_set_label_rule_of(dp_set_label_rule *r, const dp_config *c)
{
    const char *ignore = dp_config_get(c, "loss.ignore_label");
    memset(r, 0, sizeof *r);
    if (dp_config_is_set(c, "data.classes")) r->limit = dp_config_int(c, "data.classes");
    r->has_ignore = ignore && *ignore;
    if (r->has_ignore) r->ignore = dp_config_int(c, "loss.ignore_label");
}

int dp_set_label_ok(const dp_set_label_rule *r, int64_t label)
{
    if (r->has_ignore && label == r->ignore) return 1;
    if (label < 0) return r->any_negative;
    return label < (r->limit > 0 ? r->limit : INT32_MAX);
}

int64_t dp_set_label_at(const void *y, dp_dtype dtype, int64_t i)
{
    switch (dtype) {
    case DP_U8: return ((const uint8_t *)y)[i];
    case DP_I32: return ((const int32_t *)y)[i];
    case DP_I64: return ((const int64_t *)y)[i];
    default: return -1;
    }
}

const char *dp_set_label_text(const dp_set_label_rule *r, int64_t label, char *buf, size_t size)
{
    long long top = r->limit > 0 ? (long long)r->limit - 1 : INT32_MAX - 1;
    if (label < 0) {
        snprintf(buf, size, "label %lld, classes are numbered 0..%lld (a label to be left out: loss.ignore_label = %lld)",
                 (long long)label, top, (long long)label);
    } else {
        snprintf(buf, size, "label %lld, allowed are 0..%lld (%lld classes, counted from 0)", (long long)label, top, top + 1);
    }
    return buf;
}

dp_status dp_set_label_scan(const dp_set_label_rule *r, const char *name, const void *y, dp_dtype dtype, int64_t n,
                            int64_t width, int64_t *classes, dp_error *err)
{
    int64_t largest = -1;
    for (int64_t i = 0; i < n; i++) {
        char text[160];
        int64_t label = dp_set_label_at(y, dtype, i);
        if (!dp_set_label_ok(r, label)) {
            return dp_fail(err, DP_EDATA, "%s: record %lld: %s", name, (long long)(i / width),
                           dp_set_label_text(r, label, text, sizeof text));
        }
        if (label > largest && !(r->has_ignore && label == r->ignore)) largest = label;
    }
    if (largest < 0) return dp_fail(err, DP_EDATA, "%s: no record has a label of 0 or more: nothing to learn from", name);
    *classes = r->limit > 0 ? r->limit : largest + 1;
    return DP_OK;
}
