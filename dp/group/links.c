/* Who gets at whose memory, and how. What a driver says of a pair is not believed: each device reads a pattern from every peer that it is
 * said to reach, by a copy and by a kernel, and looks at what came (P35, P36). Wrong bytes: that pair goes through the host, or, if only
 * kernels are wrong, by copies; which is said once. A read that does not end has wedged its device: open fails and advises to go through
 * the host. Devices that share one memory need no test.
 *
 * What is best differs: kernels that read a peer need no memory and no second pass, and win where links are fast; copy engines reach more
 * of a PCIe link and leave the multiprocessors alone; on many a board without links two copies through the host beat both. */
#include "links.h"
#include "../base/config.h"
#include "../base/text.h"
#include <stdlib.h>
#include <string.h>

enum { BYTES = 65536 };
enum { AUTO, PEER, COPY, HOST }; /* in the order of keys.c */
static const double limit_s = 5;

int dp_reached(const dp_group *g, int owner)
{
    for (int d = 0; d < g->n; d++)
        if (!dp_reaches(g, d, owner)) return 0;
    return 1;
}

int dp_all_reach(const dp_group *g)
{
    for (int d = 0; d < g->n; d++)
        if (!dp_reached(g, d)) return 0;
    return 1;
}

static const char *name_of(const dp_group *g, int d, char *buf, size_t size)
{
    dp_device_info info;
    dp_group_device(g, d, &info);
    dp_format(buf, size, info.pci[0] ? "%s (%s)" : "%s", info.name, info.pci);
    return buf;
}

/* ---- the test: on the workers ---- */

enum { LAY_OUT, READ, GIVE_BACK };
enum { BY_COPY, BY_KERNEL, WAYS };
typedef struct peer_test {
    dp_group *group;
    int step, host_only;
    void *memory[DP_MAX_DEVICES]; /* (1 + WAYS, BYTES): a pattern; what was read of others */
    uint8_t *host;                /* [device] the pattern; then [device][way] what came */
    uint8_t *wrong;               /* [reader][owner][way] */
} peer_test;

static void pattern(uint8_t *p, int device)
{
    uint32_t x = 2654435761u * (uint32_t)(device + 1);
    for (int i = 0; i < BYTES; i++) {
        x = x * 1664525u + 1013904223u;
        p[i] = (uint8_t)(x >> 24);
    }
}

/* Polls: nothing that could stand still for ever is called before this has said that all has ended. */
static dp_status finish(dp_worker *w, int from, dp_error *err)
{
    const dp_group *g = w->group;
    const dp_backend *b = g->backend;
    char owner[64], reader[64];
    double begin = dp_now(), limit = limit_s < g->list.timeout_s ? limit_s : g->list.timeout_s;
    int done = 0;
    dp_status status = b->record(w->stream, w->finish);
    while (!status && (done = b->done(w->finish)) == 0 && dp_now() - begin < limit) continue;
    if (!status && done < 0) status = (dp_status)-done;
    if (!status && !done) status = DP_ETIMEOUT;
    return status ? dp_fail(err, status,
                            "A test read of the memory of %s by %s did not end (%s). Access control (ACS) or an IOMMU between "
                            "them may break it: set devices.transport = host.",
                            name_of(g, from, owner, sizeof owner), name_of(g, w->device, reader, sizeof reader),
                            dp_status_name(status))
                  : DP_OK;
}

static dp_status lay_out(peer_test *t, dp_worker *w, dp_error *err)
{
    dp_group *g = t->group;
    const dp_backend *b = g->backend;
    int me = w->device;
    uint8_t *mine = t->host + (size_t)me * BYTES;
    for (int d = 0; d < g->n; d++) {
        int reads = d == me || (!t->host_only && b->reads_peer(w->be, g->worker[d].be));
        g->links->pair[me * g->n + d].best = reads ? DP_ROUTE_PEER : DP_ROUTE_HOST;
    }
    if (b->in_line || g->n == 1) return DP_OK;
    DP_TRY(b->alloc(w->be, DP_MEM_STAGING, (1 + WAYS) * BYTES, "memory to test peers", &t->memory[me], err));
    pattern(mine, me);
    dp_status status = b->copy(w->stream, t->memory[me], mine, BYTES);
    return status ? dp_fail(err, status, "A copy of %d bytes failed.", BYTES) : finish(w, me, err);
}

