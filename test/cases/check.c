/* Runs one case on a backend, through the plan, and compares. Nothing here assumes that a stream runs in line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "../../nn/optim.h"
#include "../../nn/plan.h"
#include "../../nn/safetensors.h"
#include "cases.h"
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A float result of some hundred terms against the exact one: |difference| / |exact|, over a tensor. What is zero in exact
 * arithmetic (the gradient of an attention's key bias) is compared with the floor instead. */
static const double tolerance = 1e-5, smallest = 1e-3;
/* Central differences in float: the objective's rounding over the step. Where there is a kink the step is small, so that it is not
 * crossed: goldens keep a distance of 4e-3 from it. */
static const double difference_tolerance = 5e-3;
static const float smooth_step = 2e-3f, kink_step = 1e-4f;

enum { MEMORY = 24 };
typedef struct rig {
    const dp_case *c;
    const dp_backend *b;
    dp_be_device *device;
    dp_be_stream *stream;
    dp_config *config;
    dp_graph *graph;
    dp_params *params;
    dp_plan *plan;
    dp_st_in *golden;
    dp_loss loss;
    dp_optimizer optimizer;
    int has_loss;
    int64_t out_count;
    /* device memory; flat arrays as nn/params.h has them */
    float *param, *grad, *buffer, *stats, *m, *v;
    double *chunk_sums;
    void *x, *y;
    dp_verdict *verdict;
    dp_loss_sums *sums;
    dp_run *run_device;
    /* host memory */
    float *host_param, *host_buffer, *out, *dout;
    dp_pass pass;
    struct {
        void *p;
        size_t bytes;
    } memory[MEMORY];
    int n_memory;
} rig;

#define OK(call)                                                                                                               \
    do {                                                                                                                       \
        dp_error err = {0};                                                                                                    \
        if (call) fail_msg("%s: %s: %s", r->c->name, #call, err.text);                                                         \
    } while (0)

/* ---- moving ---- */

static void settle(rig *r)
{
    dp_be_event *e;
    int done;
    OK(r->b->event_open(r->device, &e, &err));
    assert_int_equal(r->b->record(r->stream, e), DP_OK);
    while ((done = r->b->done(e)) == 0) sched_yield();
    r->b->event_close(e);
    if (done < 0) fail_msg("%s: the device failed: %s", r->c->name, dp_status_name((dp_status)-done));
}

static void move(rig *r, void *dst, const void *src, size_t bytes)
{
    if (!bytes) return;
    assert_int_equal(r->b->copy(r->stream, dst, src, bytes), DP_OK);
    settle(r);
}

static void *device_memory(rig *r, size_t bytes)
{
    void *p;
    bytes = (bytes + 63) / 64 * 64 + 64; /* never empty */
    OK(r->b->alloc(r->device, DP_MEM_STAGING, bytes, "a test", &p, &err));
    assert_in_range(r->n_memory, 0, MEMORY - 1);
    r->memory[r->n_memory].p = p;
    r->memory[r->n_memory++].bytes = bytes;
    assert_int_equal(r->b->fill(r->stream, p, 0, bytes), DP_OK);
    settle(r);
    return p;
}

static void *host_memory(int64_t count)
{
    void *p = dp_calloc((size_t)count + 1, sizeof(double));
    assert_non_null(p);
    return p;
}

static dp_st_tensor golden(const rig *r, const char *prefix, const char *name)
{
    char full[256];
    dp_st_tensor t;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    if (!dp_st_find(r->golden, full, &t)) fail_msg("%s: the golden has no tensor %s; run `make goldens`", r->c->name, full);
    return t;
}

/* Tensors of the golden, in PyTorch's order, into flat host arrays. */
static void golden_flat(const rig *r, const char *prefix, int buffers, float *flat)
{
    for (int t = 0; t < r->graph->n_tensors; t++) {
        const dp_tensor *x = &r->graph->tensor[t];
        if (!x->buffer != !buffers) continue;
        dp_st_tensor g = golden(r, prefix, x->name);
        float *file = host_memory(x->count);
        assert_true(dp_st_to_f32(&g, file) && g.bytes == x->count * (x->buffer == 2 ? 8 : 4));
        dp_tensor_from_file(x, file, flat + r->params->param[t].offset);
        free(file);
    }
}

/* ---- comparing ---- */

static void compare(const rig *r, const char *what, const char *name, const float *got, const float *want, int64_t n)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        difference += d * d;
        norm += (double)want[i] * (double)want[i];
    }
    difference = sqrt(difference);
    norm = fmax(sqrt(norm), smallest * sqrt((double)n));
    if (!(difference <= tolerance * norm))
        fail_msg("%s: %s%s is off by %.3g of its norm (allowed %.0e); first elements %.9g %.9g, wanted %.9g %.9g", r->c->name,
                 what, name, difference / norm, tolerance, (double)got[0], (double)got[n > 1], (double)want[0],
                 (double)want[n > 1]);
}

