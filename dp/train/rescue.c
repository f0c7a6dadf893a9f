/* What another process needs to go on with a run whose device is lost. */
#include "../base/file.h"
#include "../base/text.h"
#include "trainer.h"
#include <stdlib.h>

/* A state file that is newer than the snapshot, as it is: resuming from an older one than the run directory holds is refused. */
static dp_status copy_file(const dp_trainer *t, int fd, dp_error *err)
{
    uint8_t *data = NULL;
    size_t bytes = 0;
    dp_file_out *f = NULL;
    char *path = dp_rundir_state_file(t->dir.path, t->saved_step);
    dp_status s = path ? dp_file_read(path, 0, 0, &data, &bytes, err)
                       : dp_fail(err, DP_ENOMEM, "Out of memory for the name of a state.");
    if (!s) s = dp_file_into(&f, fd, err);
    if (!s) s = dp_file_write(f, data, bytes, err);
    if (!s) s = dp_file_commit(&f, err);
    dp_file_discard(&f);
    free(data);
    free(path);
    return s;
}

dp_status dp_trainer_rescue(dp_trainer *t, const dp_error *failure, int fd, dp_config *c, dp_error *err)
{
    char resume[48];
    if (!t || !failure || !c || fd < 0)
        return dp_fail(err, DP_EARGUMENT, "dp_trainer_rescue wants a trainer, its failure, an open file and a config.");
    DP_TRY(dp_engine_without(t->engine, failure, c, err));
    DP_TRY(t->saved_step > t->snapshot.step ? copy_file(t, fd, err)
                                            : dp_checkpoint_rescue(t->engine, fd, &t->snapshot, &t->facts, err));
    dp_format(resume, sizeof resume, "/proc/self/fd/%d", fd);
    dp_status s = dp_config_set(c, "run.resume", resume);
    if (!s) s = dp_config_set(c, "run.dir", t->dir.path);
    if (!s) s = dp_config_set(c, "run.overwrite", "0");
    return s ? dp_fail(err, s, "The settings of the run that goes on cannot be made.") : DP_OK;
}
