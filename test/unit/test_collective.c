/* Collectives: values against sums in the halving tree made here, and copies byte for byte; bytes through the ports against the table of
 * dp.h; what is refused, and what a failing device leaves behind. On any members, in any shape, in line and on late streams. */
#include "../../dp/group/parts.h"
#include "engine_rig.h"
#include <math.h>
#include <unistd.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
enum { MOST = 8, WATCHDOG_S = 120 };

/* How the devices of a test get at each other, besides ON's: late ones that do not at all, or only by copies. */
#define BY_ALL_ROUTES(test)                                                                                                    \
    ON(test), {#test " (apart)", test, NULL, NULL, (void *)(uintptr_t) "apart"},                                               \
    {                                                                                                                          \
#test " (copies)", test, NULL, NULL, (void *)(uintptr_t) "copies"                                                      \
    }

typedef struct world {
    dp_group *group;
    dp_collective *c;
    int n;
    dp_array *x[MOST], *y[MOST], *z[MOST];
} world;

static const char *transport; /* of the test that runs */
static const dp_backend *backend_of(void *const *state)
{
    int apart = !strcmp(*state, "apart");
    transport = strcmp(*state, "copies") ? "auto" : "copy";
    if (!apart && strcmp(*state, "copies")) return rig_backend(state);
    return late_backend(&(late_options){.seed = 3, .delay_us = 100, .no_peer_reads = apart});
}

/* `devices` of them, a collective on `members` (NULL: all). */
static dp_status world_try(world *v, const dp_backend *b, int devices, const int *members, int n, int64_t max_count,
                           dp_error *err)
{
    char use[64] = "";
    memset(v, 0, sizeof *v);
    alarm(WATCHDOG_S);
    v->n = devices;
    for (int d = 0; d < devices; d++) snprintf(use + strlen(use), sizeof use - strlen(use), "%scpu:%d", d ? "," : "", d);
    dp_config *cfg = dp_config_new(NULL, NULL);
    dp_config_set(cfg, "devices.use", use);
    dp_config_set(cfg, "devices.threads", "1");
    dp_config_set(cfg, "devices.timeout_s", "20");
    dp_config_set(cfg, "devices.transport", transport ? transport : "auto");
    dp_status status = dp_group_open_on(&v->group, cfg, b, 1, err);
    dp_config_free(cfg);
    if (status) fail_msg("%s", err->text);
    return dp_collective_open(&v->c, v->group, members, n, max_count, err);
}

static void world_open(world *v, const dp_backend *b, int devices, const int *members, int n, int64_t max_count)
{
    dp_error err;
    if (world_try(v, b, devices, members, n, max_count, &err)) fail_msg("%s", err.text);
}

static void world_close(world *v)
{
    dp_error err;
    for (int d = 0; d < MOST; d++) dp_array_free(v->x[d]), dp_array_free(v->y[d]), dp_array_free(v->z[d]);
    dp_collective_close(v->c);
    for (int d = 0; d < v->n && !atomic_load(&v->group->aborted); d++) /* every byte has come back */
        assert_int_equal(v->group->backend->memory(v->group->worker[d].be)->total_live, 0);
    if (dp_group_close(v->group, &err)) fail_msg("%s", err.text);
}

/* Numbers of very different size, so that every other order of a sum rounds to something else. */
static float number(int device, int64_t i)
{
    uint32_t h = (uint32_t)(i * 2654435761u) ^ ((uint32_t)device * 40503u + 77u) * 2246822519u;
    h ^= h >> 13, h *= 3266489917u, h ^= h >> 16;
    return ldexpf((float)(h & 0xffff) - 32767.5f, (int)(h >> 16) % 25 - 12);
}

/* rows[d] rows of `width` numbers on every device; NULL: `even` each. */
static void put(world *v, dp_array **a, const int64_t *rows, int64_t even, int64_t width)
{
    int64_t size[MOST], n = 0;
    dp_error err;
    for (int d = 0; d < v->n; d++) n += size[d] = rows ? rows[d] : even;
    float *host = malloc((size_t)(n * width) * 4);
    assert_non_null(host);
    int64_t at = 0;
    for (int d = 0; d < v->n; d++)
        for (int64_t i = 0; i < size[d] * width; i++) host[at++] = number(d, i);
    if (dp_scatter(v->group, dp_view(host, DP_F32, n, width), size, a, &err)) fail_msg("%s", err.text);
    free(host);
}

static float tree(const int *member, int n, int64_t i)
{
    int half = (n + 1) / 2;
    if (n == 1) return number(member[0], i);
    return tree(member, half, i) + tree(member + half, n - half, i);
}

/* Between calls the memory is the caller's; CPU devices' can be looked at. */
static void holds(const dp_array *a, const float *want, int64_t rows, int64_t width, const char *what)
{
    assert_int_equal(dp_array_rows(a), rows);
    if (!rows) return;
    assert_int_equal(a->width, width);
    rig_same_bytes(dp_array_data(a), want, (size_t)(rows * width) * 4, what);
}

static void holds_numbers(const dp_array *a, int device, int64_t rows, int64_t width, const char *what)
{
    float *want = malloc((size_t)(rows * width) * 4 + 4);
    assert_non_null(want);
    for (int64_t i = 0; i < rows * width; i++) want[i] = number(device, i);
    holds(a, want, rows, width, what);
    free(want);
}

static int64_t even_part(int64_t rows, int n, int i)
{
    return rows / n + (i < rows % n);
}

/* ---- values ---- */

static const int every_device[] = {0, 1, 2, 3, 4, 5, 6, 7};
static const int device_counts[] = {1, 2, 3, 4, 8};

typedef struct shape {
    int64_t rows, width;
} shape;
static const shape shapes[] = {{1, 1}, {16, 1}, {17, 1}, {5, 3}, {1000, 1}, {37, 29}, {2, 2048}};

static void check_sums(world *v, const int *member, int n, shape s, dp_error *err)
{
    int64_t count = s.rows * s.width, begin = 0;
    float *want = malloc((size_t)count * 4);
    assert_non_null(want);
    for (int64_t i = 0; i < count; i++) want[i] = tree(member, n, i);
    put(v, v->x, NULL, s.rows, s.width);

    if (dp_collective_all_reduce(v->c, v->x, v->y, err)) fail_msg("%s", err->text);
    for (int r = 0; r < n; r++) holds(v->y[member[r]], want, s.rows, s.width, "all_reduce");
    for (int r = 0; r<n; r += n> 1 ? n - 1 : 1) {
        if (dp_collective_reduce(v->c, member[r], v->x, v->z, err)) fail_msg("%s", err->text);
        holds(v->z[member[r]], want, s.rows, s.width, "reduce");
    }
    if (dp_collective_reduce_scatter(v->c, v->x, v->z, err)) fail_msg("%s", err->text);
    for (int r = 0; r < n; r++) {
        int64_t rows = dp_array_rows(v->z[member[r]]);
        assert_true(rows == s.rows / n || rows == (s.rows + n - 1) / n);
        holds(v->z[member[r]], want + begin * s.width, rows, s.width, "reduce_scatter");
        begin += rows;
    }
    assert_int_equal(begin, s.rows);
    if (dp_collective_all_gather(v->c, v->z, v->y, err)) fail_msg("%s", err->text);
    for (int r = 0; r < n; r++) holds(v->y[member[r]], want, s.rows, s.width, "all_gather of it");
    for (int r = 0; r < n; r++) holds_numbers(v->x[member[r]], member[r], s.rows, s.width, "what was given");

    if (dp_collective_reduce(v->c, member[0], v->x, v->x, err)) fail_msg("%s", err->text);
    holds(v->x[member[0]], want, s.rows, s.width, "reduce in place");
    for (int r = 1; r < n; r++) holds_numbers(v->x[member[r]], member[r], s.rows, s.width, "what was given");
    put(v, v->x, NULL, s.rows, s.width);
    if (dp_collective_all_reduce(v->c, v->x, v->x, err)) fail_msg("%s", err->text);
    for (int r = 0; r < n; r++) holds(v->x[member[r]], want, s.rows, s.width, "all_reduce in place");
    free(want);
}

static void sums_are_those_of_the_halving_tree(void **state)
{
    const dp_backend *b = backend_of(state);
    dp_error err;
    for (int k = 0; k < COUNT(device_counts); k++) {
        world v;
        world_open(&v, b, device_counts[k], NULL, 0, 5000);
        for (int i = 0; i < COUNT(shapes); i++) check_sums(&v, every_device, device_counts[k], shapes[i], &err);
        world_close(&v);
    }
}

static void check_copies(world *v, const int *member, int n, shape s, dp_error *err)
{
    int root = member[n - 1];
    put(v, v->x, NULL, s.rows, s.width);
    if (dp_collective_broadcast(v->c, root, v->x, v->y, err)) fail_msg("%s", err->text);
    for (int r = 0; r < n; r++) holds_numbers(v->y[member[r]], root, s.rows, s.width, "broadcast");
    for (int r = 0; r < n; r++) holds_numbers(v->x[member[r]], member[r], s.rows, s.width, "what was given");

    if (dp_collective_scatter(v->c, root, v->x, v->z, err)) fail_msg("%s", err->text);
    const float *all = dp_array_data(v->x[root]);
    int64_t begin = 0;
    for (int r = 0; r < n; r++) {
        int64_t rows = even_part(s.rows, n, r);
        holds(v->z[member[r]], all + begin * s.width, rows, s.width, "scatter");
        assert_int_equal(v->z[member[r]]->first, v->x[root]->first + begin);
        begin += rows;
    }
    if (dp_collective_gather(v->c, member[0], v->z, v->y, err)) fail_msg("%s", err->text);
    holds_numbers(v->y[member[0]], root, s.rows, s.width, "gather");
    if (dp_collective_all_gather(v->c, v->z, v->y, err)) fail_msg("%s", err->text);
    for (int r = 0; r < n; r++) holds_numbers(v->y[member[r]], root, s.rows, s.width, "all_gather");

    if (dp_collective_broadcast(v->c, root, v->x, v->x, err)) fail_msg("%s", err->text);
    for (int r = 0; r < n; r++) holds_numbers(v->x[member[r]], root, s.rows, s.width, "broadcast in place");
}

static void copies_bring_the_same_bytes(void **state)
{
    const dp_backend *b = backend_of(state);
    dp_error err;
    for (int k = 0; k < COUNT(device_counts); k++) {
        world v;
        world_open(&v, b, device_counts[k], NULL, 0, 5000);
        for (int i = 0; i < COUNT(shapes); i++) check_copies(&v, every_device, device_counts[k], shapes[i], &err);
        world_close(&v);
    }
}

/* Rows as the devices happen to have them, of any type. */
static void uneven_rows_of_any_type_are_joined(void **state)
{
    static const dp_dtype types[] = {DP_U8, DP_F16, DP_I32, DP_I64};
    static const int64_t sizes[] = {0, 3, 4, 0, 1};
    uint8_t host[8 * 7 * 8], back[5 * sizeof host];
    dp_error err;
    world v;
    world_open(&v, backend_of(state), 5, NULL, 0, 56);
    for (size_t i = 0; i < sizeof host; i++) host[i] = (uint8_t)(i * 37 + 11);
    for (int t = 0; t < COUNT(types); t++) {
        size_t bytes = 8 * 7 * dp_dtype_size(types[t]);
        assert_int_equal(dp_scatter(v.group, dp_view(host, types[t], 8, 7), sizes, v.x, &err), DP_OK);
        if (dp_collective_all_gather(v.c, v.x, v.y, &err)) fail_msg("%s", err.text);
        assert_int_equal(dp_gather(v.group, v.y, back, 5 * bytes, &err), DP_OK);
        for (int d = 0; d < 5; d++) rig_same_bytes(back + (size_t)d * bytes, host, bytes, "all_gather");
        if (dp_collective_gather(v.c, 3, v.x, v.z, &err)) fail_msg("%s", err.text);
        rig_same_bytes(dp_array_data(v.z[3]), host, bytes, "gather");
        if (dp_collective_broadcast(v.c, 3, v.z, v.y, &err)) fail_msg("%s", err.text);
        for (int d = 0; d < 5; d++) rig_same_bytes(dp_array_data(v.y[d]), host, bytes, "broadcast");
        assert_int_equal(v.y[0]->dtype, types[t]);
    }
    world_close(&v);
}

/* Members in any order; the others' arrays are left alone; two collectives on one group take turns. */
static void some_of_the_devices(void **state)
{
    static const int list[] = {4, 1, 2}, member[] = {1, 2, 4}, pair[] = {3, 4};
    const dp_backend *b = backend_of(state);
    dp_error err;
    world v;
    dp_collective *all, *own, *two;
    world_open(&v, b, 5, list, 3, 5000);
    for (int i = 0; i < COUNT(shapes); i++) {
        check_sums(&v, member, 3, shapes[i], &err);
        check_copies(&v, member, 3, shapes[i], &err);
        holds_numbers(v.x[0], 0, shapes[i].rows, shapes[i].width, "an array of no member");
        assert_int_equal(dp_array_rows(v.y[3]), 0);
    }
    own = v.c;
    assert_int_equal(dp_collective_open(&all, v.group, NULL, 0, 100, &err), DP_OK);
    assert_int_equal(dp_collective_open(&two, v.group, pair, 2, 100, &err), DP_OK);
    put(&v, v.x, NULL, 100, 1);
    for (int turn = 0; turn < 3; turn++) {
        float want[100];
        for (int i = 0; i < 100; i++) want[i] = tree(every_device, 5, i);
        assert_int_equal(dp_collective_all_reduce(all, v.x, v.y, &err), DP_OK);
        for (int d = 0; d < 5; d++) holds(v.y[d], want, 100, 1, "of all");
        assert_int_equal(dp_collective_all_reduce(two, v.x, v.y, &err), DP_OK);
        assert_int_equal(dp_collective_barrier(two, &err), DP_OK);
        holds(v.y[2], want, 100, 1, "of all, left alone");
        for (int i = 0; i < 100; i++) want[i] = tree(pair, 2, i);
        for (int d = 3; d < 5; d++) holds(v.y[d], want, 100, 1, "of two");
        assert_int_equal(dp_collective_all_reduce(own, v.x, v.y, &err), DP_OK);
        holds(v.y[3], want, 100, 1, "of two, left alone");
        for (int i = 0; i < 100; i++) want[i] = tree(member, 3, i);
        for (int r = 0; r < 3; r++) holds(v.y[member[r]], want, 100, 1, "of three");
    }
    dp_collective_close(two);
    dp_collective_close(all);
    world_close(&v);
}

/* ---- order ---- */

static int halve(void *user, int device) /* a kernel of the program's own */
{
    dp_array **a = user;
    float *x = dp_array_data(a[device]);
    for (int64_t i = 0; i < dp_array_rows(a[device]); i++) x[i] *= 0.5f;
    return 0;
}

/* Each call overwrites what the one before has read. Of two devices' 1 and 3 the sum is 4; halved 2, then 2 + 2 and so on: whole numbers,
 * so that every stage must be exact. */
static void calls_follow_each_other(void **state)
{
    dp_error err;
    world v;
    int64_t made[2];
    float host[2000], want[1000];
    for (int i = 0; i < 2000; i++) host[i] = (float)(i % 1000) + (i < 1000 ? 1.0f : 3.0f);
    for (int i = 0; i < 1000; i++) want[i] = (float)i + 2.0f;
    world_open(&v, backend_of(state), 2, NULL, 0, 1000);
    assert_int_equal(dp_scatter(v.group, dp_view(host, DP_F32, 2000, 1), NULL, v.x, &err), DP_OK);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(dp_collective_all_reduce(v.c, v.x, v.x, &err), DP_OK);
        assert_int_equal(dp_group_run(v.group, halve, v.x, &err), DP_OK);
        assert_int_equal(dp_collective_broadcast(v.c, i % 2, v.x, v.y, &err), DP_OK);
        assert_int_equal(dp_collective_scatter(v.c, i % 2, v.y, v.z, &err), DP_OK);
        assert_int_equal(dp_collective_all_gather(v.c, v.z, v.x, &err), DP_OK);
        for (int d = 0; d < 2; d++) {
            const dp_memory *m = v.group->backend->memory(v.group->worker[d].be);
            holds(v.x[d], want, 1000, 1, "round trip");
            if (i > 0) assert_int_equal(m->allocations, made[d]); /* all was there after the first round */
            made[d] = m->allocations;
        }
    }
    world_close(&v);
}

