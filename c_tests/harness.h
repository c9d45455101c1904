/* A small test harness: each test is a function that a number of processes run, one for each rank. The parent serves a
 * store for them, and kills processes that exceed the time limit, by process id. */
#ifndef GLOO_RS_TESTS_HARNESS_H
#define GLOO_RS_TESTS_HARNESS_H

#include <errno.h>
#include <gloo_rs.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_RANKS 9

struct test {
  const char *name;
  /* Number of processes that run it. */
  int ranks;
  /* Called in each of them. */
  void (*run)(void);
  /* The rank that must end by SIGKILL, or -1 if all must succeed. */
  int killed;
};

/* In a rank's process: the name of the test, rank, size, and the port of the parent's store. */
static const char *test_name = "";
static int test_rank = 0;
static int test_size = 1;
static uint16_t test_port = 0;

/* Whether this runs under valgrind: fewer and smaller rounds, longer limits. */
static inline int test_is_slow(void) { return getenv("GLOO_RS_TESTS_SLOW") != NULL; }

static inline int64_t test_timeout_ms(void) { return test_is_slow() ? 200000 : 20000; }

/* ---- checks: a failed check ends the process ---- */

static inline void check_failed(const char *file, int line, const char *format, ...) {
  va_list arguments;
  fprintf(stderr, "%s: rank %d of %d: %s:%d: ", test_name, test_rank, test_size, file, line);
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fprintf(stderr, "\n");
  fflush(NULL);
  _exit(1);
}

