/* Settings: the file's language (strict, every error told once with its place), values, paths, calls, and the dump. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../../dp/base/config.h"
#include "../../dp/base/text.h"

/* ---- a log that keeps what it is told ---- */

typedef struct journal {
    int n;
    char text[64][900];
} journal;

static void keep(void *user, dp_level level, const char *text)
{
    journal *j = user;
    assert_int_equal(level, DP_LOG_ERROR);
    assert_null(strchr(text, '\n'));
    if (j->n < 64) snprintf(j->text[j->n++], sizeof j->text[0], "%s", text);
}

static dp_config *new_config(journal *j)
{
    j->n = 0;
    dp_config *c = dp_config_new(keep, j);
    assert_non_null(c);
    return c;
}

static dp_status parse(dp_config *c, const char *text, dp_error *err)
{
    return dp_config_parse(c, text, strlen(text), "a.ini", "/base", err);
}

static void contains(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("\"%s\" is not in \"%s\"", part, text);
}

/* The text has exactly one error, which begins with `place` and holds `part`; it sticks. */
static void one_error(const char *text, const char *place, const char *part)
{
    journal j;
    dp_error err, again;
    dp_config *c = new_config(&j);
    assert_int_equal(parse(c, text, &err), DP_ECONFIG);
    assert_int_equal(j.n, 1);
    assert_string_equal(j.text[0], err.text);
    assert_int_equal(err.more, 0);
    if (strncmp(err.text, place, strlen(place)) != 0) fail_msg("\"%s\" does not begin with \"%s\"", err.text, place);
    contains(err.text, part);
    assert_int_equal(dp_config_ok(c, &again), DP_ECONFIG);
    assert_string_equal(again.text, err.text);
    dp_config_free(c);
}

/* ---- values ---- */

static void defaults(void **state)
{
    journal j;
    dp_key k;
    int n = 0, epochs = 0;
    (void)state;
    dp_config *c = new_config(&j);
    assert_int_equal(dp_config_ok(c, NULL), DP_OK);
    assert_int_equal(dp_config_int(c, "data.batch_size"), 128);
    assert_int_equal(dp_config_int(c, "run.keep"), 3);
    assert_true(dp_config_number(c, "optimizer.beta2") == 0.999);
    assert_true(dp_config_number(c, "devices.bucket_mb") == 8);
    assert_int_equal(dp_config_flag(c, "data.shuffle"), 1);
    assert_int_equal(dp_config_choice(c, "loss.kind"), 0);
    assert_int_equal(dp_config_interval(c, "run.save_every", &epochs), 1);
    assert_int_equal(epochs, 1);
    assert_string_equal(dp_config_text(c, "devices.use"), "auto");
    assert_string_equal(dp_config_get(c, "optimizer.lr"), "");
    assert_int_equal(dp_config_is_set(c, "optimizer.lr"), 0);
    assert_int_equal(dp_config_is_set(c, "data.batch_size"), 0);
    assert_null(dp_config_get(c, "data.nothing"));
    assert_string_equal(dp_config_file(c), "");
    while (dp_config_key(c, n, &k)) {
        assert_non_null(strchr(k.name, '.'));
        assert_true(*k.range && *k.help);
        assert_string_equal(k.value, k.def);
        assert_int_equal(strncmp(k.name, "model.", 6) && strncmp(k.name, "block.", 6), 1);
        /* Every default that there is, is a value that the key takes. */
        if (*k.def && dp_config_set(c, k.name, k.def)) fail_msg("the default of %s is refused: %s", k.name, j.text[0]);
        n++;
    }
    assert_int_equal(n, dp_n_keys);
    assert_int_equal(dp_config_key(c, -1, &k), 0);
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a; b++) assert_string_not_equal(dp_keys[a].name, dp_keys[b].name);
    dp_config_free(c);
    dp_config_free(NULL);
}

