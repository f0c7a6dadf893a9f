/* devices.tune = measure: what is chosen is kept in a file, believed the next time, equal on all devices of a kind, and computes the same. */
#include "../../nn/cuda/cuda.h"
#include "../../nn/cuda/tune.h"
#include "engine_cuda.h"
#include <dirent.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char cache[] = "/tmp/dp_tune_XXXXXX";
static char text[1 << 16];

/* The one cache file; 0: there is none. Nothing else but its lock lies there. */
static int file_name(char *path, size_t size)
{
    char folder[64];
    int found = 0;
    snprintf(folder, sizeof folder, "%s/dp", cache);
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        const size_t n = strlen(e->d_name);
        if (e->d_name[0] == '.' || !strcmp(e->d_name + n - 5, ".lock")) continue;
        assert_true(!strncmp(e->d_name, "tune-", 5) && !strcmp(e->d_name + n - 4, ".txt"));
        snprintf(path, size, "%s/%s", folder, e->d_name);
        found++;
    }
    if (d) closedir(d);
    assert_true(found <= 1);
    return found;
}

static const char *read_cache(void)
{
    char path[400];
    text[0] = 0;
    if (!file_name(path, sizeof path)) return text;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

static void write_cache(const char *content)
{
    char path[400];
    assert_int_equal(file_name(path, sizeof path), 1);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(content, f);
    fclose(f);
}

static int clear(void **state)
{
    (void)state;
    char path[400];
    if (file_name(path, sizeof path)) unlink(path);
    cusim_reset();
    return 0;
}

static dp_be_device *opened(int index, int deterministic)
{
    dp_be_device *d;
    dp_error err;
    const dp_be_options o = {.index = index, .tune_measure = 1, .deterministic = deterministic};
    if (cuda()->open(&d, &o, &err)) fail_msg("%s", err.text);
    return d;
}

/* ---- one choice ---- */

typedef struct fake {
    int fails;       /* bit i: candidate i does */
    int kills, slow; /* a candidate does; -1: none. slow: the ones before the last take 20 ms and more */
    int runs[4];
    void *host; /* page-locked */
} fake;

static dp_status run_fake(void *user, int i, dp_be_stream *s, void *memory)
{
    fake *f = user;
    f->runs[i]++;
    if (f->fails >> i & 1) return DP_EDEVICE;
    if (i == f->kills) return dp_cuda_check(s->device, cudaErrorIllegalAddress, "fake(i)", NULL);
    for (int k = i; k < 2 && f->slow; k++) DP_TRY(dp_cuda_copy(s, f->host, memory, 64));
    return dp_cuda_fill(s, memory, 0, 4096);
}

static int pick(dp_be_device *d, const char *key, int n, fake *f)
{
    dp_error err;
    int choice = -1;
    if (dp_tune_pick(d, key, n, run_fake, f, 4096, &choice, &err)) fail_msg("%s", err.text);
    return choice;
}

static void fastest_is_kept(void **state)
{
    (void)state;
    fake f = {.kills = -1, .slow = 1};
    cusim_counters c;
    dp_error err;
    dp_be_device *d = opened(0, 0);
    assert_int_equal(cuda()->alloc_pinned(4096, &f.host, &err), DP_OK);
    assert_int_equal(cuda()->pin(d, f.host, 4096, &err), DP_OK);
    cusim_fault("slow:0:h:20000");
    cusim_read(&c);
    const int64_t live = c.live_allocations, streams = c.live_streams, events = c.live_events;
    assert_int_equal(pick(d, "work of three", 3, &f), 2);
    assert_true(f.runs[0] == 6 && f.runs[1] == 6 && f.runs[2] == 6); /* one to load, five to take the median of */
    assert_non_null(strstr(read_cache(), "dp tune 1\nwork of three\t2/3\n"));
    assert_non_null(strstr(cuda()->notes(d), "work of three: way 3 of 3, "));
    cusim_read(&c);
    assert_int_equal(c.live_allocations, live);
    assert_int_equal(c.live_streams, streams);
    assert_int_equal(c.live_events, events);
    assert_int_equal(cuda()->memory(d)->live[DP_MEM_WORKSPACE], 0);
    assert_int_equal(pick(d, "work of three", 3, &f), 2); /* from the file */
    assert_int_equal(f.runs[0], 6);
    assert_non_null(strstr(cuda()->notes(d), "work of three: way 3 of 3, from the cache\n"));
    f.fails = 4; /* of another number of candidates it says nothing, and what fails is not chosen */
    assert_int_equal(pick(d, "work of two", 3, &f), 1);
    assert_int_equal(pick(d, "work of three", 2, &f), 1);
    assert_string_equal(read_cache(), "dp tune 1\nwork of two\t1/3\nwork of three\t1/2\n");
    cusim_release();
    cuda()->unpin(d, f.host);
    cuda()->free_pinned(f.host, 4096);
    cuda()->close(d);
}

static void other_devices_do_the_same(void **state)
{
    (void)state;
    fake f = {.fails = 1 | 4, .kills = -1};
    dp_be_device *a = opened(0, 0);
    const int choice = pick(a, "work", 3, &f);
    cuda()->close(a);
    dp_be_device *b = opened(1, 0);
    fake g = {.fails = 1 | 2, .kills = -1}; /* would choose 2 */
    assert_int_equal(pick(b, "work", 3, &g), choice);
    assert_int_equal(g.runs[0], 0);
    cuda()->close(b);
}

static void broken_files_are_written_anew(void **state)
{
    (void)state;
    static const char *const broken[] = {"",
                                         "dp tune 9\nwork\t1/3\n",
                                         "dp tune 1\nwork\t1/3",
                                         "dp tune 1\nwork 1/3\n",
                                         "dp tune 1\nwork\t3/3\n",
                                         "dp tune 1\nwork\t-1/3\n",
                                         "dp tune 1\nwork\t1/3x\n",
                                         "dp tune 1\n\t1/3\n",
                                         "dp tune 1\nwork\t111111111111111111111111111111111111111111111111111/3\n"};
    fake f = {.fails = 1 | 2, .kills = -1};
    dp_be_device *d = opened(0, 0);
    assert_int_equal(pick(d, "first", 3, &f), 2);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        write_cache(broken[i]);
        assert_int_equal(pick(d, "work", 3, &f), 2);
        assert_string_equal(read_cache(), "dp tune 1\nwork\t2/3\n");
    }
    cuda()->close(d);
}

