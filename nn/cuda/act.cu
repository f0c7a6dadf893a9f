/* Bias and activation behind a product, and their gradients in front of one: what is left to do where a library does not do it itself. */
#include "act.h"
#include "affine.h"
#include "columns.h"

template <int ACT> struct bias_act {
    float *y, *before;
    const float *b;
    int64_t n;
    float bias;
    __device__ void column(int64_t c)
    {
        bias = b ? b[c] : 0;
    }
    __device__ void at(int64_t r, int64_t c, bool inside, int64_t) const
    {
        if (!inside) return;
        float v = (before ? before : y)[r * n + c] + bias;
        if (before) before[r * n + c] = v;
        if (ACT == DP_ACT_RELU) v = dp_relu(v);
        if (ACT == DP_ACT_GELU) v = dp_gelu_tanh(v);
        y[r * n + c] = v;
    }
};

template <int ACT> struct gate {
    float *dy;
    const float *from;
    int64_t stride, n;
    float *db;
    __device__ void column(int64_t)
    {
    }
    __device__ float2 at(int64_t r, int64_t c) const
    {
        float g = dy[r * n + c];
        if (ACT == DP_ACT_RELU) g = dp_relu_gradient(g, from[r * stride + c]);
        if (ACT == DP_ACT_GELU) g = dp_gelu_tanh_gradient(g, from[r * stride + c]);
        if (ACT != DP_ACT_NONE) dy[r * n + c] = g;
        return make_float2(g, 0);
    }
    __device__ void finish(int64_t c, double sum, double) const
    {
        if (db) db[c] = (float)sum;
    }
};

template <int ACT> static dp_status bias_act_as(dp_be_stream *s, float *y, float *before, const float *b, int64_t m, int64_t n)
{
    const bias_act<ACT> f = {y, before, b, n, 0};
    return dp_walk_run(s, f, m, n);
}

dp_status dp_act_forward(dp_be_stream *s, dp_act act, float *y, float *before, const float *b, int64_t m, int64_t n)
{
    if (act == DP_ACT_NONE && !b) return DP_OK;
    switch (act) {
    case DP_ACT_RELU: return bias_act_as<DP_ACT_RELU>(s, y, before, b, m, n);
    case DP_ACT_GELU: return bias_act_as<DP_ACT_GELU>(s, y, before, b, m, n);
    default: return bias_act_as<DP_ACT_NONE>(s, y, before, b, m, n);
    }
}

size_t dp_act_workspace(int64_t n)
{
    return dp_columns_workspace(n);
}

template <int ACT>
static dp_status gate_as(dp_be_stream *s, float *dy, const float *from, int64_t stride, int64_t m, int64_t n, float *db,
                         void *workspace)
{
    const gate<ACT> f = {dy, from, stride, n, db};
    return dp_columns_run(s, f, m, n, workspace);
}

dp_status dp_act_backward(dp_be_stream *s, dp_act act, float *dy, const float *from, int64_t stride, int64_t m, int64_t n,
                          float *db, void *workspace)
{
    if (act == DP_ACT_NONE && !db) return DP_OK;
    switch (act) {
    case DP_ACT_RELU: return gate_as<DP_ACT_RELU>(s, dy, from, stride, m, n, db, workspace);
    case DP_ACT_GELU: return gate_as<DP_ACT_GELU>(s, dy, from, stride, m, n, db, workspace);
    default: return gate_as<DP_ACT_NONE>(s, dy, from, stride, m, n, db, workspace);
    }
}
