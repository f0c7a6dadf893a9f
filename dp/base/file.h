/* Internal: reading and writing whole files without half-written results. */
#ifndef DP_BASE_FILE_H
#define DP_BASE_FILE_H
#include "base.h"
#include "error.h"

/* The whole file in memory, one zero byte after it; gzip is unpacked by its magic when `gunzip`. max = limit of the unpacked size
 * (0 = none). Errors name the path. *data is malloc'd. */
dp_status dp_file_read(const char *path, int gunzip, int64_t max, uint8_t **data, size_t *bytes, dp_error *err);

/* Atomic replacement: write to a temporary name in the same directory, fsync, rename, fsync the directory. */
typedef struct dp_file_out dp_file_out;
dp_status dp_file_create(dp_file_out **f, const char *path, dp_error *err);
/* The same into an open descriptor, which stays open: what is written is there at once, commit and discard only free. */
dp_status dp_file_into(dp_file_out **f, int fd, dp_error *err);
dp_status dp_file_write(dp_file_out *f, const void *data, size_t bytes,
                        dp_error *err);                   /* DP_ENOSPACE names path, bytes, reason */
dp_status dp_file_commit(dp_file_out **f, dp_error *err); /* the file appears; frees */
void dp_file_discard(dp_file_out **f);                    /* the temporary goes; frees; *f may be NULL */
int dp_file_is_temporary(const char *name); /* whether a file name is one that dp_file_create makes: left by a kill */
#endif