static void compare_number(const rig *r, const char *what, double got, double want)
{
    if (!(fabs(got - want) <= tolerance * fabs(want))) fail_msg("%s: %s is %.9g, wanted %.9g", r->c->name, what, got, want);
}

/* A flat device array against the golden's tensors. */
static void compare_flat(rig *r, const char *prefix, int buffers, const float *flat)
{
    int64_t count = buffers ? r->params->buffer_count : r->params->count;
    float *got = host_memory(count), *want = host_memory(count);
    move(r, got, flat, (size_t)count * 4);
    golden_flat(r, prefix, buffers, want);
    for (int t = 0; t < r->graph->n_tensors; t++) {
        const dp_tensor *x = &r->graph->tensor[t];
        int64_t at = r->params->param[t].offset;
        if (!x->buffer == !buffers) compare(r, prefix, x->name, got + at, want + at, x->count);
    }
    free(got);
    free(want);
}

/* ---- the case's graph, memory and run ---- */

static void open_golden(rig *r)
{
    const char *root = getenv("DP_ROOT");
    char path[4096];
    snprintf(path, sizeof path, "%s/test/golden/%s.safetensors", root && *root ? root : ".", r->c->name);
    OK(dp_st_open(&r->golden, path, &err));
}

static void open_graph(rig *r)
{
    r->config = dp_config_new(NULL, NULL);
    r->graph = dp_graph_new();
    assert_true(r->config && r->graph);
    for (int i = 0; i < r->c->n_lines; i++) {
        const char *key = r->c->line[i].key, *value = r->c->line[i].value;
        if (!dp_case_is_setting(key)) {
            dp_layer(r->graph, key, value);
        } else if (dp_config_set(r->config, key, value)) {
            fail_msg("%s: %s = %s is refused", r->c->name, key, value);
        }
        r->has_loss |= !strcmp(key, "loss.kind");
    }
    OK(dp_graph_finish(r->graph, &err));
    OK(dp_params_open(&r->params, r->graph, r->config, 1, &err));
    if (r->has_loss) OK(dp_loss_config(&r->loss, r->config, r->graph, &err));
    if (r->c->steps) OK(dp_optimizer_config(&r->optimizer, r->config, &err));
}

static void send_params(rig *r)
{
    move(r, r->param, r->host_param, (size_t)r->params->count * 4);
    r->pass.run.param_version++;
}

static void send_run(rig *r)
{
    move(r, r->run_device, &r->pass.run, sizeof r->pass.run);
}

