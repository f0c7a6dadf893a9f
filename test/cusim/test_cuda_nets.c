/* Whole networks for one step on a simulated GPU and on the CPU: outputs, gradients, running statistics and updated parameters agree, with
 * every choice of kernels, and a step enqueues no more calls than it may. Shapes are large enough for several blocks of everything. */
#include "cuda_rig.h"

#include "../../nn/optim.h"
#include "../../nn/plan.h"
#include "cusim.h"

typedef struct net {
    const char *name, *text;
    int64_t rows, classes;
    int sync;             /* batchnorm with exchanged statistics */
    int most, most_plain; /* calls of a step: with epilogues, without; 0: not counted */
} net;

static const net nets[] = {
    {"mlp", "[model]\ninput = 1x28x28\nfc1 = flatten | linear out=60 | relu\nfc2 = linear out=33 | relu\nfc3 = linear out=10\n",
     70, 10, 0, 14, 21},
    {"lenet",
     "[model]\ninput = 1x28x28\nconv1 = conv2d out=6 kernel=5 pad=2 | relu | maxpool2d kernel=2\n"
     "conv2 = conv2d out=16 kernel=5 | relu | maxpool2d kernel=2\nfc1 = flatten | linear out=120 | relu\n"
     "fc2 = linear out=84 | relu\nfc3 = linear out=10\n",
     6, 10, 0, 27, 34},
    {"resnet18",
     "[model]\ninput = 3x16x16\nconv1 = conv2d out=8 kernel=3 pad=1 bias=0\nbn1 = batchnorm2d | relu\n"
     "layer1.{0..1} = @basic out=8\nlayer2.0 = @down out=16\nlayer2.1 = @basic out=16\nlayer3.0 = @down out=24\n"
     "layer3.1 = @basic out=24\nlayer4.0 = @down out=40\nlayer4.1 = @basic out=40\npool = globalavgpool | flatten\n"
     "fc = linear out=10\n"
     "[block basic out]\nconv1 = conv2d out=$out kernel=3 pad=1 bias=0\nbn1 = batchnorm2d | relu\n"
     "conv2 = conv2d out=$out kernel=3 pad=1 bias=0\nbn2 = batchnorm2d\nsum = add from=bn2,in | relu\n"
     "[block down out stride=2]\nconv1 = conv2d out=$out kernel=3 stride=$stride pad=1 bias=0\nbn1 = batchnorm2d | relu\n"
     "conv2 = conv2d out=$out kernel=3 pad=1 bias=0\nbn2 = batchnorm2d\n"
     "downsample.0 = conv2d out=$out kernel=1 stride=$stride bias=0 from=in\ndownsample.1 = batchnorm2d\n"
     "sum = add from=bn2,downsample.1 | relu\n",
     3, 10, 0, 160, 160},
    {"gpt",
     "[model]\ninput = tokens 20\ne = embedding vocab=33 dim=16\np = position\nb.{0..3} = @layer heads=4 width=16 hidden=64\n"
     "ln = layernorm\nhead = linear out=33 bias=0\n"
     "[block layer heads width hidden]\nln1 = layernorm\nattn = attention heads=$heads causal=1\nsum1 = add from=in,attn\n"
     "ln2 = layernorm\nfc = linear out=$hidden | gelu approximate=tanh\nout = linear out=$width\nsum2 = add from=sum1,out\n",
     3, 33, 0, 106, 130},
    {"wide attention", /* two blocks of queries and keys, heads wider than a block; a table that is worth a sort */
     "[model]\ninput = tokens 90\ne = embedding vocab=2000 dim=80\np = position\na = attention heads=1\n"
     "b = attention heads=2 causal=1\nln = layernorm\nhead = linear out=7\n",
     3, 7, 0, 0, 0},
    {"pictures", /* many pixels: sums in chunks */
     "[model]\ninput = 3x24x24\nc1 = conv2d out=12 kernel=3 pad=1 | relu\nb1 = batchnorm2d | relu\nd1 = dropout p=0.3\n"
     "c2 = conv2d out=12 kernel=3 pad=1 groups=12 | relu\nc3 = conv2d out=40 kernel=1 | relu\nb3 = batchnorm2d\n"
     "c4 = conv2d out=40 kernel=1 bias=0 from=d1\nb4 = batchnorm2d | relu\ns = add from=b3,b4 | relu\n"
     "m = maxpool2d kernel=3 stride=2 pad=1\nc5 = conv2d out=70 kernel=3 stride=2 pad=2 dilation=2 groups=2\na = avgpool2d "
     "kernel=2\n"
     "f = flatten | dropout p=0.5 | linear out=5\n",
     5, 5, 0, 0, 0},
    {"exchanged statistics",
     "[model]\ninput = 3x12x12\nc1 = conv2d out=12 kernel=3 pad=1\nb1 = batchnorm2d | relu\nc2 = conv2d out=12 kernel=3 pad=1\n"
     "b2 = batchnorm2d\ns = add from=b2,b1 | relu\nc3 = conv2d out=12 kernel=3 pad=1\nb3 = batchnorm2d\nt = add from=b3,s\n"
     "p = globalavgpool | flatten\nf = linear out=5\n",
     6, 5, 1, 0, 0},
    {"out of file order", /* a flatten that must transpose, wide linear layers, every activation */
     "[model]\ninput = 2x9x7\nc = conv2d out=37 kernel=3\nf = flatten | tanh\ng = linear out=300 | gelu\nh = linear out=70 | "
     "sigmoid\n"
     "i = linear out=64 | gelu approximate=tanh\nj = linear out=9 bias=0\nk = concat from=j,i,h\nl = linear out=11 | softmax\n",
     40, 11, 0, 0, 0},
};

