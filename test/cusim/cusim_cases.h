/* Cases that run in a process of their own. */
#ifndef CUSIM_CASES_H
#define CUSIM_CASES_H
typedef struct cusim_case {
    const char *name;
    void (*run)(void);
    const char *says; /* what the process must say */
} cusim_case;
extern const cusim_case cusim_fatal[], cusim_fine[], cusim_races[]; /* end with name NULL */
int cusim_run_case(const char *name);
#endif
