/* Internal: monotonic time. */
#ifndef DP_BASE_CLOCK_H
#define DP_BASE_CLOCK_H
#include <time.h>
static inline double dp_now(void) /* seconds, CLOCK_MONOTONIC */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
#endif
