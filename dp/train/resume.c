/* Weights and states taken in: data.normalize, run.init_from, run.resume. Weights are only good with the normalisation
 * they were trained with, so a file's metadata stands for `normalize = auto`. */
#include "../base/text.h"
#include "trainer.h"
#include <stdlib.h>
#include <string.h>

/* ---- normalisation ---- */
/* "0.5,0.4,0.3" into v; returns how many, 0 = not a list of numbers. */
static int parse_list(const char *text, size_t len, double *v)
{
    char part[64];
    int n = 0;
    for (size_t i = 0; i <= len;) {
        size_t k = 0;
        while (i + k < len && text[i + k] != ',') k++;
        if (n == DP_MAX_CHANNELS || k >= sizeof part) return 0;
        memcpy(part, text + i, k), part[k] = 0;
        if (dp_parse_double(part, &v[n++]) != 1) return 0;
        i += k + 1;
    }
    return n;
}

/* "MEAN/STD" or "M1,M2,M3/S1,S2,S3"; one value stands for all channels. */
static dp_status parse_normalize(dp_normalize *n, const char *text, int channels, const char *where, dp_error *err)
{
    const char *slash = strchr(text, '/');
    int a = slash ? parse_list(text, (size_t)(slash - text), n->mean) : 0,
        b = slash ? parse_list(slash + 1, strlen(slash + 1), n->std) : 0;
    int ok = a && b && (a == 1 || a == channels) && (b == 1 || b == channels);
    for (int i = 0; ok && i < b; i++) ok = n->std[i] > 0;
    if (!ok)
        return dp_fail(
            err, DP_ECONFIG,
            "%s: \"%s\" is not auto, none, or MEAN/STD with one number or %d (one a channel) on each side, deviations above 0.",
            where, text, channels);
    for (int i = a; i < channels; i++) n->mean[i] = n->mean[0];
    for (int i = b; i < channels; i++) n->std[i] = n->std[0];
    n->channels = channels;
    return DP_OK;
}

static void normalize_to_text(dp_trainer *t)
{
    const dp_normalize *n = &t->normalize;
    char *p = t->normalize_text;
    size_t at = 0, size = sizeof t->normalize_text;
    if (!n->channels) dp_format(p, size, "none");
    for (int i = 0; i < 2 * n->channels && at < size; i++) {
        int std = i >= n->channels, k = std ? i - n->channels : i;
        at += (size_t)dp_format(p + at, size - at, "%s%.17g", std && !k ? "/" : k ? "," : "", std ? n->std[k] : n->mean[k]);
    }
    t->facts.normalize = p;
}

static dp_status set_normalize(dp_trainer *t, const dp_st_in *in, const char *path, int resuming, dp_error *err)
{
    const char *wanted = dp_config_get(t->config, "data.normalize"), *stored = in ? dp_st_meta_get(in, "normalize") : NULL;
    const dp_data_info *d = &t->info;
    dp_normalize *n = &t->normalize;
    int channels = d->x_rank == 3 ? (int)(d->x_shape[0] < DP_MAX_CHANNELS ? d->x_shape[0] : DP_MAX_CHANNELS) : 1;
    char where[256];
    if (stored && (resuming || !strcmp(wanted, "auto"))) {
        if (strcmp(stored, "none")) DP_TRY(parse_normalize(n, stored, channels, path, err));
    } else if (!strcmp(wanted, "auto")) {
        int made_up = !strcmp(dp_config_get(t->config, "data.format"), "synthetic"); /* random as it is: nothing to measure */
        if (d->x_dtype == DP_U8 && !made_up) {
            DP_TRY(dp_data_moments(t->train, n->mean, n->std, channels, err));
            n->channels = channels;
            for (int i = 0; i < channels; i++)
                if (!(n->std[i] > 0)) n->std[i] = 1; /* a channel of one value carries nothing: leave its scale */
        }
    } else if (strcmp(wanted, "none")) {
        DP_TRY(parse_normalize(n, wanted, channels, dp_config_where(t->config, "data.normalize", where, sizeof where), err));
    }
    normalize_to_text(t);
    return dp_engine_set_normalize(t->engine, n->mean, n->std, n->channels, err);
}

/* ---- files ---- */
static dp_status check_vocab(const dp_trainer *t, const dp_st_in *in, const char *path, dp_error *err)
{
    const char *stored = dp_st_meta_get(in, "vocab"), *here = t->facts.vocab;
    if (!stored || !here || !strcmp(stored, here)) return DP_OK;
    return dp_fail(err, DP_EDATA,
                   "%s was trained on another vocabulary than that of data.train: its token numbers mean other characters.",
                   path);
}

/* The newest state of the run directory: *step -1, *path "" when there is none. */
static dp_status newest_state(const dp_trainer *t, int64_t *step, char *path, size_t size, dp_error *err)
{
    int64_t *steps;
    int n;
    DP_TRY(dp_rundir_states(t->dir.path, &steps, &n, err));
    *step = n ? steps[n - 1] : -1;
    path[0] = 0;
    if (n) dp_format(path, size, "%s/state-%08lld.safetensors", t->dir.path, (long long)*step);
    free(steps);
    return DP_OK;
}

