/* Lays parameters out in the order in which backward completes them, in buckets, and makes the table of ranges that step.
 *
 * Borders lie between nodes, for a node's gradients are complete at one moment. The last bucket is the shortest run of first
 * layers that reaches 1 MB: nothing is left to hide its reduce under, so it is kept small; the first is small because an early
 * reduce is worth more than a long one. Neither is larger than devices.bucket_mb. */
#include "params.h"
#include "../dp/base/memory.h"
#include "../dp/base/text.h"
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16 }; /* elements: 64 bytes */
static const double elements_per_mb = 1048576.0 / sizeof(float);

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Elements of a node's parameters (buffers left out), each tensor at an aligned offset. */
static int64_t node_elements(const dp_graph *g, int node)
{
    const dp_node *n = &g->node[node];
    int64_t sum = 0;
    for (int t = n->first_tensor; t < n->first_tensor + n->n_tensors; t++)
        if (!g->tensor[t].buffer) sum += round_up(g->tensor[t].count, ALIGN);
    return sum;
}

/* Every pattern of a list must name at least one parameter: a wrong one would be silent otherwise. */
static dp_status check_patterns(const dp_graph *g, const dp_config *c, const char *key, dp_error *err)
{
    const char *p = dp_config_text(c, key);
    char one[256], where[512];
    while (*p) {
        size_t n = strcspn(p, ",");
        int hits = 0;
        if (n >= sizeof one)
            return dp_fail(err, DP_ECONFIG, "%s: a pattern is longer than %d characters",
                           dp_config_where(c, key, where, sizeof where), (int)sizeof one - 1);
        memcpy(one, p, n);
        one[n] = 0;
        p += n + (p[n] == ',');
        for (int t = 0; t < g->n_tensors; t++) hits += !g->tensor[t].buffer && dp_match_list(one, g->tensor[t].name);
        if (!hits && one[strspn(one, " \t")])
            return dp_fail(err, DP_ECONFIG, "%s: the pattern \"%s\" matches no parameter; names are such as %s",
                           dp_config_where(c, key, where, sizeof where), one, g->n_tensors ? g->tensor[0].name : "fc1.weight");
    }
    return DP_OK;
}

static void close_bucket(dp_params *p, int64_t start, int64_t end, int last_node)
{
    dp_bucket *b = &p->bucket[p->n_buckets++];
    b->offset = start;
    b->count = round_up(end - start, (int64_t)DP_CHUNK * p->slices);
    b->last_node = last_node;
    p->count = start + b->count;
}

/* The first node (lowest index) of the bucket before the last one; nodes below it form the last bucket. */
static int last_bucket_below(const dp_graph *g, int64_t small)
{
    int64_t sum = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        sum += node_elements(g, i);
        if (sum >= small) return i + 1;
    }
    return g->n_nodes;
}

static void place_parameters(dp_params *p, const dp_graph *g, double bucket_mb)
{
    int64_t large = (int64_t)(bucket_mb * elements_per_mb), small = bucket_mb < 1 ? large : (int64_t)elements_per_mb;
    int below = last_bucket_below(g, small), lowest = -1; /* lowest: node that the open bucket ends with, -1 = empty */
    int64_t start = 0, at = 0;
    for (int i = g->n_nodes - 1; i >= 0; i--) {
        const dp_node *n = &g->node[i];
        int64_t limit = p->n_buckets ? large : small;
        if (!node_elements(g, i)) continue;
        if (lowest >= below && (at - start >= limit || i < below)) {
            close_bucket(p, start, at, lowest);
            start = at = p->count;
        }
        for (int t = n->first_tensor; t < n->first_tensor + n->n_tensors; t++) {
            if (g->tensor[t].buffer) continue;
            p->param[t].offset = at;
            p->param[t].bucket = p->n_buckets;
            at += round_up(g->tensor[t].count, ALIGN);
        }
        lowest = i;
    }
    if (lowest >= 0) close_bucket(p, start, at, lowest);
}

