/* report.html of a run. */
#ifndef DP_TOOLS_RUN_REPORT_H
#define DP_TOOLS_RUN_REPORT_H
#include "figures.h"

/* Written into the trainer's run directory from its log and what its engine still knows. 0: it could not be; a message
 * went to stderr. */
int run_report(dp_trainer *t, const char *config);
#endif
