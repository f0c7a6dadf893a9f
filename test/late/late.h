/* The CPU backend with its streams made late: a thread per stream, a queue, and work that runs some time after the call. What the
 * engine does not order explicitly goes wrong here, visibly or under ThreadSanitizer; on the plain CPU backend every wait is empty.
 * It also makes devices fail, hang or die in any kind of call, and peers that cannot read each other. */
#ifndef DP_TEST_LATE_H
#define DP_TEST_LATE_H
#include "../../nn/backend.h"

typedef enum late_kind {
    LATE_COPY,
    LATE_FILL,
    LATE_CONVERT,
    LATE_FORWARD,
    LATE_BACKWARD,
    LATE_LOSS,
    LATE_SUM,
    LATE_SUMSQ,
    LATE_NORM,
    LATE_UPDATE,
    LATE_PARTIAL,
    LATE_POOL,
    LATE_MERGE,
    LATE_CHECKSUM,
    LATE_RECORD,
    LATE_WAIT, /* so far: calls that go to a stream */
    LATE_OPEN,
    LATE_ALLOC,
    LATE_PIN,
    LATE_STREAM_OPEN,
    LATE_EVENT_OPEN,
    LATE_KERNEL_OPEN,
    LATE_PREPARE,
    LATE_KINDS
} late_kind;
const char *late_kind_name(late_kind k);

typedef struct late_options {
    uint64_t seed;
    int delay_us;      /* at most this long before one of four pieces of work; 0: never */
    int kernel_us;     /* a forward or backward takes so long besides: the stream sleeps, as a host does while a GPU computes */
    int no_peer_reads; /* reads_peer says 0, and work that touches another device's memory fails */
} late_options;
/* For all devices opened from now on; forgets faults, buries the dead (their engines are closed). One engine at a time may be failing,
 * any number may run. */
const dp_backend *late_backend(const late_options *o);

/* From now on: call number `nth` (1 = the next) of this kind on device `device` fails with `status`. At once: the call returns it, as a
 * launch error. Else the call succeeds, the work fails when its turn comes, later work of the device is passed over, and every later call
 * returns the status, as with a lost context. hang: call or work stands still until late_release, then fails, or with DP_OK goes on.
 * kill: late_kill, there and then. */
typedef struct late_fault {
    late_kind kind;
    int device; /* its index in devices.use */
    int64_t nth;
    dp_status status;
    int at_once, hang, kill;
} late_fault;
enum { LATE_FAULTS = 4 };
void late_arm(const late_fault *f); /* up to LATE_FAULTS at a time; while no work is in flight */
void late_release(void);            /* what hangs goes on */
void late_meet(int n);              /* waits until n calls hang, then releases them together */

/* The device has fallen off the bus: every call on it fails with DP_EDEVICE_LOST, opening it too, what is queued is dropped, and its
 * memory is gone: work of another device that wants to touch it fails with DP_EDEVICE, and so does that device from then on; a
 * load or store that went by no call is a SIGSEGV. Any thread. What it held is kept until the next late_backend. */
void late_kill(int device);
/* Calls of close or free for something of a dead device, since the last late_backend. Wanted: 0. */
int late_touched_dead(void);
/* Ranges of alloc_pinned that are page-locked at the moment, or were when they were freed. */
int late_pinned(void);
#endif
