/* Texts and token files, cut into windows of T tokens that do not overlap: x = T tokens, y = the T that follow one later, so n
 * tokens give floor((n - 1) / T) windows. The tokens lie in memory: a file that shrinks under a mapping would be a bus error.
 * A name that ends in .bin: 16-bit little-endian token numbers, with llm.c's header or without; the vocabulary is data.classes
 * or the largest + 1. Other names: text; vocab = bytes: 256 tokens; vocab = chars: the distinct characters of the training file
 * in code order, which are code points when that file is valid UTF-8, else bytes. */
#include "../dp/base/file.h"
#include "../dp/base/memory.h"
#include "set.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_TOKENS = 65536, CODE_POINTS = 0x110000, LLMC_HEADER = 1024, LLMC_MAGIC = 20240520, LLMC_MAGIC_32 = 20240801 };

typedef struct tokens {
    dp_data base;
    uint16_t *all;         /* the whole file */
    const uint16_t *first; /* (samples * T + 1) */
} tokens;

typedef struct vocab {
    int utf8;       /* units are code points; else bytes */
    int32_t *token; /* (CODE_POINTS) token of a unit, -1 = none */
    int32_t count;
} vocab;

static dp_status tokens_fetch(const dp_data *d, int64_t index, void *x, void *y, dp_error *err)
{
    const uint16_t *t = ((const tokens *)d)->first + index * d->x_width;
    int32_t *in = x, *out = y;
    (void)err;
    for (int64_t i = 0; i < d->x_width; i++) in[i] = t[i], out[i] = t[i + 1];
    return DP_OK;
}

static void tokens_release(dp_data *d)
{
    free(((tokens *)d)->all);
}

/* Length of the UTF-8 sequence at s, its code point in *c; 0 = none (too long, surrogates and cut ones included). */
static size_t decode(const uint8_t *s, size_t left, uint32_t *c)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    if (n > left || (s[0] >= 0x80 && s[0] < 0xC0) || s[0] >= 0xF8) return 0;
    *c = n == 1 ? s[0] : s[0] & (0xFFu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) return 0;
        *c = *c << 6 | (s[i] & 0x3Fu);
    }
    return *c < smallest[n] || *c >= CODE_POINTS || (*c >= 0xD800 && *c < 0xE000) ? 0 : n;
}

static size_t next_unit(const vocab *v, const uint8_t *s, size_t left, uint32_t *c)
{
    if (v->utf8) return decode(s, left, c);
    *c = s[0];
    return 1;
}

/* One unit as text: UTF-8; control bytes, the backslash, and bytes of texts that are not UTF-8 as \xNN. */
static size_t unit_text(const vocab *v, uint32_t c, char *out)
{
    if (c < 0x20 || c == '\\' || c == 0x7F || (!v->utf8 && c >= 0x80)) return (size_t)sprintf(out, "\\x%02x", (unsigned)c);
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(n == 1 ? c : (0xF00u >> n & 0xFFu) | c);
    out[n] = 0;
    return n;
}

static dp_status vocab_build(vocab *v, const char *path, const uint8_t *text, size_t bytes, dp_error *err)
{
    uint32_t c;
    v->token = dp_calloc(CODE_POINTS, sizeof *v->token);
    if (!v->token) return dp_fail(err, DP_ENOMEM, "out of memory for the table of characters");
    v->utf8 = 1;
    for (size_t i = 0; i < bytes && v->utf8;) {
        size_t n = decode(text + i, bytes - i, &c);
        v->utf8 = n > 0;
        i += n;
    }
    for (size_t i = 0; i < bytes;) {
        i += next_unit(v, text + i, bytes - i, &c);
        v->token[c] = 1;
    }
    for (uint32_t k = 0; k < CODE_POINTS; k++) v->token[k] = v->token[k] ? v->count++ : -1;
    if (v->count > MOST_TOKENS) {
        return dp_fail(err, DP_EDATA, "%s has %d distinct characters, at most %d are possible", path, v->count, MOST_TOKENS);
    }
    return DP_OK;
}

static char *vocab_text(const vocab *v)
{
    char *text = dp_calloc((size_t)v->count * 4 + 1, 1), *p = text;
    for (uint32_t k = 0; text && k < CODE_POINTS; k++) {
        if (v->token[k] >= 0) p += unit_text(v, k, p);
    }
    return text;
}

