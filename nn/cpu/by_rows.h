/* Internal to nn/cpu: what a kernel makes for each row count, and memory for the row count that wants more than the plan reserved.
 *
 * A primitive is chosen by its row count alone, never by the capacity: a leaf then rounds alike on every device. Its scratch may so
 * be larger for some smaller count than for the capacity; the difference is found at prepare time and bought there. */
#ifndef DP_NN_CPU_BY_ROWS_H
#define DP_NN_CPU_BY_ROWS_H
#include "cpu.h"

typedef struct dp_by_rows {
    int n, room;
    struct dp_rows_item {
        int64_t rows;
        void *entry;
    } * item;
} dp_by_rows;
void *dp_by_rows_find(const dp_by_rows *t, int64_t rows); /* NULL: not prepared */
dp_status dp_by_rows_add(dp_by_rows *t, int64_t rows, void *entry, dp_error *err);
void dp_by_rows_free(dp_by_rows *t, void (*entry_free)(void *entry));

typedef struct dp_spare {
    dp_be_device *device;
    const char *what;       /* for messages: the layer */
    size_t reserved, bytes; /* by the plan, in `memory` */
    void *memory;
} dp_spare;
dp_status dp_spare_fit(dp_spare *s, size_t wanted, dp_error *err); /* `wanted` bytes will be used by some call */
void dp_spare_free(dp_spare *s);
static inline void *dp_spare_use(const dp_spare *s, void *given, size_t wanted)
{
    return wanted > s->reserved ? s->memory : given;
}
#endif
