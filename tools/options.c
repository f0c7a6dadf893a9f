/* The command line of dptrain. */
#include "tool.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void options_help(void)
{
    fputs("usage: dptrain CONFIG [section.key=value ...] [options]\n"
          "Trains the network that CONFIG describes, on every device at once. Settings on the command line win over the file.\n"
          "\n"
          "  --check         parse, build, open the data, show layers, parameters and bytes per device; train nothing\n"
          "  --eval FILE     evaluate the weights in FILE on the evaluation set\n"
          "  --predict FILE  write the outputs for the evaluation set to FILE (.npy, otherwise text), weights from --eval\n"
          "                  or run.init_from\n"
          "  --resume        go on from the newest state of the run directory (run.resume = auto)\n"
          "  --devices       list the devices of this machine; touches none\n"
          "  --measure       with --devices: open those of devices.use, and measure how each reads the memory of each other\n"
          "  --keys          every setting with default, range and meaning\n"
          "  --quiet         print problems only\n"
          "  --version, --help\n"
          "\n"
          "exit code: 0 done, 1 failed while running, 2 wrong command line or configuration, 3 loss not finite,\n"
          "130 or 143 stopped by SIGINT or SIGTERM, after saving\n",
          stdout);
}

static int wrong(const char *fmt, const char *what)
{
    fputs("dptrain: ", stderr);
    fprintf(stderr, fmt, what);
    fputs("; see dptrain --help\n", stderr);
    return EXIT_USAGE;
}

/* "--eval FILE" and "--eval=FILE". 1 = it was this option. */
static int with_value(const char *name, int argc, char **argv, int *i, const char **value)
{
    size_t n = strlen(name);
    if (strncmp(argv[*i], name, n)) return 0;
    if (argv[*i][n] == '=') {
        *value = argv[*i] + n + 1;
        return 1;
    }
    if (argv[*i][n]) return 0;
    *value = *i + 1 < argc ? argv[++*i] : "";
    return 1;
}

static int flag(options *o, const char *arg)
{
    const struct {
        const char *name;
        int *to;
    } flags[] = {{"--check", &o->check},     {"--resume", &o->resume}, {"--devices", &o->devices},
                 {"--measure", &o->measure}, {"--keys", &o->keys},     {"--version", &o->version},
                 {"--help", &o->help},       {"-h", &o->help},         {"--quiet", &o->quiet}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (!strcmp(arg, flags[i].name)) return *flags[i].to = 1;
    return 0;
}

int options_parse(options *o, int argc, char **argv)
{
    memset(o, 0, sizeof *o);
    o->overrides = calloc((size_t)argc + 1, sizeof *o->overrides);
    if (!o->overrides) return wrong("%s", "out of memory");
    o->program = argc > 0 ? argv[0] : "dptrain";
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (with_value("--eval", argc, argv, &i, &o->eval)) {
            if (!*o->eval) return wrong("%s needs a weights file", "--eval");
        } else if (with_value("--predict", argc, argv, &i, &o->predict)) {
            if (!*o->predict) return wrong("%s needs the name of the file to write", "--predict");
        } else if (arg[0] == '-' && arg[1]) {
            if (!flag(o, arg)) return wrong("there is no option %s", arg);
        } else if (!o->config && !(strchr(arg, '=') && strchr(arg, '.') < strchr(arg, '=') && strchr(arg, '.'))) {
            o->config = arg;
        } else if (strchr(arg, '=')) {
            o->overrides[o->n_overrides++] = arg;
        } else {
            return wrong("\"%s\" is neither an option nor section.key=value; one configuration is trained at a time", arg);
        }
    }
    if (o->measure && !o->devices) return wrong("%s", "--measure goes with --devices");
    if (o->help || o->version || o->devices || o->keys) return 0;
    if (!o->config) return wrong("%s", "the configuration file is missing");
    if (o->check + !!o->eval > 1) return wrong("%s", "--check and --eval exclude each other");
    if (o->check + !!o->predict > 1) return wrong("%s", "--check and --predict exclude each other");
    if (o->resume && (o->check || o->eval || o->predict)) return wrong("%s", "--resume is for training only");
    return 0;
}
