/* Ranges for profilers: a tool that is linked in hears of phases, buckets and layers, nested and closed. */
#include "../../nn/cuda_plugin.h"
#include "../unit/engine_rig.h"
#include "cusim.h"
#if __has_include(<nvtx3/nvToolsExt.h>)
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

enum { DEEPEST = 8, LINES = 4000 };
static __thread int depth;
static __thread char inside[DEEPEST][64];
static struct {
    pthread_mutex_t lock;
    int domains, pushed, popped, deepest, listens;
    char heard[LINES][160]; /* the path of each range, once */
    int n;
} tool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static nvtxDomainHandle_t domain_created(const char *name)
{
    assert_true(!strncmp(name, "dp cuda:", 8));
    pthread_mutex_lock(&tool.lock);
    tool.domains++;
    pthread_mutex_unlock(&tool.lock);
    return tool.listens ? (nvtxDomainHandle_t)(void *)&tool : NULL;
}

static void hear(const char *path)
{
    for (int i = 0; i < tool.n; i++)
        if (!strcmp(tool.heard[i], path)) return;
    if (tool.n < LINES) snprintf(tool.heard[tool.n++], sizeof tool.heard[0], "%s", path);
}

static int pushed(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *e)
{
    char path[160] = "";
    if ((void *)domain != &tool || e->version != NVTX_VERSION || e->messageType != NVTX_MESSAGE_TYPE_ASCII || depth >= DEEPEST)
        abort();
    snprintf(inside[depth++], sizeof inside[0], "%s", e->message.ascii);
    for (int i = 0; i < depth; i++)
        snprintf(path + strlen(path), sizeof path - strlen(path), "%s%.40s", i ? " > " : "", inside[i]);
    pthread_mutex_lock(&tool.lock);
    tool.pushed++;
    if (depth > tool.deepest) tool.deepest = depth;
    hear(path);
    pthread_mutex_unlock(&tool.lock);
    return depth - 1;
}

static int popped(nvtxDomainHandle_t domain)
{
    if ((void *)domain != &tool || !depth) abort();
    pthread_mutex_lock(&tool.lock);
    tool.popped++;
    pthread_mutex_unlock(&tool.lock);
    return --depth;
}

static int injected(NvtxGetExportTableFunc_t table)
{
    const NvtxExportTableCallbacks *callbacks = table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable f;
    unsigned size = 0;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &f, &size) || size < NVTX_CBID_CORE2_SIZE)
        return 0;
    *f[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)domain_created;
    *f[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)pushed;
    *f[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)popped;
    return 1;
}
extern NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr;
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = injected;

static int heard(const char *path)
{
    for (int i = 0; i < tool.n; i++)
        if (!strcmp(tool.heard[i], path)) return 1;
    return 0;
}

static void steps(const char *settings)
{
    const dp_backend *b = NULL;
    dp_error err;
    rig r;
    if (dp_cuda_plugin_load(&b, &err)) fail_msg("%s", err.text);
    rig_data data = rig_data_new(&rig_wide, 32, 5);
    rig_open(&r, &rig_wide, b, 2, 0, settings);
    for (int i = 0; i < 3; i++) rig_step(&r, &data, 0, 12);
    rig_close(&r);
    rig_data_free(&data);
}

static void ranges_nest(void **state)
{
    (void)state;
    tool.listens = 1;
    steps("devices.mode=balanced devices.graphs=off");
    assert_int_equal(tool.domains, 2); /* one a device */
    assert_true(tool.pushed > 20);
    assert_int_equal(tool.pushed, tool.popped); /* all are closed */
    assert_true(heard("forward") && heard("forward > fc1|tanh") && heard("backward > fc3") && heard("update"));
    assert_true(heard("reduce > bucket 0") && heard("reduce > bucket 1"));
    assert_false(heard("idle"));
    assert_int_equal(tool.deepest, 2);
}

static void without_a_tool_nothing_is_called(void **state)
{
    (void)state;
    tool.listens = 0;
    const int before = tool.pushed;
    steps("devices.mode=balanced");
    assert_int_equal(tool.domains, 4);
    assert_int_equal(tool.pushed, before);
}

int main(void)
{
    setenv("CUSIM_DEVICES", "2", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranges_nest), cmocka_unit_test(without_a_tool_nothing_is_called)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    return 77; /* skipped: the toolkit's NVTX header is not there */
}
#endif
