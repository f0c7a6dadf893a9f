/* Makes a plan: which ops run in one kernel, who reads whose result and gradient, and where everything lies in memory.
 *
 * Time runs from 0: forward of link i is time i, the loss is time n, backward of link i is time 2 n - i. */
#include "arena.h"
#include "ops/ops.h"
#include "plan_internal.h"
#include <stdlib.h>
#include <string.h>

/* ---- chains ---- */

static const dp_node *only_consumer(const dp_graph *g, const dp_node *n)
{
    int self = (int)(n - g->node);
    if (n->consumers != 1 || self == g->out) return NULL;
    for (int i = self + 1; i < g->n_nodes; i++)
        for (int k = 0; k < g->node[i].n_in; k++)
            if (g->node[i].live && g->node[i].in[k] == self) return &g->node[i];
    return NULL;
}

/* Heads in node order, each followed as far as the backend fuses. A link runs where its last node stands: all inputs of the
 * followers stand before it, and nobody else reads what is inside. */
static void make_chains(dp_plan *p, char *taken)
{
    const dp_graph *g = p->graph;
    for (int i = 1; i < g->n_nodes; i++) {
        if (!g->node[i].live || taken[i]) continue;
        dp_plan_link k = {0};
        k.chain.graph = g;
        k.chain.node[0] = &g->node[i];
        k.chain.n = 1;
        taken[i] = 1;
        while (k.chain.n < DP_MAX_CHAIN) {
            const dp_node *next = only_consumer(g, k.chain.node[k.chain.n - 1]);
            if (!next || taken[next - g->node] || !next->op->pointwise || !p->backend->fuses(&k.chain, next)) break;
            k.chain.node[k.chain.n++] = next;
            taken[next - g->node] = 1;
        }
        int at = p->n_links++;
        const dp_node *last = k.chain.node[k.chain.n - 1];
        for (; at > 0; at--) {
            const dp_chain *before = &p->link[at - 1].chain;
            if (before->node[before->n - 1] < last) break;
            p->link[at] = p->link[at - 1];
        }
        p->link[at] = k;
    }
}

static int add_input(dp_plan_link *k, int value)
{
    if (k->n_in == DP_MAX_IN) return 0;
    k->in[k->n_in++] = value;
    return 1;
}

/* Values: 0 the input, 1 + i what link i writes. */
static dp_status connect(dp_plan *p, int *value_of, dp_error *err)
{
    const dp_graph *g = p->graph;
    for (int i = 0; i < g->n_nodes; i++) value_of[i] = -1;
    value_of[0] = 0;
    p->value[0].node = &g->node[0];
    for (int i = 0; i < p->n_links; i++) {
        dp_plan_link *k = &p->link[i];
        const dp_node *inside = NULL;
        k->out = 1 + i;
        k->saved_span = -1;
        for (int f = 0; f < k->chain.n; f++) {
            const dp_node *n = k->chain.node[f];
            for (int j = 0; j < n->n_in; j++) {
                if (inside && &g->node[n->in[j]] == inside) continue;
                if (!add_input(k, value_of[n->in[j]]))
                    return dp_fail(err, DP_ECONFIG, "Layer %s has more than %d inputs.", n->name, DP_MAX_IN);
            }
            inside = n;
        }
        value_of[inside - g->node] = k->out;
        p->value[k->out].node = inside;
    }
    p->n_values = 1 + p->n_links;
    p->output = value_of[g->out];
    return DP_OK;
}

/* Which gradients are wanted: those that lead to a parameter that trains. */
static void mark_wanted(dp_plan *p)
{
    for (int i = 0; i < p->n_links; i++) {
        dp_plan_link *k = &p->link[i];
        const dp_node *head = k->chain.node[0];
        int wanted = 0;
        for (int t = 0; t < head->n_tensors; t++) {
            int at = head->first_tensor + t;
            if (!p->graph->tensor[at].buffer && !p->params->param[at].frozen) wanted = 1;
        }
        for (int j = 0; j < k->n_in; j++) wanted |= p->value[k->in[j]].wanted;
        k->trains = wanted && p->train;
        p->value[k->out].wanted = k->trains;
    }
}

/* ---- memory ---- */

typedef struct spans {
    dp_span *span;
    int n;
} spans;

