// Capture of streams into graphs, and their launch. The nodes of a launch run one after the other, in an order drawn from those
// that their edges allow, each branch as a thread of its own: a missing edge shows as a race.
#include "internal.h"
#include "fiber.h"

struct CUgraph_st {
    std::vector<cusim::Node> nodes;
    cusim::Device *device;
};
struct CUgraphExec_st {
    std::vector<cusim::Node> nodes;
    cusim::Device *device;
    cudaGraph_t source; // its nodes name those of this one
    std::shared_ptr<cusim::Gen> last; // launches of one executable graph run one after the other
};

namespace cusim {

static auto &captures = *new std::vector<std::shared_ptr<Capture>>;
static auto &graphs = *new std::set<cudaGraph_t>;
static auto &executables = *new std::set<cudaGraphExec_t>;
static thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

// The capture that forbids unsafe calls to this thread; under world.
std::shared_ptr<Capture> capture_of_thread()
{
    if (mode_of_thread == cudaStreamCaptureModeRelaxed) return nullptr;
    for (const std::shared_ptr<Capture> &c : captures) {
        const bool own = pthread_equal(c->thread, pthread_self()) != 0;
        if (own && c->mode != cudaStreamCaptureModeRelaxed) return c;
        if (c->mode == cudaStreamCaptureModeGlobal && mode_of_thread == cudaStreamCaptureModeGlobal) return c;
    }
    return nullptr;
}

static bool joined(const Capture &c)
{
    std::vector<char> seen(c.nodes.size());
    std::vector<int> open = c.origin->front;
    while (!open.empty()) {
        const int n = open.back();
        open.pop_back();
        if (seen[(size_t)n]) continue;
        seen[(size_t)n] = 1;
        for (int before : c.nodes[(size_t)n].after) open.push_back(before);
    }
    for (char s : seen)
        if (!s) return false;
    return true;
}

static void end(const std::shared_ptr<Capture> &c)
{
    c->ended = true;
    for (CUstream_st *s : c->streams) {
        s->capture = nullptr;
        s->front.clear();
    }
    for (size_t i = 0; i < captures.size(); i++)
        if (captures[i] == c) captures.erase(captures.begin() + (long)i--);
}

// The first branch runs on the stream's thread, each other one on a thread that the stream keeps for it. One node runs at a time.
struct Branch {
    std::condition_variable cv;
    const std::function<void()> *job = nullptr;
    bool closing = false;
};
static thread_local std::vector<Branch *> branches;

static void *serve(void *argument)
{
    Hidden h;
    Branch *b = (Branch *)argument;
    Lock l(world);
    for (;;) {
        while (!b->job && !b->closing) b->cv.wait(l);
        if (!b->job) break;
        l.unlock();
        (*b->job)();
        l.lock();
        b->job = nullptr;
        b->cv.notify_all();
    }
    l.unlock();
    fibers_end();
    delete b;
    return nullptr;
}

static void run_on(int branch, const std::function<void()> &job)
{
    if (!branch) {
        job();
        return;
    }
    while (branches.size() < (size_t)branch) {
        pthread_attr_t detached;
        pthread_t thread;
        auto *b = new Branch;
        pthread_attr_init(&detached);
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        if (pthread_create(&thread, &detached, serve, b)) die("no thread for a branch of a graph");
        pthread_attr_destroy(&detached);
        branches.push_back(b);
    }
    Branch &b = *branches[(size_t)branch - 1];
    Lock l(world);
    b.job = &job;
    b.cv.notify_all();
    while (b.job) b.cv.wait(l);
}

void graph_end()
{
    Lock l(world);
    for (Branch *b : branches) {
        b->closing = true;
        b->cv.notify_all();
    }
    branches.clear();
}

static void run_graph(Device &d, const std::vector<Node> &nodes, const std::vector<std::shared_ptr<Gen>> &external)
{
    const size_t n = nodes.size();
    std::vector<uint64_t> token(n + 2); // addresses for the order between branches
    std::vector<int> missing(n), ready;
    for (size_t i = 0; i < n; i++) {
        missing[i] = (int)nodes[i].after.size();
        if (!missing[i]) ready.push_back((int)i);
    }
    hb_release(&token[n]);
    while (!ready.empty()) {
        const size_t pick = random_below((unsigned)ready.size());
        const int at = ready[pick];
        ready[pick] = ready.back();
        ready.pop_back();
        const Node &node = nodes[(size_t)at];
        run_on(node.branch, [&] {
            hb_acquire(&token[n]);
            for (int before : node.after) hb_acquire(&token[(size_t)before]);
            if (node.op.external) {
                Gen &g = *external[(size_t)at];
                hb_release(&g);
                Lock l(world);
                finish_gen(g);
            } else {
                execute(d, node.op);
            }
            hb_release(&token[(size_t)at]);
            hb_release(&token[n + 1]);
        });
        for (size_t i = 0; i < n; i++)
            for (int before : nodes[i].after)
                if (before == at && !--missing[i]) ready.push_back((int)i);
    }
    hb_acquire(&token[n + 1]);
}

static void check(cudaGraphExec_t x)
{
    if (!executables.count(x)) die("an executable graph is used that was destroyed or never made");
}

} // namespace cusim

using namespace cusim;

API cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
    ENTER(0);
    std::swap(*mode, mode_of_thread);
    return cudaSuccess;
}

API cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode)
{
    ENTER(CONTEXT | ALIVE);
    check_stream(s);
    Lock l(world);
    if (s->capture) return result(cudaErrorIllegalState);
    auto c = std::make_shared<Capture>();
    c->mode = mode;
    c->thread = pthread_self();
    c->origin = s;
    c->streams.push_back(s);
    captures.push_back(c);
    s->capture = c;
    s->front.clear();
    return cudaSuccess;
}

API cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    ENTER(CONTEXT);
    check_stream(s);
    Lock l(world);
    *graph = nullptr;
    const std::shared_ptr<Capture> c = s->capture;
    if (!c) return result(cudaErrorIllegalState);
    if (c->origin != s) {
        c->broken = true;
        return result(cudaErrorStreamCaptureUnmatched);
    }
    if (c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->thread, pthread_self()))
        return result(cudaErrorStreamCaptureWrongThread);
    const bool whole = joined(*c);
    end(c);
    if (c->broken) return result(cudaErrorStreamCaptureInvalidated);
    if (!whole) return result(cudaErrorStreamCaptureUnjoined);
    *graph = new CUgraph_st{c->nodes, s->device};
    graphs.insert(*graph);
    counters.live_graphs++;
    return cudaSuccess;
}

API cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status)
{
    ENTER(CONTEXT);
    check_stream(s);
    Lock l(world);
    *status = !s->capture          ? cudaStreamCaptureStatusNone
              : s->capture->broken ? cudaStreamCaptureStatusInvalidated
                                   : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

API cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n)
{
    ENTER(0);
    Lock l(world);
    if (!graphs.count(g)) die("a graph is used that was destroyed or never made");
    for (size_t i = 0; nodes && i < *n; i++)
        nodes[i] = i < g->nodes.size() ? reinterpret_cast<cudaGraphNode_t>(&g->nodes[i]) : nullptr;
    if (!nodes || *n > g->nodes.size()) *n = g->nodes.size();
    return cudaSuccess;
}

// Only those that record an event are told from the others.
API cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType *type)
{
    ENTER(0);
    *type = reinterpret_cast<Node *>(node)->op.external ? cudaGraphNodeTypeEventRecord : cudaGraphNodeTypeKernel;
    return cudaSuccess;
}
API cudaGraphEventRecordNodeGetEvent(cudaGraphNode_t node, cudaEvent_t *event)
{
    ENTER(0);
    *event = reinterpret_cast<Node *>(node)->op.external;
    return result(*event ? cudaSuccess : cudaErrorInvalidValue);
}

// Of later launches; those that were given keep theirs.
API cudaGraphExecEventRecordNodeSetEvent(cudaGraphExec_t x, cudaGraphNode_t node, cudaEvent_t event)
{
    ENTER(CONTEXT);
    Lock l(world);
    check(x);
    check_event(event);
    if (!graphs.count(x->source)) die("a node is named whose graph was destroyed");
    for (size_t i = 0; i < x->nodes.size(); i++)
        if (reinterpret_cast<Node *>(node) == &x->source->nodes[i] && x->nodes[i].op.external) {
            if (event->device != x->device) return result(cudaErrorInvalidValue);
            x->nodes[i].op.external = event;
            return cudaSuccess;
        }
    return result(cudaErrorInvalidValue);
}

API cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags)
{
    ENTER(CONTEXT | ALIVE);
    Lock l(world);
    if (flags & ~(unsigned long long)cudaGraphInstantiateFlagUseNodePriority) die("graph flags %llu are not modelled", flags);
    if (!graphs.count(g)) die("a graph is used that was destroyed or never made");
    *x = new CUgraphExec_st{g->nodes, g->device, g, nullptr};
    executables.insert(*x);
    counters.live_graphs++;
    return cudaSuccess;
}
API cudaGraphInstantiateWithFlags(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags)
{
    return cudaGraphInstantiate(x, g, flags);
}

API cudaGraphUpload(cudaGraphExec_t x, cudaStream_t s)
{
    ENTER(CONTEXT);
    check_stream(s);
    {
        Lock l(world);
        check(x);
        if (s->device->error) return result(s->device->error);
        if (s->capture) die("cudaGraphUpload in a capture is not modelled");
    }
    return result(submit(s, Op{Kind::mark, "upload", [] {}}));
}

API cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    ENTER(CONTEXT);
    check_stream(s);
    Lock l(world);
    check(x);
    if (s->device->error) return result(s->device->error);
    if (s->capture) die("a graph in a capture is not modelled");
    if (s->device != x->device) return result(cudaErrorInvalidValue);
    auto done = std::make_shared<Gen>();
    const std::shared_ptr<Gen> before = x->last;
    auto nodes = std::make_shared<std::vector<Node>>(x->nodes);
    std::vector<std::shared_ptr<Gen>> external(nodes->size());
    for (size_t i = 0; i < nodes->size(); i++) {
        const Op &op = (*nodes)[i].op;
        if (op.external) {
            check_event(op.external);
            external[i] = op.external->gen = std::make_shared<Gen>();
            op.external->capture = nullptr;
        }
        counters.graph_nodes += op.kind != Kind::mark && op.kind != Kind::host;
    }
    x->last = done;
    counters.graph_launches++;
    Device &d = *s->device;
    l.unlock();
    return result(submit(s, Op{Kind::mark, "graph", [=, &d] {
                                   if (before) {
                                       {
                                           Lock w(world);
                                           wait_gen(w, *before);
                                       }
                                       hb_acquire(before.get());
                                   }
                                   run_graph(d, *nodes, external);
                                   hb_release(done.get());
                                   Lock w(world);
                                   finish_gen(*done);
                               }}));
}

API cudaGraphDestroy(cudaGraph_t g)
{
    ENTER(0);
    Lock l(world);
    if (!graphs.erase(g)) die("a graph is destroyed that was destroyed or never made");
    counters.live_graphs--;
    delete g;
    return cudaSuccess;
}
API cudaGraphExecDestroy(cudaGraphExec_t x)
{
    ENTER(0);
    Lock l(world);
    check(x);
    executables.erase(x);
    counters.live_graphs--;
    delete x;
    return cudaSuccess;
}
