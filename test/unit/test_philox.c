/* Philox4x32-10 against the known answers of its authors (Random123), and the draw's counter words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "../../dp/base/philox.h"

static void known_answers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } v[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        const uint32_t *c = v[i].counter;
        dp_u32x4 r = dp_philox((uint64_t)v[i].key[1] << 32 | v[i].key[0], c[0], c[1], c[2], c[3]);
        for (int k = 0; k < 4; k++) assert_int_equal(r.v[k], v[i].want[k]);
    }
}

/* key = seed; counter = element / 4, purpose XOR high half of the sample, low half, epoch. */
static void draw_counter(void **state)
{
    (void)state;
    dp_u32x4 a = dp_draw(0x299f31d0a4093822u, 0x85a308d3u ^ 0x11u, 0x0000001113198a2eu, 0x03707344, 0x243f6a88);
    assert_int_equal(a.v[0], 0xd16cfe09);
    assert_int_equal(a.v[3], 0x24126ea1);
    dp_u32x4 b = dp_draw(0x299f31d0a4093822u, 0x85a308d3u ^ 0x11u, 0x0000001113198a2eu, 0x03707345, 0x243f6a88);
    assert_true(a.v[0] != b.v[0]);
}

static void uniform_range(void **state)
{
    (void)state;
    assert_true(dp_uniform(0) == 0.0f);
    assert_true(dp_uniform(0xffffffffu) < 1.0f);
    assert_true(dp_uniform(0xffffffffu) == 1.0f - 1.0f / 16777216.0f);
    assert_true(dp_uniform(0x80000000u) == 0.5f);
    /* The mean of 4n draws has deviation sqrt(1/12 / 4n); five of them are never passed by a sound generator. */
    enum { QUADS = 25000 };
    double sum = 0;
    for (uint32_t q = 0; q < QUADS; q++) {
        dp_u32x4 r = dp_draw(1, 2, 3, 4, q);
        for (int k = 0; k < 4; k++) sum += (double)dp_uniform(r.v[k]);
    }
    double off = sum / (4 * QUADS) - 0.5;
    assert_true(off * off < 25.0 / 12 / (4 * QUADS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_answers), cmocka_unit_test(draw_counter),
                                       cmocka_unit_test(uniform_range)};
    return cmocka_run_group_tests_name("philox", tests, NULL, NULL);
}
