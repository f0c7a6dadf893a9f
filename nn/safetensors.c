/* Reading of safetensors files. A file is not trusted: everything the header says is checked against the file's length before
 * anything is handed out, and what is no such file at all is named by its first bytes. */
#include "safetensors.h"
#include "../dp/base/file.h"
#include "../dp/base/memory.h"
#include "../dp/base/text.h"
#include "st_types.h"
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADER = 100000000 }; /* bytes, as in the format's reference */

struct dp_st_in {
    uint8_t *file;
    cJSON *header;        /* owns names and metadata */
    dp_st_tensor *tensor; /* in the order of their data */
    const dp_st_tensor **by_name;
    int n;
    uint8_t *aligned; /* copies of tensors that stand at an odd address in the file */
};

static const char *const type_names[] = DP_ST_TYPE_NAMES;
static const uint8_t type_sizes[] = DP_ST_TYPE_SIZES;
enum { TYPES = sizeof type_sizes };

/* What a file that is not ours looks like, "" when nothing known. */
static const char *guess(const uint8_t *p, size_t n)
{
    static const struct {
        const char *magic, *text;
        size_t at;
    } known[] = {
        {"PK\3\4", "; it looks like a zip file such as torch.save writes: save it with safetensors.torch.save_file instead", 0},
        {"\x80\x02",
         "; it looks like a Python pickle such as old torch.save writes: save it with safetensors.torch.save_file instead", 0},
        {"\x1f\x8b", "; it looks like a gzip file: unpack it first", 0},
        {"version https://git-lfs", "; it is a Git LFS pointer: fetch the file itself with `git lfs pull`", 0},
        {"<!", "; it looks like a web page (HTML): download the file itself", 0},
        {"<html", "; it looks like a web page (HTML): download the file itself", 0},
        {"<HTML", "; it looks like a web page (HTML): download the file itself", 0},
        {"\x89HDF", "; it looks like an HDF5 file", 0},
        {"GGUF", "; it looks like a GGUF file", 0},
        {"\x93NUMPY", "; it looks like an npy file", 0},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t len = strlen(known[i].magic);
        if (n >= len && !memcmp(p, known[i].magic, len)) return known[i].text;
    }
    return "";
}

/* A whole number in 0..2^53 (what JSON numbers hold exactly), or -1. */
static int64_t whole(const cJSON *j)
{
    if (!cJSON_IsNumber(j) || !(j->valuedouble >= 0) || j->valuedouble > 9007199254740992.0 ||
        j->valuedouble != floor(j->valuedouble))
        return -1;
    return (int64_t)j->valuedouble;
}

/* One entry of the header; data_bytes = length of the data part. */
static dp_status read_entry(const char *path, const cJSON *j, const uint8_t *data, int64_t data_bytes, dp_st_tensor *t,
                            dp_error *err)
{
    const cJSON *dtype = NULL, *shape = NULL, *offsets = NULL, *k;
    int fields = 0, type = 0;
    char name[80];
    t->name = j->string;
    dp_quote(name, sizeof name, j->string);
    for (k = cJSON_IsObject(j) ? j->child : NULL; k; k = k->next) {
        fields++;
        if (!strcmp(k->string, "dtype")) dtype = k;
        if (!strcmp(k->string, "shape")) shape = k;
        if (!strcmp(k->string, "data_offsets")) offsets = k;
    }
    if (fields != 3 || !cJSON_IsString(dtype) || !cJSON_IsArray(shape) || !cJSON_IsArray(offsets))
        return dp_fail(err, DP_EDATA, "%s: tensor %s: wanted the three fields dtype, shape, data_offsets", path, name);
    while (type < TYPES && strcmp(type_names[type], dtype->valuestring)) type++;
    if (type == TYPES) {
        char found[40];
        return dp_fail(err, DP_EDATA, "%s: tensor %s has the type %s; read are F32, F64, F16, BF16, I32, I64, U8, U64", path,
                       name, dp_quote(found, sizeof found, dtype->valuestring));
    }
    t->type = (dp_st_type)type;
    int64_t elements = 1, begin = whole(cJSON_GetArrayItem(offsets, 0)), end = whole(cJSON_GetArrayItem(offsets, 1));
    int empty = 0;
    cJSON_ArrayForEach(k, shape)
    {
        int64_t side = whole(k);
        if (t->rank == 8 || side < 0 || (side > 0 && elements > INT64_MAX / 8 / side))
            return dp_fail(err, DP_EDATA,
                           "%s: tensor %s: wanted a shape of at most 8 whole numbers whose product fits the file", path, name);
        t->shape[t->rank++] = side;
        if (side) elements *= side;
        empty |= !side;
    }
    t->bytes = empty ? 0 : elements * type_sizes[type];
    if (cJSON_GetArraySize(offsets) != 2 || begin < 0 || end < begin || end > data_bytes || end - begin != t->bytes)
        return dp_fail(err, DP_EDATA,
                       "%s: tensor %s: its shape and type take %lld bytes, its data_offsets are %lld..%lld of %lld", path, name,
                       (long long)t->bytes, (long long)begin, (long long)end, (long long)data_bytes);
    t->data = data + begin;
    return DP_OK;
}

