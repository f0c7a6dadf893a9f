/* dptrain: trains what a configuration describes. Everything that is hard is in the library; here are signals, exit
 * codes, commands. */
#include "again.h"
#include "run_report.h"
#include "tool.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The handler's two facts. Before training there is nothing to save, so a signal ends the program at once; so does a
 * second one later: files appear by rename only, a save that is cut short leaves the older file. */
static dp_trainer *volatile running;
static volatile sig_atomic_t caught;

static void on_signal(int sig)
{
    if (!running || caught) _exit(EXIT_SIGNAL + sig);
    caught = sig;
    dp_trainer_stop(running);
}

static void install_signals(void)
{
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &a, NULL); /* `dptrain ... | head` trains on */
#ifdef SIGXFSZ
    sigaction(SIGXFSZ, &a, NULL); /* a file size limit is a failed save, not the end of the process */
#endif
    a.sa_handler = on_signal;
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

/* Started k times by a launcher, k copies would train the same thing on the same devices. */
static int check_launcher(const dp_config *c)
{
    static const char *const names[] = {"WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    const char *mode = dp_config_get(c, "devices.mode");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (!value || strtol(value, NULL, 10) <= 1) continue;
        if (mode && !strcmp(mode, "ddp"))
            fprintf(stderr,
                    "dptrain: %s is %s, but this build has no MPI: mode = ddp here is one process that drives all devices; "
                    "start one task\n",
                    names[i], value);
        else
            fprintf(stderr,
                    "dptrain: %s is %s: mode = %s is one process that drives all devices; start one task, or set mode = ddp\n",
                    names[i], value, mode ? mode : "dp");
        return EXIT_USAGE;
    }
    return EXIT_OK;
}

static int exit_code(dp_status s, int opening)
{
    switch (s) {
    case DP_OK: return EXIT_OK;
    case DP_ESTOPPED: return EXIT_SIGNAL + (caught ? caught : SIGINT);
    case DP_ENONFINITE: return EXIT_NONFINITE;
    case DP_ECONFIG: return EXIT_USAGE;
    case DP_EARGUMENT:
    case DP_EDATA:
    case DP_EIO:
    case DP_ENOSPACE: return opening ? EXIT_USAGE : EXIT_RUN; /* a wrong file, found before training */
    default: return EXIT_RUN;
    }
}

/* File first, then the command line. The library logs each error of both. */
static int load(dp_config *c, const options *o, progress *p)
{
    dp_error err;
    int bad = 0;
    if (o->config && dp_config_load(c, o->config, &err)) {
        if (!p->errors) progress_error(p, &err);
        bad = 1;
    }
    for (int i = 0; i < o->n_overrides; i++) {
        char key[128];
        const char *equal = strchr(o->overrides[i], '=');
        size_t n = (size_t)(equal - o->overrides[i]);
        if (n >= sizeof key) n = sizeof key - 1;
        memcpy(key, o->overrides[i], n);
        key[n] = 0;
        if (dp_config_set(c, key, equal + 1)) bad = 1;
    }
    if (o->resume && dp_config_set(c, "run.resume", "auto")) bad = 1;
    return bad ? EXIT_USAGE : EXIT_OK;
}

/* --check, --eval, --predict write no run: they get a run directory that is free and is never made. */
static void without_run(dp_config *c)
{
    char dir[64];
    snprintf(dir, sizeof dir, "/tmp/dptrain-none-%ld", (long)getpid());
    dp_config_set(c, "run.dir", dir);
    dp_config_set(c, "run.resume", "never");
}

static dp_status inspect(dp_trainer *t, const dp_config *c, const options *o, const progress *p, dp_error *err)
{
    dp_result r;
    int64_t rows = 0;
    if (o->check) {
        show_model(dp_trainer_graph(t));
        show_check(dp_trainer_engine(t), c);
        return DP_OK;
    }
    if (o->eval) {
        dp_status s = dp_trainer_eval(t, &r, err);
        if (s) return s;
        show_eval(o->eval, &r, p->accuracy);
    }
    if (!o->predict) return DP_OK;
    dp_status s = predict_to(dp_trainer_engine(t), dp_trainer_graph(t), c, o->predict, &rows, err);
    if (!s && !o->quiet) printf("%s: outputs of %lld samples\n", o->predict, (long long)rows);
    return s;
}

static dp_status train(dp_trainer *t, const dp_config *c, const options *o, progress *p, dp_error *err)
{
    running = t;
    dp_status s = dp_trainer_run(t, err);
    running = NULL;
    if (!p->quiet) {
        printf("\n");
        show_stats(dp_trainer_engine(t));
        printf("run directory: %s\n", dp_trainer_dir(t));
        fflush(stdout);
    }
    int ran = !s || s == DP_ESTOPPED || s == DP_ENONFINITE; /* else the run directory may be another's */
    if (ran && !strcmp(dp_config_get(c, "run.report"), "1")) run_report(t, o->config);
    return s;
}

static int run(dp_config *c, const options *o, progress *p)
{
    dp_error err;
    dp_trainer *t = NULL;
    const char *kind = dp_config_get(c, "loss.kind"), *every = dp_config_get(c, "run.log_every");
    int inspecting = o->check || o->eval || o->predict;
    p->accuracy = kind && !strcmp(kind, "cross_entropy");
    p->log_every = every ? strtoll(every, NULL, 10) : 0;
    if (inspecting) without_run(c);
    if (o->eval) dp_config_set(c, "run.init_from", o->eval);
    if (o->predict && !*dp_config_get(c, "run.init_from")) {
        fprintf(stderr, "dptrain: --predict needs weights: give --eval FILE or run.init_from=FILE\n");
        return EXIT_USAGE;
    }
    dp_status s = dp_trainer_open(&t, NULL, NULL, NULL, c, progress_event, p, &err);
    int code = exit_code(s, 1);
    if (!s) {
        if (!inspecting) again_begun(c);
        s = inspecting ? inspect(t, c, o, p, &err) : train(t, c, o, p, &err);
        code = exit_code(s, 0);
    }
    if (s) progress_error(p, &err);
    if (t && !inspecting && again_wanted(c, s, &err)) again(t, &err, c, o);
    dp_trainer_close(t, NULL);
    return code;
}

/* Settings as for a run; a configuration need not be given. */
static int measure(dp_config *c, const options *o, progress *p)
{
    dp_error err;
    int code = load(c, o, p);
    if (code) return code;
    dp_status s = show_links(c, &err);
    if (s) progress_error(p, &err);
    return exit_code(s, 1);
}

static int command(dp_config *c, const options *o, progress *p)
{
    if (o->keys) {
        show_keys(c);
        return EXIT_OK;
    }
    if (o->measure) return measure(c, o, p);
    int code = load(c, o, p);
    if (!code) code = check_launcher(c);
    return code ? code : run(c, o, p);
}

int main(int argc, char **argv)
{
    options o;
    progress p;
    install_signals();
    memset(&p, 0, sizeof p);
    int code = options_parse(&o, argc, argv);
    if (!code && o.help) {
        options_help();
    } else if (!code && o.version) {
        printf("dptrain %s\n", dp_version_text());
    } else if (!code && o.devices && !o.measure) {
        show_devices();
    } else if (!code) {
        p.quiet = o.quiet, p.live = isatty(STDOUT_FILENO);
        dp_config *c = dp_config_new(progress_log, &p);
        if (c)
            code = command(c, &o, &p);
        else
            fprintf(stderr, "dptrain: out of memory\n"), code = EXIT_RUN;
        dp_config_free(c);
    }
    free(o.overrides);
    return code;
}
