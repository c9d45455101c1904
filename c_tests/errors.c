/* What programs learn of failures by gloo_rs_last_error: the rank to blame, the system's error, bytes and operation. */
#include "harness.h"

#define LARGE (1 << 20)

static void *nothing_failed_here(void *unused) {
  gloo_rs_error_t error = last_error();
  (void)unused;
  CHECK(error.status == GLOO_RS_OK && error.rank == -1 && error.system_error == 0);
  CHECK(error.bytes_done == 0 && error.bytes_wanted == 0);
  CHECK_TEXT(error.operation, "");
  CHECK_TEXT(error.message, "");
  return NULL;
}

static void the_struct(void) {
  struct {
    gloo_rs_error_t error;
    uint64_t later[2];
  } longer;
  gloo_rs_error_t error;
  gloo_rs_context_t *context = NULL;
  nothing_failed_here(NULL);
  CHECK_INVALID(gloo_rs_context_create(NULL, 0, 1, NULL, &context), "device is NULL");
  CHECK_ERROR(GLOO_RS_ERROR_INVALID_ARGUMENT, -1, "context create");
  join_thread(start_thread(nothing_failed_here, NULL));
  /* A program of a later version, and one of an earlier. */
  memset(&longer, 0xaa, sizeof longer);
  gloo_rs_error_init(&longer.error, sizeof longer);
  CHECK(longer.error.rank == -1 && *longer.error.message == '\0');
  memset(&longer.later, 0xaa, sizeof longer.later);
  CHECK_OK(gloo_rs_last_error(&longer.error));
  CHECK(longer.later[0] == 0 && longer.later[1] == 0 && longer.error.status == GLOO_RS_ERROR_INVALID_ARGUMENT);
  memset(&error, 0xaa, sizeof error);
  gloo_rs_error_init(&error, offsetof(gloo_rs_error_t, bytes_done));
  CHECK_OK(gloo_rs_last_error(&error));
  CHECK(error.status == GLOO_RS_ERROR_INVALID_ARGUMENT && error.rank == -1);
  CHECK(error.bytes_done == 0xaaaaaaaaaaaaaaaau);
  error.struct_size = 0;
  CHECK_INVALID(gloo_rs_last_error(&error), "gloo_rs_error_t");
  CHECK_INVALID(gloo_rs_last_error(NULL), "error is NULL");
  CHECK_ERROR(GLOO_RS_ERROR_INVALID_ARGUMENT, -1, "last error");
  CHECK_INVALID(gloo_rs_collective(NULL, GLOO_RS_REDUCE_SCATTER, NULL), "NULL");
  CHECK_ERROR(GLOO_RS_ERROR_INVALID_ARGUMENT, -1, "reduce_scatter");
}

static void stores(void) {
  gloo_rs_store_t *store = open_store(), *other = NULL;
  void *value = NULL;
  size_t bytes = 0;
  CHECK(gloo_rs_store_get(store, "absent", 1, &value, &bytes) != GLOO_RS_OK);
  CHECK_ERROR(GLOO_RS_ERROR_TIMEOUT, -1, "store get");
  CHECK_INT(last_error().system_error, 0);
  CHECK(gloo_rs_store_create_tcp("127.0.0.1", 1, false, 0, &other) != GLOO_RS_OK);
  CHECK_ERROR(GLOO_RS_ERROR_TIMEOUT, -1, "store create tcp");
  CHECK_INT(last_error().system_error, ECONNREFUSED);
  CHECK(gloo_rs_store_create_file("/dev/null/directory", &other) != GLOO_RS_OK);
  CHECK_ERROR(GLOO_RS_ERROR_IO, -1, "store create file");
  CHECK_INT(last_error().system_error, ENOTDIR);
  gloo_rs_store_destroy(store);
}

