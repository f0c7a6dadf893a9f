/* Internal: host allocation with checked sizes, and the counters of a device's memory by class. */
#ifndef DP_BASE_MEMORY_H
#define DP_BASE_MEMORY_H
#include "base.h"
#include "error.h"

/* n * size zeroed bytes, 64-byte aligned; NULL on overflow or out of memory. n * size = 0 gives a valid pointer. Free with free(). */
void *dp_calloc(size_t n, size_t size);

/* Counters of one device. Writers: any thread of the device; readers: any thread (relaxed atomics, each number is exact alone). */
typedef struct dp_memory {
    int64_t limit; /* bytes over all classes, 0 = none; set before use */
    int64_t total_live;
    int64_t live[DP_MEM_CLASSES], peak[DP_MEM_CLASSES];
    int64_t allocations; /* how many succeeded since open */
} dp_memory;
/* Book `bytes`: DP_ENOMEM with P04's text (wanted, held by class, limit, free) when the limit would be passed. */
dp_status dp_memory_add(dp_memory *m, int mem_class, int64_t bytes, const char *what, dp_error *err);
void dp_memory_sub(dp_memory *m, int mem_class, int64_t bytes);
const char *dp_memory_held(const dp_memory *m, char *buf, size_t size); /* "parameters 4.2 MB, workspace 1.0 MB"; returns buf */
#endif
