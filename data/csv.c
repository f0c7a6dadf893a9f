/* Tables of numbers: one sample a line, one column the label. The separator (; tab ,) is the first of these that the first line
 * has; that line is a header when none of its fields is a number. Numbers are read without the locale and correctly rounded; a
 * field that is no finite number is an error with line and column, never a NaN in training. Samples keep the order of the
 * columns, which for images is taken as C x H x W. */
#include "../dp/base/file.h"
#include "../dp/base/memory.h"
#include "../dp/base/text.h"
#include "set.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct table {
    const char *path;
    const char *at, *end; /* the rest of the file */
    char separator;
    int64_t line; /* of `at`, from 1 */
    int64_t columns, label;
    const char *header; /* start of the header line; NULL: none */
} table;

typedef struct field {
    const char *text; /* not terminated, blanks and quotes taken off */
    size_t size;
} field;

enum { MORE, LAST_OF_LINE, UNCLOSED }; /* what next_field found behind the field */

static int is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* One field from *p on; *p moves behind its separator or line end. A doubled quote inside quotes is left as it is: such a field
 * is a name or an error, never a number. */
static int next_field(const table *t, const char **p, field *f)
{
    const char *s = *p, *end = t->end;
    while (s < end && is_blank(*s) && *s != t->separator) s++;
    if (s < end && *s == '"') {
        const char *start = ++s;
        for (; s < end && *s != '\n' && *s != '\r'; s++) {
            if (*s != '"') continue;
            if (s + 1 < end && s[1] == '"')
                s++;
            else
                break;
        }
        if (s == end || *s != '"') return UNCLOSED;
        f->text = start, f->size = (size_t)(s - start);
        s++;
        while (s < end && is_blank(*s) && *s != t->separator) s++;
        if (s < end && *s != t->separator && *s != '\n' && *s != '\r') return UNCLOSED;
    } else {
        const char *start = s;
        while (s < end && *s != t->separator && *s != '\n' && *s != '\r') s++;
        const char *stop = s;
        while (stop > start && is_blank(stop[-1])) stop--;
        f->text = start, f->size = (size_t)(stop - start);
    }
    int found = s < end && *s == t->separator ? MORE : LAST_OF_LINE;
    if (s < end && *s == '\r' && s + 1 < end && s[1] == '\n') s++;
    *p = s < end ? s + 1 : s;
    return found;
}

/* 1 = a finite number, 0 = something else, -1 = too large. Up to 19 digits and small powers of ten are exact in double, and so
 * is one multiplication or division's rounding; the rest goes the slow way. */
