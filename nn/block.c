/* Blocks: `[block NAME a b=1]` is a stack of lines that [model] or another block uses as `layer1.{0..2} = @NAME a=16`. $a is
 * replaced as text before a line is read, so an argument can be anything an option can be. */
#include "model.h"
#include "../dp/base/text.h"
#include <ctype.h>
#include <string.h>

static size_t name_length(const char *p)
{
    size_t n = 0;
    while (isalnum((unsigned char)p[n]) || p[n] == '_') n++;
    return n;
}

static const struct dp_arg *find_arg(const dp_scope *s, const char *name, size_t n)
{
    for (int i = 0; i < s->n_args; i++)
        if (strlen(s->arg[i].name) == n && !strncmp(s->arg[i].name, name, n)) return &s->arg[i];
    return NULL;
}

dp_status dp_scope_replace(const dp_scope *s, const char *text, char *out, size_t size, dp_error *err)
{
    size_t n = 0;
    while (*text) {
        const char *piece = text;
        size_t len = strcspn(text, "$"), skip = len;
        if (!len) {
            size_t k = name_length(text + 1);
            const struct dp_arg *a = find_arg(s, text + 1, k);
            if (!a)
                return dp_fail(err, DP_ECONFIG, "$%.*s: %s%s has no such argument; its header names them: [block NAME a b=1]",
                               (int)(k < 40 ? k : 40), text + 1, s->block ? "block " : "[model]", s->block ? s->block : "");
            piece = a->value, len = strlen(piece), skip = k + 1;
        }
        if (n + len >= size) return dp_fail(err, DP_ECONFIG, "the text is longer than %d characters", (int)size - 1);
        memcpy(out + n, piece, len);
        n += len;
        text += skip;
    }
    out[n] = 0;
    return DP_OK;
}

dp_status dp_repeat_parse(const char *name, dp_repeat *r, dp_error *err)
{
    const char *open = strchr(name, '{'), *dots = open ? strstr(open, "..") : NULL, *close = open ? strchr(open, '}') : NULL;
    char first[24], last[24];
    memset(r, 0, sizeof *r);
    dp_format(r->before, sizeof r->before, "%s", name);
    if (!open && !strchr(name, '}')) return DP_OK;
    if (!open || !dots || !close || close < dots + 2 || strchr(close + 1, '{') || dots - open >= (int)sizeof first ||
        close - dots > (int)sizeof last)
        goto bad;
    r->before[open - name] = 0;
    dp_format(r->after, sizeof r->after, "%s", close + 1);
    dp_format(first, sizeof first, "%.*s", (int)(dots - open - 1), open + 1);
    dp_format(last, sizeof last, "%.*s", (int)(close - dots - 2), dots + 2);
    if (dp_parse_int(first, &r->first) != 1 || dp_parse_int(last, &r->last) != 1 || r->first < 0 || r->last < r->first)
        goto bad;
    if (r->last >= DP_MAX_NODES) return dp_fail(err, DP_ECONFIG, "a repeat ends at %d or before", DP_MAX_NODES - 1);
    r->many = 1;
    return DP_OK;
bad:
    return dp_fail(err, DP_ECONFIG, "wanted one repeat {FIRST..LAST} in the name, for example layer1.{0..2}");
}

static struct dp_arg *add_arg(dp_scope *s, const char *name, const char *value, dp_error *err)
{
    struct dp_arg *a = &s->arg[s->n_args];
    if (s->n_args == DP_MAX_ARGS || strlen(name) >= sizeof a->name || strlen(value) >= sizeof a->value) {
        dp_fail(err, DP_ECONFIG, "a block has at most %d arguments, names of %d and values of %d characters", DP_MAX_ARGS,
                (int)sizeof a->name - 1, (int)sizeof a->value - 1);
        return NULL;
    }
    s->n_args++;
    dp_format(a->name, sizeof a->name, "%s", name);
    dp_format(a->value, sizeof a->value, "%s", value);
    return a;
}

/* The header's "a b=1": arguments without a default get an empty value. */
static dp_status declare_args(dp_scope *s, const char *header, dp_error *err)
{
    char word[128];
    int n;
    while ((n = dp_word(&header, word, sizeof word)) != 0) {
        char *value = NULL;
        size_t len = name_length(word);
        int plain = n > 0 && len && !word[len];
        if (!plain && (n < 0 || word[len] != '=' || !dp_key_value(word, &value)))
            return dp_fail(err, DP_ECONFIG, "the header of block %s: wanted [block NAME a b=1], found an argument \"%.40s\"",
                           s->block, word);
        if (find_arg(s, word, len)) return dp_fail(err, DP_ECONFIG, "the header of block %s names %s twice", s->block, word);
        if (!add_arg(s, word, plain ? "" : value, err)) return DP_ECONFIG;
    }
    return DP_OK;
}