static int by_offset(const void *a, const void *b)
{
    const dp_range *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* One range a parameter that is not frozen, then neighbours of one rule are joined: the padding between them is zero in every
 * array and stays so. A frozen tensor between two ends the run. */
static void make_ranges(dp_params *p, const dp_graph *g)
{
    int n = 0, out = 0;
    dp_range *r = p->range;
    for (int t = 0; t < p->n_params; t++)
        if (!g->tensor[t].buffer)
            r[n++] = (dp_range){p->param[t].offset, round_up(p->param[t].count, ALIGN),
                                p->param[t].frozen ? -1 : p->param[t].decay};
    qsort(r, (size_t)n, sizeof *r, by_offset);
    for (int i = 0; i < n; i++) {
        if (out && r[out - 1].decay == r[i].decay)
            r[out - 1].count = r[i].offset + r[i].count - r[out - 1].offset;
        else
            r[out++] = r[i];
    }
    for (int i = n = 0; i < out; i++)
        if (r[i].decay >= 0) r[n++] = r[i];
    p->n_ranges = n;
}

dp_status dp_params_open(dp_params **out, const dp_graph *g, const dp_config *c, int slices, dp_error *err)
{
    const char *no_decay = dp_config_text(c, "optimizer.no_decay"), *freeze = dp_config_text(c, "optimizer.freeze");
    dp_params *p = NULL;
    int64_t total = 0;
    dp_status st;
    *out = NULL;
    if (!g->finished || slices < 1)
        return dp_fail(err, DP_EARGUMENT, "a parameter layout wants a finished graph and 1 slice or more, found %d", slices);
    if ((st = check_patterns(g, c, "optimizer.no_decay", err)) != DP_OK) goto fail;
    if ((st = check_patterns(g, c, "optimizer.freeze", err)) != DP_OK) goto fail;
    for (int i = 0; i < g->n_nodes; i++) {
        total += node_elements(g, i);
        if (total > (int64_t)1 << 40) {
            st = dp_fail(err, DP_ECONFIG, "the model has more than 2^40 parameters; make it smaller");
            goto fail;
        }
    }
    p = dp_calloc(1, sizeof *p);
    if (p) {
        p->param = dp_calloc((size_t)g->n_tensors, sizeof *p->param);
        p->range = dp_calloc((size_t)g->n_tensors, sizeof *p->range);
        p->bucket = dp_calloc((size_t)g->n_nodes, sizeof *p->bucket);
    }
    if (!p || !p->param || !p->range || !p->bucket) {
        st = dp_fail(err, DP_ENOMEM, "out of memory for the layout of %d tensors", g->n_tensors);
        goto fail;
    }
    p->n_params = g->n_tensors;
    p->slices = slices;
    for (int t = 0; t < g->n_tensors; t++) {
        dp_param *q = &p->param[t];
        const char *name = g->tensor[t].name;
        q->tensor = t;
        q->count = g->tensor[t].count;
        q->bucket = -1;
        if (g->tensor[t].buffer) {
            q->offset = p->buffer_count;
            p->buffer_count += round_up(q->count, ALIGN);
        } else {
            q->decay = !dp_match_list(no_decay, name);
            q->frozen = dp_match_list(freeze, name);
        }
    }
    place_parameters(p, g, dp_config_number(c, "devices.bucket_mb"));
    make_ranges(p, g);
    if (p->n_buckets && !p->n_ranges) {
        char where[512];
        st = dp_fail(err, DP_ECONFIG, "%s: every parameter is frozen, nothing would be trained",
                     dp_config_where(c, "optimizer.freeze", where, sizeof where));
        goto fail;
    }
    *out = p;
    return DP_OK;
fail:
    dp_params_free(p);
    return st;
}

void dp_params_free(dp_params *p)
{
    if (!p) return;
    free(p->param);
    free(p->bucket);
    free(p->range);
    free(p);
}
