/* Elementwise ops: relu, gelu, sigmoid, tanh, add; and add | relu in one pass. */
#include "act.h"
#include "launch.h"

typedef struct pointwise {
    dp_op_kind op;
    int n_in, relu, tanh_form;
    int64_t width;
} pointwise;

struct relu_op {
    static __device__ __forceinline__ float forward(float x)
    {
        return dp_relu(x);
    }
    static __device__ __forceinline__ float backward(float dy, float y)
    {
        return dp_relu_gradient(dy, y);
    }
};
struct gelu_op {
    static __device__ __forceinline__ float forward(float x)
    {
        return dp_gelu(x);
    }
    static __device__ __forceinline__ float backward(float dy, float x)
    {
        return dp_gelu_gradient(dy, x);
    }
};
struct gelu_tanh_op {
    static __device__ __forceinline__ float forward(float x)
    {
        return dp_gelu_tanh(x);
    }
    static __device__ __forceinline__ float backward(float dy, float x)
    {
        return dp_gelu_tanh_gradient(dy, x);
    }
};
struct sigmoid_op {
    static __device__ __forceinline__ float forward(float x)
    {
        return dp_sigmoid(x);
    }
    static __device__ __forceinline__ float backward(float dy, float y)
    {
        return dy * y * (1.0f - y);
    }
};
struct tanh_op {
    static __device__ __forceinline__ float forward(float x)
    {
        return tanhf(x);
    }
    static __device__ __forceinline__ float backward(float dy, float y)
    {
        return dy * (1.0f - y * y);
    }
};

/* Quads of the whole, then what is left over: values are whole rows, so n need not divide. */
template <class F> static __device__ __forceinline__ void each(int64_t n, F f)
{
    const int64_t stride = (int64_t)gridDim.x * blockDim.x, at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64_t i = at; i < n / 4; i += stride) f.quad(i);
    if (at < n % 4) f.one(n / 4 * 4 + at);
}

template <class Op> struct map_forward {
    float *y;
    const float *x;
    __device__ void quad(int64_t i) const
    {
        const float4 v = reinterpret_cast<const float4 *>(x)[i];
        reinterpret_cast<float4 *>(y)[i] = make_float4(Op::forward(v.x), Op::forward(v.y), Op::forward(v.z), Op::forward(v.w));
    }
    __device__ void one(int64_t i) const
    {
        y[i] = Op::forward(x[i]);
    }
};
template <class Op> struct map_backward { /* from the output or the input, as the op wants */
    float *dx;
    const float *dy, *from;
    __device__ void quad(int64_t i) const
    {
        const float4 g = reinterpret_cast<const float4 *>(dy)[i], v = reinterpret_cast<const float4 *>(from)[i];
        reinterpret_cast<float4 *>(dx)[i] = make_float4(Op::backward(g.x, v.x), Op::backward(g.y, v.y), Op::backward(g.z, v.z),
                                                        Op::backward(g.w, v.w));
    }
    __device__ void one(int64_t i) const
    {
        dx[i] = Op::backward(dy[i], from[i]);
    }
};
struct add_all {
    float *y;
    const float *x[DP_MAX_IN];
    int n_in, relu;
    __device__ void quad(int64_t i) const
    {
        float4 s = reinterpret_cast<const float4 *>(x[0])[i];
        for (int k = 1; k < n_in; k++) {
            const float4 v = reinterpret_cast<const float4 *>(x[k])[i];
            s = make_float4(s.x + v.x, s.y + v.y, s.z + v.z, s.w + v.w);
        }
        if (relu) s = make_float4(dp_relu(s.x), dp_relu(s.y), dp_relu(s.z), dp_relu(s.w));
        reinterpret_cast<float4 *>(y)[i] = s;
    }
    __device__ void one(int64_t i) const
    {
        float s = x[0][i];
        for (int k = 1; k < n_in; k++) s += x[k][i];
        y[i] = relu ? dp_relu(s) : s;
    }
};
struct split_relu { /* the gradient of add | relu, to every input that wants it */
    float *dx[DP_MAX_IN];
    const float *dy, *y;
    int n_in;
    __device__ void quad(int64_t i) const
    {
        const float4 g = reinterpret_cast<const float4 *>(dy)[i], v = reinterpret_cast<const float4 *>(y)[i];
        const float4 m = make_float4(dp_relu_gradient(g.x, v.x), dp_relu_gradient(g.y, v.y), dp_relu_gradient(g.z, v.z),
                                     dp_relu_gradient(g.w, v.w));
        for (int k = 0; k < n_in; k++)
            if (dx[k]) reinterpret_cast<float4 *>(dx[k])[i] = m;
    }
    __device__ void one(int64_t i) const
    {
        const float m = dp_relu_gradient(dy[i], y[i]);
        for (int k = 0; k < n_in; k++)
            if (dx[k]) dx[k][i] = m;
    }
};

