/* What a run tells of its time: waits for data are seen and told once, phases add up to the interval, the trace holds
 * every batch. */
#include "train_rig.h"
#include <cjson/cJSON.h>
#include <math.h>
#include <stdatomic.h>
#include <time.h>

enum { SAMPLES = 192, BATCH = 16, STEPS = SAMPLES / BATCH };

typedef struct slow { /* a set that takes 50 ms a batch, and the time it took */
    int us;
    atomic_int fetched;
    _Atomic double seconds;
} slow;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int fetch(void *user, int64_t index, void *x, void *y, char *why, size_t why_size)
{
    slow *s = user;
    double begin = now();
    (void)why, (void)why_size;
    for (int i = 0; i < 12; i++) ((float *)x)[i] = (float)((index * 7 + i) % 5);
    *(int32_t *)y = (int32_t)(index % 4);
    if (s->us) usleep((useconds_t)s->us);
    if (atomic_fetch_add(&s->fetched, 1) < SAMPLES) s->seconds = s->seconds + now() - begin; /* one loader thread */
    return 0;
}

typedef struct told {
    int lines, data_hints, moved_hints;
    double seconds, data_wait, phases, phase_wait, worst; /* worst: |phases - seconds| / seconds of a line */
} told;

static void read_log(told *t, const char *path)
{
    char line[8192];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        cJSON *o = cJSON_Parse(line), *phase;
        assert_non_null(o);
        const char *type = cJSON_GetObjectItem(o, "type")->valuestring;
        if (!strcmp(type, "warn")) {
            const char *text = cJSON_GetObjectItem(o, "text")->valuestring;
            t->data_hints += strstr(text, "data.workers") != NULL;
            t->moved_hints += strstr(text, "data.batch_size or fewer devices") != NULL;
        }
        if (!strcmp(type, "step")) {
            double sum = 0, seconds = cJSON_GetObjectItem(o, "seconds")->valuedouble;
            cJSON *phases = cJSON_GetObjectItem(o, "phases");
            cJSON_ArrayForEach(phase, phases)
            {
                assert_true(phase->valuedouble >= 0);
                sum += phase->valuedouble;
            }
            t->lines++;
            t->seconds += seconds, t->phases += sum, t->data_wait += cJSON_GetObjectItem(o, "data_wait_s")->valuedouble;
            t->phase_wait += cJSON_GetObjectItem(phases, "data_wait")->valuedouble;
            t->worst = fmax(t->worst, fabs(sum - seconds) / seconds);
        }
        cJSON_Delete(o);
    }
    fclose(f);
}

static void run(const char *const *settings, slow *s, told *t)
{
    dp_error err;
    dp_trainer *trainer = NULL;
    dp_data *data = NULL;
    dp_config *c = rig_config(settings);
    dp_data_source source = {.size = sizeof source,
                             .info = {.samples = SAMPLES, .x_rank = 1, .x_shape = {12}, .y_width = 1, .classes = 4},
                             .fetch = fetch,
                             .user = s};
    source.info.x_dtype = DP_F32, source.info.y_dtype = DP_I32;
    if (dp_data_custom(&data, &source, &err) || dp_trainer_open(&trainer, NULL, data, NULL, c, NULL, NULL, &err))
        fail_msg("%s", err.text);
    if (dp_trainer_run(trainer, &err)) fail_msg("%s", err.text);
    dp_trainer_close(trainer, NULL);
    dp_data_close(data);
    dp_config_free(c);
    read_log(t, "r/log.jsonl");
}

static void test_slow_data_is_told(void **state)
{
    (void)state;
    static const char *const settings[] = {"run.dir=r", "run.epochs=1", "run.log_every=3", "data.workers=1", NULL};
    slow s = {.us = 50000 / BATCH};
    told t = {0};
    run(settings, &s, &t);
    assert_int_equal(t.lines, STEPS / 3);
    assert_true(fabs(t.data_wait - s.seconds) <= 0.1 * s.seconds); /* P28 */
    assert_true(t.phase_wait <= t.data_wait && t.phase_wait >= 0.8 * t.data_wait);
    assert_true(fabs(t.seconds - s.seconds) <= 0.1 * s.seconds); /* nothing else takes time here */
    assert_true(t.worst <= 0.05);
    assert_int_equal(t.data_hints, 1);
}

