/* Tensors by their PyTorch names: single ones, and all of them to and from a file. Files carry PyTorch's layout and no device. */
#include "../base/text.h"
#include "internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one tensor ---- */

static dp_status find(dp_engine *e, const char *call, const char *name, int64_t count, int *index, dp_error *err)
{
    DP_TRY(dp_engine_check(e, call, err));
    *index = name ? dp_graph_find_tensor(e->graph, name) : -1;
    if (*index < 0)
        return dp_fail(err, DP_EARGUMENT, "The model has no tensor \"%s\"; dp_graph_tensor lists them.", name ? name : "");
    const dp_tensor *t = &e->graph->tensor[*index];
    if (t->count != count)
        return dp_fail(err, DP_EARGUMENT, "Tensor %s has %lld elements; room for %lld was given.", name, (long long)t->count,
                       (long long)count);
    return DP_OK;
}

static float *place(const dp_engine *e, int index)
{
    float *base = e->graph->tensor[index].buffer ? e->replica[0].buffer : e->replica[0].param;
    return base + e->params->param[index].offset;
}

dp_status dp_engine_get(dp_engine *e, const char *tensor, float *dst, int64_t count, dp_error *err)
{
    int i;
    DP_TRY(find(e, "dp_engine_get", tensor, count, &i, err));
    if (!dst) return dp_fail(err, DP_EARGUMENT, "dp_engine_get wants memory for %lld floats.", (long long)count);
    float *memory = dp_calloc((size_t)count, 4);
    if (!memory) return dp_fail(err, DP_ENOMEM, "Out of host memory for %s.", tensor);
    dp_status status = dp_engine_settle(e, err);
    if (!status) status = dp_engine_pull(e, 0, memory, place(e, i), (size_t)count * 4, err);
    if (!status) dp_tensor_to_file(&e->graph->tensor[i], memory, dst);
    free(memory);
    return status;
}

dp_status dp_engine_put(dp_engine *e, const char *tensor, const float *src, int64_t count, dp_error *err)
{
    int i;
    DP_TRY(find(e, "dp_engine_put", tensor, count, &i, err));
    if (!src) return dp_fail(err, DP_EARGUMENT, "dp_engine_put wants %lld floats.", (long long)count);
    if (e->submitted != e->waited)
        return dp_fail(err, DP_EARGUMENT, "A batch is in flight; call dp_engine_wait before dp_engine_put.");
    float *memory = dp_calloc((size_t)count, 4);
    if (!memory) return dp_fail(err, DP_ENOMEM, "Out of host memory for %s.", tensor);
    const dp_tensor *t = &e->graph->tensor[i];
    dp_tensor_from_file(t, src, memory);
    dp_status status = dp_engine_settle(e, err);
    if (!status) status = dp_engine_push(e, 0, place(e, i), memory, (size_t)count * 4, err);
    if (!status && t->buffer)
        status = dp_engine_push(e, 0, e->replica[0].shadow + e->params->param[i].offset, memory, (size_t)count * 4, err);
    if (!status) status = dp_engine_renew(e, err);
    free(memory);
    return status;
}

dp_status dp_engine_gradient(dp_engine *e, const char *tensor, float *dst, int64_t count, dp_error *err)
{
    int i;
    DP_TRY(find(e, "dp_engine_gradient", tensor, count, &i, err));
    if (!dst || e->graph->tensor[i].buffer)
        return dp_fail(err, DP_EARGUMENT, "%s has no gradient, or there is no room for it.", tensor);
    if (e->window_open) return dp_fail(err, DP_EARGUMENT, "The gradient can be read after the batch that closes its window.");
    float *all = dp_calloc((size_t)e->params->count, 4);
    if (!all) return dp_fail(err, DP_ENOMEM, "Out of host memory for the gradient.");
    dp_status status = dp_engine_pull_gradient(e, all, err);
    if (!status) dp_tensor_to_file(&e->graph->tensor[i], all + e->params->param[i].offset, dst);
    free(all);
    return status;
}

/* ---- all of them ---- */

static void free_state(dp_host_state *h)
{
    free(h->param);
    free(h->buffer);
    free(h->m);
    free(h->v);
}

static dp_status make_state(const dp_engine *e, dp_host_state *h, int with_state, dp_error *err)
{
    const dp_replica *r = &e->replica[0];
    size_t n = (size_t)e->params->count;
    memset(h, 0, sizeof *h);
    h->param = dp_calloc(n, 4);
    h->buffer = dp_calloc((size_t)e->params->buffer_count, 4);
    if (with_state && r->m) h->m = dp_calloc(n, 4);
    if (with_state && r->v) h->v = dp_calloc(n, 4);
    if (h->param && h->buffer && (!with_state || ((!r->m || h->m) && (!r->v || h->v)))) return DP_OK;
    free_state(h);
    return dp_fail(err, DP_ENOMEM, "Out of host memory for a copy of %lld parameters.", (long long)e->params->count);
}

