/* Everything that must be right before the first step: the sets and the network fit each other, the engine fits the
 * devices. Nothing here writes to the disk. */
#include "../base/text.h"
#include "trainer.h"
#include <string.h>

/* ---- the network ---- */
static const char *shape_text(char *buf, size_t size, const int64_t *shape, int rank)
{
    size_t at = 0;
    buf[0] = 0;
    for (int i = 0; i < rank && at < size; i++)
        at += (size_t)dp_format(buf + at, size - at, "%s%lld", i ? "x" : "", (long long)shape[i]);
    return buf;
}

/* `classes` and `vocab` in [model] are the data's. */
static dp_status make_graph(dp_trainer *t, dp_error *err)
{
    t->own_graph = dp_graph_new();
    if (!t->own_graph) return dp_fail(err, DP_ENOMEM, "Out of memory while building the model.");
    dp_graph_config(t->own_graph, t->config);
    if (t->info.classes > 0) {
        dp_graph_symbol(t->own_graph, "classes", t->info.classes);
        dp_graph_symbol(t->own_graph, "vocab", t->info.classes);
    }
    t->graph = t->own_graph;
    return dp_graph_finish(t->own_graph, err);
}

static int is_token_type(dp_dtype d)
{
    return d == DP_I32 || d == DP_I64 || d == DP_U16;
}

static dp_status check_input(const dp_trainer *t, dp_error *err)
{
    const dp_node *in = &t->graph->node[0];
    const dp_data_info *d = &t->info;
    int64_t want[4] = {0};
    char a[64], b[64];
    for (int i = 0; i < in->rank; i++) want[i] = in->rank == 3 ? in->shape[(i + 2) % 3] : in->shape[i]; /* C x H x W */
    shape_text(a, sizeof a, want, in->rank), shape_text(b, sizeof b, d->x_shape, d->x_rank);
    if (is_token_type(d->x_dtype) != (in->dtype == DP_I32))
        return dp_fail(err, DP_ECONFIG, "[model] input is %s%s, but the data has %s: write input = %s%s.",
                       in->dtype == DP_I32 ? "tokens " : "", a, is_token_type(d->x_dtype) ? "tokens" : "numbers",
                       is_token_type(d->x_dtype) ? "tokens " : "", b);
    int same = in->rank == d->x_rank;
    for (int i = 0; same && i < in->rank; i++) same = want[i] == d->x_shape[i];
    /* A flat input takes the pixels of a one-channel picture: their order is the same in every layout. */
    int flat = in->rank == 1 && d->x_rank == 3 && d->x_shape[0] == 1 && in->shape[0] == d->x_shape[1] * d->x_shape[2];
    /* A picture takes the numbers of a flat sample in C x H x W order: a csv line is one (its rows say DP_CHW). */
    int picture = in->rank == 3 && d->x_rank == 1 && d->x_layout == DP_CHW && in->width == d->x_shape[0];
    if (same || flat || picture) return DP_OK;
    return dp_fail(err, DP_ECONFIG, "[model] input is %s%s, but a sample of the data is %s%s: write input = %s%s%s.",
                   in->dtype == DP_I32 ? "tokens " : "", a, in->dtype == DP_I32 ? "tokens " : "", b,
                   in->dtype == DP_I32 ? "tokens " : "", b,
                   in->rank == 1 && d->x_rank == 3 ? " and begin with a flatten line" : "");
}

static dp_status check_output(const dp_trainer *t, dp_error *err)
{
    const dp_node *out = &t->graph->node[t->graph->out];
    int mse = !strcmp(dp_config_get(t->config, "loss.kind"), "mse");
    int64_t columns = out->shape[out->rank - 1], rows = out->width / columns, wanted = mse ? out->width : rows;
    if (mse && t->info.y_dtype != DP_F32)
        return dp_fail(
            err, DP_ECONFIG,
            "loss.kind = mse needs numbers as targets, but the data has class labels: use loss.kind = cross_entropy.");
    if (!mse && t->info.classes < 1)
        return dp_fail(
            err, DP_ECONFIG,
            "loss.kind = cross_entropy needs class labels, but the data's targets are numbers: use loss.kind = mse.");
    if (!mse && columns < t->info.classes)
        return dp_fail(err, DP_ECONFIG,
                       "The model's last line \"%s\" has %lld outputs, but the data has %lld classes: write out=classes there.",
                       out->name, (long long)columns, (long long)t->info.classes);
    if (t->info.y_width != wanted)
        return dp_fail(err, DP_ECONFIG, "The model's output \"%s\" wants %lld targets a sample, but the data has %lld.",
                       out->name, (long long)wanted, (long long)t->info.y_width);
    return DP_OK;
}

