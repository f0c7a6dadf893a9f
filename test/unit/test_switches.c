/* The switches of [devices]: every pair of values that may stand together trains the same bytes, under `shards` on any number of devices;
 * modes are presets; what cannot be combined is refused. On the plain CPU backend and on late streams. */
#include "engine_rig.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* ---- combinations ---- */

enum { THREADS, SCATTER, LOSS, BROADCAST, REDUCE, UPDATE, OVERLAP, WINDOW, CLIP, STATS, FACTORS, MOST = 4 };
typedef struct factor {
    const char *value[MOST]; /* settings */
} factor;
static const factor factors[FACTORS] = {
    [THREADS] = {{"devices.mode=dp", "devices.mode=classic"}},
    [SCATTER] = {{"devices.scatter=direct", "devices.scatter=master"}},
    [LOSS] = {{"devices.loss=replica", "devices.loss=master"}},
    [BROADCAST] = {{"devices.broadcast=on_update", "devices.broadcast=always"}},
    [REDUCE] = {{"devices.reduce=sliced", "devices.reduce=tree", "devices.reduce=master"}},
    [UPDATE] = {{"devices.update=master", "devices.update=sliced", "devices.update=replicated"}},
    [OVERLAP] = {{"devices.overlap=off", "devices.overlap=reduce", "devices.overlap=all"}},
    [WINDOW] = {{"data.accumulate=1", "data.accumulate=3"}},
    [CLIP] = {{"optimizer.clip_norm=0", "optimizer.clip_norm=0.05", "run.on_nan=warn"}},
    [STATS] = {{"devices.bn_stats=primary", "devices.bn_stats=merged"}},
};

static int values_of(int f)
{
    int n = 0;
    while (n < MOST && factors[f].value[n]) n++;
    return n;
}

typedef struct combination {
    int value[FACTORS];
} combination;

static int legal(const combination *c)
{
    const int *v = c->value;
    if (v[UPDATE] && (v[REDUCE] || v[BROADCAST])) return 0;
    if (v[UPDATE] == 2 && (v[LOSS] || v[SCATTER])) return 0;
    return v[OVERLAP] < 2 || v[UPDATE];
}

static int next_combination(combination *c) /* counts through all; 0: past the last */
{
    for (int f = 0; f < FACTORS; f++) {
        if (++c->value[f] < values_of(f)) return 1;
        c->value[f] = 0;
    }
    return 0;
}

enum { MOST_SETS = 64 };
typedef struct pairs {
    char seen[FACTORS][MOST][FACTORS][MOST];
} pairs;

static int news(const pairs *p, const combination *c)
{
    int n = 0;
    for (int f = 0; f < FACTORS; f++)
        for (int g = 0; g < f; g++) n += !p->seen[f][c->value[f]][g][c->value[g]];
    return n;
}

/* Greedy: every pair of values that is legal at all occurs in one of the sets. */
static int pairwise(combination *set)
{
    static pairs p;
    memset(&p, 0, sizeof p);
    int n = 0;
    for (; n < MOST_SETS; n++) {
        combination c = {{0}};
        int most = 0;
        do {
            int new = legal(&c) ? news(&p, &c) : 0;
            if (new > most) most = new, set[n] = c;
        } while (next_combination(&c));
        if (!most) break;
        for (int f = 0; f < FACTORS; f++)
            for (int g = 0; g < f; g++) p.seen[f][set[n].value[f]][g][set[n].value[g]] = 1;
    }
    return n;
}

static void text_of(const combination *c, char *text, size_t size)
{
    *text = 0;
    for (int f = 0; f < FACTORS; f++) {
        if (f == BROADCAST && c->value[UPDATE]) continue; /* it would have no effect */
        snprintf(text + strlen(text), size - strlen(text), "%s ", factors[f].value[c->value[f]]);
    }
}

/* ---- training ---- */

typedef struct left { /* what five steps leave behind */
    float *weights;
    int64_t n;
    double loss, norm;
} left;

static left five_steps(const rig_net *net, const dp_backend *b, int devices, const char *settings, const rig_data *data)
{
    rig r;
    dp_error err;
    dp_result result = {0};
    left l = {0};
    rig_open(&r, net, b, devices, 0, settings);
    int window = strstr(settings, "accumulate=3") ? 3 : 1;
    for (int i = 0; i <= 5 * window; i++) { /* two in flight; batches of other sizes, some of which leave devices idle */
        dp_batch batch = rig_batch(data, i % 5, i % 4 == 3 ? 3 : 12 - i % 3);
        batch.epoch = (uint64_t)i;
        batch.last_of_window = i % window == window - 1;
        if (i < 5 * window && dp_engine_submit(r.e, &batch, &err)) fail_msg("%s: %s", settings, err.text);
        if (i && dp_engine_wait(r.e, &result, &err)) fail_msg("%s: %s", settings, err.text);
    }
    l.weights = rig_weights(&r, &l.n);
    l.loss = result.loss_sum, l.norm = result.grad_norm;
    rig_close(&r);
    return l;
}

