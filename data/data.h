/* Data sets, sampling, loading: host memory only. */
#ifndef DP_DATA_H
#define DP_DATA_H
#include "../dp/base/base.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct dp_data dp_data;
typedef struct dp_loader dp_loader;

typedef struct dp_data_info {
    int64_t samples;
    int32_t x_rank;
    int64_t x_shape[4]; /* one sample, as PyTorch writes it: C x H x W | T | C */
    dp_dtype x_dtype;
    dp_layout x_layout;
    dp_dtype y_dtype;
    int64_t y_width; /* targets per sample: 1; T for tokens */
    int64_t classes; /* label range 0..classes-1; vocabulary for tokens; 0: targets are numbers (mse) */
    int32_t reserved[16];
} dp_data_info;

/* The embedder's own set. fetch writes one sample (x and y rows of info's widths and types); it is called from several loader
 * threads at once; 0 = ok, else `why` says the reason. size = sizeof(dp_data_source): smaller than the library's is refused,
 * larger is accepted when the rest is zero. */
typedef struct dp_data_source {
    size_t size;
    dp_data_info info;
    int (*fetch)(void *user, int64_t index, void *x, void *y, char *why, size_t why_size);
    void *user;
} dp_data_source;

/* Open what [data] names. train = 1: data.train, 0: data.eval. `eval = last 10%` is cut off the training set in file order.
 * *d NULL with DP_OK: no evaluation set is configured. Everything is checked here (sizes, labels): see the errors. */
DP_API dp_status dp_data_open(dp_data **d, const dp_config *c, int train, dp_error *err);
/* The caller's arrays, borrowed until close. y.width targets a row. classes = 0: largest label + 1 (or numbers for f32). */
DP_API dp_status dp_data_rows(dp_data **d, dp_rows x, dp_rows y, int64_t classes, dp_error *err);
DP_API dp_status dp_data_custom(dp_data **d, const dp_data_source *s, dp_error *err);
DP_API dp_status dp_data_facts(const dp_data *d, dp_data_info *info);
DP_API void dp_data_close(dp_data *d);

/* Batches in order: borrowed until release (after the batch's wait). b->x.n = 0: the epoch is over (call again for the next). */
DP_API dp_status dp_loader_next(dp_loader *l, dp_batch *b, dp_error *err);
DP_API void dp_loader_release(dp_loader *l, const dp_batch *b);
DP_API void dp_loader_close(dp_loader *l); /* all slots must be released; ends the loader's threads */

#ifdef __cplusplus
}
#endif
#endif
