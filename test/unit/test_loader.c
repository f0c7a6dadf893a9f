/* Sampler, loader threads, and sets from the caller's memory, callbacks and the generator. */
#include "data_test.h"
#include "../../dp/base/clock.h"
#include <pthread.h>
#include <signal.h>

/* ---- a callback set whose values name their sample, and which can fail or hang ---- */

typedef struct source {
    int64_t fail_at, hang_at; /* sample, -1 = none */
    int label;                /* -1: sample % 10 */
    int signals_open;         /* a fetching thread had a signal unblocked; atomic */
    pthread_mutex_t lock;
    pthread_cond_t let_go;
    int open, back;
} source;

static int source_fetch(void *user, int64_t index, void *x, void *y, char *why, size_t why_size)
{
    source *s = user;
    if (index == s->fail_at) {
        snprintf(why, why_size, "the disk said no");
        return 1;
    }
    if (index == s->hang_at) {
        pthread_mutex_lock(&s->lock);
        while (!s->open) pthread_cond_wait(&s->let_go, &s->lock);
        s->back = 1;
        pthread_cond_broadcast(&s->let_go);
        pthread_mutex_unlock(&s->lock);
    }
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    if (!sigismember(&blocked, SIGINT) || !sigismember(&blocked, SIGUSR1))
        __atomic_store_n(&s->signals_open, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 3; i++) ((float *)x)[i] = (float)(3 * index + i);
    *(int32_t *)y = s->label >= 0 ? s->label : (int32_t)(index % 10);
    return 0;
}

static dp_data *source_open(source *s, int64_t samples)
{
    dp_data *d;
    dp_data_source f = {.size = sizeof f, .fetch = source_fetch, .user = s};
    dp_error e;
    memset(s, 0, sizeof *s);
    s->fail_at = s->hang_at = s->label = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->let_go, NULL);
    f.info.samples = samples, f.info.x_rank = 1, f.info.x_shape[0] = 3, f.info.x_dtype = DP_F32;
    f.info.y_dtype = DP_I32, f.info.y_width = 1, f.info.classes = 10;
    if (dp_data_custom(&d, &f, &e)) fail_msg("dp_data_custom: %s", e.text);
    return d;
}

static const dp_loader_options plain = {.batch_size = 4, .accumulate = 1, .prefetch = 3, .timeout_s = 20, .seed = 7};

static dp_loader *loader_open(dp_data *d, dp_loader_options o)
{
    dp_loader *l;
    dp_error e;
    if (dp_loader_open(&l, d, &o, NULL, &e)) fail_msg("dp_loader_open: %s", e.text);
    return l;
}

static dp_batch next(dp_loader *l)
{
    dp_batch b;
    dp_error e;
    if (dp_loader_next(l, &b, &e)) fail_msg("dp_loader_next: %s", e.text);
    return b;
}

/* Everything of `batches` batches and epoch ends from the loader, as numbers: epoch, rows, window, then ids, x and y. */
static size_t record(dp_loader *l, int calls, double *out)
{
    size_t n = 0;
    for (int k = 0; k < calls; k++) {
        dp_batch b = next(l);
        out[n++] = (double)b.epoch, out[n++] = (double)b.x.n, out[n++] = b.last_of_window;
        for (int64_t i = 0; i < b.x.n; i++) {
            out[n++] = (double)b.ids[i];
            for (int j = 0; j < 3; j++) out[n++] = (double)((const float *)b.x.data)[3 * i + j];
            out[n++] = ((const int32_t *)b.y.data)[i];
        }
        dp_loader_release(l, &b);
    }
    return n;
}

/* ---- sampler ---- */

