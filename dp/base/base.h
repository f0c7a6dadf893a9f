/* What every public header shares: status, error, log, settings, rows and batches.
 *
 * Conventions of the whole interface
 *   - A function that can fail returns dp_status, DP_OK (0) on success, and fills *err on failure only. err may be NULL.
 *   - Close and free functions take NULL. The library never prints, exits or aborts, and changes no process state.
 *   - Everything is 64-bit sizes, float32 arithmetic, row-major memory. Images lie as (h, w, c) unless said otherwise.
 *   - One handle has one caller at a time; different handles are independent of each other. */
#ifndef DP_BASE_H
#define DP_BASE_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define DP_API          __attribute__((visibility("default")))
#define DP_VERSION      100 /* major * 10000 + minor * 100 + patch */
#define DP_VERSION_TEXT "0.1.0"

typedef enum dp_status {
    DP_OK,
    DP_EARGUMENT,    /* a call that cannot be: NULL, wrong order, wrong size */
    DP_ECONFIG,      /* a setting or the model's text is wrong */
    DP_EDATA,        /* a data or weights file holds something else than wanted */
    DP_EIO,          /* the system refused to read or write */
    DP_ENOSPACE,     /* no room on the disk */
    DP_ENOMEM,       /* out of memory, host or device */
    DP_EDEVICE,      /* a device failed, its context lives */
    DP_EDEVICE_LOST, /* a device is gone; it is not touched again */
    DP_ETIMEOUT,     /* a wait passed devices.timeout_s */
    DP_ENONFINITE,   /* NaN or infinity in loss or gradient */
    DP_EFAILED,      /* the engine failed before; close it */
    DP_ESTOPPED,     /* asked to stop */
    DP_EVERSION      /* header and library are of different versions */
} dp_status;

/* 1,024 bytes for ever, no pointers, plain to copy; need not be set before a call; written only on failure. */
typedef struct dp_error {
    int32_t code, device, replica, phase; /* dp_status; the rest -1 = does not apply. phase: DP_PHASE_* of dp.h */
    int64_t step;                         /* -1 = does not apply */
    int32_t more;                         /* further failures in the same call (they went to the log) */
    int32_t reserved[5];
    char phase_name[16];
    char layer[128]; /* layer or tensor; "" = none */
    char text[832];  /* one or two sentences: what was wanted, what was found, what to do */
} dp_error;

typedef enum dp_level { DP_LOG_DEBUG, DP_LOG_INFO, DP_LOG_WARN, DP_LOG_ERROR } dp_level;
/* Called only on a thread that is inside a dp_ call of the user's, never on a worker. text has no newline. */
typedef void (*dp_log_fn)(void *user, dp_level level, const char *text);

DP_API int dp_version(void);                    /* DP_VERSION of the library */
DP_API const char *dp_version_text(void);       /* "0.1.0" */
DP_API const char *dp_status_name(dp_status s); /* "out of memory", static text */

/* ---- settings ----
 * The keys of `dptrain --keys`, as text. A config starts with every key at its default. A wrong set returns its error code
 * and sticks: every later open with this config fails with the first such error. A config is only read by opens, which
 * copy what they need: it may be changed or freed afterwards. */
typedef struct dp_config dp_config;
typedef struct dp_key {
    const char *name;  /* "optimizer.lr" */
    const char *value; /* current text, "" = not set */
    const char *def;   /* default as text, "" = none */
    const char *range; /* "0..1", "even|chunk|weights", "PATH" */
    const char *unit;  /* "s", "MB", "" */
    const char *help;  /* one line */
} dp_key;
DP_API dp_config *dp_config_new_version(int header_version, dp_log_fn log, void *user); /* NULL: out of memory */
/* log may be NULL: silent. user is handed back to log. */
static inline dp_config *dp_config_new(dp_log_fn log, void *user)
{
    return dp_config_new_version(DP_VERSION, log, user);
}
/* Read an ini file. All errors of the file are found in one run: the first goes to *err (err->more = how many others), each to
 * the log as "FILE:LINE: [section] key: reason". Relative paths in the file are taken relative to the file's directory. */