/* Only the first of three ranks comes. */
static void ranks_that_do_not_come(void) {
  gloo_rs_device_t *device = create_device();
  gloo_rs_store_t *store = open_store();
  gloo_rs_context_options_t options;
  gloo_rs_context_t *context = NULL;
  gloo_rs_pair_t *pair = NULL;
  char address[512];
  size_t bytes = 0;
  gloo_rs_context_options_init(&options, sizeof options);
  options.timeout_ms = 10;
  CHECK_OK(gloo_rs_context_create(device, 0, 3, &options, &context));
  CHECK(gloo_rs_context_connect(context, store) != GLOO_RS_OK);
  CHECK_ERROR(GLOO_RS_ERROR_TIMEOUT, 1, "connect");
  CHECK_OK(gloo_rs_context_close(context));
  CHECK(gloo_rs_context_connect(context, store) != GLOO_RS_OK);
  CHECK_ERROR(GLOO_RS_ERROR_CLOSED, -1, "connect");
  gloo_rs_context_destroy(context);
  options.timeout_ms = test_timeout_ms();
  CHECK_OK(gloo_rs_context_create(device, 0, 3, &options, &context));
  CHECK_OK(gloo_rs_context_pair(context, 2, &pair));
  CHECK_OK(gloo_rs_pair_address(pair, address, sizeof address, &bytes));
  /* What is found there is this rank. */
  CHECK(gloo_rs_pair_connect(pair, address, bytes) != GLOO_RS_OK);
  CHECK_ERROR(GLOO_RS_ERROR_CONNECTION_LOST, 2, "connect");
  CHECK_INVALID(gloo_rs_pair_connect(pair, address, bytes - 1), "");
  CHECK_ERROR(GLOO_RS_ERROR_INVALID_ARGUMENT, -1, "connect");
  gloo_rs_pair_destroy(pair);
  gloo_rs_context_destroy(context);
  gloo_rs_store_destroy(store);
  gloo_rs_device_destroy(device);
}

static void bytes(uint64_t done, uint64_t wanted) {
  CHECK_INT(last_error().bytes_done, done);
  CHECK_INT(last_error().bytes_wanted, wanted);
}

static void buffers_that_wait(void) {
  gloo_rs_context_t *context = connected_context();
  char *large = (char *)check_alloc(LARGE), small[2][8];
  gloo_rs_unbound_buffer_t *source = NULL, *one = NULL, *any = NULL;
  gloo_rs_buffer_t *written = NULL;
  gloo_rs_pair_t *pair = NULL;
  static const int32_t others[2] = {1, 2};
  memset(large, 1, LARGE);
  meet(context);
  if (test_rank == 0) {
    CHECK_OK(gloo_rs_unbound_buffer_create(context, large, LARGE, &source));
    CHECK_OK(gloo_rs_unbound_buffer_create(context, small[0], 8, &one));
    CHECK_OK(gloo_rs_unbound_buffer_create(context, small[0], 8, &any));
    CHECK(gloo_rs_unbound_buffer_wait_recv(one, 1, NULL, NULL) != GLOO_RS_OK);
    CHECK_ERROR(GLOO_RS_ERROR_TIMEOUT, -1, "recv");
    bytes(0, 0);
    /* Each side of a buffer has its own. */
    CHECK_OK(gloo_rs_unbound_buffer_send(source, 2, 1, 0, LARGE));
    CHECK_OK(gloo_rs_unbound_buffer_recv(source, 1, 1, 0, 100));
    CHECK(gloo_rs_unbound_buffer_wait_send(source, 1, NULL) != GLOO_RS_OK);
    CHECK_ERROR(GLOO_RS_ERROR_TIMEOUT, 2, "send");
    bytes(0, LARGE);
    CHECK(gloo_rs_unbound_buffer_wait_recv(source, 1, NULL, NULL) != GLOO_RS_OK);
    CHECK_ERROR(GLOO_RS_ERROR_TIMEOUT, 1, "recv");
    bytes(0, 100);
    CHECK_OK(gloo_rs_unbound_buffer_recv_any(any, others, 2, 2, 0, 8));
    CHECK(gloo_rs_unbound_buffer_wait_recv(any, 1, NULL, NULL) != GLOO_RS_OK);
    CHECK_ERROR(GLOO_RS_ERROR_TIMEOUT, -1, "recv");
    bytes(0, 8);
    CHECK_OK(gloo_rs_context_pair(context, 2, &pair));
    CHECK_OK(gloo_rs_pair_create_recv_buffer(pair, 3, small[1], 8, &written));
    CHECK(gloo_rs_buffer_wait_recv(written, 1, NULL, NULL) != GLOO_RS_OK);
    CHECK_ERROR(GLOO_RS_ERROR_TIMEOUT, 2, "recv");
    bytes(0, 8);
    CHECK_OK(gloo_rs_context_close(context));
    CHECK(gloo_rs_buffer_wait_recv(written, 1, NULL, NULL) != GLOO_RS_OK);
    CHECK_ERROR(GLOO_RS_ERROR_CLOSED, -1, "recv");
  }
  gloo_rs_buffer_destroy(written);
  gloo_rs_pair_destroy(pair);
  gloo_rs_unbound_buffer_destroy(any);
  gloo_rs_unbound_buffer_destroy(one);
  gloo_rs_unbound_buffer_destroy(source);
  if (test_rank == 0) {
    CHECK(gloo_rs_barrier(context) != GLOO_RS_OK);
    CHECK_ERROR(GLOO_RS_ERROR_CLOSED, -1, "barrier");
  } else {
    /* One of them hears it from rank 0, the other perhaps from that one. */
    CHECK(gloo_rs_barrier(context) != GLOO_RS_OK);
    CHECK_ERROR(GLOO_RS_ERROR_CONNECTION_LOST, 0, "barrier");
  }
  free(large);
  gloo_rs_context_destroy(context);
}

