/* Internal: how a batch is cut. A step works on L leaves (logical shards): S with devices.shards = S, else one per device. Leaves and
 * devices are halved together (left half larger), so that a device owns a whole subtree of the summation tree over leaves, and
 * the sum over devices in the same kind of tree is the sum over leaves. */
#ifndef DP_GROUP_SPLIT_H
#define DP_GROUP_SPLIT_H
#include "../base/base.h"
#include "../base/error.h"

enum { DP_MAX_LEAVES = 256 };
typedef enum dp_split_kind {
    DP_SPLIT_EVEN,
    DP_SPLIT_CHUNK,
    DP_SPLIT_WEIGHTS,
    DP_SPLIT_AUTO
} dp_split_kind; /* order of devices.split */
typedef struct dp_splitter {
    dp_split_kind kind;
    int leaves, devices;
    int min_rows;                 /* 2 where a batchnorm sees 1 x 1 maps in training, else 1 */
    double weight[DP_MAX_LEAVES]; /* weights, auto: of each leaf */
} dp_splitter;
typedef struct dp_leaf {
    int64_t first, rows; /* rows = 0: empty, takes no part */
} dp_leaf;
typedef struct dp_split {
    int leaves, devices;
    dp_leaf leaf[DP_MAX_LEAVES];
    int begin[DP_MAX_LEAVES + 1]; /* device d runs the leaves begin[d] .. begin[d + 1] - 1, one a round */
    int rounds;                   /* largest number of leaves of a device that are not empty */
} dp_split;

/* even: sizes differ by at most 1, no leaf below min_rows unless the batch itself is. chunk: ceil(batch / leaves) each, PyTorch's rule.
 * weights: floor(batch * w / sum), the remainder to the largest fractions. auto: the same, but no leaf above twice the even share. */
void dp_split_plan(dp_split *s, const dp_splitter *how, int64_t batch);
/* Largest leaf over all batches of 1 .. max_batch: what a plan must hold. */
int64_t dp_split_capacity(const dp_splitter *how, int64_t max_batch);
#endif
