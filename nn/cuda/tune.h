/* Internal to nn/cuda: devices.tune = measure. Of several ways to compute the same, the fastest on GPUs of this kind. */
#ifndef DP_NN_CUDA_TUNE_H
#define DP_NN_CUDA_TUNE_H
#include "cuda.h"

/* Gives candidate i to the stream. `memory` is device memory of the size that was asked for, zeroed before the first run. A failure other than
 * DP_EDEVICE_LOST rules the candidate out. */
typedef dp_status (*dp_tune_run)(void *user, int i, dp_be_stream *s, void *memory);
/* *choice of n candidates: as the cache has it, else timed here, and kept there. `key` says in one line what is computed. Only while the plan
 * opens: allocates and waits. Candidate 0, the library's own choice, where there is nothing to choose or to be had: n < 2, not wanted, no
 * cache can be kept (devices of one kind would choose on their own), no memory to measure in. */
dp_status dp_tune_pick(dp_be_device *d, const char *key, int n, dp_tune_run run, void *user, size_t memory, int *choice,
                       dp_error *err);
void dp_tune_close(dp_be_device *d);
const char *dp_tune_notes(const dp_be_device *d); /* dp_backend.notes */
#endif