static void order_is_a_permutation_of_its_epoch(void **state)
{
    enum { N = 1000 };
    int64_t a[N], b[N], c[N];
    char seen[N] = {0};
    (void)state;
    dp_sample_order(a, N, 1, 0, 1);
    dp_sample_order(b, N, 1, 0, 1);
    dp_sample_order(c, N, 1, 1, 1);
    assert_memory_equal(a, b, sizeof a);
    assert_memory_not_equal(a, c, sizeof a);
    dp_sample_order(b, N, 2, 0, 1);
    assert_memory_not_equal(a, b, sizeof a);
    for (int i = 0; i < N; i++) seen[c[i]]++;
    for (int i = 0; i < N; i++) assert_int_equal(seen[i], 1);
    dp_sample_order(a, N, 1, 5, 0);
    for (int i = 0; i < N; i++) assert_int_equal(a[i], i);
    dp_sample_order(a, 1, 1, 5, 1);
    assert_int_equal(a[0], 0);
}

/* All 6 orders of 3 things equally often: 6000 epochs, deviation of a count is 28.9; 5 of them are allowed. */
static void order_is_unbiased(void **state)
{
    int count[27] = {0}, orders = 0;
    (void)state;
    for (uint64_t epoch = 0; epoch < 6000; epoch++) {
        int64_t o[3];
        dp_sample_order(o, 3, 3, epoch, 1);
        count[o[0] * 9 + o[1] * 3 + o[2]]++;
    }
    for (int i = 0; i < 27; i++) {
        orders += count[i] > 0;
        if (count[i]) assert_in_range(count[i], 855, 1145);
    }
    assert_int_equal(orders, 6);
}

/* ---- loader ---- */

static void workers_do_not_change_the_bytes(void **state)
{
    static const int workers[] = {0, 1, 4};
    double want[600], got[600];
    size_t want_n = 0;
    (void)state;
    for (int k = 0; k < 3; k++) {
        source s;
        dp_data *d = source_open(&s, 22);
        dp_loader_options o = plain;
        o.shuffle = 1, o.workers = workers[k], o.accumulate = 2;
        dp_loader *l = loader_open(d, o);
        assert_int_equal(dp_loader_batches(l), 6);
        size_t n = record(l, 14, k ? got : want); /* two epochs with their ends */
        if (k == 0) want_n = n;
        assert_int_equal(n, want_n);
        if (k) assert_memory_equal(got, want, n * sizeof *got);
        if (k) assert_int_equal(s.signals_open, 0);
        dp_loader_close(l);
        dp_data_close(d);
    }
    int64_t order[22];
    dp_sample_order(order, 22, 7, 0, 1);
    for (int i = 0; i < 4; i++) {
        assert_int_equal((int64_t)want[3 + 5 * i], order[i]);
        assert_true(want[4 + 5 * i] == 3.0 * (double)order[i]);
        assert_int_equal((int64_t)want[7 + 5 * i], order[i] % 10);
    }
}

static void epochs_end_once_and_order_moves_on(void **state)
{
    source s;
    dp_data *d = source_open(&s, 5);
    dp_loader_options o = plain;
    o.batch_size = 2, o.prefetch = 8, o.workers = 2, o.shuffle = 1, o.accumulate = 2;
    dp_loader *l = loader_open(d, o);
    int64_t order[5];
    (void)state;
    for (uint64_t epoch = 0; epoch < 4; epoch++) {
        int64_t at = 0;
        dp_sample_order(order, 5, 7, epoch, 1);
        for (int k = 0; k < 3; k++) {
            dp_batch b = next(l);
            assert_int_equal(b.epoch, epoch);
            assert_int_equal(b.x.n, k < 2 ? 2 : 1);
            assert_int_equal(b.y.n, b.x.n);
            assert_int_equal(b.last_of_window, k > 0);
            for (int64_t i = 0; i < b.x.n; i++) assert_int_equal(b.ids[i], order[at++]);
            assert_int_equal((uintptr_t)b.x.data % 64, 0);
            assert_int_equal((uintptr_t)b.y.data % 64, 0);
            dp_loader_release(l, &b);
        }
        dp_batch end = next(l);
        assert_int_equal(end.x.n, 0);
        assert_int_equal(end.epoch, epoch);
        dp_loader_release(l, &end);
    }
    dp_loader_close(l);
    dp_data_close(d);
}

