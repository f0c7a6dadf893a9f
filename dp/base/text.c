/* Numbers and names as text. The C locale is a constant object of the C library: making it costs nothing and needs no freeing. */
#include "text.h"
#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static locale_t c_locale(void)
{
    return newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

int dp_vformat(char *buf, size_t size, const char *fmt, va_list ap)
{
    locale_t c = c_locale(), before = c ? uselocale(c) : (locale_t)0;
    int n = vsnprintf(buf, size, fmt, ap);
    if (before) uselocale(before);
    return n;
}

int dp_format(char *buf, size_t size, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = dp_vformat(buf, size, fmt, ap);
    va_end(ap);
    return n;
}

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The text without blanks around it, if it fits. */
static int trimmed(const char *text, char *buf, size_t size)
{
    size_t n;
    while (is_blank(*text)) text++;
    n = strlen(text);
    while (n && is_blank(text[n - 1])) n--;
    if (!n || n >= size) return 0;
    memcpy(buf, text, n);
    buf[n] = 0;
    return 1;
}

int dp_parse_int(const char *text, int64_t *value)
{
    char buf[64], *end;
    if (!trimmed(text, buf, sizeof buf)) return 0;
    const char *digits = buf + (buf[0] == '-' || buf[0] == '+');
    if (!*digits || strspn(digits, "0123456789") != strlen(digits)) return 0;
    errno = 0;
    long long v = strtoll(buf, &end, 10);
    if (errno == ERANGE) return -1;
    *value = v;
    return 1;
}

int dp_parse_double(const char *text, double *value)
{
    char buf[128], *end;
    if (!trimmed(text, buf, sizeof buf)) return 0;
    if (strspn(buf, "0123456789+-.eE") != strlen(buf)) return 0; /* no nan, inf, hex, comma */
    double v = strtod_l(buf, &end, c_locale());
    if (*end || end == buf) return 0;
    if (isinf(v)) return -1;
    *value = v;
    return 1;
}

const char *dp_quote(char *buf, size_t size, const char *text)
{
    size_t at = 0;
    if (size < 16) return size ? (*buf = 0, buf) : buf;
    buf[at++] = '"';
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (at + 10 > size) {
            memcpy(buf + at, "...", 3), at += 3;
            break;
        }
        if (*p < 32 || *p == 127)
            at += (size_t)snprintf(buf + at, size - at, "\\x%02X", *p);
        else
            buf[at++] = (char)*p;
    }
    buf[at++] = '"';
    buf[at] = 0;
    return buf;
}

/* Levenshtein over one row; names here are short. */
static int distance(const char *a, const char *b)
{
    int row[64];
    int n = (int)strlen(b);
    if (n > 63 || strlen(a) > 63) return 1000;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

int dp_nearest(const char *text, const char *const *names, int n)
{
    int best = -1, least = 2 + (int)(strlen(text) / 4);
    for (int i = 0; i < n; i++) {
        int d = distance(text, names[i]);
        if (d < least) least = d, best = i;
    }
    return best;
}

/* The last star is the only one worth going back to: what an earlier one could take, it can take as well. */
static int match(const char *p, const char *end, const char *s)
{
    const char *star = NULL, *retry = NULL;
    while (*s) {
        if (p < end && *p == '*') {
            star = ++p, retry = s;
        } else if (p < end && (*p == '?' || *p == *s)) {
            p++, s++;
        } else if (star) {
            p = star, s = ++retry;
        } else {
            return 0;
        }
    }
    while (p < end && *p == '*') p++;
    return p == end;
}

int dp_match_list(const char *patterns, const char *name)
{
    for (const char *p = patterns; *p;) {
        const char *end = strchr(p, ',');
        if (!end) end = p + strlen(p);
        const char *from = p, *to = end;
        while (from < to && is_blank(*from)) from++;
        while (to > from && is_blank(to[-1])) to--;
        if (to > from && match(from, to, name)) return 1;
        p = *end ? end + 1 : end;
    }
    return 0;
}

uint64_t dp_hash(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

const char *dp_bytes_text(char *buf, size_t size, int64_t bytes)
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB"};
    double v = (double)bytes;
    int u = 0;
    while (fabs(v) >= 1000 && u < 4) v /= 1000, u++;
    dp_format(buf, size, u ? "%.1f %s" : "%.0f %s", v, unit[u]);
    return buf;
}
