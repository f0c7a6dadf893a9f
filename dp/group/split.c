/* The split planner: pure functions of sizes. */
#include "split.h"
#include <math.h>
#include <string.h>

static void own(dp_split *s, int leaf, int leaves, int device, int devices)
{
    if (devices == 1) {
        s->begin[device] = leaf;
        return;
    }
    int left_leaves = (leaves + 1) / 2, left_devices = (devices + 1) / 2;
    own(s, leaf, left_leaves, device, left_devices);
    own(s, leaf + left_leaves, leaves - left_leaves, device + left_devices, devices - left_devices);
}

static void even(int64_t *rows, int leaves, int64_t batch, int min_rows)
{
    int64_t used = batch / min_rows;
    if (used > leaves) used = leaves;
    if (used < 1) used = 1;
    for (int i = 0; i < leaves; i++) rows[i] = i < used ? batch / used + (i < batch % used) : 0;
}

static void chunk(int64_t *rows, int leaves, int64_t batch)
{
    int64_t size = (batch + leaves - 1) / leaves, left = batch;
    for (int i = 0; i < leaves; i++) {
        rows[i] = left < size ? left : size;
        left -= rows[i];
    }
}

/* auto: what a leaf has above twice the even share goes to the ones with the most room for their weight. */
static void limit(int64_t *rows, const dp_splitter *how, int64_t batch)
{
    int64_t most = 2 * ((batch + how->leaves - 1) / how->leaves), over = 0;
    for (int i = 0; i < how->leaves; i++) {
        if (rows[i] <= most) continue;
        over += rows[i] - most;
        rows[i] = most;
    }
    for (; over > 0; over--) {
        int best = -1;
        for (int i = 0; i < how->leaves; i++)
            if (rows[i] < most &&
                (best < 0 || how->weight[i] * (double)(rows[best] + 1) > how->weight[best] * (double)(rows[i] + 1)))
                best = i;
        rows[best]++;
    }
}

static void weighted(int64_t *rows, const dp_splitter *how, int64_t batch)
{
    double sum = 0, fraction[DP_MAX_LEAVES];
    int64_t left = batch;
    for (int i = 0; i < how->leaves; i++) sum += how->weight[i];
    for (int i = 0; i < how->leaves; i++) {
        double share = (double)batch * how->weight[i] / sum;
        rows[i] = (int64_t)floor(share);
        fraction[i] = share - floor(share);
        left -= rows[i];
    }
    for (; left > 0; left--) {
        int best = 0;
        for (int i = 1; i < how->leaves; i++)
            if (fraction[i] > fraction[best]) best = i;
        rows[best]++;
        fraction[best] = -1;
    }
    if (how->kind == DP_SPLIT_AUTO) limit(rows, how, batch);
    /* A leaf that is too small for a batchnorm gives its rows to the largest. */
    for (int i = 0; i < how->leaves; i++) {
        int largest = 0;
        for (int j = 1; j < how->leaves; j++)
            if (rows[j] > rows[largest]) largest = j;
        if (i == largest || rows[i] >= how->min_rows) continue;
        rows[largest] += rows[i];
        rows[i] = 0;
    }
}

void dp_split_plan(dp_split *s, const dp_splitter *how, int64_t batch)
{
    int64_t rows[DP_MAX_LEAVES], first = 0;
    memset(s, 0, sizeof *s);
    s->leaves = how->leaves, s->devices = how->devices;
    own(s, 0, how->leaves, 0, how->devices);
    s->begin[how->devices] = how->leaves;
    if (how->kind == DP_SPLIT_EVEN)
        even(rows, how->leaves, batch, how->min_rows);
    else if (how->kind == DP_SPLIT_CHUNK)
        chunk(rows, how->leaves, batch);
    else
        weighted(rows, how, batch);
    for (int i = 0; i < how->leaves; i++) {
        s->leaf[i] = (dp_leaf){first, rows[i]};
        first += rows[i];
    }
    for (int d = 0; d < how->devices; d++) {
        int full = 0;
        for (int i = s->begin[d]; i < s->begin[d + 1]; i++) full += s->leaf[i].rows > 0;
        if (full > s->rounds) s->rounds = full;
    }
}

int64_t dp_split_capacity(const dp_splitter *how, int64_t max_batch)
{
    if (how->kind == DP_SPLIT_AUTO) { /* whatever the weights become; and what too small leaves give to the largest */
        int64_t bound = 2 * ((max_batch + how->leaves - 1) / how->leaves) + (int64_t)how->leaves * (how->min_rows - 1);
        return bound < max_batch ? bound : max_batch;
    }
    int64_t most = 1, edge = 4 * (int64_t)how->leaves;
    dp_split s;
    /* Leaves grow with the batch but for roundings: small batches, where leaves stay empty, and the last few decide. */
    for (int64_t n = 1; n <= max_batch; n = n == edge && n < max_batch - edge ? max_batch - edge : n + 1) {
        dp_split_plan(&s, how, n);
        for (int i = 0; i < s.leaves; i++)
            if (s.leaf[i].rows > most) most = s.leaf[i].rows;
    }
    return most;
}
