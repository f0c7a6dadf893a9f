/* Tables by row count are short (two or three entries; a few dozen with split = auto) and searched in order. */
#include "by_rows.h"
#include <stdlib.h>

void *dp_by_rows_find(const dp_by_rows *t, int64_t rows)
{
    for (int i = 0; i < t->n; i++) {
        if (t->item[i].rows == rows) return t->item[i].entry;
    }
    return NULL;
}

dp_status dp_by_rows_add(dp_by_rows *t, int64_t rows, void *entry, dp_error *err)
{
    if (t->n == t->room) {
        const int room = t->room ? 2 * t->room : 4;
        void *item = realloc(t->item, (size_t)room * sizeof *t->item);
        if (!item) return dp_fail(err, DP_ENOMEM, "Out of memory: table of row counts");
        t->item = item;
        t->room = room;
    }
    t->item[t->n].rows = rows;
    t->item[t->n++].entry = entry;
    return DP_OK;
}

void dp_by_rows_free(dp_by_rows *t, void (*entry_free)(void *entry))
{
    for (int i = 0; i < t->n; i++) entry_free(t->item[i].entry);
    free(t->item);
}

dp_status dp_spare_fit(dp_spare *s, size_t wanted, dp_error *err)
{
    if (wanted <= s->reserved || wanted <= s->bytes) return DP_OK;
    dp_spare_free(s);
    DP_TRY(dp_backend_cpu()->alloc(s->device, DP_MEM_WORKSPACE, wanted, s->what, &s->memory, err));
    s->bytes = wanted;
    return DP_OK;
}

void dp_spare_free(dp_spare *s)
{
    dp_backend_cpu()->free(s->device, DP_MEM_WORKSPACE, s->memory, s->bytes);
    s->memory = NULL;
    s->bytes = 0;
}
