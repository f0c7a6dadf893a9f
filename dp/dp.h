/* Many devices: the engine, the trainer, and the parts the engine is made of. The one header to include: <dp/dp.h>. */
#ifndef DP_DP_H
#define DP_DP_H
#include "base/base.h"
#include "../nn/nn.h"
#include "../data/data.h"
#ifdef __cplusplus
extern "C" {
#endif

/* ---- devices ---- */
/* Device i of this machine, every kind after the other; 0 past the last. Opens nothing, any thread. cpu:K is legal for any K in
 * devices.use (CPU devices are virtual); one is listed per core. */
DP_API int dp_device(int i, dp_device_info *info);

/* ---- engine ----
 * One step: scatter, forward, loss, backward, reduce, update, on persistent worker threads, one per device. */
typedef struct dp_engine dp_engine;

/* Phases of a step, as named in every report. */
enum {
    DP_PHASE_DATA_WAIT,
    DP_PHASE_UPLOAD,
    DP_PHASE_REPLICATE,
    DP_PHASE_FORWARD,
    DP_PHASE_GATHER,
    DP_PHASE_LOSS,
    DP_PHASE_SCATTER,
    DP_PHASE_BACKWARD,
    DP_PHASE_REDUCE,
    DP_PHASE_UPDATE,
    DP_PHASE_SHARE,
    DP_PHASE_IDLE,
    DP_PHASES
};
DP_API const char *dp_phase_name(int phase); /* "data_wait", ... */

/* What a step gave. Sums, so that results add up: the mean loss of several is sum of loss_sum / sum of targets. */
typedef struct dp_result {
    int64_t step; /* training batches submitted before this one's window closed; see optimizer_steps */
    int64_t samples, targets, correct;
    double loss_sum;
    double grad_norm; /* of the window's mean gradient before clipping; 0 when no update closed with this batch */
    double lr;
    double seconds;   /* from the step's begin on the first worker to its end on the last */
    double data_wait; /* seconds: filled by the trainer */
    int64_t updates;  /* optimizer steps taken since the engine's state began */
    int64_t skipped;  /* 1: the update was skipped (not finite under on_nan = warn, or no target counted) */
    int64_t dropped;  /* samples left out of this batch by small_batch = drop */
    int64_t reserved[4];
} dp_result; /* 128 bytes for ever */

typedef struct dp_device_stats { /* since open */
    char name[32];
    double busy, wait;           /* seconds */
    int64_t live[16], peak[16];  /* bytes by DP_MEM_ class */
    int64_t bytes_in, bytes_out; /* between devices */
    int64_t host_in, host_out;   /* between host and this device */
    int64_t created;  /* kernels' primitives, streams, events made so far: constant once every row count has been seen */
    double phase[16]; /* seconds by DP_PHASE_: they add up to the time since open; what runs under another phase is in hidden */
    double hidden;    /* seconds of communication under computation */
    int64_t steps;    /* training batches */
    int64_t reserved[6];
} dp_device_stats;

/* One stretch of work on a device, as trace.json shows it. Lanes run beside each other; inside one spans follow each other. */
enum { DP_LANE_COMPUTE, DP_LANE_REDUCE, DP_LANE_SHARE, DP_LANES }; /* SHARE: update, and what brings sums and parameters */
typedef struct dp_span {
    int32_t device, lane, phase;
    int32_t bucket;    /* of parameters; -1: none */
    int64_t step;      /* training batch, 0, 1, ...; -1: none of one */
    double begin, end; /* seconds since open */
    double waited;     /* of that: for another device */
    int64_t bytes_in;  /* from other devices */
    int64_t host_in, host_out;
    uint64_t peers; /* bit d: it read memory of device d */
    char layer[48]; /* run.trace = layer: the layer; else "" */
    int64_t reserved[2];
} dp_span;
typedef void (*dp_span_fn)(void *user, const dp_span *span);

enum { DP_LINK_HOST, DP_LINK_COPY, DP_LINK_PEER };
/* What moved between two devices: `from` was read by `to`. */
typedef struct dp_link {
    char kind[16];                    /* "memory" (CPU devices), "peer" (kernels read it), "copy", "host" (staged) */
    int64_t bytes;                    /* since open */
    double bytes_per_s;               /* of that kind, when it was last measured, sums included; 0: never */
    double by_peer, by_copy, by_host; /* bytes per second of all kinds; 0: not measured, or not possible */
    int32_t link_class;               /* pairs of about one rate, 0 the fastest; -1: not measured, or no access */
    int32_t fastest;                  /* DP_LINK_ of that class; -1 */
} dp_link;

/* Devices, switches, optimizer and loss from c, the network from g (finished; must outlive the engine). Everything is allocated
 * here; weights get their seeded start. DP_ENOMEM names device, class, bytes and a batch size that fits. */
DP_API dp_status dp_engine_open(dp_engine **e, const dp_graph *g, const dp_config *c, dp_error *err);
/* Batches from d in pinned slots: train = 1 with [data]'s batch size, order and accumulation; 0: in file order for evaluation.
 * Close it before the engine: its slots are the engine's memory. */
DP_API dp_status dp_engine_loader(dp_engine *e, dp_data *d, int train, dp_loader **l, dp_error *err);
/* A training batch. Submit returns at once (at most two in flight, else DP_EARGUMENT); wait ends the oldest. Labels are checked here,
 * before any device sees them. After a failure every call returns DP_EFAILED: close the engine.
 * devices.on_device_failure = continue: when a device fails whose context lives (not DP_EDEVICE_LOST, not DP_ETIMEOUT), the call that notices
 * goes back to the last snapshot, trains again on the batches since without that device, and returns what it would have. Then
 * dp_engine_devices is less by one and the devices behind it have moved up. */
DP_API dp_status dp_engine_submit(dp_engine *e, const dp_batch *b, dp_error *err);
DP_API dp_status dp_engine_wait(dp_engine *e, dp_result *r, dp_error *err);
DP_API dp_status dp_engine_step(dp_engine *e, const dp_batch *b, dp_result *r, dp_error *err); /* submit + wait */
/* Loss and hits without training, ADDED to *r in sample order (start from zeros), so that sums are equal by bytes on any devices. */
DP_API dp_status dp_engine_eval(dp_engine *e, const dp_batch *b, dp_result *r, dp_error *err);
/* The output rows for x: (x.n, width of the output) floats, channels last; bytes = size of out. */
DP_API dp_status dp_engine_predict(dp_engine *e, dp_rows x, float *out, size_t bytes, dp_error *err);
DP_API dp_status dp_engine_set_lr(dp_engine *e, double lr); /* of the batches submitted from now on */
/* One tensor by its PyTorch name, in PyTorch's order; count = its elements. */
DP_API dp_status dp_engine_get(dp_engine *e, const char *tensor, float *dst, int64_t count, dp_error *err);
DP_API dp_status dp_engine_put(dp_engine *e, const char *tensor, const float *src, int64_t count, dp_error *err);
/* The gradient that the last closed window summed up on the master (not divided by the count). */
DP_API dp_status dp_engine_gradient(dp_engine *e, const char *tensor, float *dst, int64_t count, dp_error *err);
/* Weights as safetensors that load_state_dict(strict=True) takes. Load wants every tensor, in the right shape. */
DP_API dp_status dp_engine_load(dp_engine *e, const char *path, dp_error *err);
DP_API dp_status dp_engine_save(dp_engine *e, const char *path, dp_error *err);
DP_API int dp_engine_devices(const dp_engine *e);
DP_API int dp_engine_stats(const dp_engine *e, int device, dp_device_stats *s); /* 0: no such device */
/* Clock, throttling, errors and other users of a GPU at this moment, as NVML tells; takes up to some milliseconds, and nothing of the device.
 * 0: not known, as of CPU devices. */
DP_API int dp_engine_health(const dp_engine *e, int device, dp_device_health *h);
/* Every span since the last call that the devices' rings still hold (4,096 records a device), device by device in order of time, of
 * batches that have been waited for. */
DP_API dp_status dp_engine_trace(dp_engine *e, dp_span_fn fn, void *user, dp_error *err);
/* Moves 4 MB over every ordered pair of devices, all pairs of a distance at once, by every route, and keeps the rates for
 * dp_engine_link. */
DP_API dp_status dp_engine_measure_links(dp_engine *e, dp_error *err);
DP_API int dp_engine_link(const dp_engine *e, int from, int to, dp_link *l); /* 0: no such pair */
/* How a batch of n would be cut: rows[i] of device i, over all rounds. Returns the number of devices; fills at most max. */
DP_API int dp_engine_split(const dp_engine *e, int64_t n, int64_t *rows, int max);
/* DP_ETIMEOUT: a device hangs and may go on at any time: the engine stays, and so must the batches that were in flight. Of a device that is lost
 * nothing is freed; the log says how much stays. */
DP_API dp_status dp_engine_close(dp_engine *e, dp_error *err);

/* ---- trainer: the loop that dptrain runs ---- */
typedef struct dp_trainer dp_trainer;
enum { DP_EVENT_START, DP_EVENT_STEP, DP_EVENT_EPOCH, DP_EVENT_EVAL, DP_EVENT_SAVE, DP_EVENT_END };
typedef struct dp_event {
    int32_t kind, reserved0;
    int64_t step, steps;     /* optimizer steps done, and of the whole run */
    int64_t epoch, epochs;   /* epoch counts from 1 */
    int64_t batch, batches;  /* of this epoch */
    const dp_result *result; /* STEP: of this step; EPOCH: training sums of the epoch; EVAL: evaluation sums; else NULL */
    const char *text;        /* START: what runs; SAVE: the path; END: the reason; else "" */
    double samples_per_s;    /* since the last event of this kind */
    int64_t reserved[8];
} dp_event;
typedef int (*dp_event_fn)(void *user, const dp_event *ev); /* non-zero = stop after this step, after saving */
/* g, train, eval NULL: from c ([model], [data]); then the trainer owns them. Nothing is written before everything is checked. */
DP_API dp_status dp_trainer_open(dp_trainer **t, const dp_graph *g, dp_data *train, dp_data *eval, const dp_config *c,
                                 dp_event_fn fn, void *user, dp_error *err);
DP_API dp_status dp_trainer_run(dp_trainer *t, dp_error *err); /* DP_ESTOPPED after a stop: state is saved */
DP_API void dp_trainer_stop(dp_trainer *t); /* from any thread or signal handler: end after this step, saving state */
DP_API dp_engine *dp_trainer_engine(dp_trainer *t);
DP_API const dp_graph *dp_trainer_graph(const dp_trainer *t);
/* The spans that are still held: of the batches in trace.json, and as dp_engine_trace gives them. */
DP_API dp_status dp_trainer_trace(dp_trainer *t, dp_span_fn fn, void *user, dp_error *err);
DP_API dp_status dp_trainer_eval(dp_trainer *t, dp_result *r, dp_error *err); /* over the evaluation set, now */
DP_API const char *dp_trainer_dir(const dp_trainer *t);                       /* the run directory */
/* With devices.on_device_failure = continue, after dp_trainer_run has failed with DP_EDEVICE_LOST or DP_ETIMEOUT of a device: writes the newest
 * state there is (the last snapshot, or the state file if that is newer) to the open file `fd`, and sets in c what a run that goes on
 * from there without the failed device needs: devices.use, .weights, .threads, run.dir, run.resume, run.overwrite. Touches no
 * device. dptrain puts the state in a memfd and executes itself anew with these settings, since such a failure ends the process' use of
 * CUDA; where it does not, close the trainer and open one with c. */
DP_API dp_status dp_trainer_rescue(dp_trainer *t, const dp_error *failure, int fd, dp_config *c, dp_error *err);
DP_API dp_status dp_trainer_close(dp_trainer *t, dp_error *err);

/* ---- the parts: each call runs one phase on every worker and returns when all are done ----
 * The functions of torch.nn.parallel. A group outlives its models and arrays. After a device has failed, every call returns that
 * failure again; close and free still work. A wrong argument or label harms nothing. */
typedef struct dp_group dp_group; /* devices and their threads */
typedef struct dp_model dp_model; /* parameters, gradients, buffers of a graph on one device */
typedef struct dp_array dp_array; /* rows on one device; made by the call that fills it, reused while it fits */

DP_API dp_status dp_group_open(dp_group **g, const dp_config *c, dp_error *err); /* devices.use, .threads, .timeout_s */
DP_API int dp_group_size(const dp_group *g);
DP_API int dp_group_device(const dp_group *g, int device, dp_device_info *info); /* 0: no such device */
/* fn(user, device) on every worker at once; returns when all have returned. Non-zero from any = DP_EDEVICE naming the lowest. */
DP_API dp_status dp_group_run(dp_group *g, int (*fn)(void *user, int device), void *user, dp_error *err);
/* As dp_engine_measure_links and dp_engine_link. 0: no such pair. */
DP_API dp_status dp_group_measure_links(dp_group *g, dp_error *err);
DP_API int dp_group_link(const dp_group *g, int from, int to, dp_link *l);
DP_API dp_status dp_group_close(dp_group *g, dp_error *err);
/* A model on one device for up to max_rows rows at a time; seeded start from c (run.seed). net must outlive it. */
DP_API dp_status dp_model_open(dp_model **m, dp_group *g, int device, const dp_graph *net, const dp_config *c, int64_t max_rows,
                               dp_error *err);
/* Optimizer step from the gradient sums: divides by divide_by (targets of the whole batch), clips, steps. Settings: model_open's c. */
DP_API dp_status dp_model_update(dp_model *m, double lr, double divide_by, dp_error *err);
DP_API dp_status dp_model_get(dp_model *m, const char *tensor, float *dst, int64_t count, dp_error *err); /* PyTorch's order */
DP_API void dp_model_close(dp_model *m);
/* replica[0..size): made on the first call (NULL before), then refreshed; replica[d] of the master's device is the master itself.
 * Every handle is closed once, in any order: the one of dp_model_open and each of replica[], the master's too. */
DP_API dp_status dp_replicate(dp_group *g, dp_model *master, dp_model **replica, dp_error *err);
/* Cut rows over the devices: sizes[d] rows to device d; sizes NULL = even. Devices without rows get an empty array. */
DP_API dp_status dp_scatter(dp_group *g, dp_rows host, const int64_t *sizes, dp_array **out, dp_error *err);
DP_API dp_status dp_parallel_apply(dp_group *g, dp_model **replica, dp_array **x, dp_array **y, int train, dp_error *err);
/* Loss against the targets, then backward: gradient sums in each replica; *sum = loss, targets, correct over all. */
DP_API dp_status dp_parallel_backward(dp_group *g, dp_model **replica, dp_array **target, dp_result *sum, dp_error *err);
/* Rows of all devices in order into host memory; sizes that do not agree name the two shapes. */
DP_API dp_status dp_gather(dp_group *g, dp_array **in, void *host, size_t bytes, dp_error *err);
/* Gradient sums of all replicas onto the master, in the halving tree over devices. */
DP_API dp_status dp_reduce(dp_group *g, dp_model **replica, dp_model *master, dp_error *err);
DP_API int64_t dp_array_rows(const dp_array *a);
DP_API void dp_array_free(dp_array *a);

/* ---- collectives: sums and copies between the devices of a group, or some of them, for loops of your own ----
 * As in NCCL, every member gives from[d] and gets to[d]; one call does it for all and returns when all is done. Lists have
 * dp_group_size entries; entry d is an array of device d, entries of devices that are not members are left alone. Arrays come from
 * dp_scatter, dp_parallel_apply or a call here, and go back to the host by dp_gather. to[d] may be NULL: it is made, and reused while it
 * fits. to[d] = from[d] (in place) is legal for broadcast, reduce and all_reduce.
 * Sums are of floats, in the halving tree over the members in device order: equal bytes on every device, in every run, by every
 * call. Any type can be copied. Rows are cut evenly, and joined in device order. A wrong device, shape or count is
 * DP_EARGUMENT and harms nothing; after a device has failed, every call returns that failure, as with the parts above.
 *
 * Bytes through a member's port, between devices: n members, C bytes of the whole array, c of the member's own rows of it.
 *                      root in        root out       other in      other out
 *     broadcast        0              C              C             (n-2)/(n-1) C
 *     reduce           2(n-1)/n C     (n-1)/n C      (n-1)/n C     C
 *     all_reduce       2(n-1)/n C     2(n-1)/n C     the same
 *     gather           C - c          0              0             c
 *     all_gather       C - c          (n-1) c        the same
 *     scatter          0              C - c          c             0
 *     reduce_scatter   (n-1) c        C - c          the same
 *     barrier          0              0              the same
 * Fractions are of whole blocks of 64 bytes; c in a reduce_scatter begins and ends with whole blocks. n = 1: nothing moves. */
typedef struct dp_collective dp_collective; /* members and their memory for sums; closed before its group */
/* Members: n different devices of the group in any order, devices NULL: all. max_count: elements of the largest whole array. */
DP_API dp_status dp_collective_open(dp_collective **c, dp_group *g, const int *devices, int n, int64_t max_count,
                                    dp_error *err);
DP_API dp_status dp_collective_broadcast(dp_collective *c, int root, dp_array **from, dp_array **to, dp_error *err);
DP_API dp_status dp_collective_reduce(dp_collective *c, int root, dp_array **from, dp_array **to, dp_error *err);
DP_API dp_status dp_collective_all_reduce(dp_collective *c, dp_array **from, dp_array **to, dp_error *err);
DP_API dp_status dp_collective_gather(dp_collective *c, int root, dp_array **from, dp_array **to, dp_error *err);
DP_API dp_status dp_collective_all_gather(dp_collective *c, dp_array **from, dp_array **to, dp_error *err);
DP_API dp_status dp_collective_scatter(dp_collective *c, int root, dp_array **from, dp_array **to, dp_error *err);
DP_API dp_status dp_collective_reduce_scatter(dp_collective *c, dp_array **from, dp_array **to, dp_error *err);
/* Returns when all that was launched on the members before has ended. */
DP_API dp_status dp_collective_barrier(dp_collective *c, dp_error *err);
DP_API void dp_collective_close(dp_collective *c);
/* Rows in the device's memory, for kernels of your own in dp_group_run; valid until the array is filled again. NULL: no rows. */
DP_API void *dp_array_data(const dp_array *a);
/* Bytes that a device has received from other devices of the group and sent to them since open, by all calls. 0: no such device. */
DP_API int dp_group_bytes(const dp_group *g, int device, int64_t *in, int64_t *out);

#ifdef __cplusplus
}
#endif
#endif
