/* Programs that are wrong in one way each, and right ones beside them. */
#include "cusim_cases.h"
#include "cusim.h"
#include "kernels.h"
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 1024, BYTES = N * sizeof(float) };
static cudaStream_t s0, s1;
static cudaEvent_t e0, e1;
static float *d0, *d1, *h;

static void must(int code, const char *call)
{
    if (!code) return;
    printf("%s returned %d\n", call, code);
    exit(3);
}
#define OK(call) must((int)(call), #call)

static void begin(void)
{
    OK(cudaSetDevice(0));
    OK(cudaStreamCreateWithFlags(&s0, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&s1, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&e0, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&e1, cudaEventDisableTiming));
    OK(cudaMalloc((void **)&d0, BYTES));
    OK(cudaMalloc((void **)&d1, BYTES));
    OK(cudaMallocHost((void **)&h, BYTES));
    for (int i = 0; i < N; i++) h[i] = (float)i;
}
static void end(void)
{
    OK(cudaDeviceSynchronize());
    OK(cudaFree(d0));
    OK(cudaFree(d1));
    OK(cudaFreeHost(h));
    OK(cudaStreamDestroy(s0));
    OK(cudaStreamDestroy(s1));
    OK(cudaEventDestroy(e0));
    OK(cudaEventDestroy(e1));
}

/* -- fatal -- */

static void host_touches(void)
{
    printf("before\n");
    fflush(stdout);
    printf("touched %f\n", (double)d0[0]);
    exit(0);
}
static void past_end(void)
{
    OK(k_fill(N + 3, 1, d0, s0));
    OK(cudaFree(d0));
}
static void freed(void)
{
    OK(cudaFree(d0));
    OK(k_fill(1, 1, d0, s0));
}
static void freed_between(void)
{
    OK(cudaFree(d1));
    OK(k_fill(1, 1, d1, s0));
}
static void pageable_argument(void)
{
    static float plain[N];
    OK(k_fill(N, 1, plain, s0));
}
static void foreign(void)
{
    float *d;
    OK(cudaSetDevice(1));
    OK(cudaMalloc((void **)&d, BYTES));
    OK(cudaSetDevice(0));
    OK(k_fill(N, 1, d, s0));
}
static void foreign_in_struct(void)
{
    float *d;
    OK(cudaSetDevice(1));
    OK(cudaMalloc((void **)&d, BYTES));
    OK(cudaSetDevice(0));
    OK(k_pairs(N, (k_pair){1, d, d0}, s0));
}
static void copy_too_long(void)
{
    OK(cudaMemcpyAsync(d0, h, BYTES + 4, cudaMemcpyHostToDevice, s0));
}
static void divergent(void)
{
    OK(k_divergent(d0, s0));
    OK(cudaDeviceSynchronize());
}
static void absent(void)
{
    OK(k_absent(d0, s0));
    OK(cudaDeviceSynchronize());
}
static void overrun(void)
{
    OK(k_overrun(d0, s0));
    OK(cudaDeviceSynchronize());
}
static void stack(void)
{
    OK(k_spin_stack(d0, s0));
    OK(cudaDeviceSynchronize());
}
static void default_stream(void)
{
    OK(k_fill(1, 1, d0, 0));
}
static void blocking_stream(void)
{
    OK(cudaStreamCreate(&s0));
}
static void destroyed_stream(void)
{
    OK(cudaStreamDestroy(s1));
    OK(k_fill(1, 1, d0, s1));
}
static void destroyed_event(void)
{
    OK(cudaEventDestroy(e1));
    OK(cudaEventRecord(e1, s0));
}
static void reset(void)
{
    OK(cudaDeviceReset());
}
static void attribute(void)
{
    int v;
    OK(cudaDeviceGetAttribute(&v, cudaDevAttrMaxTexture1DWidth, 0));
}
static void unknown_fault(void)
{
    cusim_fault("die:0");
}

/* -- a matrix product of 16 x 16, with a workspace -- */

