/* Internal: numbers and names as text, the same in every locale. */
#ifndef DP_BASE_TEXT_H
#define DP_BASE_TEXT_H
#include "base.h"
#include <stdarg.h>

/* Whole text must be the number (blanks around it allowed). Return 1 = ok, 0 = not a number, -1 = out of range.
 * dp_parse_double takes 1e-3, 2.5E-4, .5; not nan, inf, hex, or a comma. */
int dp_parse_int(const char *text, int64_t *value);
int dp_parse_double(const char *text, double *value);

/* snprintf and vsnprintf under the C locale (thread-local switch, restored). Return what snprintf returns. */
int dp_format(char *buf, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int dp_vformat(char *buf, size_t size, const char *fmt, va_list ap);

/* The text in quotes for a message: control bytes as \xNN, long text cut with "...". Returns buf. */
const char *dp_quote(char *buf, size_t size, const char *text);

/* Edit distance for "did you mean": smallest over names; -1 when none is near (distance <= 1 + length / 4). */
int dp_nearest(const char *text, const char *const *names, int n);

/* fnmatch-like: '*' matches any run of characters, '?' one; the list is separated by commas, blanks ignored. */
int dp_match_list(const char *patterns, const char *name);

/* 64-bit FNV-1a (Fowler, Noll, Vo). */
uint64_t dp_hash(const void *data, size_t bytes);

/* "8.4 MB" for people. */
const char *dp_bytes_text(char *buf, size_t size, int64_t bytes);
#endif
