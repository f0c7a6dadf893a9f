/* Sums over flat arrays: the halving tree over replicas' gradients, the norm of a window's gradient, checksums. */
#include "cpu.h"
#include <math.h>
#include <string.h>

/* A block of every source and of every partial sum stays in L1; the tree is at most six levels deep. */
enum { BLOCK = 1024, MOST = 64, LEVELS = 6 };

/* The sum of the non-NULL sources at [at, at + n): where it lies (`out`, or a source that is alone), or NULL. */
static const float *fold(const dp_vec_flat *v, const float *const *src, int n_src, int64_t at, int64_t n, float *out,
                         float *scratch)
{
    if (n_src == 1) return src[0] ? src[0] + at : NULL;
    int half = (n_src + 1) / 2;
    const float *left = fold(v, src, half, at, n, out, scratch);
    /* a sum that stays alone must lie in `out`: the caller's other half uses scratch */
    const float *right = fold(v, src + half, n_src - half, at, n, left ? scratch : out, scratch + BLOCK);
    if (!left) return right;
    if (!right) return left;
    v->add(out, left, right, n);
    return out;
}

dp_status dp_cpu_sum(dp_be_stream *s, float *dst, const float *const *src, int n, int64_t count)
{
    const dp_vec_flat *v = s->device->vec->flat;
    float scratch[(LEVELS + 1) * BLOCK];
    if (n < 1 || n > MOST) return DP_EARGUMENT;
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t m = count - at < BLOCK ? count - at : BLOCK;
        /* The two halves apart from dst, which may be one of the sources: it is written when all have been read. */
        int half = (n + 1) / 2;
        const float *left = fold(v, src, half, at, m, scratch, scratch + BLOCK);
        const float *right = n > half ? fold(v, src + half, n - half, at, m, scratch + BLOCK, scratch + 2 * BLOCK) : NULL;
        const float *only = left ? left : right;
        if (left && right)
            v->add(dst + at, left, right, m);
        else if (!only)
            memset(dst + at, 0, (size_t)m * sizeof *dst);
        else if (only != dst + at)
            memcpy(dst + at, only, (size_t)m * sizeof *dst);
    }
    return DP_OK;
}

dp_status dp_cpu_sumsq(dp_be_stream *s, const float *x, int64_t count, double *chunk_sums)
{
    const dp_vec_flat *v = s->device->vec->flat;
    for (int64_t at = 0; at < count; at += DP_CHUNK)
        chunk_sums[at / DP_CHUNK] = v->sumsq(x + at, count - at < DP_CHUNK ? count - at : DP_CHUNK);
    return DP_OK;
}

dp_status dp_cpu_checksum(dp_be_stream *s, const float *x, int64_t count, uint64_t *chunk_sums)
{
    const dp_vec_flat *v = s->device->vec->flat;
    for (int64_t at = 0; at < count; at += DP_CHUNK)
        chunk_sums[at / DP_CHUNK] = v->checksum(x + at, count - at < DP_CHUNK ? count - at : DP_CHUNK);
    return DP_OK;
}

dp_status dp_cpu_norm(dp_be_stream *s, const double *chunk_sums, int64_t n, const dp_run *run_device, const dp_optimizer *o,
                      dp_verdict *v)
{
    double sum = 0, mean = run_device->inv_count;
    (void)s;
    for (int64_t i = 0; i < n; i++) sum += chunk_sums[i];
    v->finite = isfinite(sum) != 0; /* squares of finite floats cannot overflow a double */
    v->norm = sqrt(sum) * mean;
    v->scale = mean;
    if (o->clip_norm > 0) v->scale *= fmin(1.0, o->clip_norm / (v->norm + 1e-6));
    v->take = v->finite && mean > 0;
    v->steps += v->take;
    return DP_OK;
}
