/* The layout of parameters in buckets and ranges, starting values, and the two orders of a tensor. */
#include "../../nn/params.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A net of 3.7 M parameters with every kind of tensor: more than the first and last bucket hold together. */
static const char net[] = "[model]\n"
                          "input = 3x16x16\n"
                          "c1 = conv2d out=8 kernel=3 pad=1\n"
                          "bn1 = batchnorm2d | relu\n"
                          "c2 = conv2d out=16 kernel=3 stride=2 pad=1 groups=2 bias=0\n"
                          "bn2 = batchnorm2d | relu\n"
                          "f1 = flatten | linear out=800 | relu\n"
                          "f2 = linear out=1000 | relu\n"
                          "f3 = linear out=1000 | relu\n"
                          "f4 = linear out=1000 | relu\n"
                          "f5 = linear out=10\n";

static dp_graph *graph(const char *text)
{
    dp_graph *g = dp_graph_new();
    dp_error err;
    dp_graph_text(g, text);
    if (dp_graph_finish(g, &err)) fail_msg("%s", err.text);
    return g;
}

static dp_params *open_params(const dp_graph *g, const dp_config *c, int slices)
{
    dp_params *p;
    dp_error err;
    if (dp_params_open(&p, g, c, slices, &err)) fail_msg("%s", err.text);
    return p;
}

static void check_layout(const dp_graph *g, const dp_params *p, int slices)
{
    int64_t at = 0;
    for (int b = 0; b < p->n_buckets; b++) {
        assert_int_equal(p->bucket[b].offset, at);
        assert_int_equal(p->bucket[b].count % ((int64_t)slices * DP_CHUNK), 0);
        at += p->bucket[b].count;
        if (b) assert_true(p->bucket[b].last_node < p->bucket[b - 1].last_node);
    }
    assert_int_equal(at, p->count);
    char *used = calloc((size_t)p->count, 1), *buffer = calloc((size_t)p->buffer_count + 1, 1);
    assert_non_null(used);
    assert_non_null(buffer);
    for (int t = 0; t < p->n_params; t++) {
        const dp_param *q = &p->param[t];
        const dp_tensor *x = &g->tensor[t];
        assert_int_equal(q->tensor, t);
        assert_int_equal(q->count, x->count);
        assert_int_equal(q->offset % 16, 0);
        int twice = 0;
        char *where = x->buffer ? buffer : used;
        assert_true(q->offset + q->count <= (x->buffer ? p->buffer_count : p->count));
        for (int64_t i = 0; i < q->count; i++) twice |= where[q->offset + i]++ != 0;
        assert_false(twice); /* no two in one place */
        if (x->buffer) {
            assert_int_equal(q->bucket, -1);
            continue;
        }
        const dp_bucket *b = &p->bucket[q->bucket];
        assert_true(q->offset >= b->offset && q->offset + q->count <= b->offset + b->count);
        assert_true(x->node >= b->last_node);
        if (q->bucket) assert_true(x->node < p->bucket[q->bucket - 1].last_node); /* backward completes it later */
    }
    free(used);
    free(buffer);
}

static void test_layout(void **state)
{
    (void)state;
    static const int slices[] = {1, 2, 3, 8};
    dp_graph *g = graph(net);
    dp_config *c = dp_config_new(NULL, NULL);
    dp_params *one = open_params(g, c, 1);
    /* f5 + f4 reach 1 MB; f3, f2 are below 8 MB; then c1 .. f1, the shortest run of first layers that reaches 1 MB */
    assert_int_equal(one->n_buckets, 3);
    assert_int_equal(one->param[dp_graph_find_tensor(g, "f4.weight")].bucket, 0);
    assert_int_equal(one->param[dp_graph_find_tensor(g, "f3.weight")].bucket, 1);
    assert_int_equal(one->param[dp_graph_find_tensor(g, "f2.bias")].bucket, 1);
    assert_int_equal(one->param[dp_graph_find_tensor(g, "f1.weight")].bucket, 2);
    assert_int_equal(one->param[dp_graph_find_tensor(g, "c1.weight")].bucket, 2);
    for (size_t i = 0; i < 4; i++) {
        dp_params *p = open_params(g, c, slices[i]);
        check_layout(g, p, slices[i]);
        assert_int_equal(p->n_buckets, one->n_buckets); /* borders do not depend on the devices */
        for (int t = 0; t < p->n_params; t++) assert_int_equal(p->param[t].bucket, one->param[t].bucket);
        dp_params_free(p);
    }
    dp_params_free(one);
    assert_int_equal(dp_config_set(c, "devices.bucket_mb", "1"), DP_OK);
    one = open_params(g, c, 2);
    check_layout(g, one, 2);
    assert_int_equal(one->n_buckets, 4); /* f3 and f2 apart */
    dp_params_free(one);
    assert_int_equal(dp_config_set(c, "devices.bucket_mb", "0.001"), DP_OK);
    one = open_params(g, c, 2);
    check_layout(g, one, 2);
    assert_int_equal(one->n_buckets,
                     7); /* f5 .. f1; c2 with bn2 in front of it; bn1 with c1, the first to reach 262 elements */
    dp_params_free(one);
    dp_params_free(NULL);
    dp_config_free(c);
    dp_graph_free(g);
}

