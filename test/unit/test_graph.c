/* The model language and the graph: shapes, names and counts against PyTorch, and the text of errors. */
#include "../../nn/graph.h"
#include "../../nn/ops/ops.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const dp_node *node(const dp_graph *g, const char *name)
{
    for (int i = 0; i < g->n_nodes; i++)
        if (!strcmp(g->node[i].name, name)) return &g->node[i];
    fail_msg("no node %s", name);
    return NULL;
}

static const dp_tensor *tensor(const dp_graph *g, const char *name)
{
    int i = dp_graph_find_tensor(g, name);
    if (i < 0) fail_msg("no tensor %s", name);
    return &g->tensor[i];
}

/* A graph from lines "name = spec", separated by ';'; NULL and *err on failure. */
static dp_graph *build(const char *lines, dp_error *err)
{
    dp_graph *g = dp_graph_new();
    char text[4096], *rest = NULL;
    assert_non_null(g);
    snprintf(text, sizeof text, "%s", lines);
    for (char *l = strtok_r(text, ";", &rest); l; l = strtok_r(NULL, ";", &rest)) {
        char *eq = strstr(l, " = ");
        assert_non_null(eq);
        *eq = 0;
        dp_layer(g, l + strspn(l, " "), eq + 3);
    }
    if (dp_graph_finish(g, err) == DP_OK) return g;
    dp_graph_free(g);
    return NULL;
}

static dp_graph *must_build(const char *lines)
{
    dp_error err;
    dp_graph *g = build(lines, &err);
    if (!g) fail_msg("%s: %s", lines, err.text);
    return g;
}

static void test_small(void **state)
{
    (void)state;
    dp_graph *g = must_build("input = 784;fc1 = linear out=256 | relu;fc2 = linear out=10");
    dp_layer_info l;
    dp_tensor_info t;
    assert_int_equal(g->n_nodes, 4);
    assert_true(dp_graph_layer(g, 2, &l));
    assert_string_equal(l.name, "fc1|relu");
    assert_string_equal(l.op, "relu");
    assert_true(dp_graph_layer(g, 1, &l));
    assert_int_equal(l.parameters, 784 * 256 + 256);
    assert_int_equal(l.flops, 256 * (2 * 784 + 1));
    assert_false(dp_graph_layer(g, 4, &l));
    assert_true(dp_graph_tensor(g, 0, &t));
    assert_string_equal(t.name, "fc1.weight");
    assert_int_equal(t.shape[0], 256);
    assert_int_equal(t.shape[1], 784);
    assert_int_equal(t.count, 256 * 784);
    assert_false(dp_graph_tensor(g, 4, &t));
    assert_int_equal(g->out, 3);
    assert_int_equal(g->node[3].width, 10);
    assert_int_equal(g->min_rows, 1);
    dp_graph_free(g);
}

/* Parameters as counted by PyTorch on the same modules; flops of convolutions, linear and attention by hand where simple. */
static void test_models(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        int64_t parameters, width;
        int rank;
    } models[] = {{"mlp", 535818, 10, 1},      {"lenet", 61706, 10, 1},       {"mnist-cnn", 1199882, 10, 1},
                  {"resnet20", 272474, 10, 1}, {"resnet18", 11173962, 10, 1}, {"gpt-mini", 826368, 128 * 65, 2},
                  {"digits", 9930, 10, 1}};
    const char *root = getenv("DP_ROOT");
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        char path[1024];
        dp_error err;
        dp_layer_info l;
        int64_t sum = 0;
        dp_graph *g = dp_graph_new();
        dp_config *c = dp_config_new(NULL, NULL);
        snprintf(path, sizeof path, "%s/tools/configs/%s.ini", root ? root : ".", models[m].file);
        if (dp_config_load(c, path, &err)) fail_msg("%s", err.text);
        dp_graph_config(g, c);
        dp_graph_symbol(g, "classes", 10);
        dp_graph_symbol(g, "vocab", 65);
        if (dp_graph_finish(g, &err)) fail_msg("%s: %s", path, err.text);
        for (int i = 0; dp_graph_layer(g, i, &l); i++) sum += l.parameters;
        assert_int_equal(sum, models[m].parameters);
        assert_int_equal(g->node[g->out].width, models[m].width);
        assert_int_equal(g->node[g->out].rank, models[m].rank);
        for (int i = 0; i < g->n_nodes; i++) assert_true(g->node[i].live);
        dp_graph_free(g);
        dp_config_free(c);
    }
}

