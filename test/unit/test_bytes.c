/* Bytes through the port of every device, per step, against the table of dp/README.md: exactly, for every preset and number of devices. */
#include "engine_rig.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

typedef struct moved {
    int64_t in, out;
} moved;

static moved moved_by(rig *r, int device)
{
    dp_device_stats s;
    assert_int_equal(dp_engine_stats(r->e, device, &s), 1);
    return (moved){s.bytes_in, s.bytes_out};
}

enum { STEPS = 5, ROWS = 24 };
typedef struct scheme { /* in units of P/n, so that they are whole: factors of (n - 1) and of 1 */
    const char *settings;
    int sliced, update_on_master, loss, scatter, buffers;
} scheme;

static const scheme schemes[] = {
    {"devices.mode=classic", 0, 1, 1, 1, 1},
    {"devices.mode=dp", 1, 1, 0, 0, 0},
    {"devices.mode=balanced", 1, 0, 0, 0, 0},
    {"devices.mode=ddp", 1, 0, 0, 0, 0},
    {"devices.mode=balanced optimizer.clip_norm=1", 1, 0, 0, 0, 0},
    {"devices.mode=ddp run.on_nan=warn", 1, 0, 0, 0, 0},
    {"devices.mode=dp devices.overlap=off", 1, 1, 0, 0, 0},
    {"devices.mode=dp devices.loss=master", 1, 1, 1, 0, 0},
    {"devices.mode=dp devices.scatter=master", 1, 1, 0, 1, 0},
    {"devices.mode=dp devices.broadcast=always", 1, 1, 0, 0, 1},
    {"devices.mode=dp devices.reduce=master", 0, 1, 0, 0, 0},
};

static moved wanted(const rig *r, const scheme *s, int device)
{
    int64_t n = r->e->n, p = r->e->params->count * 4, slice = p / n, x = ROWS * 75 * 4, o = ROWS * 4 * 4,
            buffers = s->buffers ? r->e->params->buffer_count * 4 : 0;
    int master = device == 0;
    moved m;
    if (s->sliced && s->update_on_master)
        m = master ? (moved){2 * (n - 1) * slice, 3 * (n - 1) * slice} : (moved){(2 * n - 1) * slice, 2 * (n - 1) * slice};
    else if (s->sliced)
        m = (moved){2 * (n - 1) * slice, 2 * (n - 1) * slice};
    else
        m = master ? (moved){(n - 1) * p, (n - 1) * p} : (moved){p, p};
    if (s->loss) m.in += master ? o * (n - 1) / n : o / n, m.out += master ? o * (n - 1) / n : o / n;
    if (s->scatter && master) m.out += x * (n - 1) / n;
    if (s->scatter && !master) m.in += x / n;
    if (master) m.out += (n - 1) * buffers;
    if (!master) m.in += buffers;
    return m;
}

static void bytes_moved_are_those_of_the_table(void **state)
{
    const dp_backend *b = rig_backend(state);
    static const int counts[] = {1, 2, 3, 4, 8};
    rig_data data = rig_data_new(&rig_conv, ROWS, 3);
    for (int i = 0; i < COUNT(schemes); i++)
        for (int k = 0; k < COUNT(counts); k++) {
            rig r;
            moved before[8];
            rig_open(&r, &rig_conv, b, counts[k], 0, schemes[i].settings);
            for (int step = 0; step < 2; step++) rig_step(&r, &data, 0, ROWS);
            for (int d = 0; d < counts[k]; d++) before[d] = moved_by(&r, d);
            for (int step = 0; step < STEPS; step++) rig_step(&r, &data, 0, ROWS);
            for (int d = 0; d < counts[k]; d++) {
                moved want = wanted(&r, &schemes[i], d), now = moved_by(&r, d);
                int64_t in = now.in - before[d].in, out = now.out - before[d].out;
                if (counts[k] == 1) want = (moved){0, 0};
                if (in != want.in * STEPS || out != want.out * STEPS)
                    fail_msg("%s, device %d of %d: in %lld out %lld, wanted %lld and %lld", schemes[i].settings, d, counts[k],
                             (long long)in, (long long)out, (long long)want.in * STEPS, (long long)want.out * STEPS);
            }
            rig_close(&r);
        }
    rig_data_free(&data);
}

static int depth_of(int n)
{
    int depth = 0;
    while (1 << depth < n) depth++;
    return depth;
}

/* Every device but the master is read once; no port takes more than the depth of the tree. */
static void a_tree_moves_each_gradient_once(void **state)
{
    const dp_backend *b = rig_backend(state);
    static const int counts[] = {2, 3, 4, 7, 8};
    rig_data data = rig_data_new(&rig_wide, ROWS, 3);
    for (int k = 0; k < COUNT(counts); k++) {
        rig r;
        moved before[8];
        int n = counts[k];
        rig_open(&r, &rig_wide, b, n, 0, "devices.reduce=tree");
        rig_step(&r, &data, 0, ROWS);
        rig_step(&r, &data, 0, ROWS);
        for (int d = 0; d < n; d++) before[d] = moved_by(&r, d);
        rig_step(&r, &data, 0, ROWS);
        int64_t p = r.e->params->count * 4, sum = 0;
        for (int d = 0; d < n; d++) {
            moved now = moved_by(&r, d);
            int64_t in = now.in - before[d].in - (d ? p : 0), out = now.out - before[d].out - (d ? 0 : (n - 1) * p);
            assert_int_equal(out, d ? p : 0);
            assert_true(in <= depth_of(n) * p);
            sum += in;
        }
        assert_int_equal(sum, (n - 1) * p);
        rig_close(&r);
    }
    rig_data_free(&data);
}

/* P44: parameters travel once per update, not per batch. */
static void nothing_moves_inside_a_window(void **state)
{
    const dp_backend *b = rig_backend(state);
    static const char *const modes[] = {"dp", "balanced", "ddp"};
    rig_data data = rig_data_new(&rig_wide, ROWS, 3);
    for (int i = 0; i < COUNT(modes); i++) {
        rig r;
        char settings[100];
        snprintf(settings, sizeof settings, "data.accumulate=4 devices.mode=%s", modes[i]);
        rig_open(&r, &rig_wide, b, 3, 0, settings);
        moved at[3] = {{0, 0}};
        for (int k = 0; k < 100; k++) {
            rig_micro_step(&r, &data, k % 12, 12, k % 4 == 3);
            if (k == 3) at[1] = moved_by(&r, 1);
        }
        int64_t p = r.e->params->count * 4, updates = 24; /* after the first */
        moved now = moved_by(&r, 1);
        /* the parameters of the last update are still to be fetched, those of the first were not yet */
        assert_int_equal(now.in - at[1].in, updates * (i ? 4 : 5) * p / 3);
        rig_close(&r);
    }
    rig_data_free(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON(bytes_moved_are_those_of_the_table),
        ON(a_tree_moves_each_gradient_once),
        ON(nothing_moves_inside_a_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
