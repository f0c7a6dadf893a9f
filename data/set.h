/* Internal: what a data set is to the loader: facts, and a function that writes one sample. A format embeds dp_data as its
 * first member, checks its whole file in its open function, and afterwards only copies: fetch is called from several threads at
 * once. */
#ifndef DP_DATA_SET_H
#define DP_DATA_SET_H
#include "../dp/base/config.h"
#include "data.h"

struct dp_data {
    dp_data_info info;
    int64_t x_width;         /* elements of one sample */
    size_t x_bytes, y_bytes; /* of one sample */
    dp_status (*fetch)(const dp_data *d, int64_t index, void *x, void *y, dp_error *err);
    void (*release)(dp_data *d); /* what the format owns beside the struct itself; may be NULL */
    char *vocab;                 /* malloc'd or NULL */
    int refs; /* the user and every loader; atomic. A loader thread that hangs in a callback keeps its set alive */
};

/* What an open function is asked for. */
typedef struct dp_set_request {
    const dp_config *c;
    const char *key; /* "data.train" or "data.eval": names the path */
    int train;       /* the training part; 0: the evaluation part */
    int test_files;  /* idx: the directory's t10k files instead of its train files */
    double last;     /* > 0: the file is shared, its last `last` percent are the evaluation part */
} dp_set_request;

dp_status dp_set_open_idx(dp_data **d, const dp_set_request *q, dp_error *err);
dp_status dp_set_open_csv(dp_data **d, const dp_set_request *q, dp_error *err);
dp_status dp_set_open_tokens(dp_data **d, const dp_set_request *q, dp_error *err);
dp_status dp_set_open_synthetic(dp_data **d, const dp_set_request *q, dp_error *err);
/* The directory named by data.train holds evaluation files too. */
int dp_set_idx_has_test(const dp_config *c);

/* size = that of the format's struct. d->info must be complete for dp_set_finish, which checks it and sets widths and bytes. */
void *dp_set_new(size_t size, dp_error *err);
dp_status dp_set_finish(dp_data *d, dp_error *err);
void dp_set_retain(dp_data *d);

/* The request's part of n things (samples or tokens): *first, *count. The training part is the floor of n * (100 - P) / 100. */
dp_status dp_set_part(const dp_set_request *q, int64_t n, const char *what, int64_t *first, int64_t *count, dp_error *err);

/* Two arrays in memory: x (n, x_bytes), y (n, y_bytes). own: malloc'd blocks that go with the set; they are freed on failure
 * too. */
dp_status dp_set_arrays(dp_data **d, const dp_data_info *info, const void *x, const void *y, void *own0, void *own1,
                        dp_error *err);

/* Class numbers of a whole set. limit > 0: the classes are fixed. Negative labels pass only with any_negative (the engine knows
 * loss.ignore_label then). */
typedef struct dp_set_label_rule {
    int64_t limit;
    int has_ignore, any_negative;
    int64_t ignore;
} dp_set_label_rule;
void dp_set_label_rule_of(dp_set_label_rule *r, const dp_config *c); /* data.classes, loss.ignore_label */
int dp_set_label_ok(const dp_set_label_rule *r, int64_t label);
int64_t dp_set_label_at(const void *y, dp_dtype dtype, int64_t i); /* of i32, i64, u8 */
/* Scans n labels, `width` a record: *classes = the limit, or the largest + 1. name = file or array in messages. */
dp_status dp_set_label_scan(const dp_set_label_rule *r, const char *name, const void *y, dp_dtype dtype, int64_t n,
                            int64_t width, int64_t *classes, dp_error *err);
/* Writes "label 10, allowed are 0..9 (data.classes = 10)" into buf. */
const char *dp_set_label_text(const dp_set_label_rule *r, int64_t label, char *buf, size_t size);

/* The `input` line of [model]: rank and shape, or tokens = 1 and shape[0] = T. 0: there is none; -1: not understood. */
typedef struct dp_set_input {
    int tokens, rank;
    int64_t shape[4];
} dp_set_input;
int dp_set_model_input(const dp_config *c, dp_set_input *in);

size_t dp_set_dtype_bytes(dp_dtype t); /* 0: no such type */
int dp_set_looks_html(const uint8_t *data, size_t bytes);
#endif
