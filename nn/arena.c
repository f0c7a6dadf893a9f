/* Greedy placement of buffers by lifetime: quadratic in the number of buffers, which is a few hundred, once at open. */
#include "arena.h"

static void sort_by_size(const dp_span *span, int n, int *order)
{
    for (int i = 0; i < n; i++) {
        int j = i;
        for (; j > 0 && span[order[j - 1]].bytes < span[i].bytes; j--) order[j] = order[j - 1];
        order[j] = i;
    }
}

size_t dp_arena_place(dp_span *span, int n, size_t alignment, int *order)
{
    size_t total = 0;
    sort_by_size(span, n, order);
    for (int i = 0; i < n; i++) {
        dp_span *s = &span[order[i]];
        s->bytes = (s->bytes + alignment - 1) / alignment * alignment;
        s->offset = 0;
        /* Lowest offset free of every placed neighbour in time: restart after each collision until none is left. */
        for (int j = 0; j < i;) {
            const dp_span *o = &span[order[j]];
            int in_time = s->first <= o->last && o->first <= s->last;
            if (in_time && s->offset < o->offset + o->bytes && o->offset < s->offset + s->bytes) {
                s->offset = o->offset + o->bytes;
                j = 0;
            } else {
                j++;
            }
        }
        if (s->offset + s->bytes > total) total = s->offset + s->bytes;
    }
    return total;
}
