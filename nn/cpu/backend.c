/* The CPU's backend table. A device is a share of the processor that one worker thread works with; streams run in line, so events
 * have passed as soon as they are recorded. Arithmetic lies in the families: the head op of a chain picks one. */
#include "../../dp/base/clock.h"
#include "../backend.h"
#include "cpu.h"
#include "onednn.h"
#include <cpuid.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGNMENT = 64, PAGE = 4096 };
/* Huge pages speed large arenas up, but make a small process's resident size coarse. */
static const size_t huge_page = (size_t)2 << 20, huge_from = (size_t)2 << 20;

struct dp_be_event {
    dp_be_device *device;
    double passed; /* when */
};
struct dp_kernel {
    const dp_family *family;
    void *state;
};

static const dp_family *const families[DP_OP_KINDS] = {
    [DP_OP_CONV2D] = &dp_cpu_conv2d,
    [DP_OP_LINEAR] = &dp_cpu_linear,
    [DP_OP_BATCHNORM2D] = &dp_cpu_batchnorm2d,
    [DP_OP_LAYERNORM] = &dp_cpu_layernorm,
    [DP_OP_RELU] = &dp_cpu_pointwise,
    [DP_OP_GELU] = &dp_cpu_pointwise,
    [DP_OP_SIGMOID] = &dp_cpu_pointwise,
    [DP_OP_TANH] = &dp_cpu_pointwise,
    [DP_OP_MAXPOOL2D] = &dp_cpu_maxpool2d,
    [DP_OP_AVGPOOL2D] = &dp_cpu_avgpool2d,
    [DP_OP_GLOBALAVGPOOL] = &dp_cpu_globalavgpool,
    [DP_OP_FLATTEN] = &dp_cpu_flatten,
    [DP_OP_ADD] = &dp_cpu_pointwise,
    [DP_OP_CONCAT] = &dp_cpu_concat,
    [DP_OP_DROPOUT] = &dp_cpu_dropout,
    [DP_OP_EMBEDDING] = &dp_cpu_embedding,
    [DP_OP_POSITION] = &dp_cpu_position,
    [DP_OP_ATTENTION] = &dp_cpu_attention,
    [DP_OP_SOFTMAX] = &dp_cpu_softmax,
};

/* -- devices -- */

static void processor_name(char *buf, size_t size)
{
    unsigned r[12];
    memset(r, 0, sizeof r);
    for (unsigned i = 0; i < 3; i++) {
        if (!__get_cpuid(0x80000002u + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3])) return;
    }
    snprintf(buf, size, "%.*s", (int)sizeof r, (const char *)r);
}

static int cpu_enumerate(int i, dp_device_info *info)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN), pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (i < 0 || i >= cores) return 0;
    memset(info, 0, sizeof *info);
    snprintf(info->name, sizeof info->name, "cpu:%d", i);
    processor_name(info->model, sizeof info->model);
    info->memory = pages > 0 && page > 0 ? (int64_t)pages * page : 0;
    info->units = 1;
    info->usable = 1;
    return 1;
}

/* Which `n` of the cores that the calling thread may use, from the `first` on. */
static dp_status choose_cores(cpu_set_t *wanted, int first, int n, dp_error *err)
{
    cpu_set_t allowed;
    int failed = pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed);
    if (failed) return dp_fail_errno(err, DP_EDEVICE, failed, "Cannot read which cores this process may use");
    CPU_ZERO(wanted);
    int at = 0;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed)) continue;
        if (at >= first && at < first + n) CPU_SET(cpu, wanted);
        at++;
    }
    if (CPU_COUNT(wanted) < n) {
        return dp_fail(err, DP_EDEVICE,
                       "Cannot pin to cores %d..%d: this process may use %d; use fewer devices or threads, or do not pin",
                       first, first + n - 1, CPU_COUNT(&allowed));
    }
    return DP_OK;
}

/* The calling thread, and with it the OpenMP team that it will make, on the device's cores. Both settings are of the thread alone. */
static int bind_thread(const dp_be_device *d)
{
    omp_set_num_threads(d->options.threads);
    return d->options.pin ? pthread_setaffinity_np(pthread_self(), sizeof d->cores, &d->cores) : 0;
}

/* What open was allowed is still allowed: a failure would mean that cores were taken away, and unpinned work is right too. */
static void cpu_bind(dp_be_device *d)
{
    (void)bind_thread(d);
}

