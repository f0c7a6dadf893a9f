/* Run directories: names, refusals, the lock, leftovers; and the log's whole lines. */
#include "../../dp/base/text.h"
#include "../../dp/train/lock.h"
#include "../../dp/train/log.h"
#include "../../dp/train/rundir.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static char home[64]; /* a fresh directory, the working directory of every test */

static int setup(void **state)
{
    (void)state;
    strcpy(home, "/tmp/dp-rundir-XXXXXX");
    return mkdtemp(home) && !chdir(home) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", home);
    return chdir("/") || system(cmd);
}

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static char *get(const char *path)
{
    static char buf[4096];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    buf[fread(buf, 1, sizeof buf - 1, f)] = 0;
    fclose(f);
    return buf;
}

static int exists(const char *path)
{
    return !access(path, F_OK);
}

static dp_config *config(const char *dir, const char *resume, int overwrite)
{
    dp_config *c = dp_config_new(NULL, NULL);
    assert_non_null(c);
    if (dir) assert_int_equal(dp_config_set(c, "run.dir", dir), DP_OK);
    if (resume) assert_int_equal(dp_config_set(c, "run.resume", resume), DP_OK);
    if (overwrite) assert_int_equal(dp_config_set(c, "run.overwrite", "1"), DP_OK);
    return c;
}

static dp_status choose(dp_rundir *d, const char *dir, const char *resume, int overwrite, dp_error *err)
{
    dp_config *c = config(dir, resume, overwrite);
    dp_status s = dp_rundir_choose(d, c, err);
    dp_config_free(c);
    return s;
}

static void looking_changes_nothing(void **state)
{
    (void)state;
    dp_rundir d;
    dp_error err;
    assert_int_equal(choose(&d, "a/b/c", NULL, 0, &err), DP_OK);
    assert_false(exists("a"));
    assert_int_equal(dp_rundir_enter(&d, &err), DP_OK);
    assert_true(exists("a/b/c/lock"));
    dp_rundir_free(&d);
    assert_false(exists("a/b/c/lock"));
}

static void a_run_is_refused_resumed_or_overwritten(void **state)
{
    (void)state;
    dp_rundir d;
    dp_error err;
    mkdir("r", 0777);
    put("r/config.ini", "x");
    put("r/mine.txt", "keep me");
    put("r/state-00000003.safetensors", "x");
    put("r/state-00000020.safetensors", "x");
    assert_int_equal(choose(&d, "r", NULL, 0, &err), DP_ECONFIG);
    assert_non_null(strstr(err.text, "already holds a run"));
    assert_non_null(strstr(err.text, "overwrite"));
    dp_rundir_free(&d);

    assert_int_equal(choose(&d, "r", "auto", 0, &err), DP_OK);
    assert_non_null(d.resume);
    assert_non_null(strstr(d.resume, "r/state-00000020.safetensors"));
    dp_rundir_free(&d);

    assert_int_equal(choose(&d, "r", "auto", 1, &err), DP_ECONFIG); /* goes on with it and deletes it */
    dp_rundir_free(&d);

    assert_int_equal(choose(&d, "r", NULL, 1, &err), DP_OK);
    assert_true(exists("r/config.ini"));
    assert_int_equal(dp_rundir_enter(&d, &err), DP_OK);
    assert_false(exists("r/config.ini") || exists("r/state-00000003.safetensors"));
    assert_true(exists("r/mine.txt"));
    dp_rundir_free(&d);
}

static void the_derived_name_takes_the_next_free_suffix(void **state)
{
    (void)state;
    dp_rundir d, e;
    dp_error err;
    assert_int_equal(choose(&d, NULL, NULL, 0, &err), DP_OK);
    assert_string_equal(d.path, "runs/run"); /* no file was loaded */
    assert_int_equal(choose(&e, NULL, NULL, 0, &err), DP_OK);
    assert_int_equal(dp_rundir_enter(&d, &err), DP_OK);
    assert_int_equal(dp_rundir_enter(&e, &err), DP_OK); /* chose the same name, entered later */
    assert_string_equal(e.path, "runs/run-2");
    put("runs/run/log.jsonl", "");
    put("runs/run-2/state-00000001.safetensors", "x");
    dp_rundir_free(&d);
    dp_rundir_free(&e);
    assert_int_equal(choose(&d, NULL, NULL, 0, &err), DP_OK);
    assert_string_equal(d.path, "runs/run-3");
    dp_rundir_free(&d);
    assert_int_equal(choose(&d, NULL, "auto", 0, &err), DP_OK); /* the newest of the series that has a state */
    assert_string_equal(d.path, "runs/run-2");
    dp_rundir_free(&d);
    assert_int_equal(choose(&d, NULL, NULL, 1, &err), DP_OK);
    assert_string_equal(d.path, "runs/run");
    dp_rundir_free(&d);
}

static void the_config_names_the_run(void **state)
{
    (void)state;
    dp_rundir d;
    dp_error err;
    mkdir("c", 0777);
    put("c/my.net.ini", "[optimizer]\nlr = 0.1\n");
    dp_config *c = dp_config_new(NULL, NULL);
    assert_int_equal(dp_config_load(c, "c/my.net.ini", &err), DP_OK);
    assert_int_equal(dp_rundir_choose(&d, c, &err), DP_OK);
    assert_string_equal(d.path, "runs/my.net");
    dp_rundir_free(&d);
    dp_config_free(c);
}