static void open_memory(rig *r)
{
    size_t params = (size_t)r->params->count * 4, buffers = (size_t)r->params->buffer_count * 4;
    r->param = device_memory(r, params);
    r->grad = device_memory(r, params);
    r->m = device_memory(r, params);
    r->v = device_memory(r, params);
    r->buffer = device_memory(r, buffers);
    r->stats = device_memory(r, buffers);
    r->chunk_sums = device_memory(r, (size_t)(r->params->count / DP_CHUNK) * 8);
    r->verdict = device_memory(r, sizeof *r->verdict);
    r->sums = device_memory(r, sizeof *r->sums);
    r->run_device = device_memory(r, sizeof *r->run_device);
    r->host_param = host_memory(r->params->count);
    r->host_buffer = host_memory(r->params->buffer_count);
    golden_flat(r, "param.", 0, r->host_param);
    golden_flat(r, "buffer.", 1, r->host_buffer);
    send_params(r);
    move(r, r->buffer, r->host_buffer, buffers);
    move(r, r->stats, r->host_buffer, buffers);
}

static void open_pass(rig *r)
{
    const dp_node *in = &r->graph->node[0], *out = &r->graph->node[r->graph->out];
    dp_st_tensor x = golden(r, "x", "");
    uint64_t *ids = device_memory(r, (size_t)r->c->rows * 8);
    /* room for one row more: a leaf may be smaller than the plan */
    OK(dp_plan_open(&r->plan, r->b, r->device, r->graph, r->params, r->c->rows + 1, (int)r->c->train, &err));
    assert_int_equal(x.bytes, r->c->rows * in->width * 4);
    r->x = device_memory(r, (size_t)x.bytes);
    move(r, r->x, x.data, (size_t)x.bytes);
    r->out_count = r->c->rows * out->width;
    r->out = host_memory(r->out_count);
    r->dout = host_memory(r->out_count);
    r->pass.run.rows = r->c->rows;
    r->pass.run.ids = ids;
    r->pass.run.train = (int)r->c->train;
    r->pass.run.stats = r->c->train ? DP_STATS_RUNNING : DP_STATS_NONE;
    r->pass.run_device = r->run_device;
    r->pass.x = r->x;
    r->pass.x_type = in->dtype;
    r->pass.x_layout = DP_HWC;
    r->pass.param = r->param;
    r->pass.grad = r->c->train ? r->grad : NULL;
    r->pass.buffer = r->buffer;
    r->pass.stats = r->stats;
    if (r->has_loss) {
        dp_st_tensor y = golden(r, "y", "");
        r->y = device_memory(r, (size_t)y.bytes);
        move(r, r->y, y.data, (size_t)y.bytes);
    } else if (r->c->train) {
        dp_st_tensor d = golden(r, "dout", "");
        assert_int_equal(d.bytes, r->out_count * 4);
        memcpy(r->dout, d.data, (size_t)d.bytes);
    }
    send_run(r);
}

/* ---- passes ---- */

static void forward(rig *r)
{
    dp_stop stop;
    int which;
    send_run(r);
    OK(dp_plan_forward(r->plan, r->stream, &r->pass, &stop, &which, &err));
    assert_int_equal(stop, DP_STOP_END);
    move(r, r->out, dp_plan_output(r->plan), (size_t)r->out_count * 4);
}

static dp_loss_sums loss_of_output(rig *r, float *gradient)
{
    dp_loss_sums s;
    dp_dtype type = r->loss.kind == DP_LOSS_MSE ? DP_F32 : DP_I32;
    assert_int_equal(r->b->loss(r->stream, &r->loss, r->c->rows, dp_plan_output(r->plan), r->y, type, gradient, r->sums),
                     DP_OK);
    move(r, &s, r->sums, sizeof s);
    assert_int_equal(s.bad, 0);
    return s;
}

static double objective(rig *r)
{
    double sum = 0;
    forward(r);
    if (r->has_loss) return loss_of_output(r, NULL).loss;
    for (int64_t i = 0; i < r->out_count; i++) sum += (double)r->out[i] * (double)r->dout[i];
    return sum;
}

