/* Loader threads fill a ring of slots; the caller takes them in order. Batch s of the whole run (over all epochs) lies in slot
 * s % prefetch, and the numbers of its samples are written into the slot when it is claimed, so the bytes do not depend on
 * which thread fills it, and the one order array may already be that of the next epoch. With workers = 0 the caller fills.
 *
 * A callback that never returns cannot be ended from outside: its thread is left behind at close, with the loader's struct,
 * that one slot and the set, which it frees when it does return; the slot's memory is given up. */
#include "loader.h"
#include "../dp/base/clock.h"
#include "../dp/base/memory.h"
#include "set.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, CALLER = -1 };

typedef enum slot_state { FREE, FILLING, READY, FAILED, LENT } slot_state;

typedef struct slot {
    slot_state state;
    int worker;    /* who fills it */
    int64_t at;    /* the sample being fetched, for the message when it hangs; atomic */
    uint64_t life; /* of the loader when claimed: a slot claimed before a seek is dropped when it is full */
    uint64_t epoch;
    int64_t batch, rows;
    void *memory;
    uint64_t *ids;  /* (rows) */
    uint8_t *x, *y; /* (rows, x_bytes), (rows, y_bytes) */
    dp_error error; /* when FAILED */
} slot;

typedef struct worker {
    struct dp_loader *loader;
    pthread_t thread;
    int number, started, done;
} worker;

struct dp_loader {
    dp_data *d;
    dp_loader_options o;
    dp_slot_memory m;
    int64_t batches, last_rows, max_rows, dropped;
    size_t y_offset, x_offset, slot_bytes;
    slot *slots;     /* (o.prefetch) */
    worker *workers; /* (o.workers) */
    int64_t *order;  /* (samples) of order_epoch; NULL without shuffle */
    uint64_t order_epoch;
    int order_known;

    pthread_mutex_t lock; /* guards everything below and every slot's state */
    pthread_cond_t filled, wanted;
    int has_lock, has_filled, has_wanted;
    uint64_t life;
    uint64_t fill_epoch, next_epoch;
    int64_t fill_batch, next_batch;
    uint64_t fill_number, next_number; /* over all epochs: slot = number % prefetch */
    int failed, running, abandoned;
    int stop;              /* atomic: also read between samples, so that no callback begins after close */
    int hung, hung_worker; /* a wait ran out: `hang` says why; the worker, or CALLER when none was filling */
    dp_error hang;
    double waited;
};

static struct timespec deadline_in(double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double whole = seconds < 1e9 ? seconds : 1e9;
    t.tv_sec += (time_t)whole;
    t.tv_nsec += (long)((whole - (double)(time_t)whole) * 1e9);
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    return t;
}

/* ---- filling ---- */

/* The next batch to fill, marked FILLING with its sample numbers; NULL: its slot is in use, or loading has stopped. Locked. */
static slot *claim(dp_loader *l, int by)
{
    slot *s = &l->slots[l->fill_number % (uint64_t)l->o.prefetch];
    if (l->failed || s->state != FREE) return NULL;
    if (l->fill_batch == l->batches) l->fill_batch = 0, l->fill_epoch++;
    if (l->order && (!l->order_known || l->order_epoch != l->fill_epoch)) {
        dp_sample_order(l->order, l->d->info.samples, l->o.seed, l->fill_epoch, 1);
        l->order_epoch = l->fill_epoch, l->order_known = 1;
    }
    s->state = FILLING;
    s->worker = by;
    s->life = l->life;
    s->epoch = l->fill_epoch;
    s->batch = l->fill_batch;
    s->rows = l->fill_batch == l->batches - 1 ? l->last_rows : l->o.batch_size;
    int64_t first = l->fill_batch * l->o.batch_size;
    for (int64_t i = 0; i < s->rows; i++) s->ids[i] = (uint64_t)(l->order ? l->order[first + i] : first + i);
    __atomic_store_n(&s->at, (int64_t)s->ids[0], __ATOMIC_RELAXED);
    l->fill_batch++, l->fill_number++;
    return s;
}