/* ---- bytes ---- */

enum { BROADCAST, REDUCE, ALL_REDUCE, GATHER, ALL_GATHER, SCATTER, REDUCE_SCATTER, BARRIER, KINDS };
static const char *const kind_name[] = {"broadcast",  "reduce",  "all_reduce",     "gather",
                                        "all_gather", "scatter", "reduce_scatter", "barrier"};

static dp_status do_it(world *v, int kind, int root, dp_array **whole, dp_array **part, dp_array **to, dp_error *err)
{
    switch (kind) {
    case BROADCAST: return dp_collective_broadcast(v->c, root, whole, to, err);
    case REDUCE: return dp_collective_reduce(v->c, root, whole, to, err);
    case ALL_REDUCE: return dp_collective_all_reduce(v->c, whole, to, err);
    case GATHER: return dp_collective_gather(v->c, root, part, to, err);
    case ALL_GATHER: return dp_collective_all_gather(v->c, part, to, err);
    case SCATTER: return dp_collective_scatter(v->c, root, whole, to, err);
    case REDUCE_SCATTER: return dp_collective_reduce_scatter(v->c, whole, to, err);
    default: return dp_collective_barrier(v->c, err);
    }
}

typedef struct moved {
    double in, out;
} moved;

static moved table(int kind, int n, int is_root, double C, double c) /* of dp.h */
{
    double share = (n - 1) * C / n;
    if (n == 1) return (moved){0, 0};
    switch (kind) {
    case BROADCAST: return is_root ? (moved){0, C} : (moved){C, (n - 2) * C / (n - 1)};
    case REDUCE: return is_root ? (moved){2 * share, share} : (moved){share, C};
    case ALL_REDUCE: return (moved){2 * share, 2 * share};
    case GATHER: return is_root ? (moved){C - c, 0} : (moved){0, c};
    case ALL_GATHER: return (moved){C - c, (n - 1) * c};
    case SCATTER: return is_root ? (moved){0, C - c} : (moved){c, 0};
    case REDUCE_SCATTER: return (moved){(n - 1) * c, C - c};
    default: return (moved){0, 0};
    }
}

