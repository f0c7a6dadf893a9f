/* Finding and loading libdpcuda.so. */
#include "cuda_plugin.h"
#include "../dp/base/text.h"
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#pragma weak dp_cuda_plugin /* there only if it was linked in */
#ifndef DP_LIBDIR
#define DP_LIBDIR "/usr/local/lib"
#endif
enum { PATH_BYTES = 4096, PLACES = 4 };
static const char *const file = "libdpcuda.so";

dp_status dp_cuda_plugin_check(const dp_plugin *p, const char *path, dp_error *err)
{
    if (p->abi == DP_BACKEND_ABI && p->size == sizeof *p && !strcmp(p->version, DP_VERSION_TEXT)) return DP_OK;
    return dp_fail(
        err, DP_EVERSION,
        "The GPU backend %s is of version %s (interface %u), this library of %s (interface %d); build both from one source.",
        path, p->version, (unsigned)p->abi, DP_VERSION_TEXT, DP_BACKEND_ABI);
}

static dp_status load(const char *path, const dp_backend **b, dp_error *err)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char *reason = dlerror();
        return dp_fail(
            err, DP_EDEVICE,
            "The GPU backend cannot be loaded: %s. It needs cublasLt and cuDNN 9 of its CUDA version on the library path.",
            reason ? reason : path);
    }
    const dp_plugin *p = dlsym(library, "dp_cuda_plugin");
    if (!p) return dp_fail(err, DP_EVERSION, "%s is no GPU backend: it lacks the symbol dp_cuda_plugin.", path);
    DP_TRY(dp_cuda_plugin_check(p, path, err));
    *b = p->backend();
    return DP_OK;
}

/* DIR of "DIR/name" with `rest` behind it; "" when that is too long. */
static void beside(char *out, const char *path, const char *rest)
{
    const char *end = strrchr(path, '/');
    const size_t n = end ? (size_t)(end - path) : 0;
    if (!end || n + strlen(rest) >= PATH_BYTES)
        *out = 0;
    else
        dp_format(out, PATH_BYTES, "%.*s%s", (int)n, path, rest);
}

static void places(char at[PLACES][PATH_BYTES])
{
    static const char here;
    Dl_info info;
    char program[PATH_BYTES], library[PATH_BYTES] = "";
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    if (dladdr(&here, &info) && info.dli_fname) dp_format(library, sizeof library, "%s", info.dli_fname);
    beside(at[0], library, "/libdpcuda.so");
    beside(at[1], program, "/libdpcuda.so");
    beside(at[2], program, "/../lib/libdpcuda.so");
    dp_format(at[3], PATH_BYTES, "%s/%s", DP_LIBDIR, file);
}

dp_status dp_cuda_plugin_load(const dp_backend **b, dp_error *err)
{
    const char *named = getenv("DP_CUDA_PLUGIN");
    if (&dp_cuda_plugin) {
        DP_TRY(dp_cuda_plugin_check(&dp_cuda_plugin, "linked into this program", err));
        *b = dp_cuda_plugin.backend();
        return DP_OK;
    }
    if (named && *named) return load(named, b, err);
    char(*at)[PATH_BYTES] = malloc(sizeof(char[PLACES][PATH_BYTES]));
    if (!at) return dp_fail(err, DP_ENOMEM, "Out of memory: paths of the GPU backend");
    places(at);
    dp_status status = DP_EDEVICE;
    int found = 0;
    while (found < PLACES && (!*at[found] || access(at[found], F_OK))) found++;
    if (found < PLACES)
        status = load(at[found], b, err);
    else
        dp_fail(err, DP_EDEVICE,
                "No GPU backend: %s is neither beside this program nor in %s; build it with nvcc on the PATH or name it in "
                "DP_CUDA_PLUGIN.",
                file, DP_LIBDIR);
    free(at);
    return status;
}
