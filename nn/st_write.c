/* Writing of safetensors files. Wider types stand first, so that every tensor is aligned (readers map the file), and within one
 * width tensors stand in the order they were added. */
#include "../dp/base/file.h"
#include "../dp/base/memory.h"
#include "../dp/base/text.h"
#include "safetensors.h"
#include "st_types.h"
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    dp_st_tensor t;
    char *name;
    void *copy; /* NULL: borrowed */
    int64_t begin;
} entry;

struct dp_st_out {
    entry *entry;
    int n;
    void **owned;
    int n_owned;
    cJSON *meta;
};

static const char *const type_names[] = DP_ST_TYPE_NAMES;
static const uint8_t type_sizes[] = DP_ST_TYPE_SIZES;

dp_st_out *dp_st_out_new(void)
{
    return dp_calloc(1, sizeof(dp_st_out));
}

void dp_st_out_free(dp_st_out *o)
{
    if (!o) return;
    for (int i = 0; i < o->n; i++) free(o->entry[i].name), free(o->entry[i].copy);
    for (int i = 0; i < o->n_owned; i++) free(o->owned[i]);
    free(o->owned);
    free(o->entry);
    cJSON_Delete(o->meta);
    free(o);
}

dp_status dp_st_own(dp_st_out *o, void *memory, dp_error *err)
{
    void **all = realloc(o->owned, (size_t)(o->n_owned + 1) * sizeof *all);
    if (!all) {
        free(memory);
        return dp_fail(err, DP_ENOMEM, "Out of memory while saving.");
    }
    o->owned = all;
    o->owned[o->n_owned++] = memory;
    return DP_OK;
}

dp_status dp_st_add(dp_st_out *o, const char *name, dp_st_type type, int rank, const int64_t *shape, const void *data, int copy,
                    dp_error *err)
{
    entry e = {.t = {.type = type, .rank = rank, .data = data}};
    int64_t elements = 1;
    if (rank < 0 || rank > 8 || !strcmp(name, "__metadata__"))
        return dp_fail(err, DP_EARGUMENT, "tensor \"%s\" of rank %d cannot be written: wanted rank 0..8 and a name of its own",
                       name, rank);
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0 || (shape[i] && elements > INT64_MAX / 8 / shape[i]))
            return dp_fail(err, DP_EARGUMENT, "tensor \"%s\" has an impossible shape", name);
        e.t.shape[i] = shape[i];
        elements *= shape[i];
    }
    e.t.bytes = elements * type_sizes[type];
    entry *all = realloc(o->entry, (size_t)(o->n + 1) * sizeof *all);
    if (all) o->entry = all;
    e.name = strdup(name);
    if (copy) e.copy = dp_calloc((size_t)e.t.bytes, 1);
    if (!all || !e.name || (copy && !e.copy)) {
        free(e.name), free(e.copy);
        return dp_fail(err, DP_ENOMEM, "out of memory for the tensor \"%s\" of %lld bytes", name, (long long)e.t.bytes);
    }
    if (copy && e.t.bytes) e.t.data = memcpy(e.copy, data, (size_t)e.t.bytes);
    e.t.name = e.name;
    all[o->n++] = e;
    return DP_OK;
}

dp_status dp_st_meta(dp_st_out *o, const char *key, const char *value, dp_error *err)
{
    if (!o->meta) o->meta = cJSON_CreateObject();
    if (o->meta) cJSON_DeleteItemFromObjectCaseSensitive(o->meta, key); /* a later value wins */
    if (!o->meta || !cJSON_AddStringToObject(o->meta, key, value))
        return dp_fail(err, DP_ENOMEM, "out of memory for the metadata \"%s\"", key);
    return DP_OK;
}