static int new_span(spans *a, size_t bytes, int first, int last)
{
    a->span[a->n] = (dp_span){.bytes = bytes, .first = first, .last = last};
    return a->n++;
}

static void use(spans *a, int span, int time)
{
    dp_span *s = &a->span[span];
    if (time < s->first) s->first = time;
    if (time > s->last) s->last = time;
}

static size_t value_bytes(const dp_plan *p, const dp_value *v)
{
    return (size_t)(p->capacity * v->node->width) * 4;
}

/* Outputs and what is saved for backward. A link may write over its first input when nobody reads that afterwards. */
static void plan_forward_memory(dp_plan *p, spans *a)
{
    int n = p->n_links;
    p->value[0].data_span = new_span(a, value_bytes(p, &p->value[0]), 0, 0);
    for (int i = 0; i < n; i++) {
        dp_plan_link *k = &p->link[i];
        dp_value *out = &p->value[k->out], *in = &p->value[k->in[0]];
        int in_place = k->need.in_place && k->in[0] != 0 && in->node->consumers == 1 && in->node->width == out->node->width;
        if (in_place && p->train) {
            const dp_plan_link *maker = &p->link[k->in[0] - 1];
            if ((maker->trains && maker->need.reads_out) || (k->trains && k->need.reads_in[0])) in_place = 0;
        }
        out->data_span = in_place ? in->data_span : new_span(a, value_bytes(p, out), i, i);
        use(a, out->data_span, i);
        for (int j = 0; j < k->n_in; j++) {
            use(a, p->value[k->in[j]].data_span, i);
            if (k->trains && k->need.reads_in[j]) use(a, p->value[k->in[j]].data_span, 2 * n - i);
        }
        if (k->trains && k->need.reads_out) use(a, out->data_span, 2 * n - i);
        if (k->need.saved) k->saved_span = new_span(a, k->need.saved, i, k->trains ? 2 * n - i : i);
    }
    use(a, p->value[p->output].data_span, n);
}

/* Gradients, in the order of backward. The first to arrive at a value makes its gradient; at most one input of a kernel takes
 * over the memory of d_out, since a later kernel may use what it is given as scratch. */
static void plan_backward_memory(dp_plan *p, spans *a)
{
    int n = p->n_links;
    dp_value *out = &p->value[p->output];
    if (!p->train) return;
    out->grad_span = new_span(a, value_bytes(p, out), n, n);
    for (int i = n - 1; i >= 0; i--) {
        dp_plan_link *k = &p->link[i];
        int time = 2 * n - i, d_out = p->value[k->out].grad_span, passed = 0;
        if (!k->trains) continue;
        use(a, d_out, time);
        for (int j = 0; j < k->n_in; j++) {
            dp_value *v = &p->value[k->in[j]];
            k->d_in_span[j] = -1;
            if (!v->wanted) continue;
            int pass = k->need.passes[j] && !passed && v->node->width == p->value[k->out].node->width;
            passed |= pass;
            k->adds[j] = v->grad_span >= 0;
            k->d_in_span[j] = pass ? d_out : new_span(a, value_bytes(p, v), time, time);
            if (!k->adds[j]) v->grad_span = k->d_in_span[j];
            use(a, v->grad_span, time);
        }
    }
}

static dp_status allocate(dp_plan *p, int mem_class, size_t bytes, const char *what, void **mem, dp_error *err)
{
    return bytes ? p->backend->alloc(p->device, mem_class, bytes, what, mem, err) : DP_OK;
}

static dp_status allocate_alone(dp_plan *p, const spans *a, dp_error *err)
{
    p->lone = dp_calloc((size_t)a->n + 1, sizeof *p->lone);
    if (!p->lone) return dp_fail(err, DP_ENOMEM, "Out of host memory while planning the network.");
    for (; p->n_lone < a->n; p->n_lone++) {
        dp_lone_span *l = &p->lone[p->n_lone];
        l->bytes = a->span[p->n_lone].bytes;
        l->last = a->span[p->n_lone].last;
        DP_TRY(allocate(p, DP_MEM_ACTIVATIONS, l->bytes, "an activation", &l->memory, err));
    }
    return DP_OK;
}