#define CHECK(condition) \
  do { \
    if (!(condition)) check_failed(__FILE__, __LINE__, "not so: %s", #condition); \
  } while (0)

#define CHECK_INT(actual, expected) \
  do { \
    long long actual_ = (long long)(actual), expected_ = (long long)(expected); \
    if (actual_ != expected_) \
      check_failed(__FILE__, __LINE__, "%s is %lld, not %lld", #actual, actual_, expected_); \
  } while (0)

#define CHECK_TEXT(actual, expected) \
  do { \
    const char *actual_ = (actual), *expected_ = (expected); \
    if (strcmp(actual_, expected_) != 0) \
      check_failed(__FILE__, __LINE__, "%s is \"%s\", not \"%s\"", #actual, actual_, expected_); \
  } while (0)

#define CHECK_CONTAINS(actual, part) \
  do { \
    const char *text_ = (actual), *part_ = (part); \
    if (strstr(text_, part_) == NULL) \
      check_failed(__FILE__, __LINE__, "%s is \"%s\", without \"%s\"", #actual, text_, part_); \
  } while (0)

#define CHECK_OK(call) \
  do { \
    gloo_rs_status_t status_ = (call); \
    if (status_ != GLOO_RS_OK) \
      check_failed(__FILE__, __LINE__, "%s returned %s: %s", #call, gloo_rs_status_name(status_), \
                   gloo_rs_last_error_message()); \
  } while (0)

/* The call must fail with this status, and its message must contain `part`. */
#define CHECK_FAILS(call, status, part) \
  do { \
    gloo_rs_status_t status_ = (call), expected_ = (status); \
    if (status_ != expected_) \
      check_failed(__FILE__, __LINE__, "%s returned %s (%s), not %s", #call, gloo_rs_status_name(status_), \
                   gloo_rs_last_error_message(), gloo_rs_status_name(expected_)); \
    CHECK_CONTAINS(gloo_rs_last_error_message(), part); \
  } while (0)

#define CHECK_INVALID(call, part) CHECK_FAILS(call, GLOO_RS_ERROR_INVALID_ARGUMENT, part)

static inline gloo_rs_error_t last_error(void) {
  gloo_rs_error_t error;
  gloo_rs_error_init(&error, sizeof error);
  CHECK_OK(gloo_rs_last_error(&error));
  return error;
}

/* What a program learns of the last error of this thread. */
#define CHECK_ERROR(status_, rank_, operation_) \
  do { \
    gloo_rs_error_t error_ = last_error(); \
    CHECK_TEXT(error_.message, gloo_rs_last_error_message()); \
    CHECK_TEXT(gloo_rs_status_name(error_.status), gloo_rs_status_name(status_)); \
    if (error_.rank != (rank_)) \
      check_failed(__FILE__, __LINE__, "the rank is %d, not %d: %s", (int)error_.rank, (int)(rank_), error_.message); \
    CHECK_TEXT(error_.operation, operation_); \
  } while (0)

static inline void *check_alloc(size_t bytes) {
  void *memory = malloc(bytes > 0 ? bytes : 1);
  if (memory == NULL) check_failed(__FILE__, __LINE__, "no memory for %zu bytes", bytes);
  return memory;
}

static inline int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline void sleep_ms(int64_t ms) {
  struct timespec time;
  time.tv_sec = (time_t)(ms / 1000);
  time.tv_nsec = (long)(ms % 1000) * 1000000L;
  while (nanosleep(&time, &time) != 0 && errno == EINTR) {
  }
}

/* ---- threads ---- */

static inline pthread_t start_thread(void *(*run)(void *), void *argument) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, run, argument) != 0) check_failed(__FILE__, __LINE__, "no thread");
  return thread;
}

static inline void join_thread(pthread_t thread) {
  if (pthread_join(thread, NULL) != 0) check_failed(__FILE__, __LINE__, "cannot join");
}

/* ---- helpers for most tests ---- */

/* The parent's store. */
static inline gloo_rs_store_t *open_store(void) {
  gloo_rs_store_t *store = NULL;
  CHECK_OK(gloo_rs_store_create_tcp("127.0.0.1", test_port, false, test_timeout_ms(), &store));
  return store;
}

static inline gloo_rs_device_t *create_device(void) {
  gloo_rs_device_t *device = NULL;
  gloo_rs_device_options_t options;
  gloo_rs_device_options_init(&options, sizeof options);
  options.hostname = "127.0.0.1";
  CHECK_OK(gloo_rs_device_create(&options, &device));
  return device;
}

/* A context of this rank, without connections. */
static inline gloo_rs_context_t *create_context(void) {
  gloo_rs_context_t *context = NULL;
  gloo_rs_device_t *device = create_device();
  gloo_rs_context_options_t options;
  gloo_rs_context_options_init(&options, sizeof options);
  options.timeout_ms = test_timeout_ms();
  CHECK_OK(gloo_rs_context_create(device, test_rank, test_size, &options, &context));
  gloo_rs_device_destroy(device);
  return context;
}

/* Connects over `store`, or the parent's if it is NULL, under `prefix`. */
static inline void connect_context(gloo_rs_context_t *context, gloo_rs_store_t *store, const char *prefix) {
  gloo_rs_store_t *base = store == NULL ? open_store() : NULL, *own = NULL;
  CHECK_OK(gloo_rs_store_create_prefix(prefix, store == NULL ? base : store, &own));
  gloo_rs_store_destroy(base);
  CHECK_OK(gloo_rs_context_connect(context, own));
  gloo_rs_store_destroy(own);
}

/* A connected context of all ranks. */
static inline gloo_rs_context_t *connected_context(void) {
  gloo_rs_context_t *context = create_context();
  connect_context(context, NULL, "context");
  return context;
}

static inline void barrier(gloo_rs_context_t *context) { CHECK_OK(gloo_rs_barrier(context)); }

/* Whether the context's ranks can run the algorithm of this name, which needs shared memory if its name says so. */
static inline int can_run(gloo_rs_context_t *context, const char *algorithm) {
  gloo_rs_collective_options_t options;
  gloo_rs_status_t status;
  if (strcmp(algorithm, "local") == 0) return test_size == 1;
  if (strncmp(algorithm, "shared_", 7) != 0) return 1;
  gloo_rs_collective_options_init(&options, sizeof options);
  options.algorithm = "shared_flat";
  status = gloo_rs_collective(context, GLOO_RS_BARRIER, &options);
  if (status != GLOO_RS_ERROR_UNSUPPORTED) CHECK_OK(status);
  return status == GLOO_RS_OK;
}

/* Connects all ranks, and returns once all have come so far: a failure that follows hits nobody in the barrier. */
static inline void meet(gloo_rs_context_t *context) {
  gloo_rs_store_t *store = open_store();
  char names[MAX_RANKS][16];
  const char *keys[MAX_RANKS];
  int rank;
  barrier(context);
  for (rank = 0; rank < test_size; rank++) {
    snprintf(names[rank], sizeof names[rank], "met%d", rank);
    keys[rank] = names[rank];
  }
  CHECK_OK(gloo_rs_store_set(store, keys[test_rank], "", 0));
  CHECK_OK(gloo_rs_store_wait(store, keys, (size_t)test_size, test_timeout_ms()));
  gloo_rs_store_destroy(store);
}

/* ---- the parent ---- */

extern char **environ;

/* The arguments of test processes. */
static inline int run_rank(const struct test *tests, size_t count, char **argv) {
  size_t i;
  test_rank = atoi(argv[2]);
  test_size = atoi(argv[3]);
  test_port = (uint16_t)atoi(argv[4]);
  for (i = 0; i < count; i++) {
    if (strcmp(tests[i].name, argv[5]) == 0) {
      test_name = tests[i].name;
      tests[i].run();
      return 0;
    }
  }
  fprintf(stderr, "no test %s\n", argv[5]);
  return 2;
}

static inline pid_t spawn_rank(const char *program, const struct test *test, int rank, uint16_t port) {
  char arguments[3][16];
  char *argv[7];
  pid_t pid;
  int error;
  snprintf(arguments[0], sizeof arguments[0], "%d", rank);
  snprintf(arguments[1], sizeof arguments[1], "%d", test->ranks);
  snprintf(arguments[2], sizeof arguments[2], "%d", (int)port);
  argv[0] = (char *)program;
  argv[1] = (char *)"--rank";
  argv[2] = arguments[0];
  argv[3] = arguments[1];
  argv[4] = arguments[2];
  argv[5] = (char *)test->name;
  argv[6] = NULL;
  error = posix_spawn(&pid, program, NULL, NULL, argv, environ);
  if (error != 0) {
    fprintf(stderr, "cannot start %s: %s\n", program, strerror(error));
    exit(2);
  }
  return pid;
}

/* Whether rank `rank` of `test` ended as expected. */
static inline int ended_well(const struct test *test, int rank, int status) {
  if (rank == test->killed) {
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return 1;
    fprintf(stderr, "%s: rank %d was to be killed, but ended with status %#x\n", test->name, rank, (unsigned)status);
    return 0;
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 1;
  if (WIFSIGNALED(status))
    fprintf(stderr, "%s: rank %d ended by signal %d\n", test->name, rank, WTERMSIG(status));
  else
    fprintf(stderr, "%s: rank %d ended with status %d\n", test->name, rank, WEXITSTATUS(status));
  return 0;
}

/* Runs one test in processes of its own; 1 if it passed. */
static inline int run_test(const char *program, const struct test *test, uint16_t port) {
  pid_t pids[MAX_RANKS];
  int rank, left = test->ranks, passed = 1;
  int64_t grace = test_is_slow() ? 30000 : 3000, deadline = now_ms() + test_timeout_ms() * 3;
  for (rank = 0; rank < test->ranks; rank++) pids[rank] = spawn_rank(program, test, rank, port);
  while (left > 0) {
    for (rank = 0; rank < test->ranks; rank++) {
      int status;
      if (pids[rank] == 0 || waitpid(pids[rank], &status, WNOHANG) != pids[rank]) continue;
      pids[rank] = 0;
      left--;
      /* After a failure the others soon fail too; do not wait for the whole time limit. */
      if (!ended_well(test, rank, status) && passed) {
        passed = 0;
        if (now_ms() + grace < deadline) deadline = now_ms() + grace;
      }
    }
    if (left > 0 && now_ms() > deadline) {
      for (rank = 0; rank < test->ranks; rank++) {
        if (pids[rank] == 0) continue;
        fprintf(stderr, "%s: rank %d has not ended and is killed\n", test->name, rank);
        kill(pids[rank], SIGKILL);
        waitpid(pids[rank], NULL, 0);
      }
      return 0;
    }
    if (left > 0) sleep_ms(2);
  }
  return passed;
}

/* Runs all tests, or those named as arguments. main calls it. */
static inline int run_tests(int argc, char **argv, const struct test *tests, size_t count) {
  char program[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  size_t i, run = 0, failed = 0;
  int argument;
  if (argc == 6 && strcmp(argv[1], "--rank") == 0) return run_rank(tests, count, argv);
  if (length < 0) {
    perror("/proc/self/exe");
    return 2;
  }
  program[length] = '\0';
  for (i = 0; i < count; i++) {
    gloo_rs_store_t *store = NULL;
    uint16_t port = 0;
    int wanted = argc < 2, passed;
    for (argument = 1; argument < argc; argument++) wanted |= strcmp(argv[argument], tests[i].name) == 0;
    if (!wanted) continue;
    test_name = tests[i].name;
    CHECK_OK(gloo_rs_store_create_tcp("127.0.0.1", 0, true, GLOO_RS_TIMEOUT_DEFAULT, &store));
    CHECK_OK(gloo_rs_store_port(store, &port));
    passed = run_test(program, &tests[i], port);
    gloo_rs_store_destroy(store);
    printf("%s %s (%d ranks)\n", passed ? "ok    " : "FAILED", tests[i].name, tests[i].ranks);
    fflush(stdout);
    run++;
    failed += !passed;
  }
  if (run == 0) fprintf(stderr, "no test was run\n");
  return run > 0 && failed == 0 ? 0 : 1;
}

#define RUN_TESTS(argc, argv, tests) run_tests((argc), (argv), (tests), sizeof(tests) / sizeof((tests)[0]))

#endif
