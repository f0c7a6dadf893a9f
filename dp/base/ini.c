/* The config language: sections, `key = value`, comments after # or ; at line start or behind a blank. Strict: everything that is not
 * understood is an error with file, line, section and key, and all errors of a text are found in one run. */
#include "config_internal.h"
#include "file.h"
#include "memory.h"
#include "text.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 1000000, MAX_SECTIONS = 256 };

typedef struct section_seen {
    char name[80]; /* "run", "block down" */
    int line;
} section_seen;

typedef struct parser {
    dp_config *c;
    const char *file, *dir;
    int line;
    char section[80]; /* "" before the first header; unknown ones are skipped after their error */
    int known;        /* of keys */
    int model;        /* 1 [model], 2 [block] */
    char block[64], args[256];
    int cleared;    /* model lines of an earlier text are gone */
    int first_line; /* of this section among the model lines */
    section_seen seen[MAX_SECTIONS];
    int n_seen, errors;
    dp_error first;
    int *key_line; /* (dp_n_keys) line where the key stood in this text; 0: not yet */
} parser;

static void complain(parser *p, dp_status code, const char *key, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static void complain(parser *p, dp_status code, const char *key, const char *fmt, ...)
{
    char reason[500];
    dp_error e;
    va_list ap;
    va_start(ap, fmt);
    dp_vformat(reason, sizeof reason, fmt, ap);
    va_end(ap);
    const char *stop = reason[strcspn(reason, "?")] ? "" : "."; /* a question has its own */
    if (key)
        dp_fail(&e, code, "%s:%d: [%s] %s: %s%s", p->file, p->line, p->section, key, reason, stop);
    else if (*p->section)
        dp_fail(&e, code, "%s:%d: [%s]: %s%s", p->file, p->line, p->section, reason, stop);
    else
        dp_fail(&e, code, "%s:%d: %s%s", p->file, p->line, reason, stop);
    dp_log(p->c, DP_LOG_ERROR, "%s", e.text);
    if (!p->errors++) p->first = e;
}

static int blank(char c)
{
    return c == ' ' || c == '\t';
}

static char *trim(char *s)
{
    size_t n;
    while (blank(*s)) s++;
    n = strlen(s);
    while (n && blank(s[n - 1])) s[--n] = 0;
    return s;
}

static void cut_comment(char *s)
{
    for (char *p = s; *p; p++)
        if ((*p == '#' || *p == ';') && (p == s || blank(p[-1]))) {
            *p = 0;
            return;
        }
}

/* ---- headers ---- */

static int is_section(const char *name)
{
    size_t n = strlen(name);
    for (int i = 0; i < dp_n_keys; i++)
        if (!strncmp(dp_keys[i].name, name, n) && dp_keys[i].name[n] == '.') return 1;
    return 0;
}

static void open_block(parser *p, char *rest)
{
    char *name = trim(rest);
    size_t n = strcspn(name, " \t");
    if (!n || n >= sizeof p->block) {
        complain(p, DP_ECONFIG, NULL, "a block wants a name, as [block down out stride=2]");
        return;
    }
    memcpy(p->block, name, n);
    p->block[n] = 0;
    if (dp_format(p->args, sizeof p->args, "%s", trim(name + n)) >= (int)sizeof p->args)
        complain(p, DP_ECONFIG, NULL, "the arguments of block %s are longer than %zu bytes", p->block, sizeof p->args - 1);
    dp_format(p->section, sizeof p->section, "block %s", p->block);
    p->model = 2;
}

static void note_section(parser *p)
{
    for (int i = 0; i < p->n_seen; i++)
        if (!strcmp(p->seen[i].name, p->section)) {
            complain(p, DP_ECONFIG, NULL, "this section stands already in line %d; put them together", p->seen[i].line);
            return;
        }
    if (p->n_seen == MAX_SECTIONS) {
        complain(p, DP_ECONFIG, NULL, "more than %d sections", MAX_SECTIONS);
        return;
    }
    dp_format(p->seen[p->n_seen].name, sizeof p->seen[0].name, "%s", p->section);
    p->seen[p->n_seen++].line = p->line;
}

static void header(parser *p, char *s)
{
    char q[100], *end = strchr(s, ']');
    static const char *const names[] = {"run", "devices", "data", "model", "loss", "optimizer", "schedule", "eval", "block"};
    p->model = p->known = 0;
    *p->section = 0;
    if (!end || *trim(end + 1)) {
        complain(p, DP_ECONFIG, NULL, "%s is not a section header, wanted as [run]", dp_quote(q, sizeof q, s));
        return;
    }
    *end = 0;
    char *name = trim(s + 1);
    if (!strncmp(name, "block", 5) && (blank(name[5]) || !name[5])) {
        open_block(p, name + 5);
    } else if (!strcmp(name, "model")) {
        p->model = 1;
        dp_format(p->section, sizeof p->section, "model");
    } else if (is_section(name)) {
        p->known = 1;
        dp_format(p->section, sizeof p->section, "%s", name);
    } else {
        int near = dp_nearest(name, names, (int)(sizeof names / sizeof *names));
        if (near >= 0)
            complain(p, DP_ECONFIG, NULL, "unknown section %s, did you mean [%s]?", dp_quote(q, sizeof q, name), names[near]);
        else
            complain(p, DP_ECONFIG, NULL, "unknown section %s", dp_quote(q, sizeof q, name));
        return;
    }
    if (p->model && !p->cleared) { /* a text that has layers replaces those of an earlier one */
        dp_model_lines_clear(p->c);
        p->cleared = 1;
    }
    p->first_line = p->c->n_lines;
    if (*p->section) note_section(p);
}

/* ---- keys ---- */

static void unknown(parser *p, const char *key)
{
    char full[200], other[80] = "";
    int near;
    size_t at = strlen(p->section);
    for (int i = 0; i < dp_n_keys && !*other; i++) {
        const char *dot = strchr(dp_keys[i].name, '.');
        if (!strcmp(dot + 1, key)) dp_format(other, sizeof other, "%.*s", (int)(dot - dp_keys[i].name), dp_keys[i].name);
    }
    dp_format(full, sizeof full, "%s.%s", p->section, key);
    near = dp_key_nearest(full);
    if (*other)
        complain(p, DP_ECONFIG, key, "unknown key; it belongs into [%s]", other);
    else if (near >= 0 && !strncmp(dp_keys[near].name, p->section, at) && dp_keys[near].name[at] == '.')
        complain(p, DP_ECONFIG, key, "unknown key, did you mean \"%s\"?", dp_keys[near].name + at + 1);
    else
        complain(p, DP_ECONFIG, key, "unknown key");
}

static void layer(parser *p, const char *name, const char *spec)
{
    dp_config *c = p->c;
    for (int i = p->first_line; i < c->n_lines; i++)
        if (!strcmp(c->line[i].name, name)) {
            complain(p, DP_ECONFIG, name, "stands already in line %d", c->line[i].line);
            return;
        }
    if (!*spec)
        complain(p, DP_ECONFIG, name, "the value is empty; wanted a layer");
    else if (!dp_model_line_add(c, p->model == 2 ? p->block : NULL, p->model == 2 ? p->args : NULL, name, spec, p->file,
                                p->line))
        complain(p, DP_ENOMEM, name, "out of memory");
}

static void assignment(parser *p, char *s)
{
    char q[100], why[400], *equals = strchr(s, '=');
    if (!p->known && !p->model) {
        if (!*p->section && !p->errors)
            complain(p, DP_ECONFIG, NULL, "%s stands before any section; wanted [run] or another first",
                     dp_quote(q, sizeof q, s));
        return;
    }
    if (!equals) {
        complain(p, DP_ECONFIG, NULL, "%s is not `key = value`", dp_quote(q, sizeof q, s));
        return;
    }
    *equals = 0;
    char *key = trim(s), *value = trim(equals + 1);
    if (!*key) {
        complain(p, DP_ECONFIG, NULL, "a name is missing before =");
        return;
    }
    if (p->model) {
        layer(p, key, value);
        return;
    }
    char full[200];
    dp_format(full, sizeof full, "%s.%s", p->section, key);
    int i = dp_key_find(full);
    if (i < 0)
        unknown(p, key);
    else if (p->key_line[i])
        complain(p, DP_ECONFIG, key, "set already in line %d", p->key_line[i]);
    else if (!dp_setting_take(p->c, i, value, p->dir, p->file, p->line, why, sizeof why))
        complain(p, DP_ECONFIG, key, "%s", why);
    if (i >= 0 && !p->key_line[i]) p->key_line[i] = p->line;
}

/* ---- text ---- */

static void one_line(parser *p, char *s)
{
    char q[100];
    for (const char *c = s; *c; c++)
        if (((unsigned char)*c < 32 && *c != '\t') || *c == 127) {
            complain(p, DP_ECONFIG, NULL, "a control byte in %s", dp_quote(q, sizeof q, s));
            return;
        }
    s = trim(s);
    cut_comment(s);
    s = trim(s);
    if (!*s) return;
    if (*s == '[')
        header(p, s);
    else
        assignment(p, s);
}

dp_status dp_config_parse(dp_config *c, const char *text, size_t bytes, const char *name, const char *dir, dp_error *err)
{
    parser p = {.c = c, .file = name, .dir = dir ? dir : ""};
    const char *zero = memchr(text, 0, bytes);
    if (zero) {
        for (const char *t = text; t < zero; t++) p.line += *t == '\n';
        p.line++;
        complain(&p, DP_ECONFIG, NULL, "a zero byte; this is no text file (UTF-16 has to be saved as UTF-8)");
        goto fail;
    }
    char *copy = dp_calloc(bytes + 1, 1);
    p.key_line = dp_calloc((size_t)dp_n_keys, sizeof *p.key_line);
    if (!copy || !p.key_line) {
        free(copy);
        free(p.key_line);
        return dp_fail(err, DP_ENOMEM, "Out of memory while reading %s.", name);
    }
    memcpy(copy, text, bytes);
    char *s = copy;
    if (!strncmp(s, "\xEF\xBB\xBF", 3)) s += 3;
    while (*s) {
        char *end = s + strcspn(s, "\n"), *next = *end ? end + 1 : end;
        if (end > s && end[-1] == '\r') end[-1] = 0;
        *end = 0;
        p.line++;
        one_line(&p, s);
        s = next;
    }
    free(copy);
    free(p.key_line);
    if (!p.errors) return DP_OK;
fail:
    p.first.more = p.errors > 1 ? p.errors - 1 : 0;
    if (err) *err = p.first;
    return dp_config_stick(c, &p.first);
}

dp_status dp_config_load(dp_config *c, const char *path, dp_error *err)
{
    uint8_t *data = NULL;
    size_t bytes;
    char dir[4200] = "";
    if (!c || !path) return dp_fail(err, DP_EARGUMENT, "dp_config_load wants a config and a path.");
    dp_error e;
    dp_status status = dp_file_read(path, 0, MAX_FILE, &data, &bytes, &e);
    if (status) {
        if (err) *err = e;
        return dp_config_stick(c, &e);
    }
    const char *slash = strrchr(path, '/');
    if (slash) dp_format(dir, sizeof dir, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    free(c->file);
    c->file = strdup(path);
    status = c->file ? dp_config_parse(c, (const char *)data, bytes, path, dir, err)
                     : dp_fail(err, DP_ENOMEM, "Out of memory while reading %s.", path);
    free(data);
    return status;
}