/* Sides as torch.nn.Conv2d and MaxPool2d give them. */
static void test_windows(void **state)
{
    (void)state;
    dp_graph *g = must_build("input = 3x32x20;c = conv2d out=8 kernel=5 stride=2 pad=1 dilation=2;p = maxpool2d kernel=3 pad=1;"
                             "q = avgpool2d kernel=2 stride=1;w = conv2d out=4 kernel=1 groups=4 bias=0;n = globalavgpool");
    const dp_node *c = node(g, "c"), *p = node(g, "p"), *q = node(g, "q"), *w = node(g, "w"), *n = node(g, "n");
    assert_int_equal(c->shape[0], 13);
    assert_int_equal(c->shape[1], 7);
    assert_int_equal(c->shape[2], 8);
    assert_int_equal(p->opt[DP_POOL_STRIDE], 3);
    assert_int_equal(p->shape[0], 5);
    assert_int_equal(p->shape[1], 3);
    assert_int_equal(q->shape[0], 4);
    assert_int_equal(q->shape[1], 2);
    assert_int_equal(w->shape[2], 4);
    assert_int_equal(w->n_tensors, 1);
    assert_int_equal(tensor(g, "w.weight")->shape[1], 2);
    assert_true(tensor(g, "c.weight")->fan_in == 3 * 25);
    assert_int_equal(n->shape[0] * n->shape[1], 1);
    assert_int_equal(n->shape[2], 4);
    dp_graph_free(g);
}

static void test_torch_names(void **state)
{
    (void)state;
    static const char *const names[] = {"bn.weight", "bn.bias", "bn.running_mean", "bn.running_var", "bn.num_batches_tracked"};
    static const char *const tokens[] = {"e.weight",          "p.weight",        "a.in_proj_weight", "a.in_proj_bias",
                                         "a.out_proj.weight", "a.out_proj.bias", "ln.weight",        "ln.bias"};
    dp_graph *g = must_build("input = 2x1x1;bn = relu | batchnorm2d | relu");
    for (int i = 0; i < 5; i++) assert_string_equal(g->tensor[i].name, names[i]);
    assert_int_equal(g->n_tensors, 5);
    assert_int_equal(g->tensor[2].buffer, 1);
    assert_int_equal(g->tensor[3].init, DP_INIT_ONE);
    assert_int_equal(g->tensor[4].buffer, 2);
    assert_int_equal(g->tensor[4].rank, 0);
    assert_int_equal(g->tensor[4].count, 1);
    assert_int_equal(g->min_rows, 2); /* a 1 x 1 map */
    assert_string_equal(g->node[1].name, "bn");
    assert_string_equal(g->node[2].name, "bn|batchnorm2d");
    assert_string_equal(g->node[3].name, "bn|relu");
    dp_graph_free(g);

    g = must_build("input = tokens 12;e = embedding vocab=65 dim=8;p = position;a = attention heads=2 causal=1;ln = layernorm");
    for (int i = 0; i < 8; i++) assert_string_equal(g->tensor[i].name, tokens[i]);
    assert_int_equal(tensor(g, "p.weight")->shape[0], 12);
    assert_int_equal(tensor(g, "a.in_proj_weight")->shape[0], 24);
    assert_int_equal(tensor(g, "a.in_proj_weight")->init, DP_INIT_XAVIER);
    assert_int_equal(node(g, "e")->dtype, DP_F32);
    assert_int_equal(node(g, "input")->dtype, DP_I32);
    dp_graph_free(g);
}

