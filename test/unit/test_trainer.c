/* The loop: a stopped and resumed run is the same run, byte for byte; what is refused; what is told. */
#include "train_rig.h"
#include <math.h>

typedef struct watch { /* events seen, and when to stop */
    int64_t stop_at, first_step, last_step, eval_samples;
    int n[6], order_bad;
    double lr[64], epoch_loss, step_loss_sum;
    int64_t step_targets;
    char reason[64];
} watch;

static int on_event(void *user, const dp_event *ev)
{
    watch *w = user;
    w->n[ev->kind]++;
    if (ev->kind == DP_EVENT_STEP) {
        if (!w->first_step)
            w->first_step = ev->step;
        else if (ev->step != w->last_step + 1)
            w->order_bad = 1;
        w->last_step = ev->step;
        if (ev->step < 64) w->lr[ev->step] = ev->result->lr;
        w->step_loss_sum += ev->result->loss_sum, w->step_targets += ev->result->targets;
        return ev->step == w->stop_at;
    }
    if (ev->kind == DP_EVENT_EVAL) w->eval_samples = ev->result->samples;
    if (ev->kind == DP_EVENT_EPOCH) {
        w->epoch_loss = ev->result->loss_sum / (double)ev->result->targets;
        double want = w->step_loss_sum / (double)w->step_targets;
        if (!w->stop_at && fabs(w->epoch_loss - want) > 1e-12 * want) w->order_bad = 1;
        w->step_loss_sum = 0, w->step_targets = 0;
    }
    if (ev->kind == DP_EVENT_END) snprintf(w->reason, sizeof w->reason, "%s", ev->text);
    return 0;
}

static dp_status train(const char *const *settings, watch *w, dp_error *err)
{
    dp_trainer *t = NULL;
    dp_config *c = rig_config(settings);
    dp_status s = dp_trainer_open(&t, NULL, NULL, NULL, c, on_event, w, err);
    dp_config_free(c); /* the trainer has what it needs */
    if (!s) s = dp_trainer_run(t, err);
    dp_trainer_close(t, NULL);
    return s;
}

static void resumed_equals_straight(const char *const *extra, int64_t stop_at)
{
    const char *a[12] = {"run.dir=straight"}, *b[12] = {"run.dir=broken"}, *r[12] = {"run.dir=broken", "run.resume=auto"};
    watch wa = {0}, wb = {0}, wr = {0};
    dp_error err;
    for (int i = 0; extra && extra[i]; i++) a[i + 1] = b[i + 1] = r[i + 2] = extra[i];
    if (train(a, &wa, &err)) fail_msg("%s", err.text);
    wb.stop_at = stop_at;
    assert_int_equal(train(b, &wb, &err), DP_ESTOPPED);
    assert_non_null(strstr(err.text, "state saved"));
    assert_true(wb.last_step == stop_at || wb.last_step == stop_at + 1); /* a batch in flight is finished */
    stop_at = wb.last_step;
    wr.stop_at = -1;
    if (train(r, &wr, &err)) fail_msg("%s", err.text);
    assert_int_equal(wr.first_step, stop_at + 1);
    assert_false(wa.order_bad || wb.order_bad || wr.order_bad);
    assert_int_equal(wr.last_step, wa.last_step);
    for (int64_t i = stop_at + 1; i <= wa.last_step && i < 64; i++) assert_true(wr.lr[i] == wa.lr[i]);
    assert_true(wr.epoch_loss == wa.epoch_loss);
    char pa[64], pr[64];
    snprintf(pa, sizeof pa, "straight/state-%08lld.safetensors", (long long)wa.last_step);
    snprintf(pr, sizeof pr, "broken/state-%08lld.safetensors", (long long)wa.last_step);
    assert_true(rig_same(pa, pr)); /* weights, optimizer, every number of the progress */
    assert_true(rig_same("straight/last.safetensors", "broken/last.safetensors"));
}

static void resume_sgd_mid_epoch(void **state)
{
    (void)state;
    const char *x[] = {"optimizer.kind=sgd", "optimizer.momentum=0.9", "optimizer.weight_decay=0.01", NULL};
    resumed_equals_straight(x, 10);
}

static void resume_sgd_at_an_epoch_end(void **state)
{
    (void)state;
    const char *x[] = {"optimizer.kind=sgd", "optimizer.momentum=0.9", NULL};
    resumed_equals_straight(x, 7);
}

