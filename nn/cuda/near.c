/* A worker launches from the memory node that its GPU hangs on: across the socket's link every launch and every small copy is slower. A
 * wish only: where the system does not say, or lets the thread have none of these processors, it stays where it is. */
#include "near.h"
#include "../../dp/base/text.h"
#include <ctype.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "0-3,8,10-11" */
static void read_list(const char *at, cpu_set_t *set)
{
    CPU_ZERO(set);
    while (isdigit((unsigned char)*at)) {
        char *end;
        const unsigned long first = strtoul(at, &end, 10);
        unsigned long last = first;
        if (*end == '-') last = strtoul(end + 1, &end, 10);
        for (unsigned long c = first; c <= last && c < CPU_SETSIZE; c++) CPU_SET(c, set);
        at = *end == ',' ? end + 1 : end;
    }
}

int dp_cuda_go_near(const char *root, const char *pci)
{
    char path[256], id[16], text[1024];
    cpu_set_t near, own;
    size_t i = 0;
    for (; pci[i] && i < sizeof id - 1; i++) id[i] = (char)tolower((unsigned char)pci[i]);
    id[i] = 0;
    dp_format(path, sizeof path, "%s/%s/local_cpulist", root, id);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    const ssize_t n = read(file, text, sizeof text - 1);
    (void)close(file);
    if (n <= 0 || pthread_getaffinity_np(pthread_self(), sizeof own, &own)) return 0;
    text[n] = 0;
    read_list(text, &near);
    CPU_AND(&near, &near, &own);
    if (!CPU_COUNT(&near) || pthread_setaffinity_np(pthread_self(), sizeof near, &near)) return 0;
    return CPU_COUNT(&near);
}