static void test_no_parameters(void **state)
{
    (void)state;
    dp_graph *g = graph("[model]\ninput = 4\na = relu\n");
    dp_config *c = dp_config_new(NULL, NULL);
    dp_params *p = open_params(g, c, 2);
    assert_int_equal(p->n_buckets, 0);
    assert_int_equal(p->count, 0);
    dp_params_free(p);
    dp_config_free(c);
    dp_graph_free(g);
}

/* Every parameter that is not frozen is stepped once, with its rule; a frozen one not at all. */
static void test_ranges(void **state)
{
    (void)state;
    dp_graph *g = graph(net);
    dp_config *c = dp_config_new(NULL, NULL);
    dp_params *p = open_params(g, c, 3);
    assert_int_equal(p->n_ranges, 1); /* one rule: one range across all padding */
    dp_params_free(p);
    assert_int_equal(dp_config_set(c, "optimizer.no_decay", "*.bias, bn*"), DP_OK);
    assert_int_equal(dp_config_set(c, "optimizer.freeze", "f3.*,c1.weight"), DP_OK);
    p = open_params(g, c, 3);
    for (int t = 0; t < p->n_params; t++) {
        const dp_param *q = &p->param[t];
        const char *name = g->tensor[t].name;
        if (g->tensor[t].buffer) continue;
        int no_decay = strstr(name, ".bias") || name[0] == 'b', frozen = !strncmp(name, "f3.", 3) || !strcmp(name, "c1.weight");
        assert_int_equal(q->frozen, frozen);
        assert_int_equal(q->decay, !no_decay);
        int64_t stepped = 0;
        for (int r = 0; r < p->n_ranges; r++) {
            int64_t lo = p->range[r].offset, hi = lo + p->range[r].count;
            if (r) assert_true(lo >= p->range[r - 1].offset + p->range[r - 1].count);
            assert_int_equal(p->range[r].count % 16, 0);
            if (q->offset >= hi || q->offset + q->count <= lo) continue;
            assert_int_equal(p->range[r].decay, q->decay);
            stepped += (q->offset + q->count < hi ? q->offset + q->count : hi) - (q->offset > lo ? q->offset : lo);
        }
        assert_int_equal(stepped, frozen ? 0 : q->count);
    }
    dp_params_free(p);
    dp_config_free(c);
    dp_graph_free(g);
}

static void refuse(const char *key, const char *value, const char *want)
{
    dp_graph *g = graph("[model]\ninput = 4x4x4\nb = batchnorm2d\n");
    dp_config *c = dp_config_new(NULL, NULL);
    dp_params *p;
    dp_error err;
    assert_int_equal(dp_config_set(c, key, value), DP_OK);
    assert_int_equal(dp_params_open(&p, g, c, 1, &err), DP_ECONFIG);
    assert_null(p);
    if (!strstr(err.text, want)) fail_msg("'%s' misses '%s'", err.text, want);
    dp_config_free(c);
    dp_graph_free(g);
}

static void test_patterns(void **state)
{
    (void)state;
    refuse("optimizer.no_decay", "*.bias,bm*", "\"bm*\" matches no parameter");
    refuse("optimizer.freeze", "b.running_mean", "matches no parameter");
    refuse("optimizer.freeze", "*", "every parameter is frozen");
}