static int by_data(const void *a, const void *b)
{
    const dp_st_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* an empty one before what begins where it stands */
}

static int by_name(const void *a, const void *b)
{
    const dp_st_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static dp_status check_metadata(const char *path, const cJSON *meta, dp_error *err)
{
    const cJSON *k;
    int ok = cJSON_IsObject(meta);
    cJSON_ArrayForEach(k, meta) ok = ok && cJSON_IsString(k);
    return ok ? DP_OK : dp_fail(err, DP_EDATA, "%s: __metadata__ must hold texts only", path);
}

/* Every byte of the data belongs to one tensor, and a name occurs once. */
static dp_status check_table(const char *path, dp_st_in *in, const uint8_t *data, int64_t data_bytes, dp_error *err)
{
    const uint8_t *at = data;
    char name[80];
    qsort(in->tensor, (size_t)in->n, sizeof *in->tensor, by_data);
    for (int i = 0; i < in->n; i++) {
        const dp_st_tensor *t = &in->tensor[i];
        if (t->data != at)
            return dp_fail(err, DP_EDATA, "%s: tensor %s begins at byte %lld of the data, where %lld was wanted: tensors %s",
                           path, dp_quote(name, sizeof name, t->name), (long long)((const uint8_t *)t->data - data),
                           (long long)(at - data), (const uint8_t *)t->data < at ? "overlap" : "leave a gap");
        at += t->bytes;
        in->by_name[i] = t;
    }
    if (at != data + data_bytes)
        return dp_fail(err, DP_EDATA, "%s: %lld bytes follow the last tensor", path, (long long)(data + data_bytes - at));
    qsort(in->by_name, (size_t)in->n, sizeof *in->by_name, by_name);
    for (int i = 1; i < in->n; i++)
        if (!strcmp(in->by_name[i - 1]->name, in->by_name[i]->name))
            return dp_fail(err, DP_EDATA, "%s: two tensors are named %s", path,
                           dp_quote(name, sizeof name, in->by_name[i]->name));
    return DP_OK;
}

/* Other writers put wide types behind narrow ones: such tensors are copied to an aligned place. */
static dp_status align(dp_st_in *in, dp_error *err)
{
    size_t total = 0;
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0;
        for (int i = 0; i < in->n; i++) {
            dp_st_tensor *t = &in->tensor[i];
            if ((uintptr_t)t->data % type_sizes[t->type] == 0) continue;
            if (pass) t->data = memcpy(in->aligned + at, t->data, (size_t)t->bytes);
            at += ((size_t)t->bytes + 7) & ~(size_t)7;
        }
        if (pass || !at) break;
        total = at;
        in->aligned = dp_calloc(total, 1);
        if (!in->aligned) return dp_fail(err, DP_ENOMEM, "out of memory for %lld bytes of tensors", (long long)total);
    }
    return DP_OK;
}

/* Length and first bytes; *header = length of the header. */
static dp_status check_start(const char *path, const uint8_t *file, size_t bytes, uint64_t *header, dp_error *err)
{
    *header = 0;
    for (int i = 0; i < 8 && (size_t)i < bytes; i++) *header |= (uint64_t)file[i] << (8 * i);
    if (bytes < 10 || *header < 2 || *header > MAX_HEADER || file[8] != '{')
        return dp_fail(err, DP_EDATA, "%s: not a safetensors file (%lld bytes, no header at the beginning)%s", path,
                       (long long)bytes, guess(file, bytes));
    if (*header > bytes - 8)
        return dp_fail(err, DP_EDATA,
                       "%s: truncated inside the header: wanted at least %lld bytes, has %lld; copy or download it again", path,
                       (long long)(*header + 8), (long long)bytes);
    return DP_OK;
}

/* The largest end of a tensor, so that a file that was cut says how much is missing. */
static int64_t wanted_bytes(const cJSON *header)
{
    const cJSON *j;
    int64_t most = 0;
    cJSON_ArrayForEach(j, header)
    {
        int64_t end = whole(cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(j, "data_offsets"), 1));
        if (end > most) most = end;
    }
    return most;
}

