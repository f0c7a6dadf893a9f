/* Numbers as people read them. */
#include "figures.h"
#include <math.h>
#include <stdio.h>

const char *bytes_text(char *buf, size_t size, double bytes)
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB"};
    int u = 0;
    while (bytes >= 999.5 && u < 4) bytes /= 1000, u++;
    snprintf(buf, size, bytes < 9.95 && u ? "%.1f %s" : "%.0f %s", bytes, unit[u]);
    return buf;
}

const char *count_text(char *buf, size_t size, int64_t n)
{
    char digits[32];
    int len = snprintf(digits, sizeof digits, "%lld", (long long)n);
    size_t at = 0;
    for (int i = 0; i < len && at + 2 < size; i++) {
        if (i && (len - i) % 3 == 0) buf[at++] = ',';
        buf[at++] = digits[i];
    }
    buf[at] = 0;
    return buf;
}

const char *seconds_text(char *buf, size_t size, double s)
{
    static const char *const unit[] = {"s", "ms", "us"};
    int u = 0;
    double v = fabs(s);
    if (v < 5e-10) return snprintf(buf, size, "0"), buf;
    while (v < 0.9995 && u < 2) v *= 1000, u++;
    snprintf(buf, size, "%.*f %s", v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2, s < 0 ? -v : v, unit[u]);
    return buf;
}
