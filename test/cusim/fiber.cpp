// Runs the blocks of a kernel, one after the other, on the stream's thread. GPU threads are fibers, and a fiber is made only when the one
// before it blocks: a kernel without barriers and shuffles is a plain loop. The switch is our own: that of the C library makes a system
// call each time. A fiber never changes its thread, so `thread_local` is shared memory.
#include "internal.h"
#include "fiber.h"
#include <algorithm>
#include <cstring>
#include <sys/mman.h>
#ifndef __x86_64__
#error "the switch between fibers is written for x86-64"
#endif

extern "C" void cusim_switch(void **save, void *load);
asm(R"(
.text
.globl cusim_switch
.hidden cusim_switch
.type cusim_switch, @function
cusim_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size cusim_switch, .-cusim_switch
)");

namespace cusim {

__thread Block *block;
__thread Lane *lane;

enum { THREADS = 1024, WARPS = THREADS / 32, STACK = 128 << 10, REDZONE = 64 };
constexpr uint64_t canary = 0xC0517AC4C0517AC4ull;
enum { CANARIES = 8 }; // words at the end of a stack: an array that overruns it touches one of them

struct Fiber {
    void *sp;
    char *stack;
    void *ts; // with racecheck
    Lane lane;
};
struct Group { // lanes of a warp that meet in one operation
    unsigned mask, arrived;
    bool vote;
};
struct Warp {
    unsigned exited;
    int n_groups;
    Group group[32];
    Fiber *waiting[32];
    uint64_t value[32], result[32];
    int from[32];
    char hb[8];
};
struct Exec { // of a stream's thread; mapped, so that its memory never passes through the heap that TSan watches
    void *scheduler;
    void *ts_thread;
    Fiber fiber[THREADS];
    Fiber *idle[THREADS], *ready[THREADS], *at_barrier[THREADS];
    int n_fibers, n_idle, n_at_barrier;
    unsigned ready_head, n_ready;
    Fiber *running;
    unsigned n, next, done;
    const std::function<void()> *thread;
    const char *barrier_file;
    int barrier_line, barrier_kind, barrier_sum, barrier_result;
    Warp warp[WARPS];
    char *stacks;
    Block block;
    char *dyn;
    char hb_start[8], hb_end[8], hb_barrier[8];
};
static thread_local Exec *x;

static void *map(size_t n)
{
    void *p = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) die("no memory for the fibers of a stream");
    return p;
}

// -- the scheduler --

static void to_scheduler()
{
    Fiber *f = x->running;
    if (racecheck) ts_fiber_switch(x->ts_thread);
    cusim_switch(&f->sp, x->scheduler);
    lane = &f->lane;
}

static void resume(Fiber *f)
{
    x->running = f;
    lane = &f->lane;
    if (racecheck) ts_fiber_switch(f->ts);
    cusim_switch(&x->scheduler, f->sp);
    for (int i = 0; i < CANARIES; i++)
        if (((uint64_t *)f->stack)[i] != canary) die("%s: a GPU thread needs more than %d KB of stack", x->block.kernel, STACK >> 10);
}

static void push_ready(Fiber *f)
{
    x->ready[(x->ready_head + x->n_ready++) % THREADS] = f;
}

static Fiber *pop_ready()
{
    Fiber *f = x->ready[x->ready_head];
    x->ready_head = (x->ready_head + 1) % THREADS;
    x->n_ready--;
    return f;
}

static void order(char *hb, bool release)
{
    if (!racecheck) return;
    if (release)
        hb_release(hb);
    else
        hb_acquire(hb);
}

// -- barriers --

static void open_barrier()
{
    if (x->next < x->n || !x->n_at_barrier || (unsigned)x->n_at_barrier != x->n - x->done) return;
    x->barrier_result = x->barrier_kind == 2 ? x->barrier_sum == x->n_at_barrier : x->barrier_sum;
    if (x->barrier_kind == 1) x->barrier_result = x->barrier_sum != 0;
    for (int i = 0; i < x->n_at_barrier; i++) push_ready(x->at_barrier[i]);
    x->n_at_barrier = 0;
}

