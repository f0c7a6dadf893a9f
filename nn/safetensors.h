/* Internal: the safetensors format: u64 header length, JSON header {name: {dtype, shape, data_offsets}, "__metadata__":
 * {text: text}}, raw little-endian data. (Hugging Face, safetensors README.) */
#ifndef DP_NN_SAFETENSORS_H
#define DP_NN_SAFETENSORS_H
#include "../dp/base/base.h"
#include "../dp/base/error.h"

typedef enum dp_st_type { DP_ST_F32, DP_ST_F64, DP_ST_I32, DP_ST_I64, DP_ST_U8, DP_ST_U64, DP_ST_F16, DP_ST_BF16 } dp_st_type;
typedef struct dp_st_tensor {
    const char *name;
    dp_st_type type;
    int rank;
    int64_t shape[8];
    const void *data;
    int64_t bytes;
} dp_st_tensor;

/* Writing: add tensors (data is copied when `copy`, else borrowed until commit) and metadata, then commit: atomic replacement. */
typedef struct dp_st_out dp_st_out;
dp_st_out *dp_st_out_new(void);
dp_status dp_st_add(dp_st_out *o, const char *name, dp_st_type type, int rank, const int64_t *shape, const void *data, int copy,
                    dp_error *err);
/* malloc'd memory that borrowed tensors lie in: freed with o (at once when this fails). */
dp_status dp_st_own(dp_st_out *o, void *memory, dp_error *err);
dp_status dp_st_meta(dp_st_out *o, const char *key, const char *value, dp_error *err);
dp_status dp_st_commit(dp_st_out *o, const char *path, dp_error *err);
dp_status dp_st_commit_to(dp_st_out *o, int fd, dp_error *err); /* from where the descriptor stands; it stays open */
void dp_st_out_free(dp_st_out *o);

/* Reading: the whole file is checked (length, offsets, overlaps, shapes, duplicate names) before anything is handed out. What is
 * not a weights file is named by its first bytes (HTML, gzip, zip/pickle of PyTorch, LFS pointer). */
typedef struct dp_st_in dp_st_in;
dp_status dp_st_open(dp_st_in **in, const char *path, dp_error *err);
int dp_st_get(const dp_st_in *in, int i, dp_st_tensor *t);             /* 0 past the last; data aligned to the type */
int dp_st_find(const dp_st_in *in, const char *name, dp_st_tensor *t); /* 0: none */
const char *dp_st_meta_get(const dp_st_in *in, const char *key);       /* NULL: none */
void dp_st_close(dp_st_in *in);
/* Any float type to f32; returns 0 when the tensor is of a whole-number type (i64 is converted too). */
int dp_st_to_f32(const dp_st_tensor *t, float *dst);
#endif
