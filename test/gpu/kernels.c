/* Counts what GPUs run: kernels, copies and fills, those of libraries and inside CUDA graphs too. The driver loads it into a program that
 * has CUDA_INJECTION64_PATH (check.sh, step kernels). When the program ends, the counts go to the file that DP_KERNELS names. */
#include <cupti.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUFFER = 1 << 20 };
static atomic_long kernels, copies, fills, dropped; /* buffers come back on CUPTI's own threads */

int InitializeInjection(void);

static void CUPTIAPI give(uint8_t **buffer, size_t *size, size_t *records)
{
    *buffer = aligned_alloc(8, BUFFER);
    *size = *buffer ? BUFFER : 0;
    *records = 0; /* as many as fit */
}

static void CUPTIAPI take(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t used)
{
    CUpti_Activity *record = NULL;
    size_t lost = 0;
    (void)size;
    while (used && cuptiActivityGetNextRecord(buffer, used, &record) == CUPTI_SUCCESS) {
        switch (record->kind) {
        case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: kernels++; break;
        case CUPTI_ACTIVITY_KIND_MEMSET: fills++; break;
        default: copies++;
        }
    }
    if (cuptiActivityGetNumDroppedRecords(context, stream, &lost) == CUPTI_SUCCESS) dropped += (long)lost;
    free(buffer);
}

static void write_counts(void)
{
    const char *path = getenv("DP_KERNELS");
    cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) return;
    fprintf(f, "kernels %ld\ncopies %ld\nfills %ld\ndropped %ld\n", kernels, copies, fills, dropped);
    fclose(f);
}

__attribute__((visibility("default"))) int InitializeInjection(void)
{
    static const CUpti_ActivityKind kind[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                              CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET};
    if (cuptiActivityRegisterCallbacks(give, take) != CUPTI_SUCCESS) return 0;
    for (size_t i = 0; i < sizeof kind / sizeof kind[0]; i++)
        if (cuptiActivityEnable(kind[i]) != CUPTI_SUCCESS) return 0;
    return !atexit(write_counts);
}