static dp_status encode(const vocab *v, const char *path, const uint8_t *text, size_t bytes, uint16_t *out, int64_t *n,
                        dp_error *err)
{
    *n = 0;
    for (size_t i = 0, length; i < bytes; i += length) {
        uint32_t c = 0;
        length = next_unit(v, text + i, bytes - i, &c);
        if (length == 0) return dp_fail(err, DP_EDATA, "%s: byte %zu is not UTF-8, the training text is", path, i);
        if (v->token[c] < 0) {
            char shown[8];
            unit_text(v, c, shown);
            return dp_fail(err, DP_EDATA,
                           "%s: character '%s' at byte %zu does not occur in the training text (%d characters): "
                           "use data.vocab = bytes, or a training text that has it",
                           path, shown, i, v->count);
        }
        out[(*n)++] = (uint16_t)v->token[c];
    }
    return DP_OK;
}

static dp_status read_text(tokens *t, const dp_set_request *q, const char *path, const uint8_t *data, size_t bytes, int64_t *n,
                           dp_error *err)
{
    if (strcmp(dp_config_get(q->c, "data.vocab"), "chars") != 0) {
        for (size_t i = 0; i < bytes; i++) t->all[i] = data[i];
        *n = (int64_t)bytes;
        t->base.info.classes = 256;
        return DP_OK;
    }
    vocab v = {.token = NULL};
    uint8_t *training = NULL;
    size_t training_bytes = 0;
    dp_status s = DP_OK;
    const char *training_path = dp_config_text(q->c, "data.train");
    int other = strcmp(q->key, "data.train") != 0;
    if (other) s = dp_file_read(training_path, 1, 0, &training, &training_bytes, err);
    if (!s) s = vocab_build(&v, training_path, other ? training : data, other ? training_bytes : bytes, err);
    if (!s) s = encode(&v, path, data, bytes, t->all, n, err);
    if (!s && !(t->base.vocab = vocab_text(&v))) s = dp_fail(err, DP_ENOMEM, "out of memory for the list of characters");
    t->base.info.classes = v.count;
    free(v.token);
    free(training);
    return s;
}

