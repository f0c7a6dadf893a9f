/* The resolved settings as a file: what a run directory keeps. */
#include "config_internal.h"
#include "text.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct buffer {
    char *text;
    size_t size, room;
    int failed;
} buffer;

static void put(buffer *b, const char *a, const char *mid, const char *c, const char *d)
{
    const char *part[4] = {a, mid, c, d};
    for (int i = 0; i < 4; i++) {
        size_t n = strlen(part[i]);
        if (b->size + n + 1 > b->room) {
            size_t room = 2 * (b->size + n) + 4096;
            char *more = realloc(b->text, room);
            if (!more) {
                b->failed = 1;
                return;
            }
            b->text = more, b->room = room;
        }
        memcpy(b->text + b->size, part[i], n + 1);
        b->size += n;
    }
}

static void put_settings(buffer *b, const dp_config *c)
{
    char section[64] = "";
    for (int i = 0; i < dp_n_keys; i++) {
        const char *dot = strchr(dp_keys[i].name, '.'), *value = c->setting[i].value ? c->setting[i].value : dp_keys[i].def;
        char now[64];
        dp_format(now, sizeof now, "%.*s", (int)(dot - dp_keys[i].name), dp_keys[i].name);
        if (strcmp(now, section)) put(b, *section ? "\n[" : "[", now, "]\n", "");
        memcpy(section, now, sizeof section);
        if (*value) put(b, dot + 1, " = ", value, "\n");
    }
}

static void put_model(buffer *b, const dp_config *c)
{
    const char *block = "";
    for (int pass = 0; pass < 2; pass++) { /* [model] first, then the blocks, whatever the order was */
        for (int i = 0; i < c->n_lines; i++) {
            const dp_model_line *l = &c->line[i];
            if ((l->block != NULL) != pass) continue;
            if (pass == 0 && !*block) put(b, "\n[model]\n", "", "", ""), block = "model";
            if (pass == 1 && strcmp(block, l->block)) {
                put(b, "\n[block ", l->block, *l->block_args ? " " : "", l->block_args);
                put(b, "]\n", "", "", "");
                block = l->block;
            }
            put(b, l->name, " = ", l->spec, "\n");
        }
        block = "";
    }
}

char *dp_config_dump(const dp_config *c)
{
    buffer b = {0};
    put_settings(&b, c);
    put_model(&b, c);
    if (b.failed) free(b.text), b.text = NULL;
    return b.text;
}