static void cpu_close(dp_be_device *d)
{
    if (!d) return;
    dp_dnnl_close(d->dnnl);
    free(d);
}

static dp_status cpu_open(dp_be_device **out, const dp_be_options *o, dp_error *err)
{
    const int threads = o->threads > 0 ? o->threads : 1;
    dp_be_device *d = dp_calloc(1, sizeof *d);
    if (!d) return dp_fail(err, DP_ENOMEM, "Out of memory: device cpu:%d", o->index);
    d->options = *o;
    d->options.threads = threads;
    d->memory.limit = o->memory_limit;
    d->vec = dp_vec_select();
    dp_status status = o->pin ? choose_cores(&d->cores, o->first_core, threads, err) : DP_OK;
    if (status) goto fail;
    const int failed = bind_thread(d);
    if (failed) {
        status = dp_fail_errno(err, DP_EDEVICE, failed, "Cannot pin the worker of cpu:%d", o->index);
        goto fail;
    }
    status = dp_dnnl_open(&d->dnnl, &d->created, err);
    if (status) goto fail;
    *out = d;
    return DP_OK;
fail:
    cpu_close(d);
    return status;
}

/* -- memory -- */

static void *aligned(size_t bytes, size_t alignment)
{
    void *p = NULL;
    const int huge = bytes >= huge_from;
    if (bytes > SIZE_MAX - huge_page) return NULL;
    if (posix_memalign(&p, huge ? huge_page : alignment, bytes ? bytes : alignment)) return NULL;
    if (huge) (void)madvise(p, bytes / huge_page * huge_page, MADV_HUGEPAGE); /* a wish: without it the memory is as good */
    return p;
}

static dp_status cpu_alloc(dp_be_device *d, int mem_class, size_t bytes, const char *what, void **p, dp_error *err)
{
    DP_TRY(dp_memory_add(&d->memory, mem_class, (int64_t)bytes, what, err));
    *p = aligned(bytes, ALIGNMENT);
    if (*p) return DP_OK;
    dp_memory_sub(&d->memory, mem_class, (int64_t)bytes);
    return dp_fail(err, DP_ENOMEM,
                   "Out of memory: %s wants %zu bytes, the system has not got them; use a smaller batch or model", what, bytes);
}

static void cpu_free(dp_be_device *d, int mem_class, void *p, size_t bytes)
{
    if (!p) return;
    free(p);
    dp_memory_sub(&d->memory, mem_class, (int64_t)bytes);
}

static const dp_memory *cpu_memory(const dp_be_device *d)
{
    return &d->memory;
}

static dp_status cpu_alloc_pinned(size_t bytes, void **p, dp_error *err)
{
    *p = aligned(bytes, PAGE);
    return *p ? DP_OK : dp_fail(err, DP_ENOMEM, "Out of memory: host staging wants %zu bytes", bytes);
}

static void cpu_free_pinned(void *p, size_t bytes)
{
    (void)bytes;
    free(p);
}

/* -- order -- */

static dp_status cpu_stream_open(dp_be_device *d, int priority, dp_be_stream **s, dp_error *err)
{
    (void)priority;
    *s = dp_calloc(1, sizeof **s);
    if (!*s) return dp_fail(err, DP_ENOMEM, "Out of memory: stream of cpu:%d", d->options.index);
    (*s)->device = d;
    d->created++;
    return DP_OK;
}

static void cpu_stream_close(dp_be_stream *s)
{
    free(s);
}

static dp_status cpu_event_open(dp_be_device *d, dp_be_event **e, dp_error *err)
{
    *e = dp_calloc(1, sizeof **e);
    if (!*e) return dp_fail(err, DP_ENOMEM, "Out of memory: event of cpu:%d", d->options.index);
    (*e)->device = d;
    d->created++;
    return DP_OK;
}

static void cpu_event_close(dp_be_event *e)
{
    free(e);
}

static dp_status cpu_record(dp_be_stream *s, dp_be_event *e)
{
    if (s->device != e->device) return DP_EARGUMENT;
    e->passed = dp_now();
    return DP_OK;
}

static dp_status cpu_wait(dp_be_stream *s, dp_be_event *e)
{
    (void)s, (void)e; /* recorded: passed */
    return DP_OK;
}