/* Not locked: the slot belongs to this thread. */
static dp_status fill(const dp_loader *l, slot *s)
{
    const dp_data *d = l->d;
    for (int64_t i = 0; i < s->rows; i++) {
        dp_error e;
        if (__atomic_load_n(&l->stop, __ATOMIC_RELAXED)) return DP_ESTOPPED;
        int64_t index = (int64_t)s->ids[i];
        __atomic_store_n(&s->at, index, __ATOMIC_RELAXED);
        dp_status status = d->fetch(d, index, s->x + (size_t)i * d->x_bytes, s->y + (size_t)i * d->y_bytes, &e);
        if (status && s->worker == CALLER) {
            return dp_fail(&s->error, status, "loading sample %lld: %s", (long long)index, e.text);
        }
        if (status) return dp_fail(&s->error, status, "loader worker %d, sample %lld: %s", s->worker, (long long)index, e.text);
    }
    return DP_OK;
}

static void finish(dp_loader *l, slot *s, dp_status status) /* locked */
{
    if (s->life != l->life) {
        s->state = FREE;
        pthread_cond_broadcast(&l->wanted);
    } else {
        s->state = status ? FAILED : READY;
        if (status) l->failed = 1;
    }
    pthread_cond_broadcast(&l->filled);
}

static void destroy(dp_loader *l)
{
    if (l->has_filled) pthread_cond_destroy(&l->filled);
    if (l->has_wanted) pthread_cond_destroy(&l->wanted);
    if (l->has_lock) pthread_mutex_destroy(&l->lock);
    for (int i = 0; l->slots && !l->m.alloc && i < l->o.prefetch; i++) free(l->slots[i].memory);
    dp_data_close(l->d);
    free(l->order);
    free(l->workers);
    free(l->slots);
    free(l);
}

static void *work(void *arg)
{
    worker *w = arg;
    dp_loader *l = w->loader;
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        slot *s = claim(l, w->number);
        if (!s) {
            pthread_cond_wait(&l->wanted, &l->lock);
            continue;
        }
        pthread_mutex_unlock(&l->lock);
        dp_status status = fill(l, s);
        pthread_mutex_lock(&l->lock);
        finish(l, s, status);
    }
    w->done = 1;
    l->running--;
    int last = l->abandoned && l->running == 0;
    pthread_cond_broadcast(&l->filled);
    pthread_mutex_unlock(&l->lock);
    if (last) destroy(l);
    return NULL;
}

/* ---- opening ---- */

static dp_status check(const dp_loader_options *o, const dp_data *d, dp_error *err)
{
    if (o->batch_size < 1) {
        return dp_fail(err, DP_ECONFIG, "data.batch_size must be at least 1, found %lld", (long long)o->batch_size);
    }
    if (o->accumulate < 1) return dp_fail(err, DP_ECONFIG, "data.accumulate must be at least 1, found %d", o->accumulate);
    if (o->workers < 0 || o->workers > 256) return dp_fail(err, DP_ECONFIG, "data.workers %d, allowed 0..256", o->workers);
    if (o->prefetch < 1) return dp_fail(err, DP_ECONFIG, "data.prefetch must be at least 1, found %d", o->prefetch);
    if (!(o->timeout_s > 0)) return dp_fail(err, DP_ECONFIG, "devices.timeout_s must be above 0, found %g", o->timeout_s);
    if (o->drop_last && d->info.samples < o->batch_size) {
        return dp_fail(err, DP_ECONFIG, "data.drop_last leaves nothing: the set has %lld samples, data.batch_size is %lld",
                       (long long)d->info.samples, (long long)o->batch_size);
    }
    return DP_OK;
}