/* The use's "a=16 from=x" over the declared arguments. */
static dp_status pass_args(const dp_graph *g, const dp_scope *outer, dp_scope *s, const char *text, dp_error *err)
{
    const char *names[DP_MAX_ARGS];
    unsigned given = 0;
    char word[128], hint[80], *value;
    int n, from = 0;
    for (int i = 0; i < s->n_args; i++) names[i] = s->arg[i].name;
    while ((n = dp_word(&text, word, sizeof word)) != 0) {
        if (n < 0 || !dp_key_value(word, &value))
            return dp_fail(err, DP_ECONFIG,
                           "the use of a block is `NAME = @%s a=1 ...` and stands alone in its line, found \"%.40s\"", s->block,
                           n < 0 ? "a very long word" : word);
        if (!strcmp(word, "from")) {
            if (from++) return dp_fail(err, DP_ECONFIG, "from is given twice");
            DP_TRY(dp_scope_find(g, outer, value, &s->in, err));
            continue;
        }
        const struct dp_arg *a = find_arg(s, word, strlen(word));
        if (!a)
            return dp_fail(err, DP_ECONFIG, "block %s has no argument \"%s\"%s", s->block, word,
                           dp_suggest(hint, sizeof hint, word, names, s->n_args));
        unsigned bit = 1u << (a - s->arg);
        if (given & bit) return dp_fail(err, DP_ECONFIG, "%s is given twice", word);
        given |= bit;
        if (strlen(value) >= sizeof a->value) return dp_fail(err, DP_ECONFIG, "the value of %s is too long", word);
        dp_format(s->arg[a - s->arg].value, sizeof a->value, "%s", value);
    }
    for (int i = 0; i < s->n_args; i++)
        if (!s->arg[i].value[0]) return dp_fail(err, DP_ECONFIG, "block %s needs %s=", s->block, s->arg[i].name);
    return DP_OK;
}

static dp_status find_block(const struct dp_graph_builder *b, const char *name, const dp_line **first, dp_error *err)
{
    const char *known[64];
    char quoted[80], hint[DP_NAME + 32];
    int n = 0;
    for (int i = 0; i < b->n_lines; i++) {
        const char *block = b->line[i].block;
        if (!block) continue;
        if (!strcmp(block, name)) {
            *first = &b->line[i];
            return DP_OK;
        }
        if (n < 64) known[n++] = block;
    }
    return dp_fail(err, DP_ECONFIG, "there is no section [block %s] with lines in it%s", dp_quote(quoted, sizeof quoted, name),
                   dp_suggest(hint, sizeof hint, name, known, n));
}

dp_status dp_build_block(dp_graph *g, const dp_scope *outer, const char *spec, int *end, dp_error *err)
{
    const struct dp_graph_builder *b = g->builder;
    dp_scope s = {.outer = outer, .in = outer->prev, .depth = outer->depth + 1};
    const dp_line *first = NULL;
    char name[64];
    spec += strspn(spec, " \t") + 1;
    if (dp_word(&spec, name, sizeof name) <= 0) return dp_fail(err, DP_ECONFIG, "wanted the name of a block after @");
    DP_TRY(find_block(b, name, &first, err));
    s.block = first->block;
    if (s.depth > DP_MAX_DEPTH)
        return dp_fail(err, DP_ECONFIG, "block %s is used inside itself, or blocks are nested more than %d deep", name,
                       DP_MAX_DEPTH);
    DP_TRY(declare_args(&s, first->args ? first->args : "", err));
    DP_TRY(pass_args(g, outer, &s, spec, err));
    if (dp_format(s.prefix, sizeof s.prefix, "%s.", outer->name) >= (int)sizeof s.prefix)
        return dp_fail(err, DP_ECONFIG, "the full name %s is too long", outer->name);
    s.prev = s.in;
    for (int i = 0; i < b->n_lines; i++)
        if (b->line[i].block && !strcmp(b->line[i].block, s.block)) DP_TRY(dp_build_line(g, &s, &b->line[i], err));
    *end = s.prev;
    return DP_OK;
}