/* The patterns of the configs that ship match, and every parameter of theirs has its place. */
static void test_configs(void **state)
{
    (void)state;
    static const char *const names[] = {"mlp", "lenet", "mnist-cnn", "resnet20", "resnet18", "gpt-mini", "digits"};
    const char *root = getenv("DP_ROOT");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[1024];
        dp_error err;
        dp_graph *g = dp_graph_new();
        dp_config *c = dp_config_new(NULL, NULL);
        snprintf(path, sizeof path, "%s/tools/configs/%s.ini", root ? root : ".", names[i]);
        if (dp_config_load(c, path, &err)) fail_msg("%s", err.text);
        dp_graph_config(g, c);
        dp_graph_symbol(g, "classes", 10);
        dp_graph_symbol(g, "vocab", 65);
        if (dp_graph_finish(g, &err)) fail_msg("%s", err.text);
        dp_params *p = open_params(g, c, 2);
        check_layout(g, p, 2);
        dp_params_free(p);
        dp_config_free(c);
        dp_graph_free(g);
    }
}

static float *init(const dp_graph *g, const dp_params *p, uint64_t seed, float **buffer)
{
    float *x = malloc((size_t)p->count * sizeof *x);
    *buffer = malloc(((size_t)p->buffer_count + 1) * sizeof **buffer);
    assert_non_null(x);
    assert_non_null(*buffer);
    dp_params_init(p, g, seed, x, *buffer);
    return x;
}

/* Mean and variance of n draws against the distribution's: within 6 standard errors (fixed seed: the outcome never changes). */
static void check_moments(const float *x, int64_t n, double var, double kurtosis, double bound)
{
    double sum = 0, sq = 0, most = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)x[i];
        sq += (double)x[i] * (double)x[i];
        most = fmax(most, fabs((double)x[i]));
    }
    assert_true(fabs(sum / (double)n) < 6 * sqrt(var / (double)n));
    assert_true(fabs(sq / (double)n - var) < 6 * var * sqrt((kurtosis - 1) / (double)n));
    assert_true(most <= bound);
    assert_true(most > 0.9 * (bound < 5 ? bound : 4)); /* the range is used: 40,000 normal draws pass 3.6 */
}

static void test_init(void **state)
{
    (void)state;
    dp_graph *g = graph(
        "[model]\ninput = tokens 16\ne = embedding vocab=1000 dim=64\na = attention heads=2\nh = linear out=700\n");
    dp_config *c = dp_config_new(NULL, NULL);
    dp_params *p = open_params(g, c, 1);
    float *buffer, *x = init(g, p, 1, &buffer);
    const float *e = x + p->param[dp_graph_find_tensor(g, "e.weight")].offset;
    const float *in = x + p->param[dp_graph_find_tensor(g, "a.in_proj_weight")].offset;
    const float *h = x + p->param[dp_graph_find_tensor(g, "h.weight")].offset;
    double xavier = sqrt(6.0 / (64 + 192)), kaiming = 1 / sqrt(64.0);
    check_moments(e, 64000, 1, 3, 6);
    check_moments(in, 192 * 64, xavier * xavier / 3, 1.8, xavier);
    check_moments(h, 700 * 64, kaiming * kaiming / 3, 1.8, kaiming);
    check_moments(x + p->param[dp_graph_find_tensor(g, "h.bias")].offset, 700, kaiming * kaiming / 3, 1.8, kaiming);
    for (int i = 0; i < 192; i++) assert_true(x[p->param[dp_graph_find_tensor(g, "a.in_proj_bias")].offset + i] == 0);

    /* another seed differs; another net gives a layer of the same name and shape the same start */
    float *buffer2, *y = init(g, p, 2, &buffer2);
    int64_t equal = 0;
    for (int64_t i = 0; i < 64000; i++) equal += e[i] == (y + p->param[dp_graph_find_tensor(g, "e.weight")].offset)[i];
    assert_true(equal < 10);
    free(y), free(buffer2);
    dp_graph *g2 = graph("[model]\ninput = 5x64\nfirst = linear out=64\nh = linear out=700\nlast = linear out=3\n");
    dp_params *p2 = open_params(g2, c, 4);
    y = init(g2, p2, 1, &buffer2);
    assert_memory_equal(y + p2->param[dp_graph_find_tensor(g2, "h.weight")].offset, h, 700 * 64 * sizeof(float));
    free(y), free(buffer2), free(x), free(buffer);
    dp_params_free(p), dp_params_free(p2);
    dp_graph_free(g), dp_graph_free(g2);
    dp_config_free(c);
}

