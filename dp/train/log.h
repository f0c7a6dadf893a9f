/* Internal: log.jsonl, one JSON object a line. A line is built in memory and written by one call, so a reader, a full
 * disk or a kill never leave half a line behind that the next start does not remove. Numbers have a dot in every locale. */
#ifndef DP_TRAIN_LOG_H
#define DP_TRAIN_LOG_H
#include "../base/base.h"
#include "../base/error.h"

typedef struct dp_line { /* a JSON object under construction; starts as {0} */
    char *text;
    size_t size, room;
    int comma, failed; /* failed: out of memory, reported by dp_log_write */
} dp_line;
void dp_line_begin(dp_line *l, const char *type); /* {"type":"..." */
void dp_line_raw(dp_line *l, const char *text);   /* as it is */
void dp_line_text(dp_line *l, const char *key, const char *value);
void dp_line_int(dp_line *l, const char *key, int64_t value);
void dp_line_number(dp_line *l, const char *key, double value); /* shortest text that reads back equal; null when not finite */
void dp_line_fixed(dp_line *l, const char *key, double value);  /* three decimals: quicker */
void dp_line_open(dp_line *l, const char *key, char bracket);   /* '{' or '['; key NULL inside a list */
void dp_line_close(dp_line *l, char bracket);                   /* '}' or ']' */
void dp_line_free(dp_line *l);

typedef struct dp_run_log {
    int fd;
    char *path;
    dp_line line; /* reused */
} dp_run_log;
/* append = 0: a new file; 1: goes on after the last whole line. */
dp_status dp_log_open(dp_run_log *l, const char *path, int append, dp_error *err);
dp_status dp_log_write(dp_run_log *l, dp_error *err); /* closes l->line's object and writes it */
void dp_log_close(dp_run_log *l);
#endif