static void test_flatten_order(void **state)
{
    (void)state;
    dp_graph *g = must_build("input = 2x4x3;f = flatten | relu | dropout | linear out=5;o = linear out=3");
    assert_int_equal(node(g, "f")->to_file_order, 0);
    assert_int_equal(tensor(g, "f.weight")->flat_hwc[0], 4);
    assert_int_equal(tensor(g, "f.weight")->flat_hwc[1], 3);
    assert_int_equal(tensor(g, "f.weight")->flat_hwc[2], 2);
    assert_int_equal(tensor(g, "f.bias")->flat_hwc[0], 0);
    assert_int_equal(tensor(g, "o.weight")->flat_hwc[0], 0);
    dp_graph_free(g);
    /* two linear layers behind one flatten: both are permuted */
    g = must_build("input = 2x4x3;f = flatten;a = linear out=3 from=f;b = linear out=3 from=f;s = add from=a,b");
    assert_int_equal(node(g, "f")->to_file_order, 0);
    assert_int_equal(tensor(g, "a.weight")->flat_hwc[0], 4);
    assert_int_equal(tensor(g, "b.weight")->flat_hwc[0], 4);
    dp_graph_free(g);
    /* anything else sees PyTorch's order: layernorm, the output itself, a join */
    g = must_build("input = 2x4x3;f = flatten;n = layernorm;o = linear out=3");
    assert_int_equal(node(g, "f")->to_file_order, 1);
    assert_int_equal(tensor(g, "o.weight")->flat_hwc[0], 0);
    dp_graph_free(g);
    g = must_build("input = 2x4x3;f = flatten | relu");
    assert_int_equal(node(g, "f")->to_file_order, 1);
    dp_graph_free(g);
    g = must_build("input = 2x4x3;f = flatten;a = linear out=3;b = concat from=a,f;o = linear out=3");
    assert_int_equal(node(g, "f")->to_file_order, 1);
    assert_int_equal(tensor(g, "a.weight")->flat_hwc[0], 0);
    dp_graph_free(g);
    /* one channel, or one point: both orders are the same and nothing is to be done */
    g = must_build("input = 1x4x3;f = flatten | linear out=3");
    assert_int_equal(node(g, "f")->to_file_order, 0);
    assert_int_equal(tensor(g, "f.weight")->flat_hwc[0], 0);
    dp_graph_free(g);
}

static void test_dead_and_consumers(void **state)
{
    (void)state;
    dp_graph *g = must_build("input = 4;a = linear out=4;dead = linear out=9 from=a;s = add from=a,a;o = linear out=2");
    assert_int_equal(node(g, "dead")->live, 0);
    assert_int_equal(node(g, "a")->live, 1);
    assert_int_equal(node(g, "a")->consumers, 2); /* twice by s; the dead head does not count */
    assert_int_equal(node(g, "s")->consumers, 1);
    assert_int_equal(node(g, "o")->consumers, 0);
    assert_true(dp_graph_find_tensor(g, "dead.weight") >= 0);
    dp_graph_free(g);
}

static void test_followers_are_unique(void **state)
{
    (void)state;
    dp_graph *g = must_build("input = 4;a = dropout | relu | dropout p=0.1 | relu | relu;o = linear out=2");
    assert_string_equal(g->node[1].name, "a");
    assert_string_equal(g->node[2].name, "a|relu");
    assert_string_equal(g->node[3].name, "a|dropout");
    assert_string_equal(g->node[4].name, "a|relu2");
    assert_string_equal(g->node[5].name, "a|relu3");
    assert_true(g->node[1].key != g->node[3].key);
    assert_true(g->node[3].opt[DP_DROPOUT_P] == 0.1);
    dp_graph_free(g);
}

static void test_blocks(void **state)
{
    (void)state;
    dp_graph *g = dp_graph_new();
    dp_error err;
    dp_graph_text(g, "[model]\n"
                     "input = 3x8x8\n"
                     "stem = conv2d out=4 kernel=3 pad=1\n"
                     "s.{0..1} = @pair out=6 stride=2\n"
                     "back = @one out=5 from=stem\n"
                     "h = globalavgpool | flatten | linear out=classes\n"
                     "[block pair out stride=1]\n"
                     "a = @one out=$out stride=$stride\n"
                     "down.0 = conv2d out=$out kernel=1 stride=$stride from=in bias=0\n"
                     "sum = add from=a,down.0 | relu\n"
                     "[block one out stride=1]\n"
                     "c = conv2d out=$out kernel=3 stride=$stride pad=1\n");
    dp_graph_symbol(g, "classes", 7);
    if (dp_graph_finish(g, &err)) fail_msg("%s", err.text);
    assert_int_equal(tensor(g, "s.0.a.c.weight")->shape[1], 4);
    assert_int_equal(tensor(g, "s.1.a.c.weight")->shape[1], 6);
    assert_int_equal(node(g, "s.0.sum|relu")->shape[0], 4);
    assert_int_equal(node(g, "s.1.down.0")->shape[0], 2);
    assert_string_equal(g->node[node(g, "s.1.down.0")->in[0]].name, "s.0.sum|relu");
    assert_string_equal(g->node[node(g, "back.c")->in[0]].name, "stem");
    assert_int_equal(node(g, "back.c")->shape[0], 8); /* the default stride */
    assert_int_equal(node(g, "s.0.sum")->live, 0);    /* `back` reads the stem, so nothing reads the stack */
    assert_int_equal(tensor(g, "h.weight")->shape[0], 7);
    dp_graph_free(g);
}

