/* State files: what they hold, which of them stay, what is refused. */
#include "../../dp/base/text.h"
#include "../../dp/train/checkpoint.h"
#include "../../dp/train/rundir.h"
#include "train_rig.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static dp_engine *engine;
static dp_graph *graph;
static dp_config *conf;

static int open_engine(void **state)
{
    dp_error err;
    if (rig_setup(state)) return -1;
    conf = rig_config(NULL);
    graph = dp_graph_new();
    dp_graph_symbol(graph, "classes", 4);
    dp_graph_config(graph, conf);
    if (dp_graph_finish(graph, &err) || dp_engine_open(&engine, graph, conf, &err)) fail_msg("%s", err.text);
    return mkdir("d", 0777);
}

static int close_engine(void **state)
{
    dp_engine_close(engine, NULL);
    dp_graph_free(graph);
    dp_config_free(conf);
    return rig_teardown(state);
}

static dp_progress progress_at(int64_t step)
{
    dp_progress p;
    memset(&p, 0, sizeof p);
    p.step = step, p.updates = 0, p.epoch = step / 7, p.batch = step % 7, p.epoch_batches = 7;
    p.samples = step * 16, p.epoch_loss = 1.0 / 3, p.best_loss = 1e-300, p.best_step = -1, p.eval_step = -1;
    p.seed = 1, p.batch_size = 16, p.accumulate = 1, p.devices = 2;
    return p;
}

static const dp_facts facts = {"0.28,0.3/0.35,0.25", NULL};

static void progress_comes_back(void **state)
{
    (void)state;
    dp_error err;
    dp_st_in *in = NULL;
    char *path = NULL;
    dp_progress p = progress_at(40), q;
    if (dp_checkpoint_save(engine, "d", &p, &facts, 3, &path, &err)) fail_msg("%s", err.text);
    assert_string_equal(path, "d/state-00000040.safetensors");
    assert_int_equal(dp_st_open(&in, path, &err), DP_OK);
    assert_true(dp_checkpoint_is_state(in));
    assert_int_equal(dp_checkpoint_progress(in, path, &q, &err), DP_OK);
    assert_memory_equal(&p, &q, sizeof p);
    assert_string_equal(dp_st_meta_get(in, "normalize"), facts.normalize);
    assert_null(dp_st_meta_get(in, "vocab"));
    dp_st_close(in);
    assert_int_equal(dp_st_open(&in, "d/last.safetensors", &err), DP_OK);
    assert_false(dp_checkpoint_is_state(in));
    assert_int_equal(dp_checkpoint_progress(in, "d/last.safetensors", &q, &err), DP_EDATA);
    dp_st_tensor t;
    for (int i = 0; dp_st_get(in, i, &t); i++) assert_null(strstr(t.name, "optimizer")); /* weights only, no device either */
    assert_true(dp_st_find(in, "fc1.weight", &t));
    assert_true(t.rank == 2 && t.shape[0] == 10 && t.shape[1] == 12);
    dp_st_close(in);
    free(path);
}

static int states_are(const int64_t *want, int n)
{
    int64_t *steps;
    int m;
    if (dp_rundir_states("d", &steps, &m, NULL)) return 0;
    int same = m == n;
    for (int i = 0; same && i < n; i++) same = steps[i] == want[i];
    free(steps);
    return same;
}

static void the_newest_stay(void **state)
{
    (void)state;
    dp_error err;
    const int64_t steps[] = {8, 9998, 9999, 10000, 100000000};
    for (int i = 0; i < 5; i++) {
        dp_progress p = progress_at(steps[i]);
        if (i == 1) assert_int_equal(dp_checkpoint_weights(engine, "d", "best.safetensors", &p, &facts, &err), DP_OK);
        if (dp_checkpoint_save(engine, "d", &p, &facts, 2, NULL, &err)) fail_msg("%s", err.text);
        assert_true(states_are(steps + (i ? i - 1 : 0), i ? 2 : 1));
    }
    assert_true(!access("d/best.safetensors", F_OK) && !access("d/last.safetensors", F_OK));
    dp_progress p = progress_at(100000001);
    const int64_t one[] = {100000001};
    assert_int_equal(dp_checkpoint_save(engine, "d", &p, &facts, 1, NULL, &err), DP_OK);
    assert_true(states_are(one, 1));
}

static void a_full_disk_keeps_the_old_state(void **state)
{
    (void)state;
    dp_error err;
    dp_st_in *in = NULL;
    dp_progress p = progress_at(1), q;
    struct rlimit old, small;
    if (dp_checkpoint_save(engine, "d", &p, &facts, 1, NULL, &err)) fail_msg("%s", err.text);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old, small.rlim_cur = 200;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    p = progress_at(2);
    dp_status s = dp_checkpoint_save(engine, "d", &p, &facts, 1, NULL, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(s, DP_ENOSPACE);
    assert_non_null(strstr(err.text, "state-00000002.safetensors"));
    const int64_t one[] = {1};
    assert_true(states_are(one, 1)); /* nothing was deleted for a file that is not there */
    assert_int_equal(dp_st_open(&in, "d/state-00000001.safetensors", &err), DP_OK);
    assert_int_equal(dp_checkpoint_progress(in, "", &q, &err), DP_OK);
    dp_st_close(in);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_engine, close_engine)
int main(void)
{
    const struct CMUnitTest tests[] = {TEST(progress_comes_back), TEST(the_newest_stay), TEST(a_full_disk_keeps_the_old_state)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
