/* The device list: strict, in the order given, with the column of what is wrong (P74). The first is the master. */
#include "devices.h"
#include "../base/config.h"
#include "../../nn/cuda_plugin.h"
#include "../base/text.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>

int dp_cores(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    return n < 1 ? 1 : n;
}

/* CPU devices, then GPUs. A GPU is shown where the backend is missing too: `why` then says what it takes. */
int dp_device(int i, dp_device_info *info)
{
    const dp_backend *cuda;
    dp_error missing;
    int first = 0, n, driver;
    if (!info || i < 0) return 0;
    if (dp_backend_cpu()->enumerate(i, info)) return 1;
    while (dp_backend_cpu()->enumerate(first, info)) first++;
    if (dp_cuda_count(&n, &driver, NULL) || i - first >= n) return 0;
    if (!dp_cuda_plugin_load(&cuda, &missing)) return cuda->enumerate(i - first, info);
    if (!dp_cuda_info(i - first, NULL, info)) return 0;
    dp_format(info->why, sizeof info->why, "%s", missing.text);
    return 1;
}

const char *dp_phase_name(int phase)
{
    static const char *const name[DP_PHASES] = {"data_wait", "upload",   "replicate", "forward", "gather", "loss",
                                                "scatter",   "backward", "reduce",    "update",  "share",  "idle"};
    return phase >= 0 && phase < DP_PHASES ? name[phase] : "";
}

/* ---- names ---- */

typedef enum kind { NONE, CPU, GPU } kind;
typedef struct names { /* of a list, all of one kind */
    const char *text;
    kind kind;
    int n, index[DP_MAX_DEVICES], column[DP_MAX_DEVICES];
} names;

static const char *prefix(kind k)
{
    return k == CPU ? "cpu" : "cuda";
}

static dp_status add(names *l, kind k, int64_t index, int column, dp_error *err)
{
    if (l->kind != NONE && l->kind != k)
        return dp_fail(err, DP_ECONFIG, "devices.use = %s, column %d: CPU devices and GPUs do not mix; name one kind.", l->text,
                       column);
    for (int i = 0; i < l->n; i++)
        if (l->index[i] == index)
            return dp_fail(err, DP_ECONFIG, "devices.use = %s, column %d: %s:%lld is a duplicate; name each device once.",
                           l->text, column, prefix(k), (long long)index);
    if (l->n == DP_MAX_DEVICES) return dp_fail(err, DP_ECONFIG, "devices.use names more than %d devices.", DP_MAX_DEVICES);
    l->kind = k;
    l->column[l->n] = column;
    l->index[l->n++] = (int)index;
    return DP_OK;
}

/* "cpu:0,cpu:1", "cuda:0,cuda:1" or "0,1": whole numbers, separated by commas. */
static dp_status parse(names *l, dp_error *err)
{
    char quoted[96];
    const char *at = l->text;
    for (;;) {
        const char *end = strchr(at, ',');
        size_t length = end ? (size_t)(end - at) : strlen(at);
        char item[64];
        int64_t index;
        while (length && (*at == ' ' || *at == '\t')) at++, length--;
        while (length && (at[length - 1] == ' ' || at[length - 1] == '\t')) length--;
        int column = (int)(at - l->text) + 1;
        dp_format(item, sizeof item, "%.*s", (int)(length < 60 ? length : 60), at);
        if (!length)
            return dp_fail(
                err, DP_ECONFIG,
                "devices.use = %s, column %d: a device name is missing; wanted a list as cuda:0,cuda:1 or cpu:0,cpu:1.",
                dp_quote(quoted, sizeof quoted, l->text), column);
        const kind k = !strncmp(item, "cpu:", 4) ? CPU : GPU;
        const char *number = item + (k == CPU ? 4 : !strncmp(item, "cuda:", 5) ? 5 : 0);
        if (!*number || strspn(number, "0123456789") != strlen(number) || dp_parse_int(number, &index) != 1 || index > 9999)
            return dp_fail(
                err, DP_ECONFIG,
                "devices.use, column %d: %s is not a device; wanted cuda:K (or K alone) or cpu:K with K from 0 to 9999, "
                "or all or auto alone.",
                column, dp_quote(quoted, sizeof quoted, item));
        DP_TRY(add(l, k, index, column, err));
        if (!end) return DP_OK;
        at = end + 1;
    }
}

/* ---- GPUs ---- */

/* The runtime counts the fastest first, nvidia-smi along the bus: with different cards their numbers may differ (P73). */
static void warn_order(const dp_config *c, const dp_backend *cuda)
{
    const char *order = getenv("CUDA_DEVICE_ORDER");
    dp_device_info first, other;
    if ((order && !strcmp(order, "PCI_BUS_ID")) || !cuda->enumerate(0, &first)) return;
    for (int i = 1; cuda->enumerate(i, &other); i++) {
        if (!strcmp(first.model, other.model)) continue;
        dp_log(c, DP_LOG_WARN,
               "The GPUs differ (%s is %s, %s is %s) and are counted by speed; CUDA_DEVICE_ORDER=PCI_BUS_ID counts them as "
               "nvidia-smi "
               "does.",
               first.name, first.model, other.name, other.model);
        return;
    }
}