/* Forward and backward. Gradients hold NaN before: backward has to overwrite them. Every bucket must be announced once. */
static dp_loss_sums both_passes(rig *r)
{
    dp_loss_sums sums = {0};
    float *poison = host_memory(r->params->count);
    int announced = 0, which;
    dp_stop stop;
    for (int t = 0; t < r->params->n_params; t++)
        for (int64_t i = 0; r->params->param[t].bucket >= 0 && i < r->params->param[t].count; i++)
            poison[r->params->param[t].offset + i] = NAN;
    move(r, r->grad, poison, (size_t)r->params->count * 4);
    free(poison);
    forward(r);
    if (r->has_loss)
        sums = loss_of_output(r, dp_plan_output_grad(r->plan));
    else
        move(r, dp_plan_output_grad(r->plan), r->dout, (size_t)r->out_count * 4);
    do {
        OK(dp_plan_backward(r->plan, r->stream, &r->pass, &stop, &which, &err));
        announced += stop == DP_STOP_BUCKET;
    } while (stop != DP_STOP_END);
    settle(r);
    assert_int_equal(announced, r->params->n_buckets);
    return sums;
}

static void update(rig *r, int64_t step, double count)
{
    r->pass.run.inv_count = 1 / count;
    r->pass.run.lr = dp_config_number(r->config, "optimizer.lr") / (double)((int64_t)1 << step);
    send_run(r);
    assert_int_equal(r->b->sumsq(r->stream, r->grad, r->params->count, r->chunk_sums), DP_OK);
    assert_int_equal(
        r->b->norm(r->stream, r->chunk_sums, r->params->count / DP_CHUNK, r->run_device, &r->optimizer, r->verdict), DP_OK);
    assert_int_equal(r->b->update(r->stream, &r->optimizer, r->params->range, r->params->n_ranges, 0, r->params->count,
                                  r->param, r->grad, r->m, r->v, r->run_device, r->verdict),
                     DP_OK);
    settle(r);
    r->pass.run.param_version++;
}

/* ---- what is checked ---- */

/* Along a random direction of signs in one tensor: the objective's slope is the sum of gradient times direction. */
static void check_differences(rig *r)
{
    float *grad = host_memory(r->params->count), *keep = host_memory(r->params->count);
    uint64_t random = 12345;
    float step = smooth_step;
    for (int i = 1; i < r->graph->n_nodes; i++)
        if (r->graph->node[i].op->kind == DP_OP_RELU || r->graph->node[i].op->kind == DP_OP_MAXPOOL2D) step = kink_step;
    move(r, grad, r->grad, (size_t)r->params->count * 4);
    memcpy(keep, r->host_param, (size_t)r->params->count * 4);
    for (int t = 0; t < r->params->n_params; t++) {
        const dp_param *p = &r->params->param[t];
        double side[2], slope = 0, norm = 0;
        if (p->bucket < 0 || p->frozen) continue;
        for (int way = 0; way < 2; way++) {
            uint64_t state = random;
            for (int64_t i = p->offset; i < p->offset + p->count; i++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                float sign = state >> 63 ? 1.0f : -1.0f;
                r->host_param[i] = keep[i] + (way ? step : -step) * sign;
                if (way) slope += (double)grad[i] * (double)sign;
                if (way) norm += (double)grad[i] * (double)grad[i];
            }
            send_params(r);
            side[way] = objective(r);
            if (way) random = state;
        }
        memcpy(r->host_param + p->offset, keep + p->offset, (size_t)p->count * 4);
        double found = (side[1] - side[0]) / (2 * (double)step);
        double allowed = difference_tolerance * fmax(sqrt(norm), 0.1 + 1e-2 * fabs(side[0]));
        if (!(fabs(found - slope) <= allowed))
            fail_msg("%s: the objective's slope along %s is %.6g, the gradient says %.6g (allowed difference %.2g)", r->c->name,
                     r->graph->tensor[t].name, found, slope, allowed);
    }
    send_params(r);
    free(grad);
    free(keep);
}

