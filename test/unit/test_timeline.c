/* Timelines: what the spans of a run show and how they add up. On late streams whose kernels take their time without using a core, as a GPU's
 * do: only so can two streams of a device run at once here. */
#include "../../nn/plan_internal.h"
#include "../late/late.h"
#include "engine_rig.h"
#include <time.h>
#include <math.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* Each layer a bucket, five of them. */
static const rig_net rig_deep = {.name = "deep",
                                 .text = "[model]\ninput = 12\nfc1 = linear out=64 | tanh\nfc2 = linear out=64 | tanh\n"
                                         "fc3 = linear out=64 | tanh\nfc4 = linear out=64 | tanh\nfc5 = linear out=4\n",
                                 .width = 12,
                                 .targets = 1,
                                 .classes = 4,
                                 .smooth = 1,
                                 .settings = "devices.bucket_mb=0.0005"};
static const rig_net rig_residual = {
    .name = "residual",
    .text = "[model]\ninput = 3x5x5\nconv1 = conv2d out=16 kernel=3 pad=1 bias=0\nbn1 = batchnorm2d | relu\n"
            "conv2 = conv2d out=16 kernel=3 pad=1 bias=0\nbn2 = batchnorm2d\nsum = add from=bn2,bn1 | relu\n"
            "conv3 = conv2d out=16 kernel=3 pad=1 bias=0\nbn3 = batchnorm2d | relu\npool = globalavgpool | flatten\n"
            "fc = linear out=4\n",
    .width = 75,
    .targets = 1,
    .classes = 4,
    .settings = "devices.bucket_mb=0.0005"};

enum { MOST = 20000, DEVICES = 4, STEPS = 3 };
typedef struct spans {
    dp_span *span;
    int n;
} spans;

static void keep(void *user, const dp_span *s)
{
    spans *all = user;
    assert_true(all->n < MOST);
    all->span[all->n++] = *s;
}

/* The last kernel of backward stands still on every device until each has communicated all buckets but the last: whatever the
 * machine's load, they can only have done so under it. */
static void hold_backward(const rig *r)
{
    const dp_plan *p = r->e->replica[0].plan;
    int64_t kernels = 0;
    for (int i = 0; i < p->n_links; i++) kernels += p->link[i].trains;
    for (int d = 0; d < DEVICES; d++) late_arm(&(late_fault){.kind = LATE_BACKWARD, .device = d, .nth = kernels, .hang = 1});
}

static int all_but_the_last_are_through(const rig *r)
{
    const dp_engine *e = r->e;
    const dp_step *step = &e->step[(e->submitted - 1) % DP_STEPS];
    for (int d = 0; d < e->n; d++)
        for (int b = 0; b < e->params->n_buckets - 1; b++) {
            const dp_signal *s = e->on.update == DP_UPDATE_MASTER ? &e->at[d].sum[b] : &e->at[d].here[b];
            uint64_t value = e->on.update == DP_UPDATE_MASTER ? step->reduction : step->version + 1;
            if (!dp_signal_ready(s, value) || !e->group->backend->done(s->event[value % DP_SIGNAL_RING])) return 0;
        }
    return 1;
}