/* A sum of one array is the same bytes, and a kernel has read them. */
static dp_status read_one(peer_test *t, dp_worker *w, int owner, dp_error *err)
{
    const dp_backend *b = w->group->backend;
    int me = w->device, n = w->group->n;
    char *mine = t->memory[me];
    uint8_t *came = t->host + (size_t)(n + me * WAYS) * BYTES;
    const float *theirs = t->memory[owner];
    dp_status status = b->copy(w->stream, mine + BYTES, theirs, BYTES);
    if (!status) status = b->sum(w->stream, (float *)(void *)(mine + 2 * BYTES), &theirs, 1, BYTES / 4);
    if (status) return dp_fail(err, status, "Device %d cannot read the memory of device %d.", me, owner);
    DP_TRY(finish(w, owner, err));
    status = b->copy(w->stream, came, mine + BYTES, WAYS * BYTES);
    if (status) return dp_fail(err, status, "A copy of %d bytes failed.", WAYS * BYTES);
    DP_TRY(finish(w, me, err));
    for (int way = 0; way < WAYS; way++)
        t->wrong[(me * n + owner) * WAYS + way] = memcmp(came + (size_t)way * BYTES, t->host + (size_t)owner * BYTES, BYTES) !=
                                                  0;
    return DP_OK;
}

static dp_status run_test(void *user, dp_worker *w, uint64_t seq, dp_error *err)
{
    peer_test *t = user;
    dp_group *g = t->group;
    int me = w->device;
    (void)seq;
    if (t->step == LAY_OUT) return lay_out(t, w, err);
    if (t->step == GIVE_BACK) {
        if (!dp_lost(w)) g->backend->free(w->be, DP_MEM_STAGING, t->memory[me], (1 + WAYS) * BYTES);
        return DP_OK;
    }
    for (int i = 1; i < g->n && t->memory[me]; i++) {
        int d = (me + i) % g->n;
        if (g->links->pair[me * g->n + d].best == DP_ROUTE_PEER) DP_TRY(read_one(t, w, d, err));
    }
    return DP_OK;
}

static void take_out_wrong(dp_group *g, const dp_config *c, const peer_test *t)
{
    char reader[64], owner[64];
    for (int i = 0; i < g->n * g->n; i++) {
        dp_pair *p = &g->links->pair[i];
        const uint8_t *wrong = &t->wrong[i * WAYS];
        if (!wrong[BY_COPY] && !wrong[BY_KERNEL]) continue;
        p->best = wrong[BY_COPY] ? DP_ROUTE_HOST : DP_ROUTE_COPY;
        dp_log(c, DP_LOG_WARN,
               "Device %d reads wrong bytes from device %d%s, without an error (%s from %s); this pair goes %s. Access control "
               "(ACS) or an IOMMU between them may be why.",
               i / g->n, i % g->n, wrong[BY_COPY] ? "" : " by kernels", name_of(g, i / g->n, reader, sizeof reader),
               name_of(g, i % g->n, owner, sizeof owner), wrong[BY_COPY] ? "through the host" : "by copies");
    }
}

static dp_status test(dp_group *g, const dp_config *c, int host_only, dp_error *err)
{
    size_t n = (size_t)g->n;
    peer_test t = {.group = g, .host_only = host_only};
    dp_status status = DP_OK;
    t.host = dp_calloc(n * (1 + WAYS), BYTES);
    t.wrong = dp_calloc(n * n, WAYS);
    if (!t.host || !t.wrong) {
        status = dp_fail(err, DP_ENOMEM, "Out of host memory while opening devices.");
        goto done;
    }
    for (; t.step < GIVE_BACK && !status; t.step++) status = dp_group_call(g, (dp_job){.run = run_test, .user = &t}, err);
    t.step = GIVE_BACK;
    if (status == DP_ETIMEOUT || dp_group_closing(g, (dp_job){.run = run_test, .user = &t}, NULL)) {
        dp_group_leave(g); /* what hangs may still write to all this */
        return status;
    }
    if (!status) take_out_wrong(g, c, &t);
done:
    free(t.host);
    free(t.wrong);
    return status;
}

/* ---- the table ---- */