static dp_status check_eval(const dp_trainer *t, dp_error *err)
{
    dp_data_info e;
    char a[64], b[64];
    if (!t->eval) return DP_OK;
    DP_TRY(dp_data_facts(t->eval, &e));
    int same = e.x_rank == t->info.x_rank && e.y_width == t->info.y_width &&
               is_token_type(e.x_dtype) == is_token_type(t->info.x_dtype);
    for (int i = 0; same && i < e.x_rank; i++) same = e.x_shape[i] == t->info.x_shape[i];
    if (!same)
        return dp_fail(
            err, DP_EDATA,
            "A sample of data.eval is %s with %lld targets, one of data.train %s with %lld: the sets do not belong together.",
            shape_text(a, sizeof a, e.x_shape, e.x_rank), (long long)e.y_width,
            shape_text(b, sizeof b, t->info.x_shape, t->info.x_rank), (long long)t->info.y_width);
    if (e.classes > t->info.classes)
        return dp_fail(err, DP_EDATA, "data.eval has %lld classes, data.train only %lld: label %lld was never trained.",
                       (long long)e.classes, (long long)t->info.classes, (long long)e.classes - 1);
    return DP_OK;
}

dp_status dp_setup_data(dp_trainer *t, const dp_graph *g, dp_data *train, dp_data *eval, dp_error *err)
{
    t->train = train, t->eval = eval, t->graph = g;
    if (!train) {
        DP_TRY(dp_data_open(&t->own_train, t->config, 1, err));
        t->train = t->own_train;
        if (!eval) DP_TRY(dp_data_open(&t->own_eval, t->config, 0, err));
        if (!eval) t->eval = t->own_eval;
    }
    if (!t->train) return dp_fail(err, DP_ECONFIG, "data.train is not set: name the training set.");
    DP_TRY(dp_data_facts(t->train, &t->info));
    if (!g) DP_TRY(make_graph(t, err));
    if (!t->graph->finished) return dp_fail(err, DP_EARGUMENT, "The graph is not finished: call dp_graph_finish first.");
    DP_TRY(check_input(t, err));
    DP_TRY(check_output(t, err));
    t->facts.vocab = dp_data_vocab(t->train);
    return check_eval(t, err);
}

/* ---- the engine ---- */
dp_status dp_setup_engine(dp_trainer *t, dp_error *err)
{
    dp_config *c = t->config;
    DP_TRY(dp_engine_open(&t->engine, t->graph, c, err));
    DP_TRY(dp_engine_loader(t->engine, t->train, 1, &t->train_loader, err));
    if (t->eval) DP_TRY(dp_engine_loader(t->engine, t->eval, 0, &t->eval_loader, err));

    dp_progress *p = &t->now;
    p->eval_step = p->best_step = t->saved_step = -1;
    p->seed = dp_config_int(c, "run.seed");
    p->batch_size = dp_config_int(c, "data.batch_size");
    p->accumulate = dp_config_int(c, "data.accumulate");
    p->threads = dp_config_int(c, "devices.threads");
    p->shards = dp_config_int(c, "devices.shards");
    p->devices = dp_engine_devices(t->engine);
    p->epoch_batches = dp_loader_batches(t->train_loader);
    if (p->epoch_batches < 1)
        return dp_fail(err, DP_ECONFIG,
                       "No batch is left to train on: %lld samples, data.batch_size = %lld, data.drop_last = %d.",
                       (long long)t->info.samples, (long long)p->batch_size, dp_config_flag(c, "data.drop_last"));

    int64_t steps = dp_config_int(c, "run.steps");
    t->windows = (p->epoch_batches + p->accumulate - 1) / p->accumulate;
    t->steps = steps > 0 ? steps : dp_config_int(c, "run.epochs") * t->windows;
    t->epochs = (t->steps + t->windows - 1) / t->windows;
    t->log_every = dp_config_int(c, "run.log_every");
    t->keep = dp_config_int(c, "run.keep");
    t->save_every.every = dp_config_interval(c, "run.save_every", &t->save_every.epochs);
    t->eval_every.every = dp_config_interval(c, "eval.every", &t->eval_every.epochs);
    t->save_may_fail = !strcmp(dp_config_get(c, "run.on_save_error"), "warn");
    t->one_in_flight = !strcmp(dp_config_get(c, "run.on_nan"), "warn") || dp_config_is_set(c, "loss.ignore_label");
    return dp_schedule_config(&t->schedule, c, t->steps, p->batch_size * p->accumulate, err);
}