/* A port may differ from the table by a block of 64 bytes for each slice that goes through it, 2(n-1) at most each way, and twice that where
 * both ends of a part are rounded; where all is whole blocks, by nothing. */
static void check_bytes(world *v, int kind, int root, int64_t rows)
{
    dp_error err;
    int64_t before[MOST][2], all = 0;
    double slack = rows % (64 * 3 * 7 * 16) ? 64.0 * 4 * (v->n - 1) : 0;
    for (int d = 0; d < v->n; d++) assert_int_equal(dp_group_bytes(v->group, d, &before[d][0], &before[d][1]), 1);
    if (do_it(v, kind, root, v->x, v->y, v->z, &err)) fail_msg("%s: %s", kind_name[kind], err.text);
    for (int d = 0; d < v->n; d++) {
        int64_t in, out;
        moved want = table(kind, v->n, d == root, 4.0 * (double)rows, 4.0 * (double)even_part(rows, v->n, d));
        assert_int_equal(dp_group_bytes(v->group, d, &in, &out), 1);
        in -= before[d][0], out -= before[d][1], all += in - out;
        if (fabs((double)in - want.in) > slack || fabs((double)out - want.out) > slack)
            fail_msg("%s of %lld, device %d of %d: in %lld out %lld, the table has %g and %g", kind_name[kind], (long long)rows,
                     d, v->n, (long long)in, (long long)out, want.in, want.out);
    }
    assert_int_equal(all, 0);
}