/* Where nothing can be measured or kept, candidate 0 stands. */
static void else_the_first(void **state)
{
    (void)state;
    dp_error err;
    int choice;
    fake f = {.fails = 1 | 2, .kills = -1};
    dp_be_device *d = opened(0, 1); /* deterministic */
    assert_int_equal(pick(d, "work", 3, &f), 0);
    cuda()->close(d);
    d = opened(0, 0);
    assert_int_equal(pick(d, "work", 1, &f), 0);
    assert_string_equal(read_cache(), "");
    setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
    assert_int_equal(pick(d, "work", 3, &f), 0);
    unsetenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    char before[200];
    snprintf(before, sizeof before, "%s", home ? home : "");
    unsetenv("HOME");
    assert_int_equal(pick(d, "work", 3, &f), 0);
    assert_int_equal(f.runs[0], 0);
    setenv("HOME", cache, 1); /* then ~/.cache/dp */
    assert_int_equal(pick(d, "work", 3, &f), 2);
    char path[400], command[500];
    snprintf(path, sizeof path, "%s/.cache/dp", cache);
    assert_int_equal(access(path, R_OK), 0);
    snprintf(command, sizeof command, "rm -r %s/.cache", cache);
    assert_int_equal(system(command), 0);
    *before ? setenv("HOME", before, 1) : unsetenv("HOME");
    setenv("XDG_CACHE_HOME", cache, 1);
    assert_int_equal(dp_tune_pick(d, "too much", 3, run_fake, &f, (size_t)1 << 50, &choice, &err), DP_OK);
    assert_int_equal(choice, 0);
    assert_non_null(strstr(cuda()->notes(d), "too much: way 1 of 3, there is no memory to measure in\n"));
    cusim_fault("fail:cudaDriverGetVersion:1:801");
    assert_int_equal(pick(d, "work", 3, &f), 0);
    cusim_release();
    snprintf(path, sizeof path, "%s/dp", cache); /* a folder that takes no files: not as root */
    if (geteuid()) {
        chmod(path, 0500);
        assert_int_equal(pick(d, "work", 3, &f), 0);
        chmod(path, 0700);
    }
    static const char *const calls[] = {"cudaEventElapsedTime",         "cudaEventSynchronize", "cudaEventCreateWithFlags",
                                        "cudaStreamCreateWithPriority", "cudaMemsetAsync",      "cudaEventRecord"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) { /* the only candidate left fails too, or nothing is measured */
        snprintf(path, sizeof path, "fail:%s:1:801", calls[i]);
        cusim_fault(path);
        assert_int_equal(pick(d, calls[i], 3, &f), 0);
        cusim_release();
    }
    assert_int_equal(cuda()->memory(d)->live[DP_MEM_WORKSPACE], 0);
    f.fails = 0, f.kills = 1;
    assert_int_equal(dp_tune_pick(d, "deadly", 3, run_fake, &f, 4096, &choice, &err), DP_EDEVICE_LOST);
    assert_non_null(strstr(err.text, "was lost before (fake returned 700)"));
    assert_null(strstr(read_cache(), "deadly"));
    cuda()->close(d);
}

