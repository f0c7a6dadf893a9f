/* Runs a plan: the walk over its kernels, forward and backward. What is decided once stands in plan_open.c. */
#include "plan_internal.h"

static dp_status failed(const dp_plan_link *k, dp_status status, const char *pass, dp_error *err)
{
    const char *layer = k ? k->chain.node[0]->name : "input";
    dp_fail(err, status, "The %s pass failed in layer %s (%s).", pass, layer, dp_status_name(status));
    dp_error_place(err, -1, -1, -1, NULL, -1, layer);
    return status;
}

static void set_layer(const dp_plan *p, const char *name)
{
    if (p->enter) p->enter(p->watcher, name);
}

void dp_plan_watch(dp_plan *p, void (*enter)(void *user, const char *layer), void *user)
{
    p->enter = enter;
    p->watcher = user;
}

float *dp_plan_output(const dp_plan *p)
{
    return p->value[p->output].data;
}

float *dp_plan_output_grad(const dp_plan *p)
{
    return p->value[p->output].grad;
}

size_t dp_plan_part_bytes(const dp_plan *p)
{
    return p->parts_bytes / 3;
}

int dp_plan_exchanges(const dp_plan *p)
{
    int n = 0;
    for (int i = 0; p->whole && i < p->n_links; i++)
        if (p->link[i].need.part) n += 1 + p->link[i].trains;
    return n;
}

int dp_plan_completed(const dp_plan *p, int i)
{
    return p->bucket[i].bucket;
}

const float *dp_plan_part(const dp_plan *p, uint64_t n)
{
    return p->part[n % 2];
}

float *dp_plan_whole(const dp_plan *p)
{
    return p->whole;
}

/* The tensors of the chain's head in the replica's arrays. */
static void bind_tensors(const dp_plan *p, const dp_plan_link *k, const dp_pass *pass, int with_grad, dp_io *io)
{
    const dp_node *head = k->chain.node[0];
    for (int t = 0; t < head->n_tensors; t++) {
        const dp_param *a = &p->params->param[head->first_tensor + t];
        if (p->graph->tensor[head->first_tensor + t].buffer) {
            io->param[t] = pass->buffer + a->offset;
            io->stats[t] = pass->stats ? pass->stats + a->offset : NULL;
        } else {
            io->param[t] = pass->param + a->offset;
            io->grad[t] = with_grad && !a->frozen ? pass->grad + a->offset : NULL;
        }
    }
}

static void bind_memory(const dp_plan *p, const dp_plan_link *k, dp_io *io)
{
    for (int i = 0; i < k->n_in; i++) io->in[i] = p->value[k->in[i]].data;
    io->out = p->value[k->out].data;
    io->saved = k->saved;
    io->derived = k->derived;
    io->workspace = p->workspace;
}

dp_status dp_plan_prepare(dp_plan *p, int64_t rows, dp_error *err)
{
    if (rows < 1 || rows > p->capacity)
        return dp_fail(err, DP_EARGUMENT, "A plan for %lld rows was asked for %lld.", (long long)p->capacity, (long long)rows);
    for (int i = 0; i < p->n_prepared; i++)
        if (p->prepared[i] == rows) return DP_OK;
    for (int i = 0; i < p->n_links; i++) DP_TRY(p->backend->kernel_prepare(p->link[i].kernel, rows, err));
    /* A full list only costs the look-ups above: kernels know their own row counts. */
    if (p->n_prepared < DP_PLAN_PREPARED) p->prepared[p->n_prepared++] = rows;
    return DP_OK;
}

/* Rows that are what the first layer reads stay where they were uploaded; others are converted. */
static dp_status take_input(dp_plan *p, dp_be_stream *s, const dp_pass *pass)
{
    const dp_node *in = &p->graph->node[0];
    int64_t shape[3] = {1, 1, 1};
    for (int i = 0; i < in->rank; i++) shape[3 - in->rank + i] = in->shape[i];
    int in_order = pass->x_layout == DP_HWC || shape[2] == 1 || shape[0] * shape[1] == 1;
    if (pass->x_type == in->dtype && in_order && !pass->mean) {
        p->value[0].data = (float *)(uintptr_t)pass->x;
        return DP_OK;
    }
    p->value[0].data = p->input;
    return p->backend->convert(s, &pass->run, p->input, in->dtype, pass->x, pass->x_type, pass->x_layout, shape, pass->mean,
                               pass->inv_std);
}

/* What is used for the last time at `time` is gone. */
static dp_status poison(const dp_plan *p, dp_be_stream *s, int time)
{
    for (int i = 0; i < p->n_lone; i++)
        if (p->lone[i].last == time && p->lone[i].bytes) DP_TRY(p->backend->fill(s, p->lone[i].memory, 0xff, p->lone[i].bytes));
    return DP_OK;
}

/* bn_stats = sync: the link's kernel wants the statistics of all leaves. Its own part is given in a stop of its own. */
static int wants_part(const dp_plan *p, const dp_plan_link *k, const dp_pass *pass)
{
    return pass->sync && p->whole && k->need.part;
}

