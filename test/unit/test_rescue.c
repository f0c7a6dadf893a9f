/* A device is lost for good: the trainer gives its last snapshot away, and the program, executed anew in its place, goes on without that
 * device. This program is a small dptrain itself when it is called as one; how it executes itself anew is tools/again.c, as in dptrain.
 * DP_TEST_LOSE = "cpu:1@20,cpu:0@15": these devices are lost in that call of the loss. */
#include "../../tools/again.c"
#include "engine_rig.h"
#include "../../dp/train/trainer.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* ---- called as a program that trains ---- */

static dp_backend table; /* the CPU's, with a loss that fails */
static dp_be_stream *_Atomic lost_stream;
static _Atomic int calls, fails_at;

static dp_status failing_loss(dp_be_stream *s, const dp_loss *l, int64_t rows, const float *logits, const void *targets,
                              dp_dtype target_type, float *d_logits, dp_loss_sums *sums)
{
    if (s == atomic_load(&lost_stream) && atomic_fetch_add(&calls, 1) + 1 >= atomic_load(&fails_at)) return DP_EDEVICE_LOST;
    return dp_backend_cpu()->loss(s, l, rows, logits, targets, target_type, d_logits, sums);
}

/* Before the first batch: nothing is in flight. */
static int on_event(void *user, const dp_event *ev)
{
    dp_engine *e = dp_trainer_engine(*(dp_trainer **)user);
    const char *lose = getenv("DP_TEST_LOSE");
    if (ev->kind != DP_EVENT_START || !lose) return 0;
    table = *dp_backend_cpu();
    table.loss = failing_loss;
    for (int d = 0; d < e->n; d++) {
        char name[32];
        snprintf(name, sizeof name, "cpu:%d@", e->group->list.index[d]);
        const char *at = strstr(lose, name);
        if (!at || atomic_load(&lost_stream)) continue;
        atomic_store(&fails_at, atoi(at + strlen(name)));
        atomic_store(&lost_stream, e->group->worker[d].lane_stream[DP_LANE_COMPUTE]);
        e->replica[d].b = &table;
    }
    return 0;
}

static void print(void *user, dp_level level, const char *text)
{
    (void)user;
    if (level >= DP_LOG_WARN) fprintf(stderr, "%s\n", text);
}

static int train(int argc, char **argv)
{
    options o = {
        .program = argv[0], .config = argv[1], .overrides = (const char **)(void *)(argv + 2), .n_overrides = argc - 2};
    dp_config *c = dp_config_new(print, NULL);
    dp_trainer *t = NULL;
    dp_error err;
    dp_status s = dp_config_load(c, o.config, &err);
    for (int i = 0; i < o.n_overrides && !s; i++) {
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)strcspn(o.overrides[i], "="), o.overrides[i]);
        s = dp_config_set(c, key, strchr(o.overrides[i], '=') + 1);
    }
    if (!s) s = dp_trainer_open(&t, NULL, NULL, NULL, c, on_event, &t, &err);
    if (!s) {
        again_begun(c);
        printf("pid %ld devices %d\n", (long)getpid(), dp_engine_devices(dp_trainer_engine(t)));
        fflush(stdout);
        s = dp_trainer_run(t, &err);
    }
    if (s) fprintf(stderr, "%d: device %d: %s\n", (int)s, err.device, err.text);
    if (t && again_wanted(c, s, &err)) again(t, &err, c, &o);
    dp_trainer_close(t, NULL);
    dp_config_free(c);
    return s != DP_OK;
}

/* ---- the tests ---- */

static char dir[] = "/tmp/dp-rescue-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(dir) || chdir(dir)) return -1;
    FILE *f = fopen("c.ini", "w");
    if (!f) return -1;
    fputs("[run]\nsteps = 14\nlog_every = 1\n"
          "[devices]\nuse = cpu:0,cpu:1,cpu:2\nthreads = 1\nshards = 6\n"
          "[data]\nformat = synthetic\nsamples = 96\nbatch_size = 16\n[optimizer]\nkind = adam\nlr = 0.01\n"
          "[model]\ninput = 12\nfc1 = linear out=480 | tanh\ndrop = dropout p=0.2\nfc2 = linear out=classes\n",
          f);
    return fclose(f);
}

static int tear_down(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return chdir("/") || system(command);
}

static char *slurp(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "r");
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    if (!f) fail_msg("%s is missing", path);
    *bytes = fread(text, 1, (1 << 20) - 1, f);
    fclose(f);
    return text;
}

