/* Settings in memory: one value per row of the key table, checked when it is set. */
#include "config_internal.h"
#include "memory.h"
#include "text.h"
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- life ---- */

dp_config *dp_config_new_version(int header_version, dp_log_fn log, void *user)
{
    dp_config *c = dp_calloc(1, sizeof *c);
    if (!c) return NULL;
    c->log = log, c->user = user;
    c->setting = dp_calloc((size_t)dp_n_keys, sizeof *c->setting);
    if (!c->setting) {
        free(c);
        return NULL;
    }
    if (header_version / 100 != DP_VERSION / 100) {
        dp_error e;
        dp_fail(&e, DP_EVERSION,
                "The program was compiled with the headers of version %d.%d; the library is %s. Compile it anew.",
                header_version / 10000, header_version / 100 % 100, DP_VERSION_TEXT);
        dp_config_stick(c, &e);
    }
    return c;
}

static void clear_setting(dp_setting *s)
{
    free(s->value);
    free(s->written);
    free(s->file);
    memset(s, 0, sizeof *s);
}

static void free_line(dp_model_line *l)
{
    free((char *)(uintptr_t)l->block);
    free((char *)(uintptr_t)l->block_args);
    free((char *)(uintptr_t)l->name);
    free((char *)(uintptr_t)l->spec);
    free((char *)(uintptr_t)l->file);
}

void dp_model_lines_clear(dp_config *c)
{
    for (int i = 0; i < c->n_lines; i++) free_line(&c->line[i]);
    c->n_lines = 0;
}

void dp_config_free(dp_config *c)
{
    if (!c) return;
    for (int i = 0; i < dp_n_keys; i++) clear_setting(&c->setting[i]);
    dp_model_lines_clear(c);
    free(c->setting);
    free(c->line);
    free(c->file);
    free(c);
}

static int dup_to(char **dst, const char *src)
{
    *dst = src ? strdup(src) : NULL;
    return !src || *dst;
}

int dp_model_line_add(dp_config *c, const char *block, const char *args, const char *name, const char *spec, const char *file,
                      int line)
{
    char *s[5] = {NULL};
    const char *from[5] = {block, args, name, spec, file};
    int ok = 1;
    if (c->n_lines == c->room) {
        int room = c->room ? 2 * c->room : 32;
        dp_model_line *more = realloc(c->line, (size_t)room * sizeof *more);
        if (!more) return 0;
        c->line = more, c->room = room;
    }
    for (int i = 0; i < 5; i++) ok &= dup_to(&s[i], from[i]);
    dp_model_line *l = &c->line[c->n_lines];
    *l = (dp_model_line){s[0], s[1], s[2], s[3], s[4], line};
    if (ok)
        c->n_lines++;
    else
        free_line(l);
    return ok;
}

dp_config *dp_config_copy(const dp_config *c)
{
    dp_config *d = dp_config_new_version(DP_VERSION, c->log, c->user);
    int ok = d != NULL;
    for (int i = 0; ok && i < dp_n_keys; i++) {
        const dp_setting *s = &c->setting[i];
        ok = dup_to(&d->setting[i].value, s->value) && dup_to(&d->setting[i].written, s->written) &&
             dup_to(&d->setting[i].file, s->file);
        d->setting[i].line = s->line;
    }
    for (int i = 0; ok && i < c->n_lines; i++) {
        const dp_model_line *l = &c->line[i];
        ok = dp_model_line_add(d, l->block, l->block_args, l->name, l->spec, l->file, l->line);
    }
    ok = ok && dup_to(&d->file, c->file);
    if (!ok) {
        dp_config_free(d);
        return NULL;
    }
    d->has_error = c->has_error, d->error = c->error;
    return d;
}

/* ---- errors and log ---- */

dp_status dp_config_stick(dp_config *c, const dp_error *err)
{
    if (!c->has_error)
        c->error = *err, c->has_error = 1;
    else
        c->error.more += 1 + err->more;
    return (dp_status)err->code;
}

dp_status dp_config_ok(const dp_config *c, dp_error *err)
{
    if (!c) return dp_fail(err, DP_EARGUMENT, "A config is wanted and NULL was given.");
    if (!c->has_error) return DP_OK;
    if (err) *err = c->error;
    return (dp_status)c->error.code;
}

void dp_log(const dp_config *c, dp_level level, const char *fmt, ...)
{
    char text[1200];
    va_list ap;
    if (!c || !c->log) return;
    va_start(ap, fmt);
    dp_vformat(text, sizeof text, fmt, ap);
    va_end(ap);
    c->log(c->user, level, text);
}

