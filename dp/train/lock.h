/* Internal: the lock file of a run directory. */
#ifndef DP_TRAIN_LOCK_H
#define DP_TRAIN_LOCK_H
#include "../base/error.h"

dp_status dp_lock_look(const char *dir, dp_error *err); /* DP_ECONFIG when a live process holds it; changes nothing */
dp_status dp_lock_take(const char *dir, char **lock, int *lock_fd, dp_error *err);
void dp_lock_drop(char **lock, int *lock_fd);
#endif
