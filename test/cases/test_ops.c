/* Every row of the case table on the CPU backend, with one thread, with two, and with late streams: values against PyTorch's, gradients
 * against finite differences. A row is a test of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "../late/late.h"
#include "cases.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(void **state)
{
    const char *sanitizer = getenv("DP_SANITIZER");
    int most = sanitizer && *sanitizer ? 1 : 2; /* OpenMP's runtime is not instrumented */
    for (int threads = 1; threads <= most; threads++)
        dp_case_check(dp_backend_cpu(), &(dp_be_options){.threads = threads}, *state);
    dp_case_check(late_backend(&(late_options){.seed = 1, .delay_us = 20}), &(dp_be_options){.threads = 1}, *state);
}

/* A row for every op of the table in nn/ops: one that is added without a case is found here. */
static void every_op_has_a_row(void **state)
{
    const char *why;
    int n;
    dp_case *c = dp_cases_read(&n, &why);
    (void)state;
    assert_non_null(c);
    for (int k = 0; dp_op_at(k); k++) {
        size_t length = strlen(dp_op_at(k)->name);
        int found = 0;
        for (int i = 0; i < n; i++)
            for (int j = 0; j < c[i].n_lines; j++)
                for (const char *at = c[i].line[j].value; (at = strstr(at, dp_op_at(k)->name)); at += length)
                    found |= (at == c[i].line[j].value || at[-1] == ' ') && (at[length] == 0 || at[length] == ' ');
        if (!found) fail_msg("test/cases/cases.txt has no row with op %s", dp_op_at(k)->name);
    }
    free(c);
}

int main(int argc, char **argv)
{
    const char *why;
    int n, used = 0;
    dp_case *c = dp_cases_read(&n, &why);
    struct CMUnitTest *tests = calloc((size_t)n + 1, sizeof *tests);
    if (!c || !tests) {
        fprintf(stderr, "%s\n", c ? "out of memory" : why);
        return 1;
    }
    for (int i = 0; i < n; i++) /* test_ops NAME...: these rows only */
        for (int k = argc > 1 ? 1 : 0; k < argc; k++)
            if (k == 0 || !strcmp(argv[k], c[i].name))
                tests[used++] = (struct CMUnitTest){.name = c[i].name, .test_func = check, .initial_state = &c[i]};
    if (argc <= 1) tests[used++] = (struct CMUnitTest)cmocka_unit_test(every_op_has_a_row);
    int failed = _cmocka_run_group_tests("cases", tests, (size_t)used, NULL, NULL);
    free(tests);
    free(c);
    return failed;
}