/* How an epoch is cut into batches. */
static dp_status plan(dp_loader *l, dp_error *err)
{
    const dp_loader_options *o = &l->o;
    int64_t n = l->d->info.samples, rest = n % o->batch_size;
    l->batches = n / o->batch_size;
    l->last_rows = o->batch_size;
    if (rest > 0 && (o->drop_last || rest < o->drop_small)) {
        l->dropped = rest;
    } else if (rest > 0 && rest < o->merge_small && l->batches > 0) {
        l->last_rows += rest;
    } else if (rest > 0) {
        l->batches++;
        l->last_rows = rest;
    }
    if (l->batches == 0) {
        return dp_fail(err, DP_ECONFIG, "devices.small_batch = drop leaves nothing: the set has %lld samples, a batch needs %d",
                       (long long)n, o->drop_small);
    }
    l->max_rows = l->batches == 1 || l->last_rows > o->batch_size ? l->last_rows : o->batch_size;
    return DP_OK;
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static dp_status make_slots(dp_loader *l, dp_error *err)
{
    size_t rows = (size_t)l->max_rows, ids, x, y, total;
    if (__builtin_mul_overflow(rows, sizeof(uint64_t), &ids) || __builtin_mul_overflow(rows, l->d->x_bytes, &x) ||
        __builtin_mul_overflow(rows, l->d->y_bytes, &y) || __builtin_add_overflow(ids, x, &total) ||
        __builtin_add_overflow(total, y, &total) || total > SIZE_MAX / 2) {
        return dp_fail(err, DP_EARGUMENT, "a batch of %lld samples is larger than memory can be", (long long)l->max_rows);
    }
    l->x_offset = aligned(ids);
    l->y_offset = l->x_offset + aligned(x);
    l->slot_bytes = l->y_offset + aligned(y);
    l->slots = dp_calloc((size_t)l->o.prefetch, sizeof *l->slots);
    if (!l->slots) return dp_fail(err, DP_ENOMEM, "out of memory for %d loader slots", l->o.prefetch);
    for (int i = 0; i < l->o.prefetch; i++) {
        slot *s = &l->slots[i];
        if (l->m.alloc) {
            DP_TRY(l->m.alloc(l->m.user, l->slot_bytes, &s->memory, err));
        } else if (!(s->memory = dp_calloc(1, l->slot_bytes))) {
            return dp_fail(err, DP_ENOMEM,
                           "out of memory for loader slot %d of %d (%zu bytes): lower data.prefetch or data.batch_size", i + 1,
                           l->o.prefetch, l->slot_bytes);
        }
        s->ids = s->memory;
        s->x = (uint8_t *)s->memory + l->x_offset;
        s->y = (uint8_t *)s->memory + l->y_offset;
    }
    return DP_OK;
}

static dp_status make_lock(dp_loader *l, dp_error *err)
{
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr)) return dp_fail(err, DP_ENOMEM, "out of memory for the loader's condition variables");
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    l->has_lock = pthread_mutex_init(&l->lock, NULL) == 0;
    l->has_filled = pthread_cond_init(&l->filled, &attr) == 0;
    l->has_wanted = pthread_cond_init(&l->wanted, &attr) == 0;
    pthread_condattr_destroy(&attr);
    if (l->has_lock && l->has_filled && l->has_wanted) return DP_OK;
    return dp_fail(err, DP_ENOMEM, "out of memory for the loader's lock");
}

/* Signals belong to the program's own threads: loader threads are born with all of them blocked. */
static dp_status start_workers(dp_loader *l, dp_error *err)
{
    sigset_t all, before;
    int failure = 0;
    if (l->o.workers == 0) return DP_OK;
    l->workers = dp_calloc((size_t)l->o.workers, sizeof *l->workers);
    if (!l->workers) return dp_fail(err, DP_ENOMEM, "out of memory for %d loader threads", l->o.workers);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < l->o.workers && !failure; i++) {
        worker *w = &l->workers[i];
        w->loader = l, w->number = i;
        pthread_mutex_lock(&l->lock);
        l->running++;
        pthread_mutex_unlock(&l->lock);
        failure = pthread_create(&w->thread, NULL, work, w);
        w->started = !failure;
        if (failure) {
            pthread_mutex_lock(&l->lock);
            l->running--;
            pthread_mutex_unlock(&l->lock);
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure) return dp_fail_errno(err, DP_EIO, failure, "cannot start loader thread of %d (data.workers)", l->o.workers);
    return DP_OK;
}

