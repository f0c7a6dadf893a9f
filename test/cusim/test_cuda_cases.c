/* What users of GPUs hit, on simulated ones: whose memory fills, what an error of memory says, what is locked and when. */
#include "engine_cuda.h"
#include <unistd.h>

static int64_t peak(const rig *r, int device)
{
    dp_device_stats s;
    int64_t sum = 0;
    assert_true(dp_engine_stats(r->e, device, &s));
    for (int i = 0; i < 16; i++)
        if (i != DP_MEM_LIBRARY) sum += s.peak[i];
    return sum;
}

/* P01: what the master has more than others is what it alone keeps; under balanced and ddp that is nothing. */
static void no_device_is_fuller_than_it_must_be(void **state)
{
    static const char *const modes[] = {"devices.mode=balanced", "devices.mode=ddp", "devices.mode=dp", "devices.mode=classic"};
    (void)state;
    rig_data data = rig_data_new(&rig_conv, 32, 5);
    for (int i = 0; i < 4; i++) {
        rig r;
        rig_open(&r, &rig_conv, cuda(), 4, 0, modes[i]);
        for (int k = 0; k < 3; k++) rig_step(&r, &data, 0, 24);
        int64_t master = peak(&r, 0), parameters = r.e->params->count * 4;
        for (int d = 1; d < 4; d++) {
            int64_t other = peak(&r, d);
            if (i < 2) assert_int_equal(master, other);
            assert_true(master >= other);
            if (i == 2) assert_true(master - other <= 2 * parameters + 65536); /* momentum, one gradient, alignment */
        }
        rig_close(&r);
    }
    rig_data_free(&data);
}

/* P03: whatever comes later, short batches, evaluation, prediction: nothing is allocated after open. */
static void nothing_is_allocated_after_open(void **state)
{
    (void)state;
    rig r;
    dp_error err;
    dp_result sum = {0};
    float out[8];
    rig_data data = rig_data_new(&rig_conv, 32, 5);
    rig_open(&r, &rig_conv, cuda(), 2, 0, "devices.mode=balanced");
    cusim_reset();
    for (int k = 0; k < 4; k++) rig_step(&r, &data, 0, k % 2 ? 5 : 24);
    dp_batch all = rig_batch(&data, 0, 31);
    assert_int_equal(dp_engine_eval(r.e, &all, &sum, &err), DP_OK);
    assert_int_equal(dp_engine_predict(r.e, rig_batch(&data, 0, 1).x, out, (size_t)rig_conv.classes * 4, &err), DP_OK);
    assert_int_equal(counted().allocations, 0);
    assert_int_equal(counted().pinned, 0);
    rig_close(&r);
    rig_data_free(&data);
}

/* P04: every allocation of open fails once: the message has the device, its bus, the tensor, what was wanted, is held, is free, others
 * hold; and a batch that fits, when it was the batch's memory. Nothing is left. */
static void an_error_of_memory_tells_all(void **state)
{
    (void)state;
    const int64_t before = counted().live_bytes;
    int n = 0, hints = 0, second = 0;
    for (;; n++) {
        rig r;
        dp_error err;
        char fault[64];
        snprintf(fault, sizeof fault, "fail:cudaMalloc:%d:2", n + 1);
        cusim_fault(fault);
        dp_status status = rig_try(&r, &rig_conv, cuda(), 2, 0, "devices.mode=balanced", &err);
        cusim_release();
        rig_close(&r);
        if (!status) break;
        assert_int_equal(status, DP_ENOMEM);
        assert_in_range(err.device, 0, 1);
        second += err.device == 1;
        char name[16];
        snprintf(name, sizeof name, "cuda:%d (0000:", err.device);
        static const char *const wanted[] = {"Out of memory on ", " wants ", " are free", "this process holds ",
                                             "others hold "};
        for (int i = 0; i < 5; i++)
            if (!strstr(err.text, wanted[i])) fail_msg("without \"%s\": %s", wanted[i], err.text);
        if (!strstr(err.text, name)) fail_msg("without \"%s\": %s", name, err.text);
        hints += strstr(err.text, "rows on this device") != NULL;
        assert_int_equal(counted().live_bytes, before);
        assert_int_equal(counted().live_streams, 0);
    }
    assert_true(n > 20);
    assert_true(hints > 0 && second > 0);
}

