/* The CUDA backend's table. Arithmetic lies in the families: the head op of a chain picks one. */
#include "nvtx.h"
#include "tune.h"

struct dp_kernel {
    const dp_family *family;
    void *state;
    dp_be_device *device;
};

static const dp_family *const families[DP_OP_KINDS] = {
    [DP_OP_CONV2D] = &dp_cuda_conv2d,
    [DP_OP_LINEAR] = &dp_cuda_linear,
    [DP_OP_BATCHNORM2D] = &dp_cuda_batchnorm2d,
    [DP_OP_LAYERNORM] = &dp_cuda_layernorm,
    [DP_OP_RELU] = &dp_cuda_pointwise,
    [DP_OP_GELU] = &dp_cuda_pointwise,
    [DP_OP_SIGMOID] = &dp_cuda_pointwise,
    [DP_OP_TANH] = &dp_cuda_pointwise,
    [DP_OP_MAXPOOL2D] = &dp_cuda_maxpool2d,
    [DP_OP_AVGPOOL2D] = &dp_cuda_avgpool2d,
    [DP_OP_GLOBALAVGPOOL] = &dp_cuda_globalavgpool,
    [DP_OP_FLATTEN] = &dp_cuda_flatten,
    [DP_OP_ADD] = &dp_cuda_pointwise,
    [DP_OP_CONCAT] = &dp_cuda_concat,
    [DP_OP_DROPOUT] = &dp_cuda_dropout,
    [DP_OP_EMBEDDING] = &dp_cuda_embedding,
    [DP_OP_POSITION] = &dp_cuda_position,
    [DP_OP_ATTENTION] = &dp_cuda_attention,
    [DP_OP_SOFTMAX] = &dp_cuda_softmax,
};

static const dp_memory *cuda_memory(const dp_be_device *d)
{
    return &d->memory;
}

static int cuda_fuses(const dp_chain *chain, const dp_node *next)
{
    const dp_family *f = families[chain->node[0]->op->kind];
    return chain->n < DP_MAX_CHAIN && f && f->fuses && f->fuses(chain, next);
}

static void cuda_kernel_close(dp_kernel *k)
{
    if (!k) return;
    if (k->family->close)
        k->family->close(k->state);
    else
        free(k->state);
    free(k);
}

static dp_status cuda_kernel_open(dp_be_device *d, const dp_chain *chain, int64_t capacity, dp_need *need, dp_kernel **out,
                                  dp_error *err)
{
    const dp_node *head = chain->node[0];
    const dp_family *f = families[head->op->kind];
    if (dp_cuda_lost(d)) return dp_cuda_gone(d, err);
    if (!f) return dp_fail(err, DP_EARGUMENT, "%s: op %s has no CUDA kernel", head->name, head->op->name);
    dp_kernel *k = dp_calloc(1, sizeof *k);
    if (!k) return dp_fail(err, DP_ENOMEM, "Out of memory: kernel of %s", head->name);
    k->family = f;
    k->device = d;
    memset(need, 0, sizeof *need);
    const dp_cuda_mark before = dp_cuda_mark_memory(d);
    dp_status status = f->open(d, chain, capacity, need, &k->state, err);
    if (status) {
        free(k);
        return status;
    }
    status = dp_cuda_book_library(d, &before, head->name, err);
    if (status) {
        cuda_kernel_close(k);
        return status;
    }
    *out = k;
    return DP_OK;
}

static dp_status cuda_kernel_prepare(dp_kernel *k, int64_t rows, dp_error *err)
{
    if (dp_cuda_lost(k->device)) return dp_cuda_gone(k->device, err);
    return k->family->prepare ? k->family->prepare(k->state, rows, err) : DP_OK;
}

static dp_status cuda_forward(dp_kernel *k, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    return dp_cuda_lost(s->device) ? DP_EDEVICE_LOST : k->family->forward(k->state, s, run, run_device, io);
}

static dp_status cuda_backward(dp_kernel *k, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io)
{
    return dp_cuda_lost(s->device) ? DP_EDEVICE_LOST : k->family->backward(k->state, s, run, run_device, io);
}

static dp_status cuda_partial(dp_kernel *k, dp_be_stream *s, const dp_run *run, const dp_run *run_device, const dp_io *io,
                              int backward)
{
    if (dp_cuda_lost(s->device)) return DP_EDEVICE_LOST;
    return k->family->partial ? k->family->partial(k->state, s, run, run_device, io, backward) : DP_EARGUMENT;
}

static int64_t cuda_created(const dp_be_device *d)
{
    return d->created;
}

static dp_status cuda_failure(const dp_be_device *d, dp_error *err)
{
    return dp_cuda_lost(d) ? dp_cuda_gone(d, err) : DP_OK;
}

const dp_backend *dp_backend_cuda(void)
{
    static const dp_backend table = {
        .abi = DP_BACKEND_ABI,
        .kind = "cuda",
        .alignment = DP_CUDA_ALIGNMENT,
        .in_line = 0,
        .enumerate = dp_cuda_enumerate,
        .open = dp_cuda_open,
        .close = dp_cuda_close,
        .bind = dp_cuda_bind,
        .alloc = dp_cuda_alloc,
        .free = dp_cuda_free,
        .memory = cuda_memory,
        .alloc_pinned = dp_cuda_alloc_pinned,
        .free_pinned = dp_cuda_free_pinned,
        .pin = dp_cuda_pin,
        .unpin = dp_cuda_unpin,
        .stream_open = dp_cuda_stream_open,
        .stream_close = dp_cuda_stream_close,
        .event_open = dp_cuda_event_open,
        .event_close = dp_cuda_event_close,
        .record = dp_cuda_record,
        .wait = dp_cuda_wait,
        .done = dp_cuda_done,
        .when = dp_cuda_when,
        .capture = dp_cuda_capture,
        .captured = dp_cuda_captured,
        .graph_aim = dp_cuda_graph_aim,
        .graph_launch = dp_cuda_graph_launch,
        .graph_close = dp_cuda_graph_close,
        .copy = dp_cuda_copy,
        .fill = dp_cuda_fill,
        .reads_peer = dp_cuda_reads_peer,
        .convert = dp_cuda_convert,
        .fuses = cuda_fuses,
        .kernel_open = cuda_kernel_open,
        .kernel_prepare = cuda_kernel_prepare,
        .forward = cuda_forward,
        .backward = cuda_backward,
        .partial = cuda_partial,
        .kernel_close = cuda_kernel_close,
        .loss = dp_cuda_loss,
        .sum = dp_cuda_sum,
        .pool = dp_cuda_pool,
        .merge = dp_cuda_merge,
        .sumsq = dp_cuda_sumsq,
        .norm = dp_cuda_norm,
        .update = dp_cuda_update,
        .checksum = dp_cuda_checksum,
        .created = cuda_created,
        .health = dp_cuda_health,
        .notes = dp_tune_notes,
        .failure = cuda_failure,
        .range = dp_cuda_range,
    };
    return &table;
}
