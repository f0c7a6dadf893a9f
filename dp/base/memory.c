/* Host allocation and the books of device memory. Counters are relaxed atomics: each number is exact alone. */
#include "memory.h"
#include "text.h"
#include <stdlib.h>
#include <string.h>

void *dp_calloc(size_t n, size_t size)
{
    size_t bytes, rounded;
    void *p = NULL;
    if (__builtin_mul_overflow(n, size, &bytes) || __builtin_add_overflow(bytes, (size_t)63, &rounded)) return NULL;
    rounded = rounded / 64 * 64;
    if (!rounded) rounded = 64;
    if (posix_memalign(&p, 64, rounded)) return NULL;
    return memset(p, 0, rounded);
}

static int64_t load(const int64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static int64_t add(int64_t *p, int64_t v)
{
    return __atomic_add_fetch(p, v, __ATOMIC_RELAXED);
}

const char *dp_memory_held(const dp_memory *m, char *buf, size_t size)
{
    dp_format(buf, size, "nothing yet");
    for (int c = 0, any = 0; c < DP_MEM_CLASSES; c++) {
        char one[32];
        size_t at = any ? strlen(buf) : 0;
        if (!load(&m->live[c])) continue;
        dp_format(buf + at, size - at, "%s%s %s", any ? ", " : "", dp_memory_class_name(c),
                  dp_bytes_text(one, sizeof one, load(&m->live[c])));
        any = 1;
    }
    return buf;
}

static dp_status over_limit(const dp_memory *m, int mem_class, int64_t bytes, const char *what, dp_error *err)
{
    char wanted[32], held[32], limit[32], rest[32], list[200];
    int64_t live = load(&m->total_live);
    return dp_fail(err, DP_ENOMEM, "Out of memory: %s (%s) wants %s, %s are free; %s of the limit of %s are held (%s).", what,
                   dp_memory_class_name(mem_class), dp_bytes_text(wanted, sizeof wanted, bytes),
                   dp_bytes_text(rest, sizeof rest, m->limit > live ? m->limit - live : 0),
                   dp_bytes_text(held, sizeof held, live), dp_bytes_text(limit, sizeof limit, m->limit),
                   dp_memory_held(m, list, sizeof list));
}

dp_status dp_memory_add(dp_memory *m, int mem_class, int64_t bytes, const char *what, dp_error *err)
{
    /* Booked first and taken back when too much, so that two threads together cannot pass the limit. */
    int64_t total = add(&m->total_live, bytes);
    if (m->limit && total > m->limit) {
        add(&m->total_live, -bytes);
        return over_limit(m, mem_class, bytes, what, err);
    }
    int64_t live = add(&m->live[mem_class], bytes), peak = load(&m->peak[mem_class]);
    while (live > peak && !__atomic_compare_exchange_n(&m->peak[mem_class], &peak, live, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
    add(&m->allocations, 1);
    return DP_OK;
}

void dp_memory_sub(dp_memory *m, int mem_class, int64_t bytes)
{
    add(&m->total_live, -bytes);
    add(&m->live[mem_class], -bytes);
}