static dp_status refuse_weights(const dp_trainer *t, const char *path, dp_error *err)
{
    char newest[512];
    int64_t step;
    DP_TRY(newest_state(t, &step, newest, sizeof newest, err));
    return dp_fail(err, DP_ECONFIG, "%s holds weights only; use init_from, or resume from %s.", path,
                   *newest ? newest : "a state-*.safetensors file");
}

/* Rotation keeps the highest steps: it would take the states of the run that goes on for old ones. */
static dp_status check_newest(const dp_trainer *t, const dp_progress *was, const char *path, dp_error *err)
{
    char newest[512];
    int64_t step;
    DP_TRY(newest_state(t, &step, newest, sizeof newest, err));
    if (step <= was->step) return DP_OK;
    return dp_fail(err, DP_ECONFIG,
                   "%s is of step %lld, but the run directory holds a newer state, %s: resume from that one, or give another "
                   "run.dir to branch off.",
                   path, (long long)was->step, newest);
}

/* What must be as it was, or the resumed run would not be the same run. */
static dp_status check_same_run(const dp_trainer *t, const dp_progress *was, const char *path, const char *optimizer,
                                dp_error *err)
{
    const dp_progress *is = &t->now;
    const char *kind = dp_config_get(t->config, "optimizer.kind");
    const struct {
        const char *what;
        int64_t was, is;
    } row[] = {{"data.batch_size", was->batch_size, is->batch_size},
               {"data.accumulate", was->accumulate, is->accumulate},
               {"run.seed", was->seed, is->seed},
               {"the number of batches in an epoch", was->epoch_batches, is->epoch_batches}};
    if (optimizer && strcmp(optimizer, kind))
        return dp_fail(err, DP_ECONFIG,
                       "%s was saved by optimizer.kind = %s, this run has %s: set it back, or start anew with run.init_from.",
                       path, optimizer, kind);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (row[i].was != row[i].is)
            return dp_fail(
                err, DP_ECONFIG,
                "%s: %s was %lld and is %lld now, so the run cannot go on from there: set it back, or start anew with "
                "run.init_from.",
                path, row[i].what, (long long)row[i].was, (long long)row[i].is);
    return DP_OK;
}

static dp_status resume(dp_trainer *t, const dp_st_in *in, const char *path, dp_error *err)
{
    dp_progress was;
    if (!dp_checkpoint_is_state(in)) return refuse_weights(t, path, err);
    DP_TRY(dp_checkpoint_progress(in, path, &was, err));
    DP_TRY(check_newest(t, &was, path, err));
    DP_TRY(check_same_run(t, &was, path, dp_st_meta_get(in, "optimizer"), err));
    DP_TRY(check_vocab(t, in, path, err));
    DP_TRY(set_normalize(t, in, path, 1, err));
    DP_TRY(dp_engine_read(t->engine, in, 1, err));
    if (!strncmp(path, "/proc/self/fd/", 14)) /* handed over in memory: config.ini names what there is later */
        dp_config_set(t->config, "run.resume", "auto");
    DP_TRY(dp_loader_seek(t->train_loader, (uint64_t)was.epoch, was.batch, err));
    if (was.devices != t->now.devices)
        dp_log(t->config, DP_LOG_INFO,
               "The state was saved with %lld device%s, this run has %lld: batches, order and learning rates stay the same.",
               (long long)was.devices, was.devices == 1 ? "" : "s", (long long)t->now.devices);
    if (was.threads != t->now.threads || was.shards != t->now.shards)
        dp_log(t->config, DP_LOG_INFO,
               "devices.threads was %lld and is %lld, devices.shards was %lld and is %lld: results may differ in rounding.",
               (long long)was.threads, (long long)t->now.threads, (long long)was.shards, (long long)t->now.shards);
    was.devices = t->now.devices, was.threads = t->now.threads, was.shards = t->now.shards;
    t->now = was;
    t->saved_step = was.step;
    t->epoch_open = was.batch > 0;
    dp_log(t->config, DP_LOG_INFO, "Going on from %s at step %lld, epoch %lld, batch %lld.", path, (long long)was.step,
           (long long)was.epoch + 1, (long long)was.batch);
    return DP_OK;
}

static dp_status init_from(dp_trainer *t, const dp_st_in *in, const char *path, dp_error *err)
{
    DP_TRY(check_vocab(t, in, path, err));
    DP_TRY(set_normalize(t, in, path, 0, err));
    DP_TRY(dp_engine_read(t->engine, in, 0, err));
    dp_log(t->config, DP_LOG_INFO, "Weights from %s%s.", path,
           dp_checkpoint_is_state(in) ? "; it is a whole state, its optimizer part is ignored" : "");
    return DP_OK;
}

dp_status dp_setup_weights(dp_trainer *t, dp_error *err)
{
    const char *first = dp_config_text(t->config, "run.init_from");
    dp_st_in *in = NULL;
    dp_status s;
    if (t->dir.resume) {
        DP_TRY(dp_st_open(&in, t->dir.resume, err));
        s = resume(t, in, t->dir.resume, err);
    } else if (*first) {
        DP_TRY(dp_st_open(&in, first, err));
        s = init_from(t, in, first, err);
    } else {
        if (t->dir.resuming) dp_log(t->config, DP_LOG_INFO, "%s holds no state yet: starting from the beginning.", t->dir.path);
        s = set_normalize(t, NULL, "", 0, err);
    }
    dp_st_close(in);
    return s;
}
