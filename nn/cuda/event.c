/* Streams and events, and at what time an event passed: events know only their distance from each other, so each device has a reference
 * event whose time the host knows to some microseconds. */
#include "../../dp/base/clock.h"
#include "cuda.h"

/* -- streams -- */

dp_status dp_cuda_stream_open(dp_be_device *d, int priority, dp_be_stream **out, dp_error *err)
{
    const size_t parts = (size_t)DP_CUDA_PARTS * DP_CUDA_PART, tickets = DP_CUDA_TICKETS * sizeof(unsigned);
    int least = 0, greatest = 0;
    void *memory = NULL;
    dp_be_stream *s = dp_calloc(1, sizeof *s);
    if (!s) return dp_fail(err, DP_ENOMEM, "Out of memory: stream of %s", d->name);
    s->device = d;
    dp_status status = dp_cuda_lost(d) ? dp_cuda_gone(d, err) : DP_OK;
    if (!status)
        status = dp_cuda_check(d, cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange", err);
    if (!status)
        status = dp_cuda_check(d,
                               cudaStreamCreateWithPriority(&s->stream, cudaStreamNonBlocking, priority > 0 ? greatest : least),
                               "cudaStreamCreateWithPriority", err);
    if (status) goto fail;
    d->created++;
    status = dp_cuda_alloc(d, DP_MEM_WORKSPACE, parts + DP_CUDA_ALIGNMENT, "partial sums of a stream", &memory, err);
    if (status) goto fail;
    s->parts = memory;
    s->ticket = (unsigned *)(void *)((char *)memory + parts);
    status = dp_cuda_check(d, cudaMemsetAsync(s->ticket, 0, tickets, s->stream), "cudaMemsetAsync", err);
    if (status) goto fail;
    *out = s;
    return DP_OK;
fail:
    dp_cuda_stream_close(s);
    return status;
}

void dp_cuda_stream_close(dp_be_stream *s)
{
    if (!s) return;
    dp_cuda_free(s->device, DP_MEM_WORKSPACE, s->parts, (size_t)DP_CUDA_PARTS * DP_CUDA_PART + DP_CUDA_ALIGNMENT);
    if (s->stream && !dp_cuda_lost(s->device))
        (void)dp_cuda_check(s->device, cudaStreamDestroy(s->stream), "cudaStreamDestroy", NULL);
    free(s);
}

/* -- events -- */

dp_status dp_cuda_event_open(dp_be_device *d, dp_be_event **out, dp_error *err)
{
    dp_be_event *e = dp_calloc(1, sizeof *e);
    if (!e) return dp_fail(err, DP_ENOMEM, "Out of memory: event of %s", d->name);
    e->device = d;
    const dp_status status = dp_cuda_lost(d) ? dp_cuda_gone(d, err)
                                             : dp_cuda_check(d, cudaEventCreateWithFlags(&e->event, cudaEventDefault),
                                                             "cudaEventCreateWithFlags", err);
    if (status) {
        free(e);
        return status;
    }
    d->created++;
    *out = e;
    return DP_OK;
}

void dp_cuda_event_close(dp_be_event *e)
{
    if (!e) return;
    if (!dp_cuda_lost(e->device)) (void)dp_cuda_check(e->device, cudaEventDestroy(e->event), "cudaEventDestroy", NULL);
    free(e);
}

dp_status dp_cuda_record(dp_be_stream *s, dp_be_event *e)
{
    if (s->marking) return dp_cuda_mark_event(s, e);
    DP_CUDA_TRY(s->device, cudaEventRecord(e->event, s->stream), NULL);
    return DP_OK;
}

dp_status dp_cuda_wait(dp_be_stream *s, dp_be_event *e)
{
    DP_CUDA_TRY(s->device, cudaStreamWaitEvent(s->stream, e->event, 0), NULL);
    return DP_OK;
}

/* 1, 0 or a negated status, as dp_backend.done. */
static int passed(dp_be_device *d, cudaEvent_t e)
{
    if (dp_cuda_lost(d)) return -DP_EDEVICE_LOST;
    const cudaError_t code = cudaEventQuery(e);
    if (code == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return 0;
    }
    return code == cudaSuccess ? 1 : -(int)dp_cuda_check(d, code, "cudaEventQuery", NULL);
}

int dp_cuda_done(dp_be_event *e)
{
    return passed(e->device, e->event);
}

/* -- time -- */

/* Distances are floats in milliseconds: after 16 s a step is 1 us, and a nearer reference is wanted. Two events take turns. */
static const double near_s = 16;
struct dp_cuda_clock {
    cudaStream_t stream; /* idle but for references, which so pass at once */
    cudaEvent_t reference[2];
    int current;
    double at; /* of the current one */
};

/* Makes the other event the reference if it passes within `limit` seconds. Else nothing changes. */
static dp_status align(dp_be_device *d, double limit, double *width, dp_error *err)
{
    struct dp_cuda_clock *c = d->clock;
    const cudaEvent_t e = c->reference[!c->current];
    const double begin = dp_now();
    int done;
    DP_CUDA_TRY(d, cudaEventRecord(e, c->stream), err);
    while ((done = passed(d, e)) == 0 && dp_now() - begin < limit) continue;
    if (done < 0) return dp_fail(err, (dp_status)-done, "%s (%s) did not pass its first event.", d->name, d->pci);
    *width = dp_now() - begin;
    if (!done) return DP_OK;
    c->current = !c->current;
    c->at = begin + *width / 2;
    return DP_OK;
}

dp_status dp_cuda_clock_open(dp_be_device *d, dp_error *err)
{
    double width = 1;
    struct dp_cuda_clock *c = d->clock = dp_calloc(1, sizeof *c);
    if (!c) return dp_fail(err, DP_ENOMEM, "Out of memory: clock of %s", d->name);
    DP_CUDA_TRY(d, cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), err);
    for (int i = 0; i < 2; i++) DP_CUDA_TRY(d, cudaEventCreateWithFlags(&c->reference[i], cudaEventDefault), err);
    /* the first record of a stream is slow; after some tries the host's interval is as narrow as it gets */
    for (int i = 0; i < 4 && width > 20e-6; i++) DP_TRY(align(d, 1, &width, err));
    return DP_OK;
}

void dp_cuda_clock_close(dp_be_device *d)
{
    struct dp_cuda_clock *c = d->clock;
    if (!c) return;
    if (!dp_cuda_lost(d)) {
        for (int i = 0; i < 2; i++)
            if (c->reference[i]) (void)dp_cuda_check(d, cudaEventDestroy(c->reference[i]), "cudaEventDestroy", NULL);
        if (c->stream) (void)dp_cuda_check(d, cudaStreamDestroy(c->stream), "cudaStreamDestroy", NULL);
    }
    free(c);
    d->clock = NULL;
}

double dp_cuda_when(dp_be_event *e)
{
    dp_be_device *d = e->device;
    struct dp_cuda_clock *c = d->clock;
    float ms = 0;
    double width;
    if (dp_cuda_lost(d) ||
        dp_cuda_check(d, cudaEventElapsedTime(&ms, c->reference[c->current], e->event), "cudaEventElapsedTime", NULL))
        return dp_now();
    const double at = c->at + (double)ms * 1e-3;
    if ((double)ms * 1e-3 > near_s) (void)align(d, 200e-6, &width, NULL);
    return at;
}