/* ---- what the user should know ---- */
enum { MAX_SHOWN = 64 };

static void rows_text(char *buf, size_t size, const int64_t *rows, int n)
{
    size_t at = 0;
    int equal = 1;
    for (int i = 1; i < n; i++) equal &= rows[i] == rows[0];
    for (int i = 0; i < (equal ? 1 : n) && at < size; i++)
        at += (size_t)dp_format(buf + at, size - at, "%s%lld", i ? ", " : "", (long long)rows[i]);
}

static void lr_text(const dp_trainer *t, char *buf, size_t size)
{
    double base = dp_config_number(t->config, "optimizer.lr_base_batch"), lr = dp_config_number(t->config, "optimizer.lr");
    if (base > 0)
        dp_format(buf, size, "lr %g (%g x %lld / %g)", t->schedule.lr, lr, (long long)(t->now.batch_size * t->now.accumulate),
                  base);
    else
        dp_format(buf, size, "lr %g", t->schedule.lr);
}

/* Idle devices and uneven splits are legal; the user is told once. */
static void split_notes(dp_trainer *t, const int64_t *rows, int n)
{
    char idle[256] = "", cut[256] = "";
    size_t at = 0;
    int n_idle = 0, uneven = 0;
    for (int i = 0; i < n; i++) {
        dp_device_stats s;
        uneven |= rows[i] != rows[0];
        if (rows[i] || !dp_engine_stats(t->engine, i, &s)) continue;
        if (at < sizeof idle) at += (size_t)dp_format(idle + at, sizeof idle - at, "%s%s", n_idle ? ", " : "", s.name);
        n_idle++;
    }
    rows_text(cut, sizeof cut, rows, n);
    if (n_idle)
        dp_log(t->config, DP_LOG_WARN, "data.batch_size = %lld is too small for %d devices: %s get%s no samples.",
               (long long)t->now.batch_size, n, idle, n_idle > 1 ? "" : "s");
    else if (uneven && !strcmp(dp_config_get(t->config, "devices.split"), "even"))
        dp_log(t->config, DP_LOG_INFO, "data.batch_size = %lld is no multiple of %d devices: they take %s samples.",
               (long long)t->now.batch_size, n, cut);
}

void dp_setup_notes(dp_trainer *t)
{
    int64_t rows[MAX_SHOWN];
    char per[256] = "", lr[96], window[96] = "";
    const dp_progress *p = &t->now;
    int n = dp_engine_split(t->engine, p->batch_size, rows, MAX_SHOWN);
    if (n > MAX_SHOWN) n = MAX_SHOWN;
    rows_text(per, sizeof per, rows, n);
    lr_text(t, lr, sizeof lr);
    if (p->accumulate > 1)
        dp_format(window, sizeof window, " x %lld accumulated = %lld a step", (long long)p->accumulate,
                  (long long)(p->accumulate * p->batch_size));
    dp_format(t->start_text, sizeof t->start_text,
              "batch: global %lld, per device %s%s; %s; %lld step%s per epoch, %lld in all", (long long)p->batch_size, per,
              window, lr, (long long)t->windows, t->windows == 1 ? "" : "s", (long long)t->steps);
    split_notes(t, rows, n);
    if (t->schedule.warmup > t->steps)
        dp_log(t->config, DP_LOG_WARN,
               "schedule.warmup_steps = %lld is longer than the run of %lld steps: the full learning rate is never reached.",
               (long long)t->schedule.warmup, (long long)t->steps);
}