dp_status dp_engine_move(dp_engine *e, dp_host_state *h, int out, int with_state, dp_error *err)
{
    dp_replica *r = &e->replica[0];
    size_t n = (size_t)e->params->count * 4, buffers = (size_t)e->params->buffer_count * 4;
    struct {
        void *device, *host;
        size_t bytes;
    } part[] = {{r->param, h->param, n},
                {r->buffer, h->buffer, buffers},
                {out ? NULL : r->shadow, h->buffer, buffers},
                {with_state ? r->verdict : NULL, &h->verdict, sizeof h->verdict}};
    if (out) DP_TRY(dp_engine_settle(e, err));
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        if (!part[i].device || !part[i].host || !part[i].bytes) continue;
        DP_TRY(out ? dp_engine_pull(e, 0, part[i].host, part[i].device, part[i].bytes, err)
                   : dp_engine_push(e, 0, part[i].device, part[i].host, part[i].bytes, err));
    }
    if (h->m) DP_TRY(dp_engine_move_state(e, 0, h->m, out, err));
    return h->v ? dp_engine_move_state(e, 1, h->v, out, err) : DP_OK;
}

static const char *const optimizer_name[] = {[DP_SGD] = "sgd", [DP_ADAM] = "adam", [DP_ADAMW] = "adamw"};

/* Turns the tensor into the file's order where it lies, and lends it: a save holds one copy of the state, not two. */
static dp_status add_tensor(const dp_engine *e, dp_st_out *o, int i, const char *prefix, float *flat, float *scratch,
                            dp_error *err)
{
    const dp_tensor *t = &e->graph->tensor[i];
    char name[DP_NAME + 16];
    float *memory = flat + e->params->param[i].offset;
    snprintf(name, sizeof name, "%s%s", prefix, t->name);
    if (t->buffer == 2) { /* PyTorch counts batches in a whole number */
        int64_t batches = (int64_t)memory[0];
        return dp_st_add(o, name, DP_ST_I64, 0, NULL, &batches, 1, err);
    }
    dp_tensor_to_file_here(t, memory, scratch);
    return dp_st_add(o, name, DP_ST_F32, t->rank, t->shape, memory, 0, err);
}

/* The arrays go with the file: they are freed when it is. */
static dp_status lend(dp_st_out *o, dp_host_state *h, dp_error *err)
{
    float **part[] = {&h->param, &h->buffer, &h->m, &h->v};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        float *memory = *part[i];
        *part[i] = NULL;
        if (memory) DP_TRY(dp_st_own(o, memory, err));
    }
    return DP_OK;
}

/* All of h, which is used up. */
static dp_status add_all(const dp_engine *e, dp_st_out *o, dp_host_state *h, int with_state, int64_t batches, dp_error *err)
{
    char number[32];
    int64_t row = 1;
    for (int i = 0; i < e->graph->n_tensors; i++)
        if (dp_tensor_row(&e->graph->tensor[i]) > row) row = dp_tensor_row(&e->graph->tensor[i]);
    float *scratch = dp_calloc((size_t)row, 4);
    dp_status status = scratch ? DP_OK : dp_fail(err, DP_ENOMEM, "Out of host memory while saving.");
    for (int i = 0; i < e->graph->n_tensors && !status; i++) {
        int buffer = e->graph->tensor[i].buffer;
        status = add_tensor(e, o, i, "", buffer ? h->buffer : h->param, scratch, err);
        if (!status && !buffer && h->m) status = add_tensor(e, o, i, "optimizer.m.", h->m, scratch, err);
        if (!status && !buffer && h->v) status = add_tensor(e, o, i, "optimizer.v.", h->v, scratch, err);
    }
    if (!status && with_state) {
        status = dp_st_meta(o, "optimizer", optimizer_name[e->optimizer.kind], err);
        snprintf(number, sizeof number, "%lld", (long long)h->verdict.steps);
        if (!status) status = dp_st_meta(o, "updates", number, err);
        snprintf(number, sizeof number, "%lld", (long long)batches);
        if (!status) status = dp_st_meta(o, "batches", number, err);
    }
    if (!status) status = lend(o, h, err);
    free(scratch);
    free_state(h);
    return status;
}

static dp_status write_once(dp_engine *e, dp_st_out *o, int with_state, dp_error *err)
{
    dp_host_state h;
    DP_TRY(make_state(e, &h, with_state, err));
    dp_status status = dp_engine_move(e, &h, 1, with_state, err);
    if (!status) return add_all(e, o, &h, with_state, dp_engine_batches(e), err);
    free_state(&h);
    return status;
}