static void *memory_of(const dp_plan *p, const spans *a, int span)
{
    if (span < 0) return NULL;
    return p->lone ? p->lone[span].memory : (char *)p->arena + a->span[span].offset;
}

static dp_status place(dp_plan *p, dp_error *err)
{
    const char *arena = getenv("DP_ARENA");
    int most = 1 + p->n_links * (3 + DP_MAX_IN);
    dp_status status = DP_ENOMEM;
    spans a = {dp_calloc((size_t)most, sizeof *a.span), 0};
    int *order = dp_calloc((size_t)most, sizeof *order);
    size_t derived = 0, part = 0, align = p->backend->alignment;
    if (!a.span || !order) {
        dp_fail(err, DP_ENOMEM, "Out of host memory while planning the network.");
        goto done;
    }
    for (int i = 0; i < p->n_values; i++) p->value[i].grad_span = -1;
    plan_forward_memory(p, &a);
    plan_backward_memory(p, &a);
    p->arena_bytes = dp_arena_place(a.span, a.n, align, order);
    for (int i = 0; i < p->n_links; i++) {
        if (p->link[i].need.workspace > p->workspace_bytes) p->workspace_bytes = p->link[i].need.workspace;
        derived += (p->link[i].need.derived + align - 1) / align * align;
    }
    p->derived_bytes = derived;
    for (int i = 0; p->train && i < p->n_links; i++) {
        size_t bytes = (size_t)p->link[i].need.part * sizeof(float);
        if (bytes > part) part = bytes;
    }
    part = (part + align - 1) / align * align;
    p->parts_bytes = 3 * part;
    status = arena && !strcmp(arena, "split") ? allocate_alone(p, &a, err)
                                              : allocate(p, DP_MEM_ACTIVATIONS, p->arena_bytes, "activations", &p->arena, err);
    if (status) goto done;
    if ((status = allocate(p, DP_MEM_WORKSPACE, p->workspace_bytes, "workspace", &p->workspace, err))) goto done;
    if ((status = allocate(p, DP_MEM_WORKSPACE, p->derived_bytes, "derived weights", &p->derived, err))) goto done;
    if ((status = allocate(p, DP_MEM_WORKSPACE, p->parts_bytes, "statistics to exchange", &p->parts, err))) goto done;
    char *made = p->derived;
    for (int i = 0; i < p->n_values; i++) {
        p->value[i].data = memory_of(p, &a, p->value[i].data_span);
        p->value[i].grad = memory_of(p, &a, p->value[i].grad_span);
    }
    p->input = p->value[0].data;
    for (int i = 0; i < p->n_links; i++) {
        dp_plan_link *k = &p->link[i];
        k->saved = memory_of(p, &a, k->saved_span);
        for (int j = 0; j < k->n_in; j++) k->d_in[j] = k->trains ? memory_of(p, &a, k->d_in_span[j]) : NULL;
        if (k->need.derived) k->derived = made, made += (k->need.derived + align - 1) / align * align;
    }
    if (part) {
        char *at = p->parts;
        p->part[0] = (void *)at, p->part[1] = (void *)(at + part), p->whole = (void *)(at + 2 * part);
    }
done:
    free(a.span);
    free(order);
    return status;
}

static void sort_stops(dp_bucket_stop *stop, int n, int sign)
{
    for (int i = 1; i < n; i++) {
        dp_bucket_stop s = stop[i];
        int j = i;
        for (; j > 0 && sign * stop[j - 1].link > sign * s.link; j--) stop[j] = stop[j - 1];
        stop[j] = s;
    }
}

/* A bucket is complete when the last of its layers has run backward; one that nothing writes is complete at once. It is wanted when
 * the first of its layers runs forward; one that nothing reads, at the end. */
static void order_buckets(dp_plan *p)
{
    int n = p->params->n_buckets;
    for (int b = 0; b < n; b++) p->bucket[b] = p->reads[b] = (dp_bucket_stop){b, p->n_links};
    for (int i = 0; i < p->n_links; i++) {
        const dp_node *head = p->link[i].chain.node[0];
        for (int t = 0; t < head->n_tensors; t++) {
            int b = p->params->param[head->first_tensor + t].bucket;
            if (b < 0) continue;
            if (p->bucket[b].link > i && p->link[i].trains) p->bucket[b].link = i;
            if (p->reads[b].link > i) p->reads[b].link = i;
        }
    }
    sort_stops(p->bucket, n, -1);
    sort_stops(p->reads, n, 1);
}

