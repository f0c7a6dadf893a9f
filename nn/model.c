/* Keeps the lines of the model as they come, and at finish builds them in order. The first error sticks; a line's error is
 * given its place: file and line, section, name, and the lines that use the block it stands in. */
#include "model.h"
#include "../dp/base/memory.h"
#include "../dp/base/text.h"
#include <stdlib.h>
#include <string.h>

/* ---- collecting ---- */

static struct dp_graph_builder *builder(dp_graph *g)
{
    if (!g) return NULL;
    if (!g->builder) { /* after finish: the graph stays as it is, the next finish says so */
        g->builder = dp_calloc(1, sizeof *g->builder);
        if (g->builder) dp_fail(&g->builder->err, DP_EARGUMENT, "the graph is finished and cannot be changed; make a new one");
    }
    return g->builder && !g->builder->err.code ? g->builder : NULL;
}

static void line_free(dp_line *l)
{
    free(l->block), free(l->args), free(l->name), free(l->spec), free(l->file);
}

void dp_builder_free(struct dp_graph_builder *b)
{
    if (!b) return;
    for (int i = 0; i < b->n_lines; i++) line_free(&b->line[i]);
    free(b->line);
    free(b->end);
    free(b);
}

static int copy_text(char **dst, const char *src)
{
    *dst = src ? strdup(src) : NULL;
    return !src || *dst;
}

static void add_line(struct dp_graph_builder *b, const dp_model_line *m)
{
    dp_line l = {.line = m->line};
    int ok = copy_text(&l.block, m->block) & copy_text(&l.args, m->block_args) & copy_text(&l.name, m->name) &
             copy_text(&l.spec, m->spec) & copy_text(&l.file, m->file);
    dp_line *all = ok ? realloc(b->line, (size_t)(b->n_lines + 1) * sizeof *all) : NULL;
    if (!all) {
        line_free(&l);
        dp_fail(&b->err, DP_ENOMEM, "out of memory for line \"%s\" of the model", m->name);
        return;
    }
    b->line = all;
    all[b->n_lines++] = l;
}

DP_API void dp_layer(dp_graph *g, const char *name, const char *spec)
{
    struct dp_graph_builder *b = builder(g);
    if (!b) return;
    if (!name || !spec) {
        dp_fail(&b->err, DP_EARGUMENT, "dp_layer wants a name and a text, found NULL");
        return;
    }
    add_line(b, &(dp_model_line){.name = name, .spec = spec});
}

DP_API void dp_graph_config(dp_graph *g, const dp_config *c)
{
    struct dp_graph_builder *b = builder(g);
    dp_model_line m;
    if (!b) return;
    if (!c)
        dp_fail(&b->err, DP_EARGUMENT, "dp_graph_config wants a config, found NULL");
    else if (dp_config_ok(c, &b->err) == DP_OK)
        for (int i = 0; !b->err.code && dp_config_model_line(c, i, &m); i++) add_line(b, &m);
}

DP_API void dp_graph_text(dp_graph *g, const char *ini)
{
    struct dp_graph_builder *b = builder(g);
    if (!b) return;
    if (!ini) {
        dp_fail(&b->err, DP_EARGUMENT, "dp_graph_text wants a text, found NULL");
        return;
    }
    dp_config *c = dp_config_new(NULL, NULL);
    if (!c)
        dp_fail(&b->err, DP_ENOMEM, "out of memory for the model's text");
    else if (dp_config_parse(c, ini, strlen(ini), "text", ".", &b->err) == DP_OK)
        dp_graph_config(g, c);
    dp_config_free(c);
}

DP_API void dp_graph_symbol(dp_graph *g, const char *name, int64_t value)
{
    struct dp_graph_builder *b = builder(g);
    int i = 0;
    if (!b) return;
    if (!name || !name[0] || strlen(name) >= sizeof b->symbol[0].name) {
        dp_fail(&b->err, DP_EARGUMENT, "dp_graph_symbol wants a name of 1 to %d characters", (int)sizeof b->symbol[0].name - 1);
        return;
    }
    while (i < b->n_symbols && strcmp(b->symbol[i].name, name)) i++;
    if (i == DP_MAX_SYMBOLS) {
        dp_fail(&b->err, DP_EARGUMENT, "more than %d symbols", DP_MAX_SYMBOLS);
        return;
    }
    if (i == b->n_symbols) b->n_symbols++;
    dp_format(b->symbol[i].name, sizeof b->symbol[i].name, "%s", name);
    b->symbol[i].value = value;
}

/* ---- building ---- */

/* Puts the place before the error's text, once: "FILE:LINE: [block down] conv1 (used as layer1.0 at FILE:LINE): text". */
static dp_status place(dp_graph *g, const dp_scope *s, dp_error *err, dp_status st)
{
    char where[600], text[sizeof err->text], name[sizeof err->layer];
    size_t n = 0;
    if (g->builder->placed) return st;
    g->builder->placed = 1;
    for (const dp_scope *at = s; at && n < sizeof where - 1; at = at->outer) {
        const dp_line *l = at->line;
        size_t room = sizeof where - n;
        char file[200] = "";
        int k;
        if (l->file) dp_format(file, sizeof file, "%s:%d", l->file, l->line);
        if (at == s)
            k = dp_format(where, room, "%s%s[%s%s] %s", file, l->file ? ": " : "", at->block ? "block " : "model",
                          at->block ? at->block : "", at->name + strlen(at->prefix));
        else
            k = dp_format(where + n, room, " (used as %s%s%s)", at->name, l->file ? " at " : "", file);
        n += k < 0 ? 0 : (size_t)k < room ? (size_t)k : room - 1;
    }
    memcpy(text, err->text, sizeof text);
    memcpy(name, s->name, sizeof name);
    dp_fail(err, st, "%s: %s", where, text);
    dp_error_place(err, -1, -1, -1, NULL, -1, name);
    return st;
}

