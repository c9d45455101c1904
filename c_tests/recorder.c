/* The flight recorder: files on request and after a failure, and what a signal handler may do. */
#include "harness.h"

static gloo_rs_context_t *context;
static char folder[64], prefix[80], path[96];
static gloo_rs_status_t requested = GLOO_RS_ERROR_INTERNAL;

static void name_files(void) {
  snprintf(folder, sizeof folder, "/tmp/gloo_rs_recorder.XXXXXX");
  CHECK(mkdtemp(folder) != NULL);
  snprintf(prefix, sizeof prefix, "%s/job_", folder);
  snprintf(path, sizeof path, "%s%d", prefix, test_rank);
}

static void remove_files(void) {
  (void)unlink(path);
  CHECK(rmdir(folder) == 0);
}

/* A connected context that writes to files that begin with `recorder`, if it is not NULL. */
static void connect_with(const char *recorder) {
  gloo_rs_device_t *device = create_device();
  gloo_rs_context_options_t options;
  gloo_rs_context_options_init(&options, sizeof options);
  options.timeout_ms = test_timeout_ms();
  options.recorder = recorder;
  CHECK_OK(gloo_rs_context_create(device, test_rank, test_size, &options, &context));
  gloo_rs_device_destroy(device);
  connect_context(context, NULL, "context");
}

/* The file at `path`, which the caller frees; NULL if there is none. */
static char *read_file(void) {
  FILE *file = fopen(path, "r");
  char *text;
  size_t bytes;
  if (file == NULL) return NULL;
  text = (char *)check_alloc(1 << 20);
  bytes = fread(text, 1, (1 << 20) - 1, file);
  text[bytes] = '\0';
  CHECK(fclose(file) == 0);
  return text;
}

static void sum(void) {
  float value = 1;
  CHECK_OK(gloo_rs_allreduce(context, &value, &value, 1, GLOO_RS_FLOAT32, GLOO_RS_SUM));
}

static void dumps(void) {
  char *text;
  int call;
  name_files();
  connect_with(NULL);
  for (call = 0; call < 3; call++) sum();
  barrier(context);
  CHECK_OK(gloo_rs_recorder_dump(context, path));
  text = read_file();
  CHECK(text != NULL);
  CHECK_CONTAINS(text, "\"record_id\": 3,");
  CHECK_CONTAINS(text, "\"profiling_name\": \"gloo:all_reduce\"");
  CHECK_CONTAINS(text, "\"collective\": \"barrier\"");
  CHECK_CONTAINS(text, "\"state\": \"completed\"");
  CHECK(strstr(text, "\"record_id\": 5,") == NULL && strstr(text, "\"state\": \"started\"") == NULL);
  free(text);
  /* Nothing names a file. */
  CHECK_INT(gloo_rs_recorder_request_dump(context), GLOO_RS_ERROR_INVALID_OPERATION);
  CHECK_INT(gloo_rs_recorder_request_dump(NULL), GLOO_RS_ERROR_INVALID_ARGUMENT);
  CHECK_INVALID(gloo_rs_recorder_dump(context, NULL), "path is NULL");
  CHECK_INVALID(gloo_rs_recorder_dump(NULL, path), "context is NULL");
  CHECK_FAILS(gloo_rs_recorder_dump(context, "/nowhere/at/all"), GLOO_RS_ERROR_IO, "/nowhere/at/all: No such file");
  CHECK_OK(gloo_rs_context_close(context));
  CHECK_OK(gloo_rs_recorder_dump(context, path));
  gloo_rs_context_destroy(context);
  remove_files();
}

static void on_signal(int signal) {
  (void)signal;
  errno = EDOM;
  requested = gloo_rs_recorder_request_dump(context);
  CHECK(errno == EDOM);
}

static void a_signal_handler_requests(void) {
  int64_t until;
  char *text = NULL;
  name_files();
  connect_with(prefix);
  sum();
  CHECK((text = read_file()) == NULL);
  CHECK(signal(SIGUSR2, on_signal) != SIG_ERR);
  CHECK(raise(SIGUSR2) == 0);
  CHECK_INT(requested, GLOO_RS_OK);
  until = now_ms() + test_timeout_ms();
  while ((text = read_file()) == NULL && now_ms() < until) sleep_ms(1);
  CHECK(text != NULL);
  CHECK_CONTAINS(text, "\"collective\": \"allreduce\"");
  free(text);
  barrier(context);
  gloo_rs_context_destroy(context);
  remove_files();
}

static void a_failure_is_written(void) {
  static const char *const failed = "failed";
  gloo_rs_store_t *store = open_store();
  char *text;
  float value = 1;
  name_files();
  connect_with(prefix);
  sum();
  meet(context);
  if (test_rank == 1) {
    /* Does not come. */
    CHECK_OK(gloo_rs_store_wait(store, &failed, 1, test_timeout_ms()));
  } else {
    gloo_rs_status_t status;
    CHECK_OK(gloo_rs_context_set_timeout(context, 300));
    status = gloo_rs_allreduce(context, &value, &value, 1, GLOO_RS_FLOAT32, GLOO_RS_SUM);
    CHECK_INT(status, GLOO_RS_ERROR_TIMEOUT);
    text = read_file();
    CHECK(text != NULL);
    CHECK_CONTAINS(text, "\"state\": \"failed\"");
    CHECK_CONTAINS(text, "\"error\": \"TIMEOUT\", \"waited_for\": 1");
    free(text);
    CHECK_OK(gloo_rs_store_set(store, failed, "", 0));
  }
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
  remove_files();
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"dumps", 2, dumps, -1},
      {"a_signal_handler_requests", 2, a_signal_handler_requests, -1},
      {"a_failure_is_written", 2, a_failure_is_written, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