typedef struct result {
    int64_t out_count, count, buffer_count;
    float *out, *grad, *stats, *param;
    double loss;
    int64_t calls;
} result;

static void *keep(const void *p, size_t bytes)
{
    void *to = malloc(bytes + 1);
    assert_non_null(to);
    return memcpy(to, p, bytes);
}

static void drop(result *a)
{
    free(a->out);
    free(a->grad);
    free(a->stats);
    free(a->param);
}

typedef struct opened {
    dp_config *config;
    dp_graph *graph;
    dp_params *params;
    dp_plan *plan;
} opened;

static void open_net(opened *o, rig *r, const net *n)
{
    dp_error err = {0};
    o->config = dp_config_new(NULL, NULL);
    o->graph = dp_graph_new();
    assert_true(o->config && o->graph);
    dp_graph_text(o->graph, n->text);
    if (dp_graph_finish(o->graph, &err)) fail_msg("%s: %s", n->name, err.text);
    assert_int_equal(dp_params_open(&o->params, o->graph, o->config, 1, &err), DP_OK);
    if (dp_plan_open(&o->plan, r->be, r->device, o->graph, o->params, n->rows, 1, &err)) fail_msg("%s: %s", n->name, err.text);
}

static void close_net(opened *o)
{
    dp_plan_close(o->plan);
    dp_params_free(o->params);
    dp_graph_free(o->graph);
    dp_config_free(o->config);
}

/* One leaf is all of the batch: what is pooled or summed is its own part. */
static void exchange(rig *r, opened *o, const net *n, uint64_t number, int backward, int64_t channels)
{
    const float *part = dp_plan_part(o->plan, number);
    if (backward)
        assert_int_equal(r->be->sum(r->stream, dp_plan_whole(o->plan), &part, 1, (2 * channels + 15) / 16 * 16), DP_OK);
    else
        assert_int_equal(r->be->pool(r->stream, dp_plan_whole(o->plan), &part, &n->rows, 1, channels), DP_OK);
}

static void forward(rig *r, opened *o, const net *n, const dp_pass *pass)
{
    dp_stop stop;
    int which;
    uint64_t part = 0;
    dp_error err = {0};
    do {
        if (dp_plan_forward(o->plan, r->stream, pass, &stop, &which, &err)) fail_msg("%s: %s", n->name, err.text);
        if (stop == DP_STOP_PART) exchange(r, o, n, ++part, 0, which);
    } while (stop != DP_STOP_END);
}

