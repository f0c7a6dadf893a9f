/* Internal: how a failure is written down. Every function that fails does so by `return dp_fail(err, CODE, "...")`. */
#ifndef DP_BASE_ERROR_H
#define DP_BASE_ERROR_H
#include "base.h"

/* Fills *err (when not NULL): code and text, device, replica, phase and step -1, layer "". Numbers are printed with a dot in
 * any locale; text that is too long ends in "...". Returns code. */
dp_status dp_fail(dp_error *err, dp_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
dp_status dp_fail_errno(dp_error *err, dp_status code, int errnum, const char *fmt, ...) /* appends ": " and errnum's text */
    __attribute__((format(printf, 4, 5)));
/* Adds the place to an error that is already written; values < 0 and NULL leave what is there. */
void dp_error_place(dp_error *err, int device, int replica, int phase, const char *phase_name, int64_t step, const char *layer);

#define DP_TRY(call)                                                                                                           \
    do {                                                                                                                       \
        dp_status dp_try_status_ = (call);                                                                                     \
        if (dp_try_status_) return dp_try_status_;                                                                             \
    } while (0)
#endif