/* A resumed run sees the tail of the straight one, in the middle of an epoch and at its end. */
static void seek_finds_the_tail(void **state)
{
    static const int workers[] = {0, 1, 4};
    (void)state;
    for (int k = 0; k < 3; k++) {
        source s;
        dp_data *d = source_open(&s, 22);
        dp_loader_options o = plain;
        double straight[800], tail[800];
        dp_error e;
        o.shuffle = 1, o.workers = workers[k];
        dp_loader *l = loader_open(d, o);
        size_t before = record(l, 9, straight); /* epoch 0 (6 + end), two batches of epoch 1 */
        size_t n = record(l, 8, straight + before);
        assert_int_equal(dp_loader_seek(l, 1, 2, &e), DP_OK);
        assert_int_equal(record(l, 8, tail), n);
        assert_memory_equal(tail, straight + before, n * sizeof *tail);
        assert_int_equal(dp_loader_seek(l, 0, 6, &e), DP_OK);
        assert_int_equal(next(l).x.n, 0);
        dp_batch b = next(l);
        assert_int_equal(b.epoch, 1);
        dp_loader_release(l, &b);
        assert_int_equal(dp_loader_seek(l, 0, 7, &e), DP_EARGUMENT);
        dp_loader_close(l);
        dp_data_close(d);
    }
}

static void last_batches(void **state)
{
    static const struct {
        int64_t samples;
        int drop_last, merge, drop;
        int64_t batches, last, most, dropped;
    } cases[] = {
        {9, 0, 0, 0, 3, 1, 4, 0},  {9, 1, 0, 0, 2, 4, 4, 1}, {9, 0, 2, 0, 2, 5, 5, 0}, {9, 0, 0, 2, 2, 4, 4, 1},
        {10, 0, 2, 0, 3, 2, 4, 0}, {8, 0, 2, 0, 2, 4, 4, 0}, {1, 0, 2, 0, 1, 1, 1, 0}, {5, 0, 2, 0, 1, 5, 5, 0},
    };
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        source s;
        dp_data *d = source_open(&s, cases[k].samples);
        dp_loader_options o = plain;
        o.drop_last = cases[k].drop_last, o.merge_small = cases[k].merge, o.drop_small = cases[k].drop, o.workers = 1;
        dp_loader *l = loader_open(d, o);
        assert_int_equal(dp_loader_batches(l), cases[k].batches);
        assert_int_equal(dp_loader_max_rows(l), cases[k].most);
        assert_int_equal(dp_loader_dropped(l), cases[k].dropped);
        int64_t samples = 0, last = 0, batches = 0;
        for (dp_batch b = next(l); b.x.n; b = next(l)) {
            samples += last = b.x.n;
            batches++;
            dp_loader_release(l, &b);
        }
        assert_int_equal(batches, cases[k].batches);
        assert_int_equal(last, cases[k].last);
        assert_int_equal(samples, cases[k].samples - cases[k].dropped);
        dp_loader_close(l);
        dp_data_close(d);
    }
    source s;
    dp_error e;
    dp_loader *l;
    dp_data *d = source_open(&s, 3);
    dp_loader_options o = plain;
    o.drop_last = 1;
    assert_int_equal(dp_loader_open(&l, d, &o, NULL, &e), DP_ECONFIG);
    assert_non_null(strstr(e.text, "drop_last"));
    o = plain, o.drop_small = 4;
    assert_int_equal(dp_loader_open(&l, d, &o, NULL, &e), DP_ECONFIG);
    assert_non_null(strstr(e.text, "small_batch"));
    dp_data_close(d);
}

static void lent_slots_are_never_overwritten(void **state)
{
    source s;
    dp_data *d = source_open(&s, 40);
    dp_loader_options o = plain;
    o.prefetch = 2, o.workers = 3;
    dp_loader *l = loader_open(d, o);
    dp_batch a = next(l), b = next(l), c;
    dp_error e;
    (void)state;
    assert_int_not_equal(a.slot, b.slot);
    assert_int_equal(dp_loader_next(l, &c, &e), DP_EARGUMENT);
    assert_non_null(strstr(e.text, "data.prefetch"));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(a.ids[i], i);
        assert_int_equal(b.ids[i], 4 + i);
        assert_true(((const float *)a.x.data)[3 * i] == (float)(3 * i));
    }
    dp_loader_release(l, &a);
    c = next(l);
    assert_int_equal(c.ids[0], 8);
    assert_int_equal(b.ids[0], 4);
    dp_loader_release(l, &b);
    dp_loader_release(l, &c);
    dp_loader_close(l);
    dp_data_close(d);
}