dp_status dp_plan_open(dp_plan **out, const dp_backend *b, dp_be_device *d, const dp_graph *g, const dp_params *params,
                       int64_t capacity, int train, dp_error *err)
{
    dp_status status = DP_ENOMEM;
    dp_plan *p = dp_calloc(1, sizeof *p);
    char *taken = dp_calloc((size_t)g->n_nodes, 1);
    int *value_of = dp_calloc((size_t)g->n_nodes, sizeof *value_of);
    if (!p || !taken || !value_of) goto memory;
    p->backend = b, p->device = d, p->graph = g, p->params = params;
    p->capacity = capacity, p->train = train;
    p->link = dp_calloc((size_t)g->n_nodes, sizeof *p->link);
    p->value = dp_calloc((size_t)g->n_nodes + 1, sizeof *p->value);
    p->bucket = dp_calloc((size_t)params->n_buckets + 1, sizeof *p->bucket);
    p->reads = dp_calloc((size_t)params->n_buckets + 1, sizeof *p->reads);
    if (!p->link || !p->value || !p->bucket || !p->reads) goto memory;

    make_chains(p, taken);
    if ((status = connect(p, value_of, err))) goto fail;
    mark_wanted(p);
    for (int i = 0; i < p->n_links; i++) {
        dp_plan_link *k = &p->link[i];
        status = b->kernel_open(d, &k->chain, capacity, &k->need, &k->kernel, err);
        if (status) {
            dp_error_place(err, -1, -1, -1, NULL, -1, k->chain.node[0]->name);
            goto fail;
        }
    }
    if ((status = place(p, err))) goto fail;
    order_buckets(p);
    free(taken);
    free(value_of);
    *out = p;
    return DP_OK;
memory:
    dp_fail(err, DP_ENOMEM, "Out of host memory while planning the network.");
fail:
    free(taken);
    free(value_of);
    if (status == DP_EDEVICE_LOST)
        dp_plan_leave(p);
    else
        dp_plan_close(p);
    return status;
}

void dp_plan_leave(dp_plan *p)
{
    if (!p) return;
    free(p->link);
    free(p->value);
    free(p->bucket);
    free(p->reads);
    free(p->lone);
    free(p);
}

void dp_plan_close(dp_plan *p)
{
    if (!p) return;
    for (int i = 0; p->link && i < p->n_links; i++)
        if (p->link[i].kernel) p->backend->kernel_close(p->link[i].kernel);
    for (int i = 0; i < p->n_lone; i++) p->backend->free(p->device, DP_MEM_ACTIVATIONS, p->lone[i].memory, p->lone[i].bytes);
    if (p->arena) p->backend->free(p->device, DP_MEM_ACTIVATIONS, p->arena, p->arena_bytes);
    if (p->workspace) p->backend->free(p->device, DP_MEM_WORKSPACE, p->workspace, p->workspace_bytes);
    if (p->derived) p->backend->free(p->device, DP_MEM_WORKSPACE, p->derived, p->derived_bytes);
    if (p->parts) p->backend->free(p->device, DP_MEM_WORKSPACE, p->parts, p->parts_bytes);
    dp_plan_leave(p);
}

int dp_batchnorms(const dp_graph *g, const dp_params *p, dp_bn_layer *list)
{
    enum { MEAN = 2, VAR, TRACKED }; /* behind weight and bias, in PyTorch's order */
    int n = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        const dp_node *node = &g->node[i];
        if (node->op->kind != DP_OP_BATCHNORM2D || !node->live) continue;
        const dp_param *tensor = &p->param[node->first_tensor];
        int64_t channels = node->shape[node->rank - 1];
        list[n++] = (dp_bn_layer){.mean = tensor[MEAN].offset,
                                  .var = tensor[VAR].offset,
                                  .tracked = tensor[TRACKED].offset,
                                  .channels = channels,
                                  .pixels = node->width / channels,
                                  .momentum = node->opt[DP_NORM_MOMENTUM]};
    }
    return n;
}