static void check_loss(rig *r, dp_loss_sums sums)
{
    dp_st_tensor targets = golden(r, "targets", ""), correct = golden(r, "correct", "");
    compare_number(r, "the loss", sums.loss, *(const double *)golden(r, "loss", "").data);
    assert_int_equal(sums.targets, *(const int32_t *)targets.data);
    assert_int_equal(sums.correct, *(const int32_t *)correct.data);
}

static void check_values(rig *r)
{
    dp_st_tensor out = golden(r, "out", "");
    float *first = host_memory(r->params->count), *again = host_memory(r->params->count);
    size_t bytes = (size_t)r->params->count * 4;
    assert_int_equal(out.bytes, r->out_count * 4);
    if (!r->c->train) {
        forward(r);
        compare(r, "the output", "", r->out, out.data, r->out_count);
    } else {
        dp_loss_sums sums = both_passes(r);
        compare(r, "the output", "", r->out, out.data, r->out_count);
        if (r->has_loss) check_loss(r, sums);
        compare_flat(r, "grad.", 0, r->grad);
        compare_flat(r, "stats.", 1, r->stats);
        move(r, first, r->grad, bytes);
        check_differences(r);
        both_passes(r); /* nothing is left over from a pass before */
        move(r, again, r->grad, bytes);
        assert_memory_equal(first, again, bytes);
    }
    free(first);
    free(again);
}

static void check_training(rig *r)
{
    for (int64_t k = 0; k < r->c->steps; k++) {
        char name[32];
        snprintf(name, sizeof name, "loss%d", (int)k);
        dp_loss_sums sums = both_passes(r);
        compare_number(r, name, sums.loss, *(const double *)golden(r, name, "").data);
        move(r, r->buffer, r->stats, (size_t)r->params->buffer_count * 4);
        update(r, k, (double)sums.targets);
    }
    compare_flat(r, "end.", 0, r->param);
    compare_flat(r, "end.", 1, r->buffer);
}

static void check_optimizer(rig *r)
{
    float *given = host_memory(r->params->count);
    for (int64_t k = 0; k < r->c->steps; k++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "given%d.", (int)k);
        golden_flat(r, prefix, 0, given);
        for (int t = 0; t < r->params->n_params; t++) /* no backward pass writes a frozen tensor's gradient */
            if (r->params->param[t].frozen)
                memset(given + r->params->param[t].offset, 0, (size_t)r->params->param[t].count * 4);
        move(r, r->grad, given, (size_t)r->params->count * 4);
        update(r, k, 5);
    }
    compare_flat(r, "end.", 0, r->param);
    free(given);
}

void dp_case_check(const dp_backend *b, const dp_be_options *o, const dp_case *c)
{
    rig rig_here = {.c = c, .b = b}, *r = &rig_here;
    OK(b->open(&r->device, o, &err));
    OK(b->stream_open(r->device, 0, &r->stream, &err));
    open_golden(r);
    open_graph(r);
    open_memory(r);
    if (c->given) {
        check_optimizer(r);
    } else {
        open_pass(r);
        check_values(r);
        if (c->steps) check_training(r);
    }
    settle(r);
    dp_plan_close(r->plan);
    for (int i = 0; i < r->n_memory; i++) b->free(r->device, DP_MEM_STAGING, r->memory[i].p, r->memory[i].bytes);
    b->stream_close(r->stream);
    for (int i = 0; i < DP_MEM_CLASSES; i++) /* what libraries took goes with the device */
        if (i != DP_MEM_LIBRARY) assert_int_equal(b->memory(r->device)->live[i], 0);
    b->close(r->device);
    dp_params_free(r->params);
    dp_graph_free(r->graph);
    dp_config_free(r->config);
    dp_st_close(r->golden);
    free(r->host_param);
    free(r->host_buffer);
    free(r->out);
    free(r->dout);
}
