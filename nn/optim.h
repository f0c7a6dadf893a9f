/* Internal: the optimizer's settings, and its rules (for every backend; g is the sum of gradients times verdict.scale, t = verdict.steps,
 * weight_decay w applies where the range decays). As torch.optim:
 *   sgd    g += w p;  m = t == 1 ? g : momentum m + g;  p -= lr (nesterov ? g + momentum m : m)      (momentum = 0: p -= lr g)
 *   adam   g += w p;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g g;  p -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
 *   adamw  p -= lr w p;  then adam without the first term
 * Clipping is torch.nn.utils.clip_grad_norm_: scale *= min(1, clip / (norm + 1e-6)). */
#ifndef DP_NN_OPTIM_H
#define DP_NN_OPTIM_H
#include "backend.h"
dp_status dp_optimizer_config(dp_optimizer *o, const dp_config *c, dp_error *err); /* [optimizer] */
int dp_optimizer_states(const dp_optimizer *o); /* arrays per parameter: 0 sgd, 1 sgd with momentum, 2 adam(w) */
/* [loss] for a graph's output: refuses what cannot be (targets per row: groups for cross entropy, width for mse). */
dp_status dp_loss_config(dp_loss *l, const dp_config *c, const dp_graph *g, dp_error *err);
#endif