dp_status dp_engine_write(dp_engine *e, dp_st_out *o, int with_state, dp_error *err)
{
    dp_error why;
    DP_TRY(dp_engine_check(e, "Saving", err));
    dp_status status = write_once(e, o, with_state, &why); /* devices first, then the file: it can be tried again */
    while (status && dp_recovered(e, &status, -1, NULL, &why)) status = write_once(e, o, with_state, &why);
    if (status && err) *err = why;
    return status;
}

int64_t dp_engine_snapshot(const dp_engine *e)
{
    return e && e->keep && !e->keep->stale ? e->keep->set[e->keep->valid].batches : -1;
}

dp_status dp_engine_rescue(const dp_engine *e, dp_st_out *o, dp_error *err)
{
    dp_host_state h = {0};
    if (dp_engine_snapshot(e) < 0)
        return dp_fail(err, DP_EARGUMENT,
                       "There is no snapshot: devices.on_device_failure = continue takes them from the first batch on.");
    const dp_snapshot *s = &e->keep->set[e->keep->valid];
    size_t n = (size_t)e->params->count;
    const float *from[] = {s->param, s->buffer, s->m, s->v};
    float **to[] = {&h.param, &h.buffer, &h.m, &h.v};
    for (int i = 0; i < 4; i++) {
        size_t count = i == 1 ? (size_t)e->params->buffer_count : n;
        if (!from[i]) continue;
        if (!(*to[i] = dp_calloc(count, 4))) {
            free_state(&h);
            return dp_fail(err, DP_ENOMEM, "Out of host memory for a copy of %zu parameters.", n);
        }
        memcpy(*to[i], from[i], count * 4);
    }
    h.verdict = *s->verdict;
    return add_all(e, o, &h, 1, s->batches, err);
}

/* ---- reading ---- */

typedef struct complaint { /* a list that fits into an error's text */
    char text[600];
    int n;
} complaint;

static void complain(complaint *c, const char *fmt, const char *name, const char *a, const char *b)
{
    size_t at = strlen(c->text);
    if (c->n++ < 6) snprintf(c->text + at, sizeof c->text - at, fmt, name, a, b);
}

static void shape_text(char *buf, size_t size, int rank, const int64_t *shape)
{
    snprintf(buf, size, "[");
    for (int i = 0; i < rank; i++) {
        size_t at = strlen(buf);
        snprintf(buf + at, size - at, "%s%lld", i ? "," : "", (long long)shape[i]);
    }
    size_t at = strlen(buf);
    snprintf(buf + at, size - at, "]");
}

static int same_shape(const dp_tensor *t, const dp_st_tensor *s)
{
    int rank = t->buffer == 2 ? 0 : t->rank;
    if (s->rank != rank) return 0;
    for (int i = 0; i < rank; i++)
        if (s->shape[i] != t->shape[i]) return 0;
    return 1;
}

/* All names of the file carry a wrapper's "module."? */
static int wrapped(const dp_st_in *in)
{
    dp_st_tensor s;
    int n = 0;
    for (; dp_st_get(in, n, &s); n++)
        if (strncmp(s.name, "module.", 7)) return 0;
    return n > 0;
}

static int lookup(const dp_st_in *in, const char *prefix, int strip, const char *name, dp_st_tensor *s)
{
    char full[DP_NAME + 32];
    snprintf(full, sizeof full, "%s%s%s", strip ? "module." : "", prefix, name);
    return dp_st_find(in, full, s);
}

static void take(const dp_engine *e, const dp_st_in *in, const char *prefix, int strip, int i, float *flat, float *scratch,
                 complaint *c)
{
    const dp_tensor *t = &e->graph->tensor[i];
    char wanted[64], found[64];
    dp_st_tensor s;
    if (!lookup(in, prefix, strip, t->name, &s)) {
        char name[DP_NAME + 16];
        snprintf(name, sizeof name, "%s%s", prefix, t->name);
        complain(c, "; %s is missing%s%s", name, "", "");
        return;
    }
    if (!same_shape(t, &s)) {
        shape_text(found, sizeof found, s.rank, s.shape);
        shape_text(wanted, sizeof wanted, t->buffer == 2 ? 0 : t->rank, t->shape);
        complain(c, "; %s is %s, wanted %s", s.name, found, wanted);
    } else if (!dp_st_to_f32(&s, scratch)) {
        complain(c, "; %s holds no floats%s%s", s.name, "", "");
    } else {
        dp_tensor_from_file(t, scratch, flat + e->params->param[i].offset);
    }
}

