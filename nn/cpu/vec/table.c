/* The loops of one instruction set, gathered. */
#include "isa.h"

const dp_vec DP_VEC(dp_vec_table) = {
    .isa = DP_TEXT(DP_ISA),
    .flat = &DP_VEC(dp_vec_flat),
    .optimizer = &DP_VEC(dp_vec_optimizer),
    .convert = &DP_VEC(dp_vec_convert),
    .pointwise = &DP_VEC(dp_vec_pointwise),
    .softmax = &DP_VEC(dp_vec_softmax),
    .norm = &DP_VEC(dp_vec_norm),
    .pool = &DP_VEC(dp_vec_pool),
    .dropout = &DP_VEC(dp_vec_dropout),
    .attention = &DP_VEC(dp_vec_attention),
};