static void a_failed_fetch_names_worker_and_sample(void **state)
{
    (void)state;
    for (int workers = 0; workers < 3; workers++) {
        source s;
        dp_data *d = source_open(&s, 40);
        dp_loader_options o = plain;
        dp_batch b;
        dp_error e;
        s.fail_at = 9;
        o.workers = workers;
        dp_loader *l = loader_open(d, o);
        for (int k = 0; k < 2; k++) { /* what was before it arrives */
            b = next(l);
            assert_int_equal(b.ids[0], 4 * k);
            dp_loader_release(l, &b);
        }
        for (int k = 0; k < 2; k++) {
            assert_int_equal(dp_loader_next(l, &b, &e), DP_EDATA);
            assert_non_null(strstr(e.text, "sample 9"));
            assert_non_null(strstr(e.text, "the disk said no"));
            if (workers) assert_non_null(strstr(e.text, "loader worker "));
        }
        dp_loader_close(l);
        dp_data_close(d);
    }
}

static void a_wrong_label_of_a_callback_is_found(void **state)
{
    source s;
    dp_data *d = source_open(&s, 8);
    dp_loader *l;
    dp_batch b;
    dp_error e;
    (void)state;
    s.label = 10;
    l = loader_open(d, plain);
    assert_int_equal(dp_loader_next(l, &b, &e), DP_EDATA);
    assert_non_null(strstr(e.text, "sample 0: label 10, allowed are 0..9"));
    dp_loader_close(l);
    dp_data_close(d);
}

static void a_hanging_fetch_ends_in_an_error(void **state)
{
    static source s; /* outlives the test, as the thread may */
    dp_data *d = source_open(&s, 40);
    dp_loader_options o = plain;
    dp_batch b;
    dp_error e;
    (void)state;
    s.hang_at = 6;
    o.workers = 2, o.timeout_s = 1;
    dp_loader *l = loader_open(d, o);
    b = next(l);
    dp_loader_release(l, &b);
    assert_int_equal(dp_loader_next(l, &b, &e), DP_ETIMEOUT);
    assert_non_null(strstr(e.text, "loader worker "));
    assert_non_null(strstr(e.text, "sample 6 "));
    assert_true(dp_loader_waited(l) >= 0.99);
    assert_int_equal(dp_loader_next(l, &b, &e), DP_ETIMEOUT);
    dp_loader_close(l); /* leaves the thread behind */
    dp_data_close(d);
    pthread_mutex_lock(&s.lock); /* it returns later and cleans up after itself */
    s.open = 1;
    pthread_cond_broadcast(&s.let_go);
    while (!s.back) pthread_cond_wait(&s.let_go, &s.lock);
    pthread_mutex_unlock(&s.lock);
    usleep(100000); /* for leak checkers only: the thread's end cannot be waited for */
}

typedef struct counter {
    int live, made;
    size_t bytes;
} counter;

static dp_status counted_alloc(void *user, size_t bytes, void **p, dp_error *err)
{
    counter *c = user;
    (void)err;
    c->live++, c->made++, c->bytes = bytes;
    *p = aligned_alloc(64, bytes);
    return DP_OK;
}

static void counted_release(void *user, void *p, size_t bytes)
{
    counter *c = user;
    assert_int_equal(bytes, c->bytes);
    c->live--;
    free(p);
}