static void backward(rig *r, opened *o, const net *n, const dp_pass *pass)
{
    dp_stop stop;
    int which;
    uint64_t part = 0;
    dp_error err = {0};
    do {
        if (dp_plan_backward(o->plan, r->stream, pass, &stop, &which, &err)) fail_msg("%s: %s", n->name, err.text);
        if (stop == DP_STOP_PART) exchange(r, o, n, ++part, 1, which);
    } while (stop != DP_STOP_END);
}

static result step(rig *r, const net *n)
{
    opened o = {0};
    open_net(&o, r, n);
    const dp_node *in = &o.graph->node[0], *out = &o.graph->node[o.graph->out];
    const int tokens = in->dtype == DP_I32;
    const int64_t width = in->width, groups = out->rank == 2 ? out->shape[0] : 1, targets = n->rows * groups;
    const size_t params = (size_t)o.params->count * 4, buffers = (size_t)o.params->buffer_count * 4;
    float *init = calloc((size_t)o.params->count, 4), *buffer = calloc((size_t)o.params->buffer_count + 1, 4);
    uint8_t *pixels = malloc((size_t)(n->rows * width));
    int32_t *numbers = malloc((size_t)(n->rows * width) * 4), *labels = malloc((size_t)targets * 4);
    uint64_t ids[128];
    uint32_t random = 77;
    assert_true(init && buffer && pixels && numbers && labels && n->rows <= 128);
    dp_params_init(o.params, o.graph, 5, init, buffer);
    for (int64_t i = 0; i < n->rows * width; i++) {
        const double u = ((double)uniform(&random) + 1) / 2;
        pixels[i] = (uint8_t)(u * 255);
        numbers[i] = (int32_t)(u * u * 32.9); /* some often, some never */
    }
    for (int64_t i = 0; i < targets; i++) labels[i] = (int32_t)(((double)uniform(&random) + 1) / 2.001 * (double)n->classes);
    for (int64_t i = 0; i < n->rows; i++) ids[i] = ((uint64_t)i << 33) + 17;
    float *param = put(r, init, params), *grad = put(r, NULL, params), *m = put(r, init, params), *v = put(r, init, params);
    float *buffer_at = put(r, buffer, buffers + 4), *stats = put(r, buffer, buffers + 4);
    dp_pass pass = {.run = {.rows = n->rows,
                            .seed = 3,
                            .epoch = 2,
                            .ids = put(r, ids, (size_t)n->rows * 8),
                            .param_version = 1,
                            .inv_count = 1 / (double)targets,
                            .lr = 0.01,
                            .train = 1,
                            .stats = DP_STATS_RUNNING,
                            .batch_rows = n->rows},
                    .x = tokens ? put(r, numbers, (size_t)(n->rows * width) * 4) : put(r, pixels, (size_t)(n->rows * width)),
                    .x_type = tokens ? DP_I32 : DP_U8,
                    .x_layout = DP_CHW,
                    .param = param,
                    .grad = grad,
                    .buffer = buffer_at,
                    .stats = stats,
                    .sync = n->sync};
    pass.run_device = put(r, &pass.run, sizeof pass.run);
    const dp_loss loss = {.kind = DP_LOSS_CROSS_ENTROPY, .groups = groups, .classes = n->classes, .ignore_label = INT64_MIN};
    const dp_optimizer optimizer = {.kind = DP_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-3, .weight_decay = 0.01};
    const int32_t *y = put(r, labels, (size_t)targets * 4);
    dp_loss_sums *sums = put(r, NULL, sizeof *sums);
    dp_verdict *verdict = put(r, &(dp_verdict){0}, sizeof *verdict);
    const size_t out_bytes = (size_t)(n->rows * out->width) * 4;
    float *out_at = put(r, NULL, out_bytes);
    double *chunks = put(r, NULL, (size_t)(o.params->count / DP_CHUNK) * 8);
    assert_int_equal(r->be->fill(r->stream, grad, 0, params), DP_OK); /* padding */
    assert_int_equal(r->be->fill(r->stream, m, 0, params), DP_OK);
    assert_int_equal(r->be->fill(r->stream, v, 0, params), DP_OK);
    rig_finish(r);
    cusim_reset();
    forward(r, &o, n, &pass);
    assert_int_equal(
        r->be->loss(r->stream, &loss, n->rows, dp_plan_output(o.plan), y, DP_I32, dp_plan_output_grad(o.plan), sums), DP_OK);
    assert_int_equal(r->be->copy(r->stream, out_at, dp_plan_output(o.plan), out_bytes), DP_OK); /* backward uses its memory */
    backward(r, &o, n, &pass);
    assert_int_equal(r->be->sumsq(r->stream, grad, o.params->count, chunks), DP_OK);
    assert_int_equal(r->be->norm(r->stream, chunks, o.params->count / DP_CHUNK, pass.run_device, &optimizer, verdict), DP_OK);
    assert_int_equal(r->be->update(r->stream, &optimizer, o.params->range, o.params->n_ranges, 0, o.params->count, param, grad,
                                   m, v, pass.run_device, verdict),
                     DP_OK);
    cusim_counters c;
    cusim_read(&c);
    assert_int_equal(c.blocking + c.allocations + c.streams + c.events, 0);
    result a = {.out_count = n->rows * out->width, .count = o.params->count, .buffer_count = o.params->buffer_count};
    a.calls = c.launches + c.library_calls;
    a.out = keep(get(r, out_at, out_bytes), out_bytes);
    a.grad = keep(get(r, grad, params), params);
    a.stats = keep(get(r, stats, buffers + 4), buffers);
    a.param = keep(get(r, param, params), params);
    a.loss = ((dp_loss_sums *)get(r, sums, sizeof *sums))->loss;
    rig_clear(r);
    close_net(&o);
    free(init);
    free(buffer);
    free(pixels);
    free(numbers);
    free(labels);
    return a;
}