static void find_extra(const dp_engine *e, const dp_st_in *in, int strip, complaint *c)
{
    dp_st_tensor s;
    for (int k = 0; dp_st_get(in, k, &s); k++) {
        const char *name = s.name + (strip ? 7 : 0);
        if (!strncmp(name, "optimizer.", 10)) continue;
        if (dp_graph_find_tensor(e->graph, name) < 0) complain(c, "; %s is not in the model%s%s", s.name, "", "");
    }
}

static int64_t largest_tensor(const dp_graph *g)
{
    int64_t n = 1;
    for (int i = 0; i < g->n_tensors; i++)
        if (g->tensor[i].count > n) n = g->tensor[i].count;
    return n;
}

static dp_status read_counts(dp_engine *e, const dp_st_in *in, dp_host_state *h, int64_t *batches, dp_error *err)
{
    const char *kind = dp_st_meta_get(in, "optimizer"), *updates = dp_st_meta_get(in, "updates"),
               *count = dp_st_meta_get(in, "batches");
    if (!kind || !updates || !count || dp_parse_int(updates, &h->verdict.steps) != 1 || dp_parse_int(count, batches) != 1)
        return dp_fail(
            err, DP_EDATA,
            "The file holds weights only; to resume take a state-*.safetensors, or start from it with run.init_from.");
    if (strcmp(kind, optimizer_name[e->optimizer.kind]))
        return dp_fail(err, DP_EDATA, "The state was saved with optimizer.kind = %s; the configuration has %s.", kind,
                       optimizer_name[e->optimizer.kind]);
    return DP_OK;
}

dp_status dp_engine_read(dp_engine *e, const dp_st_in *in, int with_state, dp_error *err)
{
    dp_host_state h;
    complaint bad = {0};
    int64_t batches = 0;
    DP_TRY(dp_engine_check(e, "Loading", err));
    if (e->submitted != e->waited)
        return dp_fail(err, DP_EARGUMENT, "A batch is in flight; call dp_engine_wait before loading.");
    DP_TRY(make_state(e, &h, with_state, err));
    int strip = wrapped(in);
    float *scratch = dp_calloc((size_t)largest_tensor(e->graph), 4);
    dp_status status = scratch ? DP_OK : dp_fail(err, DP_ENOMEM, "Out of host memory while loading.");
    if (!status && with_state) status = read_counts(e, in, &h, &batches, err);
    if (status) goto done;
    for (int i = 0; i < e->graph->n_tensors; i++) {
        int buffer = e->graph->tensor[i].buffer;
        take(e, in, "", strip, i, buffer ? h.buffer : h.param, scratch, &bad);
        if (!buffer && h.m) take(e, in, "optimizer.m.", strip, i, h.m, scratch, &bad);
        if (!buffer && h.v) take(e, in, "optimizer.v.", strip, i, h.v, scratch, &bad);
    }
    find_extra(e, in, strip, &bad);
    if (bad.n) {
        char more[32] = "";
        if (bad.n > 6) snprintf(more, sizeof more, "; and %d more", bad.n - 6);
        status = dp_fail(err, DP_EDATA, "The file does not fit the model: %s%s. Nothing was loaded.", bad.text + 2, more);
        goto done;
    }
    if (strip) dp_log(e->config, DP_LOG_INFO, "All names carried \"module.\"; it was taken off.");
    if ((status = dp_engine_move(e, &h, 0, with_state, err))) goto done;
    if (with_state) {
        e->first_batch = batches - (int64_t)e->submitted;
        e->updates = h.verdict.steps;
    }
    status = dp_engine_renew(e, err);
done:
    free(scratch);
    free_state(&h);
    return status;
}

dp_status dp_engine_load(dp_engine *e, const char *path, dp_error *err)
{
    dp_st_in *in = NULL;
    DP_TRY(dp_engine_check(e, "dp_engine_load", err));
    if (!path) return dp_fail(err, DP_EARGUMENT, "dp_engine_load wants a path.");
    DP_TRY(dp_st_open(&in, path, err));
    dp_status status = dp_engine_read(e, in, 0, err);
    dp_st_close(in);
    return status;
}

dp_status dp_engine_save(dp_engine *e, const char *path, dp_error *err)
{
    DP_TRY(dp_engine_check(e, "dp_engine_save", err));
    if (!path) return dp_fail(err, DP_EARGUMENT, "dp_engine_save wants a path.");
    dp_st_out *o = dp_st_out_new();
    dp_status status = o ? dp_engine_write(e, o, 0, err) : dp_fail(err, DP_ENOMEM, "Out of host memory while saving.");
    if (!status) status = dp_st_commit(o, path, err);
    dp_st_out_free(o);
    return status;
}
