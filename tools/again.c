/* A device is lost, and with it this process' use of CUDA: dptrain executes itself anew in its place (same process number) without that
 * device. The state goes along in memory: a memfd, named by its number. */
#include "again.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const changed[] = {"devices.use", "devices.weights", "devices.threads",
                                      "run.dir",     "run.resume",      "run.overwrite"};
enum { N_CHANGED = sizeof changed / sizeof *changed };

int again_wanted(const dp_config *c, dp_status s, const dp_error *failure)
{
    const char *goes_on = dp_config_get(c, "devices.on_device_failure");
    return (s == DP_EDEVICE_LOST || s == DP_ETIMEOUT) && failure->device >= 0 && goes_on && !strcmp(goes_on, "continue");
}

/* The command line of now, settings that changed behind it: the last one counts. --resume is replaced by run.resume. */
static char **command_line(const dp_config *c, const options *o)
{
    char **argv = calloc((size_t)o->n_overrides + N_CHANGED + 4, sizeof *argv);
    int n = 0;
    if (!argv) return NULL;
    argv[n++] = (char *)(size_t)o->program;
    argv[n++] = (char *)(size_t)o->config;
    for (int i = 0; i < o->n_overrides; i++) argv[n++] = (char *)(size_t)o->overrides[i];
    for (int i = 0; i < N_CHANGED; i++) {
        const char *value = dp_config_get(c, changed[i]);
        if (!value || !*value) continue;
        size_t size = strlen(changed[i]) + strlen(value) + 2;
        if (!(argv[n] = malloc(size))) return NULL; /* the program ends soon: what was made stays */
        snprintf(argv[n++], size, "%s=%s", changed[i], value);
    }
    if (o->quiet) argv[n++] = (char *)(size_t) "--quiet";
    return argv;
}

void again(dp_trainer *t, const dp_error *failure, dp_config *c, const options *o)
{
    dp_error err;
    int fd = memfd_create("dptrain-state", 0); /* stays open over exec */
    if (fd < 0) {
        fprintf(stderr, "dptrain: there is no memory for the state to go on from\n");
        return;
    }
    if (dp_trainer_rescue(t, failure, fd, c, &err)) {
        fprintf(stderr, "dptrain: the run cannot go on: %s\n", err.text);
        close(fd);
        return;
    }
    char **argv = command_line(c, o);
    fprintf(stderr, "dptrain: going on with %s from the last snapshot\n", dp_config_get(c, "devices.use"));
    fflush(NULL);
    if (argv) execv("/proc/self/exe", argv);
    perror("dptrain: the program cannot be started anew");
    close(fd);
}

void again_begun(const dp_config *c)
{
    int fd;
    const char *resume = dp_config_get(c, "run.resume");
    if (resume && sscanf(resume, "/proc/self/fd/%d", &fd) == 1 && fd > 2) close(fd);
}