/* One config in six spellings gives the same values (P89). */
static void spellings(void **state)
{
    static const char *const text[] = {
        "[run]\nepochs = 30\n[data]\ntrain = my data/x#1;2\n[optimizer]\nlr = 1e-3\n",
        "[run]\r\nepochs = 30\r\n[data]\r\ntrain = my data/x#1;2\r\n[optimizer]\r\nlr = 1e-3\r\n",
        "\xEF\xBB\xBF[run]\nepochs = 30\n[data]\ntrain = my data/x#1;2\n[optimizer]\nlr = 1e-3\n",
        "[run]\nepochs = 30\n[data]\ntrain = my data/x#1;2\n[optimizer]\nlr = 1e-3",
        "[run]  \t\nepochs = 30 \t \n[data]\t\ntrain = my data/x#1;2  \n[optimizer]\nlr = 1e-3 \t\r\n",
        "# head\n; head\n [ run ] # c\n\tepochs=30 ; c\n\n[data];\n  train = my data/x#1;2 # c = d\n[optimizer] ; [x]\n  # lr "
        "= 2\nlr=1e-3\t#x",
    };
    (void)state;
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        journal j;
        dp_error err;
        dp_config *c = new_config(&j);
        if (i == 5) { /* a comment begins behind a blank: `[data];` has none */
            assert_int_equal(parse(c, text[i], &err), DP_ECONFIG);
            dp_config_free(c);
            c = new_config(&j);
            char fixed[400];
            snprintf(fixed, sizeof fixed, "%s", text[i]);
            strstr(fixed, "];")[1] = ' ';
            assert_int_equal(parse(c, fixed, &err), DP_OK);
        } else if (parse(c, text[i], &err)) {
            fail_msg("spelling %zu: %s", i, err.text);
        }
        assert_int_equal(dp_config_int(c, "run.epochs"), 30);
        assert_true(dp_config_number(c, "optimizer.lr") == 1e-3);
        assert_string_equal(dp_config_text(c, "data.train"), "/base/my data/x#1;2");
        assert_string_equal(dp_config_path_as_written(c, "data.train"), "my data/x#1;2");
        dp_config_free(c);
    }
}

static void wrong_numbers(void **state)
{
    static const char *const lr[] = {"1e-3x", "0,001", "nan", "inf", "", "0", "-1", "1e39", "1e999", "0x1"};
    static const char *const whole[] = {"99999999999", "99999999999999999999", "1.5", "1e3", "0", "-1", "", "x"};
    char text[100];
    (void)state;
    for (size_t i = 0; i < sizeof lr / sizeof *lr; i++) {
        snprintf(text, sizeof text, "[optimizer]\nlr = %s\n", lr[i]);
        one_error(text, "a.ini:2: [optimizer] lr: ", lr[i]);
    }
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        snprintf(text, sizeof text, "[data]\n\nbatch_size = %s\n", whole[i]);
        one_error(text, "a.ini:3: [data] batch_size: ", whole[i]);
    }
    one_error("[optimizer]\nmomentum = 1.01", "a.ini:2: [optimizer] momentum: ", "0..1");
    one_error("[optimizer]\nbeta1 = 1", "a.ini:2: [optimizer] beta1: ", "0 <= x < 1");
    one_error("[loss]\nlabel_smoothing = 1", "a.ini:2: [loss] label_smoothing: ", "0 <= x < 1");
    one_error("[data]\nshuffle = yes", "a.ini:2: [data] shuffle: ", "0 or 1");
    one_error("[eval]\nevery = 2 weeks", "a.ini:2: [eval] every: ", "epoch");
    one_error("[eval]\nevery = -1", "a.ini:2: [eval] every: ", "-1");
    one_error("[data]\ntrain =", "a.ini:2: [data] train: ", "empty");
}