static void bytes_are_those_of_the_table(void **state)
{
    static const int64_t rows[] = {64 * 3 * 7 * 16, 2 * 64 * 3 * 7 * 16, 1, 17, 5003};
    const dp_backend *b = backend_of(state);
    for (int k = 0; k < COUNT(device_counts); k++) {
        world v;
        int64_t in, out;
        world_open(&v, b, device_counts[k], NULL, 0, 50000);
        assert_int_equal(dp_group_bytes(v.group, v.n, &in, &out), 0);
        assert_int_equal(dp_group_bytes(v.group, -1, &in, &out), 0);
        for (int i = 0; i < COUNT(rows); i++) {
            int64_t part[MOST];
            for (int d = 0; d < v.n; d++) part[d] = even_part(rows[i], v.n, d);
            put(&v, v.x, NULL, rows[i], 1);
            put(&v, v.y, part, 0, 1);
            for (int kind = 0; kind < KINDS; kind++) check_bytes(&v, kind, i % v.n, rows[i]);
        }
        world_close(&v);
    }
}

/* ---- refusals ---- */

static void wrong_arguments_harm_nothing(void **state)
{
    static const int twice[] = {1, 1}, beyond[] = {0, 3}, negative[] = {-1, 0}, list[] = {0, 2};
    static const float v9[18] = {0};
    static const uint8_t u8[9] = {0};
    dp_error err;
    dp_collective *no = NULL;
    dp_array *bytes[MOST] = {NULL}, *wide[MOST] = {NULL}, *empty[MOST] = {NULL};
    world v;
    world_open(&v, backend_of(state), 3, list, 2, 12);
    dp_group *g = v.group;
    put(&v, v.x, NULL, 3, 1);
    assert_int_equal(dp_scatter(g, dp_view(u8, DP_U8, 9, 1), NULL, bytes, &err), DP_OK);
    assert_int_equal(dp_scatter(g, dp_view(v9, DP_F32, 9, 2), NULL, wide, &err), DP_OK);
    assert_int_equal(dp_scatter(g, dp_view(v9, DP_F32, 3, 1), (int64_t[]){0, 3, 0}, empty, &err), DP_OK);
    dp_array *hole[MOST] = {v.x[0], v.x[1], NULL}, *order[MOST] = {v.x[2], v.x[1], v.x[0]},
             *mixed[MOST] = {v.x[0], NULL, wide[2]}, *types[MOST] = {v.x[0], NULL, bytes[2]},
             *some[MOST] = {v.x[0], NULL, empty[2]}, *none[MOST] = {NULL};
#define REFUSED(call) assert_int_equal((call), DP_EARGUMENT)
    REFUSED(dp_collective_open(NULL, g, NULL, 0, 9, &err));
    REFUSED(dp_collective_open(&no, NULL, NULL, 0, 9, &err));
    REFUSED(dp_collective_open(&no, g, NULL, 0, 0, &err));
    REFUSED(dp_collective_open(&no, g, NULL, 0, INT64_MAX, &err));
    REFUSED(dp_collective_open(&no, g, list, 0, 9, &err));
    REFUSED(dp_collective_open(&no, g, list, 4, 9, &err));
    REFUSED(dp_collective_open(&no, g, twice, 2, 9, &err));
    REFUSED(dp_collective_open(&no, g, beyond, 2, 9, &err));
    REFUSED(dp_collective_open(&no, g, negative, 2, 9, &err));
    assert_null(no);
    for (int kind = 0; kind < KINDS; kind++) {
        world w = v;
        w.c = NULL;
        REFUSED(do_it(&w, kind, 0, v.x, v.x, v.y, &err));
        if (kind == BARRIER) continue;
        REFUSED(do_it(&v, kind, 0, NULL, NULL, v.y, &err));
        REFUSED(do_it(&v, kind, 0, v.x, v.x, NULL, &err));
        REFUSED(do_it(&v, kind, 2, hole, hole, v.y, &err));
        assert_int_equal(err.device, 2);
        REFUSED(do_it(&v, kind, 0, order, order, v.y, &err));
        REFUSED(do_it(&v, kind, 0, empty, empty, v.y, &err)); /* only the device that is no member has rows */
        REFUSED(do_it(&v, kind, 0, v.x, v.x, order, &err));
        if (kind == BROADCAST || kind == SCATTER) continue; /* they read the root's array alone */
        REFUSED(do_it(&v, kind, 0, mixed, mixed, v.y, &err));
        assert_non_null(strstr(err.text, "(3, 1) and (3, 2)"));
        assert_int_equal(err.device, 2);
        REFUSED(do_it(&v, kind, 0, types, types, v.y, &err));
    }
    static const int rooted[] = {BROADCAST, REDUCE, GATHER, SCATTER};
    for (int i = 0; i < 4; i++) {
        REFUSED(do_it(&v, rooted[i], 1, v.x, v.x, v.y, &err)); /* no member */
        REFUSED(do_it(&v, rooted[i], 3, v.x, v.x, v.y, &err));
        REFUSED(do_it(&v, rooted[i], -1, v.x, v.x, v.y, &err));
    }
    REFUSED(dp_collective_all_reduce(v.c, bytes, v.y, &err));
    REFUSED(dp_collective_all_reduce(v.c, some, v.y, &err));
    REFUSED(dp_collective_gather(v.c, 2, v.x, v.x, &err));
    assert_int_equal(err.device, 2);
    REFUSED(dp_collective_all_gather(v.c, v.x, v.x, &err));
    REFUSED(dp_collective_scatter(v.c, 0, v.x, v.x, &err));
    REFUSED(dp_collective_reduce_scatter(v.c, v.x, v.x, &err));
    REFUSED(dp_collective_reduce_scatter(v.c, v.x, v.x, NULL)); /* err is not needed */
    put(&v, v.z, NULL, 13, 1);
    REFUSED(dp_collective_all_reduce(v.c, v.z, v.y, &err));
    assert_non_null(strstr(err.text, "max_count = 12"));
    put(&v, v.z, NULL, 7, 1);
    REFUSED(dp_collective_all_gather(v.c, v.z, v.y, &err)); /* 14 together */
#undef REFUSED
    dp_collective_close(NULL);
    assert_null(dp_array_data(NULL));
    for (int d = 0; d < 3; d++) {
        assert_int_equal(dp_array_rows(v.y[d]), 0);
        holds_numbers(v.x[d], d, 3, 1, "what was given to calls that were refused");
    }
    assert_int_equal(dp_collective_all_reduce(v.c, v.x, none, &err), DP_OK); /* nothing was harmed */
    for (int d = 0; d < 3; d++)
        dp_array_free(bytes[d]), dp_array_free(wide[d]), dp_array_free(empty[d]), dp_array_free(none[d]);
    world_close(&v);
}