static int by_name(const void *a, const void *b)
{
    const entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* The tensors in the order of the file: width by width. */
static dp_status arrange(dp_st_out *o, const entry **order, dp_error *err)
{
    static const uint8_t widths[] = {8, 4, 2, 1};
    int64_t at = 0;
    int n = 0;
    for (int i = 0; i < o->n; i++) order[i] = &o->entry[i];
    qsort(order, (size_t)o->n, sizeof *order, by_name);
    for (int i = 1; i < o->n; i++)
        if (!strcmp(order[i - 1]->name, order[i]->name))
            return dp_fail(err, DP_EARGUMENT, "two tensors named \"%s\" were added", order[i]->name);
    for (size_t w = 0; w < sizeof widths; w++)
        for (int i = 0; i < o->n; i++) {
            entry *e = &o->entry[i];
            if (type_sizes[e->t.type] != widths[w]) continue;
            e->begin = at;
            at += e->t.bytes;
            order[n++] = e;
        }
    return DP_OK;
}

/* Numbers go in as text: cJSON would take them through double and the locale. */
static int add_numbers(cJSON *j, const char *key, const int64_t *v, int n)
{
    char text[8 * 21 + 3] = "[";
    int k = 1;
    for (int i = 0; i < n; i++) k += dp_format(text + k, sizeof text - (size_t)k, "%s%lld", i ? "," : "", (long long)v[i]);
    dp_format(text + k, sizeof text - (size_t)k, "]");
    return cJSON_AddRawToObject(j, key, text) != NULL;
}

/* Header text padded with blanks so that the data begins at a multiple of 8; NULL: out of memory. */
static char *header_text(const dp_st_out *o, const entry *const *order)
{
    cJSON *header = cJSON_CreateObject();
    char *text = NULL, *padded = NULL;
    int ok = header != NULL;
    if (ok && o->meta) ok = cJSON_AddItemReferenceToObject(header, "__metadata__", o->meta);
    for (int i = 0; ok && i < o->n; i++) {
        const entry *e = order[i];
        cJSON *j = cJSON_AddObjectToObject(header, e->name);
        ok = j && cJSON_AddStringToObject(j, "dtype", type_names[e->t.type]) &&
             add_numbers(j, "shape", e->t.shape, e->t.rank) &&
             add_numbers(j, "data_offsets", (const int64_t[]){e->begin, e->begin + e->t.bytes}, 2);
    }
    if (ok) text = cJSON_PrintUnformatted(header);
    if (text) {
        size_t n = strlen(text), full = (n + 7) & ~(size_t)7;
        padded = malloc(full + 1);
        if (padded) {
            memcpy(padded, text, n);
            memset(padded + n, ' ', full - n);
            padded[full] = 0;
        }
    }
    cJSON_free(text);
    cJSON_Delete(header);
    return padded;
}

static dp_status write_to(dp_st_out *o, dp_file_out **f, const char *path, dp_error *err)
{
    const entry **order = dp_calloc((size_t)o->n, sizeof *order);
    char *header = NULL;
    uint8_t length[8];
    dp_status st;
    if (!order) return dp_fail(err, DP_ENOMEM, "out of memory for writing %s", path);
    if ((st = arrange(o, order, err)) != DP_OK) goto done;
    header = header_text(o, order);
    if (!header) {
        st = dp_fail(err, DP_ENOMEM, "out of memory for the header of %s", path);
        goto done;
    }
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)strlen(header) >> (8 * i));
    if ((st = dp_file_write(*f, length, sizeof length, err)) != DP_OK) goto done;
    if ((st = dp_file_write(*f, header, strlen(header), err)) != DP_OK) goto done;
    for (int i = 0; i < o->n; i++)
        if ((st = dp_file_write(*f, order[i]->t.data, (size_t)order[i]->t.bytes, err)) != DP_OK) goto done;
    st = dp_file_commit(f, err);
done:
    free(header);
    free(order);
    return st;
}

dp_status dp_st_commit(dp_st_out *o, const char *path, dp_error *err)
{
    dp_file_out *f = NULL;
    dp_status st = dp_file_create(&f, path, err);
    if (!st) st = write_to(o, &f, path, err);
    dp_file_discard(&f);
    return st;
}

dp_status dp_st_commit_to(dp_st_out *o, int fd, dp_error *err)
{
    dp_file_out *f = NULL;
    dp_status st = dp_file_into(&f, fd, err);
    if (!st) st = write_to(o, &f, "a state", err);
    dp_file_discard(&f);
    return st;
}
