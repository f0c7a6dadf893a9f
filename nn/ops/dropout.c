/* Dropout: zeroes elements with probability p in training and scales the rest, as torch.nn.Dropout. */
#include "ops.h"

static const dp_option options[] = {
    [DP_DROPOUT_P] = {"p", 0.5, 0, 0.999, 0, NULL, "probability of a zero"},
};

const dp_op dp_op_dropout = {.name = "dropout",
                             .kind = DP_OP_DROPOUT,
                             .options = options,
                             .n_options = DP_COUNT_OF(options),
                             .n_in = 1,
                             .pointwise = 1,
                             .draws = 1,
                             .infer = dp_infer_same};
