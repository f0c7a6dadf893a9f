/* The table of cases (cases.txt) and what one row asks of a backend. Used by test_ops.c for the CPU; any other backend or device is
 * checked by calling dp_case_check with its table. */
#ifndef DP_TEST_CASES_H
#define DP_TEST_CASES_H
#include "../../nn/backend.h"

enum { DP_CASE_LINES = 24 };
typedef struct dp_case {
    char name[64];
    int64_t rows;
    int64_t train, steps, given;
    struct {
        char key[64], value[192];
    } line[DP_CASE_LINES]; /* of [model], and settings "section.key" */
    int n_lines;
} dp_case;

/* All rows of test/cases/cases.txt: malloc'd, *n of them. NULL: it cannot be read, *why says the reason. */
dp_case *dp_cases_read(int *n, const char **why);
int dp_case_is_setting(const char *key);
/* Fails through cmocka: outputs, losses, gradients, running statistics and trained parameters against the golden, gradients against
 * finite differences. */
void dp_case_check(const dp_backend *b, const dp_be_options *o, const dp_case *c);
#endif