static void let_backward_go(const rig *r)
{
    for (int i = 0; !all_but_the_last_are_through(r); i++) {
        if (i == 30000) fail_msg("some bucket waits for the end of backward");
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    late_release();
}

static spans spans_of(const rig_net *net, const dp_backend *b, const char *settings, int held)
{
    rig r;
    dp_error err;
    spans all = {calloc(MOST, sizeof(dp_span)), 0};
    rig_data data = rig_data_new(net, 32, 5);
    assert_non_null(all.span);
    rig_open(&r, net, b, DEVICES, 0, settings);
    for (int i = 0; i <= STEPS; i++) {
        dp_batch batch = rig_batch(&data, 0, 24);
        if (held && i < STEPS) hold_backward(&r);
        if (i < STEPS && dp_engine_submit(r.e, &batch, &err)) fail_msg("%s", err.text);
        if (held && i < STEPS) let_backward_go(&r);
        if (held ? i < STEPS && dp_engine_wait(r.e, NULL, &err) : i && dp_engine_wait(r.e, NULL, &err))
            fail_msg("%s", err.text);
    }
    assert_int_equal(dp_engine_trace(r.e, keep, &all, &err), DP_OK);
    int before = all.n;
    assert_int_equal(dp_engine_trace(r.e, keep, &all, &err), DP_OK);
    assert_int_equal(all.n, before); /* each span once */
    rig_close(&r);
    rig_data_free(&data);
    return all;
}

/* End of a device's last backward in a step. */
static double backward_end(const spans *all, int device, int64_t step)
{
    double end = -1;
    for (int i = 0; i < all->n; i++) {
        const dp_span *s = &all->span[i];
        if (s->device == device && s->step == step && s->phase == DP_PHASE_BACKWARD && s->end > end) end = s->end;
    }
    return end;
}

static int buckets_of(const spans *all)
{
    int most = 0;
    for (int i = 0; i < all->n; i++)
        if (all->span[i].bucket > most) most = all->span[i].bucket;
    return most + 1;
}

/* Every bucket but the last is summed, and with `all` stepped and gathered, while earlier layers still run backward; and the trace says so. */
static void communication_runs_under_backward(void **state)
{
    static const late_options how = {.seed = 3, .delay_us = 200};
    static const rig_net *const nets[] = {&rig_deep, &rig_residual};
    static const struct {
        const char *mode;
        int phases[3], n;
    } cases[] = {{"devices.mode=dp", {DP_PHASE_REDUCE}, 1},
                 {"devices.mode=balanced", {DP_PHASE_REDUCE, DP_PHASE_UPDATE, DP_PHASE_SHARE}, 3},
                 {"devices.mode=ddp", {DP_PHASE_REDUCE, DP_PHASE_UPDATE}, 2}};
    (void)state;
    for (int k = 0; k < COUNT(nets); k++)
        for (int c = 0; c < COUNT(cases); c++) {
            spans all = spans_of(nets[k], late_backend(&how), cases[c].mode, 1);
            int buckets = buckets_of(&all);
            assert_true(buckets >= 4);
            for (int64_t step = 0; step < STEPS; step++)
                for (int d = 0; d < DEVICES; d++)
                    for (int b = 0; b < buckets - 1; b++)
                        for (int p = 0; p < cases[c].n; p++) {
                            double end = backward_end(&all, d, step);
                            int under = 0;
                            for (int i = 0; i < all.n; i++) {
                                const dp_span *s = &all.span[i];
                                if (s->device == d && s->step == step && s->bucket == b && s->phase == cases[c].phases[p])
                                    under |= s->lane != DP_LANE_COMPUTE &&
                                             s->begin < end; /* its end is marked behind its signal */
                            }
                            if (!under)
                                fail_msg("%s, %s: step %d, device %d: no %s of bucket %d under backward", nets[k]->name,
                                         cases[c].mode, (int)step, d, dp_phase_name(cases[c].phases[p]), b);
                        }
            free(all.span);
        }
}

/* With overlap = off it does not: the test above can fail. */
static void without_overlap_it_comes_after(void **state)
{
    static const late_options how = {.seed = 3, .kernel_us = 5000};
    (void)state;
    spans all = spans_of(&rig_deep, late_backend(&how), "devices.overlap=off", 0);
    for (int i = 0; i < all.n; i++) {
        const dp_span *s = &all.span[i];
        if (s->phase == DP_PHASE_REDUCE && s->step >= 0) assert_true(s->begin >= backward_end(&all, s->device, s->step) - 1e-9);
    }
    free(all.span);
}

/* Inside a lane one span follows the other, and no thread stands still in the compute lane while it has something to launch. */
static void lanes_are_in_order(void **state)
{
    static const late_options how = {.seed = 3, .delay_us = 200};
    static const char *const modes[] = {"devices.mode=dp", "devices.mode=balanced", "devices.mode=ddp"};
    for (int m = 0; m < COUNT(modes); m++) {
        int late = rig_backend(state) != dp_backend_cpu();
        spans all = spans_of(&rig_deep, late ? late_backend(&how) : dp_backend_cpu(), modes[m], 0);
        double end[DEVICES][DP_LANES] = {{0}};
        assert_true(all.n > DEVICES * STEPS * 4);
        for (int i = 0; i < all.n; i++) {
            const dp_span *s = &all.span[i];
            double *last = &end[s->device][s->lane];
            assert_true(s->end >= s->begin);
            if (s->begin < *last - 1e-9)
                fail_msg("%s: device %d, lane %d: a span begins %g s before the last one ends", modes[m], s->device, s->lane,
                         *last - s->begin);
            *last = s->end;
            if (s->phase == DP_PHASE_FORWARD || s->phase == DP_PHASE_BACKWARD) assert_true(s->waited == 0);
        }
        free(all.span);
    }
}

/* P42: the phases of an interval add up to its time. */
static void phases_add_up(void **state)
{
    rig r;
    rig_data data = rig_data_new(&rig_conv, 32, 5);
    dp_device_stats before[3], after;
    rig_open(&r, &rig_conv, rig_backend(state), 3, 0, "devices.mode=balanced");
    rig_step(&r, &data, 0, 24);
    for (int d = 0; d < 3; d++) dp_engine_stats(r.e, d, &before[d]);
    double begin[3], end[3];
    for (int d = 0; d < 3; d++) begin[d] = r.e->replica[d].booked_to;
    for (int i = 0; i < 50; i++) rig_step(&r, &data, i % 8, 24);
    for (int d = 0; d < 3; d++) end[d] = r.e->replica[d].booked_to;
    for (int d = 0; d < 3; d++) {
        double sum = 0;
        dp_engine_stats(r.e, d, &after);
        for (int p = 0; p < DP_PHASES; p++) sum += after.phase[p] - before[d].phase[p];
        if (fabs(sum - (end[d] - begin[d])) > 0.01 * sum)
            fail_msg("device %d: phases %g s, time %g s", d, sum, end[d] - begin[d]);
        double shared = after.busy + after.wait - before[d].busy - before[d].wait;
        if (fabs(shared - sum) > 0.01 * sum) fail_msg("device %d: busy and wait %g s, phases %g s", d, shared, sum);
        assert_int_equal(after.steps - before[d].steps, 50);
    }
    rig_close(&r);
    rig_data_free(&data);
}

static void layers_are_named_on_request(void **state)
{
    spans all = spans_of(&rig_deep, rig_backend(state), "run.trace=layer", 0);
    static const char *const layers[] = {"fc1", "fc2", "fc3", "fc4", "fc5"};
    for (int k = 0; k < COUNT(layers); k++) {
        int forward = 0, backward = 0;
        for (int i = 0; i < all.n; i++) {
            const dp_span *s = &all.span[i];
            if (s->device != 1 || s->step != 2 || strcmp(s->layer, layers[k])) continue;
            forward += s->phase == DP_PHASE_FORWARD;
            backward += s->phase == DP_PHASE_BACKWARD;
        }
        assert_int_equal(forward, 1);
        assert_true(backward >= 1);
    }
    free(all.span);
}

static void links_are_counted_and_measured(void **state)
{
    rig r;
    dp_error err;
    dp_link l;
    rig_data data = rig_data_new(&rig_wide, 32, 5);
    rig_open(&r, &rig_wide, rig_backend(state), 3, 0, "devices.mode=balanced");
    rig_step(&r, &data, 0, 24);
    rig_step(&r, &data, 0, 24);
    for (int to = 0; to < 3; to++) {
        dp_device_stats s;
        int64_t in = 0;
        for (int from = 0; from < 3; from++)
            if (dp_engine_link(r.e, from, to, &l)) in += l.bytes, assert_true(l.bytes_per_s == 0);
        dp_engine_stats(r.e, to, &s);
        assert_int_equal(in, s.bytes_in);
    }
    assert_int_equal(dp_engine_link(r.e, 1, 1, &l), 0);
    assert_int_equal(dp_engine_link(r.e, 1, 3, &l), 0);
    assert_int_equal(dp_engine_measure_links(r.e, &err), DP_OK);
    for (int to = 0; to < 3; to++)
        for (int from = 0; from < 3; from++)
            if (dp_engine_link(r.e, from, to, &l)) assert_true(l.bytes_per_s > 0);
    rig_close(&r);
    rig_data_free(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(communication_runs_under_backward),
        cmocka_unit_test(without_overlap_it_comes_after),
        ON(lanes_are_in_order),
        ON(phases_add_up),
        ON(layers_are_named_on_request),
        ON(links_are_counted_and_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