static void equal(left a, left b, const char *what)
{
    assert_int_equal(a.n, b.n);
    rig_same_bytes(a.weights, b.weights, (size_t)a.n * 4, what);
    if (a.loss != b.loss || a.norm != b.norm)
        fail_msg("%s: loss %.17g, %.17g; norm %.17g, %.17g", what, a.loss, b.loss, a.norm, b.norm);
    free(a.weights);
    free(b.weights);
}

/* Settings that change what is computed, not where. */
static void plain_text(const combination *c, char *text, size_t size)
{
    snprintf(text, size, "devices.shards=8 %s %s %s", factors[WINDOW].value[c->value[WINDOW]],
             factors[CLIP].value[c->value[CLIP]], factors[STATS].value[c->value[STATS]]);
}

static void every_pair_trains_the_same_bytes(void **state)
{
    const dp_backend *b = rig_backend(state);
    static const int counts[] = {1, 2, 3, 4, 8};
    static const rig_net *const nets[] = {&rig_wide, &rig_conv, &rig_dropout};
    combination set[MOST_SETS];
    int n = pairwise(set), late = b != dp_backend_cpu();
    assert_true(n > 8 && n < MOST_SETS);
    for (int i = 0; i < n; i++) {
        const rig_net *net = nets[i % COUNT(nets)];
        rig_data data = rig_data_new(net, 32, 5);
        char plain[200], switches[600], settings[800];
        plain_text(&set[i], plain, sizeof plain);
        text_of(&set[i], switches, sizeof switches);
        snprintf(settings, sizeof settings, "devices.shards=8 %s", switches);
        for (int k = 0; k < COUNT(counts); k++) {
            if (late && !rig_full() && (k == 4 || (k + i) % 2)) continue;
            char what[900];
            snprintf(what, sizeof what, "%s on %d devices, %s", net->name, counts[k], settings);
            equal(five_steps(net, b, counts[k], settings, &data), five_steps(net, dp_backend_cpu(), 1, plain, &data), what);
        }
        rig_data_free(&data);
    }
}

/* Without shards too, windows added up on each device. */
static void every_pair_equals_its_leaves(void **state)
{
    const dp_backend *b = rig_backend(state);
    combination set[MOST_SETS];
    int n = pairwise(set), late = b != dp_backend_cpu();
    for (int i = 0; i < n; i++) {
        int devices = 2 + i % 3;
        char switches[600], plain[200], what[700];
        if (late && !rig_full() && i % 2) continue;
        rig_data data = rig_data_new(&rig_wide, 32, 6);
        text_of(&set[i], switches, sizeof switches);
        snprintf(plain, sizeof plain, "%s %s %s devices.overlap=off devices.reduce=master",
                 factors[WINDOW].value[set[i].value[WINDOW]], factors[CLIP].value[set[i].value[CLIP]],
                 factors[STATS].value[set[i].value[STATS]]);
        snprintf(what, sizeof what, "%d devices, %s", devices, switches);
        equal(five_steps(&rig_wide, b, devices, switches, &data),
              five_steps(&rig_wide, dp_backend_cpu(), devices, plain, &data), what);
        rig_data_free(&data);
    }
}

static void modes_are_presets(void **state)
{
    const dp_backend *b = rig_backend(state);
    static const char *const modes[] = {"classic", "dp", "balanced", "ddp"};
    rig_data data = rig_data_new(&rig_conv, 32, 7);
    for (int i = 0; i < COUNT(modes); i++)
        for (int devices = 1; devices <= 4; devices++) {
            char settings[100];
            snprintf(settings, sizeof settings, "devices.mode=%s devices.shards=4", modes[i]);
            equal(five_steps(&rig_conv, b, devices, settings, &data),
                  five_steps(&rig_conv, dp_backend_cpu(), 1, "devices.shards=4", &data), settings);
        }
    rig_data_free(&data);
}

static void what_cannot_be_combined_is_refused(void **state)
{
    static const struct {
        const char *settings, *says;
    } cases[] = {
        {"devices.update=sliced devices.reduce=master", "reduce = sliced"},
        {"devices.update=replicated devices.reduce=tree", "reduce = sliced"},
        {"devices.mode=classic devices.update=sliced", "reduce = sliced"},
        {"devices.mode=ddp devices.loss=master", "loss = replica"},
        {"devices.mode=ddp devices.scatter=master", "scatter = direct"},
        {"devices.overlap=all", "update = sliced or replicated"},
        {"devices.mode=balanced devices.update=master", "update = sliced or replicated"},
        {"devices.mode=balanced devices.broadcast=always", "no effect"},
        {"devices.shards=4 devices.bn_stats=sync", "wants 4 devices"},
        {"devices.shards=4 devices.split=chunk", "even"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        rig r;
        dp_error err;
        dp_status status = rig_try(&r, &rig_mlp, rig_backend(state), 2, 0, cases[i].settings, &err);
        if (status != DP_ECONFIG || !strstr(err.text, cases[i].says)) fail_msg("%s: %s", cases[i].settings, err.text);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON(what_cannot_be_combined_is_refused),
        ON(modes_are_presets),
        ON(every_pair_trains_the_same_bytes),
        ON(every_pair_equals_its_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
