/* Networks, data and engines of the engine's tests. */
#include "engine_rig.h"
#include <dirent.h>
#include <math.h>
#include <unistd.h>

const rig_net rig_mlp = {.name = "mlp",
                         .text = "[model]\ninput = 12\nfc1 = linear out=16 | relu\nfc2 = linear out=4\n",
                         .width = 12,
                         .targets = 1,
                         .classes = 4};
/* Several chunks of parameters in two buckets: every device has something in its slices. The other nets fill one chunk. */
const rig_net rig_wide = {.name = "wide",
                          .text = "[model]\ninput = 12\nfc1 = linear out=480 | tanh\nfc2 = linear out=48 | tanh\n"
                                  "fc3 = linear out=4\n",
                          .width = 12,
                          .targets = 1,
                          .classes = 4,
                          .smooth = 1,
                          .settings = "devices.bucket_mb=0.05"};
const rig_net rig_flat = {.name = "flat",
                          .text = "[model]\ninput = 12\nfc1 = linear out=16 | tanh\nfc2 = linear out=10\n",
                          .width = 12,
                          .targets = 1,
                          .classes = 10,
                          .smooth = 1};
const rig_net rig_dropout = {.name = "dropout",
                             .text = "[model]\ninput = 12\nfc1 = linear out=16 | tanh\ndrop = dropout p=0.4\n"
                                     "fc2 = linear out=8 | sigmoid | dropout p=0.2\nfc3 = linear out=4\n",
                             .width = 12,
                             .targets = 1,
                             .classes = 4,
                             .smooth = 1};
const rig_net rig_conv = {.name = "conv",
                          .text = "[model]\ninput = 3x5x5\nconv1 = conv2d out=6 kernel=3 pad=1 bias=0\n"
                                  "bn1 = batchnorm2d | relu\nconv2 = conv2d out=6 kernel=3 pad=1 bias=0\nbn2 = batchnorm2d\n"
                                  "sum = add from=bn2,bn1 | relu\npool = globalavgpool | flatten\nfc = linear out=4\n",
                          .width = 75,
                          .targets = 1,
                          .classes = 4};
const rig_net rig_gpt = {.name = "gpt",
                         .text = "[model]\ninput = tokens 5\ne = embedding vocab=11 dim=8\np = position\nln1 = layernorm\n"
                                 "attn = attention heads=2 causal=1\nsum1 = add from=p,attn\nln2 = layernorm\n"
                                 "fc = linear out=16 | gelu approximate=tanh\nout = linear out=8\n"
                                 "sum2 = add from=sum1,out\nhead = linear out=11 bias=0\n",
                         .tokens = 11,
                         .width = 5,
                         .targets = 5,
                         .classes = 11,
                         .smooth = 1};
/* A batchnorm on 1 x 1 maps: two samples are its least. */
const rig_net rig_tight = {.name = "tight",
                           .text = "[model]\ninput = 3x2x2\nconv = conv2d out=4 kernel=2\nbn = batchnorm2d | relu\n"
                                   "flat = flatten\nfc = linear out=4\n",
                           .width = 12,
                           .targets = 1,
                           .classes = 4};

/* ---- data ---- */

