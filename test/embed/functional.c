/* DataParallel by hand: what one step of the engine does, phase by phase, on two devices. */
#include <dp/dp.h>
#include <stdio.h>

enum { SAMPLES = 90, INPUTS = 8, CLASSES = 3, DEVICES = 2, STEPS = 40 };

static dp_status steps(dp_group *dev, dp_model *master, dp_model **replica, const float *x, const int32_t *y, double *loss,
                       dp_error *err)
{
    dp_array *xs[DEVICES] = {NULL}, *ys[DEVICES] = {NULL}, *outs[DEVICES] = {NULL};
    float logits[SAMPLES * CLASSES];
    dp_status s = DP_OK;
    dp_result sum;
    for (int i = 0; i < STEPS && !s; i++) {
        if ((s = dp_replicate(dev, master, replica, err))) break; /* replica[0] is the master itself */
        if ((s = dp_scatter(dev, dp_view(x, DP_F32, SAMPLES, INPUTS), NULL, xs, err))) break;
        if ((s = dp_scatter(dev, dp_view(y, DP_I32, SAMPLES, 1), NULL, ys, err))) break;
        if ((s = dp_parallel_apply(dev, replica, xs, outs, 1, err))) break; /* forward, in training */
        if ((s = dp_gather(dev, outs, logits, sizeof logits, err))) break;
        if ((s = dp_parallel_backward(dev, replica, ys, &sum, err))) break; /* loss and gradients, as sums */
        if ((s = dp_reduce(dev, replica, master, err))) break;
        if ((s = dp_model_update(master, 0.5, (double)sum.targets, err))) break; /* divides once, then steps */
        if (i == 0) loss[0] = sum.loss_sum / (double)sum.targets;
        loss[1] = sum.loss_sum / (double)sum.targets;
    }
    for (int d = 0; d < DEVICES; d++) dp_array_free(xs[d]), dp_array_free(ys[d]), dp_array_free(outs[d]);
    return s;
}

static dp_status run(const float *x, const int32_t *y, double *loss, dp_error *err)
{
    dp_config *cfg = dp_config_new(NULL, NULL);
    dp_graph *net = dp_graph_new();
    dp_group *dev = NULL;
    dp_model *master = NULL, *replica[DEVICES] = {NULL};
    dp_status s = DP_ENOMEM;
    if (!cfg || !net) goto done;
    dp_config_set(cfg, "devices.use", "cpu:0,cpu:1");
    dp_config_set(cfg, "devices.threads", "1");
    dp_config_set(cfg, "loss.kind", "cross_entropy");
    dp_config_set(cfg, "optimizer.kind", "sgd");
    dp_config_set(cfg, "optimizer.lr", "0.5");
    dp_layer(net, "input", "8");
    dp_layer(net, "fc1", "linear out=16 | tanh");
    dp_layer(net, "fc2", "linear out=3");
    if ((s = dp_graph_finish(net, err)) || (s = dp_group_open(&dev, cfg, err))) goto done; /* threads start here */
    if ((s = dp_model_open(&master, dev, 0, net, cfg, SAMPLES, err))) goto done;
    s = steps(dev, master, replica, x, y, loss, err);
done:
    for (int d = 0; d < DEVICES; d++) dp_model_close(replica[d]); /* each handle once, the one that is the master too */
    dp_model_close(master);
    dp_group_close(dev, NULL);
    dp_graph_free(net);
    dp_config_free(cfg);
    return s;
}

int main(void)
{
    float x[SAMPLES * INPUTS];
    int32_t y[SAMPLES];
    double loss[2] = {0, 0};
    dp_error err = {0};
    for (int i = 0; i < SAMPLES; i++) {
        y[i] = i % CLASSES;
        for (int k = 0; k < INPUTS; k++)
            x[i * INPUTS + k] = (float)((i * 7 + k * 13) % 11) / 11.0f + (k % CLASSES == y[i] ? 1.0f : 0.0f);
    }
    dp_status status = run(x, y, loss, &err);
    if (status)
        fprintf(stderr, "%s: %s\n", dp_status_name(status), err.text);
    else
        printf("loss %.3f, then %.3f\n", loss[0], loss[1]);
    return status || !(loss[1] < 0.5 * loss[0]);
}