static int cpu_done(dp_be_event *e)
{
    (void)e;
    return 1;
}

static double cpu_when(dp_be_event *e)
{
    return e->passed;
}

/* -- moving -- */

static dp_status cpu_copy(dp_be_stream *s, void *dst, const void *src, size_t bytes)
{
    (void)s;
    if (bytes) memcpy(dst, src, bytes);
    return DP_OK;
}

static dp_status cpu_fill(dp_be_stream *s, void *dst, int byte, size_t bytes)
{
    (void)s;
    if (bytes) memset(dst, byte, bytes);
    return DP_OK;
}

static int cpu_reads_peer(const dp_be_device *d, const dp_be_device *peer)
{
    (void)d, (void)peer;
    return 1;
}

/* -- kernels -- */

static int cpu_fuses(const dp_chain *chain, const dp_node *next)
{
    const dp_family *f = families[chain->node[0]->op->kind];
    return chain->n < DP_MAX_CHAIN && f && f->fuses && f->fuses(chain, next);
}

static void cpu_kernel_close(dp_kernel *k)
{
    if (!k) return;
    if (k->family->close)
        k->family->close(k->state);
    else
        free(k->state);
    free(k);
}

static dp_status cpu_kernel_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, dp_kernel **out,
                                 dp_error *err)
{
    const dp_node *head = chain->node[0];
    const dp_family *f = families[head->op->kind];
    if (!f) return dp_fail(err, DP_EARGUMENT, "%s: op %s has no CPU kernel", head->name, head->op->name);
    dp_kernel *k = dp_calloc(1, sizeof *k);
    if (!k) return dp_fail(err, DP_ENOMEM, "Out of memory: kernel of %s", head->name);
    k->family = f;
    memset(need, 0, sizeof *need);
    const dp_status status = f->open(d, chain, capacity, need, &k->state, err);
    if (status) {
        free(k);
        return status;
    }
    *out = k;
    return DP_OK;
}

static dp_status cpu_kernel_prepare(dp_kernel *k, int64_t rows, dp_error *err)
{
    return k->family->prepare ? k->family->prepare(k->state, rows, err) : DP_OK;
}

static dp_status cpu_forward(dp_kernel *k, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    (void)s;
    return k->family->forward(k->state, run, run_device, io);
}

static dp_status cpu_backward(dp_kernel *k, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    (void)s;
    return k->family->backward(k->state, run, run_device, io);
}

static dp_status cpu_partial(dp_kernel *k, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io,
                             int backward)
{
    (void)s;
    return k->family->partial ? k->family->partial(k->state, run, run_device, io, backward) : DP_EARGUMENT;
}

static int64_t cpu_created(const dp_be_device *d)
{
    return d->created;
}

const dp_backend *dp_backend_cpu(void)
{
    static const dp_backend table = {
        .abi = DP_BACKEND_ABI,
        .kind = "cpu",
        .alignment = ALIGNMENT,
        .in_line = 1,
        .enumerate = cpu_enumerate,
        .open = cpu_open,
        .close = cpu_close,
        .bind = cpu_bind,
        .alloc = cpu_alloc,
        .free = cpu_free,
        .memory = cpu_memory,
        .alloc_pinned = cpu_alloc_pinned,
        .free_pinned = cpu_free_pinned,
        .stream_open = cpu_stream_open,
        .stream_close = cpu_stream_close,
        .event_open = cpu_event_open,
        .event_close = cpu_event_close,
        .record = cpu_record,
        .wait = cpu_wait,
        .done = cpu_done,
        .when = cpu_when,
        .copy = cpu_copy,
        .fill = cpu_fill,
        .reads_peer = cpu_reads_peer,
        .convert = dp_cpu_convert,
        .fuses = cpu_fuses,
        .kernel_open = cpu_kernel_open,
        .kernel_prepare = cpu_kernel_prepare,
        .forward = cpu_forward,
        .backward = cpu_backward,
        .kernel_close = cpu_kernel_close,
        .partial = cpu_partial,
        .loss = dp_cpu_loss,
        .sum = dp_cpu_sum,
        .pool = dp_cpu_pool,
        .merge = dp_cpu_merge,
        .sumsq = dp_cpu_sumsq,
        .norm = dp_cpu_norm,
        .update = dp_cpu_update,
        .checksum = dp_cpu_checksum,
        .created = cpu_created,
    };
    return &table;
}
