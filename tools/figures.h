/* What was measured of one arrangement of devices, over some steps: what the tables, the pages and the JSON of both
 * programs show. Only the public interface of libdp is used. */
#ifndef DP_TOOLS_FIGURES_H
#define DP_TOOLS_FIGURES_H
#include "../dp/dp.h"

enum { MAX_DEVICES = 64 };
typedef struct link_figures {
    dp_link link;    /* bytes of these steps */
    double measured; /* seconds that the receiver spent on it, its waits left out, in the spans that were seen */
} link_figures;
typedef struct figures {
    char name[48];
    int devices;
    int64_t steps;
    double seconds;           /* of all these steps, set before the end; 0: all since the begin */
    dp_device_stats *device;  /* [devices] differences over these steps; live and peak bytes as they are */
    dp_device_health *health; /* [devices] the worst that was seen; clock_mhz 0: nothing is known */
    link_figures *link;       /* [from * devices + to] */
    dp_span *span;            /* the last ones */
    int64_t n_span, room;
    int64_t covered, newest; /* steps of which spans were seen, gone ones too; the last of them */
    int lost;                /* memory ran out: not all spans are there */
} figures;

int figures_open(figures *f, int devices, const char *name);   /* from the engine's open on; 0: out of memory */
int figures_begin(figures *f, dp_engine *e, const char *name); /* from now on */
void figures_forget_spans(figures *f);                         /* of finished turns: their bytes are booked, the spans go */
void figures_take_spans(figures *f, dp_engine *e);
void figures_look(figures *f, dp_engine *e);                    /* how the devices are doing; outside of what is timed */
void figures_add_span(void *user, const dp_span *s);            /* dp_span_fn; user = figures */
dp_status figures_end(figures *f, dp_engine *e, dp_error *err); /* the differences; measures the links */
void figures_free(figures *f);

int figures_know_health(const figures *f, int n);                                 /* 1: of some device of f[n] */
const char *figures_throttled(const dp_device_health *h, char *buf, size_t size); /* "no", "power cap", "Xid 31" */

double figures_busy(const figures *f, int device);           /* seconds a step */
int64_t figures_peak(const figures *f, int device);          /* bytes, the class `library` left out */
double figures_expected(const figures *f, int from, int to); /* seconds a step: bytes at the measured rate; 0: not known */
double figures_measured(const figures *f, int from, int to); /* ... and what they took */
/* max / mean over the devices; 1 = even */
double figures_uneven(const figures *f, double (*of)(const figures *, int));
double figures_peak_value(const figures *f, int device);
int64_t figures_busiest_port(const figures *f); /* bytes a step through one direction of one device */
/* A step of which every span is there, of median length; -1: none. Its begin and end over all devices. */
int64_t figures_typical_step(const figures *f, double *begin, double *end);

/* text.c */
const char *bytes_text(char *buf, size_t size, double bytes);
const char *count_text(char *buf, size_t size, int64_t n);  /* 1,234,567 */
const char *seconds_text(char *buf, size_t size, double s); /* 1.23 ms */
#endif
