/* Opens and closes an engine: settings, devices, replicas. After open nothing is allocated and no thread is made. */
#include "../base/text.h"
#include "internal.h"
#include <stdlib.h>
#include <string.h>

/* ---- settings ---- */

static dp_status read_weights(dp_engine *e, dp_error *err)
{
    const char *text = dp_config_text(e->config, "devices.weights");
    char item[32];
    int n = 0;
    if (!*text)
        return dp_fail(err, DP_ECONFIG,
                       "devices.split = weights wants devices.weights, one number per device, as weights = 3,1.");
    for (const char *at = text;;) {
        const char *end = strchr(at, ',');
        size_t length = end ? (size_t)(end - at) : strlen(at);
        double value = 0;
        if (length >= sizeof item) length = sizeof item - 1;
        memcpy(item, at, length);
        item[length] = 0;
        if (dp_parse_double(item, &value) != 1 || !(value > 0))
            return dp_fail(err, DP_ECONFIG, "devices.weights = %s: \"%s\" is not a positive number.", text, item);
        if (n < DP_MAX_LEAVES) e->splitter.weight[n] = value;
        n++;
        if (!end) break;
        at = end + 1;
    }
    if (n != e->splitter.leaves)
        return dp_fail(err, DP_ECONFIG, "devices.weights = %s has %d numbers for %d devices; give one each.", text, n,
                       e->splitter.leaves);
    return DP_OK;
}

static dp_status read_split(dp_engine *e, int leaves, dp_error *err)
{
    dp_splitter *s = &e->splitter;
    s->kind = (dp_split_kind)dp_config_choice(e->config, "devices.split");
    s->devices = e->n;
    s->min_rows = e->graph->min_rows;
    s->leaves = leaves ? leaves : e->on.shards ? e->on.shards : e->n;
    if (s->leaves > DP_MAX_LEAVES)
        return dp_fail(err, DP_ECONFIG, "devices.shards = %d: at most %d.", s->leaves, DP_MAX_LEAVES);
    if (e->on.shards && s->kind != DP_SPLIT_EVEN)
        return dp_fail(err, DP_ECONFIG, "devices.shards goes with devices.split = even only; take one of them out.");
    if (e->on.shards && e->on.bn_stats == DP_BN_SYNC && e->on.shards != e->n)
        return dp_fail(
            err, DP_ECONFIG,
            "devices.bn_stats = sync works on one part a device: with devices.shards = %d it wants %d devices, found %d.",
            e->on.shards, e->on.shards, e->n);
    if (s->leaves < e->n)
        return dp_fail(err, DP_ECONFIG,
                       "devices.shards = %d is less than the %d devices; use at most %d devices or more shards.", s->leaves,
                       e->n, s->leaves);
    if (s->kind == DP_SPLIT_WEIGHTS) DP_TRY(read_weights(e, err));
    for (int i = 0; s->kind == DP_SPLIT_AUTO && i < s->leaves; i++) s->weight[i] = 1;
    if (s->kind == DP_SPLIT_AUTO && dp_config_flag(e->config, "run.deterministic"))
        return dp_fail(err, DP_ECONFIG,
                       "devices.split = auto goes by measured time, which no two runs have the same: it does not go "
                       "with run.deterministic = 1.");
    e->max_rows = dp_config_int(e->config, "data.batch_size");
    if (e->on.small_batch == DP_SMALL_MERGE) e->max_rows += s->min_rows - 1;
    e->eval_rows = dp_config_int(e->config, "eval.batch_size");
    return DP_OK;
}

/* ---- workers' part ---- */

static dp_status open_gathered(dp_engine *e, dp_worker *w, dp_error *err)
{
    const dp_backend *b = e->group->backend;
    dp_replica *r = &e->replica[0];
    size_t bytes = (size_t)(r->capacity * e->graph->node[e->graph->out].width) * 4;
    if (e->on.scatter_on_master) {
        const dp_node *in = &e->graph->node[0];
        size_t all = (size_t)(e->max_rows * in->width) * (in->dtype == DP_F32 ? 4 : 8);
        DP_TRY(b->alloc(w->be, DP_MEM_STAGING, all, "the whole batch", &e->all_rows, err));
        e->all_bytes = all;
    }
    for (int d = 0; e->on.loss_on_master && d < e->n; d++) {
        dp_gathered *g = &e->gathered[d];
        void *p;
        DP_TRY(b->alloc(w->be, DP_MEM_STAGING, r->y_bytes, "gathered targets", &g->target, err));
        if (d == 0) continue;
        DP_TRY(b->alloc(w->be, DP_MEM_STAGING, bytes, "gathered outputs", &p, err));
        g->output = p;
        DP_TRY(b->alloc(w->be, DP_MEM_STAGING, bytes, "gradient of gathered outputs", &p, err));
        g->gradient = p;
    }
    return DP_OK;
}