/* A limit of the driver, or a kind of GPU that has no such access: nothing is wrong, only slower. */
static void tell_unreachable(const dp_group *g, const dp_config *c)
{
    char reader[64], owner[64];
    int pairs = 0, first = 0;
    for (int i = g->n * g->n - 1; i >= 0; i--)
        if (g->links->pair[i].best == DP_ROUTE_HOST) pairs++, first = i;
    if (pairs)
        dp_log(c, DP_LOG_INFO,
               "%d of %d pairs of devices have no access to the other's memory and go through the host; the first: %s from %s.",
               pairs, g->n * (g->n - 1), name_of(g, first / g->n, reader, sizeof reader),
               name_of(g, first % g->n, owner, sizeof owner));
}

dp_status dp_links_open(dp_group *g, const dp_config *c, dp_error *err)
{
    int pairs = g->n * g->n, wanted = dp_config_choice(c, "devices.transport"), missing = 0;
    g->links = dp_calloc(1, sizeof *g->links + (size_t)pairs * sizeof *g->links->pair);
    if (!g->links) return dp_fail(err, DP_ENOMEM, "Out of host memory while opening devices.");
    g->links->n = g->n;
    DP_TRY(test(g, c, wanted == HOST, err));
    for (int i = 0; i < pairs; i++) {
        dp_pair *p = &g->links->pair[i];
        p->link_class = p->fastest = -1;
        p->route = wanted == COPY && p->best == DP_ROUTE_PEER && i / g->n != i % g->n ? DP_ROUTE_COPY : p->best;
        missing |= p->best < (wanted == PEER ? DP_ROUTE_PEER : DP_ROUTE_COPY);
    }
    if (missing && (wanted == PEER || wanted == COPY))
        return dp_fail(err, DP_ECONFIG, "devices.transport = %s: not every device can read the others; use auto or host.",
                       wanted == PEER ? "peer" : "copy");
    if (wanted == AUTO) tell_unreachable(g, c);
    return DP_OK;
}

/* ---- the choice ---- */

static double best_rate(const dp_links *l, int i) /* of both directions of a pair, so that they are of one class */
{
    int reader = i / l->n, owner = i % l->n, both[2] = {i, owner * l->n + reader};
    double best = 0;
    for (int k = 0; k < 2; k++)
        for (int route = DP_ROUTE_COPY; route <= DP_ROUTE_PEER; route++) {
            double seconds = l->pair[both[k]].seconds[route][1];
            if (seconds > 0 && (double)l->size[1] / seconds > best) best = (double)l->size[1] / seconds;
        }
    return best;
}

static int unclassed(const dp_links *l, int i)
{
    return l->pair[i].link_class < 0 && l->pair[i].best > DP_ROUTE_HOST;
}

/* The fastest pair that is in no class yet, and all that are more than half as fast. Kinds of links are further apart than that. */
static int next_class(dp_links *l, int link_class)
{
    double most = 0;
    for (int i = 0; i < l->n * l->n; i++)
        if (unclassed(l, i) && best_rate(l, i) > most) most = best_rate(l, i);
    for (int i = 0; most > 0 && i < l->n * l->n; i++)
        if (unclassed(l, i) && best_rate(l, i) > most / 2) l->pair[i].link_class = link_class;
    return most > 0;
}

static double seconds_of(const dp_links *l, const dp_pair *p, int route, int64_t piece)
{
    double at = (double)(piece - l->size[0]) / (double)(l->size[1] - l->size[0]);
    at = at < 0 ? 0 : at > 1 ? 1 : at;
    return p->seconds[route][0] + at * (p->seconds[route][1] - p->seconds[route][0]);
}

/* Seconds of each route over the pairs of a class, and how many there are. */
static int add_up(const dp_links *l, int link_class, int64_t piece, double *sum)
{
    int pairs = 0;
    memset(sum, 0, DP_ROUTES * sizeof *sum);
    for (int i = 0; i < l->n * l->n; i++) {
        if (l->pair[i].link_class != link_class) continue;
        for (int route = 0; route < DP_ROUTES; route++) sum[route] += seconds_of(l, &l->pair[i], route, piece);
        pairs++;
    }
    return pairs;
}

/* A tenth is noise: the more direct one stays, so that runs differ less. */
static int fastest(const dp_links *l, int link_class, int64_t piece)
{
    int works = DP_ROUTE_PEER, best = DP_ROUTE_HOST;
    double sum[DP_ROUTES];
    add_up(l, link_class, piece, sum);
    for (int i = 0; i < l->n * l->n; i++)
        if (l->pair[i].link_class == link_class && l->pair[i].best < works) works = l->pair[i].best;
    for (int route = DP_ROUTE_COPY; route <= works; route++)
        if (sum[route] < 1.1 * sum[best]) best = route;
    return best;
}

