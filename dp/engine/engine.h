/* Internal: what trainer and tests need of the engine beyond dp.h. */
#ifndef DP_ENGINE_ENGINE_H
#define DP_ENGINE_ENGINE_H
#include "../../nn/params.h"
#include "../../nn/safetensors.h"
#include "../dp.h"

/* Tensors into an open file: weights and buffers under their PyTorch names; with_state adds the optimizer's arrays as
 * "optimizer.m.NAME", "optimizer.v.NAME" (PyTorch's order) and the metadata keys "optimizer", "updates", "batches". Metadata "normalize",
 * "vocab" are the trainer's. After a failure o is only good for freeing. Nothing may be in flight. */
dp_status dp_engine_write(dp_engine *e, dp_st_out *o, int with_state, dp_error *err);
/* The last snapshot (devices.on_device_failure = continue) in the same form. Touches no device: good after any failure. */
dp_status dp_engine_rescue(const dp_engine *e, dp_st_out *o, dp_error *err);
int64_t dp_engine_snapshot(const dp_engine *e); /* training batches before it; -1: there is none */
/* devices.use, .weights, .threads of c without the device that an error names; DP_EARGUMENT: none is left, or it names none. */
dp_status dp_engine_without(const dp_engine *e, const dp_error *failure, dp_config *c, dp_error *err);
/* The reverse. with_state = 0: weights only, optimizer.* in the file is ignored. Refuses missing, extra and wrong-shape tensors, listing
 * them (a leading "module." on all names is stripped); changes nothing when it refuses. */
dp_status dp_engine_read(dp_engine *e, const dp_st_in *in, int with_state, dp_error *err);
/* Input normalisation per channel (data.normalize), uploaded to every device; n = channels of the input, 1 = the same for all, 0 = none. */
dp_status dp_engine_set_normalize(dp_engine *e, const double *mean, const double *std, int n, dp_error *err);
int64_t dp_engine_batches(const dp_engine *e); /* training batches submitted so far (epoch counter of batches without ids) */
#endif