static int64_t largest_bucket(const dp_engine *e)
{
    int64_t most = 0;
    for (int b = 0; b < e->params->n_buckets; b++)
        if (e->params->bucket[b].count > most) most = e->params->bucket[b].count;
    return most;
}

/* What moves at once. */
static int64_t piece_bytes(const dp_engine *e)
{
    return largest_bucket(e) * 4 / (e->on.reduce == DP_REDUCE_SLICED ? e->n : 1);
}

/* Room for what a device copies before its kernels read it. */
static void size_inbox(const dp_engine *e, int me, dp_replica_options *o)
{
    int64_t bucket = largest_bucket(e), channels = 0;
    int all = 1;
    for (int d = 0; d < e->n; d++) all &= dp_route(e->group, me, d) == DP_ROUTE_PEER;
    if (all) return;
    for (int i = 0; i < e->n_bn; i++)
        if (e->bn[i].channels > channels) channels = e->bn[i].channels;
    o->inbox_slot[DP_LANE_REDUCE] = e->on.reduce == DP_REDUCE_SLICED ? bucket / e->n : bucket;
    o->inbox_slots[DP_LANE_REDUCE] = e->on.reduce == DP_REDUCE_TREE ? 1 : e->n - 1;
    if (e->on.bn_stats == DP_BN_PRIMARY || !e->n_bn) return;
    int64_t part = (2 * channels + 15) / 16 * 16, buffers = me ? 0 : e->params->buffer_count;
    o->inbox_slot[DP_LANE_COMPUTE] = part > buffers ? part : buffers;
    o->inbox_slots[DP_LANE_COMPUTE] = e->splitter.leaves > e->n ? e->splitter.leaves : e->n;
}

static dp_status open_mirror(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    (void)seq;
    return dp_mirror_open(*(dp_engine **)user, w, err);
}

static dp_status open_replica(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    dp_engine *e = *(dp_engine **)user;
    dp_replica *r = &e->replica[w->device];
    int leaves = 0, slots = 1;
    dp_split s;
    (void)seq;
    dp_split_plan(&s, &e->splitter, e->max_rows);
    leaves = s.begin[w->device + 1] - s.begin[w->device];
    for (int n = 1; n < leaves; n *= 2) slots++;
    dp_replica_options o = {.graph = e->graph,
                            .params = e->params,
                            .capacity = dp_split_capacity(&e->splitter, e->max_rows),
                            .eval_capacity = e->eval_rows,
                            .slots = slots,
                            .window = dp_config_int(e->config, "data.accumulate") > 1,
                            .sums = DP_MAX_LEAVES,
                            .states = w->device == 0 || e->on.update != DP_UPDATE_MASTER ? dp_optimizer_states(&e->optimizer)
                                                                                         : 0,
                            .state_slices = e->on.update == DP_UPDATE_SLICED ? e->n : 1,
                            .leaf_stats = e->on.bn_stats != DP_BN_PRIMARY ? leaves : 0,
                            .targets_per_row = e->targets_per_row};
    size_inbox(e, w->device, &o);
    DP_TRY(dp_replica_open(r, w, &o, err));
    if (w->device == 0) DP_TRY(open_gathered(e, w, err));
    DP_TRY(dp_signals_open(e, w, err));
    return dp_finish_stream(w, err);
}

/* Late work of any device may use what close_replica frees on another. A device that failed has no work left; for one that hangs the wait
 * outlasts dp_group_closing, which then leaves everything where it is. */
static dp_status settle(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    double begin = dp_now();
    dp_status status;
    (void)user, (void)seq, (void)err;
    do status = dp_finish_stream(w, NULL);
    while (status == DP_ETIMEOUT && dp_now() - begin < 10 && !atomic_load(&w->group->leaving));
    if (status == DP_EDEVICE_LOST) atomic_store(&w->lost, 1);
    return DP_OK;
}

