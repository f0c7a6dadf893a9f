// Internal to cusim: what cublasLt and cuDNN share.
#ifndef CUSIM_LIBRARY_H
#define CUSIM_LIBRARY_H
#include "internal.h"
namespace cusim
{

// 0, or the status of the call: an injected code, or `failed` when the device is lost.
int enter_library(const char *name, int flags, int failed);
bool take_handle(bool take, size_t bytes); // of the thread's device's memory
void count_descriptor(bool made);
bool tf32_rounds();
bool aligned(const void *p, size_t to);
float host_float(const void *p, const char *what); // a factor; a device pointer is fatal

struct Matrix { // element (r, c) is at[r * row + c * column]
    const float *at;
    int64_t row, column;
};
// out(r, c) = product, or out + product; sums run over k in order. `round` rounds the factors as TF32 does.
void multiply(float *out, int64_t out_row, int64_t out_column, Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, bool add,
              bool round);

struct Busy { // a workspace in use by work that runs: a second user at the same time is fatal, and TSan sees a write
    Busy(void *p, size_t n, const char *what);
    ~Busy();
    void *at;
};

} // namespace cusim
#endif