static void right_numbers(void **state)
{
    static const struct {
        const char *text;
        int64_t n;
        int epochs;
    } every[] = {{"1 epoch", 1, 1}, {"2 epochs", 2, 1}, {"500 steps", 500, 0}, {"1 step", 1, 0}, {"500", 500, 0}, {"0", 0, 0}};
    journal j;
    dp_error err;
    (void)state;
    dp_config *c = new_config(&j);
    if (parse(c,
              "[optimizer]\nlr = 2.5E-4\nmomentum = .5\nclip_norm = 5.\n[loss]\nignore_label = -100\n[run]\nseed = "
              "9007199254740992",
              &err))
        fail_msg("%s", err.text);
    assert_true(dp_config_number(c, "optimizer.lr") == 2.5e-4);
    assert_true(dp_config_number(c, "optimizer.momentum") == 0.5);
    assert_true(dp_config_number(c, "optimizer.clip_norm") == 5);
    assert_int_equal(dp_config_int(c, "loss.ignore_label"), -100);
    assert_true(dp_config_int(c, "run.seed") == 9007199254740992);
    for (size_t i = 0; i < sizeof every / sizeof *every; i++) {
        int epochs = -1;
        assert_int_equal(dp_config_set(c, "eval.every", every[i].text), DP_OK);
        assert_int_equal(dp_config_interval(c, "eval.every", &epochs), every[i].n);
        assert_int_equal(epochs, every[i].epochs);
    }
    dp_config_free(c);
}

/* ---- errors ---- */

static void unknown(void **state)
{
    (void)state;
    one_error("[optimizer]\nmomentun = 0.9", "a.ini:2: [optimizer] momentun: ", "did you mean \"momentum\"");
    one_error("[run]\nlr = 0.1", "a.ini:2: [run] lr: ", "[optimizer]");
    one_error("[run]\nquite_other = 1", "a.ini:2: [run] quite_other: ", "unknown key");
    one_error("[optimzer]\nlr = 0.1\n", "a.ini:1: ", "did you mean [optimizer]");
    one_error("[zzzzzzzz]\na = b\n", "a.ini:1: ", "unknown section \"zzzzzzzz\"");
    one_error("epochs = 3\n", "a.ini:1: ", "section");
    one_error("[run\nepochs = 3\n", "a.ini:1: ", "section header");
    one_error("[run] epochs = 3\n", "a.ini:1: ", "section header");
    one_error("[run]\nepochs 3\n", "a.ini:2: [run]", "key = value");
    one_error("[run]\n= 3\n", "a.ini:2: [run]", "name");
    /* Values of later versions are unknown values. */
    one_error("[data]\nformat = npy", "a.ini:2: [data] format: ", "\"npy\"");
    one_error("[optimizer]\nkind = adan", "a.ini:2: [optimizer] kind: ", "did you mean \"adam\"");
    one_error("[schedule]\nkind = plateau", "a.ini:2: [schedule] kind: ", "constant|cosine");
    one_error("[model x]\n", "a.ini:1: ", "section");
    one_error("[block]\n", "a.ini:1: ", "name");
    one_error("[model]\nconv1 =\n", "a.ini:2: [model] conv1: ", "empty");
    /* Control bytes are shown, not printed. */
    one_error("[run]\nep\x01ochs = 3", "a.ini:2: [run]", "ep\\x01ochs");
    one_error("[run]\nepochs = 3\rseed = 4", "a.ini:2: [run]", "\\x0D");
}

static void repeated(void **state)
{
    (void)state;
    one_error("[run]\nepochs = 3\nseed = 1\nepochs = 4", "a.ini:4: [run] epochs: ", "line 2");
    one_error("[run]\nepochs = 3\n[eval]\n[run]\nseed = 1", "a.ini:4: [run]", "line 1");
    one_error("[block a]\nx = relu\n[block b]\nx = relu\n[block a n]\ny = relu", "a.ini:5: [block a]", "line 1");
    one_error("[model]\ninput = 4\nfc = linear out=2\nfc = linear out=3", "a.ini:4: [model] fc: ", "line 3");
    /* A key that stood wrongly is still a key that stood. */
    journal j;
    dp_error err;
    dp_config *c = new_config(&j);
    assert_int_equal(parse(c, "[run]\nepochs = x\nepochs = 4", &err), DP_ECONFIG);
    assert_int_equal(j.n, 2);
    contains(j.text[1], "a.ini:3: [run] epochs: ");
    dp_config_free(c);
}

