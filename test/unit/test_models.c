/* The networks of tools/configs as they are: N devices equal one device that runs the same N leaves, byte for byte; and a run over loaders
 * gives the same bytes with any number of loader threads and devices. */
#include "engine_rig.h"

typedef struct model {
    char text[8192], file[512];
    rig_net net;
} model;

static void replace(char *line, size_t size, const char *from, const char *to)
{
    char copy[512], *at = strstr(line, from);
    if (!at) return;
    snprintf(copy, sizeof copy, "%.*s%s%s", (int)(at - line), line, to, at + strlen(from));
    snprintf(line, size, "%s", copy);
}

/* [model] and blocks of a config, with the numbers that its data would give. */
static void read_model(model *m, const char *name, int width, int tokens, int targets, int classes)
{
    const char *root = getenv("DP_ROOT"), *block = "";
    dp_config *c = dp_config_new(NULL, NULL);
    dp_model_line l;
    dp_error err;
    memset(m, 0, sizeof *m);
    snprintf(m->file, sizeof m->file, "%s/tools/configs/%s.ini", root ? root : ".", name);
    if (dp_config_load(c, m->file, &err)) fail_msg("%s", err.text);
    snprintf(m->text, sizeof m->text, "[model]\n");
    for (int i = 0; dp_config_model_line(c, i, &l); i++) {
        char line[512], head[300] = "";
        if (l.block && strcmp(l.block, block)) snprintf(head, sizeof head, "[block %s %s]\n", block = l.block, l.block_args);
        snprintf(line, sizeof line, "%s%s = %s\n", head, l.name, l.spec);
        replace(line, sizeof line, "=classes", "=10");
        replace(line, sizeof line, "vocab=vocab", "vocab=65");
        replace(line, sizeof line, "out=vocab", "out=65");
        assert_true(strlen(m->text) + strlen(line) < sizeof m->text);
        strcat(m->text, line);
    }
    m->net = (rig_net){name, m->text, tokens, width, targets, classes, 0, NULL};
    dp_config_free(c);
}

/* Lines of [model] may stand behind blocks in a file, so that the block's name is lost between them: configs put them first. */
static const struct {
    const char *name;
    int width, tokens, targets, classes;
} models[] = {{"mlp", 784, 0, 1, 10},      {"lenet", 784, 0, 1, 10},     {"mnist-cnn", 784, 0, 1, 10},
              {"digits", 64, 0, 1, 10},    {"resnet20", 3072, 0, 1, 10}, {"gpt-mini", 128, 65, 128, 65},
              {"resnet18", 3072, 0, 1, 10}};

static void same_on(const model *m, const dp_backend *b, int devices, const char *settings)
{
    rig one, many;
    int64_t n;
    char what[128];
    rig_data d = rig_data_new(&m->net, 2 * devices + 1, 5);
    rig_open(&one, &m->net, b, 1, devices, settings);
    rig_open(&many, &m->net, b, devices, devices, settings);
    for (int step = 0; step < 2; step++) { /* a batch that is not a multiple of the devices, then one that leaves some idle */
        int64_t rows = step ? devices - 1 : d.n;
        dp_result x = rig_step(&one, &d, 0, rows), y = rig_step(&many, &d, 0, rows);
        assert_true(x.loss_sum == y.loss_sum && x.correct == y.correct && x.grad_norm == y.grad_norm);
        float *gx = rig_gradient(&one, &n), *gy = rig_gradient(&many, &n);
        snprintf(what, sizeof what, "%s on %d devices, %s, step %d", m->net.name, devices, settings, step);
        rig_same_bytes(gx, gy, (size_t)n * 4, what);
        free(gx);
        free(gy);
    }
    float *wx = rig_weights(&one, &n), *wy = rig_weights(&many, &n);
    rig_same_bytes(wx, wy, (size_t)n * 4, what);
    free(wx);
    free(wy);
    rig_close(&one);
    rig_close(&many);
    rig_data_free(&d);
}

static void shipped_models_equal_their_leaves(void **state)
{
    const dp_backend *b = rig_backend(state);
    int late = !strcmp(*state, "late");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        model m;
        if (late && !rig_full() && i >= 4) continue; /* the small ones wait for everything that the large ones wait for */
        read_model(&m, models[i].name, models[i].width, models[i].tokens, models[i].targets, models[i].classes);
        same_on(&m, b, 3, "optimizer.lr=0.01");
        if (!rig_full() && i >= 4) continue;
        same_on(&m, b, 2, "optimizer.lr=0.01 devices.loss=master devices.reduce=master");
        if (rig_full()) same_on(&m, b, 7, "optimizer.lr=0.01 devices.broadcast=always");
    }
}

