// Events. A record makes a new generation at the time of the call; a wait is for the generation that there is at the time of its call, and
// for nothing where none was ever recorded.
#include "internal.h"

namespace cusim {

static std::set<cudaEvent_t> &events = *new std::set<cudaEvent_t>;

void check_event(cudaEvent_t e)
{
    if (!events.count(e)) die("an event is used that was destroyed or never made");
}
static void check(cudaEvent_t e)
{
    Lock l(world);
    check_event(e);
}

void finish_gen(Gen &g)
{
    g.done = true;
    g.at = now_ms();
    g.cv.notify_all();
}

void wait_gen(Lock &l, Gen &g)
{
    while (!g.done) g.cv.wait(l);
}

static cudaError_t create(cudaEvent_t *out, unsigned flags)
{
    if (flags & ~(unsigned)(cudaEventBlockingSync | cudaEventDisableTiming)) die("event flags %u are not modelled", flags);
    auto *e = new CUevent_st{};
    Lock l(world);
    e->device = &here();
    e->timing = !(flags & cudaEventDisableTiming);
    events.insert(e);
    counters.events++;
    counters.live_events++;
    *out = e;
    return cudaSuccess;
}

static cudaError_t record(cudaEvent_t e, cudaStream_t s, unsigned flags)
{
    check(e);
    check_stream(s);
    Lock l(world);
    if (s->device->error) return s->device->error;
    if (e->device != s->device) return cudaErrorInvalidResourceHandle;
    if (s->capture && !(flags & cudaEventRecordExternal)) { // an edge of the graph, no work
        if (s->capture->broken) return cudaErrorStreamCaptureInvalidated;
        e->capture = s->capture;
        e->front = s->front;
        return cudaSuccess;
    }
    if (!s->capture && (flags & cudaEventRecordExternal)) return cudaErrorInvalidValue;
    if (s->capture) {
        l.unlock();
        return submit(s, Op{Kind::mark, "event", {}, e});
    }
    auto g = std::make_shared<Gen>();
    e->gen = g;
    e->capture = nullptr;
    l.unlock();
    return submit(s, Op{Kind::mark, "event", [g] {
                            hb_release(g.get());
                            Lock w(world);
                            finish_gen(*g);
                        }});
}

static cudaError_t wait_captured(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    if (flags & cudaEventWaitExternal) die("a wait for an external event in a capture is not modelled: wait outside the graph");
    if (s->capture && s->capture->broken) return cudaErrorStreamCaptureInvalidated;
    if (!e->capture || (s->capture && e->capture != s->capture)) { // work of the capture would wait for work outside of it
        if (!e->capture && !e->gen) die("a wait in a capture for an event that was never recorded is not modelled");
        s->capture->broken = true;
        return cudaErrorStreamCaptureIsolation;
    }
    if (e->capture->ended) return cudaErrorStreamCaptureIsolation;
    if (!s->capture) { // joins it; work that it has already stays outside
        s->capture = e->capture;
        s->front.clear();
        e->capture->streams.push_back(s);
    }
    for (int n : e->front) s->front.push_back(n);
    return cudaSuccess;
}

} // namespace cusim

using namespace cusim;

API cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    ENTER(CONTEXT | ALIVE);
    return create(e, flags);
}
API cudaEventCreate(cudaEvent_t *e)
{
    ENTER(CONTEXT | ALIVE);
    return create(e, cudaEventDefault);
}
API cudaEventDestroy(cudaEvent_t e)
{
    ENTER(CONTEXT);
    check(e);
    Lock l(world);
    events.erase(e);
    counters.live_events--;
    const cudaError_t error = e->device->error;
    delete e;
    return result(error);
}

API cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags)
{
    ENTER(CONTEXT);
    return result(record(e, s, flags));
}
API cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    ENTER(CONTEXT);
    return result(record(e, s, cudaEventRecordDefault));
}

API cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    ENTER(CONTEXT);
    check(e);
    check_stream(s);
    Lock l(world);
    if (s->device->error) return result(s->device->error);
    if (s->capture || e->capture) return result(wait_captured(s, e, flags));
    const std::shared_ptr<Gen> g = e->gen;
    l.unlock();
    if (!g) return cudaSuccess;
    return result(submit(s, Op{Kind::mark, "wait", [g] {
                                   {
                                       Lock w(world);
                                       wait_gen(w, *g);
                                   }
                                   hb_acquire(g.get());
                               }}));
}

static cudaError_t passed(cudaEvent_t e, bool wait)
{
    check(e);
    std::shared_ptr<Gen> g;
    {
        Lock l(world);
        if (e->device->error) return e->device->error;
        if (e->capture) {
            e->capture->broken = true;
            return cudaErrorCapturedEvent;
        }
        g = e->gen;
        if (!g) return cudaSuccess;
        if (wait) wait_gen(l, *g);
        if (e->device->error) return e->device->error;
        if (!g->done) return cudaErrorNotReady;
    }
    hb_acquire(g.get());
    return cudaSuccess;
}
API cudaEventQuery(cudaEvent_t e)
{
    ENTER(CONTEXT);
    return result(passed(e, false));
}
API cudaEventSynchronize(cudaEvent_t e)
{
    ENTER(CONTEXT | BLOCKS);
    return result(passed(e, true));
}

API cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)
{
    ENTER(CONTEXT);
    check(a);
    check(b);
    Lock l(world);
    if (a->device->error) return result(a->device->error);
    if (a->device != b->device || !a->timing || !b->timing || !a->gen || !b->gen) return result(cudaErrorInvalidResourceHandle);
    if (!a->gen->done || !b->gen->done) return result(cudaErrorNotReady);
    *ms = (float)(b->gen->at - a->gen->at);
    return cudaSuccess;
}