/* ---- failures ---- */

static void stays_failed(world *v, dp_status status)
{
    dp_error err;
    for (int kind = 0; kind < KINDS; kind++) assert_int_equal(do_it(v, kind, 0, v->x, v->y, v->z, &err), status);
}

static void a_failing_device_ends_the_call(void **state)
{
    transport = "auto";
    static const struct {
        int kind;
        late_kind fails;
        int device;
        int64_t nth;
    } cases[] = {{BROADCAST, LATE_COPY, 2, 1},  {BROADCAST, LATE_COPY, 1, 2},      {BROADCAST, LATE_WAIT, 3, 1},
                 {REDUCE, LATE_SUM, 2, 1},      {REDUCE, LATE_COPY, 0, 1},         {ALL_REDUCE, LATE_SUM, 0, 1},
                 {ALL_REDUCE, LATE_COPY, 3, 2}, {ALL_REDUCE, LATE_RECORD, 1, 2},   {GATHER, LATE_COPY, 0, 3},
                 {SCATTER, LATE_COPY, 2, 1},    {REDUCE_SCATTER, LATE_SUM, 3, 1},  {ALL_GATHER, LATE_COPY, 1, 1},
                 {BARRIER, LATE_RECORD, 2, 1},  {REDUCE_SCATTER, LATE_COPY, 1, 1}, {ALL_REDUCE, LATE_WAIT, 2, 1}};
    int threads = rig_threads();
    (void)state;
    for (int i = 0; i < COUNT(cases); i++)
        for (int at_once = 0; at_once < 2; at_once++) {
            dp_error err;
            world v;
            world_open(&v, late_backend(&(late_options){.seed = 5, .delay_us = 100}), 4, NULL, 0, 4000);
            put(&v, v.x, NULL, 999, 1);
            put(&v, v.y, NULL, 999, 1);
            late_arm(&(late_fault){cases[i].fails, cases[i].device, cases[i].nth, DP_EDEVICE, at_once, 0, 0});
            dp_status status = do_it(&v, cases[i].kind, 0, v.x, v.y, v.z, &err);
            if (status != DP_EDEVICE || err.device != cases[i].device || err.more)
                fail_msg("%s, %s %d on device %d: status %d, device %d, %d more: %s", kind_name[cases[i].kind],
                         late_kind_name(cases[i].fails), (int)cases[i].nth, cases[i].device, (int)status, err.device, err.more,
                         err.text);
            assert_true(err.phase >= 0 && *err.phase_name);
            stays_failed(&v, DP_EDEVICE);
            world_close(&v);
            assert_true(rig_threads_back(threads));
        }
}

