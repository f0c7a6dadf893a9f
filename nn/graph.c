/* The graph as a list of nodes and tensors: making them, what finish derives from them (liveness, consumers, the order that
 * flatten leaves), and the walks over the result. */
#include "graph.h"
#include "../dp/base/memory.h"
#include "../dp/base/text.h"
#include "model.h"
#include "ops/ops.h"
#include <stdlib.h>
#include <string.h>

DP_API dp_graph *dp_graph_new_version(int header_version)
{
    dp_graph *g = dp_calloc(1, sizeof *g);
    struct dp_graph_builder *b = dp_calloc(1, sizeof *b);
    if (!g || !b) {
        free(g), free(b);
        return NULL;
    }
    g->builder = b;
    g->out = -1;
    if (header_version / 100 != DP_VERSION / 100)
        dp_fail(&b->err, DP_EVERSION,
                "the program was compiled with headers of version %d, the library is %d; compile it again", header_version,
                DP_VERSION);
    return g;
}

DP_API void dp_graph_free(dp_graph *g)
{
    if (!g) return;
    dp_builder_free(g->builder);
    free(g->node);
    free(g->tensor);
    free(g);
}

/* Room for one more of an array that grows by doubling (capacity = the power of two at or above n). */
static void *grow(void *array, int n, size_t size)
{
    if (n & (n - 1) || n < 0) return array;
    return realloc(array, (size_t)(n ? 2 * n : 1) * size);
}

dp_node *dp_graph_add_node(dp_graph *g, const char *name, const dp_op *op, dp_error *err)
{
    if (g->n_nodes == DP_MAX_NODES) {
        dp_fail(err, DP_ECONFIG, "the model has more than %d ops", DP_MAX_NODES);
        return NULL;
    }
    dp_node *all = grow(g->node, g->n_nodes, sizeof *all);
    if (!all) {
        dp_fail(err, DP_ENOMEM, "out of memory for node %d of the graph", g->n_nodes);
        return NULL;
    }
    g->node = all;
    dp_node *n = &all[g->n_nodes++];
    memset(n, 0, sizeof *n);
    dp_format(n->name, sizeof n->name, "%s", name);
    n->op = op;
    n->dtype = DP_F32;
    n->min_rows = 1;
    n->first_tensor = g->n_tensors;
    n->key = (uint32_t)dp_hash(n->name, strlen(n->name));
    return n;
}

dp_status dp_graph_add_tensor(dp_graph *g, dp_node *n, const char *suffix, int rank, const int64_t *shape, int buffer,
                              dp_init init, double fan_in, double fan_out, dp_error *err)
{
    dp_tensor *all = grow(g->tensor, g->n_tensors, sizeof *all);
    if (!all) return dp_fail(err, DP_ENOMEM, "out of memory for tensor %d of the graph", g->n_tensors);
    g->tensor = all;
    dp_tensor *t = &all[g->n_tensors];
    memset(t, 0, sizeof *t);
    int line = (int)strcspn(n->name, "|"); /* a follower's tensors carry the line's name */
    if (dp_format(t->name, sizeof t->name, "%.*s.%s", line, n->name, suffix) >= (int)sizeof t->name)
        return dp_fail(err, DP_ECONFIG, "the name %s.%s is longer than %d characters", n->name, suffix, DP_NAME - 1);
    t->rank = rank;
    if (rank) memcpy(t->shape, shape, (size_t)rank * sizeof *shape);
    t->count = dp_shape_count(rank, t->shape);
    if (t->count < 0) return dp_fail(err, DP_ECONFIG, "%s has more than 2^40 elements; make the layer smaller", t->name);
    t->node = (int)(n - g->node);
    t->buffer = buffer;
    t->init = init;
    t->fan_in = fan_in;
    t->fan_out = fan_out;
    g->n_tensors++;
    n->n_tensors++;
    return DP_OK;
}

int dp_graph_find_tensor(const dp_graph *g, const char *name)
{
    for (int i = 0; i < g->n_tensors; i++)
        if (!strcmp(g->tensor[i].name, name)) return i;
    return -1;
}

const char *dp_suggest(char *buf, size_t size, const char *text, const char *const *names, int n)
{
    int i = dp_nearest(text, names, n);
    buf[0] = 0;
    if (i >= 0) dp_format(buf, size, "; did you mean \"%s\"?", names[i]);
    return buf;
}

/* ---- what finish derives ---- */

static void mark_live(dp_graph *g)
{
    g->node[g->out].live = 1;
    for (int i = g->out; i >= 0; i--) {
        dp_node *n = &g->node[i];
        if (!n->live) continue;
        if (n->min_rows > g->min_rows) g->min_rows = n->min_rows;
        for (int k = 0; k < n->n_in; k++) {
            g->node[n->in[k]].live = 1;
            g->node[n->in[k]].consumers++;
        }
    }
    g->node[0].live = 1; /* the input is always fed */
}

/* Does only linear see what the flatten node f gives (through ops of one input that keep positions)? Then its columns may be
 * permuted in files instead of its input in memory. mark = 1: tell those linear layers. */
