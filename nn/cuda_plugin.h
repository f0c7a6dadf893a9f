/* Internal: the CUDA backend as a library of its own, loaded when a GPU is wanted: its libraries cost 0.3 s and 150 MB, and may be absent.
 * It exports one symbol, this table; from the program it takes nothing but libc. */
#ifndef DP_NN_CUDA_PLUGIN_H
#define DP_NN_CUDA_PLUGIN_H
#include "backend.h"
#include "cuda_driver.h"

typedef struct dp_plugin {
    uint32_t abi;        /* DP_BACKEND_ABI. This and the next two lines keep their place for ever */
    uint32_t size;       /* of this struct */
    const char *version; /* DP_VERSION_TEXT */
    const dp_cuda_build *build;
    const dp_backend *(*backend)(void);
} dp_plugin;

/* In libdpcuda.so; or linked into the program (libdpcuda.a with -Wl,-u,dp_cuda_plugin), which then needs no other. */
extern DP_API const dp_plugin dp_cuda_plugin;

/* Looks at DP_CUDA_PLUGIN, else beside the library or the program, in ../lib of the program's directory, and where it was installed. Loading it
 * twice costs nothing. */
dp_status dp_cuda_plugin_load(const dp_backend **b, dp_error *err);
/* 0: this table cannot be used with this library, and err says why; `path` is its place. */
dp_status dp_cuda_plugin_check(const dp_plugin *p, const char *path, dp_error *err);
#endif
