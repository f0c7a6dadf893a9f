/* Internal: collectives. The caller's side (collective.c) checks and describes a call, the members' side (collective_run.c) launches it. */
#ifndef DP_GROUP_COLLECTIVE_H
#define DP_GROUP_COLLECTIVE_H
#include "links.h"
#include "parts.h"
#include "signal.h"

enum { DP_BLOCK = 16 }; /* floats, as the backends' sums want them; arrays have room for whole blocks */

typedef enum dp_portion { DP_NOTHING, DP_WHOLE, DP_PART } dp_portion; /* of the whole array: what a member gives or gets */

typedef struct dp_collective_kind {
    const char *name;
    int phase;
    int sums;     /* what is given is floats, added up */
    int in_place; /* a member may get its array where it gives it */
    dp_portion give, get;
    int give_root, get_root; /* only the root does */
} dp_collective_kind;

typedef struct dp_collective_call { /* members are numbered by rank: their order in the set */
    const dp_collective_kind *kind;
    int root;                          /* -1: none */
    dp_rows from[DP_MAX_DEVICES];      /* what is given, as it was at the call */
    dp_array *to[DP_MAX_DEVICES];      /* NULL: gets nothing */
    dp_rows whole;                     /* shape of the array before it is cut or after it is joined */
    int64_t first;                     /* position of its row 0 in the batch */
    int64_t begin[DP_MAX_DEVICES + 1]; /* rows begin[r] .. begin[r + 1] - 1 are the part of member r */
} dp_collective_call;

struct dp_collective {
    dp_group *group;
    int n, member[DP_MAX_DEVICES]; /* devices, ascending */
    int rank[DP_MAX_DEVICES];      /* of a device; -1: not a member */
    int64_t max_count;
    float *scratch[DP_MAX_DEVICES];   /* (share) of each member: the sum of its slice, where it has no array for it */
    int64_t share;                    /* the largest slice of max_count elements */
    char *mirror[DP_MAX_DEVICES];     /* of each member that some other does not reach: its array, in page-locked host memory */
    float *inbox[DP_MAX_DEVICES];     /* (n - 1, share) of each member whose kernels do not read all others */
    dp_signal given[DP_MAX_DEVICES];  /* of each member: what it gives is in its mirror; value: the job */
    dp_signal ready[DP_MAX_DEVICES];  /* of each member: its slice stands in its memory; value: the job */
    dp_be_event *end[DP_MAX_DEVICES]; /* of each member's part of the job */
    dp_collective_call
        call; /* the job in flight: here, since workers may be in it after a caller whose wait timed out has gone */
};

/* collective_run.c: the job of a call, and whether it has ended. */
dp_status dp_collective_run(void *collective, dp_worker *w, uint64_t seq, dp_error *err);
int dp_collective_ended(void *collective, dp_worker *w, uint64_t seq);
int64_t dp_collective_share(int64_t count, int parts); /* the largest slice of so many elements */
#endif
