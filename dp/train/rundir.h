/* Internal: the run directory: which one it is, what may be done to it, and the lock that keeps a second run out.
 * dp_rundir_choose only looks, so that a wrong setting found later leaves nothing on disk; dp_rundir_enter creates and
 * locks. */
#ifndef DP_TRAIN_RUNDIR_H
#define DP_TRAIN_RUNDIR_H
#include "../base/config.h"
#include "../base/error.h"

typedef struct dp_rundir {
    char *path;
    char *resume;            /* state file to go on from; NULL: from the start */
    char *series;            /* "runs/CONFIG" when path is a free name of that series; NULL when path is given */
    int overwrite, resuming; /* what allows a directory that holds a run */
    char *lock;              /* path of the lock file while it is held */
    int lock_fd;
} dp_rundir;

dp_status dp_rundir_choose(dp_rundir *d, const dp_config *c, dp_error *err);
/* Creates the directory, takes the lock (that of a dead process is taken over), removes temporaries of killed saves and,
 * with run.overwrite, the old run's files. */
dp_status dp_rundir_enter(dp_rundir *d, dp_error *err);
void dp_rundir_leave(dp_rundir *d); /* unlocks */
void dp_rundir_free(dp_rundir *d);  /* leaves, too */

/* Steps of the state-N.safetensors files in a directory, ascending; *steps is malloc'd. A directory that is not there
 * holds none. */
dp_status dp_rundir_states(const char *path, int64_t **steps, int *n, dp_error *err);
char *dp_rundir_file(const char *dir, const char *name);   /* "dir/name", malloc'd; NULL: out of memory */
char *dp_rundir_state_file(const char *dir, int64_t step); /* "dir/state-00000042.safetensors" */
#endif