static int only_linear(dp_graph *g, int f, int mark)
{
    unsigned char flat[DP_MAX_NODES] = {0}; /* nodes whose output stands in the order of f */
    const dp_node *picture = dp_node_in(g, &g->node[f], 0);
    flat[f] = 1;
    if (f == g->out) return 0;
    for (int i = f + 1; i < g->n_nodes; i++) {
        const dp_node *n = &g->node[i];
        int reads = 0;
        for (int k = 0; k < n->n_in; k++) reads |= flat[n->in[k]];
        if (!reads || !n->live) continue;
        if (n->op->kind == DP_OP_LINEAR) {
            if (mark) memcpy(g->tensor[n->first_tensor].flat_hwc, picture->shape, sizeof g->tensor->flat_hwc);
        } else if (n->n_in == 1 && i != g->out && (n->op->pointwise || n->op->kind == DP_OP_FLATTEN)) {
            flat[i] = 1;
        } else {
            return 0;
        }
    }
    return 1;
}

static void settle_flatten(dp_graph *g)
{
    for (int i = 0; i < g->n_nodes; i++) {
        dp_node *n = &g->node[i];
        if (n->op->kind != DP_OP_FLATTEN || !n->live) continue;
        const dp_node *in = dp_node_in(g, n, 0);
        if (in->rank < 3 || in->shape[2] == 1 || in->shape[0] * in->shape[1] == 1) continue; /* both orders are the same */
        if (only_linear(g, i, 0))
            only_linear(g, i, 1);
        else
            n->to_file_order = 1;
    }
}

static int by_name(const void *a, const void *b)
{
    const dp_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Line names are unique, but "a" with attention and a line "a.out_proj" meet in a tensor's name. */
static dp_status unique_tensors(const dp_graph *g, dp_error *err)
{
    const dp_tensor **all = dp_calloc((size_t)g->n_tensors, sizeof *all);
    dp_status st = DP_OK;
    if (!all) return dp_fail(err, DP_ENOMEM, "out of memory for %d tensor names", g->n_tensors);
    for (int i = 0; i < g->n_tensors; i++) all[i] = &g->tensor[i];
    qsort(all, (size_t)g->n_tensors, sizeof *all, by_name);
    for (int i = 1; i < g->n_tensors && !st; i++)
        if (!strcmp(all[i - 1]->name, all[i]->name))
            st = dp_fail(err, DP_ECONFIG, "two layers (\"%s\", \"%s\") have a tensor named %s; rename one",
                         g->node[all[i - 1]->node].name, g->node[all[i]->node].name, all[i]->name);
    free(all);
    return st;
}

DP_API dp_status dp_graph_finish(dp_graph *g, dp_error *err)
{
    if (!g) return dp_fail(err, DP_EARGUMENT, "dp_graph_finish wants a graph, found NULL (dp_graph_new was out of memory)");
    struct dp_graph_builder *b = g->builder;
    if (!b) return DP_OK; /* finished before, and nothing was added */
    if (!b->err.code && dp_model_build(g, &b->err) == DP_OK) {
        g->min_rows = 1;
        mark_live(g);
        settle_flatten(g);
        unique_tensors(g, &b->err);
    }
    if (b->err.code) {
        if (!g->finished) g->n_nodes = g->n_tensors = 0;
        if (err) *err = b->err;
        return (dp_status)b->err.code;
    }
    g->finished = 1;
    g->builder = NULL;
    dp_builder_free(b);
    return DP_OK;
}

/* ---- public walks ---- */

static void file_shape(int64_t out[4], const dp_node *n)
{
    if (n->rank == 3)
        out[0] = n->shape[2], out[1] = n->shape[0], out[2] = n->shape[1];
    else
        memcpy(out, n->shape, (size_t)n->rank * sizeof *out);
}

DP_API int dp_graph_layer(const dp_graph *g, int i, dp_layer_info *info)
{
    if (!g || !g->finished || i < 0 || i >= g->n_nodes) return 0;
    const dp_node *n = &g->node[i];
    double flops, bytes;
    memset(info, 0, sizeof *info);
    info->name = n->name;
    info->op = n->op->name;
    info->rank = n->rank;
    file_shape(info->shape, n);
    for (int k = 0; k < n->n_tensors; k++)
        if (!g->tensor[n->first_tensor + k].buffer) info->parameters += g->tensor[n->first_tensor + k].count;
    dp_node_cost(g, n, &flops, &bytes);
    info->flops = flops < 9e18 ? (int64_t)flops : INT64_MAX;
    return 1;
}

DP_API int dp_graph_tensor(const dp_graph *g, int i, dp_tensor_info *info)
{
    if (!g || !g->finished || i < 0 || i >= g->n_tensors) return 0;
    const dp_tensor *t = &g->tensor[i];
    memset(info, 0, sizeof *info);
    info->name = t->name;
    info->rank = t->rank;
    memcpy(info->shape, t->shape, sizeof t->shape);
    info->count = t->count;
    info->is_buffer = t->buffer != 0;
    return 1;
}
