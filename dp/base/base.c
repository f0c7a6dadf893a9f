/* Version and names. */
#include "base.h"

int dp_version(void)
{
    return DP_VERSION;
}

const char *dp_version_text(void)
{
    return DP_VERSION_TEXT;
}

const char *dp_status_name(dp_status s)
{
    static const char *const name[] = {[DP_OK] = "ok",
                                       [DP_EARGUMENT] = "wrong argument",
                                       [DP_ECONFIG] = "wrong configuration",
                                       [DP_EDATA] = "wrong data",
                                       [DP_EIO] = "input or output failed",
                                       [DP_ENOSPACE] = "no space on the disk",
                                       [DP_ENOMEM] = "out of memory",
                                       [DP_EDEVICE] = "device failed",
                                       [DP_EDEVICE_LOST] = "device lost",
                                       [DP_ETIMEOUT] = "timed out",
                                       [DP_ENONFINITE] = "not finite",
                                       [DP_EFAILED] = "failed before",
                                       [DP_ESTOPPED] = "stopped",
                                       [DP_EVERSION] = "versions differ"};
    return (unsigned)s < sizeof name / sizeof *name ? name[s] : "unknown status";
}

const char *dp_memory_class_name(int mem_class)
{
    static const char *const name[DP_MEM_CLASSES] = {"parameters", "gradients", "optimizer", "activations",
                                                     "workspace",  "staging",   "library"};
    return mem_class >= 0 && mem_class < DP_MEM_CLASSES ? name[mem_class] : "";
}
