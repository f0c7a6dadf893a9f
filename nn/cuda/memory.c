/* Memory: of a device, of the host, and copies between them. Device memory is allocated at open time only. */
#include "../../dp/base/text.h"
#include "cuda.h"
#include "nvml.h"
#include <sys/mman.h>
#include <unistd.h>

/* -- of a device -- */

/* What there is and who has it (P04). Where the system does not list processes, others are what is used and not ours: their memory, and
 * our libraries' unbooked rest. */
static dp_status out_of_memory(dp_be_device *d, int mem_class, size_t bytes, const char *what, dp_error *err)
{
    size_t free_bytes = 0, total = 0;
    char wanted[32], rest[32], whole[32], held[32], by[160] = "", others[32], list[200];
    dp_device_health h;
    const int64_t live = __atomic_load_n(&d->memory.total_live, __ATOMIC_RELAXED);
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) (void)cudaGetLastError();
    const int64_t unbooked = (int64_t)total - (int64_t)free_bytes - live;
    int64_t of_others = unbooked > 0 ? unbooked : 0;
    if (dp_nvml_others(d->nvml, by, sizeof by) && dp_cuda_health(d, &h)) of_others = h.others_bytes;
    return dp_fail(
        err, DP_ENOMEM,
        "Out of memory on %s (%s): %s (%s) wants %s, %s of %s are free; this process holds %s (%s), others hold %s%s%s; use "
        "a smaller batch or model, or end the other processes.",
        d->name, d->pci, what, dp_memory_class_name(mem_class), dp_bytes_text(wanted, sizeof wanted, (int64_t)bytes),
        dp_bytes_text(rest, sizeof rest, (int64_t)free_bytes), dp_bytes_text(whole, sizeof whole, (int64_t)total),
        dp_bytes_text(held, sizeof held, live), dp_memory_held(&d->memory, list, sizeof list),
        dp_bytes_text(others, sizeof others, of_others), *by ? ", " : "", by);
}

dp_status dp_cuda_alloc(dp_be_device *d, int mem_class, size_t bytes, const char *what, void **p, dp_error *err)
{
    if (dp_cuda_lost(d)) return dp_cuda_gone(d, err);
    DP_TRY(dp_memory_add(&d->memory, mem_class, (int64_t)bytes, what, err));
    const dp_status status = dp_cuda_check(d, cudaMalloc(p, bytes ? bytes : 1), "cudaMalloc", err);
    if (!status) return DP_OK;
    dp_memory_sub(&d->memory, mem_class, (int64_t)bytes);
    return status == DP_ENOMEM ? out_of_memory(d, mem_class, bytes, what, err) : status;
}

void dp_cuda_free(dp_be_device *d, int mem_class, void *p, size_t bytes)
{
    if (!p) return;
    if (!dp_cuda_lost(d)) (void)dp_cuda_check(d, cudaFree(p), "cudaFree", NULL);
    dp_memory_sub(&d->memory, mem_class, (int64_t)bytes);
}

dp_cuda_mark dp_cuda_mark_memory(dp_be_device *d)
{
    dp_cuda_mark mark = {0, __atomic_load_n(&d->memory.total_live, __ATOMIC_RELAXED)};
    size_t total;
    if (!dp_cuda_lost(d)) (void)dp_cuda_check(d, cudaMemGetInfo(&mark.free, &total), "cudaMemGetInfo", NULL);
    return mark;
}

dp_status dp_cuda_book_library(dp_be_device *d, const dp_cuda_mark *before, const char *what, dp_error *err)
{
    const dp_cuda_mark now = dp_cuda_mark_memory(d);
    const int64_t taken = (int64_t)before->free - (int64_t)now.free - (now.held - before->held);
    if (!before->free || !now.free || taken <= 0) return DP_OK;
    return dp_memory_add(&d->memory, DP_MEM_LIBRARY, taken, what, err);
}

/* -- of the host --
 * Page-locking is a runtime call and so a worker's, but memory is wanted on any thread: it is mapped here and locked later. */

static size_t pages(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return bytes > SIZE_MAX - page ? 0 : (bytes + page - 1) / page * page + (bytes ? 0 : page);
}

dp_status dp_cuda_alloc_pinned(size_t bytes, void **p, dp_error *err)
{
    const size_t size = pages(bytes);
    void *at = size ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (at == MAP_FAILED) return dp_fail(err, DP_ENOMEM, "Out of memory: host staging wants %zu bytes", bytes);
    *p = at;
    return DP_OK;
}

void dp_cuda_free_pinned(void *p, size_t bytes)
{
    if (p) (void)munmap(p, pages(bytes));
}

dp_status dp_cuda_pin(dp_be_device *d, void *p, size_t bytes, dp_error *err)
{
    DP_CUDA_TRY(d, cudaHostRegister(p, pages(bytes), cudaHostRegisterPortable | cudaHostRegisterMapped), err);
    return DP_OK;
}

void dp_cuda_unpin(dp_be_device *d, void *p)
{
    if (p && !dp_cuda_lost(d)) (void)dp_cuda_check(d, cudaHostUnregister(p), "cudaHostUnregister", NULL);
}

/* -- moving -- */

dp_status dp_cuda_copy(dp_be_stream *s, void *dst, const void *src, size_t bytes)
{
    if (!bytes) return DP_OK;
    DP_CUDA_TRY(s->device, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->stream), NULL);
    return dp_cuda_settle(s);
}

dp_status dp_cuda_fill(dp_be_stream *s, void *dst, int byte, size_t bytes)
{
    if (!bytes) return DP_OK;
    DP_CUDA_TRY(s->device, cudaMemsetAsync(dst, byte, bytes, s->stream), NULL);
    return dp_cuda_settle(s);
}

/* Access is for good once it is there, and asked for among the chosen devices only. */
int dp_cuda_reads_peer(const dp_be_device *d, const dp_be_device *peer)
{
    int can = 0;
    if (d->gpu == peer->gpu) return 1;
    if (dp_cuda_lost(d) || dp_cuda_lost(peer)) return 0;
    cudaError_t e = cudaDeviceCanAccessPeer(&can, d->gpu, peer->gpu);
    if (e == cudaSuccess && can) {
        e = cudaDeviceEnablePeerAccess(peer->gpu, 0);
        if (e == cudaSuccess) return 1;
        (void)cudaGetLastError();
        return e == cudaErrorPeerAccessAlreadyEnabled; /* too many peers, not supported: staged */
    }
    (void)cudaGetLastError();
    return 0;
}
