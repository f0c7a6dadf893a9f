/* Pooling of one sample: vectors over channels, windows one after another. A kernel of 2 without padding is unrolled. */
#include "isa.h"

typedef uint8_t vu8 __attribute__((vector_size(DP_LANES)));

/* The part of the window at `position` that lies inside 0 .. side - 1: kernel places first .. last - 1. */
typedef struct span {
    int64_t origin, first, last;
} span;
static inline span clip(const dp_pool *p, int64_t position, int64_t side, int64_t kernel)
{
    int64_t origin = position * p->stride - p->pad;
    return (span){origin, origin < 0 ? -origin : 0, origin + kernel > side ? side - origin : kernel};
}

static inline void store_mark(const dp_pool *p, void *mark, int64_t at, vi place, int lanes)
{
    if (p->wide) {
        for (int i = 0; i < lanes; i++) ((int32_t *)mark)[at + i] = place[i];
        return;
    }
    vu8 narrow = __builtin_convertvector(place, vu8);
    if (lanes == DP_LANES)
        memcpy((uint8_t *)mark + at, &narrow, sizeof narrow);
    else
        memcpy((uint8_t *)mark + at, &narrow, (size_t)lanes);
}
static inline vi load_mark(const dp_pool *p, const void *mark, int64_t at, int lanes)
{
    vi place = viset(-1);
    if (p->wide) {
        for (int i = 0; i < lanes; i++) place[i] = ((const int32_t *)mark)[at + i];
        return place;
    }
    vu8 narrow = {0};
    if (lanes == DP_LANES)
        memcpy(&narrow, (const uint8_t *)mark + at, sizeof narrow);
    else
        memcpy(&narrow, (const uint8_t *)mark + at, (size_t)lanes);
    return __builtin_convertvector(narrow, vi);
}

/* Some lanes of one window; x at the sample's first pixel of these channels. The first maximum or a NaN wins, as in PyTorch. */
static inline __attribute__((always_inline)) void max_lanes(const dp_pool *p, float *y, const float *x, void *mark, int64_t at,
                                                            span v, span h, int64_t kernel, int lanes)
{
    vf best = {0};
    vi place = {0};
    for (int64_t i = v.first; i < v.last; i++)
        for (int64_t j = h.first; j < h.last; j++) {
            const float *from = x + ((v.origin + i) * p->w + h.origin + j) * p->c;
            vf value = lanes == DP_LANES ? vload(from) : vload_part(from, lanes);
            vi here = viset((int32_t)(i * kernel + j));
            if (i == v.first && j == h.first) {
                best = value, place = here;
                continue;
            }
            vi wins = (value > best) | (value != value);
            best = vselect(wins, value, best);
            place = (wins & here) | (~wins & place);
        }
    if (lanes == DP_LANES)
        vstore(y + at, best);
    else
        vstore_part(y + at, best, lanes);
    if (mark) store_mark(p, mark, at, place, lanes);
}

static inline __attribute__((always_inline)) void max_loop(const dp_pool *p, float *y, const float *x, void *mark,
                                                           int64_t kernel, int inside)
{
    int64_t c = p->c, body = c / DP_LANES * DP_LANES;
    for (int64_t oy = 0; oy < p->oh; oy++)
        for (int64_t ox = 0; ox < p->ow; ox++) {
            span v = clip(p, oy, p->h, kernel), h = clip(p, ox, p->w, kernel);
            if (inside) v.first = h.first = 0, v.last = h.last = kernel;
            int64_t at = (oy * p->ow + ox) * c;
            for (int64_t i = 0; i < body; i += DP_LANES) max_lanes(p, y, x + i, mark, at + i, v, h, kernel, DP_LANES);
            if (body < c) max_lanes(p, y, x + body, mark, at + body, v, h, kernel, (int)(c - body));
        }
}
static void max(const dp_pool *p, float *y, const float *x, void *mark)
{
    if (p->kernel == 2 && !p->pad)
        max_loop(p, y, x, mark, 2, 1);
    else
        max_loop(p, y, x, mark, p->kernel, 0);
}

/* Windows that tile the sample write every element once: nothing to clear, nothing to add. */
static inline int tiles(const dp_pool *p)
{
    return p->stride == p->kernel && !p->pad && p->h % p->kernel == 0 && p->w % p->kernel == 0;
}