dp_status dp_loader_open(dp_loader **l, dp_data *d, const dp_loader_options *o, const dp_slot_memory *m, dp_error *err)
{
    dp_status s;
    *l = NULL;
    DP_TRY(check(o, d, err));
    dp_loader *n = dp_calloc(1, sizeof *n);
    if (!n) return dp_fail(err, DP_ENOMEM, "out of memory for a loader");
    n->o = *o;
    if (m) n->m = *m;
    n->d = d;
    dp_set_retain(d);
    if ((s = plan(n, err)) != DP_OK) goto fail;
    if ((s = make_lock(n, err)) != DP_OK) goto fail;
    if (o->shuffle && !(n->order = dp_calloc((size_t)d->info.samples, sizeof *n->order))) {
        s = dp_fail(err, DP_ENOMEM, "out of memory for the order of %lld samples", (long long)d->info.samples);
        goto fail;
    }
    if ((s = make_slots(n, err)) != DP_OK) goto fail;
    if ((s = start_workers(n, err)) != DP_OK) goto fail;
    *l = n;
    return DP_OK;
fail:
    dp_loader_close(n);
    return s;
}

/* ---- the caller's side ---- */

dp_status dp_loader_seek(dp_loader *l, uint64_t epoch, int64_t batch, dp_error *err)
{
    if (batch < 0 || batch > l->batches) {
        return dp_fail(err, DP_EARGUMENT, "loader: batch %lld of an epoch of %lld batches", (long long)batch,
                       (long long)l->batches);
    }
    pthread_mutex_lock(&l->lock);
    l->life++; /* what is being filled now is dropped by its filler */
    for (int i = 0; i < l->o.prefetch; i++) {
        if (l->slots[i].state == READY || l->slots[i].state == FAILED) l->slots[i].state = FREE;
    }
    l->failed = 0;
    l->fill_epoch = l->next_epoch = epoch;
    l->fill_batch = l->next_batch = batch;
    l->next_number = l->fill_number;
    pthread_cond_broadcast(&l->wanted);
    pthread_mutex_unlock(&l->lock);
    return DP_OK;
}

/* The wait for slot s ran out: names who holds things up. Locked. */
static void report_hang(dp_loader *l, const slot *s)
{
    for (int i = 0; i < l->o.prefetch && s->state != FILLING; i++) {
        if (l->slots[i].state == FILLING) s = &l->slots[i]; /* filled for a position before a seek */
    }
    l->hung = 1;
    l->hung_worker = s->state == FILLING ? s->worker : CALLER;
    if (s->state != FILLING) {
        dp_fail(&l->hang, DP_ETIMEOUT, "no loader worker took up batch %lld of epoch %llu within %g s (devices.timeout_s)",
                (long long)l->next_batch, (unsigned long long)l->next_epoch, l->o.timeout_s);
    } else {
        dp_fail(&l->hang, DP_ETIMEOUT,
                "loader worker %d did not deliver sample %lld (epoch %llu, batch %lld) within %g s (devices.timeout_s): its "
                "data source hangs; the thread is left behind when the loader is closed",
                s->worker, (long long)__atomic_load_n(&s->at, __ATOMIC_RELAXED), (unsigned long long)s->epoch,
                (long long)s->batch, l->o.timeout_s);
    }
}

/* Until the slot of the next batch is READY or FAILED. Locked on entry and return. */
static dp_status wait_for(dp_loader *l, slot *s, dp_error *err)
{
    struct timespec until = deadline_in(l->o.timeout_s);
    if (l->hung) goto hung;
    while (s->state != READY && s->state != FAILED) {
        if (s->state == LENT) {
            return dp_fail(err, DP_EARGUMENT, "all %d loader slots are lent: release batches first, or raise data.prefetch",
                           l->o.prefetch);
        }
        if (l->o.workers == 0) {
            slot *mine = claim(l, CALLER); /* the same slot: the caller is the only one who fills */
            pthread_mutex_unlock(&l->lock);
            dp_status status = fill(l, mine);
            pthread_mutex_lock(&l->lock);
            finish(l, mine, status);
        } else if (pthread_cond_timedwait(&l->filled, &l->lock, &until) == ETIMEDOUT && s->state != READY &&
                   s->state != FAILED) {
            report_hang(l, s);
            goto hung;
        }
    }
    if (s->state == READY) return DP_OK;
    if (err) *err = s->error;
    return (dp_status)s->error.code;
hung:
    if (err) *err = l->hang;
    return (dp_status)l->hang.code;
}

