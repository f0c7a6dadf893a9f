/* log.jsonl. The printing is by hand: a JSON library that follows LC_NUMERIC would write 0,1 in half the world. */
#include "log.h"
#include "../base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void put(dp_line *l, const char *text, size_t n)
{
    if (l->failed) return;
    if (l->size + n > l->room) {
        size_t room = (l->size + n) * 2 + 256;
        char *p = realloc(l->text, room);
        if (!p) {
            l->failed = 1;
            return;
        }
        l->text = p, l->room = room;
    }
    memcpy(l->text + l->size, text, n);
    l->size += n;
}

static void put_quoted(dp_line *l, const char *s)
{
    put(l, "\"", 1);
    for (; *s; s++) {
        unsigned char ch = (unsigned char)*s;
        char esc[8];
        if (ch == '"' || ch == '\\') {
            esc[0] = '\\', esc[1] = (char)ch;
            put(l, esc, 2);
        } else if (ch < 0x20) {
            int n = dp_format(esc, sizeof esc, "\\u%04x", (unsigned)ch);
            put(l, esc, (size_t)n);
        } else {
            put(l, s, 1);
        }
    }
    put(l, "\"", 1);
}

static void put_key(dp_line *l, const char *key)
{
    if (l->comma) put(l, ",", 1);
    l->comma = 1;
    if (!key) return;
    put_quoted(l, key);
    put(l, ":", 1);
}

void dp_line_begin(dp_line *l, const char *type)
{
    l->size = 0, l->comma = 0, l->failed = 0;
    put(l, "{", 1);
    dp_line_text(l, "type", type);
}

void dp_line_raw(dp_line *l, const char *text)
{
    put(l, text, strlen(text));
}

void dp_line_text(dp_line *l, const char *key, const char *value)
{
    put_key(l, key);
    put_quoted(l, value);
}

void dp_line_int(dp_line *l, const char *key, int64_t value)
{
    char buf[32];
    int n = dp_format(buf, sizeof buf, "%lld", (long long)value);
    put_key(l, key);
    put(l, buf, (size_t)n);
}

void dp_line_number(dp_line *l, const char *key, double value)
{
    char buf[40];
    int n = 0;
    put_key(l, key);
    if (!isfinite(value)) {
        put(l, "null", 4);
        return;
    }
    for (int digits = 6; digits <= 17; digits++) {
        double back = 0;
        n = dp_format(buf, sizeof buf, "%.*g", digits, value);
        if (dp_parse_double(buf, &back) == 1 && back == value) break;
    }
    put(l, buf, (size_t)n);
}

void dp_line_fixed(dp_line *l, const char *key, double value)
{
    char buf[340];
    int n = dp_format(buf, sizeof buf, "%.3f", value);
    put_key(l, key);
    put(l, buf, (size_t)n);
}

void dp_line_open(dp_line *l, const char *key, char bracket)
{
    put_key(l, key);
    put(l, &bracket, 1);
    l->comma = 0;
}

void dp_line_close(dp_line *l, char bracket)
{
    put(l, &bracket, 1);
    l->comma = 1;
}

void dp_line_free(dp_line *l)
{
    free(l->text);
    memset(l, 0, sizeof *l);
}

/* Bytes up to and including the last newline: what a killed run wrote after it is half a line. */
static off_t whole_lines(int fd, off_t size)
{
    char buf[4096];
    while (size > 0) {
        off_t from = size > (off_t)sizeof buf ? size - (off_t)sizeof buf : 0;
        ssize_t n = pread(fd, buf, (size_t)(size - from), from);
        if (n <= 0) return size;
        while (n > 0 && buf[n - 1] != '\n') n--;
        if (n > 0) return from + n;
        size = from;
    }
    return 0;
}

dp_status dp_log_open(dp_run_log *l, const char *path, int append, dp_error *err)
{
    struct stat st;
    memset(l, 0, sizeof *l);
    l->fd = -1;
    l->path = strdup(path);
    if (!l->path) return dp_fail(err, DP_ENOMEM, "Out of memory while opening %s.", path);
    l->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (append ? 0 : O_TRUNC), 0666);
    if (l->fd < 0 || fstat(l->fd, &st) || ftruncate(l->fd, whole_lines(l->fd, st.st_size))) {
        dp_status s = dp_fail_errno(err, DP_EIO, errno, "Cannot open the log %s", path);
        dp_log_close(l);
        return s;
    }
    return DP_OK;
}

dp_status dp_log_write(dp_run_log *l, dp_error *err)
{
    struct stat st;
    ssize_t n;
    dp_line_close(&l->line, '}');
    put(&l->line, "\n", 1);
    if (l->line.failed) return dp_fail(err, DP_ENOMEM, "Out of memory while writing a line to %s.", l->path);
    if (fstat(l->fd, &st)) return dp_fail_errno(err, DP_EIO, errno, "Cannot write to %s", l->path);
    do n = write(l->fd, l->line.text, l->line.size);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)l->line.size) return DP_OK;
    int why = n < 0 ? errno : ENOSPC;
    dp_status code = why == ENOSPC || why == EDQUOT || why == EFBIG ? DP_ENOSPACE : DP_EIO;
    if (n > 0 && ftruncate(l->fd, st.st_size)) why = errno; /* whole lines only */
    return dp_fail_errno(err, code, why, "Cannot write a line of %zu bytes to %s", l->line.size, l->path);
}

void dp_log_close(dp_run_log *l)
{
    if (l->path && l->fd >= 0) close(l->fd); /* a log that was never opened is all zeros */
    free(l->path);
    dp_line_free(&l->line);
    memset(l, 0, sizeof *l);
    l->fd = -1;
}