static void expect_text(const char *lines, const char *const *want)
{
    dp_error err;
    dp_graph *g = dp_graph_new();
    dp_graph_text(g, lines);
    assert_int_equal(dp_graph_finish(g, &err), DP_ECONFIG);
    for (; *want; want++)
        if (!strstr(err.text, *want)) fail_msg("'%s' misses '%s'", err.text, *want);
    dp_graph_free(g);
}

static void test_block_errors(void **state)
{
    (void)state;
    expect_text("[model]\ninput = 1x8x8\nx = @b\n[block b k=9]\nc = conv2d out=2 kernel=$k\n",
                (const char *const[]){"text:5: [block b] c", "used as x at text:3", "window of 9", "1 x 8 x 8", NULL});
    expect_text("[model]\ninput = 4\nx = @loop\n[block loop]\ny = @loop\n",
                (const char *const[]){"used inside itself", "text:5", NULL});
    expect_text("[model]\ninput = 4\nx = @blok\n[block block a]\ny = linear out=$a\n",
                (const char *const[]){"text:3", "did you mean \"block\"?", NULL});
    expect_text("[model]\ninput = 4\nx = @b\n[block b a]\ny = linear out=$a\n",
                (const char *const[]){"[model] x", "block b needs a=", NULL});
    expect_text("[model]\ninput = 4\nx = @b aa=1\n[block b a]\ny = linear out=$a\n",
                (const char *const[]){"no argument \"aa\"", "did you mean \"a\"?", NULL});
    expect_text("[model]\ninput = 4\nx = @b a=1\n[block b a]\ny = linear out=$c\n",
                (const char *const[]){"$c", "no such argument", NULL});
    expect_text("[model]\ninput = 4\nx = @b | relu\n[block b]\ny = relu\n", (const char *const[]){"stands alone", NULL});
    expect_text("[model]\ninput = 4\nx = linear out=3\ny = @b\n[block b]\nz = relu from=x\n",
                (const char *const[]){"from=\"x\"", "`in` is the block's input", NULL}); /* a block does not see outside */
    expect_text("[model]\ninput = 4\nx = @b a=1 a=2\n[block b a]\ny = relu\n", (const char *const[]){"a is given twice", NULL});
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *lines, *want;
    } bad[] = {
        {"fc = linear out=3", "first line of [model] must be `input"},
        {"input = 4", "no layers"},
        {"input = 4x0;a = relu", "wanted C x H x W"},
        {"input = 1x2x3x4;a = relu", "wanted C x H x W"},
        {"input = x4;a = relu", "wanted C x H x W"},
        {"input = 4;a = lineer out=3", "did you mean \"linear\"?"},
        {"input = 4;a = linear out=3 bais=0", "did you mean \"bias\"?"},
        {"input = 4;a = linear", "linear needs out="},
        {"input = 4;a = linear out=0", "out must be a whole number 1.."},
        {"input = 4;a = linear out=2.5", "found \"2.5\""},
        {"input = 4;a = linear out=3 out=4", "given twice"},
        {"input = 4;a = linear out 3", "wanted key=value"},
        {"input = 4;a = linear out=classes", "comes from the data"},
        {"input = 4;a = linear out=width", "no value of that name"},
        {"input = 4;a = relu p=1", "it has none"},
        {"input = 4;a = gelu approximate=fast", "none|tanh"},
        {"input = 4;a = dropout p=1.5", "p must be a number 0..0.999"},
        {"input = 4;a = relu;a = relu", "needs its own name"},
        {"input = 4;a b = relu", "a line's name is"},
        {"input = 4;.a = relu", "a line's name is"},
        {"input = 4;in = relu", "means a block's input"},
        {"input = 4;a = relu | ", "found nothing"},
        {"input = 4;a = linear out=3 | linear out=4", "both have parameters"},
        {"input = 4;a = relu | relu from=input", "first op of a line"},
        {"input = 4;abc = relu;d = relu from=abd", "did you mean \"abc\"?"},
        {"input = 4;a = relu from=b;b = relu", "stands before this one"},
        {"input = 4;a = relu from=input,input", "only add and concat join"},
        {"input = 4;a = add", "needs from=A,B"},
        {"input = 4;a = linear out=5;b = add from=a,input", "\"a\" gives 5 and \"input\" gives 4"},
        {"input = 2x4x3;a = conv2d out=5 kernel=1 stride=2;b = concat from=a,input",
         "\"a\" gives 5 x 2 x 2 and \"input\" gives 2 x 4 x 3"},
        {"input = 16x5x5;fc = linear out=3", "\"input\" gives the picture 16 x 5 x 5; put `flatten"},
        {"input = 784;c = conv2d out=3 kernel=3", "wants a picture C x H x W, but \"input\" gives 784"},
        {"input = 3x8x8;c = conv2d out=4 kernel=3 groups=2", "groups=2 must divide the 3 input channels"},
        {"input = 3x8x8;c = conv2d out=4 kernel=5 dilation=3", "a window of 13 does not fit into the input 3 x 8 x 8"},
        {"input = 3x8x8;c = maxpool2d kernel=3 pad=2", "at most half"},
        {"input = tokens 8;a = linear out=3", "put an embedding before it"},
        {"input = 8;a = embedding vocab=3 dim=4", "embedding wants token numbers"},
        {"input = 6x10;a = attention heads=3", "heads=3 must divide the width 10"},
        {"input = 2147483647x2147483647;a = relu", "more elements than a sample may have"},
        {"input = 1x1048576x1048576;a = conv2d out=2147483647 kernel=1", "more elements than a sample may have"},
        {"input = 2147483647;a = linear out=2147483647", "more than 2^40 elements"},
        {"input = 4;a{0..9999} = relu", "a repeat ends at"},
        {"input = 4;a{2..1} = relu", "wanted one repeat"},
        {"input = 4;a{0..1 = relu", "wanted one repeat"},
        {"input = 4;a{0..2} = relu from=input", "do not go together"},
        {"input = 4;a{0..4000} = relu;b{0..4000} = relu", "more than 4096 ops"},
        {"input = 4;a = attention heads=1", "attention wants T x C"},
        {"input = 4x4;a = attention heads=1;a.out_proj = linear out=4", "have a tensor named a.out_proj."},
        {"input = 4;a = linear out=$n", "no such argument"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dp_error err;
        memset(&err, 0, sizeof err);
        if (build(bad[i].lines, &err)) fail_msg("'%s' was accepted", bad[i].lines);
        assert_int_equal(err.code, DP_ECONFIG);
        if (!strstr(err.text, bad[i].want)) fail_msg("'%s' gave '%s', wanted '%s'", bad[i].lines, err.text, bad[i].want);
    }
}