static void slots_come_from_the_given_memory_once(void **state)
{
    source s;
    counter c = {0};
    dp_data *d = source_open(&s, 22);
    dp_loader_options o = plain;
    dp_slot_memory m = {counted_alloc, counted_release, &c};
    dp_loader *l;
    dp_error e;
    double out[800];
    (void)state;
    o.workers = 2;
    assert_int_equal(dp_loader_open(&l, d, &o, &m, &e), DP_OK);
    record(l, 21, out);
    assert_int_equal(c.made, 3);
    assert_int_equal(c.bytes, 64 * 3); /* ids, x and y of 4 rows: 32, 48 and 16 bytes, each rounded up */
    dp_loader_close(l);
    assert_int_equal(c.live, 0);
    dp_data_close(d);
}

/* ---- sets in memory ---- */

static void rows_are_checked(void **state)
{
    const uint8_t x[2 * 6] = {0, 255, 0, 255, 0, 255, 51, 51, 51, 51, 51, 51};
    const int64_t y[2] = {0, 4};
    dp_data *d;
    dp_error e;
    (void)state;
    assert_int_equal(dp_data_rows(&d, dp_view(x, DP_U8, 2, 6), dp_view(y, DP_I64, 1, 1), 0, &e), DP_EARGUMENT);
    assert_non_null(strstr(e.text, "x has 2 rows and y has 1"));
    assert_int_equal(dp_data_rows(&d, dp_view(x, DP_U8, 2, 6), dp_view(y, DP_I64, 2, 1), 4, &e), DP_EDATA);
    assert_non_null(strstr(e.text, "y: record 1: label 4, allowed are 0..3"));
    assert_int_equal(dp_data_rows(&d, dp_view(x, DP_U16, 2, 3), dp_view(y, DP_I64, 2, 1), 0, &e), DP_EARGUMENT);
    assert_int_equal(dp_data_rows(&d, dp_view(NULL, DP_U8, 2, 6), dp_view(y, DP_I64, 2, 1), 0, &e), DP_EARGUMENT);
    assert_int_equal(dp_data_rows(&d, dp_view(x, DP_U8, 0, 6), dp_view(y, DP_I64, 0, 1), 0, &e), DP_EARGUMENT);
    assert_int_equal(dp_data_rows(&d, dp_view(x, DP_U8, 2, 6), dp_view(y, DP_I64, 2, 1), 0, &e), DP_OK);
    assert_int_equal(test_facts(d).classes, 5);

    double mean[3], std[3];
    assert_int_equal(dp_data_moments(d, mean, std, 2, &e), DP_OK); /* HWC: channel 0 = 0 0 0 51 51 51 */
    assert_true(mean[0] > 0.0999999 && mean[0] < 0.1000001);
    assert_true(std[0] > 0.0999999 && std[0] < 0.1000001);
    assert_true(mean[1] > 0.5999999 && mean[1] < 0.6000001); /* 255 255 255 51 51 51 */
    assert_true(std[1] > 0.3999999 && std[1] < 0.4000001);
    dp_data_close(d);

    dp_rows chw = dp_view(x, DP_U8, 2, 6);
    chw.layout = DP_CHW;
    assert_int_equal(dp_data_rows(&d, chw, dp_view(y, DP_I64, 2, 1), 0, &e), DP_OK);
    assert_int_equal(dp_data_moments(d, mean, std, 2, &e), DP_OK); /* channel 0 = 0 255 0 51 51 51: 408 / 6 */
    assert_true(mean[0] * 255 > 67.99999 && mean[0] * 255 < 68.00001);
    dp_data_close(d);

    const float numbers[4] = {1, 2, 3, 4};
    assert_int_equal(dp_data_rows(&d, dp_view(x, DP_U8, 2, 6), dp_view(numbers, DP_F32, 2, 2), 0, &e), DP_OK);
    assert_int_equal(test_facts(d).classes, 0);
    dp_batch b;
    dp_loader *l = test_whole(d, &b);
    assert_int_equal(b.y.width, 2);
    assert_memory_equal(b.y.data, numbers, sizeof numbers);
    assert_memory_equal(b.x.data, x, sizeof x);
    test_close_loader(l, &b);
    dp_data_close(d);
}