static dp_status give_part(dp_plan *p, const dp_plan_link *k, dp_be_stream *s, const dp_pass *pass, dp_io *io, int backward,
                           dp_stop *stop, int *which)
{
    const dp_node *head = k->chain.node[0];
    p->exchanges++;
    p->given = 1;
    io->part = p->part[(pass->part + p->exchanges) % 2];
    *stop = DP_STOP_PART;
    *which = (int)head->shape[head->rank - 1];
    return p->backend->partial(k->kernel, s, &pass->run, pass->run_device, io, backward);
}

/* One kernel forward, or its part alone. */
static dp_status forward_link(dp_plan *p, const dp_plan_link *k, dp_be_stream *s, const dp_pass *pass, dp_stop *stop,
                              int *which)
{
    dp_io io = {0};
    bind_memory(p, k, &io);
    bind_tensors(p, k, pass, 0, &io);
    if (wants_part(p, k, pass)) {
        if (!p->given) return give_part(p, k, s, pass, &io, 0, stop, which);
        io.whole = p->whole;
        p->given = 0;
    }
    p->next++;
    DP_TRY(p->backend->forward(k->kernel, s, &pass->run, pass->run_device, &io));
    return poison(p, s, (int)(k - p->link));
}

static dp_status begin_forward(dp_plan *p, dp_be_stream *s, const dp_pass *pass, dp_error *err)
{
    DP_TRY(dp_plan_prepare(p, pass->run.rows, err));
    p->walks = 1;
    p->next = p->next_bucket = p->given = 0;
    p->exchanges = 0;
    set_layer(p, p->graph->node[0].name);
    dp_status status = take_input(p, s, pass);
    return status ? failed(NULL, status, "forward", err) : DP_OK;
}

static dp_status end_forward(dp_plan *p, dp_stop *stop, int *which)
{
    p->walks = 0;
    p->next = p->n_links - 1;
    p->next_bucket = 0;
    p->exchanges = 0;
    *stop = DP_STOP_END;
    *which = -1;
    return DP_OK;
}

dp_status dp_plan_forward(dp_plan *p, dp_be_stream *s, const dp_pass *pass, dp_stop *stop, int *which, dp_error *err)
{
    *stop = DP_STOP_END;
    if (!p->walks) DP_TRY(begin_forward(p, s, pass, err));
    for (;;) {
        if (pass->by_bucket && p->next_bucket < p->params->n_buckets && p->reads[p->next_bucket].link <= p->next) {
            *stop = DP_STOP_BUCKET;
            *which = p->reads[p->next_bucket++].bucket;
            return DP_OK;
        }
        if (p->next == p->n_links) return end_forward(p, stop, which);
        const dp_plan_link *k = &p->link[p->next];
        set_layer(p, k->chain.node[0]->name);
        dp_status status = forward_link(p, k, s, pass, stop, which);
        if (status) {
            p->walks = 0; /* the next call begins a leaf */
            return failed(k, status, "forward", err);
        }
        if (*stop == DP_STOP_PART) return DP_OK;
    }
}

/* One kernel backward, or its part alone. The first gradient that arrives at a value is written there, later ones beside it and then
 * added. */
static dp_status backward_link(dp_plan *p, const dp_plan_link *k, dp_be_stream *s, const dp_pass *pass, dp_stop *stop,
                               int *which)
{
    dp_io io = {0};
    bind_memory(p, k, &io);
    bind_tensors(p, k, pass, 1, &io);
    io.d_out = p->value[k->out].grad;
    for (int i = 0; i < k->n_in; i++) io.d_in[i] = k->d_in[i];
    if (wants_part(p, k, pass)) {
        if (!p->given) return give_part(p, k, s, pass, &io, 1, stop, which);
        io.whole = p->whole;
        p->given = 0;
    }
    p->next--;
    DP_TRY(p->backend->backward(k->kernel, s, &pass->run, pass->run_device, &io));
    for (int i = 0; i < k->n_in; i++) {
        const dp_value *v = &p->value[k->in[i]];
        if (!k->d_in[i] || !k->adds[i]) continue;
        const float *pair[2] = {v->grad, k->d_in[i]};
        int64_t count = (pass->run.rows * v->node->width + 15) / 16 * 16;
        DP_TRY(p->backend->sum(s, v->grad, pair, 2, count));
    }
    return poison(p, s, 2 * p->n_links - (int)(k - p->link));
}

dp_status dp_plan_backward(dp_plan *p, dp_be_stream *s, const dp_pass *pass, dp_stop *stop, int *which, dp_error *err)
{
    *stop = DP_STOP_END;
    for (;;) {
        if (p->next_bucket < p->params->n_buckets && p->bucket[p->next_bucket].link > p->next) {
            *stop = DP_STOP_BUCKET;
            *which = p->bucket[p->next_bucket++].bucket;
            return DP_OK;
        }
        if (p->next < 0) break;
        const dp_plan_link *k = &p->link[p->next];
        if (!k->trains) {
            p->next--;
            continue;
        }
        set_layer(p, k->chain.node[0]->name);
        dp_status status = backward_link(p, k, s, pass, stop, which);
        if (status) return failed(k, status, "backward", err);
        if (*stop == DP_STOP_PART) return DP_OK;
    }
    *which = -1;
    return DP_OK;
}