/* P06: loading what was saved takes no more than a fresh start did. */
static void a_load_takes_no_more_than_a_start(void **state)
{
    (void)state;
    rig r;
    dp_error err;
    char path[] = "/tmp/dp-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    rig_data data = rig_data_new(&rig_conv, 32, 5);
    rig_open(&r, &rig_conv, cuda(), 2, 0, "devices.mode=balanced");
    rig_step(&r, &data, 0, 24);
    int64_t fresh[2] = {peak(&r, 0), peak(&r, 1)};
    if (dp_engine_save(r.e, path, &err)) fail_msg("%s", err.text);
    rig_close(&r);
    rig_open(&r, &rig_conv, cuda(), 2, 0, "devices.mode=balanced");
    cusim_reset();
    if (dp_engine_load(r.e, path, &err)) fail_msg("%s", err.text);
    assert_int_equal(counted().allocations, 0);
    rig_step(&r, &data, 0, 24);
    for (int d = 0; d < 2; d++) assert_int_equal(peak(&r, d), fresh[d]);
    rig_close(&r);
    unlink(path);
    rig_data_free(&data);
}

enum { SAMPLES = 60, BATCH = 12 };

/* Weights after n batches of a loader: lent slots as they come, two in flight; or each batch in memory of its own, one at a time. */
static float *from_loader(const rig_net *net, dp_rows x, dp_rows y, int n, int own, int64_t *count, int64_t *pinned)
{
    rig r;
    dp_error err;
    dp_data *data;
    dp_loader *l;
    rig_open(&r, net, cuda(), 2, 0, "devices.mode=balanced data.batch_size=12 data.prefetch=2 data.normalize=off");
    if (dp_data_rows(&data, x, y, net->classes, &err)) fail_msg("%s", err.text);
    if (dp_engine_loader(r.e, data, 1, &l, &err)) fail_msg("%s", err.text);
    dp_batch batch[2];
    cusim_reset();
    *pinned = counted().live_pinned;
    for (int i = 0; i <= n; i++) {
        dp_batch *b = &batch[i % 2];
        if (i < n) {
            do /* an empty one ends an epoch */
                if (dp_loader_next(l, b, &err)) fail_msg("%s", err.text);
            while (!b->x.n);
            dp_batch mine = *b;
            void *copy[3] = {NULL};
            if (own) {
                size_t xs = (size_t)(b->x.n * b->x.width) * 4, ys = (size_t)(b->y.n * b->y.width) * 4;
                copy[0] = malloc(xs), copy[1] = malloc(ys), copy[2] = malloc((size_t)b->x.n * 8);
                memcpy(copy[0], b->x.data, xs);
                memcpy(copy[1], b->y.data, ys);
                memcpy(copy[2], b->ids, (size_t)b->x.n * 8);
                mine.x.data = copy[0], mine.y.data = copy[1], mine.ids = copy[2];
            }
            if (dp_engine_submit(r.e, own ? &mine : b, &err)) fail_msg("%s", err.text);
            if (own) {
                if (dp_engine_wait(r.e, NULL, &err)) fail_msg("%s", err.text);
                dp_loader_release(l, b);
                for (int k = 0; k < 3; k++) free(copy[k]);
            }
        }
        if (i && !own) {
            if (dp_engine_wait(r.e, NULL, &err)) fail_msg("%s", err.text);
            dp_loader_release(l, &batch[(i - 1) % 2]);
        }
    }
    if (!own) { /* P25 */
        assert_int_equal(counted().live_pinned, *pinned);
        assert_int_equal(counted().pinned, 0);
        assert_int_equal(counted().pageable_copies, 0);
    }
    float *w = rig_weights(&r, count);
    dp_loader_close(l);
    dp_data_close(data);
    rig_close(&r);
    return w;
}