static dp_status close_replica(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    dp_engine *e = *(dp_engine **)user;
    const dp_backend *b = e->group->backend;
    int d = w->device;
    dp_replica *r = &e->replica[d];
    (void)seq, (void)err;
    if (d == 0 && e->gathered && r->w && !dp_lost(w)) {
        size_t bytes = (size_t)(r->capacity * e->graph->node[e->graph->out].width) * 4;
        for (int i = 0; i < e->n; i++) {
            b->free(w->be, DP_MEM_STAGING, e->gathered[i].target, r->y_bytes);
            b->free(w->be, DP_MEM_STAGING, e->gathered[i].output, bytes);
            b->free(w->be, DP_MEM_STAGING, e->gathered[i].gradient, bytes);
        }
        b->free(w->be, DP_MEM_STAGING, e->all_rows, e->all_bytes);
    }
    dp_graphs_close(e, w);
    dp_mirror_close(e, w);
    dp_signals_close(e, w);
    dp_replica_close(r);
    return DP_OK;
}

/* ---- host side ---- */

static dp_status pinned(dp_engine *e, size_t bytes, void **p, dp_error *err)
{
    DP_TRY(dp_group_pinned(e->group, bytes, p, err));
    memset(*p, 0, bytes);
    return DP_OK;
}

enum { SUMS_BYTES = DP_MAX_LEAVES * sizeof(dp_loss_sums), RUNS_BYTES = (DP_MAX_LEAVES + 1) * sizeof(dp_run) };

static dp_status open_steps(dp_engine *e, dp_error *err)
{
    void *p;
    for (int i = 0; i < DP_STEPS; i++) {
        dp_step *s = &e->step[i];
        s->engine = e;
        DP_TRY(pinned(e, (size_t)e->max_rows * 8, &p, err));
        s->ids = p;
        for (int64_t k = 0; k < e->max_rows; k++) s->ids[k] = (uint64_t)k;
        DP_TRY(pinned(e, RUNS_BYTES, &p, err));
        s->leaf_run = p;
        DP_TRY(pinned(e, SUMS_BYTES, &p, err));
        s->sums = p;
        DP_TRY(pinned(e, 2 * sizeof *s->verdict, &p, err));
        s->verdict = p;
    }
    DP_TRY(pinned(e, RUNS_BYTES, &p, err));
    e->pass.leaf_run = p;
    DP_TRY(pinned(e, SUMS_BYTES, &p, err));
    e->pass.sums = p;
    return DP_OK;
}

static void close_steps(dp_engine *e)
{
    dp_group *g = e->group;
    for (int i = 0; i < DP_STEPS; i++) {
        dp_step *s = &e->step[i];
        dp_group_unpinned(g, s->ids, (size_t)e->max_rows * 8);
        dp_group_unpinned(g, s->leaf_run, RUNS_BYTES);
        dp_group_unpinned(g, s->sums, SUMS_BYTES);
        dp_group_unpinned(g, s->verdict, 2 * sizeof *s->verdict);
    }
    dp_group_unpinned(g, e->pass.leaf_run, RUNS_BYTES);
    dp_group_unpinned(g, e->pass.sums, SUMS_BYTES);
}

/* Seeded values onto the master; the others pull them with their first job. */
static dp_status start_values(dp_engine *e, dp_error *err)
{
    dp_status status = DP_ENOMEM;
    float *param = dp_calloc((size_t)e->params->count, 4), *buffer = dp_calloc((size_t)e->params->buffer_count + 1, 4);
    if (!param || !buffer) {
        dp_fail(err, DP_ENOMEM, "Out of host memory for %lld parameters.", (long long)e->params->count);
        goto done;
    }
    dp_params_init(e->params, e->graph, e->seed, param, buffer);
    if ((status = dp_engine_push(e, 0, e->replica[0].param, param, (size_t)e->params->count * 4, err))) goto done;
    if (e->params->buffer_count) {
        size_t bytes = (size_t)e->params->buffer_count * 4;
        if ((status = dp_engine_push(e, 0, e->replica[0].shadow, buffer, bytes, err))) goto done;
        if ((status = dp_engine_push(e, 0, e->replica[0].buffer, buffer, bytes, err))) goto done;
    }
    status = dp_engine_renew(e, err);
done:
    free(param);
    free(buffer);
    return status;
}

