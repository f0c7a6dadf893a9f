/* Internal: typed reading of settings, and the [model] and [block] lines, which are kept as text in order. */
#ifndef DP_BASE_CONFIG_H
#define DP_BASE_CONFIG_H
#include "base.h"
#include "error.h"

typedef enum dp_key_type {
    DP_KEY_INT,
    DP_KEY_NUMBER,
    DP_KEY_FLAG,
    DP_KEY_CHOICE,
    DP_KEY_TEXT,
    DP_KEY_PATH,
    DP_KEY_INTERVAL
} dp_key_type;

/* One row of the key table (keys.c): it serves parser, --keys, man page and C interface. */
typedef struct dp_key_row {
    const char *name; /* "section.key" */
    dp_key_type type;
    const char *def;     /* "" = none */
    const char *choices; /* "a|b|c" for CHOICE; for PATH also says what is no path (keys.c); else text shown as range */
    double min, max;     /* INT, NUMBER; inclusive */
    const char *unit, *help;
} dp_key_row;
extern const dp_key_row dp_keys[];
extern const int dp_n_keys;

/* The sticky error of the config, or NULL's: every open begins with this. */
dp_status dp_config_ok(const dp_config *c, dp_error *err);
/* Values of keys that exist (a wrong name is a programming error and returns 0 / "" / -1). */
int64_t dp_config_int(const dp_config *c, const char *key);
double dp_config_number(const dp_config *c, const char *key);
int dp_config_flag(const dp_config *c, const char *key);
int dp_config_choice(const dp_config *c, const char *key);       /* index in `choices` */
const char *dp_config_text(const dp_config *c, const char *key); /* "" when not set; a PATH is resolved */
const char *dp_config_path_as_written(const dp_config *c, const char *key);
const char *dp_config_file(const dp_config *c);            /* path given to dp_config_load last; "" when no file was loaded */
int dp_config_is_set(const dp_config *c, const char *key); /* by file or call, not by default */
/* INTERVAL: "1 epoch", "2 epochs", "500 steps", "500" (steps). Returns the count, *epochs = 1 when it counts epochs. 0 = never. */
int64_t dp_config_interval(const dp_config *c, const char *key, int *epochs);
/* A message about the key for errors found later: "FILE:LINE: [section] key" or "section.key". Returns buf. */
const char *dp_config_where(const dp_config *c, const char *key, char *buf, size_t size);

/* Lines of [model] and [block NAME ...] in file order; the text after '=' is not interpreted here. `input` is such a line too. */
typedef struct dp_model_line {
    const char *block;      /* NULL: [model]; else the block's name */
    const char *block_args; /* "a b=1" of its header; NULL for [model] */
    const char *name, *spec;
    const char *file;
    int line;
} dp_model_line;
int dp_config_model_line(const dp_config *c, int i, dp_model_line *line); /* 0 past the last */
/* Parse sections from memory (dp_graph_text): name is shown as the file in messages. */
dp_status dp_config_parse(dp_config *c, const char *text, size_t bytes, const char *name, const char *dir, dp_error *err);

/* The resolved settings as an ini file (absolute paths, every key set or at its default, model lines): malloc'd text. */
char *dp_config_dump(const dp_config *c);

dp_config *dp_config_copy(const dp_config *c); /* deep; NULL: out of memory */

/* Log through the config's callback, formatted under the C locale; nothing without a callback. */
void dp_log(const dp_config *c, dp_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
#endif
