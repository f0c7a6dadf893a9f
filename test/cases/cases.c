/* Reads cases.txt. The same few lines of syntax are read by test/golden/make.py. */
#include "cases.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int dp_case_is_setting(const char *key)
{
    return !strncmp(key, "loss.", 5) || !strncmp(key, "optimizer.", 10);
}

static int read_header(dp_case *c, char *text)
{
    static const char *const keys[] = {"rows", "train", "steps", "given"};
    int64_t *const values[] = {&c->rows, &c->train, &c->steps, &c->given};
    char *save, *word = strtok_r(text, " ", &save);
    *c = (dp_case){.rows = 3, .train = 1};
    if (!word || strlen(word) >= sizeof c->name) return 0;
    strcpy(c->name, word);
    while ((word = strtok_r(NULL, " ", &save))) {
        char *equal = strchr(word, '=');
        size_t k = 0;
        if (!equal) return 0;
        *equal = 0;
        while (k < 4 && strcmp(word, keys[k])) k++;
        if (k == 4) return 0;
        *values[k] = strtoll(equal + 1, NULL, 10);
    }
    return 1;
}

static int read_line(dp_case *c, char *text)
{
    char *equal = strstr(text, " = "), *key = text + strspn(text, " ");
    if (!equal || c->n_lines == DP_CASE_LINES) return 0;
    *equal = 0;
    if (strlen(key) >= sizeof c->line[0].key || strlen(equal + 3) >= sizeof c->line[0].value) return 0;
    strcpy(c->line[c->n_lines].key, key);
    strcpy(c->line[c->n_lines++].value, equal + 3);
    return 1;
}

dp_case *dp_cases_read(int *n, const char **why)
{
    static const char *const broken = "a line of test/cases/cases.txt is not understood";
    const char *root = getenv("DP_ROOT");
    char path[4096], text[512];
    dp_case *list = NULL;
    snprintf(path, sizeof path, "%s/test/cases/cases.txt", root && *root ? root : ".");
    FILE *f = fopen(path, "r");
    *n = 0;
    *why = "test/cases/cases.txt cannot be opened; set DP_ROOT to the repository's root";
    if (!f) return NULL;
    while (fgets(text, sizeof text, f)) {
        text[strcspn(text, "#\n")] = 0;
        for (size_t k = strlen(text); k && text[k - 1] == ' '; k--) text[k - 1] = 0;
        if (!text[0]) continue;
        *why = broken;
        if (!strncmp(text, "case ", 5)) {
            dp_case *more = realloc(list, (size_t)(*n + 1) * sizeof *list);
            if (!more) goto fail;
            list = more;
            if (!read_header(&list[(*n)++], text + 5)) goto fail;
        } else if (!*n || !read_line(&list[*n - 1], text)) {
            goto fail;
        }
    }
    fclose(f);
    return list;
fail:
    fclose(f);
    free(list);
    return NULL;
}
