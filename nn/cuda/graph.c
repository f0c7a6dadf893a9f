/* CUDA graphs: work of one stream, captured once and launched whole. Captures are thread-local, so that what other threads do meanwhile
 * does not concern them. An event is recorded by a node of its own (cudaEventRecordExternal), since others wait for it outside of the
 * graph; a launch aims these nodes at the events of its step, which touches no launch before. */
#include "cuda.h"

struct dp_be_graph {
    dp_be_device *device;
    cudaGraph_t graph; /* its nodes name those of `exec` */
    cudaGraphExec_t exec;
    cudaGraphNode_t *mark; /* (n) the nodes that record events, in the order of the records */
    cudaEvent_t *event;    /* (n) what they record now */
    int n;
};

static void begin(dp_be_stream *s, int marking)
{
    s->marking = marking;
    s->n_marked = 0;
}

dp_status dp_cuda_mark_event(dp_be_stream *s, dp_be_event *e)
{
    if (s->n_marked == DP_CUDA_MARKS) return DP_ENOMEM;
    if (s->marking == DP_CUDA_CAPTURES)
        DP_CUDA_TRY(s->device, cudaEventRecordWithFlags(e->event, s->stream, cudaEventRecordExternal), NULL);
    s->marked[s->n_marked++] = e->event;
    return DP_OK;
}

dp_status dp_cuda_capture(dp_be_stream *s)
{
    DP_CUDA_TRY(s->device, cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal), NULL);
    begin(s, DP_CUDA_CAPTURES);
    return DP_OK;
}

/* Which node records which event: all of them are different. */
static dp_status find_marks(dp_be_graph *g, const dp_be_stream *s)
{
    size_t n = 0;
    int found = 0;
    DP_CUDA_TRY(g->device, cudaGraphGetNodes(g->graph, NULL, &n), NULL);
    cudaGraphNode_t *node = dp_calloc(n + 1, sizeof *node);
    g->mark = dp_calloc((size_t)s->n_marked + 1, sizeof *g->mark);
    g->event = dp_calloc((size_t)s->n_marked + 1, sizeof *g->event);
    dp_status status = node && g->mark && g->event ? DP_OK : DP_ENOMEM;
    if (!status) status = dp_cuda_check(g->device, cudaGraphGetNodes(g->graph, node, &n), "cudaGraphGetNodes", NULL);
    for (size_t i = 0; i < n && !status; i++) {
        enum cudaGraphNodeType type;
        cudaEvent_t event;
        status = dp_cuda_check(g->device, cudaGraphNodeGetType(node[i], &type), "cudaGraphNodeGetType", NULL);
        if (status || type != cudaGraphNodeTypeEventRecord) continue;
        status = dp_cuda_check(g->device, cudaGraphEventRecordNodeGetEvent(node[i], &event), "cudaGraphEventRecordNodeGetEvent",
                               NULL);
        for (int k = 0; k < s->n_marked && !status; k++)
            if (s->marked[k] == event) g->mark[k] = node[i], g->event[k] = event, found++;
    }
    free(node);
    g->n = s->n_marked;
    return status ? status : found == s->n_marked ? DP_OK : DP_EARGUMENT;
}

static dp_status make(dp_be_graph *g, const dp_be_stream *s)
{
    const dp_cuda_mark before = dp_cuda_mark_memory(g->device);
    DP_TRY(find_marks(g, s));
    DP_CUDA_TRY(g->device, cudaGraphInstantiate(&g->exec, g->graph, 0), NULL);
    g->device->created++;
    return dp_cuda_book_library(g->device, &before, "a graph", NULL);
}

/* A stream that still captures runs nothing: if it could not be ended, once more. */
static dp_status end(dp_be_stream *s, cudaGraph_t *graph)
{
    enum cudaStreamCaptureStatus capturing;
    s->marking = 0;
    if (dp_cuda_lost(s->device)) return DP_EDEVICE_LOST;
    const dp_status status = dp_cuda_check(s->device, cudaStreamEndCapture(s->stream, graph), "cudaStreamEndCapture", NULL);
    if (!status || status == DP_EDEVICE_LOST) return status;
    DP_CUDA_TRY(s->device, cudaStreamIsCapturing(s->stream, &capturing), NULL);
    if (capturing != cudaStreamCaptureStatusNone) DP_CUDA_TRY(s->device, cudaStreamEndCapture(s->stream, graph), NULL);
    return status;
}

dp_status dp_cuda_captured(dp_be_stream *s, dp_be_graph **out)
{
    dp_be_device *d = s->device;
    cudaGraph_t graph = NULL;
    dp_be_graph *g = NULL;
    dp_status status = end(s, &graph);
    if (status || !out) goto discard;
    g = dp_calloc(1, sizeof *g);
    status = g ? DP_OK : DP_ENOMEM;
    if (status) goto discard;
    g->device = d, g->graph = graph;
    status = make(g, s);
    if (status) goto discard;
    *out = g;
    return DP_OK;
discard:
    if (g)
        dp_cuda_graph_close(g);
    else if (graph && !dp_cuda_lost(d))
        (void)dp_cuda_check(d, cudaGraphDestroy(graph), "cudaGraphDestroy", NULL);
    for (int i = 0; i < s->n_marked && !dp_cuda_lost(d); i++)
        (void)dp_cuda_check(d, cudaEventRecord(s->marked[i], s->stream), "cudaEventRecord", NULL);
    return status;
}

void dp_cuda_graph_aim(dp_be_stream *s)
{
    begin(s, DP_CUDA_AIMS);
}

static dp_status aim(dp_be_graph *g, const cudaEvent_t *event)
{
    for (int i = 0; i < g->n; i++) {
        if (event[i] == g->event[i]) continue;
        DP_CUDA_TRY(g->device, cudaGraphExecEventRecordNodeSetEvent(g->exec, g->mark[i], event[i]), NULL);
        g->event[i] = event[i];
    }
    return DP_OK;
}

dp_status dp_cuda_graph_launch(dp_be_stream *s, dp_be_graph *g)
{
    const int aimed = s->marking == DP_CUDA_AIMS;
    s->marking = 0;
    if (aimed && s->n_marked != g->n) return DP_EARGUMENT;
    if (aimed) DP_TRY(aim(g, s->marked));
    DP_CUDA_TRY(s->device, cudaGraphLaunch(g->exec, s->stream), NULL);
    return DP_OK;
}

void dp_cuda_graph_close(dp_be_graph *g)
{
    if (!g) return;
    if (!dp_cuda_lost(g->device)) {
        if (g->exec) (void)dp_cuda_check(g->device, cudaGraphExecDestroy(g->exec), "cudaGraphExecDestroy", NULL);
        (void)dp_cuda_check(g->device, cudaGraphDestroy(g->graph), "cudaGraphDestroy", NULL);
    }
    free(g->mark);
    free(g->event);
    free(g);
}
