/* Internal: threads that fill slots in order.
 * Life of a slot: FREE -> FILLING (one loader thread owns it) -> READY -> LENT (the caller) -> FREE. Every change under the
 * loader's mutex; the bytes of a slot are written by its one filler only and read by its borrower only. */
#ifndef DP_DATA_LOADER_H
#define DP_DATA_LOADER_H
#include "../dp/base/config.h"
#include "data.h"

typedef struct dp_slot_memory { /* where slots live: the engine gives pinned memory; NULL functions = plain memory */
    dp_status (*alloc)(void *user, size_t bytes, void **p, dp_error *err);
    void (*release)(void *user, void *p, size_t bytes);
    void *user;
} dp_slot_memory;
typedef struct dp_loader_options {
    int64_t batch_size;
    int accumulate; /* last_of_window after this many batches and at an epoch's end */
    int shuffle;    /* order of an epoch = permutation keyed by (seed, epoch) */
    int drop_last;
    int merge_small; /* a last batch smaller than this is joined to the one before (small_batch = merge); 0: off */
    int drop_small;  /* a last batch smaller than this is left out (small_batch = drop), counted; 0: off */
    uint64_t seed;
    int workers;  /* threads; 0 = the caller's own thread fills in dp_loader_next */
    int prefetch; /* slots */
    double timeout_s;
} dp_loader_options;
dp_status dp_loader_open(dp_loader **l, dp_data *d, const dp_loader_options *o, const dp_slot_memory *m, dp_error *err);
/* Position: the next batch is number `batch` (0-based) of `epoch`; prefetch runs on past an epoch's end. Drops what was filled. */
dp_status dp_loader_seek(dp_loader *l, uint64_t epoch, int64_t batch, dp_error *err);
int64_t dp_loader_batches(const dp_loader *l);  /* of one epoch */
int64_t dp_loader_max_rows(const dp_loader *l); /* of the largest batch that occurs */
int64_t dp_loader_dropped(const dp_loader *l);  /* samples left out per epoch by drop_small or drop_last */
double dp_loader_waited(const dp_loader *l);    /* seconds the caller waited in next since open */
/* The order of an epoch, for tests and logs: order[i] = sample index at position i. */
void dp_sample_order(int64_t *order, int64_t n, uint64_t seed, uint64_t epoch, int shuffle);
/* Per-channel mean and deviation of u8 samples / 255, over the whole set. channels <= 16; refused for other types. */
dp_status dp_data_moments(const dp_data *d, double *mean, double *std, int channels, dp_error *err);
/* Text facts of a set that belong into the weights' metadata ("vocab" of tokens: the characters as UTF-8/escaped), or NULL. */
const char *dp_data_vocab(const dp_data *d);
/* Label or target check of one fetched row happens at open for files; for callbacks when fetched. */
#endif