static cublasLtHandle_t lt;
static cublasLtMatmulDesc_t desc;
static cublasLtMatrixLayout_t layout;
static cublasLtMatmulHeuristicResult_t choice;
static float *matrix; /* of 3 */
static void *workspace;
static void matmul_open(void)
{
    cublasLtMatmulPreference_t p;
    const uint64_t bytes = 4096;
    int n;
    OK(cublasLtCreate(&lt));
    OK(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    OK(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 16, 16, 16));
    OK(cublasLtMatmulPreferenceCreate(&p));
    OK(cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    OK(cublasLtMatmulAlgoGetHeuristic(lt, desc, layout, layout, layout, layout, p, 1, &choice, &n));
    OK(cublasLtMatmulPreferenceDestroy(p));
    OK(cudaMalloc((void **)&matrix, 4 * 1024));
    OK(cudaMalloc(&workspace, 4096));
    OK(k_fill(1024, 1, matrix, s0));
    OK(cudaDeviceSynchronize());
}
static void matmul(cudaStream_t s, int out)
{
    const float one = 1, zero = 0;
    OK(cublasLtMatmul(lt, desc, &one, matrix, layout, matrix, layout, &zero, matrix, layout, matrix + 256 * out, layout,
                      &choice.algo, workspace, 4096, s));
}
static void matmul_close(void)
{
    OK(cudaDeviceSynchronize());
    OK(cublasLtDestroy(lt));
    OK(cublasLtMatmulDescDestroy(desc));
    OK(cublasLtMatrixLayoutDestroy(layout));
    OK(cudaFree(matrix));
    OK(cudaFree(workspace));
}
static void workspace_shared(void)
{
    matmul_open();
    for (int i = 0; i < 200; i++) { /* at once, sooner or later */
        matmul(s0, 1);
        matmul(s1, 2);
    }
    OK(cudaDeviceSynchronize());
}

/* -- right, and nearly right -- */

static void use(int waits)
{
    OK(cudaMemcpyAsync(d0, h, BYTES, cudaMemcpyHostToDevice, s0));
    OK(cudaEventRecord(e0, s0));
    if (waits) OK(cudaStreamWaitEvent(s1, e0, 0));
    OK(k_fill(N, 1, d1, s1));
    OK(k_axpy(N, 1, d0, d1, s1));
}
static void right(void)
{
    use(1);
    OK(cudaEventRecord(e1, s1));
    OK(cudaStreamWaitEvent(s0, e1, 0)); /* the next write after the last read */
    OK(cudaMemsetAsync(d0, 0, BYTES, s0));
    OK(cudaMemcpyAsync(h, d1, BYTES, cudaMemcpyDeviceToHost, s1));
    OK(cudaStreamSynchronize(s1));
    if (h[5] != 6) exit(4);
    h[5] = 0;
}
static void right_query(void)
{
    use(1);
    OK(cudaMemcpyAsync(h, d1, BYTES, cudaMemcpyDeviceToHost, s1));
    OK(cudaEventRecord(e1, s1));
    while (cudaEventQuery(e1)) usleep(50);
    if (h[5] != 6) exit(4);
    (void)cudaGetLastError();
}
static void right_block(void)
{
    use(1);
    OK(k_reverse(N, d1, d0, 1, s1));
    OK(cudaMemsetAsync(d1, 0, 4, s1));
    OK(k_sum(N, d0, d1, s1));
}
static void right_library(void)
{
    matmul_open();
    matmul(s0, 1);
    OK(cudaEventRecord(e0, s0));
    OK(cudaStreamWaitEvent(s1, e0, 0));
    matmul(s1, 2);
    OK(cudaMemcpyAsync(h, matrix + 512, 1024, cudaMemcpyDeviceToHost, s1));
    OK(cudaStreamSynchronize(s1));
    if (h[255] != 16) exit(4);
    matmul_close();
}
static void right_reuse(void) /* memory that goes round: freed, allocated, used on another stream */
{
    for (int i = 0; i < 8; i++) {
        float *d;
        OK(cudaMalloc((void **)&d, BYTES));
        OK(k_fill(N, 1, d, i % 2 ? s0 : s1));
        OK(cudaFree(d));
    }
}
static void right_devices(void)
{
    float *d;
    cudaStream_t s;
    OK(cudaSetDevice(1));
    OK(cudaMalloc((void **)&d, BYTES));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaSetDevice(0));
    use(1);
    OK(cudaEventRecord(e1, s1));
    OK(cudaSetDevice(1));
    OK(cudaDeviceEnablePeerAccess(0, 0));
    OK(cudaStreamWaitEvent(s, e1, 0));
    OK(k_fill(N, 0, d, s));
    OK(k_axpy(N, 1, d1, d, s));
    OK(cudaMemcpyAsync(h, d, BYTES, cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    if (h[7] != 8) exit(4);
    OK(cudaFree(d));
    OK(cudaStreamDestroy(s));
    OK(cudaSetDevice(0));
}
static void graph(int joins)
{
    cudaGraph_t g;
    cudaGraphExec_t x;
    OK(cudaStreamBeginCapture(s0, cudaStreamCaptureModeThreadLocal));
    OK(cudaMemcpyAsync(d0, h, BYTES, cudaMemcpyHostToDevice, s0));
    OK(cudaEventRecord(e0, s0));
    OK(cudaStreamWaitEvent(s1, e0, 0));
    OK(k_fill(N, 2, d1, s1));
    OK(cudaEventRecord(e1, s1));
    if (joins) OK(cudaStreamWaitEvent(s0, e1, 0));
    OK(k_axpy(N, 1, d1, d0, s0));
    OK(cudaStreamWaitEvent(s0, e1, 0)); /* joined in any case, but too late */
    OK(k_empty(1, 1, 0, s0));
    OK(cudaStreamEndCapture(s0, &g));
    OK(cudaGraphInstantiate(&x, g, 0));
    for (int i = 0; i < 3; i++) OK(cudaGraphLaunch(x, s0));
    OK(cudaMemcpyAsync(h, d0, BYTES, cudaMemcpyDeviceToHost, s0));
    OK(cudaStreamSynchronize(s0));
    if (joins && h[3] != 5) exit(4);
    OK(cudaGraphDestroy(g));
    OK(cudaGraphExecDestroy(x));
}
static void right_graph(void)
{
    graph(1);
}

static void no_wait(void)
{
    use(0);
}
static void no_wait_late(void) /* in a lucky order: the upload has long ended */
{
    OK(cudaMemcpyAsync(d0, h, BYTES, cudaMemcpyHostToDevice, s0));
    OK(cudaEventRecord(e0, s0));
    usleep(50000);
    OK(cudaEventRecord(e0, s0));
    OK(k_fill(N, 1, d1, s1));
    OK(k_axpy(N, 1, d0, d1, s1));
}
static void old_record(void) /* waits for a record that was made before the work */
{
    OK(cudaEventRecord(e0, s0));
    OK(cudaStreamWaitEvent(s1, e0, 0));
    OK(cudaMemcpyAsync(d0, h, BYTES, cudaMemcpyHostToDevice, s0));
    OK(cudaEventRecord(e0, s0));
    OK(k_fill(N, 1, d1, s1));
    OK(k_axpy(N, 1, d0, d1, s1));
}
static void host_writes(void)
{
    OK(cudaMemcpyAsync(d0, h, BYTES, cudaMemcpyHostToDevice, s0));
    h[7] = 3;
}
static void host_reads(void)
{
    OK(k_fill(N, 1, d0, s0));
    OK(cudaMemcpyAsync(h, d0, BYTES, cudaMemcpyDeviceToHost, s0));
    usleep(20000);
    printf("%f\n", (double)h[0]);
}
static void overwritten(void) /* the next write does not wait for the last read */
{
    use(1);
    OK(cudaMemsetAsync(d0, 0, BYTES, s0));
}
static void library_reads(void)
{
    matmul_open();
    OK(k_fill(16, 1, matrix + 240, s1));
    usleep(20000);
    matmul(s0, 1);
}
static void library_workspace(void) /* not at once, but in no order */
{
    matmul_open();
    matmul(s0, 1);
    usleep(20000);
    matmul(s1, 2);
}
static void graph_edge(void)
{
    graph(0);
}
static void block(void) /* no barrier between write and read of shared memory */
{
    use(1);
    OK(k_reverse(N, d1, d0, 0, s1));
}

const cusim_case cusim_fatal[] = {
    {"host_touches", host_touches, "before"},
    {"past_end", past_end, "past the end of an allocation"},
    {"freed", freed, "freed or never allocated"},
    {"freed_between", freed_between, "freed or never allocated"},
    {"pageable_argument", pageable_argument, "fill on device 0 is given pageable host memory"},
    {"foreign", foreign, "no peer access"},
    {"foreign_in_struct", foreign_in_struct, "no peer access"},
    {"copy_too_long", copy_too_long, "run past the end"},
    {"divergent", divergent, "different barriers"},
    {"absent", absent, "not in the mask or has left"},
    {"overrun", overrun, "past its 28 bytes of dynamic shared memory"},
    {"stack", stack, "KB of stack"},
    {"default_stream", default_stream, "default stream"},
    {"blocking_stream", blocking_stream, "cudaStreamNonBlocking"},
    {"destroyed_stream", destroyed_stream, "stream is used that was destroyed"},
    {"destroyed_event", destroyed_event, "event is used that was destroyed"},
    {"reset", reset, "cudaDeviceReset"},
    {"attribute", attribute, "is not modelled"},
    {"unknown_fault", unknown_fault, "no such fault"},
    {"workspace_shared", workspace_shared, "at the same time"},
    {NULL, NULL, NULL},
};
const cusim_case cusim_fine[] = {
    {"right", right, "fine"},
    {"right_query", right_query, "fine"},
    {"right_block", right_block, "fine"},
    {"right_library", right_library, "fine"},
    {"right_reuse", right_reuse, "fine"},
    {"right_devices", right_devices, "fine"},
    {"right_graph", right_graph, "fine"},
    {NULL, NULL, NULL},
};
const cusim_case cusim_races[] = {
    {"no_wait", no_wait, NULL},
    {"no_wait_late", no_wait_late, NULL},
    {"old_record", old_record, NULL},
    {"host_writes", host_writes, NULL},
    {"host_reads", host_reads, NULL},
    {"overwritten", overwritten, NULL},
    {"library_reads", library_reads, NULL},
    {"library_workspace", library_workspace, NULL},
    {"graph_edge", graph_edge, NULL},
    {"block", block, NULL},
    {NULL, NULL, NULL},
};

int cusim_run_case(const char *name)
{
    static const cusim_case *const lists[] = {cusim_fatal, cusim_fine, cusim_races};
    begin();
    for (size_t l = 0; l < sizeof lists / sizeof *lists; l++)
        for (const cusim_case *c = lists[l]; c->name; c++)
            if (!strcmp(c->name, name)) {
                c->run();
                end();
                printf("fine\n");
                return 0;
            }
    return 99;
}
