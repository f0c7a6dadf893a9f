/* Samples made from (seed, sample, element) when they are fetched: no file, any size, the same on any machine. A sample is the
 * mean of a pattern of its class and noise, so that a model can learn it. Evaluation samples carry numbers after the training
 * ones. */
#include "../dp/base/memory.h"
#include "../dp/base/philox.h"
#include "set.h"
#include <stdlib.h>
#include <string.h>

enum { PURPOSE_LABEL = 0x6c61, PURPOSE_NOISE = 0x6e6f, PURPOSE_PATTERN = 0x7061 };
enum {
    BLOCK = 16 /* bytes of one draw */,
    DEFAULT_CLASSES = 10,
    DEFAULT_VOCAB = 65
}; /* as many as the usual character set of plays */

typedef struct synthetic {
    dp_data base;
    uint64_t seed, first; /* number of sample 0 of this set */
    int64_t classes;
    uint8_t *pattern; /* (2 * x_width + BLOCK), of period x_width: each class begins at another place */
} synthetic;

static uint32_t random_below(const synthetic *s, uint32_t purpose, uint64_t sample, uint32_t element, int64_t n)
{
    dp_u32x4 r = dp_draw(s->seed, purpose, sample, 0, element / 4);
    return (uint32_t)((uint64_t)r.v[element % 4] * (uint64_t)n >> 32);
}

/* Bytes 16 * block .. 16 * block + 15 of the noise of a sample. */
static void noise_bytes(uint8_t out[BLOCK], uint64_t seed, uint64_t sample, int64_t block)
{
    dp_u32x4 r = dp_draw(seed, PURPOSE_NOISE, sample, 0, (uint32_t)block);
    for (int i = 0; i < BLOCK; i++) out[i] = (uint8_t)(r.v[i / 4] >> (8 * (i % 4)));
}

static dp_status picture_fetch(const dp_data *d, int64_t index, void *x, void *y, dp_error *err)
{
    const synthetic *s = (const synthetic *)d;
    uint64_t sample = s->first + (uint64_t)index;
    int64_t n = d->x_width, label = random_below(s, PURPOSE_LABEL, sample, 0, s->classes);
    const uint8_t *pattern = s->pattern + n * label / s->classes;
    (void)err;
    for (int64_t i = 0; i < n; i += BLOCK) {
        uint8_t v[BLOCK];
        int64_t m = n - i < BLOCK ? n - i : BLOCK;
        noise_bytes(v, s->seed, sample, i / BLOCK);
        for (int k = 0; k < BLOCK; k++) v[k] = (uint8_t)((pattern[i + k] + v[k]) / 2);
        if (d->info.x_dtype == DP_U8) {
            memcpy((uint8_t *)x + i, v, (size_t)m);
        } else {
            for (int64_t k = 0; k < m; k++) ((float *)x)[i + k] = ((float)v[k] - 127.5f) / 64.0f;
        }
    }
    if (d->info.classes > 0)
        *(int32_t *)y = (int32_t)label;
    else
        *(float *)y = (float)label / (float)s->classes;
    return DP_OK;
}

/* Three of four tokens follow from the one before; the fourth is drawn. */
static dp_status tokens_fetch(const dp_data *d, int64_t index, void *x, void *y, dp_error *err)
{
    const synthetic *s = (const synthetic *)d;
    uint64_t sample = s->first + (uint64_t)index;
    int64_t n = d->x_width, vocab = s->classes;
    uint32_t token = random_below(s, PURPOSE_NOISE, sample, 0, vocab);
    (void)err;
    for (int64_t i = 0; i < n; i++) {
        ((int32_t *)x)[i] = (int32_t)token;
        if (i % 4 == 3)
            token = random_below(s, PURPOSE_NOISE, sample, (uint32_t)(1 + i / 4), vocab);
        else
            token = (uint32_t)(((uint64_t)token * 5 + 7) % (uint64_t)vocab);
        ((int32_t *)y)[i] = (int32_t)token;
    }
    return DP_OK;
}

static void synthetic_release(dp_data *d)
{
    free(((synthetic *)d)->pattern);
}

dp_status dp_set_open_synthetic(dp_data **d, const dp_set_request *q, dp_error *err)
{
    dp_set_input in;
    int found = dp_set_model_input(q->c, &in);
    if (found < 0) return dp_fail(err, DP_ECONFIG, "[model] input: wanted CxHxW, N, or \"tokens T\"");
    if (found == 0) {
        return dp_fail(err, DP_ECONFIG,
                       "data.format = synthetic takes its shape from the input line of [model]: there is none");
    }
    dp_status status = DP_OK;
    synthetic *s = dp_set_new(sizeof *s, err);
    if (!s) return DP_ENOMEM;
    dp_data_info *f = &s->base.info;
    int64_t samples = dp_config_int(q->c, "data.samples"), first = 0, count = samples;
    if (q->last > 0) {
        if ((status = dp_set_part(q, samples, "samples", &first, &count, err)) != DP_OK) goto fail;
    } else if (!q->train) {
        first = samples, count = (samples + 3) / 4;
    }
    s->seed = (uint64_t)dp_config_int(q->c, "run.seed");
    s->first = (uint64_t)first;
    s->classes = dp_config_is_set(q->c, "data.classes") ? dp_config_int(q->c, "data.classes")
                 : in.tokens                            ? DEFAULT_VOCAB
                                                        : DEFAULT_CLASSES;
    f->samples = count;
    f->x_rank = in.rank;
    memcpy(f->x_shape, in.shape, sizeof f->x_shape);
    f->x_dtype = in.tokens ? DP_I32 : in.rank >= 3 ? DP_U8 : DP_F32;
    f->x_layout = DP_HWC;
    f->y_width = in.tokens ? in.shape[0] : 1;
    int numbers = !in.tokens && dp_config_choice(q->c, "loss.kind") == 1;
    f->classes = numbers ? 0 : s->classes;
    f->y_dtype = numbers ? DP_F32 : DP_I32;
    s->base.fetch = in.tokens ? tokens_fetch : picture_fetch;
    s->base.release = synthetic_release;
    if ((status = dp_set_finish(&s->base, err)) != DP_OK) goto fail;
    if (!in.tokens) {
        size_t n = (size_t)s->base.x_width;
        s->pattern = dp_calloc(n > SIZE_MAX / 4 ? SIZE_MAX : 2 * n + BLOCK, 1);
        if (!s->pattern) {
            status = dp_fail(err, DP_ENOMEM, "out of memory for a pattern of %zu elements", n);
            goto fail;
        }
        for (size_t i = 0; i < n; i++) s->pattern[i] = (uint8_t)random_below(s, PURPOSE_PATTERN, 0, (uint32_t)i, 256);
        for (size_t i = n; i < 2 * n + BLOCK; i++) s->pattern[i] = s->pattern[i - n];
    }
    *d = &s->base;
    return DP_OK;
fail:
    dp_data_close(&s->base);
    return status;
}
