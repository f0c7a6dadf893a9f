/* Arrangements that are compared: opened together, warmed up alike, measured in turns. */
#include "bench.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static dp_status set_all(dp_config *c, const char *keys, dp_error *err)
{
    char copy[512], *save = NULL;
    dp_status status = DP_OK;
    snprintf(copy, sizeof copy, "%s", keys);
    for (char *w = strtok_r(copy, " ", &save); w && !status; w = strtok_r(NULL, " ", &save)) status = bench_set(c, w, err);
    return status;
}

dp_status side_open(side *s, const bench_case *b, const char *name, const char *keys, const char *about, dp_error *err)
{
    dp_status status;
    memset(s, 0, sizeof *s);
    memset(err, 0, sizeof *err);
    snprintf(s->name, sizeof s->name, "%s", name);
    snprintf(s->about, sizeof s->about, "%s", about);
    snprintf(s->key, sizeof s->key, "%s", keys);
    s->config = bench_without_switches(b);
    if (!s->config) {
        snprintf(err->text, sizeof err->text, "Out of memory.");
        return DP_ENOMEM;
    }
    if ((status = set_all(s->config, keys, err))) return status;
    s->batch = strtoll(dp_config_get(s->config, "data.batch_size"), NULL, 10);
    s->accumulate = strtoll(dp_config_get(s->config, "data.accumulate"), NULL, 10);
    s->seed = strtoll(dp_config_get(s->config, "run.seed"), NULL, 10);
    s->parameters = b->parameters;
    return dp_engine_open(&s->engine, b->graph, s->config, err);
}

void side_close(side *s)
{
    dp_engine_close(s->engine, NULL);
    dp_config_free(s->config);
    figures_free(&s->figures);
    free(s->loss);
    memset(s, 0, sizeof *s);
}

const char *sides_unequal(const side *a, const side *b, char *buf, size_t size)
{
    const struct {
        const char *what;
        int64_t x, y;
    } must[] = {{"global batch", a->batch, b->batch},         {"accumulation", a->accumulate, b->accumulate},
                {"parameters", a->parameters, b->parameters}, {"seed", a->seed, b->seed},
                {"warm-up steps", a->warmup, b->warmup},      {"steps", a->steps, b->steps}};
    for (size_t i = 0; i < sizeof must / sizeof *must; i++)
        if (must[i].x != must[i].y) {
            snprintf(buf, size, "%s is %lld in %s and %lld in %s", must[i].what, (long long)must[i].x, a->name,
                     (long long)must[i].y, b->name);
            return buf;
        }
    return NULL;
}

/* ---- running ---- */

static void note(side *s, const dp_result *r)
{
    s->loss[s->done++] = r->targets ? r->loss_sum / (double)r->targets : 0;
}

/* Two batches in flight, as the trainer keeps them. A window's last batch closes it. */
static dp_status run_steps(side *s, const bench_case *b, int64_t n, dp_error *err)
{
    dp_status status = DP_OK;
    dp_result r;
    int64_t first = s->done;
    for (int64_t i = 0; i < n && !status; i++) {
        dp_batch rows = b->rows;
        rows.last_of_window = (first + i + 1) % s->accumulate == 0;
        status = dp_engine_submit(s->engine, &rows, err);
        if (status || !i) continue;
        if (!(status = dp_engine_wait(s->engine, &r, err))) note(s, &r);
    }
    if (!status && !(status = dp_engine_wait(s->engine, &r, err))) note(s, &r);
    return status;
}

static dp_status warm_up(side *s, const bench_case *b, int64_t warmup, dp_error *err)
{
    enum { TIMED = 3 };
    int64_t first = warmup > TIMED ? warmup - TIMED : 0;
    dp_status status = first ? run_steps(s, b, first, err) : DP_OK;
    double begin = bench_now();
    if (!status) status = run_steps(s, b, warmup - first, err);
    s->step_s = (bench_now() - begin) / (double)(warmup - first);
    s->warmup = warmup;
    return status;
}

static dp_status turn(side *s, const bench_case *b, int64_t n, int round, dp_error *err)
{
    double begin = bench_now();
    dp_status status = run_steps(s, b, n, err);
    s->rate[round] = (double)(n * s->batch) / (bench_now() - begin);
    s->figures.seconds += bench_now() - begin;
    if (!status) {
        figures_look(&s->figures, s->engine); /* at once: a moment later the devices have cooled down */
        figures_forget_spans(&s->figures);
        figures_take_spans(&s->figures, s->engine);
    }
    return status;
}

static int room_for(side *s, int64_t steps)
{
    double *loss = realloc(s->loss, (size_t)(s->done + steps) * sizeof *loss);
    if (loss) s->loss = loss;
    return loss != NULL;
}

/* Steps of a turn: about 0.1 s of the middle side; fewer when all steps asked for are. */
static int64_t turn_length(const side *s, int n, int64_t steps)
{
    double sorted[MAX_ROUNDS];
    for (int i = 0; i < n; i++) sorted[i] = s[i].step_s;
    int64_t each = (int64_t)(0.1 / bench_median(sorted, n));
    if (steps && each > (steps + 9) / 10) each = (steps + 9) / 10;
    if (steps && each < (steps + MAX_ROUNDS - 1) / MAX_ROUNDS) each = (steps + MAX_ROUNDS - 1) / MAX_ROUNDS;
    return each > (steps ? 1 : 2) ? each : steps ? 1 : 2;
}

static void summarize(side *s, int rounds)
{
    double sorted[MAX_ROUNDS];
    memcpy(sorted, s->rate, (size_t)rounds * sizeof *sorted);
    s->steps = s->done - s->warmup;
    s->samples_per_s = bench_median(sorted, rounds);
    s->spread = bench_spread(sorted, rounds);
}

dp_status sides_run(side *s, int n, const bench_case *b, int64_t warmup, int64_t steps, double seconds, int *rounds,
                    dp_error *err)
{
    enum { LEAST = 6 };
    dp_status status = DP_OK;
    *rounds = 0;
    for (int i = 0; i < n && !status; i++) status = room_for(&s[i], warmup) ? warm_up(&s[i], b, warmup, err) : DP_ENOMEM;
    for (int i = 0; i < n && !status; i++)
        if (!figures_begin(&s[i].figures, s[i].engine, s[i].name)) status = DP_ENOMEM;
    int64_t each = status ? 1 : turn_length(s, n, steps), left = steps;
    double begin = bench_now();
    while (!status && *rounds < MAX_ROUNDS && (steps ? left > 0 : *rounds < LEAST || bench_now() - begin < seconds * n)) {
        int64_t now = steps && left < each ? left : each;
        for (int i = 0; i < n && !status; i++) { /* another one begins in each round: no side has the same neighbour always */
            side *x = &s[(i + *rounds) % n];
            status = room_for(x, now) ? turn(x, b, now, *rounds, err) : DP_ENOMEM;
        }
        ++*rounds, left -= now;
    }
    for (int i = 0; i < n && !status; i++) {
        summarize(&s[i], *rounds);
        status = figures_end(&s[i].figures, s[i].engine, err);
    }
    return status;
}

int64_t sides_loss_differs(const side *a, const side *b)
{
    int64_t n = a->done < b->done ? a->done : b->done;
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(a->loss[i] - b->loss[i]) <= 1e-5 * fmax(1e-30, fabs(a->loss[i])))) return i;
    return -1;
}
