/* The nodes of one line: `op key=value ... | op ...`, and the input line. */
#include "model.h"
#include "../dp/base/text.h"
#include "ops/ops.h"
#include <ctype.h>
#include <string.h>

int dp_word(const char **text, char *buf, size_t size)
{
    static const char blank[] = " \t\r\n";
    const char *p = *text + strspn(*text, blank);
    size_t n = strcspn(p, blank);
    *text = p + n;
    if (n >= size) return -1;
    memcpy(buf, p, n);
    buf[n] = 0;
    return (int)n;
}

int dp_key_value(char *word, char **value)
{
    char *eq = strchr(word, '=');
    if (!eq || eq == word || !eq[1]) return 0;
    *eq = 0;
    *value = eq + 1;
    return 1;
}

dp_status dp_build_input(dp_graph *g, const char *spec, int *end, dp_error *err)
{
    const char *p = spec, *want = "wanted C x H x W (1x28x28), T x C, a number of features (784) or `tokens T`";
    char word[128], quoted[160], *part, *rest = NULL;
    int64_t dim[DP_MAX_RANK] = {0}, shape[DP_MAX_RANK];
    int rank = 0, tokens, n = dp_word(&p, word, sizeof word);
    if (g->n_nodes) return dp_fail(err, DP_ECONFIG, "`input` occurs once, as the first line");
    dp_node *node = dp_graph_add_node(g, "input", &dp_op_input, err);
    if (!node) return (dp_status)err->code;
    tokens = n > 0 && !strcmp(word, "tokens");
    if (tokens) n = dp_word(&p, word, sizeof word);
    if (n <= 0 || word[n - 1] == 'x' || word[0] == 'x' || strstr(word, "xx")) goto bad;
    for (part = strtok_r(word, "x", &rest); part; part = strtok_r(NULL, "x", &rest)) {
        if (rank == DP_MAX_RANK || dp_parse_int(part, &dim[rank]) != 1 || dim[rank] < 1) goto bad;
        rank++;
    }
    if ((tokens && rank != 1) || dp_word(&p, word, sizeof word) != 0) goto bad;
    if (tokens) node->dtype = DP_I32;
    memcpy(shape, dim, sizeof shape);
    if (rank == 3) shape[0] = dim[1], shape[1] = dim[2], shape[2] = dim[0];
    *end = 0;
    return dp_node_set_shape(node, rank, shape, err);
bad:
    return dp_fail(err, DP_ECONFIG, "%s, found %s", want, dp_quote(quoted, sizeof quoted, spec));
}

dp_status dp_scope_find(const dp_graph *g, const dp_scope *s, const char *name, int *node, dp_error *err)
{
    const struct dp_graph_builder *b = g->builder;
    size_t skip = strlen(s->prefix);
    const char *known[64];
    char full[2 * DP_NAME], quoted[160], hint[DP_NAME + 32];
    int n = 0;
    if (s->block && !strcmp(name, "in")) {
        *node = s->in;
        return DP_OK;
    }
    dp_format(full, sizeof full, "%s%s", s->prefix, name);
    for (int i = b->n_ends - 1; i >= 0; i--) {
        if (!strcmp(b->end[i].name, full)) {
            *node = b->end[i].node;
            return DP_OK;
        }
        if (n < DP_COUNT_OF(known) && !strncmp(b->end[i].name, s->prefix, skip)) known[n++] = b->end[i].name + skip;
    }
    return dp_fail(err, DP_ECONFIG, "from=%s: no line of that name stands before this one%s%s",
                   dp_quote(quoted, sizeof quoted, name), s->block ? " in the block (`in` is the block's input)" : "",
                   dp_suggest(hint, sizeof hint, name, known, n));
}