static int32_t refuse(void *into, const void *left, const void *right, size_t count, void *user) {
  (void)into, (void)left, (void)right, (void)count, (void)user;
  return 5;
}

/* Rank 1's function fails. */
static void a_function_that_fails(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_store_t *store = open_store();
  static const char *const done[] = {"done0", "done2"};
  gloo_rs_collective_options_t options;
  int32_t cells[2] = {1, 2};
  void *outputs[2];
  outputs[0] = &cells[0];
  outputs[1] = &cells[1];
  gloo_rs_collective_options_init(&options, sizeof options);
  options.data_type = GLOO_RS_INT32;
  options.outputs = outputs;
  options.num_outputs = 2;
  options.count = 1;
  options.function = test_rank == 1 ? refuse : NULL;
  options.timeout_ms = test_timeout_ms();
  if (test_rank == 1) {
    CHECK_FAILS(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options), GLOO_RS_ERROR_CALLBACK, "returned 5");
    CHECK_ERROR(GLOO_RS_ERROR_CALLBACK, -1, "allreduce");
    /* Whoever connects only now is told, too. */
    CHECK_OK(gloo_rs_store_wait(store, done, 2, test_timeout_ms()));
  } else {
    int round;
    /* The error is the same whoever tells it, and once the context is broken. */
    for (round = 0; round < 2; round++) {
      CHECK_FAILS(gloo_rs_barrier(context), GLOO_RS_ERROR_CONNECTION_LOST, "returned 5");
      CHECK_ERROR(GLOO_RS_ERROR_CONNECTION_LOST, 1, "barrier");
    }
    CHECK_OK(gloo_rs_store_set(store, done[test_rank / 2], "", 0));
  }
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
}

/* Rank 1 has told where it listens, and has ended before anyone connected. */
static void a_rank_that_refuses_connections(void) {
  gloo_rs_device_t *device = create_device();
  gloo_rs_store_t *store = open_store();
  gloo_rs_context_options_t options;
  gloo_rs_context_t *context = NULL;
  static const char *const key = "over";
  gloo_rs_context_options_init(&options, sizeof options);
  options.timeout_ms = test_timeout_ms();
  options.tuning = "default";
  CHECK_OK(gloo_rs_context_create(device, test_rank, test_size, &options, &context));
  CHECK_OK(gloo_rs_context_connect(context, store));
  CHECK_OK(gloo_rs_store_set(store, key, "", 0));
  if (test_rank == 1) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
  CHECK_OK(gloo_rs_store_wait(store, &key, 1, test_timeout_ms()));
  CHECK(gloo_rs_barrier(context) != GLOO_RS_OK);
  CHECK_ERROR(GLOO_RS_ERROR_CONNECTION_LOST, 1, "barrier");
  if (strstr(gloo_rs_last_error_message(), "refused") != NULL) CHECK_INT(last_error().system_error, ECONNREFUSED);
  gloo_rs_context_destroy(context);
  gloo_rs_store_destroy(store);
  gloo_rs_device_destroy(device);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"the_struct", 1, the_struct, -1},
      {"stores", 1, stores, -1},
      {"ranks_that_do_not_come", 1, ranks_that_do_not_come, -1},
      {"buffers_that_wait", 3, buffers_that_wait, -1},
      {"a_function_that_fails", 3, a_function_that_fails, -1},
      {"a_rank_that_refuses_connections", 2, a_rank_that_refuses_connections, 1},
  };
  return RUN_TESTS(argc, argv, tests);
}