/* ---- the engine ---- */

static float *trained(const rig_net *net, const char *settings, int devices, int64_t *n)
{
    rig r;
    rig_data data = rig_data_new(net, 32, 5);
    rig_open(&r, net, cuda(), devices, 0, settings);
    for (int i = 0; i < 4; i++) rig_step(&r, &data, 4 * i, 12 - i % 2);
    float *w = rig_weights(&r, n);
    rig_close(&r);
    rig_data_free(&data);
    return w;
}

/* Whatever is chosen, the trained weights are those of the heuristic's choice up to rounding; the second time nothing is measured, and
 * all bytes are equal, since the choices are. */
static void training_with_measured_ways(void **state)
{
    static const rig_net *const nets[] = {&rig_conv, &rig_wide};
    (void)state;
    for (size_t k = 0; k < sizeof nets / sizeof *nets; k++) {
        int64_t n, m;
        char first[sizeof text];
        float *want = trained(nets[k], "devices.mode=balanced", 2, &m);
        assert_string_equal(read_cache(), "");
        float *a = trained(nets[k], "devices.mode=balanced devices.tune=measure", 2, &n);
        assert_int_equal(n, m);
        for (int64_t i = 0; i < n; i++)
            if (fabsf(a[i] - want[i]) > 1e-4f * (1 + fabsf(want[i])))
                fail_msg("%s: %g and %g", nets[k]->name, (double)a[i], (double)want[i]);
        snprintf(first, sizeof first, "%s", read_cache());
        assert_non_null(strstr(first, "product "));
        if (nets[k] == &rig_conv) assert_non_null(strstr(first, ", weight gradient within"));
        cusim_reset();
        float *b = trained(nets[k], "devices.mode=balanced devices.tune=measure", 2, &n);
        assert_int_equal(cusim_calls("cudaEventSynchronize"), 0);
        rig_same_bytes(a, b, (size_t)n * 4, "from the cache");
        assert_string_equal(read_cache(), first);
        float *c = trained(nets[k], "devices.mode=balanced devices.tune=measure run.deterministic=1", 2, &n);
        rig_same_bytes(c, want, (size_t)n * 4, "deterministic implies heuristic");
        free(want);
        free(a);
        free(b);
        free(c);
        clear(NULL);
    }
}

/* Each choice in turn, forced through the file: the last of every row, which for convolutions is the own kernel. */
static void every_way_computes_the_same(void **state)
{
    (void)state;
    int64_t n, m;
    float *want = trained(&rig_conv, "", 1, &m);
    free(trained(&rig_conv, "devices.tune=measure", 1, &n));
    char forced[sizeof text];
    snprintf(forced, sizeof forced, "%s", read_cache());
    for (int last = 0; last < 2; last++) {
        for (char *slash = strchr(forced, '/'); slash; slash = strchr(slash + 1, '/'))
            if (slash[-1] >= '0' && slash[-1] <= '9' && slash[-2] == '\t') slash[-1] = last ? (char)(slash[1] - 1) : '0';
        write_cache(forced);
        cusim_reset();
        float *got = trained(&rig_conv, "devices.tune=measure", 1, &n);
        assert_string_equal(read_cache(), forced);
        assert_int_equal(cusim_calls("cudnnConvolutionBackwardFilter") > 0, !last);
        if (!last) rig_same_bytes(got, want, (size_t)n * 4, "the first of each");
        for (int64_t i = 0; i < n; i++)
            if (fabsf(got[i] - want[i]) > 1e-4f * (1 + fabsf(want[i])))
                fail_msg("way %d: %g and %g", last, (double)got[i], (double)want[i]);
        free(got);
    }
    free(want);
}

static int end(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", cache);
    return system(command);
}

static int begin(void **state)
{
    (void)state;
    return !mkdtemp(cache) || setenv("XDG_CACHE_HOME", cache, 1);
}

int main(void)
{
    setenv("CUSIM_DEVICES", "2", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(fastest_is_kept, clear),
        cmocka_unit_test_setup(other_devices_do_the_same, clear),
        cmocka_unit_test_setup(broken_files_are_written_anew, clear),
        cmocka_unit_test_setup(training_with_measured_ways, clear),
        cmocka_unit_test_setup(every_way_computes_the_same, clear),
        cmocka_unit_test_setup(else_the_first, clear),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
