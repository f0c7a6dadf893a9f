/* Internal to dp/base/config.c, ini.c and dump.c: what a config consists of. */
#ifndef DP_BASE_CONFIG_INTERNAL_H
#define DP_BASE_CONFIG_INTERNAL_H
#include "config.h"

typedef struct dp_setting {
    char *value;   /* paths resolved; NULL: the default */
    char *written; /* as it stood */
    char *file;    /* NULL: set by call */
    int line;
} dp_setting;

struct dp_config {
    dp_log_fn log;
    void *user;
    dp_setting *setting; /* (dp_n_keys) */
    dp_model_line *line; /* strings are the config's */
    int n_lines, room;
    char *file;
    int has_error;
    dp_error error; /* sticks */
};

int dp_key_find(const char *name);    /* "section.key"; -1: none */
int dp_key_nearest(const char *name); /* for "did you mean"; -1: none is near */
/* Checks and takes a value. dir: what relative paths are relative to ("" = the working directory). Returns 1, or 0 with the reason. */
int dp_setting_take(dp_config *c, int key, const char *text, const char *dir, const char *file, int line, char *why,
                    size_t why_size);
/* Copies of the strings; 0: out of memory. */
int dp_model_line_add(dp_config *c, const char *block, const char *args, const char *name, const char *spec, const char *file,
                      int line);
void dp_model_lines_clear(dp_config *c);
/* The first error stays and counts the later ones. Returns the code of err. */
dp_status dp_config_stick(dp_config *c, const dp_error *err);
#endif