static void all_errors_in_one_run(void **state)
{
    journal j;
    dp_error err, first;
    (void)state;
    dp_config *c = new_config(&j);
    assert_int_equal(
        parse(c, "[run]\nepochs = x\nsed = 1\n[optimizer]\nlr = 0,1\nkind = adam\n[nowhere]\na = 1\n[data]\nworkers = -1\n",
              &err),
        DP_ECONFIG);
    assert_int_equal(j.n, 5);
    contains(j.text[0], "a.ini:2: [run] epochs: ");
    contains(j.text[1], "a.ini:3: [run] sed: ");
    contains(j.text[1], "\"seed\"");
    contains(j.text[2], "a.ini:5: [optimizer] lr: ");
    contains(j.text[3], "a.ini:7: ");
    contains(j.text[4], "a.ini:10: [data] workers: ");
    assert_string_equal(err.text, j.text[0]);
    assert_int_equal(err.more, 4);
    /* A right value later does not heal it. */
    assert_int_equal(dp_config_set(c, "run.epochs", "3"), DP_OK);
    assert_int_equal(dp_config_set(c, "run.epochs", "three"), DP_ECONFIG);
    assert_int_equal(dp_config_ok(c, &first), DP_ECONFIG);
    assert_string_equal(first.text, err.text);
    assert_int_equal(first.more, 5);
    dp_config_free(c);
}

static void not_text(void **state)
{
    static const char zero[] = "[run]\nepochs = 3\0\n", wide[] = "\xFF\xFE[\0r\0u\0n\0]\0";
    journal j;
    dp_error err;
    (void)state;
    dp_config *c = new_config(&j);
    assert_int_equal(dp_config_parse(c, zero, sizeof zero - 1, "a.ini", "", &err), DP_ECONFIG);
    contains(err.text, "a.ini:2: a zero byte");
    assert_int_equal(j.n, 1);
    assert_int_equal(dp_config_parse(c, wide, sizeof wide - 1, "a.ini", "", &err), DP_ECONFIG);
    contains(err.text, "UTF-8");
    dp_config_free(c);
    /* Any bytes give errors, never more than errors. */
    uint32_t r = 1;
    char noise[600];
    for (int round = 0; round < 200; round++) {
        for (size_t i = 0; i < sizeof noise; i++) {
            static const char some[] = "[]=#; \t\r\n\"ab1.,run data model block\xC3\x01";
            r = r * 1664525u + 1013904223u;
            noise[i] = some[(r >> 16) % (sizeof some - 1)];
        }
        c = new_config(&j);
        assert_int_equal(dp_config_parse(c, noise, sizeof noise, "noise", "", &err), DP_ECONFIG);
        dp_config_free(c);
    }
}

/* ---- calls ---- */

static void calls(void **state)
{
    journal j;
    dp_error err;
    char where[200], q[40];
    (void)state;
    dp_config *c = new_config(&j);
    assert_int_equal(parse(c, "[run]\nepochs = 3\n[optimizer]\nlr = 0.5", &err), DP_OK);
    assert_string_equal(dp_config_where(c, "run.epochs", where, sizeof where), "a.ini:2: [run] epochs");
    assert_int_equal(dp_config_set(c, "run.epochs", " 7 "), DP_OK);
    assert_int_equal(dp_config_int(c, "run.epochs"), 7);
    assert_string_equal(dp_config_get(c, "run.epochs"), "7");
    assert_string_equal(dp_config_where(c, "run.epochs", where, sizeof where), "run.epochs");
    assert_int_equal(dp_config_set_number(c, "optimizer.lr", 0.1), DP_OK);
    assert_string_equal(dp_config_get(c, "optimizer.lr"), "0.1");
    assert_int_equal(dp_config_set_number(c, "optimizer.lr", 1.0 / 3), DP_OK);
    assert_true(dp_config_number(c, "optimizer.lr") == 1.0 / 3);
    assert_int_equal(dp_config_set_number(c, "run.seed", 9007199254740992.0), DP_OK);
    assert_string_equal(dp_config_get(c, "run.seed"), "9007199254740992");
    assert_int_equal(dp_config_set_number(c, "data.shuffle", 0), DP_OK);
    assert_int_equal(dp_config_flag(c, "data.shuffle"), 0);
    assert_int_equal(dp_config_set(c, "devices.split", "weights"), DP_OK);
    assert_int_equal(dp_config_choice(c, "devices.split"), 2);
    assert_int_equal(dp_config_ok(c, &err), DP_OK);
    assert_int_equal(j.n, 0);

    /* The first wrong call sticks; each returns its own code and is told. */
    assert_int_equal(dp_config_set(c, "run.epoch", "7"), DP_ECONFIG);
    contains(j.text[0], "run.epochs");
    assert_int_equal(dp_config_set_number(c, "run.epochs", 1.5), DP_ECONFIG);
    assert_int_equal(dp_config_set_number(c, "optimizer.lr", strtod("nan", NULL)), DP_ECONFIG);
    assert_int_equal(dp_config_set(c, "model.fc", "linear out=3"), DP_ECONFIG);
    contains(j.text[3], "dp_layer");
    assert_int_equal(dp_config_set(c, NULL, "x"), DP_EARGUMENT);
    assert_int_equal(dp_config_set(c, "run.epochs", NULL), DP_EARGUMENT);
    assert_int_equal(dp_config_set(c, "epochs", "1"), DP_ECONFIG);
    assert_int_equal(dp_config_set(NULL, "run.epochs", "1"), DP_EARGUMENT);
    assert_int_equal(j.n, 7);
    assert_int_equal(dp_config_ok(c, &err), DP_ECONFIG);
    contains(err.text, dp_quote(q, sizeof q, "run.epoch"));
    assert_int_equal(err.more, 6);
    assert_int_equal(dp_config_int(c, "run.epochs"), 7); /* a refused value changes nothing */
    dp_config_free(c);
    assert_int_equal(dp_config_ok(NULL, &err), DP_EARGUMENT);
}