DP_API dp_status dp_config_load(dp_config *c, const char *path, dp_error *err);
/* Set "section.key" from text; paths set this way are relative to the working directory. A later set wins. */
DP_API dp_status dp_config_set(dp_config *c, const char *key, const char *value);
DP_API dp_status dp_config_set_number(dp_config *c, const char *key, double value);
DP_API const char *dp_config_get(const dp_config *c, const char *key); /* current text; NULL: no such key */
DP_API int dp_config_key(const dp_config *c, int i, dp_key *key);      /* walk the table: 0 past the last key */
DP_API void dp_config_free(dp_config *c);

/* ---- devices ---- */
typedef struct dp_device_info {
    char name[32]; /* "cpu:0" */
    char pci[16], uuid[48], model[64];
    int64_t memory; /* bytes */
    int32_t units;  /* cores or multiprocessors */
    int32_t usable; /* 0: why says the reason */
    char why[192];
    int32_t reserved[14];
} dp_device_info;

/* What the system says of a device at this moment. */
typedef struct dp_device_health {
    int32_t clock_mhz, max_clock_mhz; /* of the multiprocessors; 0: not known */
    int32_t xid;                      /* number of the last critical error (NVIDIA's Xid) since open; 0: none */
    int32_t reserved0;
    int64_t others_bytes; /* device memory that other processes hold */
    char throttled[48];   /* why it is slower than it could be: "power cap", "heat, power supply"; "": it is not */
    int64_t reserved[4];
} dp_device_health;

/* Classes of device memory, counted apart. */
enum {
    DP_MEM_PARAMETERS,
    DP_MEM_GRADIENTS,
    DP_MEM_OPTIMIZER,
    DP_MEM_ACTIVATIONS,
    DP_MEM_WORKSPACE,
    DP_MEM_STAGING,
    DP_MEM_LIBRARY,
    DP_MEM_CLASSES
};
DP_API const char *dp_memory_class_name(int mem_class); /* "parameters", ... */

/* ---- rows and batches ---- */
typedef enum dp_dtype { DP_F32, DP_U8, DP_I32, DP_I64, DP_U16, DP_F16, DP_BF16 } dp_dtype;
typedef enum dp_layout { DP_HWC, DP_CHW } dp_layout; /* of one sample; the same thing for rank < 3 */

/* n rows of width elements in the caller's memory. u8 samples are read as value / 255 (see data.normalize). */
typedef struct dp_rows {
    const void *data;
    dp_dtype dtype;
    dp_layout layout;
    int64_t n, width;
} dp_rows;

/* One batch: lent from submit until the wait that returns its result.
 * x: (n, elements of the model's input); y: (n, targets per row), i32/i64/u8 class numbers for cross_entropy, f32 for mse.
 * ids (n) name the samples and key their random draws (dropout): the same sample draws the same in any position, on any
 * device. NULL = the position in the batch, and epoch is then the counter of submitted training batches. */
typedef struct dp_batch {
    dp_rows x, y;
    const uint64_t *ids;
    uint64_t epoch;
    int32_t last_of_window; /* 1 = the optimizer steps after this batch (gradient accumulation) */
    int32_t slot;           /* the loader's; -1 = the caller's own memory */
} dp_batch;

static inline dp_rows dp_view(const void *data, dp_dtype dtype, int64_t n, int64_t width)
{
    dp_rows r;
    r.data = data, r.dtype = dtype, r.layout = DP_HWC, r.n = n, r.width = width;
    return r;
}
static inline dp_batch dp_batch_of(dp_rows x, dp_rows y)
{
    dp_batch b;
    b.x = x, b.y = y, b.ids = NULL, b.epoch = 0, b.last_of_window = 1, b.slot = -1;
    return b;
}

#ifdef __cplusplus
}
#endif
#endif