static void compare(const net *n, const char *variant, const char *what, const float *got, const float *want, int64_t count)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        const double d = (double)got[i] - (double)want[i];
        difference += d * d;
        norm += (double)want[i] * (double)want[i];
    }
    if (!(sqrt(difference) <= 1e-4 * sqrt(norm)))
        fail_msg("%s, %s: %s is off by %.3g of its norm %.3g", n->name, variant, what, sqrt(difference / norm), sqrt(norm));
}

static const struct variant {
    const char *name, *fault;
    dp_be_options options;
} variants[] = {
    {"as it comes", NULL, {.threads = 1}},
    {"without epilogues", NULL, {.threads = 1, .no_epilogue = 1}},
    {"own convolutions", NULL, {.threads = 1, .conv_own = 1}},
    {"a library without epilogues", "lt:epilogue", {.threads = 1}},
    {"a library without convolutions", "dnn:none", {.threads = 1}},
    {"a library that refuses bias and relu once", "fail:cudnnConvolutionBiasActivationForward:1:3000", {.threads = 1}},
    {"a small workspace", NULL, {.threads = 1, .workspace = 4096}},
};

static void check(void **state)
{
    const net *n = *state;
    const char *scale = getenv("DP_SCALE");
    /* A sanitizer sees the same kernels in each variant that only changes who refuses what. */
    const int few = getenv("DP_SANITIZER") && (!scale || strcmp(scale, "full"));
    rig r;
    rig_open(&r, dp_backend_cpu());
    result cpu = step(&r, n);
    rig_close(&r);
    for (size_t i = 0; i < (few ? 3 : sizeof variants / sizeof *variants); i++) {
        const struct variant *v = &variants[i];
        rig_open_with(&r, cuda(), &v->options);
        if (v->fault) cusim_fault(v->fault);
        result gpu = step(&r, n), again = i < 3 && !few ? step(&r, n) : (result){0};
        if (v->fault) cusim_release();
        rig_close(&r);
        assert_true(fabs(gpu.loss - cpu.loss) <= 1e-5 * fabs(cpu.loss));
        compare(n, v->name, "the output", gpu.out, cpu.out, cpu.out_count);
        compare(n, v->name, "the gradient", gpu.grad, cpu.grad, cpu.count);
        compare(n, v->name, "the running statistics", gpu.stats, cpu.stats, cpu.buffer_count);
        compare(n, v->name, "the updated parameters", gpu.param, cpu.param, cpu.count);
        if (again.count) assert_memory_equal(gpu.grad, again.grad, (size_t)gpu.count * 4); /* the same bytes each time */
        const int most = i == 0 ? n->most : i == 1 ? n->most_plain : 0;
        if (n->most && i < 2) print_message("%s, %s: %d calls, at most %d\n", n->name, v->name, (int)gpu.calls, most);
        if (most && gpu.calls > most) fail_msg("%s, %s: %d calls, at most %d", n->name, v->name, (int)gpu.calls, most);
        drop(&gpu);
        drop(&again);
    }
    drop(&cpu);
}