static void other_version(void **state)
{
    dp_error err;
    (void)state;
    dp_config *c = dp_config_new_version(DP_VERSION + 100, NULL, NULL);
    assert_int_equal(dp_config_ok(c, &err), DP_EVERSION);
    contains(err.text, DP_VERSION_TEXT);
    dp_config_free(c);
    c = dp_config_new_version(DP_VERSION + 1, NULL, NULL); /* a patch changes no interface */
    assert_int_equal(dp_config_ok(c, &err), DP_OK);
    dp_config_free(c);
}

/* ---- paths ---- */

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* A file's paths are relative to the file, whatever the working directory; run.dir and calls to the working directory (P92). */
static void paths(void **state)
{
    char dir[300], before[PATH_MAX], want[PATH_MAX + 400], file[400], pair[400], big[400];
    const char *tmp = getenv("TMPDIR");
    journal j;
    dp_error err;
    (void)state;
    snprintf(dir, sizeof dir, "%s/dp-test-config-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    assert_non_null(getcwd(before, sizeof before));
    snprintf(file, sizeof file, "%s/a.ini", dir);
    snprintf(pair, sizeof pair, "%s/p,q", dir);
    put(file, "[run]\ndir = out,1\nresume = auto\ninit_from = w,1.st\n[data]\ntrain = x.gz, y.gz\neval = last 10%\n");
    for (int round = 0; round < 2; round++) {
        dp_config *c = new_config(&j);
        assert_int_equal(chdir(round ? dir : before), 0);
        if (dp_config_load(c, round ? "a.ini" : file, &err)) fail_msg("%s", err.text);
        assert_string_equal(dp_config_file(c), round ? "a.ini" : file);
        snprintf(want, sizeof want, "%s/x.gz,%s/y.gz", dir, dir);
        assert_string_equal(dp_config_text(c, "data.train"), want);
        assert_string_equal(dp_config_path_as_written(c, "data.train"), "x.gz, y.gz");
        assert_string_equal(dp_config_text(c, "data.eval"), "last 10%");
        assert_string_equal(dp_config_text(c, "run.resume"), "auto");
        snprintf(want, sizeof want, "%s/w,1.st", dir);
        assert_string_equal(dp_config_text(c, "run.init_from"), want);
        snprintf(want, sizeof want, "%s/out,1", round ? dir : before);
        assert_string_equal(dp_config_text(c, "run.dir"), want);
        assert_int_equal(dp_config_set(c, "data.eval", "last night.gz"), DP_OK);
        snprintf(want, sizeof want, "%s/last night.gz", round ? dir : before);
        assert_string_equal(dp_config_text(c, "data.eval"), want);
        assert_int_equal(dp_config_set(c, "run.resume", "never"), DP_OK);
        assert_string_equal(dp_config_text(c, "run.resume"), "never");
        assert_int_equal(dp_config_set(c, "run.resume", "/s"), DP_OK);
        assert_string_equal(dp_config_text(c, "run.resume"), "/s");
        /* A name with a comma that exists is one path. */
        put(pair, "");
        assert_int_equal(dp_config_set(c, "data.train", pair), DP_OK);
        assert_string_equal(dp_config_text(c, "data.train"), pair);
        assert_int_equal(unlink(pair), 0);
        dp_config_free(c);
    }
    dp_config *c = new_config(&j);
    assert_int_equal(dp_config_load(c, "missing.ini", &err), DP_EIO);
    contains(err.text, "\"missing.ini\"");
    contains(err.text, dir); /* as written, and where that is */
    assert_int_equal(dp_config_ok(c, NULL), DP_EIO);
    dp_config_free(c);
    c = new_config(&j);
    assert_int_equal(dp_config_load(c, dir, &err), DP_EIO);
    contains(err.text, "directory");
    dp_config_free(c);
    /* A data file given by mistake is refused by its size. */
    snprintf(big, sizeof big, "%s/big", dir);
    put(big, "#");
    assert_int_equal(truncate(big, 1000001), 0);
    c = new_config(&j);
    assert_int_equal(dp_config_load(c, big, &err), DP_EDATA);
    contains(err.text, "1.0 MB");
    dp_config_free(c);
    assert_int_equal(chdir(before), 0);
    unlink(big);
    unlink(file);
    rmdir(dir);
}

/* ---- lines of the model ---- */

static const char model_text[] = "[model]\ninput = 1x28x28\nc1 = conv2d out=8 kernel=3 | relu ; wide\nb.{0..2} = @res out=8\n"
                                 "[block res out stride=2]\nx = conv2d out=$out\ny = add from=in,x\n[block two]\nx = relu\n";

static void model_lines(void **state)
{
    static const struct {
        const char *block, *args, *name, *spec;
        int line;
    } want[] = {{NULL, NULL, "input", "1x28x28", 2},
                {NULL, NULL, "c1", "conv2d out=8 kernel=3 | relu", 3},
                {NULL, NULL, "b.{0..2}", "@res out=8", 4},
                {"res", "out stride=2", "x", "conv2d out=$out", 6},
                {"res", "out stride=2", "y", "add from=in,x", 7},
                {"two", "", "x", "relu", 9}};
    const int n = (int)(sizeof want / sizeof *want);
    journal j;
    dp_error err;
    dp_model_line l;
    (void)state;
    dp_config *c = new_config(&j);
    /* A text that has layers replaces the layers of an earlier one. */
    assert_int_equal(parse(c, "[model]\nold = relu", &err), DP_OK);
    if (parse(c, model_text, &err)) fail_msg("%s", err.text);
    assert_int_equal(parse(c, "[run]\nepochs = 2", &err), DP_OK);
    for (int i = 0; i < n; i++) {
        assert_int_equal(dp_config_model_line(c, i, &l), 1);
        assert_string_equal(l.name, want[i].name);
        assert_string_equal(l.spec, want[i].spec);
        assert_string_equal(l.file, "a.ini");
        assert_int_equal(l.line, want[i].line);
        if (!want[i].block) {
            assert_null(l.block);
            assert_null(l.block_args);
        } else {
            assert_string_equal(l.block, want[i].block);
            assert_string_equal(l.block_args, want[i].args);
        }
    }
    assert_int_equal(dp_config_model_line(c, n, &l), 0);
    assert_int_equal(dp_config_model_line(c, -1, &l), 0);
    dp_config_free(c);
}

/* ---- dump and copy ---- */

static void same(const dp_config *a, const dp_config *b)
{
    dp_key x, y;
    dp_model_line l, m;
    for (int i = 0; dp_config_key(a, i, &x); i++) {
        assert_int_equal(dp_config_key(b, i, &y), 1);
        if (strcmp(x.value, y.value) != 0) fail_msg("%s: \"%s\" and \"%s\"", x.name, x.value, y.value);
    }
    for (int i = 0; dp_config_model_line(a, i, &l); i++) {
        assert_int_equal(dp_config_model_line(b, i, &m), 1);
        assert_string_equal(l.name, m.name);
        assert_string_equal(l.spec, m.spec);
        assert_string_equal(l.block ? l.block : "-", m.block ? m.block : "-");
        assert_string_equal(l.block ? l.block_args : "-", m.block ? m.block_args : "-");
        if (!dp_config_model_line(a, i + 1, &l)) assert_int_equal(dp_config_model_line(b, i + 1, &m), 0);
    }
}

static void dump(void **state)
{
    static const char *const call[][2] = {
        {"run.dir", "my runs/a"},      {"run.resume", "auto"},        {"data.eval", "last 12.5%"},
        {"data.train", "a.gz,b.gz"},   {"optimizer.lr", "2.5E-4"},    {"optimizer.no_decay", "*.bias,bn*"},
        {"devices.weights", "3,1"},    {"loss.ignore_label", "-100"}, {"run.save_every", "500 steps"},
        {"data.normalize", "0.1/0.3"}, {"data.label", "first"},       {"optimizer.kind", "adamw"}};
    journal j, k, q;
    dp_error err;
    (void)state;
    dp_config *c = new_config(&j), *again = new_config(&k);
    assert_int_equal(parse(c, model_text, &err), DP_OK);
    for (size_t i = 0; i < sizeof call / sizeof *call; i++)
        if (dp_config_set(c, call[i][0], call[i][1])) fail_msg("%s", j.text[0]);
    char *text = dp_config_dump(c);
    assert_non_null(text);
    if (dp_config_parse(again, text, strlen(text), "config.ini", "/somewhere/else", &err)) fail_msg("%s", err.text);
    same(c, again);
    assert_int_equal(dp_config_is_set(again, "optimizer.weight_decay"),
                     0); /* unset stays unset: the default follows the kind */
    assert_int_equal(dp_config_is_set(again, "data.classes"), 0);
    char *second = dp_config_dump(again);
    assert_string_equal(text, second);
    free(text);
    free(second);

    /* What a file cannot hold cannot be set, so that no dump is ever read back as something else. */
    assert_int_equal(dp_config_set(c, "data.train", "a #1"), DP_ECONFIG);
    assert_int_equal(dp_config_set(c, "data.label", "#"), DP_ECONFIG);
    assert_int_equal(dp_config_set(c, "data.label", "x\n[run]\nseed = 3"), DP_ECONFIG);
    contains(j.text[j.n - 1], "\\x0A");

    /* A copy is deep, with what sticks. */
    dp_config *copy = dp_config_copy(c);
    assert_non_null(copy);
    dp_config *fresh = new_config(&q);
    dp_config_free(c);
    assert_string_equal(dp_config_get(copy, "optimizer.lr"), "2.5E-4");
    assert_string_equal(dp_config_path_as_written(copy, "data.train"), "a.gz,b.gz");
    assert_int_equal(dp_config_ok(copy, NULL), DP_ECONFIG);
    same(copy, again);
    dp_config_free(copy);
    dp_config_free(again);

    /* The dump of nothing but defaults loads too. */
    text = dp_config_dump(fresh);
    again = new_config(&k);
    if (dp_config_parse(again, text, strlen(text), "config.ini", "/", &err)) fail_msg("%s", err.text);
    same(fresh, again);
    free(text);
    dp_config_free(again);
    dp_config_free(fresh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(spellings),
        cmocka_unit_test(wrong_numbers),
        cmocka_unit_test(right_numbers),
        cmocka_unit_test(unknown),
        cmocka_unit_test(repeated),
        cmocka_unit_test(all_errors_in_one_run),
        cmocka_unit_test(not_text),
        cmocka_unit_test(calls),
        cmocka_unit_test(other_version),
        cmocka_unit_test(paths),
        cmocka_unit_test(model_lines),
        cmocka_unit_test(dump),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