/* A device that dies under a call, the others reading its memory. */
static void a_dying_device_is_named(void **state)
{
    static const struct {
        int kind;
        late_kind at;
    } cases[] = {{BROADCAST, LATE_COPY}, {ALL_REDUCE, LATE_SUM}, {ALL_GATHER, LATE_COPY}, {REDUCE_SCATTER, LATE_RECORD}};
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        dp_error err;
        world v;
        world_open(&v, late_backend(&(late_options){.seed = 7, .delay_us = 100}), 3, NULL, 0, 4000);
        put(&v, v.x, NULL, 999, 1);
        put(&v, v.y, NULL, 999, 1);
        late_arm(&(late_fault){cases[i].at, 1, 1, DP_EDEVICE_LOST, i % 2, 0, 1});
        dp_status status = do_it(&v, cases[i].kind, 0, v.x, v.y, v.z, &err);
        if (status != DP_EDEVICE_LOST || err.device != 1)
            fail_msg("%s: status %d, device %d: %s", kind_name[cases[i].kind], (int)status, err.device, err.text);
        stays_failed(&v, DP_EDEVICE_LOST);
        world_close(&v);
        assert_int_equal(late_touched_dead(), 0);
    }
}

static void a_hanging_device_is_named(void **state)
{
    dp_error err;
    world v;
    (void)state;
    world_open(&v, late_backend(&(late_options){.seed = 8}), 3, NULL, 0, 4000);
    put(&v, v.x, NULL, 999, 1);
    v.group->list.timeout_s = 2;
    late_arm(&(late_fault){LATE_SUM, 1, 1, DP_OK, 0, 1, 0});
    assert_int_equal(dp_collective_all_reduce(v.c, v.x, v.y, &err), DP_ETIMEOUT);
    assert_non_null(strstr(err.text, "device 1: reduce"));
    late_release();
    world_close(&v);
}

