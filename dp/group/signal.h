/* Internal: a step counter that one worker raises and others wait for, with the device event that goes with it. Not a boolean: a
 * waiter wants count >= value. The event of value v is event[v % DP_SIGNAL_RING]; workers are never more than DP_RUN_AHEAD values
 * apart, so that an event is recorded anew only after everybody who wants its old meaning has issued the wait. */
#ifndef DP_GROUP_SIGNAL_H
#define DP_GROUP_SIGNAL_H
#include "group.h"

enum { DP_SIGNAL_RING = DP_RUN_AHEAD + 2 };
typedef struct dp_signal {
    _Atomic uint64_t count;
    dp_be_event *event[DP_SIGNAL_RING];
} dp_signal;

dp_status dp_signal_open(dp_signal *s, dp_worker *owner, dp_error *err); /* on the owner's thread */
void dp_signal_close(dp_signal *s, dp_worker *owner);                    /* on the owner's thread */
/* Everything in the owner's stream (of the lane it is in) up to here belongs to `value`. */
dp_status dp_signal_raise(dp_signal *s, dp_worker *owner, uint64_t value, dp_error *err);
/* Its two halves: the event, and the word to the other threads, which only follows what has been launched. */
dp_status dp_signal_record(dp_signal *s, dp_worker *owner, uint64_t value, dp_error *err);
void dp_signal_tell(dp_signal *s, dp_worker *owner, uint64_t value);
int dp_signal_ready(const dp_signal *s, uint64_t value); /* 1: a wait would not stop the thread */
/* The stream of w goes on only after `value`; the thread waits until the owner has launched it. */
dp_status dp_signal_wait(dp_signal *s, dp_worker *w, uint64_t value, const char *what, dp_error *err);
#endif
