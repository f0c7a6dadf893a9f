/* Internal to nn/cpu: a dropout's numbers, for the kernels that fuse one. */
#ifndef DP_NN_CPU_DROPOUT_H
#define DP_NN_CPU_DROPOUT_H
#include "cpu.h"

typedef struct dp_drop {
    uint32_t purpose, limit; /* of dp_vec_dropout.draw */
    float scale;             /* 1 / (1 - p); 0 where p = 1 */
} dp_drop;
dp_drop dp_drop_of(const dp_node *n);
#endif