/* No memory for the result: the call fails, and so do all after it. */
static void no_memory_for_a_result(void **state)
{
    dp_error err;
    world v;
    (void)state;
    world_open(&v, late_backend(&(late_options){.seed = 6}), 3, NULL, 0, 100);
    put(&v, v.x, NULL, 100, 1);
    late_arm(&(late_fault){LATE_ALLOC, 2, 1, DP_ENOMEM, 1, 0, 0});
    assert_int_equal(dp_collective_all_reduce(v.c, v.x, v.y, &err), DP_ENOMEM);
    assert_int_equal(err.device, 2);
    assert_int_equal(dp_collective_barrier(v.c, &err), DP_ENOMEM);
    world_close(&v);

    world_open(&v, late_backend(&(late_options){.seed = 6}), 3, NULL, 0, 100);
    dp_collective *second = NULL;
    late_arm(&(late_fault){LATE_ALLOC, 1, 1, DP_ENOMEM, 1, 0, 0});
    assert_int_equal(dp_collective_open(&second, v.group, NULL, 0, 100, &err), DP_ENOMEM);
    assert_null(second);
    world_close(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BY_ALL_ROUTES(sums_are_those_of_the_halving_tree),
        BY_ALL_ROUTES(copies_bring_the_same_bytes),
        BY_ALL_ROUTES(uneven_rows_of_any_type_are_joined),
        BY_ALL_ROUTES(some_of_the_devices),
        BY_ALL_ROUTES(calls_follow_each_other),
        BY_ALL_ROUTES(bytes_are_those_of_the_table),
        ON(wrong_arguments_harm_nothing),
        cmocka_unit_test(a_failing_device_ends_the_call),
        cmocka_unit_test(a_dying_device_is_named),
        cmocka_unit_test(a_hanging_device_is_named),
        cmocka_unit_test(no_memory_for_a_result),
    };
    return cmocka_run_group_tests(tests, rig_warm_up, NULL);
}