static void resume_adamw_mid_epoch_with_evaluation(void **state)
{
    (void)state;
    const char *x[] = {"optimizer.kind=adamw", "data.eval=last 20%", "data.workers=0", NULL};
    resumed_equals_straight(x, 8);
}

static void resume_adamw_at_an_epoch_end_with_evaluation(void **state)
{
    (void)state;
    const char *x[] = {"optimizer.kind=adamw", "data.eval=last 20%", NULL};
    resumed_equals_straight(x, 5); /* 80 samples: 5 batches; the stop comes before the evaluation that is due there */
}

static void resume_with_accumulation(void **state)
{
    (void)state;
    const char *x[] = {
        "optimizer.kind=sgd", "optimizer.momentum=0.9", "data.accumulate=2", "run.save_every=3 steps", "run.keep=1", NULL};
    resumed_equals_straight(x, 6); /* 7 batches: 4 windows an epoch, the last of one batch */
}

static void ten_and_ten_steps_are_twenty(void **state)
{
    (void)state;
    const char *a[] = {"run.dir=a", "run.steps=20", "schedule.kind=constant", "optimizer.momentum=0.9", NULL};
    const char *b[] = {"run.dir=b", "run.steps=10", "schedule.kind=constant", "optimizer.momentum=0.9", NULL};
    const char *r[] = {"run.dir=b", "run.steps=20", "schedule.kind=constant", "optimizer.momentum=0.9", "run.resume=auto",
                       NULL};
    watch w[3] = {{0}};
    dp_error err;
    assert_int_equal(train(a, &w[0], &err), DP_OK);
    assert_int_equal(train(b, &w[1], &err), DP_OK);
    w[2].stop_at = -1;
    assert_int_equal(train(r, &w[2], &err), DP_OK);
    assert_int_equal(w[2].n[DP_EVENT_STEP], 10);
    assert_true(rig_same("a/last.safetensors", "b/last.safetensors"));
    assert_true(rig_same("a/state-00000020.safetensors", "b/state-00000020.safetensors"));
}

static void what_is_told(void **state)
{
    (void)state;
    const char *x[] = {"run.dir=r", "data.eval=last 20%", "run.epochs=2", NULL};
    watch w = {0};
    dp_error err;
    size_t n;
    if (train(x, &w, &err)) fail_msg("%s", err.text);
    assert_int_equal(w.n[DP_EVENT_START], 1);
    assert_int_equal(w.n[DP_EVENT_STEP], 10);
    assert_int_equal(w.n[DP_EVENT_EPOCH], 2);
    assert_int_equal(w.n[DP_EVENT_EVAL], 2);
    assert_int_equal(w.n[DP_EVENT_SAVE], 2);
    assert_int_equal(w.n[DP_EVENT_END], 1);
    assert_int_equal(w.eval_samples, 20);
    assert_string_equal(w.reason, "done");
    assert_false(w.order_bad);
    char *log = rig_read("r/log.jsonl", &n);
    int lines = 0, steps = 0;
    for (char *p = strtok(log, "\n"); p; p = strtok(NULL, "\n")) {
        size_t len = strlen(p);
        assert_true(p[0] == '{' && p[len - 1] == '}');
        steps += !strncmp(p, "{\"type\":\"step\"", 14);
        lines++;
    }
    free(log);
    assert_int_equal(steps, 10); /* one line a step, on any number of devices */
    assert_true(lines >= 16);    /* and start, 2 eval, 2 save, end */
    assert_true(access("r/lock", F_OK));
}