template <class F> static __global__ void __launch_bounds__(DP_BLOCK) dp_k_each(const F f, int64_t n)
{
    each(n, f);
}

template <class F> static dp_status run_each(dp_be_stream *s, const F &f, int64_t n)
{
    DP_TRY_LAUNCH(s, dp_k_each<F>, dp_blocks(s->device, n / 4 + 1, DP_BLOCK), DP_BLOCK, 0, f, n);
    return DP_OK;
}

static int pointwise_fuses(const dp_chain *chain, const dp_node *next)
{
    return chain->n == 1 && chain->node[0]->op->kind == DP_OP_ADD && next->op->kind == DP_OP_RELU;
}

static dp_status pointwise_open(dp_be_device *, const dp_chain *chain, int64_t, dp_need *need, void **state, dp_error *err)
{
    const dp_node *n = chain->node[0];
    pointwise *p = (pointwise *)dp_calloc(1, sizeof *p);
    if (!p) return dp_fail(err, DP_ENOMEM, "Out of host memory while preparing layer %s.", n->name);
    p->op = n->op->kind;
    p->n_in = n->n_in;
    p->relu = p->op == DP_OP_RELU || chain->n == 2;
    p->tanh_form = n->opt[DP_GELU_TANH] != 0;
    p->width = n->width;
    need->in_place = 1;
    need->reads_in[0] = p->op == DP_OP_GELU;
    need->reads_out = p->relu || p->op == DP_OP_SIGMOID || p->op == DP_OP_TANH;
    for (int k = 0; k < n->n_in; k++) need->passes[k] = 1;
    *state = p;
    return DP_OK;
}

template <class Op> static dp_status forward_as(dp_be_stream *s, const dp_io *io, int64_t n)
{
    const map_forward<Op> f = {(float *)io->out, (const float *)io->in[0]};
    return run_each(s, f, n);
}

static dp_status pointwise_forward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const pointwise *p = (const pointwise *)state;
    const int64_t n = run->rows * p->width;
    switch (p->op) {
    case DP_OP_GELU: return p->tanh_form ? forward_as<gelu_tanh_op>(s, io, n) : forward_as<gelu_op>(s, io, n);
    case DP_OP_SIGMOID: return forward_as<sigmoid_op>(s, io, n);
    case DP_OP_TANH: return forward_as<tanh_op>(s, io, n);
    case DP_OP_ADD: {
        add_all f = {(float *)io->out, {}, p->n_in, p->relu};
        for (int k = 0; k < p->n_in; k++) f.x[k] = (const float *)io->in[k];
        return run_each(s, f, n);
    }
    default: return forward_as<relu_op>(s, io, n);
    }
}

template <class Op> static dp_status backward_as(dp_be_stream *s, const dp_io *io, const void *from, int64_t n)
{
    if (!io->d_in[0]) return DP_OK;
    const map_backward<Op> f = {(float *)io->d_in[0], (const float *)io->d_out, (const float *)from};
    return run_each(s, f, n);
}

static dp_status backward_add(const pointwise *p, dp_be_stream *s, const dp_io *io, int64_t n)
{
    if (p->relu) {
        split_relu f = {{}, (const float *)io->d_out, (const float *)io->out, p->n_in};
        int wanted = 0;
        for (int k = 0; k < p->n_in; k++) f.dx[k] = (float *)io->d_in[k], wanted |= io->d_in[k] != nullptr;
        return wanted ? run_each(s, f, n) : DP_OK;
    }
    for (int k = 0; k < p->n_in; k++)
        if (io->d_in[k] && io->d_in[k] != io->d_out) DP_TRY(dp_cuda_copy(s, io->d_in[k], io->d_out, (size_t)n * sizeof(float)));
    return DP_OK;
}

static dp_status pointwise_backward(void *state, dp_be_stream *s, const dp_run *run, const dp_run *, const dp_io *io)
{
    const pointwise *p = (const pointwise *)state;
    const int64_t n = run->rows * p->width;
    switch (p->op) {
    case DP_OP_GELU:
        return p->tanh_form ? backward_as<gelu_tanh_op>(s, io, io->in[0], n) : backward_as<gelu_op>(s, io, io->in[0], n);
    case DP_OP_SIGMOID: return backward_as<sigmoid_op>(s, io, io->out, n);
    case DP_OP_TANH: return backward_as<tanh_op>(s, io, io->out, n);
    case DP_OP_ADD: return backward_add(p, s, io, n);
    default: return backward_as<relu_op>(s, io, io->out, n);
    }
}

extern "C" const dp_family dp_cuda_pointwise = {.fuses = pointwise_fuses,
                                                .open = pointwise_open,
                                                .prepare = nullptr,
                                                .forward = pointwise_forward,
                                                .backward = pointwise_backward,
                                                .partial = nullptr,
                                                .close = nullptr};