dp_status dp_st_open(dp_st_in **out, const char *path, dp_error *err)
{
    dp_st_in *in = dp_calloc(1, sizeof *in);
    size_t bytes = 0;
    uint64_t header;
    const char *rest = NULL;
    const cJSON *j;
    dp_status st;
    *out = NULL;
    if (!in) return dp_fail(err, DP_ENOMEM, "out of memory for reading %s", path);
    if ((st = dp_file_read(path, 0, 0, &in->file, &bytes, err)) != DP_OK) goto fail;
    if ((st = check_start(path, in->file, bytes, &header, err)) != DP_OK) goto fail;
    const uint8_t *data = in->file + 8 + header;
    int64_t data_bytes = (int64_t)(bytes - 8 - header), wanted;
    in->header = cJSON_ParseWithLengthOpts((const char *)in->file + 8, header, &rest, 0);
    while (in->header && (const uint8_t *)rest < data && strchr(" \t\r\n", *rest) && *rest) rest++;
    if (!in->header || (const uint8_t *)rest != data) {
        st = dp_fail(err, DP_EDATA, "%s: the header is not JSON (from byte %lld on); the file is damaged", path,
                     (long long)((const uint8_t *)(rest ? rest : (const char *)in->file) - in->file));
        goto fail;
    }
    wanted = wanted_bytes(in->header);
    if (wanted > data_bytes) {
        st = dp_fail(err, DP_EDATA, "%s: truncated: wanted %lld bytes, has %lld; copy or download it again", path,
                     (long long)(wanted + 8 + (int64_t)header), (long long)bytes);
        goto fail;
    }
    size_t entries = (size_t)cJSON_GetArraySize(in->header);
    in->tensor = dp_calloc(entries, sizeof *in->tensor);
    in->by_name = dp_calloc(entries, sizeof *in->by_name);
    if (!in->tensor || !in->by_name) {
        st = dp_fail(err, DP_ENOMEM, "out of memory for the %lld tensors of %s", (long long)entries, path);
        goto fail;
    }
    cJSON_ArrayForEach(j, in->header)
    {
        if (!strcmp(j->string, "__metadata__"))
            st = check_metadata(path, j, err);
        else
            st = read_entry(path, j, data, data_bytes, &in->tensor[in->n++], err);
        if (st) goto fail;
    }
    if ((st = check_table(path, in, data, data_bytes, err)) != DP_OK) goto fail;
    if ((st = align(in, err)) != DP_OK) goto fail;
    *out = in;
    return DP_OK;
fail:
    dp_st_close(in);
    return st;
}

int dp_st_get(const dp_st_in *in, int i, dp_st_tensor *t)
{
    if (i < 0 || i >= in->n) return 0;
    *t = in->tensor[i];
    return 1;
}

int dp_st_find(const dp_st_in *in, const char *name, dp_st_tensor *t)
{
    const dp_st_tensor key = {.name = name}, *want = &key;
    const dp_st_tensor **hit = bsearch(&want, in->by_name, (size_t)in->n, sizeof *in->by_name, by_name);
    if (hit) *t = **hit;
    return hit != NULL;
}

const char *dp_st_meta_get(const dp_st_in *in, const char *key)
{
    return cJSON_GetStringValue(
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(in->header, "__metadata__"), key));
}

void dp_st_close(dp_st_in *in)
{
    if (!in) return;
    cJSON_Delete(in->header);
    free(in->file);
    free(in->tensor);
    free(in->by_name);
    free(in->aligned);
    free(in);
}

static float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float from_half(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31) return from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)fraction * (1.0f / 16777216.0f); /* subnormal: fraction / 2^24 */
    return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

int dp_st_to_f32(const dp_st_tensor *t, float *dst)
{
    int64_t n = t->bytes / type_sizes[t->type];
    switch (t->type) {
    case DP_ST_F32:
        if (n) memcpy(dst, t->data, (size_t)t->bytes);
        return 1;
    case DP_ST_F64:
        for (int64_t i = 0; i < n; i++) dst[i] = (float)((const double *)t->data)[i];
        return 1;
    case DP_ST_I64:
        for (int64_t i = 0; i < n; i++) dst[i] = (float)((const int64_t *)t->data)[i];
        return 1;
    case DP_ST_F16:
        for (int64_t i = 0; i < n; i++) dst[i] = from_half(((const uint16_t *)t->data)[i]);
        return 1;
    case DP_ST_BF16:
        for (int64_t i = 0; i < n; i++) dst[i] = from_bits((uint32_t)((const uint16_t *)t->data)[i] << 16);
        return 1;
    default: return 0;
    }
}
