/* Embedding in C: a network over the program's own arrays, trained on two devices. The library prints nothing: what is seen on the
 * terminal is this program's. */
#include <dp/dp.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 1000, INPUTS = 20, CLASSES = 4, BATCH = 64, EPOCHS = 5 };

/* Points around one centre a class. */
static void make_data(float *x, int32_t *y)
{
    uint32_t random = 1;
    for (int i = 0; i < SAMPLES; i++) {
        y[i] = i % CLASSES;
        for (int k = 0; k < INPUTS; k++) {
            random = random * 1664525u + 1013904223u;
            x[i * INPUTS + k] = (float)(random >> 8) / 8388608.0f - 1.0f + (k % CLASSES == y[i] ? 1.0f : 0.0f);
        }
    }
}

static dp_status train(const float *x, const int32_t *y, double *first, double *last, float *weights, dp_error *err)
{
    dp_engine *engine = NULL;
    dp_graph *net = dp_graph_new();
    dp_config *cfg = dp_config_new(NULL, NULL); /* no log: silent */
    dp_status status = DP_ENOMEM;
    if (!net || !cfg) goto done;

    dp_config_set(cfg, "devices.use", "cpu:0,cpu:1");
    dp_config_set(cfg, "devices.threads", "1");
    dp_config_set_number(cfg, "data.batch_size", BATCH);
    dp_config_set(cfg, "loss.kind", "cross_entropy");
    dp_config_set(cfg, "optimizer.kind", "sgd");
    dp_config_set_number(cfg, "optimizer.lr", 0.1); /* a wrong setting is remembered: the open below returns it */
    dp_config_set_number(cfg, "optimizer.momentum", 0.9);

    dp_layer(net, "input", "20");
    dp_layer(net, "fc1", "linear out=32 | relu");
    dp_layer(net, "fc2", "linear out=4");
    if ((status = dp_graph_finish(net, err)) || (status = dp_engine_open(&engine, net, cfg, err))) goto done;

    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        dp_result sum = {0}; /* results are sums: they add up */
        for (int64_t i = 0; i < SAMPLES; i += BATCH) {
            int64_t n = SAMPLES - i < BATCH ? SAMPLES - i : BATCH; /* a short last batch needs no care */
            dp_batch batch = dp_batch_of(dp_view(x + i * INPUTS, DP_F32, n, INPUTS), dp_view(y + i, DP_I32, n, 1));
            dp_result r;
            if ((status = dp_engine_step(engine, &batch, &r, err))) goto done;
            sum.loss_sum += r.loss_sum, sum.targets += r.targets;
        }
        *last = sum.loss_sum / (double)sum.targets;
        if (epoch == 0) *first = *last;
    }
    status = dp_engine_get(engine, "fc1.weight", weights, 32 * INPUTS, err);
done:
    dp_engine_close(engine, NULL); /* NULL is fine, as for free() */
    dp_graph_free(net);
    dp_config_free(cfg);
    return status;
}

int main(void)
{
    float *x = malloc(sizeof *x * SAMPLES * INPUTS), weights[32 * INPUTS];
    int32_t *y = malloc(sizeof *y * SAMPLES);
    dp_error err = {0};
    double first = 0, last = 0;
    if (x && y) make_data(x, y);
    dp_status status = x && y ? train(x, y, &first, &last, weights, &err) : DP_ENOMEM;
    if (status)
        fprintf(stderr, "%s: %s\n", dp_status_name(status), err.text);
    else
        printf("loss %.3f, then %.3f\n", first, last);
    free(x);
    free(y);
    return status || !(last < 0.5 * first);
}
