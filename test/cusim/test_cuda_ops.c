/* The table of cases on the CUDA backend, on a simulated GPU: as it comes, without epilogues, and with the own convolution kernel. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "../../nn/cuda_plugin.h"
#include "../cases/cases.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(void **state)
{
    dp_error err = {0};
    const dp_backend *b = NULL;
    if (dp_cuda_plugin_load(&b, &err)) fail_msg("%s", err.text);
    dp_case_check(b, &(dp_be_options){.threads = 1}, *state);
    dp_case_check(b, &(dp_be_options){.threads = 1, .no_epilogue = 1}, *state);
    dp_case_check(b, &(dp_be_options){.threads = 1, .conv_own = 1}, *state);
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
    for (int i = 0; i < n; i++) /* test_cuda_ops NAME...: these rows only */
        for (int k = argc > 1 ? 1 : 0; k < argc; k++)
            if (k == 0 || !strcmp(argv[k], c[i].name))
                tests[used++] = (struct CMUnitTest){.name = c[i].name, .test_func = check, .initial_state = &c[i]};
    int failed = _cmocka_run_group_tests("cases on a simulated GPU", tests, (size_t)used, NULL, NULL);
    free(tests);
    free(c);
    return failed;
}
