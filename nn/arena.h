/* Internal: places buffers with known lifetimes in one block of memory. */
#ifndef DP_NN_ARENA_H
#define DP_NN_ARENA_H
#include <stddef.h>

typedef struct dp_span {
    size_t bytes;
    int first, last; /* times of first and last use, inclusive */
    size_t offset;   /* result */
} dp_span;

/* Sets the offsets so that spans whose times overlap do not overlap in memory, each a multiple of `alignment`. Greedy by size:
 * the largest first, each at the lowest free place (Pisarchyk and Lee, "Efficient memory management for deep neural net
 * inference", 2020). `order` is scratch of n ints. Returns the bytes of the whole block. */
size_t dp_arena_place(dp_span *span, int n, size_t alignment, int *order);
#endif
