/* Internal to nn/cpu: the tables of vector loops. The files of vec/ are built once per instruction set (x86-64-v4, -v3, base)
 * with -DDP_ISA=NAME; each fills one group below (static functions, one table), table.c gathers the groups.
 *
 * Shared rules: n, w, rows are counts of elements, wide rows, ...; pointers need no alignment; arrays are equal or disjoint.
 * The result for an element depends neither on its place in the array nor on alignment: bodies and tails compute alike. */
#ifndef DP_NN_CPU_VEC_H
#define DP_NN_CPU_VEC_H
#include <stddef.h>
#include <stdint.h>

typedef struct dp_vec_flat {
    void (*add)(float *dst, const float *a, const float *b, int64_t n);
    void (*accumulate)(double *dst, const float *x, int64_t n); /* dst += x */
    void (*columns)(float *sum, const float *x, int64_t rows,
                    int64_t n);                      /* sum (n) = column sums of x (rows, n), in a fixed order */
    double (*sumsq)(const float *x, int64_t n);      /* the same bits in every build */
    uint64_t (*checksum)(const float *x, int64_t n); /* sum of bits(x[i]) (2 i + 1), modulo 2^64; n < 2^31 */
} dp_vec_flat;

/* What an optimizer step multiplies with; see nn/optim.h. */
typedef struct dp_step {
    float grad_scale, lr, decay; /* decay: weight decay of this range */
    float momentum;
    int first, nesterov;
    float beta1, beta2, rest1, rest2, eps; /* rest = 1 - beta */
    float rate, root, keep;                /* adam: lr / (1 - beta1^t), 1 / sqrt(1 - beta2^t); adamw: 1 - lr decay */
} dp_step;
typedef struct dp_vec_optimizer {
    void (*sgd)(float *p, const float *g, int64_t n, const dp_step *s);
    void (*momentum)(float *p, const float *g, float *m, int64_t n, const dp_step *s);
    void (*adam)(float *p, const float *g, float *m, float *v, int64_t n, const dp_step *s);
    void (*adamw)(float *p, const float *g, float *m, float *v, int64_t n, const dp_step *s);
} dp_vec_optimizer;

typedef struct dp_vec_convert {
    void (*u8)(float *dst, const uint8_t *src, int64_t n); /* value / 255 */
    void (*u8_interleave)(float *dst, const uint8_t *src, int64_t pixels,
                          int64_t channels);                                            /* (c, pixel) -> (pixel, c), / 255 */
    void (*interleave)(float *dst, const float *src, int64_t pixels, int64_t channels); /* (c, pixel) -> (pixel, c) */
    void (*normalize)(float *x, int64_t n, int64_t w, const float *mean, const float *inv_std); /* tables (w), n any */
} dp_vec_convert;

typedef struct dp_vec_pointwise {
    void (*relu)(float *y, const float *x, int64_t n);
    void (*relu_backward)(float *dx, const float *dy, const float *y, int64_t n); /* zero where y <= 0 */
    void (*add_relu)(float *y, const float *a, const float *b, int64_t n);
    void (*gelu_erf)(float *y, const float *x, int64_t n);
    void (*gelu_erf_backward)(float *dx, const float *dy, const float *x, int64_t n);
    void (*gelu_tanh)(float *y, const float *x, int64_t n);
    void (*gelu_tanh_backward)(float *dx, const float *dy, const float *x, int64_t n);
    void (*sigmoid)(float *y, const float *x, int64_t n);
    void (*sigmoid_backward)(float *dx, const float *dy, const float *y, int64_t n);
    void (*tanh)(float *y, const float *x, int64_t n);
    void (*tanh_backward)(float *dx, const float *dy, const float *y, int64_t n);
} dp_vec_pointwise;

/* softmax and cross entropy, one row of n at a time */
typedef struct dp_vec_softmax {
    float (*max)(const float *x, int64_t n);                           /* NaN if there is one */
    double (*exp_sum)(float *y, const float *x, float max, int64_t n); /* y = exp(x - max); their sum */
    double (*sum)(const float *x, int64_t n);
    double (*dot)(const float *a, const float *b, int64_t n);
    void (*scale)(float *y, const float *x, float a, float b, int64_t n);               /* y = a x + b */
    void (*backward)(float *dx, const float *dy, const float *y, float dot, int64_t n); /* y (dy - dot) */
    double (*mse)(float *dx, const float *x, const float *t, int64_t n); /* sum of (x - t)^2; dx = 2 (x - t), may be NULL */
} dp_vec_softmax;

/* batchnorm over wide rows: w = channels repeated to a multiple of 16, n elements in all (the last row may be short). How the
 * mask of a relu behind it is found: not at all, from x * k + h > 0 (recomputed), or from the stored output. */
