/* Checkpoints. A file appears whole or not at all (dp_st_commit), and an old state goes only after the new one is on the
 * disk, so a kill at any moment leaves a state to resume from. */
#include "checkpoint.h"
#include "../base/text.h"
#include "rundir.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Metadata of a state: one row a number. "updates" is missing: the engine writes it, and what it says counts. */
static const struct {
    const char *key;
    size_t offset;
    int real;
} fields[] = {
#define WHOLE(name)                                                                                                            \
    {                                                                                                                          \
#name, offsetof(dp_progress, name), 0                                                                                  \
    }
#define REAL(name)                                                                                                             \
    {                                                                                                                          \
#name, offsetof(dp_progress, name), 1                                                                                  \
    }
    WHOLE(step),          WHOLE(epoch),         WHOLE(batch),     WHOLE(samples),   WHOLE(epoch_samples),
    WHOLE(epoch_targets), WHOLE(epoch_correct), REAL(epoch_loss), WHOLE(eval_step), WHOLE(best_step),
    WHOLE(best_correct),  WHOLE(best_targets),  REAL(best_loss),  WHOLE(seed),      WHOLE(batch_size),
    WHOLE(accumulate),    WHOLE(epoch_batches), WHOLE(devices),   WHOLE(threads),   WHOLE(shards),
#undef WHOLE
#undef REAL
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static dp_status put_number(dp_st_out *o, const dp_progress *p, int i, dp_error *err)
{
    char text[40];
    const char *at = (const char *)p + fields[i].offset;
    if (fields[i].real)
        dp_format(text, sizeof text, "%.17g", *(const double *)at);
    else
        dp_format(text, sizeof text, "%lld", (long long)*(const int64_t *)at);
    return dp_st_meta(o, fields[i].key, text, err);
}

static dp_status put_facts(dp_st_out *o, const dp_facts *f, dp_error *err)
{
    if (f->normalize) DP_TRY(dp_st_meta(o, "normalize", f->normalize, err));
    if (f->vocab) DP_TRY(dp_st_meta(o, "vocab", f->vocab, err));
    return dp_st_meta(o, "format", "pt", err); /* what PyTorch's tools look for */
}

static dp_status put_position(dp_st_out *o, const dp_progress *p, const dp_facts *f, int state, dp_error *err)
{
    DP_TRY(put_facts(o, f, err));
    DP_TRY(dp_st_meta(o, "kind", state ? "state" : "weights", err));
    for (int i = 0; i < N_FIELDS; i++)
        if (state || !strcmp(fields[i].key, "step") || !strcmp(fields[i].key, "epoch")) DP_TRY(put_number(o, p, i, err));
    return DP_OK;
}

static dp_status write_file(dp_engine *e, const char *path, const dp_progress *p, const dp_facts *f, int state, dp_error *err)
{
    dp_status s;
    dp_st_out *o = dp_st_out_new();
    if (!o) return dp_fail(err, DP_ENOMEM, "Out of memory while saving %s.", path);
    s = put_position(o, p, f, state, err);
    if (!s) s = dp_engine_write(e, o, state, err);
    if (!s) s = dp_st_commit(o, path, err);
    dp_st_out_free(o);
    return s;
}

dp_status dp_checkpoint_rescue(dp_engine *e, int fd, const dp_progress *p, const dp_facts *f, dp_error *err)
{
    dp_st_out *o = dp_st_out_new();
    if (!o) return dp_fail(err, DP_ENOMEM, "Out of memory while saving the last snapshot.");
    dp_status s = put_position(o, p, f, 1, err);
    if (!s) s = dp_engine_rescue(e, o, err);
    if (!s) s = dp_st_commit_to(o, fd, err);
    dp_st_out_free(o);
    return s;
}

dp_status dp_checkpoint_weights(dp_engine *e, const char *dir, const char *name, const dp_progress *p, const dp_facts *f,
                                dp_error *err)
{
    char *path = dp_rundir_file(dir, name);
    if (!path) return dp_fail(err, DP_ENOMEM, "Out of memory while saving %s.", name);
    dp_status s = write_file(e, path, p, f, 0, err);
    free(path);
    return s;
}

/* The `keep` newest states stay; `newest` is the one just written. */
static dp_status rotate(const char *dir, int64_t newest, int64_t keep, dp_error *err)
{
    int64_t *steps;
    int n;
    DP_TRY(dp_rundir_states(dir, &steps, &n, err));
    dp_status s = DP_OK;
    for (int i = 0; !s && i < n - keep; i++) {
        char *old = dp_rundir_state_file(dir, steps[i]);
        if (!old)
            s = dp_fail(err, DP_ENOMEM, "Out of memory while removing old states of %s.", dir);
        else if (steps[i] != newest && unlink(old) && errno != ENOENT)
            s = dp_fail_errno(err, DP_EIO, errno, "Cannot remove the old state %s", old);
        free(old);
    }
    free(steps);
    return s;
}

dp_status dp_checkpoint_save(dp_engine *e, const char *dir, const dp_progress *p, const dp_facts *f, int64_t keep, char **path,
                             dp_error *err)
{
    dp_status s;
    char *state = dp_rundir_state_file(dir, p->step);
    if (!state) return dp_fail(err, DP_ENOMEM, "Out of memory while saving a state to %s.", dir);
    s = write_file(e, state, p, f, 1, err);
    if (!s) s = dp_checkpoint_weights(e, dir, "last.safetensors", p, f, err);
    if (!s) s = rotate(dir, p->step, keep, err);
    if (!s && path)
        *path = state;
    else
        free(state);
    return s;
}

int dp_checkpoint_is_state(const dp_st_in *in)
{
    const char *kind = dp_st_meta_get(in, "kind");
    return kind && !strcmp(kind, "state");
}

static dp_status get_number(const dp_st_in *in, const char *path, const char *key, int real, void *to, dp_error *err)
{
    const char *text = dp_st_meta_get(in, key);
    int ok = text && (real ? dp_parse_double(text, to) : dp_parse_int(text, to)) == 1;
    if (!ok)
        return dp_fail(err, DP_EDATA, "%s: the state's \"%s\" is %s%s; the file is damaged or of another version.", path, key,
                       text ? "not a number: " : "missing", text ? text : "");
    return DP_OK;
}

dp_status dp_checkpoint_progress(const dp_st_in *in, const char *path, dp_progress *p, dp_error *err)
{
    memset(p, 0, sizeof *p);
    for (int i = 0; i < N_FIELDS; i++)
        DP_TRY(get_number(in, path, fields[i].key, fields[i].real, (char *)p + fields[i].offset, err));
    DP_TRY(get_number(in, path, "updates", 0, &p->updates, err));
    if (p->step < 0 || p->epoch < 0 || p->batch < 0 || p->epoch_batches < 1 || p->batch >= p->epoch_batches || p->updates < 0 ||
        p->updates > p->step)
        return dp_fail(
            err, DP_EDATA,
            "%s: the state's position is impossible (epoch %lld, batch %lld of %lld, step %lld); the file is damaged.", path,
            (long long)p->epoch, (long long)p->batch, (long long)p->epoch_batches, (long long)p->step);
    return DP_OK;
}