void dp_engine_warn_unlocked(dp_engine *e)
{
    if (!e->group->unlocked || e->warned_unlocked) return;
    e->warned_unlocked = 1;
    dp_log(e->config, DP_LOG_WARN, "%.1f MB of host memory could not be page-locked; copies from there are slower.",
           (double)e->group->unlocked / 1e6);
}

/* Parameters that cannot learn (P72). */
static void warn_unused(const dp_engine *e)
{
    char list[400] = "";
    int more = 0;
    for (int i = 0; i < e->graph->n_tensors; i++) {
        const dp_tensor *t = &e->graph->tensor[i];
        if (t->buffer || e->graph->node[t->node].live) continue;
        if (strlen(list) > 300)
            more++;
        else
            dp_format(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? ", " : "", t->name);
    }
    if (*list && more)
        dp_log(e->config, DP_LOG_WARN, "These parameters do not reach the output and get no gradient: %s and %d more.", list,
               more);
    else if (*list)
        dp_log(e->config, DP_LOG_WARN, "These parameters do not reach the output and get no gradient: %s.", list);
}

static dp_status allocate_tables(dp_engine *e, dp_error *err)
{
    size_t n = (size_t)e->n;
    e->at = dp_calloc(n, sizeof *e->at);
    e->ended = dp_calloc(n * DP_JOBS, sizeof *e->ended);
    e->gathered = dp_calloc(n, sizeof *e->gathered);
    e->stats = dp_calloc(n, sizeof *e->stats);
    e->link_before = dp_calloc(n * n, sizeof *e->link_before);
    e->traced = dp_calloc(n, sizeof *e->traced);
    e->measured = dp_calloc(n, sizeof *e->measured);
    e->mirror = dp_calloc(n, sizeof *e->mirror);
    e->graphs = dp_calloc(n, sizeof *e->graphs);
    e->bn = dp_calloc((size_t)e->graph->n_nodes, sizeof *e->bn);
    if (e->bn) e->n_bn = dp_batchnorms(e->graph, e->params, e->bn);
    if (e->mirror && e->graphs && e->bn && e->measured && e->at && e->ended && e->gathered && e->stats && e->link_before &&
        e->traced)
        e->replica = dp_calloc(n, sizeof *e->replica); /* last: close takes it as the sign that all are there */
    if (!e->replica) return dp_fail(err, DP_ENOMEM, "Out of host memory while opening the engine.");
    return DP_OK;
}

dp_status dp_engine_start(dp_engine *e, const dp_backend *backend, dp_error *err)
{
    const dp_config *c = e->config;
    dp_status status;
    e->pass.engine = e;
    DP_TRY(dp_switches_read(e, err));
    e->targets_per_row = e->loss.kind == DP_LOSS_MSE ? e->loss.classes : e->loss.groups;
    DP_TRY(dp_group_open_on(&e->group, c, backend, dp_config_int(c, "data.batch_size"), err));
    e->n = e->group->n;
    e->backend = e->group->backend;
    for (int d = 0; d < e->n; d++) e->group->worker[d].timeline.by_layer = dp_config_choice(c, "run.trace") == 2;
    if ((status = read_split(e, e->leaves, err))) goto fail;
    if ((status = dp_params_open(&e->params, e->graph, c, e->n, err))) goto fail;
    if ((status = allocate_tables(e, err))) goto fail;
    if ((status = dp_links_choose(e->group, c, e->params->count * 4, piece_bytes(e), err))) goto fail;
    dp_stages_plan(e);
    dp_graphs_open(e);
    if ((status = dp_group_call(e->group, (dp_job){.run = open_replica, .user = &e->pass}, err))) goto fail;
    e->n_parts = dp_plan_exchanges(e->replica[0].plan);
    if ((status = dp_group_call(e->group, (dp_job){.run = open_mirror, .user = &e->pass}, err))) goto fail;
    if ((status = open_steps(e, err))) goto fail;
    dp_choices_say(e);
    return DP_OK;
fail:
    if (dp_engine_stop(e, NULL) == DP_OK) {
        dp_params_free(e->params);
        e->params = NULL;
    }
    return status;
}