void dp_links_pick(dp_links *l, int64_t piece)
{
    for (int i = 0; i < l->n * l->n; i++) l->pair[i].link_class = l->pair[i].fastest = -1;
    for (int k = 0; next_class(l, k); k++) {
        int best = fastest(l, k, piece);
        for (int i = 0; i < l->n * l->n; i++)
            if (l->pair[i].link_class == k) l->pair[i].fastest = best;
    }
}

static const char *rate_text(char *buf, size_t size, double bytes, double seconds)
{
    if (seconds > 0)
        dp_format(buf, size, "%.3g GB/s", bytes / seconds / 1e9);
    else
        dp_format(buf, size, "-");
    return buf;
}

static void take_fastest(dp_group *g, const dp_config *c, int64_t piece)
{
    static const char *const what[DP_ROUTES] = {"through the host", "copies", "kernels"};
    dp_links *l = g->links;
    char text[DP_ROUTES][32];
    double sum[DP_ROUTES];
    for (int k = 0, pairs; (pairs = add_up(l, k, piece, sum)) > 0; k++) {
        int best = DP_ROUTE_HOST;
        for (int i = 0; i < l->n * l->n; i++)
            if (l->pair[i].link_class == k) best = l->pair[i].route = l->pair[i].fastest;
        for (int r = 0; r < DP_ROUTES; r++) rate_text(text[r], sizeof text[r], (double)piece * pairs, sum[r]);
        dp_log(c, DP_LOG_INFO,
               "%d pairs of devices of class %d: %s. Kernels that read the other's memory %s, copies %s, through the "
               "host %s.",
               pairs, k, what[best], text[DP_ROUTE_PEER], text[DP_ROUTE_COPY], text[DP_ROUTE_HOST]);
    }
}

dp_status dp_links_choose(dp_group *g, const dp_config *c, int64_t all_bytes, int64_t piece, dp_error *err)
{
    enum { MB = 1 << 20 };
    int some = 0;
    for (int i = 0; i < g->n * g->n; i++) some |= i / g->n != i % g->n && g->links->pair[i].best > DP_ROUTE_HOST;
    if (dp_config_choice(c, "devices.transport") != AUTO || dp_config_flag(c, "run.deterministic")) return DP_OK;
    if (!some || g->backend->in_line || all_bytes < MB) return DP_OK;
    DP_TRY(dp_links_measure(g, all_bytes < 16 * MB ? all_bytes : 16 * MB, err)); /* no more than the model takes itself */
    dp_links_pick(g->links, piece);
    take_fastest(g, c, piece);
    return DP_OK;
}

/* ---- what is told ---- */

enum { MEASURED = 4 << 20 };
dp_status dp_group_measure_links(dp_group *g, dp_error *err)
{
    if (!g) return dp_fail(err, DP_EARGUMENT, "dp_group_measure_links wants a group.");
    DP_TRY(dp_links_measure(g, MEASURED, err));
    if (!g->backend->in_line) dp_links_pick(g->links, MEASURED);
    return DP_OK;
}

int dp_group_link(const dp_group *g, int from, int to, dp_link *link)
{
    static const char *const kinds[DP_ROUTES] = {"host", "copy", "peer"};
    double rate[DP_ROUTES];
    if (!g || !link || from < 0 || to < 0 || from >= g->n || to >= g->n || from == to) return 0;
    const dp_pair *p = &g->links->pair[to * g->n + from];
    int in_line = g->backend->in_line, route = in_line ? DP_ROUTE_COPY : p->route;
    for (int i = 0; i < DP_ROUTES; i++) rate[i] = p->seconds[i][1] > 0 ? (double)g->links->size[1] / p->seconds[i][1] : 0;
    *link = (dp_link){.bytes = atomic_load_explicit(&g->worker[to].received[from], memory_order_relaxed),
                      .bytes_per_s = rate[route],
                      .by_peer = rate[DP_ROUTE_PEER],
                      .by_copy = rate[DP_ROUTE_COPY],
                      .by_host = rate[DP_ROUTE_HOST],
                      .link_class = p->link_class,
                      .fastest = p->fastest};
    dp_format(link->kind, sizeof link->kind, "%s", in_line ? "memory" : kinds[p->route]);
    return 1;
}