static void test_ready_data_is_not(void **state)
{
    (void)state;
    static const char *const settings[] = {"run.dir=r", "run.overwrite=1", "run.epochs=4", "run.log_every=8", NULL};
    slow s = {0};
    told t = {0};
    run(settings, &s, &t);
    assert_int_equal(t.lines, 4 * STEPS / 8);
    assert_true(t.worst <= 0.05);
    assert_true(t.phase_wait <= t.data_wait);
    assert_true(t.moved_hints <= 1 && t.data_hints <= 1);
}

/* Idle time of evaluations and saves belongs to no interval. */
static void test_pauses_are_left_out(void **state)
{
    (void)state;
    static const char *const settings[] = {
        "run.dir=r", "run.overwrite=1", "run.epochs=2", "run.log_every=4", "run.save_every=2", "data.eval=last 20%", NULL};
    told t = {0};
    dp_error err;
    dp_trainer *trainer = NULL;
    dp_config *c = rig_config(settings);
    double begin = now();
    if (dp_trainer_open(&trainer, NULL, NULL, NULL, c, NULL, NULL, &err) || dp_trainer_run(trainer, &err))
        fail_msg("%s", err.text);
    begin = now() - begin;
    dp_trainer_close(trainer, NULL);
    dp_config_free(c);
    read_log(&t, "r/log.jsonl");
    assert_int_equal(t.lines, 3); /* 2 epochs of 5 steps */
    assert_true(t.worst <= 0.05);
    assert_true(t.seconds < begin);
}

typedef struct seen {
    int64_t newest, batches, forwards[2];
    double end[2];
    int bad;
} seen;

static void on_span(void *user, const dp_span *s)
{
    seen *v = user;
    if (s->device < 0 || s->device > 1 || s->end < s->begin || s->waited < 0 || s->waited > s->end - s->begin + 1e-9) v->bad++;
    if (s->phase == DP_PHASE_FORWARD) v->forwards[s->device]++;
    if (s->peers >> s->device & 1) v->bad++; /* nobody reads itself over a link */
    if ((s->bytes_in > 0) != (s->peers != 0)) v->bad++;
    if (s->device == 0 && s->step > v->newest) v->newest = s->step, v->batches++;
}

static void test_trace_holds_every_batch(void **state)
{
    (void)state;
    static const char *const settings[] = {"run.dir=r", "run.overwrite=1", "run.steps=9", "run.trace=step", NULL};
    dp_error err;
    dp_trainer *trainer = NULL;
    dp_config *c = rig_config(settings);
    seen v = {.newest = -1};
    size_t bytes;
    if (dp_trainer_open(&trainer, NULL, NULL, NULL, c, NULL, NULL, &err) || dp_trainer_run(trainer, &err))
        fail_msg("%s", err.text);
    assert_int_equal(dp_trainer_trace(trainer, on_span, &v, &err), DP_OK);
    assert_int_equal(v.bad, 0);
    assert_int_equal(v.batches, 9);
    assert_true(v.forwards[0] >= 9 && v.forwards[1] >= 9);
    dp_trainer_close(trainer, NULL);
    dp_config_free(c);

    char *text = rig_read("r/trace.json", &bytes);
    cJSON *o = cJSON_Parse(text), *e;
    assert_non_null(o);
    int spans = 0, starts = 0, ends = 0;
    double last = -1;
    int pid = 0;
    cJSON_ArrayForEach(e, cJSON_GetObjectItem(o, "traceEvents"))
    {
        const char *kind = cJSON_GetObjectItem(e, "ph")->valuestring;
        starts += *kind == 's', ends += *kind == 'f';
        if (*kind != 'X') continue;
        double begin = cJSON_GetObjectItem(e, "ts")->valuedouble;
        if (cJSON_GetObjectItem(e, "pid")->valueint != pid) pid++, last = -1;
        assert_true(begin >= last && cJSON_GetObjectItem(e, "dur")->valuedouble >= 0);
        last = begin;
        spans++;
    }
    assert_int_equal(pid, 1);
    assert_true(spans > 9 * 2 * 4 && starts == ends && starts > 0);
    cJSON_Delete(o);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_data_is_told),
        cmocka_unit_test(test_ready_data_is_not),
        cmocka_unit_test(test_pauses_are_left_out),
        cmocka_unit_test(test_trace_holds_every_batch),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