static void test_place(void **state)
{
    (void)state;
    dp_error err;
    assert_null(build("input = 784;c = conv2d out=3 kernel=3", &err));
    assert_string_equal(err.layer, "c");
    assert_memory_equal(err.text, "[model] c: ", 11);
}

static void test_first_error_sticks(void **state)
{
    (void)state;
    dp_error err;
    dp_graph *g = dp_graph_new();
    dp_layer(g, NULL, "relu");
    dp_layer(g, "input", "4");
    assert_int_equal(dp_graph_finish(g, &err), DP_EARGUMENT);
    assert_int_equal(dp_graph_finish(g, NULL), DP_EARGUMENT);
    dp_graph_free(g);

    g = must_build("input = 4;a = relu");
    assert_int_equal(dp_graph_finish(g, &err), DP_OK); /* nothing was added */
    dp_layer(g, "b", "relu");
    assert_int_equal(dp_graph_finish(g, &err), DP_EARGUMENT);
    assert_non_null(strstr(err.text, "finished"));
    assert_int_equal(g->n_nodes, 2);
    dp_graph_free(g);
    dp_graph_free(NULL);

    g = dp_graph_new_version(DP_VERSION + 100);
    assert_int_equal(dp_graph_finish(g, &err), DP_EVERSION);
    dp_graph_free(g);
    assert_int_equal(dp_graph_finish(NULL, &err), DP_EARGUMENT);
}

static void test_op_table(void **state)
{
    (void)state;
    int n = 0;
    for (const dp_op *op; (op = dp_op_at(n)) != NULL; n++) {
        assert_ptr_equal(dp_op_find(op->name), op);
        assert_in_range(op->n_options, 0, DP_MAX_OPTIONS);
        assert_true(op->kind != DP_OP_INPUT);
        for (int i = 0; i < op->n_options; i++) {
            assert_non_null(op->options[i].key);
            assert_non_null(op->options[i].help);
            assert_true(op->options[i].min <= op->options[i].max);
        }
    }
    assert_int_equal(n, DP_OP_KINDS - 1);
    assert_null(dp_op_find("input"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_torch_names),
        cmocka_unit_test(test_flatten_order),
        cmocka_unit_test(test_dead_and_consumers),
        cmocka_unit_test(test_followers_are_unique),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_block_errors),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_place),
        cmocka_unit_test(test_first_error_sticks),
        cmocka_unit_test(test_op_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