/* The ops that the shipped models leave out, in one network. */
static void the_other_ops_equal_their_leaves(void **state)
{
    static const char text[] = "[model]\ninput = 4x8x8\nc1 = conv2d out=8 kernel=3 pad=2 dilation=2 groups=2 | sigmoid\n"
                               "c2 = conv2d out=8 kernel=3 pad=1 groups=8 | tanh\na = avgpool2d kernel=2 from=c1\n"
                               "m = maxpool2d kernel=3 stride=2 pad=1 from=c2\ncat = concat from=a,m\nb = batchnorm2d | relu\n"
                               "s = add from=b,cat | gelu\nd = dropout p=0.3\nf = flatten | layernorm\n"
                               "fc = linear out=12 | softmax\nout = linear out=5\n";
    model m = {.net = {"other ops", text, 0, 256, 1, 5, 0, NULL}};
    const dp_backend *b = rig_backend(state);
    for (int devices = 2; devices <= 4; devices++) same_on(&m, b, devices, "");
    same_on(&m, b, 7, "devices.loss=master");
}

/* Two epochs over a loader; the weights at the end. */
static float *train_over_loader(const rig_net *net, const dp_backend *b, int devices, int workers, const rig_data *d,
                                int64_t *count)
{
    rig r;
    dp_data *data = NULL;
    dp_loader *l = NULL;
    dp_error err;
    char settings[256];
    snprintf(settings, sizeof settings,
             "devices.shards=4 data.batch_size=10 data.accumulate=2 data.shuffle=1 optimizer.clip_norm=0.5 data.workers=%d "
             "data.prefetch=3",
             workers);
    rig_open(&r, net, b, devices, 0, settings);
    dp_batch all = rig_batch(d, 0, d->n);
    assert_int_equal(dp_data_rows(&data, all.x, all.y, net->classes, &err), DP_OK);
    assert_int_equal(dp_engine_loader(r.e, data, 1, &l, &err), DP_OK);
    for (int epoch = 0; epoch < 2;) {
        dp_batch batch[2];
        int n = 0;
        for (; n < 2; n++) { /* two in flight */
            if (dp_loader_next(l, &batch[n], &err)) fail_msg("%s", err.text);
            if (!batch[n].x.n) break;
            if (dp_engine_submit(r.e, &batch[n], &err)) fail_msg("%s", err.text);
        }
        for (int i = 0; i < n; i++) {
            if (dp_engine_wait(r.e, NULL, &err)) fail_msg("%s", err.text);
            dp_loader_release(l, &batch[i]);
        }
        epoch += n < 2;
    }
    float *w = rig_weights(&r, count);
    dp_loader_close(l);
    dp_data_close(data);
    rig_close(&r);
    return w;
}

static void loaders_and_devices_do_not_matter(void **state)
{
    static const int devices[] = {1, 2, 3, 4, 4}, workers[] = {0, 1, 4, 0, 4};
    const dp_backend *b = rig_backend(state);
    const rig_net *nets[] = {&rig_dropout, &rig_conv};
    for (int k = 0; k < 2; k++) {
        rig_data d = rig_data_new(nets[k], 47, 3); /* five batches, the last of 7: its window has one batch */
        int64_t n;
        float *first = train_over_loader(nets[k], b, devices[0], workers[0], &d, &n);
        for (int i = 1; i < 5; i++) {
            char what[96];
            float *w = train_over_loader(nets[k], b, devices[i], workers[i], &d, &n);
            snprintf(what, sizeof what, "%s, %d devices, %d loaders", nets[k]->name, devices[i], workers[i]);
            rig_same_bytes(first, w, (size_t)n * 4, what);
            free(w);
        }
        free(first);
        rig_data_free(&d);
    }
}

/* Rows as H,W,C are read where they lie, as C,H,W they are converted: predictions are equal. */
static void layouts_do_not_matter(void **state)
{
    enum { ROWS = 5, CHANNELS = 3, POINTS = 25 };
    rig r;
    dp_error err;
    float planes[ROWS * CHANNELS * POINTS], a[ROWS * 4], b[ROWS * 4];
    rig_data d = rig_data_new(&rig_conv, ROWS, 9);
    rig_open(&r, &rig_conv, rig_backend(state), 2, 0, "");
    for (int n = 0; n < ROWS; n++)
        for (int c = 0; c < CHANNELS; c++)
            for (int p = 0; p < POINTS; p++) planes[(n * CHANNELS + c) * POINTS + p] = d.x[(n * POINTS + p) * CHANNELS + c];
    dp_rows hwc = rig_batch(&d, 0, ROWS).x, chw = dp_view(planes, DP_F32, ROWS, CHANNELS * POINTS);
    chw.layout = DP_CHW;
    assert_int_equal(dp_engine_predict(r.e, hwc, a, sizeof a, &err), DP_OK);
    assert_int_equal(dp_engine_predict(r.e, chw, b, sizeof b, &err), DP_OK);
    rig_same_bytes(a, b, sizeof a, "C,H,W and H,W,C");
    assert_false(a[0] == a[4] && a[1] == a[5]); /* and they say something */
    rig_close(&r);
    rig_data_free(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ON(shipped_models_equal_their_leaves), ON(the_other_ops_equal_their_leaves),
                                       ON(loaders_and_devices_do_not_matter), ON(layouts_do_not_matter)};
    return cmocka_run_group_tests(tests, rig_warm_up, NULL);
}
