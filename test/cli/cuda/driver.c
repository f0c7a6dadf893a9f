/* A libcuda.so.1 for tests: GPUs by environment variables.
 *   FAKE_ARCHS=90,61   their compute capabilities          FAKE_NAMES=A,B   their names (GPU where there are fewer)
 *   FAKE_DRIVER=13000  its version                         FAKE_INIT=803    what cuInit returns        FAKE_MODE=2  compute mode */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int cuDeviceGetCount(int *n);
int cuDeviceGet(int *device, int ordinal);
int cuDeviceGetName(char *name, int size, int device);
int cuDeviceTotalMem_v2(size_t *bytes, int device);
int cuDeviceGetUuid_v2(void *id, int device);
int cuDeviceGetPCIBusId(char *id, int size, int device);
int cuDeviceGetAttribute(int *value, int which, int device);

/* Item i of a list with commas; NULL: there is none. */
static const char *item(const char *name, int i)
{
    const char *at = getenv(name);
    while (at && i-- > 0) at = (at = strchr(at, ',')) ? at + 1 : NULL;
    return at && *at ? at : NULL;
}

static int number(const char *name, int otherwise)
{
    return getenv(name) ? atoi(getenv(name)) : otherwise;
}

int cuInit(unsigned flags)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    (void)flags;
    return number("FAKE_INIT", visible && !*visible ? 100 : 0);
}
int cuDriverGetVersion(int *version)
{
    *version = number("FAKE_DRIVER", 13000);
    return 0;
}
int cuDeviceGetCount(int *n)
{
    for (*n = 0; item("FAKE_ARCHS", *n); ++*n) continue;
    return 0;
}
int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}
int cuDeviceGetName(char *name, int size, int device)
{
    const char *at = item("FAKE_NAMES", device);
    snprintf(name, (size_t)size, "%.*s", at ? (int)strcspn(at, ",") : 3, at ? at : "GPU");
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    (void)device;
    *bytes = (size_t)8 << 30;
    return 0;
}
int cuDeviceGetUuid_v2(void *id, int device)
{
    memset(id, 0xA0 + device, 16);
    return 0;
}
int cuDeviceGetPCIBusId(char *id, int size, int device)
{
    snprintf(id, (size_t)size, "0000:%02x:00.0", 0x41 + device);
    return 0;
}
int cuDeviceGetAttribute(int *value, int which, int device)
{
    const char *arch = item("FAKE_ARCHS", device);
    const int v = arch ? atoi(arch) : 0;
    *value = which == 75 ? v / 10 : which == 76 ? v % 10 : which == 16 ? 42 : which == 20 ? number("FAKE_MODE", 0) : 0;
    return 0;
}