static int parse_number(const field *f, double *value)
{
    static const double power[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                   1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const char *s = f->text, *end = s + f->size;
    uint64_t digits = 0;
    int seen = 0, significant = 0, exponent = 0, negative = 0;
    if (s < end && (*s == '-' || *s == '+')) negative = *s++ == '-';
    for (int point = 0; s < end; s++) {
        if (*s == '.' && !point) {
            point = 1;
            continue;
        }
        if (*s < '0' || *s > '9') break;
        seen = 1;
        if (significant < 19) {
            digits = digits * 10 + (uint64_t)(*s - '0');
            if (digits) significant++;
            exponent -= point;
        } else {
            significant = 20;
        }
    }
    if (seen && s < end && (*s == 'e' || *s == 'E')) {
        int e = 0, minus = 0;
        s++;
        if (s < end && (*s == '-' || *s == '+')) minus = *s++ == '-';
        seen = s < end;
        for (; s < end && *s >= '0' && *s <= '9'; s++) e = e < 10000 ? e * 10 + (*s - '0') : e;
        exponent += minus ? -e : e;
    }
    if (!seen || s != end) return 0;
    while (digits > (uint64_t)1 << 53 && digits % 10 == 0) digits /= 10, exponent++; /* 7.000000000000000000e+00 */
    if (significant < 20 && digits <= (uint64_t)1 << 53 && exponent >= -22 && exponent <= 22) {
        double v = exponent < 0 ? (double)digits / power[-exponent] : (double)digits * power[exponent];
        *value = negative ? -v : v;
        return 1;
    }
    char buf[512];
    if (f->size >= sizeof buf) return 0;
    memcpy(buf, f->text, f->size);
    buf[f->size] = 0;
    return dp_parse_double(buf, value);
}

static dp_status wrong_field(const table *t, int64_t column, const field *f, const char *why, dp_error *err)
{
    char text[64], shown[80];
    size_t n = f->size < sizeof text - 1 ? f->size : sizeof text - 1;
    if (memchr(f->text, 0, f->size)) {
        return dp_fail(err, DP_EDATA, "%s: line %lld, column %lld: a NUL byte: this is no text file", t->path,
                       (long long)t->line, (long long)column + 1);
    }
    memcpy(text, f->text, n);
    text[n] = 0;
    return dp_fail(err, DP_EDATA, "%s: line %lld, column %lld: %s %s", t->path, (long long)t->line, (long long)column + 1,
                   dp_quote(shown, sizeof shown, text), why);
}

static dp_status unclosed(const table *t, int64_t column, dp_error *err)
{
    return dp_fail(err, DP_EDATA, "%s: line %lld, column %lld: a quote that is not closed, or text behind it", t->path,
                   (long long)t->line, (long long)column + 1);
}

static int is_word(const field *f, const char *word)
{
    return f->size == strlen(word) && strncasecmp(f->text, word, f->size) == 0;
}

/* Numbers, and what programs write in place of numbers: a line with one of these is no header. */
static int is_numeric(const field *f)
{
    double v;
    field unsigned_part = *f;
    if (f->size > 0 && (f->text[0] == '-' || f->text[0] == '+')) unsigned_part.text++, unsigned_part.size--;
    return parse_number(f, &v) != 0 || is_word(&unsigned_part, "nan") || is_word(&unsigned_part, "inf") ||
           is_word(&unsigned_part, "infinity");
}

static void skip_blank_lines(table *t)
{
    for (;;) {
        const char *s = t->at;
        while (s < t->end && is_blank(*s) && *s != t->separator) s++;
        if (s == t->end) {
            t->at = s;
            return;
        }
        if (*s != '\n' && *s != '\r') return;
        if (*s == '\r' && s + 1 < t->end && s[1] == '\n') s++;
        t->at = s + 1;
        t->line++;
    }
}

/* Separator, header and columns from the first line. */
static dp_status look(table *t, dp_error *err)
{
    int semicolon = 0, tab = 0, quoted = 0;
    for (const char *s = t->at; s < t->end && *s != '\n' && *s != '\r'; s++) {
        if (*s == '"') quoted = !quoted;
        if (!quoted && *s == ';') semicolon = 1;
        if (!quoted && *s == '\t') tab = 1;
    }
    t->separator = semicolon ? ';' : tab ? '\t' : ',';
    int numbers = 0, more;
    const char *s = t->at;
    t->columns = 0;
    do {
        field f;
        more = next_field(t, &s, &f);
        if (more == UNCLOSED) return unclosed(t, t->columns, err);
        numbers += is_numeric(&f);
        t->columns++;
    } while (more == MORE);
    if (numbers == 0) {
        t->header = t->at;
        t->at = s;
        t->line++;
    }
    if (t->columns < 2) {
        return dp_fail(err, DP_EDATA,
                       "%s: line %lld has one column, wanted at least a feature and the label, separated by , ; or tab",
                       t->path, (long long)t->line - (t->header != NULL));
    }
    return DP_OK;
}

static dp_status find_label(table *t, const dp_config *c, dp_error *err)
{
    const char *label = dp_config_text(c, "data.label");
    t->label = t->columns - 1;
    if (!*label || strcmp(label, "last") == 0) return DP_OK;
    t->label = 0;
    if (strcmp(label, "first") == 0) return DP_OK;
    if (!t->header) {
        return dp_fail(err, DP_EDATA, "%s has no header line to find the column data.label = %s in: use last or first", t->path,
                       label);
    }
    const char *s = t->header;
    field f;
    for (int more = MORE; more == MORE; t->label++) {
        more = next_field(t, &s, &f);
        if (f.size == strlen(label) && memcmp(f.text, label, f.size) == 0) return DP_OK;
    }
    return dp_fail(err, DP_EDATA, "%s: no column of its header is called \"%s\" (data.label)", t->path, label);
}

/* Room for every value that the rest of the file can hold: one more than its separators and line ends. */
static int64_t most_rows(const table *t)
{
    int64_t values = 1;
    for (const char *s = t->at; s < t->end; s++) values += *s == t->separator || *s == '\n' || *s == '\r';
    return values / t->columns;
}

/* One line into x (columns - 1) and *y: a class number or, with numbers, the float itself. */
static dp_status read_row(table *t, const dp_set_label_rule *rule, int numbers, float *x, int32_t *y, dp_error *err)
{
    int more = MORE;
    int64_t k = 0;
    for (; more == MORE; k++) {
        field f;
        double v = 0;
        more = next_field(t, &t->at, &f);
        if (more == UNCLOSED) return unclosed(t, k, err);
        if (k >= t->columns) continue; /* counts the fields of a line that is too long */
        if (f.size == 0) return wrong_field(t, k, &f, "is empty, wanted a number", err);
        int ok = parse_number(&f, &v);
        if (ok < 0 || !isfinite((float)v)) return wrong_field(t, k, &f, "is out of the range of 32-bit floats", err);
        if (!ok) {
            return wrong_field(t, k, &f, k == t->label ? "is not a number: labels are class numbers" : "is not a finite number",
                               err);
        }
        if (k != t->label) {
            *x++ = (float)v;
        } else if (numbers) {
            float target = (float)v;
            memcpy(y, &target, sizeof target);
        } else {
            char text[160];
            if (v != floor(v) || fabs(v) >= INT32_MAX) {
                return wrong_field(t, k, &f, "is not a class number (a whole number)", err);
            }
            if (!dp_set_label_ok(rule, (int64_t)v)) {
                return wrong_field(t, k, &f, dp_set_label_text(rule, (int64_t)v, text, sizeof text), err);
            }
            *y = (int32_t)v;
        }
    }
    if (k != t->columns) {
        return dp_fail(err, DP_EDATA, "%s: line %lld has %lld fields, the first line has %lld", t->path, (long long)t->line,
                       (long long)k, (long long)t->columns);
    }
    t->line++;
    return DP_OK;
}

static dp_status open_text(table *t, const uint8_t *data, size_t bytes, dp_error *err)
{
    if (bytes >= 2 && ((data[0] == 0xFF && data[1] == 0xFE) || (data[0] == 0xFE && data[1] == 0xFF))) {
        return dp_fail(err, DP_EDATA, "%s is UTF-16 text: save it as UTF-8", t->path);
    }
    if (dp_set_looks_html(data, bytes)) {
        return dp_fail(err, DP_EDATA, "%s looks like an HTML page, wanted lines of numbers", t->path);
    }
    t->at = (const char *)data, t->end = t->at + bytes, t->line = 1;
    if (bytes >= 3 && memcmp(data, "\xEF\xBB\xBF", 3) == 0) t->at += 3; /* byte order mark */
    skip_blank_lines(t);
    if (t->at == t->end) return dp_fail(err, DP_EDATA, "%s is empty, wanted lines of numbers", t->path);
    return look(t, err);
}

static dp_status read_rows(dp_data **d, table *t, const dp_set_request *q, dp_error *err)
{
    int numbers = dp_config_choice(q->c, "loss.kind") == 1;
    int64_t most = most_rows(t), features = t->columns - 1, n = 0, first, count;
    dp_set_label_rule rule;
    dp_data_info f;
    dp_status s;
    memset(&f, 0, sizeof f);
    dp_set_label_rule_of(&rule, q->c);
    size_t row_bytes = (size_t)features * sizeof(float);
    float *x = dp_calloc((size_t)most, row_bytes);
    int32_t *y = dp_calloc((size_t)most, sizeof *y);
    if (!x || !y) {
        s = dp_fail(err, DP_ENOMEM, "%s: out of memory for %lld lines of %lld numbers", t->path, (long long)most,
                    (long long)features);
        goto done;
    }
    for (skip_blank_lines(t); t->at < t->end; skip_blank_lines(t), n++) {
        if (n == most) { /* only a line that is too short can come now */
            s = dp_fail(err, DP_EDATA, "%s: line %lld has fewer fields than the first line, which has %lld", t->path,
                        (long long)t->line, (long long)t->columns);
            goto done;
        }
        if ((s = read_row(t, &rule, numbers, x + n * features, y + n, err)) != DP_OK) goto done;
    }
    if (n == 0) {
        s = dp_fail(err, DP_EDATA, "%s has a header line but no lines of numbers", t->path);
        goto done;
    }
    if (!numbers && (s = dp_set_label_scan(&rule, t->path, y, DP_I32, n, 1, &f.classes, err)) != DP_OK) goto done;
    if ((s = dp_set_part(q, n, "lines", &first, &count, err)) != DP_OK) goto done;
    f.samples = count;
    f.x_rank = 1, f.x_shape[0] = features;
    f.x_dtype = DP_F32, f.x_layout = DP_CHW;
    f.y_dtype = numbers ? DP_F32 : DP_I32, f.y_width = 1;
    return dp_set_arrays(d, &f, x + first * features, y + first, x, y, err);
done:
    free(x);
    free(y);
    return s;
}

dp_status dp_set_open_csv(dp_data **d, const dp_set_request *q, dp_error *err)
{
    uint8_t *data = NULL;
    size_t bytes = 0;
    table t = {.path = dp_config_text(q->c, q->key)};
    dp_status s = dp_file_read(t.path, 1, 0, &data, &bytes, err);
    if (!s) s = open_text(&t, data, bytes, err);
    if (!s) s = find_label(&t, q->c, err);
    if (!s) s = read_rows(d, &t, q, err);
    free(data);
    return s;
}
