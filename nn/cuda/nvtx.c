/* Ranges of a worker's thread: its phases, in them buckets, in them layers. A profiler shows them over the work that was launched inside. The
 * header brings all of NVTX: it looks for a tool once, and where there is none a range costs a comparison. */
#include "nvtx.h"
#if __has_include(<nvtx3/nvToolsExt.h>)
#include "../../dp/base/text.h"
#include <nvtx3/nvToolsExt.h>

/* With the device, and devices open one after the other: NVTX's look for a tool is not for two threads at once. The domain stays: a tool may
 * read it after the device was closed. */
void dp_cuda_range_open(dp_be_device *d)
{
    char name[48];
    dp_format(name, sizeof name, "dp %s", d->name);
    d->ranges.domain = nvtxDomainCreateA(name);
}

void dp_cuda_range(dp_be_device *d, int level, const char *name, int number)
{
    const nvtxDomainHandle_t domain = d->ranges.domain;
    char text[80];
    if (!domain) return;
    for (; d->ranges.depth && d->ranges.level[d->ranges.depth - 1] >= level; d->ranges.depth--)
        (void)nvtxDomainRangePop(domain);
    if (!name) return;
    if (number >= 0) dp_format(text, sizeof text, "%s %d", name, number);
    const nvtxEventAttributes_t e = {.version = NVTX_VERSION,
                                     .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                     .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                     .message.ascii = number >= 0 ? text : name};
    (void)nvtxDomainRangePushEx(domain, &e);
    d->ranges.level[d->ranges.depth++] = level;
}
#endif