/* Runs this program on c.ini; out, messages: what it printed. Returns its exit code. */
static int run(const char *name, const char *lose, const char *const *more, char *out, char *messages, size_t size, pid_t *pid)
{
    char run_dir[64], *argv[16] = {(char *)(size_t) "trains", (char *)(size_t) "c.ini", run_dir};
    size_t bytes;
    int n = 3, status;
    snprintf(run_dir, sizeof run_dir, "run.dir=%s", name);
    for (; more && *more; more++) argv[n++] = (char *)(size_t)*more;
    assert_int_equal(system(strcmp(name, "clean") ? "rm -rf lost" : "rm -rf clean"), 0);
    *pid = fork();
    assert_true(*pid >= 0);
    if (*pid == 0) {
        int a = open("out", O_WRONLY | O_CREAT | O_TRUNC, 0600), b = open("messages", O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (dup2(a, 1) < 0 || dup2(b, 2) < 0) _exit(99);
        if (lose) setenv("DP_TEST_LOSE", lose, 1);
        execv("/proc/self/exe", argv);
        _exit(98);
    }
    assert_int_equal(waitpid(*pid, &status, 0), *pid);
    char *text = slurp("out", &bytes);
    snprintf(out, size, "%s", text);
    free(text);
    text = slurp("messages", &bytes);
    snprintf(messages, size, "%s", text);
    free(text);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void same_files(const char *a, const char *b)
{
    size_t n, m;
    char *x = slurp(a, &n), *y = slurp(b, &m);
    if (n != m || memcmp(x, y, n)) fail_msg("%s and %s differ", a, b);
    free(x);
    free(y);
}

static const char *const goes_on[] = {"devices.on_device_failure=continue", "run.snapshot_every=2", NULL};

static void it_goes_on_in_its_place(void **state)
{
    static const struct {
        const char *lose, *saves;
        int lost;
    } cases[] = {{"cpu:1@7", NULL, 1},                      /* in step 7, after a snapshot */
                 {"cpu:0@1", NULL, 1},                      /* the master, in the first step: from the start values */
                 {"cpu:2@17,cpu:0@7", NULL, 2},             /* another one later, in the second life */
                 {"cpu:1@12", "run.save_every=5 steps", 1}, /* a state file is newer than the snapshot */
                 {"cpu:1@11", "data.accumulate=3", 1}};
    char out[2048], messages[4096], path[128], line[64];
    pid_t pid;
    (void)state;
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        const char *more[] = {goes_on[0], i == 3 ? "run.snapshot_every=100" : goes_on[1], cases[i].saves, NULL};
        const char *clean[] = {cases[i].saves, NULL};
        if (run("clean", NULL, clean, out, messages, sizeof messages, &pid)) fail_msg("%s", messages);
        if (run("lost", cases[i].lose, more, out, messages, sizeof messages, &pid)) fail_msg("case %d: %s", i, messages);
        const char *at = out;
        for (int k = 0; k <= cases[i].lost; k++) { /* the same process, a device less each time */
            snprintf(line, sizeof line, "pid %ld devices %d\n", (long)pid, 3 - k);
            if (strncmp(at, line, strlen(line))) fail_msg("case %d: wanted %s, found %s; %s", i, line, at, messages);
            at += strlen(line);
        }
        assert_string_equal(at, "");
        assert_non_null(strstr(messages, "going on with cpu:"));
        same_files("clean/last.safetensors", "lost/last.safetensors");
        snprintf(path, sizeof path, "lost/log.jsonl");
        size_t bytes;
        char *log = slurp(path, &bytes);
        int starts = 0, ends = 0;
        for (const char *p = log; (p = strstr(p, "\"type\":\"start\"")); p++) starts++;
        for (const char *p = log; (p = strstr(p, "\"type\":\"end\"")); p++) ends++;
        assert_int_equal(starts, 1 + cases[i].lost);
        assert_int_equal(ends, 1 + cases[i].lost);
        free(log);
        assert_int_equal(access("lost/lock", F_OK), -1);
    }
}

static void the_last_one_ends_it(void **state)
{
    const char *more[] = {goes_on[0], goes_on[1], NULL};
    char out[2048], messages[4096];
    pid_t pid;
    (void)state;
    assert_int_equal(run("lost", "cpu:0@5,cpu:1@5,cpu:2@9", more, out, messages, sizeof messages, &pid), 1);
    assert_non_null(strstr(out, "devices 1\n"));
    assert_non_null(strstr(messages, "none is left"));
}

static void stop_stops(void **state)
{
    char out[2048], messages[4096];
    pid_t pid;
    (void)state;
    assert_int_equal(run("lost", "cpu:1@5", NULL, out, messages, sizeof messages, &pid), 1);
    assert_non_null(strstr(out, "devices 3\n"));
    assert_null(strstr(out, "devices 2\n"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(it_goes_on_in_its_place), cmocka_unit_test(the_last_one_ends_it),
                                       cmocka_unit_test(stop_stops)};
    if (argc > 1) return train(argc, argv);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
