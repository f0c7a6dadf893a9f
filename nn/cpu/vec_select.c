/* Which of the builds of vec/ this processor (and its operating system) can run. */
#include "vec.h"

extern const dp_vec dp_vec_table_base, dp_vec_table_v3, dp_vec_table_v4;

static int runs_v3(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("lzcnt") &&
           __builtin_cpu_supports("movbe");
}

static int runs_v4(void)
{
    return runs_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

const dp_vec *dp_vec_at(int i)
{
    __builtin_cpu_init();
    if (i == 0) return &dp_vec_table_base;
    if (i == 1 && runs_v3()) return &dp_vec_table_v3;
    if (i == 2 && runs_v4()) return &dp_vec_table_v4;
    return NULL;
}

const dp_vec *dp_vec_select(void)
{
    const dp_vec *best = dp_vec_at(0);
    for (int i = 1; dp_vec_at(i); i++) best = dp_vec_at(i);
    return best;
}
