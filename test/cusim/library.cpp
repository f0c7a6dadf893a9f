// What cublasLt and cuDNN share: handles, workspaces, and the product of two matrices.
#include "library.h"
#include <cstring>
#include <unistd.h>
#pragma GCC optimize("O3")

namespace cusim {

int enter_library(const char *name, int flags, int failed)
{
    const cudaError_t e = enter(name, flags);
    if (!e) return 0;
    Lock l(world);
    return devices.empty() || here().error ? failed : (int)e;
}

bool take_handle(bool take, size_t bytes)
{
    Lock l(world);
    Device &d = here();
    if (take && d.limit - d.taken < bytes) return false;
    d.taken += take ? bytes : -bytes;
    counters.live_handles += take ? 1 : -1;
    return true;
}

void count_descriptor(bool made)
{
    Lock l(world);
    counters.descriptors += made;
    counters.live_descriptors += made ? 1 : -1;
}

bool tf32_rounds()
{
    static const bool rounds = env_int("CUSIM_TF32", 0) != 0;
    return rounds;
}

bool aligned(const void *p, size_t to)
{
    return (uintptr_t)p % to == 0;
}

float host_float(const void *p, const char *what)
{
    if (!p || owner(p) >= 0) die("%s: alpha and beta are host pointers here", what);
    Visible v;
    float f;
    memcpy(&f, p, sizeof f);
    return f;
}

static float tf32(float v) // to nearest, ties to even, 10 bits
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    if ((u & 0x7f800000u) == 0x7f800000u) return v;
    u = (u + 0xfffu + (u >> 13 & 1)) & ~0x1fffu;
    memcpy(&v, &u, sizeof v);
    return v;
}

static void pack(float *to, Matrix x, int64_t rows, int64_t columns, bool round)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            const float v = x.at[r * x.row + c * x.column];
            to[r * columns + c] = round ? tf32(v) : v;
        }
}

void multiply(float *out, int64_t out_row, int64_t out_column, Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, bool add,
              bool round)
{
    enum { COLUMNS = 128, ROWS = 4 };
    Hidden h; // the buffers below; the caller told TSan of the matrices
    std::vector<float> left((size_t)(m * k)), right((size_t)(k * n));
    pack(left.data(), a, m, k, round);
    pack(right.data(), b, k, n, round);
    for (int64_t c0 = 0; c0 < n; c0 += COLUMNS) {
        const int64_t nc = std::min<int64_t>(COLUMNS, n - c0);
        for (int64_t r0 = 0; r0 < m; r0 += ROWS) {
            const int64_t nr = std::min<int64_t>(ROWS, m - r0);
            float sum[ROWS][COLUMNS] = {};
            for (int64_t p = 0; p < k; p++) {
                const float *const row = &right[(size_t)(p * n + c0)];
                for (int64_t r = 0; r < nr; r++) {
                    const float f = left[(size_t)((r0 + r) * k + p)];
                    float *const s = sum[r];
                    for (int64_t c = 0; c < nc; c++) s[c] += f * row[c];
                }
            }
            for (int64_t r = 0; r < nr; r++)
                for (int64_t c = 0; c < nc; c++) {
                    float &o = out[(r0 + r) * out_row + (c0 + c) * out_column];
                    o = add ? o + sum[r][c] : sum[r][c];
                }
        }
    }
}

static auto &busy = *new std::map<void *, size_t>;

Busy::Busy(void *p, size_t n, const char *what) : at(n ? p : nullptr)
{
    if (!at) return;
    {
        Hidden h;
        Lock l(world);
        for (const auto &b : busy)
            if ((char *)p < (char *)b.first + b.second && (char *)b.first < (char *)p + n)
                die("%s uses a workspace that other work uses at the same time", what);
        busy[at] = n;
    }
    if (const int most = env_int("CUSIM_JITTER_US", 0)) usleep(random_below((unsigned)most)); // time for another user to come
    memset(at, 0xFF, n); // TSan sees the write; nothing of it is kept
}

Busy::~Busy()
{
    if (!at) return;
    Hidden h;
    Lock l(world);
    busy.erase(at);
}

} // namespace cusim
