/* The device list: strict, in the order given, with the column of what is wrong (P74). The first is the master. */
#include "devices.h"
#include "../base/config.h"
#include "../base/text.h"
#include <sched.h>
#include <stdio.h>
#include <string.h>

int dp_cores(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    return n < 1 ? 1 : n;
}

int dp_device(int i, dp_device_info *info)
{
    return info ? dp_backend_cpu()->enumerate(i, info) : 0;
}

const char *dp_phase_name(int phase)
{
    static const char *const name[DP_PHASES] = {"data_wait", "upload",   "replicate", "forward", "gather", "loss",
                                                "scatter",   "backward", "reduce",    "update",  "share",  "idle"};
    return phase >= 0 && phase < DP_PHASES ? name[phase] : "";
}

static dp_status add(dp_device_list *l, int64_t index, const char *text, int column, dp_error *err)
{
    for (int i = 0; i < l->n; i++)
        if (l->index[i] == index)
            return dp_fail(err, DP_ECONFIG, "devices.use = %s, column %d: cpu:%lld is a duplicate; name each device once.",
                           text, column, (long long)index);
    if (l->n == DP_MAX_DEVICES) return dp_fail(err, DP_ECONFIG, "devices.use names more than %d devices.", DP_MAX_DEVICES);
    l->index[l->n++] = (int)index;
    return DP_OK;
}

/* "cpu:0, cpu:1": whole numbers after "cpu:", separated by commas. */
static dp_status parse(dp_device_list *l, const char *text, dp_error *err)
{
    char quoted[96];
    const char *at = text;
    for (;;) {
        const char *end = strchr(at, ',');
        size_t length = end ? (size_t)(end - at) : strlen(at);
        char item[64];
        int64_t index;
        while (length && (*at == ' ' || *at == '\t')) at++, length--;
        while (length && (at[length - 1] == ' ' || at[length - 1] == '\t')) length--;
        int column = (int)(at - text) + 1;
        snprintf(item, sizeof item, "%.*s", (int)(length < 60 ? length : 60), at);
        if (!length)
            return dp_fail(err, DP_ECONFIG,
                           "devices.use = %s, column %d: a device name is missing; wanted a list as cpu:0,cpu:1.",
                           dp_quote(quoted, sizeof quoted, text), column);
        int plain = item[0] >= '0' && item[0] <= '9' && strspn(item, "0123456789") == strlen(item);
        if (plain || !strncmp(item, "cuda:", 5) || !strcmp(item, "all"))
            return dp_fail(
                err, DP_ECONFIG,
                "devices.use, column %d: %s means a GPU, and this build has no GPU backend; name CPU devices as cpu:0,cpu:1.",
                column, dp_quote(quoted, sizeof quoted, item));
        if (strncmp(item, "cpu:", 4) || !item[4] || strspn(item + 4, "0123456789") != strlen(item + 4) ||
            dp_parse_int(item + 4, &index) != 1 || index > 9999)
            return dp_fail(err, DP_ECONFIG,
                           "devices.use, column %d: %s is not a device; wanted cpu:K with K from 0 to 9999, or auto.", column,
                           dp_quote(quoted, sizeof quoted, item));
        DP_TRY(add(l, index, text, column, err));
        if (!end) return DP_OK;
        at = end + 1;
    }
}

dp_status dp_devices_choose(dp_device_list *l, const dp_config *c, const dp_backend *backend, int64_t batch, dp_error *err)
{
    const char *use = dp_config_text(c, "devices.use");
    int cores = dp_cores();
    memset(l, 0, sizeof *l);
    l->backend = backend ? backend : dp_backend_cpu();
    if (!strcmp(use, "auto")) {
        int n = cores < 8 ? cores : 8;
        while (n > 1 && batch / n < 16) n--;
        for (int i = 0; i < n; i++) l->index[l->n++] = i;
        l->threads = 1;
    } else {
        if (!use[strspn(use, " \t")])
            return dp_fail(err, DP_ECONFIG, "devices.use is empty; wanted auto or a list as cpu:0,cpu:1.");
        DP_TRY(parse(l, use, err));
        l->threads = dp_config_int(c, "devices.shards") ? 1 : cores / l->n;
    }
    if (dp_config_int(c, "devices.threads")) l->threads = (int)dp_config_int(c, "devices.threads");
    if (l->threads < 1) l->threads = 1;
    l->pin = l->n * l->threads <= cores && l->n > 1;
    l->timeout_s = dp_config_number(c, "devices.timeout_s");
    l->memory_limit = dp_config_int(c, "devices.memory_limit_mb") * 1000000;
    return DP_OK;
}
