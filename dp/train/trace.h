/* Internal: the spans of a run's first batches, and trace.json, which they become. */
#ifndef DP_TRAIN_TRACE_H
#define DP_TRAIN_TRACE_H
#include "../dp.h"

enum { DP_TRACE_BATCHES = 200, DP_TRACE_DEVICES = 64 };
typedef struct dp_trace {
    int on, batches;
    int lost; /* memory ran out */
    dp_span *span;
    int64_t n, room;
} dp_trace;

/* run.trace: after the run directory was entered; after every batch that was waited for; at the end. Without it the
 * later two do nothing. */
void dp_trace_begin(dp_trainer *t);
void dp_trace_batch(dp_trainer *t);
void dp_trace_end(dp_trainer *t);
#endif
