// Internal to cusim. One lock (`world`) guards all its state. ThreadSanitizer sees neither that lock nor the state: only the rules of CUDA
// make an order that it knows (hb_release, hb_acquire), so a missing wait of the program under test is reported even when it ran in a
// lucky order. Everything of cusim runs inside Hidden; copies, kernels and callbacks run inside Visible. These sources are compiled
// without -fsanitize=thread, and with -DCUSIM_TSAN where the program is.
#ifndef CUSIM_INTERNAL_H
#define CUSIM_INTERNAL_H
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <random>
#include <set>
#include <string>
#include <vector>
#include <cuda_runtime_api.h>
#include "cusim.h"

namespace cusim
{

// -- messages and ThreadSanitizer (core.cpp) --
[[noreturn]] void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
struct Hidden {
    Hidden();
    ~Hidden();
    Hidden(const Hidden &) = delete;
};
struct Visible {
    Visible();
    ~Visible();
    Visible(const Visible &) = delete;
    int before;
};
void hb_release(const void *at);
void hb_acquire(const void *at);
void ts_read(const void *p, size_t n); // as if the calling thread did it, in code that is not instrumented
void ts_write(void *p, size_t n);
extern bool racecheck; // a TSan fiber for each GPU thread
void *ts_fiber_new();
void ts_fiber_free(void *f);
void *ts_fiber_current();
void ts_fiber_switch(void *f); // makes no order

extern std::mutex world;
using Lock = std::unique_lock<std::mutex>;
int env_int(const char *name, int otherwise);
unsigned random_below(unsigned n); // under `world` or not: each thread has its own, from CUSIM_SEED

// -- devices (core.cpp, device.cpp) --
struct Device {
    int index = 0;
    char *guard = nullptr;         // addresses that the program sees: no access
    char *alias = nullptr;         // the memory behind them, for kernels and copies
    std::map<size_t, size_t> used; // offset -> bytes asked for
    std::map<size_t, std::deque<size_t>> unused;
    size_t end = 0, taken = 0, limit = 0;
    bool context = false;
    cudaError_t error = cudaSuccess; // sticky
    unsigned peers = 0;
    int64_t started = 0; // pieces of work
    std::set<CUstream_st *> streams;
    std::set<const void *> loaded; // kernels
    char hb[8];                    // the end of each piece of work
};
extern std::vector<Device> &devices;
constexpr size_t ADDRESSES = 16ull << 30, CONTEXT_BYTES = 48u << 20;
extern thread_local int current; // -1: none chosen

// What a call needs and is. Every API function begins with enter().
enum { CONTEXT = 1, BLOCKS = 2, UNSAFE = 4 /* not while this thread captures */, ALIVE = 8 };
cudaError_t enter(const char *name, int flags);
cudaError_t result(cudaError_t e); // sets the thread's last error
Device &here();                    // the thread's device
bool sticky(cudaError_t e);
void kill_device(Device &d, cudaError_t e); // under world

// -- counters and faults (fault.cpp) --
extern cusim_counters counters;
extern std::map<std::string, int64_t, std::less<>> &calls;
cudaError_t call_fault(const char *name);                                  // under world
bool pair_fault(const char *kind, int from, int to, int *value = nullptr); // under world
bool switched(const char *kind, const char *which);                        // under world
int most_peers();                                                          // under world
void before_work(Lock &l, Device &d);                                      // counts it; may kill the device or hang
void wait_release(Lock &l);

// -- memory (memory.cpp) --
int owner(const void *p);                                           // device, -1: host
void *reach(const void *p, size_t n, int device, const char *what); // its alias for work on that device; misuse is fatal
bool allocated(const void *p);                                      // device memory that was not freed
bool pinned(const void *p, size_t n);                               // under world

// -- order --
struct Gen { // one record of an event
    bool done = false;
    double at = 0; // ms
    std::condition_variable cv;
};
enum class Kind { kernel, library, copy, fill, host, mark };
struct Op {
    Kind kind;
    std::string name;
    std::function<void()> work;     // for marks it runs even when the device is lost
    CUevent_st *external = nullptr; // a node that records an event when the graph runs
};
struct Capture;
struct Node {
    Op op;
    std::vector<int> after;
    int branch;
};
struct Capture {
    cudaStreamCaptureMode mode;
    pthread_t thread;
    CUstream_st *origin;
    std::vector<Node> nodes;
    std::vector<CUstream_st *> streams; // index = branch
    bool broken = false, ended = false;
};
cudaError_t submit(cudaStream_t s, Op op); // to the stream, or to the capture it is in
void execute(Device &d, const Op &op);     // on the stream's thread
cudaError_t check_stream(cudaStream_t s);  // dies for what is not modelled
double now_ms();
std::shared_ptr<Capture> capture_of_thread();
void finish_gen(Gen &g); // under world
void wait_gen(Lock &l, Gen &g);
void check_event(cudaEvent_t e);                        // under world
cudaStream_t make_stream(unsigned flags, int priority); // on the thread's device
void close_stream(Lock &l, cudaStream_t s);
void synchronize(cudaStream_t s);
void drain(Device &d); // waits for all streams of the device
void graph_end();      // of this thread

} // namespace cusim

struct CUevent_st {
    cusim::Device *device;
    bool timing;
    std::shared_ptr<cusim::Gen> gen;
    std::shared_ptr<cusim::Capture> capture; // recorded in this one
    std::vector<int> front;
};
struct CUstream_st {
    cusim::Device *device;
    int priority;
    std::deque<std::shared_ptr<cusim::Op>> queue;
    std::condition_variable work, room;
    bool busy = false, closing = false;
    char hb[8];
    std::shared_ptr<cusim::Capture> capture;
    std::vector<int> front; // what the next node of a capture follows
};
#define API extern "C" cudaError_t CUDARTAPI
#define ENTER(flags)                                                                                                           \
    cusim::Hidden hidden_;                                                                                                     \
    if (cudaError_t e_ = cusim::enter(__func__, flags)) return cusim::result(e_)
#endif