static void a_path_that_cannot_be(void **state)
{
    (void)state;
    dp_rundir d;
    dp_error err;
    put("file", "x");
    assert_int_equal(choose(&d, "file", NULL, 0, &err), DP_EIO);
    assert_non_null(strstr(err.text, "Not a directory"));
    dp_rundir_free(&d);
    assert_int_equal(choose(&d, "file/sub", NULL, 0, &err), DP_EIO);
    dp_rundir_free(&d);
    if (!geteuid()) return; /* root may write anywhere */
    mkdir("ro", 0555);
    assert_int_equal(choose(&d, "ro/sub", NULL, 0, &err), DP_EIO);
    assert_non_null(strstr(err.text, "Permission denied"));
    dp_rundir_free(&d);
}

static void a_live_lock_holds_and_a_dead_one_does_not(void **state)
{
    (void)state;
    dp_rundir d;
    dp_error err;
    int up[2], down[2], status;
    char byte, text[32];
    assert_true(!pipe(up) && !pipe(down));
    pid_t pid = fork();
    if (!pid) {
        char *lock;
        int fd;
        close(down[1]);
        int ok = !mkdir("l", 0777) && !dp_lock_take("l", &lock, &fd, NULL);
        if (write(up[1], ok ? "y" : "n", 1) != 1 || read(down[0], &byte, 1)) _exit(1);
        _exit(0); /* without dropping the lock: a kill */
    }
    assert_int_equal(read(up[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    assert_int_equal(choose(&d, "l", NULL, 0, &err), DP_ECONFIG);
    dp_format(text, sizeof text, "process %ld", (long)pid);
    assert_non_null(strstr(err.text, text));
    assert_non_null(strstr(err.text, "l/lock"));
    dp_rundir_free(&d);
    close(down[1]);
    waitpid(pid, &status, 0);
    assert_true(exists("l/lock"));
    assert_int_equal(choose(&d, "l", NULL, 0, &err), DP_OK);
    assert_int_equal(dp_rundir_enter(&d, &err), DP_OK);
    dp_rundir_free(&d);

    dp_format(text, sizeof text, "%ld\n", (long)getppid()); /* a lock whose holder lives, without flock */
    put("l/lock", text);
    assert_int_equal(choose(&d, "l", NULL, 0, &err), DP_ECONFIG);
    dp_rundir_free(&d);
    dp_format(text, sizeof text, "%ld 1\n", (long)getppid()); /* the number went to a later process */
    put("l/lock", text);
    assert_int_equal(choose(&d, "l", NULL, 0, &err), DP_OK);
    dp_rundir_free(&d);
    close(up[0]), close(up[1]), close(down[0]);
}

static void states_sort_by_number(void **state)
{
    (void)state;
    int64_t *steps;
    int n;
    dp_error err;
    mkdir("s", 0777);
    const char *names[] = {"s/state-9.safetensors",       "s/state-00010000.safetensors", "s/state-123456789.safetensors",
                           "s/state-x.safetensors",       "s/state-00000007.txt",         "s/state-.safetensors",
                           "s/state-00000011.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) put(names[i], "");
    assert_int_equal(dp_rundir_states("s", &steps, &n, &err), DP_OK);
    assert_int_equal(n, 4);
    assert_true(steps[0] == 9 && steps[1] == 11 && steps[2] == 10000 && steps[3] == 123456789);
    free(steps);
    assert_int_equal(dp_rundir_states("nowhere", &steps, &n, &err), DP_OK);
    assert_int_equal(n, 0);
}

static void the_log_has_whole_lines_only(void **state)
{
    (void)state;
    dp_run_log l;
    dp_error err;
    put("log.jsonl", "{\"type\":\"step\"}\n{\"type\":\"st");
    assert_int_equal(dp_log_open(&l, "log.jsonl", 1, &err), DP_OK);
    dp_line_begin(&l.line, "warn");
    dp_line_text(&l.line, "text", "a \"b\" \\ \n\001");
    dp_line_number(&l.line, "third", 1.0 / 3);
    dp_line_number(&l.line, "nan", (double)NAN);
    dp_line_open(&l.line, "list", '[');
    dp_line_int(&l.line, NULL, -1);
    dp_line_int(&l.line, NULL, 9007199254740993);
    dp_line_close(&l.line, ']');
    dp_line_number(&l.line, "lr", 0.1);
    assert_int_equal(dp_log_write(&l, &err), DP_OK);
    dp_log_close(&l);
    assert_string_equal(
        get("log.jsonl"),
        "{\"type\":\"step\"}\n"
        "{\"type\":\"warn\",\"text\":\"a \\\"b\\\" \\\\ \\u000a\\u0001\",\"third\":0.3333333333333333,\"nan\":null,"
        "\"list\":[-1,9007199254740993],\"lr\":0.1}\n");
    assert_int_equal(dp_log_open(&l, "log.jsonl", 0, &err), DP_OK);
    dp_log_close(&l);
    assert_string_equal(get("log.jsonl"), "");
    assert_int_equal(dp_log_open(&l, "/dev/full", 1, &err), DP_EIO); /* cannot be cut */
    dp_log_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(looking_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_run_is_refused_resumed_or_overwritten, setup, teardown),
        cmocka_unit_test_setup_teardown(the_derived_name_takes_the_next_free_suffix, setup, teardown),
        cmocka_unit_test_setup_teardown(the_config_names_the_run, setup, teardown),
        cmocka_unit_test_setup_teardown(a_path_that_cannot_be, setup, teardown),
        cmocka_unit_test_setup_teardown(a_live_lock_holds_and_a_dead_one_does_not, setup, teardown),
        cmocka_unit_test_setup_teardown(states_sort_by_number, setup, teardown),
        cmocka_unit_test_setup_teardown(the_log_has_whole_lines_only, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
