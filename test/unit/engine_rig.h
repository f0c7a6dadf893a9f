/* Small networks, batches and engines for the tests of the engine, on the plain CPU backend or on the late one: the same property
 * functions run on both. Networks are tiny: what is tested is who adds what to what, not arithmetic. */
#ifndef DP_TEST_ENGINE_RIG_H
#define DP_TEST_ENGINE_RIG_H
#include "../../dp/engine/internal.h"
#include "../late/late.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

typedef struct rig_net {
    const char *name, *text;     /* [model] */
    int tokens;                  /* 0: float rows; else the vocabulary */
    int width, targets, classes; /* of a row of x; per row; of a target */
    int smooth;                  /* no relu: only rounding tells a whole batch from its parts */
    const char *settings;        /* NULL: none of its own */
} rig_net;
extern const rig_net rig_mlp, rig_wide, rig_conv, rig_dropout, rig_gpt, rig_flat, rig_tight;

typedef struct rig_data { /* n samples and their targets, the same for the same seed */
    const rig_net *net;
    int64_t n;
    float *x;
    int32_t *tokens, *y;
    uint64_t *ids;
} rig_data;
rig_data rig_data_new(const rig_net *net, int64_t n, uint64_t seed);
void rig_data_free(rig_data *d);
dp_batch rig_batch(const rig_data *d, int64_t first, int64_t n); /* ids set, epoch 0, last_of_window 1 */

/* A finished graph, a config and an engine on `devices` devices. settings: "key=value key=value", over: threads = 1, sgd with
 * momentum, lr 0.1, batch_size 24. leaves: 0 = by the settings. */
typedef struct rig {
    dp_engine *e;
    dp_graph *graph;
    dp_config *config;
    char warning[1024]; /* warnings of the log, one after the other */
} rig;
const dp_backend *rig_backend(void *const *state); /* of a test registered with ON */
dp_status rig_try(rig *r, const rig_net *net, const dp_backend *b, int devices, int leaves, const char *settings,
                  dp_error *err);
void rig_open(rig *r, const rig_net *net, const dp_backend *b, int devices, int leaves, const char *settings);
void rig_close(rig *r);
dp_result rig_step(rig *r, const rig_data *d, int64_t first, int64_t n);
dp_result rig_micro_step(rig *r, const rig_data *d, int64_t first, int64_t n, int last_of_window);

/* All tensors in file order, one after the other; *count elements; the caller's to free. */
float *rig_weights(rig *r, int64_t *count);
float *rig_gradient(rig *r, int64_t *count); /* parameters only */
void rig_same_bytes(const void *a, const void *b, size_t bytes, const char *what);
double rig_distance(const float *a, const float *b, int64_t n); /* norm of the difference over norm of b */
/* Largest of it over the tensors (parameters only with gradients = 1). */
double rig_tensor_distance(rig *r, const float *a, const float *b, int gradients);
int rig_threads(void);         /* of this process */
int rig_threads_back(int n);   /* 1 when there are n again; a thread that was joined may be listed for a moment */
int rig_warm_up(void **state); /* group setup: what libraries and sanitizers start with the first engine */
int rig_full(void);            /* DP_SCALE = full */

#define ON(test)                                                                                                               \
    {#test " (cpu)", test, NULL, NULL, (void *)(uintptr_t) "cpu"},                                                             \
    {                                                                                                                          \
#test " (late)", test, NULL, NULL, (void *)(uintptr_t) "late"                                                          \
    }
#endif