/* A network that cannot be had on this device says so at open, and leaves nothing behind. */
static void test_no_product(void **state)
{
    rig r;
    opened o = {0};
    dp_error err = {0};
    (void)state;
    rig_open_with(&r, cuda(), &(dp_be_options){.threads = 1});
    o.config = dp_config_new(NULL, NULL);
    o.graph = dp_graph_new();
    dp_graph_text(o.graph, nets[0].text);
    assert_int_equal(dp_graph_finish(o.graph, &err), DP_OK);
    assert_int_equal(dp_params_open(&o.params, o.graph, o.config, 1, &err), DP_OK);
    cusim_fault("lt:none");
    assert_int_equal(dp_plan_open(&o.plan, r.be, r.device, o.graph, o.params, 4, 1, &err), DP_EDEVICE);
    assert_non_null(strstr(err.text, "cublasLt has no algorithm"));
    assert_string_equal(err.layer, "fc1|linear");
    cusim_release();
    cusim_counters c;
    cusim_read(&c);
    assert_int_equal(c.live_descriptors, 0);
    o.plan = NULL;
    close_net(&o);
    rig_close(&r);
}

/* A token outside the table gives NaN, which the loss finds; the others are as they should be. */
static void test_bad_token(void **state)
{
    static const net n = {"bad token", "[model]\ninput = tokens 3\ne = embedding vocab=4 dim=2\n", 1, 2, 0, 0, 0};
    const float table[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const int32_t tokens[] = {3, 4, 1};
    rig r;
    opened o = {0};
    (void)state;
    rig_open_with(&r, cuda(), &(dp_be_options){.threads = 1});
    open_net(&o, &r, &n);
    dp_pass pass = {.run = {.rows = 1, .param_version = 1}, .x = put(&r, tokens, sizeof tokens), .x_type = DP_I32};
    pass.param = put(&r, table, sizeof table);
    pass.run_device = put(&r, &pass.run, sizeof pass.run);
    forward(&r, &o, &n, &pass);
    const float *out = get(&r, dp_plan_output(o.plan), 6 * sizeof *out);
    assert_true(out[0] == 6 && out[1] == 7 && isnan(out[2]) && isnan(out[3]) && out[4] == 2 && out[5] == 3);
    close_net(&o);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    enum { N = sizeof nets / sizeof *nets };
    struct CMUnitTest tests[N + 2];
    int used = 0;
    for (int i = 0; i < N; i++) /* test_cuda_nets NAME...: these only */
        for (int k = argc > 1 ? 1 : 0; k < argc; k++)
            if (k == 0 || !strcmp(argv[k], nets[i].name))
                tests[used++] = (struct CMUnitTest){
                    .name = nets[i].name, .test_func = check, .initial_state = (void *)(uintptr_t)&nets[i]};
    if (argc <= 1) {
        tests[used++] = (struct CMUnitTest)cmocka_unit_test(test_no_product);
        tests[used++] = (struct CMUnitTest)cmocka_unit_test(test_bad_token);
    }
    return _cmocka_run_group_tests("networks on a simulated GPU", tests, (size_t)used, NULL, NULL);
}