static inline __attribute__((always_inline)) void max_backward_lanes(const dp_pool *p, float *dx, const float *dy,
                                                                     const void *mark, int64_t at, float scale, span v, span h,
                                                                     int64_t kernel, int assign, int lanes)
{
    vf g = (lanes == DP_LANES ? vload(dy + at) : vload_part(dy + at, lanes)) * scale;
    vi place = load_mark(p, mark, at, lanes);
    for (int64_t i = v.first; i < v.last; i++)
        for (int64_t j = h.first; j < h.last; j++) {
            float *to = dx + ((v.origin + i) * p->w + h.origin + j) * p->c;
            vf value = (vf)((place == (int32_t)(i * kernel + j)) & (vi)g);
            if (lanes == DP_LANES)
                vstore(to, assign ? value : vload(to) + value);
            else
                vstore_part(to, assign ? value : vload_part(to, lanes) + value, lanes);
        }
}

static inline __attribute__((always_inline)) void max_backward_loop(const dp_pool *p, float *dx, const float *dy,
                                                                    const void *mark, float scale, int64_t kernel, int assign)
{
    int64_t c = p->c, body = c / DP_LANES * DP_LANES;
    for (int64_t oy = 0; oy < p->oh; oy++)
        for (int64_t ox = 0; ox < p->ow; ox++) {
            span v = clip(p, oy, p->h, kernel), h = clip(p, ox, p->w, kernel);
            if (assign) v.first = h.first = 0, v.last = h.last = kernel;
            int64_t at = (oy * p->ow + ox) * c;
            for (int64_t i = 0; i < body; i += DP_LANES)
                max_backward_lanes(p, dx + i, dy, mark, at + i, scale, v, h, kernel, assign, DP_LANES);
            if (body < c) max_backward_lanes(p, dx + body, dy, mark, at + body, scale, v, h, kernel, assign, (int)(c - body));
        }
}
static void max_backward(const dp_pool *p, float *dx, const float *dy, const void *mark, float scale)
{
    if (tiles(p) && p->kernel == 2) {
        max_backward_loop(p, dx, dy, mark, scale, 2, 1);
    } else if (tiles(p)) {
        max_backward_loop(p, dx, dy, mark, scale, p->kernel, 1);
    } else {
        memset(dx, 0, (size_t)(p->h * p->w * p->c) * sizeof *dx);
        max_backward_loop(p, dx, dy, mark, scale, p->kernel, 0);
    }
}

/* The divisor counts padding: kernel^2 everywhere. */
static void average(const dp_pool *p, float *y, const float *x)
{
    const float scale = 1.0f / (float)(p->kernel * p->kernel);
    int64_t c = p->c;
    for (int64_t oy = 0; oy < p->oh; oy++)
        for (int64_t ox = 0; ox < p->ow; ox++) {
            span v = clip(p, oy, p->h, p->kernel), h = clip(p, ox, p->w, p->kernel);
            float *to = y + (oy * p->ow + ox) * c;
            memset(to, 0, (size_t)c * sizeof *to);
            for (int64_t i = v.first; i < v.last; i++)
                for (int64_t j = h.first; j < h.last; j++) {
                    const float *from = x + ((v.origin + i) * p->w + h.origin + j) * c;
                    DP_IVDEP
                    for (int64_t k = 0; k < c; k++) to[k] += from[k];
                }
            for (int64_t k = 0; k < c; k++) to[k] *= scale;
        }
}

static void average_backward(const dp_pool *p, float *dx, const float *dy)
{
    const float scale = 1.0f / (float)(p->kernel * p->kernel);
    int64_t c = p->c;
    memset(dx, 0, (size_t)(p->h * p->w * c) * sizeof *dx);
    for (int64_t oy = 0; oy < p->oh; oy++)
        for (int64_t ox = 0; ox < p->ow; ox++) {
            span v = clip(p, oy, p->h, p->kernel), h = clip(p, ox, p->w, p->kernel);
            const float *from = dy + (oy * p->ow + ox) * c;
            for (int64_t i = v.first; i < v.last; i++)
                for (int64_t j = h.first; j < h.last; j++) {
                    float *to = dx + ((v.origin + i) * p->w + h.origin + j) * c;
                    DP_IVDEP
                    for (int64_t k = 0; k < c; k++) to[k] += from[k] * scale;
                }
        }
}

/* In squares that stay in L1. */
static void transpose(float *dst, const float *src, int64_t rows, int64_t cols)
{
    enum { SIDE = 16 };
    for (int64_t r = 0; r < rows; r += SIDE)
        for (int64_t c = 0; c < cols; c += SIDE)
            for (int64_t j = c; j < cols && j < c + SIDE; j++)
                for (int64_t i = r; i < rows && i < r + SIDE; i++) dst[j * rows + i] = src[i * cols + j];
}

const dp_vec_pool DP_VEC(dp_vec_pool) = {max, max_backward, average, average_backward, transpose};