/* from=A,B: the inputs of a line's first op. */
static dp_status set_inputs(dp_graph *g, const dp_scope *s, dp_node *n, char *list, dp_error *err)
{
    size_t len = strlen(list);
    char *part, *rest = NULL;
    if (list[0] == ',' || list[len - 1] == ',' || strstr(list, ",,"))
        return dp_fail(err, DP_ECONFIG, "from=%s: wanted names separated by single commas, without blanks", list);
    for (part = strtok_r(list, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
        if (n->n_in == DP_MAX_IN) return dp_fail(err, DP_ECONFIG, "from= has more than %d names; use several lines", DP_MAX_IN);
        DP_TRY(dp_scope_find(g, s, part, &n->in[n->n_in], err));
        n->n_in++;
    }
    return DP_OK;
}

static dp_status choice(const dp_option *o, const char *value, double *out, dp_error *err)
{
    size_t n = strlen(value);
    int i = 0;
    for (const char *w = o->words; w; i++) {
        size_t len = strcspn(w, "|");
        if (len == n && !strncmp(w, value, n)) {
            *out = i;
            return DP_OK;
        }
        w = w[len] ? w + len + 1 : NULL;
    }
    return dp_fail(err, DP_ECONFIG, "%s must be %s, found \"%s\"", o->key, o->words, value);
}

static dp_status symbol(const dp_graph *g, const char *key, const char *value, double *out, dp_error *err)
{
    const struct dp_graph_builder *b = g->builder;
    const char *names[DP_MAX_SYMBOLS];
    char hint[80];
    for (int i = 0; i < b->n_symbols; i++) {
        names[i] = b->symbol[i].name;
        if (strcmp(names[i], value)) continue;
        *out = (double)b->symbol[i].value;
        return DP_OK;
    }
    if (!strcmp(value, "classes") || !strcmp(value, "vocab"))
        return dp_fail(err, DP_ECONFIG,
                       "%s=%s: `%s` comes from the data, and none that has it was opened; write a number instead", key, value,
                       value);
    return dp_fail(err, DP_ECONFIG, "%s=%s: there is no value of that name%s", key, value,
                   dp_suggest(hint, sizeof hint, value, names, b->n_symbols));
}

static dp_status set_option(const dp_graph *g, dp_node *n, unsigned *given, const char *key, const char *value, dp_error *err)
{
    const dp_option *o = n->op->options;
    const char *names[DP_MAX_OPTIONS];
    char quoted[80], hint[80], list[200];
    int i = 0, k = 0, ok = 1;
    int64_t whole;
    while (i < n->op->n_options && strcmp(o[i].key, key)) {
        names[i] = o[i].key;
        i++;
    }
    if (i == n->op->n_options) {
        list[0] = 0;
        for (int j = 0; j < i; j++) k += dp_format(list + k, sizeof list - (size_t)k, "%s%s", j ? ", " : "", names[j]);
        return dp_fail(err, DP_ECONFIG, "%s has no option %s%s (it has %s)", n->op->name, dp_quote(quoted, sizeof quoted, key),
                       dp_suggest(hint, sizeof hint, key, names, i), i ? list : "none");
    }
    if (*given & 1u << i) return dp_fail(err, DP_ECONFIG, "%s is given twice", key);
    *given |= 1u << i;
    if (o[i].words) return choice(&o[i], value, &n->opt[i], err);
    if (isalpha((unsigned char)value[0]) || value[0] == '_') {
        DP_TRY(symbol(g, key, value, &n->opt[i], err));
    } else if (o[i].whole) {
        ok = dp_parse_int(value, &whole) == 1;
        n->opt[i] = ok ? (double)whole : 0;
    } else {
        ok = dp_parse_double(value, &n->opt[i]) == 1;
    }
    if (!ok || n->opt[i] < o[i].min || n->opt[i] > o[i].max)
        return dp_fail(err, DP_ECONFIG, "%s must be a %s%s %.15g..%.15g, found %s", key, o[i].whole ? "whole " : "", "number",
                       o[i].min, o[i].max, dp_quote(quoted, sizeof quoted, value));
    return DP_OK;
}

static dp_status default_options(dp_node *n, unsigned given, dp_error *err)
{
    for (int i = 0; i < n->op->n_options; i++) {
        const dp_option *o = &n->op->options[i];
        if (given & 1u << i) continue;
        if (isnan(o->def)) return dp_fail(err, DP_ECONFIG, "%s needs %s= (%s)", n->op->name, o->key, o->help);
        n->opt[i] = o->def;
    }
    return DP_OK;
}

static dp_status find_op(const char *name, const dp_op **op, dp_error *err)
{
    const char *names[DP_OP_KINDS];
    char quoted[80], hint[80];
    int n = 0;
    *op = dp_op_find(name);
    if (*op) return DP_OK;
    while (dp_op_at(n)) names[n] = dp_op_at(n)->name, n++;
    return dp_fail(err, DP_ECONFIG, "there is no op %s%s", dp_quote(quoted, sizeof quoted, name),
                   dp_suggest(hint, sizeof hint, name, names, n));
}

/* "NAME" for the first op of a line, then "NAME|op", "NAME|op2", ...: keys of random draws hang on it. */
static dp_status node_name(const dp_graph *g, const dp_scope *s, int first, const char *op, char *name, dp_error *err)
{
    int k = 1, used = 1, n = dp_format(name, DP_NAME, "%s", s->name);
    if (g->n_nodes == first) return DP_OK;
    for (; used && n < DP_NAME; k++) {
        n = k == 1 ? dp_format(name, DP_NAME, "%s|%s", s->name, op) : dp_format(name, DP_NAME, "%s|%s%d", s->name, op, k);
        used = 0;
        for (int i = first; i < g->n_nodes; i++) used |= !strcmp(g->node[i].name, name);
    }
    return n < DP_NAME ? DP_OK : dp_fail(err, DP_ECONFIG, "the name %s... is longer than %d characters", name, DP_NAME - 1);
}

/* One op of a line; first = index of the line's first node. */
static dp_status build_op(dp_graph *g, const dp_scope *s, int first, const char *spec, dp_error *err)
{
    char word[2 * DP_NAME], name[DP_NAME], quoted[80], *value;
    const dp_op *op;
    unsigned given = 0;
    int k;
    if (dp_word(&spec, word, sizeof word) <= 0)
        return dp_fail(err, DP_ECONFIG, "wanted an op such as `linear out=10`, found nothing");
    DP_TRY(find_op(word, &op, err));
    DP_TRY(node_name(g, s, first, op->name, name, err));
    dp_node *n = dp_graph_add_node(g, name, op, err);
    if (!n) return (dp_status)err->code;
    while ((k = dp_word(&spec, word, sizeof word)) != 0) {
        if (k < 0 || !dp_key_value(word, &value))
            return dp_fail(err, DP_ECONFIG, "wanted key=value without blanks after %s, found %s", op->name,
                           dp_quote(quoted, sizeof quoted, k < 0 ? "a very long word" : word));
        if (strcmp(word, "from")) {
            DP_TRY(set_option(g, n, &given, word, value, err));
        } else {
            if (g->n_nodes - 1 != first)
                return dp_fail(err, DP_ECONFIG, "from= belongs to the first op of a line; give %s a line of its own", op->name);
            if (n->n_in) return dp_fail(err, DP_ECONFIG, "from is given twice");
            DP_TRY(set_inputs(g, s, n, value, err));
        }
    }
    DP_TRY(default_options(n, given, err));
    if (!n->n_in) {
        n->in[0] = g->n_nodes - 1 == first ? s->prev : g->n_nodes - 2;
        n->n_in = 1;
    }
    if (op->n_in == 1 && n->n_in > 1)
        return dp_fail(err, DP_ECONFIG, "%s has one input, but from= names %d; only add and concat join", op->name, n->n_in);
    if (op->n_in == 2 && n->n_in < 2)
        return dp_fail(err, DP_ECONFIG, "%s needs from=A,B with two names or more, as the first op of its line", op->name);
    for (int i = 0; i < n->n_in; i++)
        if (dp_node_in(g, n, i)->dtype != DP_F32 && op->kind != DP_OP_EMBEDDING)
            return dp_fail(err, DP_ECONFIG, "%s wants numbers, but \"%s\" gives tokens; put an embedding before it", op->name,
                           dp_node_in(g, n, i)->name);
    return op->infer(g, n, err);
}

dp_status dp_build_ops(dp_graph *g, const dp_scope *s, const char *spec, int *end, dp_error *err)
{
    char text[DP_MAX_TEXT], *part, *next;
    const dp_op *owner = NULL;
    int first = g->n_nodes;
    dp_format(text, sizeof text, "%s", spec);
    for (part = text; part; part = next) {
        next = strchr(part, '|');
        if (next) *next++ = 0;
        DP_TRY(build_op(g, s, first, part, err));
        const dp_node *n = &g->node[g->n_nodes - 1];
        if (!n->n_tensors) continue;
        if (owner)
            return dp_fail(err, DP_ECONFIG,
                           "%s and %s both have parameters, which take the line's name; give each a line of its own",
                           owner->name, n->op->name);
        owner = n->op;
    }
    *end = g->n_nodes - 1;
    return DP_OK;
}