/* ---- checking a value ---- */

static int refuse(char *why, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int refuse(char *why, size_t size, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    dp_vformat(why, size, fmt, ap);
    va_end(ap);
    return 0;
}

static int check_number(const dp_key_row *k, const char *text, char *why, size_t size)
{
    char q[80];
    double v = 0;
    int64_t i = 0;
    int whole = k->type == DP_KEY_INT;
    int ok = whole ? dp_parse_int(text, &i) : dp_parse_double(text, &v);
    if (ok == 0)
        return refuse(why, size, "%s is not a %s, wanted %s", dp_quote(q, sizeof q, text),
                      whole ? "whole number" : "number (as 0.1 or 1e-3)", k->choices);
    if (whole) v = (double)i;
    if ((ok < 0 || v > k->max) && *k->choices == '>')
        return refuse(why, size, "%s is too large, at most %.10g can be", dp_quote(q, sizeof q, text), k->max);
    if (ok < 0 || v > k->max) return refuse(why, size, "%s is too large, wanted %s", dp_quote(q, sizeof q, text), k->choices);
    if (v < k->min) return refuse(why, size, "%s is too small, wanted %s", dp_quote(q, sizeof q, text), k->choices);
    return 1;
}

/* Index of text in "a|b|c", -1 when it is not there; *near the nearest one. */
static int word_index(const char *words, const char *text, char *near, size_t near_size)
{
    char copy[160], *save = NULL;
    const char *name[32];
    int n = 0, found = -1;
    dp_format(copy, sizeof copy, "%s", words);
    for (char *w = strtok_r(copy, "|", &save); w && n < 32; w = strtok_r(NULL, "|", &save), n++) {
        name[n] = w;
        if (!strcmp(w, text)) found = n;
    }
    if (near) {
        int i = dp_nearest(text, name, n);
        dp_format(near, near_size, "%s", i >= 0 ? name[i] : "");
    }
    return found;
}

static int check_choice(const dp_key_row *k, const char *text, char *why, size_t size)
{
    char q[80], near[64];
    if (word_index(k->choices, text, near, sizeof near) >= 0) return 1;
    if (*near)
        return refuse(why, size, "unknown value %s, did you mean \"%s\"? Wanted %s", dp_quote(q, sizeof q, text), near,
                      k->choices);
    return refuse(why, size, "unknown value %s, wanted %s", dp_quote(q, sizeof q, text), k->choices);
}

static int parse_interval(const char *text, int64_t *n, int *epochs)
{
    char number[32];
    size_t digits = strspn(text, "0123456789");
    const char *unit = text + digits + strspn(text + digits, " \t");
    if (!digits || digits >= sizeof number) return 0;
    memcpy(number, text, digits);
    number[digits] = 0;
    *epochs = !strcmp(unit, "epoch") || !strcmp(unit, "epochs");
    return dp_parse_int(number, n) == 1 && (*epochs || !*unit || !strcmp(unit, "step") || !strcmp(unit, "steps"));
}

static int check(const dp_key_row *k, const char *text, char *why, size_t size)
{
    char q[80];
    int64_t n;
    int epochs;
    switch (k->type) {
    case DP_KEY_INT:
    case DP_KEY_NUMBER: return check_number(k, text, why, size);
    case DP_KEY_FLAG:
        return !strcmp(text, "0") || !strcmp(text, "1") || refuse(why, size, "%s is not 0 or 1", dp_quote(q, sizeof q, text));
    case DP_KEY_CHOICE: return check_choice(k, text, why, size);
    case DP_KEY_INTERVAL:
        return parse_interval(text, &n, &epochs) ||
               refuse(why, size, "%s is not an interval, wanted as 1 epoch, 500 steps, or 0", dp_quote(q, sizeof q, text));
    default: return *text || refuse(why, size, "the value is empty; take the line out for the default");
    }
}

/* ---- paths ---- */

static int is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static int resolve_one(char *out, size_t size, const char *dir, const char *path)
{
    char cwd[PATH_MAX];
    if (*path == '/') return dp_format(out, size, "%s", path) < (int)size;
    if (!getcwd(cwd, sizeof cwd)) return 0;
    if (*dir == '/') return dp_format(out, size, "%s/%s", dir, path) < (int)size;
    return dp_format(out, size, *dir ? "%s/%s/%s" : "%s%s/%s", cwd, dir, path) < (int)size;
}

/* Whether the text is one of the row's words in small letters ("never", "last P%") and so no path. */
static int is_word(const char *choices, const char *text)
{
    for (const char *p = choices; *p;) {
        char pattern[32];
        size_t n = strcspn(p, "|"), at = 0;
        for (size_t i = 0; i < n && at + 1 < sizeof pattern; i++) pattern[at++] = p[i] >= 'A' && p[i] <= 'Z' ? '*' : p[i];
        pattern[at] = 0;
        if (*p >= 'a' && *p <= 'z' && dp_match_list(pattern, text)) return 1;
        p += n + (p[n] == '|');
    }
    return 0;
}

/* Absolute, so that it holds wherever the program goes. Two paths with a comma between are resolved each; one that exists with its
 * comma is one. NULL: too long, or out of memory. */
static char *resolve(const dp_key_row *k, const char *text, const char *dir)
{
    const size_t size = 2 * PATH_MAX + 2;
    const char *comma = strchr(k->choices, ',') ? strchr(text, ',') : NULL;
    if (is_word(k->choices, text)) return strdup(text);
    char *out = malloc(size), *first = NULL;
    if (!out || !resolve_one(out, size, dir, text)) goto fail;
    if (!comma || access(out, F_OK) == 0) return out;
    size_t n = (size_t)(comma - text);
    while (n && is_blank(text[n - 1])) n--;
    do comma++;
    while (is_blank(*comma));
    first = strndup(text, n);
    if (!first || !resolve_one(out, size / 2, dir, first)) goto fail;
    n = strlen(out);
    out[n] = ',';
    if (!resolve_one(out + n + 1, size - n - 1, dir, comma)) goto fail;
    free(first);
    return out;
fail:
    free(first);
    free(out);
    return NULL;
}

/* A file has no way to write these down, so a call may not set them either: every config can be dumped and loaded again. */
static int cannot_stand_in_file(const char *text)
{
    for (const char *p = text; *p; p++)
        if (((unsigned char)*p < 32 && *p != '\t') || *p == 127 || ((*p == '#' || *p == ';') && (p == text || is_blank(p[-1]))))
            return 1;
    return 0;
}

int dp_setting_take(dp_config *c, int key, const char *text, const char *dir, const char *file, int line, char *why,
                    size_t why_size)
{
    const dp_key_row *k = &dp_keys[key];
    char q[300];
    int in_working_dir = !strcmp(k->name, "run.dir");
    if (!check(k, text, why, why_size)) return 0;
    dp_setting s = {.line = line};
    s.value = k->type == DP_KEY_PATH ? resolve(k, text, in_working_dir ? "" : dir) : strdup(text);
    s.written = strdup(text);
    if (!s.value || !s.written || !dup_to(&s.file, file)) {
        clear_setting(&s);
        return refuse(why, why_size, "the path is too long, or memory is short");
    }
    if (cannot_stand_in_file(s.value)) {
        dp_quote(q, sizeof q, s.value);
        clear_setting(&s);
        return refuse(why, why_size, "%s holds a control byte, or a # or ; that begins a comment", q);
    }
    clear_setting(&c->setting[key]);
    c->setting[key] = s;
    return 1;
}

/* ---- setting by call ---- */

int dp_key_find(const char *name)
{
    for (int i = 0; i < dp_n_keys; i++)
        if (!strcmp(dp_keys[i].name, name)) return i;
    return -1;
}

int dp_key_nearest(const char *name)
{
    const char *list[256];
    int n = dp_n_keys < 256 ? dp_n_keys : 256;
    for (int i = 0; i < n; i++) list[i] = dp_keys[i].name;
    return dp_nearest(name, list, n);
}

/* The first error sticks; all go to the log, since the call itself returns a code alone. */
static dp_status refuse_set(dp_config *c, dp_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static dp_status refuse_set(dp_config *c, dp_status code, const char *fmt, ...)
{
    char text[sizeof c->error.text];
    dp_error e;
    va_list ap;
    va_start(ap, fmt);
    dp_vformat(text, sizeof text, fmt, ap);
    va_end(ap);
    dp_fail(&e, code, "%s", text);
    dp_log(c, DP_LOG_ERROR, "%s", e.text);
    return dp_config_stick(c, &e);
}

static dp_status unknown_key(dp_config *c, const char *name)
{
    char q[80];
    int near = dp_key_nearest(name);
    dp_quote(q, sizeof q, name);
    if (!strncmp(name, "model.", 6) || !strncmp(name, "block", 5))
        return refuse_set(c, DP_ECONFIG, "%s cannot be set here; layers come from the file or from dp_layer.", q);
    if (near >= 0) return refuse_set(c, DP_ECONFIG, "%s is not a setting; did you mean %s?", q, dp_keys[near].name);
    return refuse_set(c, DP_ECONFIG, "%s is not a setting; `dptrain --keys` lists them as section.key.", q);
}

dp_status dp_config_set(dp_config *c, const char *key, const char *value)
{
    char why[400];
    if (!c) return DP_EARGUMENT;
    if (!key || !value) return refuse_set(c, DP_EARGUMENT, "dp_config_set wants a key and a value.");
    int i = dp_key_find(key);
    if (i < 0) return unknown_key(c, key);
    while (is_blank(*value)) value++;
    size_t n = strlen(value);
    while (n && is_blank(value[n - 1])) n--;
    char *text = strndup(value, n);
    if (!text) return refuse_set(c, DP_ENOMEM, "Out of memory while setting %s.", key);
    int taken = dp_setting_take(c, i, text, "", NULL, 0, why, sizeof why);
    free(text);
    return taken ? DP_OK : refuse_set(c, DP_ECONFIG, "%s: %s.", key, why);
}

dp_status dp_config_set_number(dp_config *c, const char *key, double value)
{
    char text[40];
    double back;
    int whole = value > -1e16 && value < 1e16 && value == (double)(int64_t)value;
    dp_format(text, sizeof text, whole ? "%.0f" : "%.15g", value);
    if (dp_parse_double(text, &back) == 1 && (back < value || back > value)) dp_format(text, sizeof text, "%.17g", value);
    return dp_config_set(c, key, text);
}

/* ---- reading ---- */

static const char *value_of(const dp_config *c, int i)
{
    return i < 0 ? "" : c->setting[i].value ? c->setting[i].value : dp_keys[i].def;
}

const char *dp_config_get(const dp_config *c, const char *key)
{
    int i = c && key ? dp_key_find(key) : -1;
    return i < 0 ? NULL : value_of(c, i);
}

int dp_config_key(const dp_config *c, int i, dp_key *key)
{
    if (!c || !key || i < 0 || i >= dp_n_keys) return 0;
    const dp_key_row *k = &dp_keys[i];
    key->name = k->name;
    key->value = value_of(c, i);
    key->def = k->def;
    key->range = k->choices;
    key->unit = k->unit;
    key->help = k->help;
    return 1;
}

int64_t dp_config_int(const dp_config *c, const char *key)
{
    int64_t v = 0;
    return dp_parse_int(value_of(c, dp_key_find(key)), &v) == 1 ? v : 0;
}

double dp_config_number(const dp_config *c, const char *key)
{
    double v = 0;
    return dp_parse_double(value_of(c, dp_key_find(key)), &v) == 1 ? v : 0;
}

int dp_config_flag(const dp_config *c, const char *key)
{
    return !strcmp(value_of(c, dp_key_find(key)), "1");
}

int dp_config_choice(const dp_config *c, const char *key)
{
    int i = dp_key_find(key);
    return i < 0 ? -1 : word_index(dp_keys[i].choices, value_of(c, i), NULL, 0);
}

const char *dp_config_text(const dp_config *c, const char *key)
{
    return value_of(c, dp_key_find(key));
}

const char *dp_config_path_as_written(const dp_config *c, const char *key)
{
    int i = dp_key_find(key);
    return i >= 0 && c->setting[i].written ? c->setting[i].written : value_of(c, i);
}

const char *dp_config_file(const dp_config *c)
{
    return c->file ? c->file : "";
}

int dp_config_is_set(const dp_config *c, const char *key)
{
    int i = dp_key_find(key);
    return i >= 0 && c->setting[i].value != NULL;
}

int64_t dp_config_interval(const dp_config *c, const char *key, int *epochs)
{
    int64_t n = 0;
    *epochs = 0;
    return parse_interval(value_of(c, dp_key_find(key)), &n, epochs) ? n : 0;
}

const char *dp_config_where(const dp_config *c, const char *key, char *buf, size_t size)
{
    int i = dp_key_find(key);
    if (i >= 0 && c->setting[i].file)
        dp_format(buf, size, "%s:%d: [%.*s] %s", c->setting[i].file, c->setting[i].line, (int)strcspn(key, "."), key,
                  strchr(key, '.') + 1);
    else
        dp_format(buf, size, "%s", key);
    return buf;
}

int dp_config_model_line(const dp_config *c, int i, dp_model_line *line)
{
    if (!c || i < 0 || i >= c->n_lines) return 0;
    *line = c->line[i];
    return 1;
}
