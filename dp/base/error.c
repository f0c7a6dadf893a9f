/* Writing errors down: always the whole struct, so that nothing of an older failure is left in it. */
#include "error.h"
#include "text.h"
#include <stdarg.h>
#include <string.h>

/* The text is made before the struct is cleared: an argument may be the text of the same error, which is being wrapped. */
static void fill(dp_error *err, dp_status code, const char *fmt, va_list ap)
{
    char text[sizeof err->text];
    int n = dp_vformat(text, sizeof text, fmt, ap);
    if (n >= (int)sizeof text) memcpy(text + sizeof text - 4, "...", 4);
    memset(err, 0, sizeof *err);
    memcpy(err->text, text, strlen(text));
    err->code = (int32_t)code;
    err->device = err->replica = err->phase = -1;
    err->step = -1;
}

dp_status dp_fail(dp_error *err, dp_status code, const char *fmt, ...)
{
    va_list ap;
    if (!err) return code;
    va_start(ap, fmt);
    fill(err, code, fmt, ap);
    va_end(ap);
    return code;
}

dp_status dp_fail_errno(dp_error *err, dp_status code, int errnum, const char *fmt, ...)
{
    va_list ap;
    char reason[128] = "";
    if (!err) return code;
    va_start(ap, fmt);
    fill(err, code, fmt, ap);
    va_end(ap);
    const char *text = strerror_r(errnum, reason, sizeof reason); /* GNU: may return a constant */
    size_t at = strlen(err->text);
    dp_format(err->text + at, sizeof err->text - at, ": %s", text);
    return code;
}

void dp_error_place(dp_error *err, int device, int replica, int phase, const char *phase_name, int64_t step, const char *layer)
{
    if (!err) return;
    if (device >= 0) err->device = device;
    if (replica >= 0) err->replica = replica;
    if (phase >= 0) err->phase = phase;
    if (phase_name) dp_format(err->phase_name, sizeof err->phase_name, "%s", phase_name);
    if (step >= 0) err->step = step;
    if (layer) dp_format(err->layer, sizeof err->layer, "%s", layer);
}
