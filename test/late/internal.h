/* Internal to test/late: what devices, streams and their work consist of. */
#ifndef DP_TEST_LATE_INTERNAL_H
#define DP_TEST_LATE_INTERNAL_H
#include "late.h"
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

enum { MAX_SOURCES = 64, MAX_LEAVES = 256, MAX_STREAMS = 8, STOP = LATE_KINDS, DRAIN };

/* Things of a device, so that those of a dead one can be taken away in the end. */
typedef struct late_link {
    struct late_link *next, **at;
} late_link;

typedef struct late_state { /* of an event; lives until event and queued work have let go of it */
    _Atomic int users;
    uint64_t recorded;       /* calls of record */
    _Atomic double when;     /* the last that was carried out */
    _Atomic uint64_t passed; /* ... and its number */
} late_state;

typedef struct late_leaves { /* arrays that are read at call time */
    const float *from[MAX_LEAVES];
    int64_t rows[MAX_LEAVES];
} late_leaves;

typedef struct late_work {
    struct late_work *next;
    int kind;
    dp_status fails; /* injected */
    int hangs, kills;
    union {
        struct {
            void *dst;
            const void *src;
            size_t bytes;
            int byte;
        } copy;
        struct {
            dp_run run;
            void *dst;
            dp_dtype dst_type;
            const void *src;
            dp_dtype src_type;
            dp_layout layout;
            int64_t shape[3];
            const float *mean, *inv_std;
        } convert;
        struct {
            dp_kernel *kernel;
            dp_run run;
            const dp_run *run_device;
            dp_io io;
            int backward; /* of partial */
        } kernel;
        struct {
            const dp_loss *loss;
            int64_t rows;
            const float *logits;
            const void *targets;
            dp_dtype type;
            float *d_logits;
            dp_loss_sums *sums;
        } loss;
        struct {
            float *dst;
            const float *src[MAX_SOURCES];
            int n;
            int64_t count;
        } sum;
        struct {
            float *whole;
            late_leaves *leaves;
            int n;
            int64_t channels;
        } pool;
        struct {
            float *shadow;
            const float *buffer;
            const dp_bn_layer *layers;
            int n_layers;
            late_leaves *leaves;
            int n;
        } merge;
        struct {
            const float *x;
            int64_t count;
            void *chunk_sums;
        } chunks; /* sums of squares, checksums */
        struct {
            const double *chunk_sums;
            int64_t n;
            const dp_run *run;
            const dp_optimizer *o;
            dp_verdict *verdict;
        } norm;
        struct {
            const dp_optimizer *o;
            const dp_range *ranges;
            int n;
            int64_t first, count;
            float *p;
            const float *g;
            float *m, *v;
            const dp_run *run;
            const dp_verdict *verdict;
        } update;
        struct {
            late_state *event;
            uint64_t generation;
        } event;
        sem_t *drained;
    } u;
} late_work;

struct dp_be_device {
    late_link all; /* open devices; first member */
    dp_be_device *inner;
    dp_be_options options;
    late_options how;
    _Atomic int failed;  /* dp_status, for good */
    _Atomic int working; /* streams that carry something out */
    dp_be_stream *stream[MAX_STREAMS];
    int n_streams;
    dp_memory memory;
    pthread_mutex_t lock; /* of blocks: its worker and who kills it */
    late_link *blocks, *kernels, *events;
};
struct dp_be_stream {
    dp_be_device *device;
    dp_be_stream *inner;
    pthread_t thread;
    sem_t queued;
    late_work *head; /* the reader's: already done; what follows it is next */
    late_work *tail; /* the writer's */
    uint64_t random;
};
struct dp_be_event {
    late_link of_device; /* first member */
    dp_be_device *device;
    dp_be_event *inner;
    late_state *state;
};
struct dp_kernel {
    late_link of_device; /* first member */
    dp_be_device *device;
    dp_kernel *inner;
};

static inline void late_link_in(late_link **list, late_link *l)
{
    l->next = *list;
    l->at = list;
    if (*list) (*list)->at = &l->next;
    *list = l;
}
static inline void late_link_out(late_link *l)
{
    *l->at = l->next;
    if (l->next) l->next->at = l->at;
}

/* late.c */
/* The failure as calls see it: only when nothing is under way any more, as with a lost context. */
int late_failed(const dp_be_device *d);
dp_status late_met(const dp_be_options *o, int kind, dp_error *err); /* a call that is no stream's */
dp_status late_enqueue(dp_be_stream *s, const late_work *w);
dp_status late_drain(dp_be_device *d);
void *late_stream_main(void *stream);
void late_let_go(late_state *s);
void late_forget(const late_options *o); /* faults, hangs */
const late_options *late_now(void);
void late_destroy_stream(dp_be_stream *s); /* whatever the device's state */
void late_destroy_event(dp_be_event *e);
void late_destroy_kernel(dp_kernel *k);

/* dead.c */
int late_dead(int device);
void late_lose(int device); /* a call said that it is lost: the others will, too */
void late_device_in(dp_be_device *d);
void late_device_out(dp_be_device *d);
dp_status late_map(dp_be_device *d, int mem_class, size_t bytes, const char *what, void **p, dp_error *err);
void late_unmap(dp_be_device *d, int mem_class, void *p, size_t bytes);
dp_status late_pin(dp_be_device *d, void *p, size_t bytes, dp_error *err);
void late_unpin(dp_be_device *d, void *p);
int late_touches(const dp_be_device *d); /* counts when it is dead: leave it alone then */
/* Around a piece of work: nobody dies meanwhile. DP_EDEVICE: it would touch what is dead. */
dp_status late_begin(const dp_be_device *by, const late_work *w);
void late_end(void);
void late_bury(void);
#endif