dp_status dp_engine_open_on(dp_engine **out, const dp_graph *g, const dp_config *c, const dp_backend *backend, int leaves,
                            dp_error *err)
{
    dp_status status = DP_ENOMEM;
    DP_TRY(dp_config_ok(c, err));
    if (!g->finished) return dp_fail(err, DP_EARGUMENT, "dp_engine_open wants a graph after dp_graph_finish.");
    dp_engine *e = dp_calloc(1, sizeof *e);
    if (!e || !(e->config = dp_config_copy(c))) {
        free(e);
        return dp_fail(err, DP_ENOMEM, "Out of host memory while opening the engine.");
    }
    e->graph = g;
    e->leaves = leaves;
    e->opened_at = dp_now();
    if ((status = dp_engine_start(e, backend, err))) goto fail;
    if ((status = dp_keep_open(e, err))) goto fail;
    if ((status = start_values(e, err))) goto fail;
    warn_unused(e);
    dp_balance_warn(e);
    dp_engine_warn_unlocked(e);
    *out = e;
    return DP_OK;
fail:
    dp_engine_close(e, NULL);
    return status;
}

dp_status dp_engine_open(dp_engine **e, const dp_graph *g, const dp_config *c, dp_error *err)
{
    if (!e || !g || !c) return dp_fail(err, DP_EARGUMENT, "dp_engine_open wants a place for the engine, a graph and a config.");
    *e = NULL;
    return dp_engine_open_on(e, g, c, NULL, 0, err);
}

/* What stays behind of devices that are lost. */
static void say_lost(const dp_engine *e)
{
    for (int d = 0; d < e->n; d++) {
        if (!dp_lost(&e->group->worker[d])) continue;
        dp_be_device *be = e->group->worker[d].be;
        const dp_memory *m = be ? e->group->backend->memory(be) : NULL;
        double bytes = 0;
        char name[32];
        for (int i = 0; m && i < DP_MEM_CLASSES; i++) bytes += (double)__atomic_load_n(&m->live[i], __ATOMIC_RELAXED);
        dp_log(e->config, DP_LOG_WARN,
               "%s is lost: nothing of it was touched again; %.1f MB on it, and what its driver holds, stay until the process "
               "ends.",
               dp_engine_device_name(e, d, name, sizeof name), bytes / 1e6);
    }
}

dp_status dp_engine_stop(dp_engine *e, dp_error *err)
{
    dp_status status = DP_OK;
    dp_error why;
    if (e->group) {
        if (!e->failed && e->submitted > e->waited) /* by its own time limit, which knows progress */
            dp_group_wait(e->group, e->step[(e->submitted - 1) % DP_STEPS].job, NULL);
        if (e->replica) { /* memory goes where it came from: on its worker's thread */
            status = dp_group_closing(e->group, (dp_job){.run = settle, .user = &e->pass}, &why);
            if (!status) status = dp_group_closing(e->group, (dp_job){.run = close_replica, .user = &e->pass}, &why);
            if (status) { /* a worker is stuck in there: all of this stays */
                dp_group_leave(e->group);
                dp_log(e->config, DP_LOG_WARN, "%s", why.text);
                if (err) *err = why;
                return status;
            }
            say_lost(e);
        }
        close_steps(e);
        DP_TRY(dp_group_close(e->group, err));
    }
    e->group = NULL;
    free(e->replica);
    free(e->at);
    free(e->bn);
    free(e->ended);
    free(e->link_before);
    free(e->traced);
    free(e->measured);
    free(e->mirror);
    free(e->graphs);
    free(e->gathered);
    free(e->stats);
    e->replica = NULL, e->at = NULL, e->bn = NULL, e->ended = NULL, e->link_before = NULL;
    e->traced = NULL, e->measured = NULL, e->mirror = NULL, e->graphs = NULL, e->gathered = NULL, e->stats = NULL;
    e->n = 0;
    return DP_OK;
}

dp_status dp_engine_close(dp_engine *e, dp_error *err)
{
    if (!e) return DP_OK;
    DP_TRY(dp_engine_stop(e, err));
    dp_params_free(e->params);
    dp_keep_close(e->keep);
    dp_config_free(e->config);
    free(e);
    return DP_OK;
}
