/* [optimizer] and [loss] as the backends get them: PyTorch's defaults, and what is refused. */
#include "../../nn/optim.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Keys and values, NULL at the end. */
static dp_config *config(const char *const *set)
{
    dp_config *c = dp_config_new(NULL, NULL);
    assert_non_null(c);
    for (; *set; set += 2) assert_int_equal(dp_config_set(c, set[0], set[1]), DP_OK);
    return c;
}

static dp_status optimizer(const char *const *set, dp_optimizer *o, dp_error *err)
{
    dp_config *c = config(set);
    dp_status st = dp_optimizer_config(o, c, err);
    dp_config_free(c);
    return st;
}

static void test_optimizer(void **state)
{
    (void)state;
    dp_optimizer o;
    dp_error err;
    assert_int_equal(optimizer((const char *const[]){NULL}, &o, &err), DP_OK);
    assert_int_equal(o.kind, DP_SGD);
    assert_true(o.momentum == 0 && o.weight_decay == 0 && o.clip_norm == 0 && !o.nesterov);
    assert_int_equal(dp_optimizer_states(&o), 0);
    assert_int_equal(optimizer((const char *const[]){"optimizer.momentum", "0.9", "optimizer.nesterov", "1", NULL}, &o, &err),
                     DP_OK);
    assert_true(o.momentum == 0.9 && o.nesterov);
    assert_int_equal(dp_optimizer_states(&o), 1);
    assert_int_equal(optimizer((const char *const[]){"optimizer.kind", "adam", NULL}, &o, &err), DP_OK);
    assert_int_equal(o.kind, DP_ADAM);
    assert_true(o.beta1 == 0.9 && o.beta2 == 0.999 && o.eps == 1e-8 && o.weight_decay == 0);
    assert_int_equal(dp_optimizer_states(&o), 2);
    assert_int_equal(optimizer((const char *const[]){"optimizer.kind", "adamw", NULL}, &o, &err), DP_OK);
    assert_true(o.weight_decay == 0.01); /* torch.optim.AdamW */
    assert_int_equal(optimizer((const char *const[]){"optimizer.kind", "adamw", "optimizer.weight_decay", "0", NULL}, &o, &err),
                     DP_OK);
    assert_true(o.weight_decay == 0);
    assert_int_equal(optimizer((const char *const[]){"optimizer.nesterov", "1", NULL}, &o, &err), DP_ECONFIG);
    assert_non_null(strstr(err.text, "momentum above 0"));
}

static dp_status loss(const char *model, const char *const *set, dp_loss *l, dp_error *err)
{
    dp_config *c = config(set);
    dp_graph *g = dp_graph_new();
    dp_graph_text(g, model);
    assert_int_equal(dp_graph_finish(g, err), DP_OK);
    dp_status st = dp_loss_config(l, c, g, err);
    dp_graph_free(g);
    dp_config_free(c);
    return st;
}

static void test_loss(void **state)
{
    (void)state;
    static const char flat[] = "[model]\ninput = 4\nf = linear out=7\n", text[] = "[model]\ninput = 5x4\nf = linear out=7\n",
                      picture[] = "[model]\ninput = 3x4x4\nf = conv2d out=2 kernel=1\n";
    dp_loss l;
    dp_error err;
    assert_int_equal(loss(flat, (const char *const[]){"loss.label_smoothing", "0.1", NULL}, &l, &err), DP_OK);
    assert_int_equal(l.kind, DP_LOSS_CROSS_ENTROPY);
    assert_int_equal(l.groups, 1);
    assert_int_equal(l.classes, 7);
    assert_true(l.smoothing == 0.1 && l.ignore_label == INT64_MIN);
    assert_int_equal(loss(text, (const char *const[]){"loss.ignore_label", "-100", NULL}, &l, &err), DP_OK);
    assert_int_equal(l.groups, 5);
    assert_int_equal(l.classes, 7);
    assert_int_equal(l.ignore_label, -100);
    assert_int_equal(loss(picture, (const char *const[]){"loss.kind", "mse", NULL}, &l, &err), DP_OK);
    assert_int_equal(l.groups, 1);
    assert_int_equal(l.classes, 32);
    assert_int_equal(loss(picture, (const char *const[]){NULL}, &l, &err), DP_ECONFIG);
    assert_non_null(strstr(err.text, "2 x 4 x 4"));
    assert_int_equal(loss(flat, (const char *const[]){"loss.kind", "mse", "loss.ignore_label", "3", NULL}, &l, &err),
                     DP_ECONFIG);
    assert_non_null(strstr(err.text, "no effect with kind = mse"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_optimizer), cmocka_unit_test(test_loss)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