static dp_status check_name(const char *name, dp_error *err)
{
    static const char legal[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    size_t n = strlen(name);
    char quoted[80];
    if (!n || name[strspn(name, legal)] || name[0] == '.' || name[n - 1] == '.' || strstr(name, ".."))
        return dp_fail(err, DP_ECONFIG, "a line's name is letters, digits, '_', '-' and single dots inside, found %s",
                       dp_quote(quoted, sizeof quoted, name));
    if (!strcmp(name, "in")) return dp_fail(err, DP_ECONFIG, "the name \"in\" means a block's input; take another");
    return DP_OK;
}

static dp_status add_end(struct dp_graph_builder *b, const char *name, int node, dp_error *err)
{
    dp_line_end *all = realloc(b->end, (size_t)(b->n_ends + 1) * sizeof *all);
    if (!all) return dp_fail(err, DP_ENOMEM, "out of memory for line %d of the model", b->n_ends);
    b->end = all;
    dp_format(all[b->n_ends].name, DP_NAME, "%s", name);
    all[b->n_ends++].node = node;
    return DP_OK;
}

/* One name of a line; s->name is set to the full name on the way. */
static dp_status build_named(dp_graph *g, dp_scope *s, const char *name, const char *spec, dp_error *err)
{
    struct dp_graph_builder *b = g->builder;
    int end = -1, is_input = !s->block && !strcmp(name, "input");
    int fits = dp_format(s->name, sizeof s->name, "%s%s", s->prefix, name) < (int)sizeof s->name;
    DP_TRY(check_name(name, err));
    if (!fits) return dp_fail(err, DP_ECONFIG, "the full name %s... is longer than %d characters", s->name, DP_NAME - 1);
    for (int i = 0; i < b->n_ends; i++)
        if (!strcmp(b->end[i].name, s->name))
            return dp_fail(err, DP_ECONFIG, "a line named \"%s\" stands before this one; every line needs its own name",
                           s->name);
    if (s->prev < 0 && !is_input)
        return dp_fail(err, DP_ECONFIG, "the first line of [model] must be `input = C x H x W`, for example `input = 1x28x28`");
    if (is_input)
        DP_TRY(dp_build_input(g, spec, &end, err));
    else if (spec[strspn(spec, " \t")] == '@')
        DP_TRY(dp_build_block(g, s, spec, &end, err));
    else
        DP_TRY(dp_build_ops(g, s, spec, &end, err));
    DP_TRY(add_end(b, s->name, end, err));
    s->prev = end;
    return DP_OK;
}

dp_status dp_build_line(dp_graph *g, dp_scope *s, const dp_line *line, dp_error *err)
{
    char spec[DP_MAX_TEXT], name[DP_NAME], one[2 * DP_NAME + 24];
    dp_repeat r;
    dp_status st;
    s->line = line;
    dp_format(s->name, sizeof s->name, "%s%s", s->prefix, line->name);
    if ((st = dp_scope_replace(s, line->name, name, sizeof name, err)) != DP_OK) goto fail;
    if ((st = dp_scope_replace(s, line->spec, spec, sizeof spec, err)) != DP_OK) goto fail;
    if ((st = dp_repeat_parse(name, &r, err)) != DP_OK) goto fail;
    if (!r.many) {
        if ((st = build_named(g, s, name, spec, err)) != DP_OK) goto fail;
        return DP_OK;
    }
    if (strstr(spec, "from=") && r.last > r.first) {
        st = dp_fail(err, DP_ECONFIG, "from= and a repeat do not go together: each repetition reads the one before");
        goto fail;
    }
    for (int64_t i = r.first; i <= r.last; i++) {
        dp_format(one, sizeof one, "%s%lld%s", r.before, (long long)i, r.after);
        if ((st = build_named(g, s, one, spec, err)) != DP_OK) goto fail;
    }
    return DP_OK;
fail:
    return place(g, s, err, st);
}

dp_status dp_model_build(dp_graph *g, dp_error *err)
{
    struct dp_graph_builder *b = g->builder;
    dp_scope root = {.in = -1, .prev = -1};
    for (int i = 0; i < b->n_lines; i++)
        if (!b->line[i].block) DP_TRY(dp_build_line(g, &root, &b->line[i], err));
    if (root.prev < 0) return dp_fail(err, DP_ECONFIG, "the model has no lines; [model] begins with `input = ...`");
    if (root.prev == 0) return dp_fail(err, DP_ECONFIG, "the model has an input and no layers");
    if (g->node[root.prev].dtype != DP_F32) return dp_fail(err, DP_ECONFIG, "the model's output must be numbers, not tokens");
    g->out = root.prev;
    return DP_OK;
}
