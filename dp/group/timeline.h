/* Internal: what a worker did when. Its ring is written by the worker alone; a reader takes the records up to a position that the
 * worker published by raising its `done` counter after them. */
#ifndef DP_GROUP_TIMELINE_H
#define DP_GROUP_TIMELINE_H
#include <stdint.h>

enum { DP_RECORDS = 4096 }; /* of the jobs in flight; later ones overwrite the oldest */
typedef struct dp_record {
    int32_t phase;             /* DP_PHASE_ */
    double begin, end;         /* seconds, CLOCK_MONOTONIC */
    double waited;             /* of that: seconds in which it stood still for another device */
    int64_t received;          /* bytes from other devices */
    int64_t host_in, host_out; /* bytes from and to the host */
} dp_record;
typedef struct dp_timeline {
    dp_record record[DP_RECORDS];
    uint64_t written;  /* records so far */
    uint64_t mark[8];  /* written at the end of job seq % 8, published by `done` */
    dp_record current; /* being measured; phase < 0: none */
} dp_timeline;
#endif