int barrier(const char *file, int line, int kind, int value)
{
    if (!x->n_at_barrier) {
        x->barrier_file = file;
        x->barrier_line = line;
        x->barrier_kind = kind;
        x->barrier_sum = 0;
    } else if (line != x->barrier_line || (file != x->barrier_file && strcmp(file, x->barrier_file))) {
        die("%s: threads of a block wait at different barriers, %s:%d and %s:%d", x->block.kernel, x->barrier_file,
            x->barrier_line, file, line);
    }
    x->barrier_sum += value;
    order(x->hb_barrier, true);
    x->at_barrier[x->n_at_barrier++] = x->running;
    open_barrier();
    to_scheduler();
    order(x->hb_barrier, false);
    return x->barrier_result;
}

// -- warps --

static unsigned existing(unsigned w)
{
    const unsigned first = w * 32, n = x->n - first;
    return n >= 32 ? 0xffffffffu : (1u << n) - 1;
}

// The group is complete when every lane that it names has arrived or left the kernel. Then all results are known at once.
static void complete(Warp &w, int g)
{
    const Group group = w.group[g];
    unsigned votes = 0;
    for (unsigned i = 0; i < 32; i++)
        if (group.arrived >> i & 1 && w.value[i]) votes |= 1u << i;
    for (unsigned i = 0; i < 32; i++) {
        if (!(group.arrived >> i & 1)) continue;
        if (group.vote) {
            w.result[i] = votes;
        } else {
            const unsigned from = w.from[i] < 0 || w.from[i] > 31 ? i : (unsigned)w.from[i];
            if (!(group.arrived >> from & 1))
                die("%s: lane %u of a warp shuffles from lane %u, which is not in the mask or has left", x->block.kernel, i, from);
            w.result[i] = w.value[from];
        }
        push_ready(w.waiting[i]);
    }
    w.group[g] = w.group[--w.n_groups];
}

static uint64_t meet(unsigned mask, uint64_t value, int from, bool vote)
{
    const unsigned index = lane->index, i = index % 32;
    Warp &w = x->warp[index / 32];
    if (!(mask >> i & 1)) die("%s: lane %u calls a warp function with a mask that does not name it", x->block.kernel, i);
    int g = 0;
    while (g < w.n_groups && (w.group[g].mask != mask || w.group[g].vote != vote)) g++;
    if (g == w.n_groups) w.group[w.n_groups++] = Group{mask, 0, vote};
    w.group[g].arrived |= 1u << i;
    w.value[i] = value;
    w.from[i] = from;
    w.waiting[i] = x->running;
    order(w.hb, true);
    if (((w.group[g].arrived | w.exited) & mask) == mask) complete(w, g);
    to_scheduler();
    order(w.hb, false);
    return w.result[i];
}

uint64_t warp_exchange(unsigned mask, uint64_t value, int from)
{
    return meet(mask, value, from, false);
}

unsigned warp_vote(unsigned mask, bool value)
{
    return (unsigned)meet(mask, value, 0, true);
}

unsigned warp_active()
{
    return ~x->warp[lane->index / 32].exited;
}

void fence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void trap(const char *file, int line)
{
    die("%s: __trap at %s:%d", block->kernel, file, line);
}

static void leave(unsigned index)
{
    Warp &w = x->warp[index / 32];
    w.exited |= 1u << index % 32;
    for (int g = w.n_groups; g-- > 0;)
        if (((w.group[g].arrived | w.exited) & w.group[g].mask) == w.group[g].mask) complete(w, g);
    x->done++;
    open_barrier();
}

// -- fibers --