static void refusals(void **state)
{
    (void)state;
    dp_error err;
    watch w = {0};
    const char *run[] = {"run.dir=r", "run.steps=3", "run.save_every=2 steps", NULL};
    if (train(run, &w, &err)) fail_msg("%s", err.text);
    const struct {
        const char *set[5];
        const char *text;
    } row[] = {
        {{"run.dir=r"}, "already holds a run"},
        {{"run.dir=r", "run.resume=r/last.safetensors"}, "holds weights only; use init_from, or resume from "},
        {{"run.dir=r", "run.resume=r/state-00000002.safetensors"}, "holds a newer state"},
        {{"run.dir=r", "run.resume=auto", "data.batch_size=8"}, "data.batch_size was 16 and is 8"},
        {{"run.dir=r", "run.resume=auto", "optimizer.kind=adam"}, "optimizer.kind = sgd"},
        {{"run.dir=r", "run.resume=auto", "run.seed=9"}, "run.seed was 1 and is 9"},
        {{"run.dir=new", "data.classes=400", "run.init_from=r/last.safetensors"}, "fc2."},
        {{"run.dir=new", "loss.kind=mse"}, "classes"},
        {{"run.dir=new", "data.drop_last=1", "data.batch_size=128"}, "data.drop_last"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        dp_status s = train(row[i].set, &w, &err);
        if (s != DP_ECONFIG && s != DP_EDATA) fail_msg("row %d: status %d", (int)i, (int)s);
        if (!strstr(err.text, row[i].text)) fail_msg("row %d: %s", (int)i, err.text);
    }
    assert_true(access("new", F_OK)); /* nothing was made */
    const char *init[] = {"run.dir=from", "run.steps=1", "run.init_from=r/state-00000003.safetensors",
                          NULL}; /* a state serves as weights */
    assert_int_equal(train(init, &w, &err), DP_OK);
}

static void a_wrong_input_shape(void **state)
{
    (void)state;
    dp_error err;
    dp_trainer *t = NULL;
    dp_graph *g = dp_graph_new();
    float x[8 * 6] = {0};
    int32_t y[8] = {0, 1, 2, 3, 0, 1, 2, 3};
    dp_data *d = NULL;
    dp_config *c = rig_config(NULL);
    dp_layer(g, "input", "5");
    dp_layer(g, "fc", "linear out=4");
    assert_int_equal(dp_graph_finish(g, &err), DP_OK);
    assert_int_equal(dp_data_rows(&d, dp_view(x, DP_F32, 8, 6), dp_view(y, DP_I32, 8, 1), 4, &err), DP_OK);
    assert_int_equal(dp_trainer_open(&t, g, d, NULL, c, NULL, NULL, &err), DP_ECONFIG);
    assert_non_null(strstr(err.text, "input is 5"));
    assert_non_null(strstr(err.text, "is 6"));
    assert_null(t);
    dp_data_close(d);
    dp_graph_free(g);
    dp_config_free(c);
}

static void the_callers_own_arrays(void **state)
{
    (void)state;
    dp_error err;
    dp_result r;
    dp_trainer *t = NULL;
    dp_graph *g = dp_graph_new();
    float x[8 * 6];
    int32_t y[8];
    dp_data *d = NULL;
    const char *set[] = {"run.dir=own", "run.epochs=40", "data.batch_size=8", "optimizer.lr=0.5", NULL};
    dp_config *c = rig_config(set);
    for (int i = 0; i < 8; i++) {
        y[i] = i % 4;
        for (int k = 0; k < 6; k++) x[i * 6 + k] = k == y[i] ? 3.0f : 0.0f;
    }
    dp_layer(g, "input", "6");
    dp_layer(g, "fc", "linear out=4");
    assert_int_equal(dp_graph_finish(g, &err), DP_OK);
    assert_int_equal(dp_data_rows(&d, dp_view(x, DP_F32, 8, 6), dp_view(y, DP_I32, 8, 1), 4, &err), DP_OK);
    if (dp_trainer_open(&t, g, d, d, c, NULL, NULL, &err)) fail_msg("%s", err.text);
    assert_int_equal(dp_trainer_eval(t, &r, &err), DP_OK);
    assert_int_equal(r.samples, 8);
    double before = r.loss_sum;
    if (dp_trainer_run(t, &err)) fail_msg("%s", err.text);
    assert_int_equal(dp_trainer_eval(t, &r, &err), DP_OK);
    assert_int_equal(r.correct, 8); /* separable: every sample is learned */
    assert_true(r.loss_sum < 0.5 * before);
    dp_trainer_close(t, NULL);
    dp_data_close(d);
    dp_graph_free(g);
    dp_config_free(c);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {TEST(resume_sgd_mid_epoch),
                                       TEST(resume_sgd_at_an_epoch_end),
                                       TEST(resume_adamw_mid_epoch_with_evaluation),
                                       TEST(resume_adamw_at_an_epoch_end_with_evaluation),
                                       TEST(resume_with_accumulation),
                                       TEST(ten_and_ten_steps_are_twenty),
                                       TEST(what_is_told),
                                       TEST(refusals),
                                       TEST(a_wrong_input_shape),
                                       TEST(the_callers_own_arrays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