static void test_init_norms_and_padding(void **state)
{
    (void)state;
    dp_graph *g = graph("[model]\ninput = 3x4x4\nbn = batchnorm2d\nf = flatten | linear out=3\n");
    dp_config *c = dp_config_new(NULL, NULL);
    dp_params *p = open_params(g, c, 2);
    float *buffer, *x = init(g, p, 1, &buffer);
    double sum = 0, padding = 0;
    for (int i = 0; i < 3; i++) {
        sum += (double)x[p->param[0].offset + i];
        assert_true(x[p->param[1].offset + i] == 0);
        assert_true(buffer[p->param[2].offset + i] == 0);
        assert_true(buffer[p->param[3].offset + i] == 1);
    }
    assert_true(sum == 3);
    assert_true(buffer[p->param[4].offset] == 0);
    for (int64_t i = 0; i < p->count; i++) padding += fabs((double)x[i]);
    for (int t = 0; t < p->n_params; t++)
        for (int64_t i = 0; i < p->param[t].count && p->param[t].bucket >= 0; i++)
            padding -= fabs((double)x[p->param[t].offset + i]);
    assert_true(fabs(padding) < 1e-9);
    free(x), free(buffer);
    dp_params_free(p);
    dp_config_free(c);
    dp_graph_free(g);
}

/* Element (o, i, y, x) of a file stands at (o, y, x, i) in memory; column (c, y, x) of a linear layer behind a flatten at (y, x, c). */
static void test_orders(void **state)
{
    (void)state;
    dp_graph *g = graph("[model]\ninput = 3x5x4\nc = conv2d out=2 kernel=2\nf = flatten | linear out=3\ng = linear out=5\n");
    for (int t = 0; t < g->n_tensors; t++) {
        const dp_tensor *x = &g->tensor[t];
        float *file = malloc((size_t)x->count * sizeof *file), *memory = malloc((size_t)x->count * sizeof *memory);
        float *back = malloc((size_t)x->count * sizeof *back);
        for (int64_t i = 0; i < x->count; i++) file[i] = (float)i;
        dp_tensor_from_file(x, file, memory);
        dp_tensor_to_file(x, memory, back);
        assert_memory_equal(file, back, (size_t)x->count * sizeof *file);
        memcpy(back, memory, (size_t)x->count * sizeof *back);
        float *row = malloc((size_t)(dp_tensor_row(x) + 1) * sizeof *row);
        dp_tensor_to_file_here(x, back, row);
        free(row);
        assert_memory_equal(file, back, (size_t)x->count * sizeof *file);
        if (!strcmp(x->name, "c.weight")) {
            assert_int_equal(x->count, 2 * 3 * 2 * 2);
            for (int o = 0; o < 2; o++)
                for (int i = 0; i < 3; i++)
                    for (int q = 0; q < 4; q++) assert_true(memory[(o * 4 + q) * 3 + i] == file[(o * 3 + i) * 4 + q]);
        } else if (!strcmp(x->name, "f.weight")) { /* behind 2 x 4 x 3 */
            assert_int_equal(x->count, 3 * 24);
            for (int o = 0; o < 3; o++)
                for (int ch = 0; ch < 2; ch++)
                    for (int q = 0; q < 12; q++) assert_true(memory[o * 24 + q * 2 + ch] == file[o * 24 + ch * 12 + q]);
        } else {
            assert_memory_equal(file, memory, (size_t)x->count * sizeof *file);
        }
        free(file), free(memory), free(back);
    }
    dp_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),   cmocka_unit_test(test_no_parameters), cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_patterns), cmocka_unit_test(test_init),          cmocka_unit_test(test_init_norms_and_padding),
        cmocka_unit_test(test_orders),   cmocka_unit_test(test_configs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