/* P25, P26: slots are locked once, and one is filled anew only when the copy out of it has ended, however late that reads. */
static void slots_are_not_overwritten_under_a_copy(void **state)
{
    (void)state;
    int64_t n, m, pinned;
    int batches = rig_full() ? 1000 : 60;
    rig_data data = rig_data_new(&rig_wide, SAMPLES, 5);
    dp_rows x = dp_view(data.x, DP_F32, SAMPLES, rig_wide.width), y = dp_view(data.y, DP_I32, SAMPLES, 1);
    float *want = from_loader(&rig_wide, x, y, batches, 1, &m, &pinned);
    cusim_fault("slow:h:0:300");
    cusim_fault("slow:h:1:100");
    float *got = from_loader(&rig_wide, x, y, batches, 0, &n, &pinned);
    cusim_release();
    assert_int_equal(n, m);
    assert_true(pinned > 0);
    rig_same_bytes(got, want, (size_t)n * 4, "slots");
    free(got);
    free(want);
    rig_data_free(&data);
}

/* P25: memory that cannot be locked still works; it is said once. */
static void memory_that_cannot_be_locked_works(void **state)
{
    (void)state;
    rig r;
    rig_data data = rig_data_new(&rig_wide, 32, 5);
    cusim_fault("fail:cudaHostRegister:1:2");
    rig_open(&r, &rig_wide, cuda(), 2, 0, "");
    cusim_release();
    rig_step(&r, &data, 0, 12);
    const char *said = strstr(r.warning, "page-locked");
    assert_non_null(said);
    assert_null(strstr(said + 1, "page-locked"));
    rig_close(&r);
    rig_data_free(&data);
}

/* P02, P75: the first device named is the master, whatever its index; nobody else gets a context. */
static void the_first_named_is_the_master(void **state)
{
    (void)state;
    rig r;
    dp_device_stats s;
    rig_data data = rig_data_new(&rig_wide, 32, 5);
    rig_open(&r, &rig_wide, cuda(), 2, 0, "devices.use=cuda:6,cuda:5");
    rig_step(&r, &data, 0, 12);
    dp_engine_stats(r.e, 0, &s);
    assert_string_equal(s.name, "cuda:6");
    int64_t master = peak(&r, 0);
    assert_true(master > peak(&r, 1)); /* it alone has the momentum */
    assert_true(cusim_has_context(5) && cusim_has_context(6));
    assert_false(cusim_has_context(4) || cusim_has_context(7));
    rig_close(&r);
    rig_data_free(&data);
}

/* DP_CUDA_LOGICAL: one GPU is several devices, which train what several GPUs train. */
static void one_gpu_as_two(void **state)
{
    (void)state;
    int64_t n, m;
    float *w[2];
    rig_data data = rig_data_new(&rig_conv, 32, 5);
    for (int i = 0; i < 2; i++) {
        rig r;
        if (i) assert_int_equal(setenv("DP_CUDA_LOGICAL", "2", 1), 0);
        rig_open(&r, &rig_conv, cuda(), 2, 0, i ? "devices.mode=balanced devices.use=cuda:3,cuda:11" : "devices.mode=balanced");
        for (int k = 0; k < 4; k++) rig_step(&r, &data, k, 12);
        if (i) assert_false(cusim_has_context(4));
        w[i] = rig_weights(&r, i ? &n : &m);
        rig_close(&r);
    }
    unsetenv("DP_CUDA_LOGICAL");
    assert_int_equal(n, m);
    rig_same_bytes(w[1], w[0], (size_t)n * 4, "one GPU as two");
    free(w[0]);
    free(w[1]);
    rig_data_free(&data);
}

static int setup(void **state)
{
    (void)state;
    return setenv("CUSIM_DEVICES", "8", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_device_is_fuller_than_it_must_be),    cmocka_unit_test(nothing_is_allocated_after_open),
        cmocka_unit_test(an_error_of_memory_tells_all),           cmocka_unit_test(a_load_takes_no_more_than_a_start),
        cmocka_unit_test(slots_are_not_overwritten_under_a_copy), cmocka_unit_test(memory_that_cannot_be_locked_works),
        cmocka_unit_test(the_first_named_is_the_master),          cmocka_unit_test(one_gpu_as_two),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
