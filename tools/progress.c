/* What a running training shows: on a terminal one live line, otherwise one plain line every run.log_every steps; a line
 * an epoch. Progress goes to stdout, problems to stderr. Failing to print never ends a run: `dptrain ... | head` trains
 * on. */
#include "tool.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { BAR = 24 };

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void clear_line(progress *p)
{
    if (!p->line_open) return;
    fputs("\r\033[K", stdout);
    fflush(stdout);
    p->line_open = 0;
}

void progress_log(void *user, dp_level level, const char *text)
{
    progress *p = user;
    if (level == DP_LOG_DEBUG || (level == DP_LOG_INFO && p->quiet)) return;
    clear_line(p);
    p->errors += level == DP_LOG_ERROR;
    if (level == DP_LOG_INFO) {
        printf("%s\n", text);
        fflush(stdout);
    } else {
        fprintf(stderr, "dptrain: %s%s\n", level == DP_LOG_WARN ? "warning: " : "", text);
    }
}

void progress_error(progress *p, const dp_error *e)
{
    clear_line(p);
    fprintf(stderr, "dptrain: %s", e->text);
    const char *sep = " (";
    if (e->code == DP_ESTOPPED) { /* not a fault of any place */
        fputc('\n', stderr);
        return;
    }
    if (e->device >= 0) fprintf(stderr, "%sdevice %d", sep, e->device), sep = ", ";
    if (e->layer[0]) fprintf(stderr, "%slayer %s", sep, e->layer), sep = ", ";
    if (e->phase_name[0]) fprintf(stderr, "%sphase %s", sep, e->phase_name), sep = ", ";
    if (e->step >= 0) fprintf(stderr, "%sstep %lld", sep, (long long)e->step), sep = ", ";
    fprintf(stderr, "%s", sep[0] == ',' ? ")" : "");
    if (e->more > 0) fprintf(stderr, " and %d more", e->more);
    fputc('\n', stderr);
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static double loss_of(const dp_result *r)
{
    return ratio(r->loss_sum, (double)r->targets);
}

static const char *loss_text(char *buf, size_t size, double loss)
{
    snprintf(buf, size, loss < 1e5 ? "%.4f" : "%.3e", loss);
    return buf;
}

static void print_eta(double seconds)
{
    long long s = (long long)(seconds + 0.5);
    if (s >= 3600)
        printf("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        printf("%lld:%02lld", s / 60, s % 60);
}

static void draw(progress *p, const dp_event *ev, double now)
{
    char loss[32];
    int last = ev->batch == ev->batches, full = (int)(BAR * ev->batch / (ev->batches ? ev->batches : 1));
    if (now - p->drawn < 0.1 && !last) return; /* ten drawings a second are enough for an eye */
    p->drawn = now;
    printf("\r\033[Kepoch %lld/%lld [", (long long)ev->epoch, (long long)ev->epochs);
    for (int i = 0; i < BAR; i++) putchar(i < full ? '=' : i == full ? '>' : ' ');
    printf("] %lld/%lld  %.0f samples/s  loss %s  ETA ", (long long)ev->batch, (long long)ev->batches,
           ratio((double)p->epoch_samples, now - p->epoch_begin),
           loss_text(loss, sizeof loss, ratio(p->epoch_loss, (double)p->epoch_targets)));
    print_eta(ratio(now - p->begin, (double)(ev->step - p->first_step)) * (double)(ev->steps - ev->step));
    fflush(stdout);
    p->line_open = 1;
}

static void step(progress *p, const dp_event *ev)
{
    const dp_result *r = ev->result;
    char loss[32];
    double now = seconds_now();
    p->epoch_samples += r->samples, p->epoch_targets += r->targets, p->epoch_loss += r->loss_sum;
    p->interval_samples += r->samples, p->interval_wait += r->data_wait;
    if (p->live) {
        draw(p, ev, now);
        return;
    }
    if (p->log_every < 1 || (ev->step % p->log_every && ev->step != ev->steps)) return;
    printf("step %lld/%lld  epoch %lld/%lld  loss %s  lr %g  %.0f samples/s  data wait %.3f s\n", (long long)ev->step,
           (long long)ev->steps, (long long)ev->epoch, (long long)ev->epochs, loss_text(loss, sizeof loss, loss_of(r)), r->lr,
           ratio((double)p->interval_samples, now - p->interval_begin), p->interval_wait);
    fflush(stdout);
    p->interval_begin = now, p->interval_samples = 0, p->interval_wait = 0;
}

static void print_eval(const progress *p, const dp_result *r)
{
    char loss[32];
    printf("evaluation loss %s", loss_text(loss, sizeof loss, loss_of(r)));
    if (p->accuracy) printf(", accuracy %.2f %%", 100 * ratio((double)r->correct, (double)r->targets));
    printf(", %lld samples", (long long)r->samples);
}

static void epoch(progress *p, const dp_event *ev)
{
    const dp_result *r = ev->result;
    char loss[32];
    clear_line(p);
    printf("epoch %lld/%lld  loss %s", (long long)ev->epoch, (long long)ev->epochs, loss_text(loss, sizeof loss, loss_of(r)));
    if (p->accuracy) printf(", accuracy %.2f %%", 100 * ratio((double)r->correct, (double)r->targets));
    printf("  %.0f samples/s  %.1f s", ev->samples_per_s, r->seconds);
    if (p->eval_step == ev->step) printf("  "), print_eval(p, &p->eval);
    printf("\n");
    fflush(stdout);
}

static void evaluated(progress *p, const dp_event *ev)
{
    if (ev->batch == ev->batches && ev->step > p->first_step) { /* the line of the epoch follows and shows it */
        p->eval = *ev->result, p->eval_step = ev->step;
        return;
    }
    clear_line(p);
    printf("step %lld  ", (long long)ev->step);
    print_eval(p, ev->result);
    printf("\n");
    fflush(stdout);
}

static void restart_epoch(progress *p)
{
    p->epoch_begin = p->interval_begin = seconds_now();
    p->epoch_samples = p->epoch_targets = p->interval_samples = 0;
    p->epoch_loss = p->interval_wait = 0;
}

int progress_event(void *user, const dp_event *ev)
{
    progress *p = user;
    if (p->quiet) return 0;
    switch (ev->kind) {
    case DP_EVENT_START:
        printf("%s\n", ev->text);
        fflush(stdout);
        p->begin = seconds_now(), p->first_step = ev->step, p->eval_step = -1;
        restart_epoch(p);
        break;
    case DP_EVENT_STEP: step(p, ev); break;
    case DP_EVENT_EVAL: evaluated(p, ev); break;
    case DP_EVENT_EPOCH:
        epoch(p, ev);
        restart_epoch(p);
        break;
    case DP_EVENT_END: clear_line(p); break;
    default: break;
    }
    return 0;
}
