/* Internal: how the devices of a group get at each other's memory (devices.transport). One table for all of them, written while no job is in
 * flight: all agree on who publishes what for whom. The route decides how bytes travel, never which are added in which order. */
#ifndef DP_GROUP_LINKS_H
#define DP_GROUP_LINKS_H
#include "group.h"

enum {
    DP_ROUTE_HOST, /* through host memory: the owner copies to it, the reader from it */
    DP_ROUTE_COPY, /* a copy out of the owner's memory, then kernels read that */
    DP_ROUTE_PEER, /* kernels read the owner's memory */
    DP_ROUTES
};
typedef struct dp_pair {
    int route, best; /* in use; the most direct one that was found to work */
    int link_class,
        fastest; /* pairs of about one rate, 0 the fastest, and their fastest route; -1: not measured, or no access */
    double seconds[DP_ROUTES][2]; /* for the two sizes, sums included; 0: not measured */
} dp_pair;
struct dp_links {
    int n;
    int64_t size[2]; /* bytes of the last measurement */
    dp_pair pair[];  /* [reader][owner] */
};

/* links.c: tests every pair, by copy and by kernel, and sets the routes. With transport = peer or copy a pair that cannot is an error. */
dp_status dp_links_open(dp_group *g, const dp_config *c, dp_error *err);
/* transport = auto: the fastest route for pieces of so many bytes, for each class of links, by measurement. Where it cannot matter nothing is
 * measured: devices that share one memory, and less than 1 MB in all. Nor with deterministic = 1. */
dp_status dp_links_choose(dp_group *g, const dp_config *c, int64_t all_bytes, int64_t piece, dp_error *err);
/* links_rate.c: fills in `seconds`: a sixteenth of `bytes`, and `bytes`. */
dp_status dp_links_measure(dp_group *g, int64_t bytes, dp_error *err);

/* Classes and their fastest routes from `seconds`; changes no route. */
void dp_links_pick(dp_links *l, int64_t piece);

static inline int dp_route(const dp_group *g, int reader, int owner)
{
    return g->links ? g->links->pair[reader * g->n + owner].route : DP_ROUTE_PEER;
}
static inline int dp_reaches(const dp_group *g, int reader, int owner) /* not only through the host */
{
    return dp_route(g, reader, owner) != DP_ROUTE_HOST;
}
int dp_reached(const dp_group *g, int owner); /* by all */
int dp_all_reach(const dp_group *g);
#endif
