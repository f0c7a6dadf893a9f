/* devices.on_device_failure = continue where the process cannot go on: see again.c. */
#ifndef DP_TOOLS_AGAIN_H
#define DP_TOOLS_AGAIN_H
#include "tool.h"

int again_wanted(const dp_config *c, dp_status s, const dp_error *failure);
/* Returns only when it fails; a message has gone to stderr. Changes c. */
void again(dp_trainer *t, const dp_error *failure, dp_config *c, const options *o);
void again_begun(const dp_config *c); /* the state has been read: gives its memory back */
#endif