static uint64_t draw(uint64_t *s) /* splitmix64 */
{
    uint64_t z = *s += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

rig_data rig_data_new(const rig_net *net, int64_t n, uint64_t seed)
{
    rig_data d = {.net = net, .n = n};
    size_t rows = (size_t)n, width = (size_t)net->width, targets = (size_t)net->targets;
    d.x = malloc(rows * width * 4);
    d.tokens = malloc(rows * width * 4);
    d.y = malloc(rows * targets * 4);
    d.ids = malloc(rows * 8);
    assert_true(d.x && d.tokens && d.y && d.ids);
    for (size_t i = 0; i < rows * width; i++) {
        d.x[i] = (float)(draw(&seed) >> 40) / (float)(1 << 23) - 1;
        d.tokens[i] = net->tokens ? (int32_t)(draw(&seed) % (uint64_t)net->tokens) : 0;
    }
    for (size_t i = 0; i < rows * targets; i++) d.y[i] = (int32_t)(draw(&seed) % (uint64_t)net->classes);
    for (size_t i = 0; i < rows; i++) d.ids[i] = 1000 + 7 * i;
    return d;
}

void rig_data_free(rig_data *d)
{
    free(d->x);
    free(d->tokens);
    free(d->y);
    free(d->ids);
}

dp_batch rig_batch(const rig_data *d, int64_t first, int64_t n)
{
    int width = d->net->width, targets = d->net->targets;
    dp_rows x = d->net->tokens ? dp_view(d->tokens + first * width, DP_I32, n, width)
                               : dp_view(d->x + first * width, DP_F32, n, width);
    dp_batch b = dp_batch_of(x, dp_view(d->y + first * targets, DP_I32, n, targets));
    b.ids = d->ids + first;
    return b;
}

/* ---- engines ---- */

const dp_backend *rig_backend(void *const *state)
{
    return strcmp(*state, "late") ? dp_backend_cpu() : late_backend(&(late_options){.seed = 1, .delay_us = 200});
}

static void keep_warnings(void *user, dp_level level, const char *text)
{
    rig *r = user;
    size_t at = strlen(r->warning);
    if (level >= DP_LOG_WARN) snprintf(r->warning + at, sizeof r->warning - at, "%s\n", text);
}

static void set_all(dp_config *c, const char *settings)
{
    char key[64], value[64];
    int used;
    while (sscanf(settings, " %63[^=]=%63s%n", key, value, &used) == 2) {
        if (dp_config_set(c, key, value)) fail_msg("cannot set %s = %s", key, value);
        settings += used;
    }
}

dp_status rig_try(rig *r, const rig_net *net, const dp_backend *b, int devices, int leaves, const char *settings, dp_error *err)
{
    char use[256] = "";
    memset(r, 0, sizeof *r);
    r->config = dp_config_new(keep_warnings, r);
    r->graph = dp_graph_new();
    assert_true(r->config && r->graph);
    dp_graph_text(r->graph, net->text);
    if (dp_graph_finish(r->graph, err)) fail_msg("%s: %s", net->name, err->text);
    for (int d = 0; d < devices; d++) snprintf(use + strlen(use), sizeof use - strlen(use), "%scpu:%d", d ? "," : "", d);
    assert_int_equal(dp_config_set(r->config, "devices.use", use), DP_OK);
    set_all(r->config, "devices.threads=1 data.batch_size=24 optimizer.lr=0.1 optimizer.momentum=0.9 eval.batch_size=4");
    if (net->settings) set_all(r->config, net->settings);
    set_all(r->config, settings);
    return dp_engine_open_on(&r->e, r->graph, r->config, b, leaves, err);
}

void rig_open(rig *r, const rig_net *net, const dp_backend *b, int devices, int leaves, const char *settings)
{
    dp_error err;
    if (rig_try(r, net, b, devices, leaves, settings, &err))
        fail_msg("%s on %d devices, %s: %s", net->name, devices, settings, err.text);
}

void rig_close(rig *r)
{
    dp_error err;
    if (dp_engine_close(r->e, &err)) fail_msg("%s", err.text);
    dp_graph_free(r->graph);
    dp_config_free(r->config);
    memset(r, 0, sizeof *r);
}

dp_result rig_micro_step(rig *r, const rig_data *d, int64_t first, int64_t n, int last_of_window)
{
    dp_batch b = rig_batch(d, first, n);
    dp_result result;
    dp_error err;
    b.last_of_window = last_of_window;
    if (dp_engine_step(r->e, &b, &result, &err)) fail_msg("%s", err.text);
    return result;
}

dp_result rig_step(rig *r, const rig_data *d, int64_t first, int64_t n)
{
    return rig_micro_step(r, d, first, n, 1);
}

/* ---- looking inside ---- */

float *rig_weights(rig *r, int64_t *count)
{
    dp_error err;
    dp_tensor_info t;
    int64_t n = 0, at = 0;
    for (int i = 0; dp_graph_tensor(r->graph, i, &t); i++) n += t.count;
    float *w = malloc((size_t)n * 4);
    assert_non_null(w);
    for (int i = 0; dp_graph_tensor(r->graph, i, &t); i++, at += t.count)
        if (dp_engine_get(r->e, t.name, w + at, t.count, &err)) fail_msg("%s", err.text);
    *count = n;
    return w;
}

float *rig_gradient(rig *r, int64_t *count)
{
    dp_error err;
    const dp_params *p = r->e->params;
    float *all = malloc((size_t)p->count * 4), *g = malloc((size_t)p->count * 4);
    assert_true(all && g);
    if (dp_engine_pull_gradient(r->e, all, &err)) fail_msg("%s", err.text);
    *count = 0;
    for (int i = 0; i < p->n_params; i++) {
        if (p->param[i].bucket < 0) continue;
        dp_tensor_to_file(&r->graph->tensor[i], all + p->param[i].offset, g + *count);
        *count += p->param[i].count;
    }
    free(all);
    return g;
}

void rig_same_bytes(const void *a, const void *b, size_t bytes, const char *what)
{
    const unsigned char *p = a, *q = b;
    for (size_t i = 0; i < bytes; i++)
        if (p[i] != q[i]) fail_msg("%s: differs from byte %zu of %zu on", what, i, bytes);
}

double rig_distance(const float *a, const float *b, int64_t n)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += pow((double)a[i] - (double)b[i], 2);
        norm += pow((double)b[i], 2);
    }
    return difference == 0 ? 0 : sqrt(difference / norm);
}

double rig_tensor_distance(rig *r, const float *a, const float *b, int gradients)
{
    double worst = 0;
    dp_tensor_info t;
    for (int i = 0; dp_graph_tensor(r->graph, i, &t); i++) {
        if (gradients && t.is_buffer) continue;
        double distance = rig_distance(a, b, t.count);
        if (!(distance <= worst)) worst = distance;
        a += t.count, b += t.count;
    }
    return worst;
}

int rig_threads(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) n += f->d_name[0] != '.';
    closedir(d);
    return n;
}

int rig_threads_back(int n)
{
    for (int i = 0; i < 2000 && rig_threads() != n; i++) usleep(1000);
    return rig_threads() == n;
}

int rig_warm_up(void **state)
{
    rig r;
    (void)state;
    rig_open(&r, &rig_mlp, dp_backend_cpu(), 2, 0, "");
    rig_close(&r);
    return 0;
}

int rig_full(void)
{
    const char *scale = getenv("DP_SCALE");
    return scale && !strcmp(scale, "full");
}
