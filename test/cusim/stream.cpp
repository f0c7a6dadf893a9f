// Streams: each is a thread with a queue. Its work begins whenever it likes, which CUSIM_JITTER_US makes late.
#include "internal.h"
#include "fiber.h"
#include <algorithm>
#include <unistd.h>

namespace cusim {

constexpr size_t QUEUE = 1024; // a launch waits while so many are queued
static std::set<cudaStream_t> &streams = *new std::set<cudaStream_t>;
static std::condition_variable &idle = *new std::condition_variable; // some stream has nothing left to do

cudaError_t check_stream(cudaStream_t s)
{
    if (!s || s == cudaStreamLegacy || s == cudaStreamPerThread) die("the default stream is not modelled: pass a stream of your own");
    Lock l(world);
    if (!streams.count(s)) die("a stream is used that was destroyed or never made");
    return cudaSuccess;
}

static void jitter()
{
    static const int most = env_int("CUSIM_JITTER_US", 0);
    if (most > 0) usleep(random_below((unsigned)most));
}

void execute(Device &d, const Op &op)
{
    if (op.kind != Kind::mark) {
        jitter();
        Lock l(world);
        before_work(l, d);
        if (d.error) return;
    }
    if (op.kind == Kind::kernel) { // stays hidden between blocks
        op.work();
        return;
    }
    if (op.kind == Kind::mark) {
        op.work();
        return;
    }
    Visible v;
    op.work();
}

static void *serve(void *argument)
{
    Hidden h;
    cudaStream_t s = (cudaStream_t)argument;
    Lock l(world);
    for (;;) {
        while (s->queue.empty() && !s->closing) s->work.wait(l);
        if (s->queue.empty()) break;
        std::shared_ptr<Op> op = std::move(s->queue.front());
        s->queue.pop_front();
        s->busy = true;
        s->room.notify_one();
        l.unlock();
        hb_acquire(op.get());
        execute(*s->device, *op);
        op.reset();
        hb_release(s->hb);
        hb_release(s->device->hb);
        l.lock();
        s->busy = false;
        if (s->queue.empty()) idle.notify_all();
    }
    s->device->streams.erase(s);
    l.unlock();
    graph_end();
    fibers_end();
    delete s;
    return nullptr;
}

static void count(const Op &op, bool captured)
{
    if (captured || op.kind == Kind::mark) return;
    (op.kind == Kind::kernel  ? counters.launches
     : op.kind == Kind::library ? counters.library_calls
     : op.kind == Kind::copy    ? counters.copies
                                : counters.fills) += op.kind != Kind::host;
}

cudaError_t submit(cudaStream_t s, Op op)
{
    auto shared = std::make_shared<Op>(std::move(op));
    hb_release(shared.get());
    Lock l(world);
    count(*shared, s->capture != nullptr);
    if (s->capture) {
        Capture &c = *s->capture;
        if (c.broken) return cudaErrorStreamCaptureInvalidated;
        const int branch = (int)(std::find(c.streams.begin(), c.streams.end(), s) - c.streams.begin());
        c.nodes.push_back(Node{*shared, s->front, branch});
        s->front.assign(1, (int)c.nodes.size() - 1);
        return cudaSuccess;
    }
    while (s->queue.size() >= QUEUE && !s->device->error) s->room.wait(l);
    s->queue.push_back(std::move(shared));
    s->work.notify_one();
    return cudaSuccess;
}

void synchronize(cudaStream_t s)
{
    {
        Lock l(world);
        while (s->busy || !s->queue.empty()) idle.wait(l);
    }
    hb_acquire(s->hb);
}

void drain(Device &d)
{
    {
        Lock l(world);
        const auto busy = [&] {
            for (cudaStream_t s : d.streams)
                if (s->busy || !s->queue.empty()) return true;
            return false;
        };
        while (busy()) idle.wait(l);
    }
    hb_acquire(d.hb);
}

cudaStream_t make_stream(unsigned flags, int priority)
{
    if (flags != cudaStreamNonBlocking) die("a stream that waits for the default stream is not modelled: cudaStreamNonBlocking");
    auto *s = new CUstream_st{};
    pthread_attr_t detached; // destroying a stream waits for nothing, and joining would make an order
    pthread_t thread;
    s->priority = priority;
    Lock l(world);
    s->device = &here();
    s->device->streams.insert(s);
    streams.insert(s);
    l.unlock();
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &detached, serve, s)) die("no thread for a stream");
    pthread_attr_destroy(&detached);
    return s;
}

void close_stream(Lock &, cudaStream_t s)
{
    streams.erase(s);
    s->closing = true;
    s->work.notify_one();
}

static cudaError_t create(cudaStream_t *out, unsigned flags, int priority)
{
    *out = make_stream(flags, priority);
    Lock l(world);
    counters.streams++;
    counters.live_streams++;
    return cudaSuccess;
}

} // namespace cusim

using namespace cusim;

API cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority)
{
    ENTER(CONTEXT | ALIVE);
    return create(s, flags, priority);
}
API cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    ENTER(CONTEXT | ALIVE);
    return create(s, flags, 0);
}
API cudaStreamCreate(cudaStream_t *s)
{
    ENTER(CONTEXT | ALIVE);
    return create(s, cudaStreamDefault, 0);
}

API cudaStreamDestroy(cudaStream_t s)
{
    ENTER(CONTEXT);
    check_stream(s);
    Lock l(world);
    if (s->capture) die("a stream is destroyed while it is captured");
    const cudaError_t error = s->device->error;
    counters.live_streams--;
    close_stream(l, s);
    return result(error);
}

API cudaStreamSynchronize(cudaStream_t s)
{
    ENTER(CONTEXT | BLOCKS);
    check_stream(s);
    if (s->capture) {
        Lock l(world);
        s->capture->broken = true;
        return result(cudaErrorStreamCaptureUnsupported);
    }
    if (!s->device->error) synchronize(s);
    Lock l(world);
    return result(s->device->error);
}

API cudaStreamQuery(cudaStream_t s)
{
    ENTER(CONTEXT);
    check_stream(s);
    {
        Lock l(world);
        if (s->capture) {
            s->capture->broken = true;
            return result(cudaErrorStreamCaptureUnsupported);
        }
        if (s->device->error) return result(s->device->error);
        if (s->busy || !s->queue.empty()) return result(cudaErrorNotReady);
    }
    hb_acquire(s->hb);
    return cudaSuccess;
}

API cudaStreamGetPriority(cudaStream_t s, int *priority)
{
    ENTER(CONTEXT);
    check_stream(s);
    *priority = s->priority;
    return cudaSuccess;
}
API cudaStreamGetFlags(cudaStream_t s, unsigned *flags)
{
    ENTER(CONTEXT);
    check_stream(s);
    *flags = cudaStreamNonBlocking;
    return cudaSuccess;
}

API cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *data)
{
    ENTER(CONTEXT);
    check_stream(s);
    if (s->device->error) return result(s->device->error);
    return result(submit(s, Op{Kind::host, "host function", [f, data] { f(data); }}));
}

API cudaDeviceSynchronize(void)
{
    ENTER(CONTEXT | ALIVE | UNSAFE | BLOCKS);
    drain(here());
    Lock l(world);
    return result(here().error);
}
