/* Internal: what a worker did when. A device has lanes, each with a stream: computation, and communication beside it. A worker is in
 * one lane at a time: what it launches goes to that lane's stream and is booked there.
 *
 * Where streams run in line a host clock times the work. Elsewhere every change of phase leaves an event in its lane, and times are read
 * from the events when the job has ended. The ring is written by the worker alone; a reader takes the records up to the position that
 * the worker published by raising its `done` counter after them. */
#ifndef DP_GROUP_TIMELINE_H
#define DP_GROUP_TIMELINE_H
#include "../../nn/backend.h"
#include "../dp.h"
#include <stdint.h>

enum { DP_RECORDS = 4096 }; /* of the jobs in flight; later ones overwrite the oldest */
enum { DP_MARKS = 256 };    /* events of a lane; what does not fit joins the phase before */
typedef struct dp_record {
    int32_t lane, phase; /* DP_PHASE_; < 0: none */
    int32_t bucket;      /* -1: none */
    uint64_t job;
    int64_t step;              /* training batch; -1: none */
    uint64_t mark[2];          /* events of begin and end, until they are read */
    double begin, end;         /* seconds, CLOCK_MONOTONIC */
    double waited;             /* of that: seconds in which the thread stood still for another device */
    int64_t received;          /* bytes from other devices */
    int64_t host_in, host_out; /* bytes from and to the host */
    uint64_t peers;            /* bit d: received from device d */
    const char *layer;         /* run.trace = layer; else "" */
} dp_record;
typedef struct dp_timeline {
    dp_record record[DP_RECORDS];
    uint64_t written;            /* records so far */
    uint64_t read;               /* ... whose times are known */
    uint64_t mark[8];            /* written at the end of job seq % 8, published by `done` */
    dp_record current[DP_LANES]; /* being measured; phase < 0: none */
    dp_be_event *event[DP_LANES][DP_MARKS];
    uint64_t marks[DP_LANES], free[DP_LANES]; /* recorded so far; below: may be recorded anew */
    uint64_t seen[DP_LANES];                  /* marks that are known to have passed: all that is known once a device is lost */
    uint64_t job;
    int64_t step;
    dp_status failed; /* a mark could not be left */
    int by_layer;     /* a record a layer */
} dp_timeline;
#endif