dp_status dp_loader_next(dp_loader *l, dp_batch *b, dp_error *err)
{
    if (!l || !b) return dp_fail(err, DP_EARGUMENT, "dp_loader_next: loader and batch must not be NULL");
    const dp_data_info *f = &l->d->info;
    dp_status status = DP_OK;
    memset(b, 0, sizeof *b);
    b->x = dp_view(NULL, f->x_dtype, 0, l->d->x_width);
    b->y = dp_view(NULL, f->y_dtype, 0, f->y_width);
    b->x.layout = f->x_layout;
    b->slot = -1;
    pthread_mutex_lock(&l->lock);
    b->epoch = l->next_epoch;
    if (l->next_batch == l->batches) {
        l->next_batch = 0, l->next_epoch++;
    } else {
        double start = dp_now();
        slot *s = &l->slots[l->next_number % (uint64_t)l->o.prefetch];
        status = wait_for(l, s, err);
        l->waited += dp_now() - start;
        if (status == DP_OK) {
            s->state = LENT;
            b->slot = (int32_t)(s - l->slots);
            b->x.data = s->x, b->y.data = s->y, b->ids = s->ids;
            b->x.n = b->y.n = s->rows;
            l->next_batch++, l->next_number++;
            b->last_of_window = l->next_batch == l->batches || l->next_batch % l->o.accumulate == 0;
        }
    }
    pthread_mutex_unlock(&l->lock);
    return status;
}

void dp_loader_release(dp_loader *l, const dp_batch *b)
{
    if (!l || !b || b->slot < 0 || b->slot >= l->o.prefetch) return;
    pthread_mutex_lock(&l->lock);
    if (l->slots[b->slot].state == LENT) l->slots[b->slot].state = FREE;
    pthread_cond_broadcast(&l->wanted);
    pthread_mutex_unlock(&l->lock);
}

/* Threads besides the one that is known to hang. Locked. */
static int healthy(const dp_loader *l)
{
    int lost = l->hung && l->hung_worker != CALLER && !l->workers[l->hung_worker].done;
    return l->running - lost;
}

/* Waits for the threads, no longer than the time limit, and not for one that is known to hang. Returns whether all ended. */
static int stop_workers(dp_loader *l)
{
    if (!l->has_lock || !l->has_filled || !l->has_wanted) return 1;
    pthread_mutex_lock(&l->lock);
    struct timespec until = deadline_in(l->o.timeout_s);
    __atomic_store_n(&l->stop, 1, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&l->wanted);
    while (healthy(l) > 0 && pthread_cond_timedwait(&l->filled, &l->lock, &until) != ETIMEDOUT) continue;
    int all = l->running == 0;
    for (int i = 0; l->workers && i < l->o.workers; i++) {
        worker *w = &l->workers[i];
        if (w->started && !w->done)
            pthread_detach(w->thread);
        else if (w->started)
            w->started = 2; /* to be joined, below */
    }
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; l->workers && i < l->o.workers; i++) {
        if (l->workers[i].started == 2) pthread_join(l->workers[i].thread, NULL);
    }
    return all;
}

void dp_loader_close(dp_loader *l)
{
    if (!l) return;
    int all = stop_workers(l);
    if (!all) pthread_mutex_lock(&l->lock);
    for (int i = 0; l->slots && i < l->o.prefetch; i++) {
        slot *s = &l->slots[i];
        if (!s->memory || s->state == FILLING) continue; /* a thread left behind may still write there */
        if (l->m.alloc)
            l->m.release(l->m.user, s->memory, l->slot_bytes);
        else
            free(s->memory);
        s->memory = NULL;
    }
    l->abandoned = !all;
    if (!all) {
        all = l->running == 0; /* it came back between the wait and now */
        pthread_mutex_unlock(&l->lock);
    }
    if (all) destroy(l);
}

int64_t dp_loader_batches(const dp_loader *l)
{
    return l->batches;
}

int64_t dp_loader_max_rows(const dp_loader *l)
{
    return l->max_rows;
}

int64_t dp_loader_dropped(const dp_loader *l)
{
    return l->dropped;
}

double dp_loader_waited(const dp_loader *l)
{
    return l->waited;
}
