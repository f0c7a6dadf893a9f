/* [optimizer] and [loss] from text to the backends' structs. */
#include "optim.h"
#include "ops/ops.h"

dp_status dp_optimizer_config(dp_optimizer *o, const dp_config *c, dp_error *err)
{
    char where[512];
    *o = (dp_optimizer){
        .kind = (dp_optimizer_kind)dp_config_choice(c, "optimizer.kind"),
        .nesterov = dp_config_flag(c, "optimizer.nesterov"),
        .momentum = dp_config_number(c, "optimizer.momentum"),
        .beta1 = dp_config_number(c, "optimizer.beta1"),
        .beta2 = dp_config_number(c, "optimizer.beta2"),
        .eps = dp_config_number(c, "optimizer.eps"),
        .weight_decay = dp_config_number(c, "optimizer.weight_decay"),
        .clip_norm = dp_config_number(c, "optimizer.clip_norm"),
    };
    if (o->kind == DP_ADAMW && !dp_config_is_set(c, "optimizer.weight_decay"))
        o->weight_decay = 0.01; /* torch.optim.AdamW's default */
    if (o->kind == DP_SGD && o->nesterov && o->momentum == 0)
        return dp_fail(err, DP_ECONFIG, "%s: nesterov needs momentum above 0",
                       dp_config_where(c, "optimizer.nesterov", where, sizeof where));
    return DP_OK;
}

int dp_optimizer_states(const dp_optimizer *o)
{
    if (o->kind != DP_SGD) return 2;
    return o->momentum != 0;
}

dp_status dp_loss_config(dp_loss *l, const dp_config *c, const dp_graph *g, dp_error *err)
{
    const dp_node *out = &g->node[g->out];
    char text[80], where[512];
    *l = (dp_loss){
        .kind = (dp_loss_kind)dp_config_choice(c, "loss.kind"),
        .groups = 1,
        .classes = out->width,
        .smoothing = dp_config_number(c, "loss.label_smoothing"),
        .ignore_label = dp_config_is_set(c, "loss.ignore_label") ? dp_config_int(c, "loss.ignore_label") : INT64_MIN,
    };
    if (l->kind == DP_LOSS_MSE) {
        const char *key = l->smoothing != 0 ? "loss.label_smoothing" : "loss.ignore_label";
        if (l->smoothing != 0 || l->ignore_label != INT64_MIN)
            return dp_fail(err, DP_ECONFIG, "%s: it has no effect with kind = mse; leave it out",
                           dp_config_where(c, key, where, sizeof where));
        return DP_OK;
    }
    if (out->rank == 3)
        return dp_fail(err, DP_ECONFIG,
                       "cross_entropy wants an output C or T x C (a number per class), but the last layer \"%s\" gives %s; end "
                       "with `linear out=classes`",
                       out->name, dp_shape_text(text, sizeof text, out));
    if (out->rank == 2) l->groups = out->shape[0], l->classes = out->shape[1];
    return DP_OK;
}