static void fiber_main()
{
    for (;;) {
        order(x->hb_start, false);
        do {
            const unsigned t = x->next++;
            const dim3 d = x->block.dim;
            Lane &l = x->running->lane;
            l.index = t;
            l.id = uint3{t % d.x, t / d.x % d.y, t / (d.x * d.y)};
            lane = &l;
            (*x->thread)();
            leave(t);
        } while (!racecheck && x->next < x->n);
        order(x->hb_end, true);
        if (!racecheck) x->idle[x->n_idle++] = x->running;
        to_scheduler();
    }
}

static Fiber *get_fiber()
{
    if (racecheck && x->next < (unsigned)x->n_fibers) return &x->fiber[x->next]; // each GPU thread is one for TSan
    if (x->n_idle) return x->idle[--x->n_idle];
    Fiber *f = &x->fiber[x->n_fibers];
    f->stack = x->stacks + (size_t)++x->n_fibers * STACK; // below the first lies as much that nobody uses
    for (int i = 0; i < CANARIES; i++) ((uint64_t *)f->stack)[i] = canary;
    void **p = (void **)(f->stack + STACK) - 3; // where a call would leave it: 8 below a multiple of 16
    *--p = (void *)fiber_main;
    for (int i = 0; i < 6; i++) *--p = nullptr;
    f->sp = p;
    if (racecheck) f->ts = ts_fiber_new();
    return f;
}

void fibers_end()
{
    if (!x) return;
    for (int i = 0; racecheck && i < x->n_fibers; i++) ts_fiber_free(x->fiber[i].ts);
    munmap(x->stacks, (size_t)(THREADS + 1) * STACK);
    munmap(x->dyn, MOST_SHARED + REDZONE);
    munmap(x, sizeof *x);
    x = nullptr;
}

static void run_block(size_t shared)
{
    x->next = x->done = 0;
    for (unsigned w = 0; w < (x->n + 31) / 32; w++) {
        x->warp[w].exited = ~existing(w);
        x->warp[w].n_groups = 0;
    }
    memset(x->dyn, 0xFF, shared + REDZONE);
    order(x->hb_start, true);
    while (x->done < x->n) {
        if (x->next < x->n)
            resume(get_fiber());
        else if (x->n_ready)
            resume(pop_ready());
        else
            die("%s: deadlock in a block: %d threads wait at a barrier (%s:%d), others in a warp function", x->block.kernel,
                x->n_at_barrier, x->n_at_barrier ? x->barrier_file : "-", x->n_at_barrier ? x->barrier_line : 0);
    }
    while (x->n_ready) resume(pop_ready());
    order(x->hb_end, false);
    for (size_t i = shared; i < shared + REDZONE; i++)
        if ((unsigned char)x->dyn[i] != 0xFF)
            die("%s: writes past its %zu bytes of dynamic shared memory", x->block.kernel, shared);
}

void run_grid(const char *kernel, int device, dim3 grid, dim3 dim, size_t shared, const std::function<void()> &thread)
{
    if (!x) {
        x = (Exec *)map(sizeof(Exec));
        x->stacks = (char *)map((size_t)(THREADS + 1) * STACK);
        x->dyn = (char *)map(MOST_SHARED + REDZONE);
    }
    x->ts_thread = ts_fiber_current();
    x->block = Block{uint3{0, 0, 0}, dim, grid, x->dyn, device, kernel};
    x->thread = &thread;
    x->n = dim.x * dim.y * dim.z;
    block = &x->block;
    // Any order of blocks is right: index i becomes (start + i * step) mod blocks, with a step that has no divisor in common.
    const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    const uint64_t start = random_below(0x7fffffff) % blocks;
    uint64_t step = random_below(0x7fffffff) % blocks | 1;
    const auto common = [](uint64_t a, uint64_t b) {
        while (b) std::swap(a %= b, b);
        return a;
    };
    while (common(step, blocks) != 1) step += 2;
    for (uint64_t i = 0, at = start; i < blocks; i++, at = (at + step) % blocks) {
        x->block.id = uint3{(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y), (unsigned)(at / grid.x / grid.y)};
        Visible v;
        run_block(shared);
    }
}

} // namespace cusim
