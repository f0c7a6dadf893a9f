/* The split planner: vectors of known cases, and properties over all small sizes. */
#include "../../dp/group/split.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

enum { END = -1 };

static dp_splitter how(dp_split_kind kind, int leaves, int devices, int min_rows)
{
    dp_splitter s = {.kind = kind, .leaves = leaves, .devices = devices, .min_rows = min_rows};
    for (int i = 0; i < DP_MAX_LEAVES; i++) s.weight[i] = 1;
    return s;
}

static void expect(const dp_splitter *h, int64_t batch, const int64_t *rows) /* END at the end: the other leaves are empty */
{
    dp_split s;
    int64_t first = 0;
    int given = 1;
    dp_split_plan(&s, h, batch);
    for (int i = 0; i < h->leaves; i++) {
        given = given && rows[i] != END;
        assert_int_equal(s.leaf[i].rows, given ? rows[i] : 0);
        assert_int_equal(s.leaf[i].first, first);
        first += s.leaf[i].rows;
    }
    assert_int_equal(first, batch);
}
#define EXPECT(h, batch, ...) expect(&(h), batch, (const int64_t[]){__VA_ARGS__, END})

static void even_differs_by_one(void **state) /* P30, P33 */
{
    (void)state;
    dp_splitter four = how(DP_SPLIT_EVEN, 4, 4, 1), seven = how(DP_SPLIT_EVEN, 7, 7, 1);
    EXPECT(four, 9, 3, 2, 2, 2);
    EXPECT(seven, 36, 6, 5, 5, 5, 5, 5, 5);
    EXPECT(four, 3, 1, 1, 1);
    EXPECT(four, 10, 3, 3, 2, 2);
    EXPECT(four, 1, 1);
}

static void batchnorm_on_single_values_gets_two(void **state) /* P32 */
{
    (void)state;
    dp_splitter h = how(DP_SPLIT_EVEN, 4, 4, 2);
    EXPECT(h, 5, 3, 2);
    EXPECT(h, 4, 2, 2);
    EXPECT(h, 3, 3);
    EXPECT(h, 9, 3, 2, 2, 2);
}

static void chunk_is_the_ceil_rule(void **state)
{
    (void)state;
    dp_splitter four = how(DP_SPLIT_CHUNK, 4, 4, 1), three = how(DP_SPLIT_CHUNK, 3, 3, 1), seven = how(DP_SPLIT_CHUNK, 7, 7, 1);
    EXPECT(four, 9, 3, 3, 3);
    EXPECT(three, 7, 3, 3, 1);
    EXPECT(seven, 36, 6, 6, 6, 6, 6, 6);
    EXPECT(four, 2, 1, 1);
}

static void weights_give_shares(void **state) /* P45 */
{
    (void)state;
    dp_splitter two = how(DP_SPLIT_WEIGHTS, 2, 2, 1), three = how(DP_SPLIT_WEIGHTS, 3, 3, 1);
    two.weight[0] = 3;
    EXPECT(two, 16, 12, 4);
    EXPECT(two, 5, 4, 1); /* 3.75 and 1.25: the larger fraction gets the one left */
    EXPECT(two, 1, 1);
    EXPECT(three, 8, 3, 3, 2); /* equal fractions: the lowest first */
    three.weight[1] = 0.5;
    EXPECT(three, 10, 4, 2, 4);
}

static void weights_spare_a_batchnorm(void **state)
{
    (void)state;
    dp_splitter h = how(DP_SPLIT_WEIGHTS, 3, 3, 2);
    h.weight[0] = 8;
    EXPECT(h, 10, 10); /* 8, 1, 1: the parts of one go to the largest */
    EXPECT(h, 20, 16, 2, 2);
}

/* Depth-first sum of the halving tree over leaves lo .. lo + n - 1, as a set of brackets. */
static int nodes(int lo, int n, int (*at)[2], int count)
{
    at[count][0] = lo, at[count][1] = n;
    count++;
    if (n == 1) return count;
    int left = (n + 1) / 2;
    count = nodes(lo, left, at, count);
    return nodes(lo + left, n - left, at, count);
}

static void devices_own_whole_subtrees(void **state)
{
    (void)state;
    int node[128][2];
    dp_split s;
    for (int leaves = 1; leaves <= 32; leaves++) {
        int n = nodes(0, leaves, node, 0);
        for (int devices = 1; devices <= leaves; devices++) {
            dp_splitter h = how(DP_SPLIT_EVEN, leaves, devices, 1);
            dp_split_plan(&s, &h, leaves);
            assert_int_equal(s.begin[0], 0);
            assert_int_equal(s.begin[devices], leaves);
            int most = 0;
            for (int d = 0; d < devices; d++) {
                int found = 0, own = s.begin[d + 1] - s.begin[d];
                for (int i = 0; i < n; i++) found |= node[i][0] == s.begin[d] && node[i][1] == own;
                assert_true(found);
                if (own > most) most = own;
            }
            assert_int_equal(s.rounds, most);
        }
    }
}

static void nothing_is_lost_and_the_capacity_holds(void **state)
{
    (void)state;
    dp_split s;
    for (int kind = DP_SPLIT_EVEN; kind <= DP_SPLIT_WEIGHTS; kind++)
        for (int leaves = 1; leaves <= 9; leaves++)
            for (int min_rows = 1; min_rows <= 2; min_rows++) {
                dp_splitter h = how((dp_split_kind)kind, leaves, (leaves + 1) / 2, min_rows);
                for (int i = 0; i < leaves; i++) h.weight[i] = 1 + i % 3;
                int64_t capacity = dp_split_capacity(&h, 40), most = 0;
                for (int64_t batch = 1; batch <= 40; batch++) {
                    int64_t sum = 0, low = batch;
                    dp_split_plan(&s, &h, batch);
                    for (int i = 0; i < leaves; i++) {
                        int64_t rows = s.leaf[i].rows;
                        assert_int_equal(s.leaf[i].first, sum);
                        sum += rows;
                        if (rows && rows < low) low = rows;
                        if (rows > most) most = rows;
                    }
                    assert_int_equal(sum, batch);
                    if (kind == DP_SPLIT_EVEN && batch >= min_rows) assert_true(low >= min_rows);
                }
                assert_int_equal(capacity, most);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(even_differs_by_one),
        cmocka_unit_test(batchnorm_on_single_values_gets_two),
        cmocka_unit_test(chunk_is_the_ceil_rule),
        cmocka_unit_test(weights_give_shares),
        cmocka_unit_test(weights_spare_a_batchnorm),
        cmocka_unit_test(devices_own_whole_subtrees),
        cmocka_unit_test(nothing_is_lost_and_the_capacity_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