static uint32_t u32_at(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* llm.c's files begin with 256 32-bit numbers: magic, version, tokens. *skip = bytes of the header. */
static dp_status read_header(const char *path, const uint8_t *data, size_t bytes, size_t *skip, dp_error *err)
{
    *skip = 0;
    if (bytes < LLMC_HEADER) return DP_OK;
    uint32_t magic = u32_at(data), version = u32_at(data + 4), claimed = u32_at(data + 8);
    uint64_t wanted = LLMC_HEADER + 2 * (uint64_t)claimed;
    if (magic == LLMC_MAGIC_32) {
        return dp_fail(err, DP_EDATA, "%s holds 32-bit tokens (llm.c magic %u): only 16-bit ones are read", path, magic);
    }
    if (magic != LLMC_MAGIC) {
        if (wanted != bytes || version > 16) return DP_OK;
        return dp_fail(err, DP_EDATA, "%s: its first 1024 bytes look like an llm.c header, but the magic is %u, wanted %d",
                       path, magic, LLMC_MAGIC);
    }
    if (version != 1) return dp_fail(err, DP_EDATA, "%s: llm.c header of version %u, wanted 1 (16-bit tokens)", path, version);
    if (wanted != bytes) {
        return dp_fail(err, DP_EDATA, "%s: its header says %u tokens = %llu bytes, it has %zu: the file is %s", path, claimed,
                       (unsigned long long)wanted, bytes, bytes < wanted ? "cut off" : "too long");
    }
    *skip = LLMC_HEADER;
    return DP_OK;
}

static dp_status read_bin(tokens *t, const dp_set_request *q, const char *path, const uint8_t *data, size_t bytes, int64_t *n,
                          dp_error *err)
{
    size_t skip;
    uint16_t largest = 0;
    if (bytes % 2) {
        return dp_fail(err, DP_EDATA,
                       "%s has %zu bytes: 16-bit tokens need an even number; the file is cut off, or not of tokens", path,
                       bytes);
    }
    DP_TRY(read_header(path, data, bytes, &skip, err));
    *n = (int64_t)((bytes - skip) / 2);
    int64_t limit = dp_config_is_set(q->c, "data.classes") ? dp_config_int(q->c, "data.classes") : MOST_TOKENS;
    for (int64_t i = 0; i < *n; i++) {
        const uint8_t *p = data + skip + 2 * i;
        t->all[i] = (uint16_t)(p[0] | p[1] << 8);
        if (t->all[i] >= limit) {
            return dp_fail(err, DP_EDATA, "%s: token %d at position %lld, allowed are 0..%lld (data.classes = %lld)", path,
                           t->all[i], (long long)i, (long long)limit - 1, (long long)limit);
        }
        if (t->all[i] > largest) largest = t->all[i];
    }
    t->base.info.classes = dp_config_is_set(q->c, "data.classes") ? limit : largest + 1;
    return DP_OK;
}

/* data.window, or T of the model's `input = tokens T`. */
static dp_status window_of(const dp_config *c, int64_t *window, dp_error *err)
{
    char where[256];
    dp_set_input in;
    int found = dp_set_model_input(c, &in);
    *window = dp_config_int(c, "data.window");
    if (found == 1 && in.tokens && *window > 0 && *window != in.shape[0]) {
        return dp_fail(err, DP_ECONFIG, "%s = %lld, but [model] says input = tokens %lld: leave data.window out",
                       dp_config_where(c, "data.window", where, sizeof where), (long long)*window, (long long)in.shape[0]);
    }
    if (*window > 0) return DP_OK;
    if (found != 1 || !in.tokens) {
        return dp_fail(err, DP_ECONFIG,
                       "data.format = tokens needs the window: set data.window or \"input = tokens T\" in [model]");
    }
    *window = in.shape[0];
    return DP_OK;
}

static int ends_in_bin(const char *path)
{
    size_t n = strlen(path);
    return (n >= 4 && strcasecmp(path + n - 4, ".bin") == 0) || (n >= 7 && strcasecmp(path + n - 7, ".bin.gz") == 0);
}

dp_status dp_set_open_tokens(dp_data **d, const dp_set_request *q, dp_error *err)
{
    const char *path = dp_config_text(q->c, q->key);
    uint8_t *data = NULL;
    size_t bytes = 0;
    int64_t window, n = 0, first, count;
    DP_TRY(window_of(q->c, &window, err));
    tokens *t = dp_set_new(sizeof *t, err);
    if (!t) return DP_ENOMEM;
    dp_data_info *f = &t->base.info;
    t->base.release = tokens_release;
    t->base.fetch = tokens_fetch;
    dp_status s = dp_file_read(path, 1, 0, &data, &bytes, err);
    if (s) goto fail;
    t->all = dp_calloc(bytes, sizeof *t->all); /* a token takes at least a byte */
    if (!t->all) {
        s = dp_fail(err, DP_ENOMEM, "%s: out of memory for its tokens (%zu bytes)", path, 2 * bytes);
        goto fail;
    }
    s = ends_in_bin(path) ? read_bin(t, q, path, data, bytes, &n, err) : read_text(t, q, path, data, bytes, &n, err);
    if (s) goto fail;
    if (n == 0) {
        s = dp_fail(err, DP_EDATA, "%s holds no tokens", path);
        goto fail;
    }
    if ((s = dp_set_part(q, n, "tokens", &first, &count, err)) != DP_OK) goto fail;
    if (count <= window) {
        s = dp_fail(err, DP_EDATA, "%s: %lld tokens for %s, a window of %lld needs at least T+1 = %lld", path, (long long)count,
                    q->train ? "training" : "evaluation", (long long)window, (long long)window + 1);
        goto fail;
    }
    t->first = t->all + first;
    f->samples = (count - 1) / window;
    f->x_rank = 1, f->x_shape[0] = window;
    f->x_dtype = DP_I32, f->x_layout = DP_HWC;
    f->y_dtype = DP_I32, f->y_width = window;
    if ((s = dp_set_finish(&t->base, err)) != DP_OK) goto fail;
    free(data);
    *d = &t->base;
    return DP_OK;
fail:
    free(data);
    dp_data_close(&t->base);
    return s;
}
