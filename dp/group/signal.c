/* Signals: a counter for the threads and an event for the streams. */
#include "signal.h"

dp_status dp_signal_open(dp_signal *s, dp_worker *owner, dp_error *err)
{
    atomic_init(&s->count, 0);
    for (int i = 0; i < DP_SIGNAL_RING; i++) DP_TRY(owner->group->backend->event_open(owner->be, &s->event[i], err));
    return DP_OK;
}

void dp_signal_close(dp_signal *s, dp_worker *owner)
{
    for (int i = 0; !dp_lost(owner) && i < DP_SIGNAL_RING; i++)
        if (s->event[i]) owner->group->backend->event_close(s->event[i]), s->event[i] = NULL;
}

dp_status dp_signal_record(dp_signal *s, dp_worker *owner, uint64_t value, dp_error *err)
{
    dp_status status = owner->group->backend->record(owner->stream, s->event[value % DP_SIGNAL_RING]);
    return status ? dp_fail(err, status, "Recording an event failed.") : DP_OK;
}

void dp_signal_tell(dp_signal *s, dp_worker *owner, uint64_t value)
{
    dp_raise(owner->group, &s->count, value);
}

dp_status dp_signal_raise(dp_signal *s, dp_worker *owner, uint64_t value, dp_error *err)
{
    DP_TRY(dp_signal_record(s, owner, value, err));
    dp_signal_tell(s, owner, value);
    return DP_OK;
}

int dp_signal_ready(const dp_signal *s, uint64_t value)
{
    return atomic_load_explicit(&s->count, memory_order_acquire) >= value;
}

dp_status dp_signal_wait(dp_signal *s, dp_worker *w, uint64_t value, const char *what, dp_error *err)
{
    dp_record before;
    DP_TRY(dp_await(w->group, w, &s->count, value, what, err));
    int apart = dp_stream_waits(w, &before);
    dp_status status = w->group->backend->wait(w->stream, s->event[value % DP_SIGNAL_RING]);
    if (apart) dp_stream_goes_on(w, &before);
    return status ? dp_fail(err, status, "Waiting for an event failed.") : DP_OK;
}