static dp_status check_gpu(const dp_backend *cuda, int index, int n, const char *place, dp_error *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    dp_device_info info;
    if (index < n && cuda->enumerate(index, &info)) {
        if (info.usable) return DP_OK;
        return dp_fail(err, DP_EDEVICE, "devices.use%s: %s (%s, %s) %s.", place, info.name, info.pci, info.model, info.why);
    }
    if (cuda->enumerate(0, &info) && strstr(info.model, " MIG "))
        return dp_fail(err, DP_ECONFIG,
                       "devices.use%s: cuda:%d is not among the %d visible GPUs; of MIG instances a process sees only one.",
                       place, index, n);
    return dp_fail(err, DP_ECONFIG, "devices.use%s: cuda:%d is not among the %d visible GPUs%s%s.", place, index, n,
                   visible ? "; CUDA_VISIBLE_DEVICES is " : "", visible ? visible : "");
}

/* The backend of the GPUs and how many there are; where there is none, one line that says why. */
static dp_status open_gpus(dp_device_list *l, int *n, dp_error *err)
{
    int driver;
    DP_TRY(dp_cuda_count(n, &driver, err));
    return dp_cuda_plugin_load(&l->backend, err);
}

static dp_status choose_gpus(dp_device_list *l, const dp_config *c, const names *named, dp_error *err)
{
    dp_error why;
    int n;
    const dp_status status = open_gpus(l, &n, &why);
    if (status) return dp_fail(err, status, "devices.use = %s wants GPUs. %s", named->text, why.text);
    for (int i = 0; i < named->n; i++) {
        char place[32];
        dp_format(place, sizeof place, ", column %d", named->column[i]);
        DP_TRY(check_gpu(l->backend, named->index[i], n, place, err));
        l->index[l->n++] = named->index[i];
    }
    if (!named->n) /* all */
        for (int i = 0; i < n && l->n < DP_MAX_DEVICES; i++) {
            DP_TRY(check_gpu(l->backend, i, n, " = all", err));
            l->index[l->n++] = i;
        }
    warn_order(c, l->backend);
    return DP_OK;
}

/* auto: the GPUs that can be used, else CPU devices. A GPU that is passed over is worth a line. */
static int auto_gpus(dp_device_list *l, const dp_config *c)
{
    dp_error why;
    dp_device_info info;
    int n, driver;
    if (dp_cuda_count(&n, &driver, NULL)) return 0;
    if (dp_cuda_plugin_load(&l->backend, &why)) {
        dp_log(c, DP_LOG_WARN, "This machine has %d GPU%s, which cannot be used. %s", n, n == 1 ? "" : "s", why.text);
        return 0;
    }
    for (int i = 0; i < n && l->n < DP_MAX_DEVICES; i++) {
        if (!l->backend->enumerate(i, &info)) continue;
        if (info.usable)
            l->index[l->n++] = i;
        else
            dp_log(c, DP_LOG_WARN, "%s (%s, %s) %s; the others are used.", info.name, info.pci, info.model, info.why);
    }
    if (l->n) warn_order(c, l->backend);
    return l->n;
}

/* ---- the choice ---- */

static void auto_cpus(dp_device_list *l, int cores, int64_t batch)
{
    int n = cores < 8 ? cores : 8;
    while (n > 1 && batch / n < 16) n--;
    for (int i = 0; i < n; i++) l->index[l->n++] = i;
    l->threads = 1;
}

dp_status dp_devices_choose(dp_device_list *l, const dp_config *c, const dp_backend *backend, int64_t batch, dp_error *err)
{
    names named = {.text = dp_config_text(c, "devices.use")};
    const int cores = dp_cores();
    int gpus = 0;
    memset(l, 0, sizeof *l);
    if (!named.text[strspn(named.text, " \t")])
        return dp_fail(err, DP_ECONFIG, "devices.use is empty; wanted auto or a list as cuda:0,cuda:1 or cpu:0,cpu:1.");
    if (!strcmp(named.text, "auto")) {
        gpus = !backend && auto_gpus(l, c);
        if (!gpus) {
            l->backend = backend ? backend : dp_backend_cpu();
            auto_cpus(l, cores, batch);
        }
    } else {
        if (!strcmp(named.text, "all"))
            named.kind = GPU;
        else
            DP_TRY(parse(&named, err));
        gpus = named.kind == GPU;
        if (gpus) {
            DP_TRY(choose_gpus(l, c, &named, err));
        } else {
            l->backend = backend ? backend : dp_backend_cpu();
            l->n = named.n;
            memcpy(l->index, named.index, sizeof l->index);
            l->threads = dp_config_int(c, "devices.shards") ? 1 : cores / l->n;
        }
    }
    if (dp_config_int(c, "devices.threads")) l->threads = (int)dp_config_int(c, "devices.threads");
    if (l->threads < 1) l->threads = 1;
    l->pin = !gpus && l->n * l->threads <= cores && l->n > 1;
    l->timeout_s = dp_config_number(c, "devices.timeout_s");
    l->memory_limit = dp_config_int(c, "devices.memory_limit_mb") * 1000000;
    l->workspace = dp_config_int(c, "devices.workspace_mb") * 1000000;
    l->deterministic = dp_config_flag(c, "run.deterministic");
    l->tf32 = 2 - dp_config_choice(c, "devices.tf32");
    l->conv_direct = dp_config_choice(c, "devices.conv") == 1;
    l->conv_own = dp_config_choice(c, "devices.conv") == 2;
    l->debug_sync = dp_config_flag(c, "run.debug_sync");
    l->tune_measure = dp_config_choice(c, "devices.tune") == 1 && !l->deterministic;
    return DP_OK;
}
