/* Internal: from the text of [model] and [block] to nodes. Lines are only kept until dp_graph_finish, which builds all of them
 * in order: model.c walks lines, block.c knows blocks, arguments and repeats, line.c makes the nodes of one line. */
#ifndef DP_NN_MODEL_H
#define DP_NN_MODEL_H
#include "graph.h"

enum {
    DP_MAX_NODES = 4096,
    DP_MAX_DEPTH = 16, /* blocks in blocks: more is taken for a recursion */
    DP_MAX_ARGS = 16,  /* of a block */
    DP_MAX_SYMBOLS = 16,
    DP_MAX_TEXT = 1024 /* of one line after $a is replaced */
};

typedef struct dp_line { /* as written; owned text, NULL where it does not apply */
    char *block, *args, *name, *spec, *file;
    int line;
} dp_line;

typedef struct dp_symbol {
    char name[32];
    int64_t value;
} dp_symbol;

typedef struct dp_line_end { /* a built line's full name and the node that ends it */
    char name[DP_NAME];
    int node;
} dp_line_end;

struct dp_graph_builder {
    dp_line *line;
    int n_lines;
    dp_symbol symbol[DP_MAX_SYMBOLS];
    int n_symbols;
    dp_line_end *end;
    int n_ends;
    int placed;   /* the error already says where it happened */
    dp_error err; /* first error; code DP_OK: none */
};

/* What a line sees: the lines of [model], or of one use of a block. */
typedef struct dp_scope {
    const struct dp_scope *outer;
    const char *block;    /* NULL: [model] */
    char prefix[DP_NAME]; /* "layer1.0.", of full names in here */
    int in, prev;         /* nodes: the block's input, the end of the line before; -1 = none yet */
    int depth;
    const dp_line *line; /* now being built, under this full name: for messages */
    char name[DP_NAME];
    struct dp_arg {
        char name[32], value[64];
    } arg[DP_MAX_ARGS];
    int n_args;
} dp_scope;

dp_status dp_model_build(dp_graph *g, dp_error *err); /* all lines of the builder; err is never NULL in here */
void dp_builder_free(struct dp_graph_builder *b);
/* One line in a scope: replaces arguments, runs repeats. */
dp_status dp_build_line(dp_graph *g, dp_scope *s, const dp_line *line, dp_error *err);

/* line.c: spec is text without $ and repeats; the scope's name is the line's full name. Both give the node that ends the line. */
dp_status dp_build_input(dp_graph *g, const char *spec, int *end, dp_error *err);
dp_status dp_build_ops(dp_graph *g, const dp_scope *s, const char *spec, int *end, dp_error *err);
/* The node that `name` means inside the scope. */
dp_status dp_scope_find(const dp_graph *g, const dp_scope *s, const char *name, int *node, dp_error *err);

/* block.c */
dp_status dp_build_block(dp_graph *g, const dp_scope *s, const char *spec, int *end, dp_error *err);    /* spec "@NAME a=1" */
dp_status dp_scope_replace(const dp_scope *s, const char *text, char *out, size_t size, dp_error *err); /* $a by its value */
typedef struct dp_repeat {                                                                              /* "layer1.{0..2}" */
    char before[DP_NAME], after[DP_NAME];
    int64_t first, last;
    int many; /* 0: a plain name, in `before` */
} dp_repeat;
dp_status dp_repeat_parse(const char *name, dp_repeat *r, dp_error *err);

/* The next blank-separated word of *text into buf; its length, 0 at the end, -1 when it does not fit. */
int dp_word(const char **text, char *buf, size_t size);
/* Splits "key=value" in place: 1, or 0 when there is no key, no '=' or no value. */
int dp_key_value(char *word, char **value);

/* graph.c */
dp_node *dp_graph_add_node(dp_graph *g, const char *name, const dp_op *op, dp_error *err); /* the last node; NULL with *err */
/* "; did you mean 'x'?" or "" */
const char *dp_suggest(char *buf, size_t size, const char *text, const char *const *names, int n);
#endif