static void callback_tables_are_versioned(void **state)
{
    struct {
        dp_data_source s;
        char newer[16];
    } t = {.s = {.size = sizeof t.s - 8}};
    dp_data *d;
    dp_error e;
    (void)state;
    assert_int_equal(dp_data_custom(&d, &t.s, &e), DP_EVERSION);
    t.s.size = sizeof t, t.newer[9] = 1;
    assert_int_equal(dp_data_custom(&d, &t.s, &e), DP_EVERSION);
    t.newer[9] = 0;
    t.s.fetch = source_fetch, t.s.info.samples = 1, t.s.info.x_rank = 1, t.s.info.x_shape[0] = 3;
    t.s.info.y_width = 1, t.s.info.y_dtype = DP_I32, t.s.info.classes = 10;
    assert_int_equal(dp_data_custom(&d, &t.s, &e), DP_OK);
    dp_data_close(d);
}

/* ---- synthetic ---- */

static void synthetic_follows_the_model(void **state)
{
    dp_batch b;
    (void)state;
    const char *image = "[run]\nseed = 3\n[data]\nformat = synthetic\nsamples = 100\nclasses = 5\n[model]\ninput = 3x4x4\nfc = "
                        "linear out=classes\n";
    dp_data *d = test_open(test_config("%s", image), 1), *again = test_open(test_config("%s", image), 1);
    dp_data *eval = test_open(test_config("%s", image), 0);
    dp_data_info f = test_facts(d);
    assert_int_equal(f.samples, 100);
    assert_int_equal(f.x_rank, 3);
    assert_int_equal(f.x_shape[0], 3);
    assert_int_equal(f.x_dtype, DP_U8);
    assert_int_equal(f.classes, 5);
    assert_int_equal(test_facts(eval).samples, 25);
    uint8_t x[25 * 48];
    int seen[5] = {0};
    dp_loader *l = test_whole(d, &b);
    memcpy(x, b.x.data, sizeof x);
    for (int i = 0; i < 100; i++) {
        int label = ((const int32_t *)b.y.data)[i];
        assert_in_range(label, 0, 4);
        seen[label]++;
    }
    test_close_loader(l, &b);
    for (int i = 0; i < 5; i++) assert_true(seen[i] > 0);
    l = test_whole(again, &b);
    assert_memory_equal(x, b.x.data, sizeof x);
    test_close_loader(l, &b);
    l = test_whole(eval, &b);
    assert_memory_not_equal(x, b.x.data, sizeof x);
    test_close_loader(l, &b);
    dp_data_close(d);
    dp_data_close(again);
    dp_data_close(eval);

    d = test_open(test_config("[data]\nformat = synthetic\nsamples = 8\n[model]\ninput = tokens 16\nfc = linear out=vocab\n"),
                  1);
    f = test_facts(d);
    assert_int_equal(f.classes, 65);
    assert_int_equal(f.y_width, 16);
    l = test_whole(d, &b);
    const int32_t *in = b.x.data, *out = b.y.data;
    for (int i = 0; i < 8 * 16; i++) {
        assert_in_range(in[i], 0, 64);
        assert_in_range(out[i], 0, 64);
        if (i % 16 < 15) assert_int_equal(out[i], in[i + 1]);
    }
    test_close_loader(l, &b);
    dp_data_close(d);
    test_refused(test_config("[data]\nformat = synthetic\n"), 1, DP_ECONFIG, "input");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_is_a_permutation_of_its_epoch),
        cmocka_unit_test(order_is_unbiased),
        cmocka_unit_test(workers_do_not_change_the_bytes),
        cmocka_unit_test(epochs_end_once_and_order_moves_on),
        cmocka_unit_test(seek_finds_the_tail),
        cmocka_unit_test(last_batches),
        cmocka_unit_test(lent_slots_are_never_overwritten),
        cmocka_unit_test(a_failed_fetch_names_worker_and_sample),
        cmocka_unit_test(a_wrong_label_of_a_callback_is_found),
        cmocka_unit_test(a_hanging_fetch_ends_in_an_error),
        cmocka_unit_test(slots_come_from_the_given_memory_once),
        cmocka_unit_test(rows_are_checked),
        cmocka_unit_test(callback_tables_are_versioned),
        cmocka_unit_test(synthetic_follows_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