typedef enum dp_mask { DP_MASK_NONE, DP_MASK_INPUT, DP_MASK_OUTPUT } dp_mask;
typedef struct dp_bn_tables {
    int64_t w;
    const float *k, *h; /* y = x k + h */
    const float *mean;
    const float *a, *p, *c; /* dx = a (g - (x - mean) p - c) */
} dp_bn_tables;
typedef struct dp_vec_norm {
    void (*moments)(const float *x, int64_t n, int64_t w, const float *shift, float *sum,
                    float *square); /* += (x - shift), its square */
    void (*apply)(float *y, const float *x, const float *other, int relu, int64_t n,
                  const dp_bn_tables *t); /* other NULL: no add */
    /* += g, g (x - mean); with DP_MASK_OUTPUT the masked g goes to `masked` (may be dy) */
    void (*reduce)(const float *dy, const float *x, const float *y, float *masked, dp_mask mask, int64_t n,
                   const dp_bn_tables *t, float *sum, float *product);
    void (*backward)(float *dx, const float *dy, const float *x, dp_mask mask, int64_t n, const dp_bn_tables *t);
    /* layernorm, one row of n */
    void (*layernorm)(float *y, const float *x, const float *weight, const float *bias, float eps, int64_t n, float *mean,
                      float *inv_std);
    /* dw += dy xhat, db += dy (both or neither); dx may be NULL or dy */
    void (*layernorm_backward)(float *dx, const float *dy, const float *x, const float *weight, float mean, float inv_std,
                               int64_t n, float *dw, float *db);
} dp_vec_norm;

/* One sample (h, w, c) -> (oh, ow, c). mark: which place of the window won (kernel * y + x), one byte, or int32 when `wide`;
 * NULL: not kept. */
typedef struct dp_pool {
    int64_t h, w, c, oh, ow;
    int64_t kernel, stride, pad;
    int wide;
} dp_pool;
enum { DP_POOL_DROPPED = 255 }; /* a mark of the byte form: dropout took this element */
typedef struct dp_vec_pool {
    void (*max)(const dp_pool *p, float *y, const float *x, void *mark);
    void (*max_backward)(const dp_pool *p, float *dx, const float *dy, const void *mark, float scale);
    void (*average)(const dp_pool *p, float *y, const float *x);
    void (*average_backward)(const dp_pool *p, float *dx, const float *dy);
    void (*transpose)(float *dst, const float *src, int64_t rows, int64_t cols); /* (rows, cols) -> (cols, rows) */
} dp_vec_pool;

typedef struct dp_vec_dropout {
    /* bits: one of 64 elements a word, 1 = kept (draw >> 8 >= limit); element i of a sample draws word i % 4 of quad i / 4 */
    void (*draw)(uint64_t *bits, int64_t n, uint64_t seed, uint32_t purpose, uint64_t id, uint64_t epoch, uint32_t limit);
    void (*apply)(float *y, const float *x, const uint64_t *bits, float scale, int64_t n);
    void (*mark)(uint8_t *mark, const uint64_t *bits, int64_t n); /* DP_POOL_DROPPED where not kept */
} dp_vec_dropout;

/* One head of attention over one sample: q, k, v and their gradients are (t, width) in rows of `stride`, out and d_out in rows of
 * out_stride; log_sum (t) goes from forward to backward. Outputs are overwritten. work: work(t, width) floats at 64 bytes. */
typedef struct dp_head {
    int64_t t, width, stride, out_stride;
    int causal;
    float scale; /* of the scores; > 0 */
    float *work;
} dp_head;
enum { DP_HEAD_PAD = 16 }; /* rows are padded to a multiple of the longest vector */
typedef struct dp_vec_attention {
    int64_t (*work)(int64_t t, int64_t width);
    void (*forward)(const dp_head *h, const float *q, const float *k, const float *v, float *out, float *log_sum);
    void (*backward)(const dp_head *h, const float *q, const float *k, const float *v, const float *out, const float *log_sum,
                     const float *d_out, float *dq, float *dk, float *dv);
} dp_vec_attention;

typedef struct dp_vec {
    const char *isa;
    const dp_vec_flat *flat;
    const dp_vec_optimizer *optimizer;
    const dp_vec_convert *convert;
    const dp_vec_pointwise *pointwise;
    const dp_vec_softmax *softmax;
    const dp_vec_norm *norm;
    const dp_vec_pool *pool;
    const dp_vec_dropout *dropout;
    const dp_vec_attention *attention;
} dp_vec;

const dp_vec *dp_vec_at(int i);    /* tables that this processor runs, baseline first; NULL past the last */
const dp_vec *dp_vec_select(void); /* the last of them */
#endif
