/* What every call with a timeout makes of 0, which asks once, of GLOO_RS_TIMEOUT_INFINITE, and of numbers that are
 * none. */
#include "harness.h"

#define LARGE (1 << 20)

static gloo_rs_store_t *store;
static gloo_rs_context_t *context;
static gloo_rs_pair_t *pair;
static gloo_rs_unbound_buffer_t *target, *source;
static gloo_rs_buffer_t *written, *writes;
static char *large, cells[3][8];

static gloo_rs_status_t get(int64_t timeout_ms) {
  void *value = NULL;
  size_t bytes = 0;
  gloo_rs_status_t status = gloo_rs_store_get(store, "late", timeout_ms, &value, &bytes);
  gloo_rs_free(value);
  return status;
}

static gloo_rs_status_t wait_for_key(int64_t timeout_ms) {
  static const char *const key = "late";
  return gloo_rs_store_wait(store, &key, 1, timeout_ms);
}

static gloo_rs_status_t multi_get(int64_t timeout_ms) {
  static const char *const keys[] = {"late", "late"};
  void *values[2] = {NULL, NULL};
  size_t bytes[2];
  gloo_rs_status_t status = gloo_rs_store_multi_get(store, keys, 2, timeout_ms, values, bytes);
  gloo_rs_free(values[0]);
  gloo_rs_free(values[1]);
  return status;
}

static gloo_rs_status_t recv_message(int64_t timeout_ms) {
  return gloo_rs_unbound_buffer_wait_recv(target, timeout_ms, NULL, NULL);
}

static gloo_rs_status_t send_message(int64_t timeout_ms) {
  return gloo_rs_unbound_buffer_wait_send(source, timeout_ms, NULL);
}

static gloo_rs_status_t be_written(int64_t timeout_ms) {
  return gloo_rs_buffer_wait_recv(written, timeout_ms, NULL, NULL);
}

/* Breaks the context, so it comes last. */
static gloo_rs_status_t call(int64_t timeout_ms) {
  gloo_rs_collective_options_t options;
  gloo_rs_collective_options_init(&options, sizeof options);
  options.timeout_ms = timeout_ms;
  return gloo_rs_collective(context, GLOO_RS_BARRIER, &options);
}

static const struct {
  gloo_rs_status_t (*wait)(int64_t timeout_ms);
  /* What the message says that has not come. */
  const char *missing;
  /* What is waited for stays, so that it can be had again. */
  int stays;
} waits[] = {
    {get, "\"late\" has no value", 1},
    {wait_for_key, "\"late\" has no value", 1},
    {multi_get, "(\"late\", \"late\")", 1},
    {recv_message, "timed out without waiting (the timeout is 0), waiting to receive 0 of 8 bytes from rank 1", 0},
    {send_message, "timed out without waiting (the timeout is 0), waiting for rank 1", 0},
    {be_written, "timed out without waiting (the timeout is 0), waiting for rank 1", 0},
    {call, "timed out without waiting (the timeout is 0), in collective number 1", 0},
};
#define WAITS (sizeof waits / sizeof waits[0])

static void set_up(const char *prefix) {
  static const char *const ready[] = {"ready 0", "ready 1"};
  large = (char *)check_alloc(LARGE);
  memset(large, 1, LARGE);
  store = open_store();
  context = create_context();
  connect_context(context, store, prefix);
  CHECK_OK(gloo_rs_context_pair(context, 1 - test_rank, &pair));
  CHECK_OK(gloo_rs_unbound_buffer_create(context, large, LARGE, &source));
  CHECK_OK(gloo_rs_unbound_buffer_create(context, cells[0], 8, &target));
  CHECK_OK(gloo_rs_pair_create_recv_buffer(pair, 3, cells[1], 8, &written));
  CHECK_OK(gloo_rs_pair_create_send_buffer(pair, 3, cells[2], 8, &writes));
  /* A rank whose call times out breaks the context, with which the other one must have got so far. */
  CHECK_OK(gloo_rs_store_set(store, ready[test_rank], "", 0));
  CHECK_OK(gloo_rs_store_wait(store, ready, 2, test_timeout_ms()));
}

static void tear_down(void) {
  gloo_rs_buffer_destroy(writes);
  gloo_rs_buffer_destroy(written);
  gloo_rs_unbound_buffer_destroy(target);
  gloo_rs_unbound_buffer_destroy(source);
  gloo_rs_pair_destroy(pair);
  gloo_rs_context_destroy(context);
  gloo_rs_store_destroy(store);
  free(large);
}

static void wait_for_go(void) {
  static const char *const go = "go";
  CHECK_OK(gloo_rs_store_wait(store, &go, 1, test_timeout_ms()));
}

static void zero_asks_once(void) {
  set_up("zero");
  if (test_rank == 0) {
    size_t i;
    CHECK_OK(gloo_rs_unbound_buffer_recv(target, 1, 1, 0, 8));
    CHECK_OK(gloo_rs_unbound_buffer_send(source, 1, 2, 0, LARGE));
    for (i = 0; i < WAITS; i++) {
      CHECK_INVALID(waits[i].wait(-2), "timeout_ms is -2; it must be GLOO_RS_TIMEOUT_DEFAULT");
      CHECK_INVALID(waits[i].wait(INT64_MIN), "timeout_ms is -9223372036854775808");
      CHECK_FAILS(waits[i].wait(0), GLOO_RS_ERROR_TIMEOUT, waits[i].missing);
    }
    CHECK_INVALID(gloo_rs_buffer_wait_send(writes, -2), "timeout_ms is -2");
    CHECK_OK(gloo_rs_store_set(store, "go", "", 0));
  }
  wait_for_go();
  tear_down();
}

static void infinite_waits(void) {
  size_t i;
  set_up("infinite");
  CHECK_OK(gloo_rs_context_set_timeout(context, GLOO_RS_TIMEOUT_INFINITE));
  if (test_rank == 0) {
    CHECK_OK(gloo_rs_unbound_buffer_recv(target, 1, 1, 0, 8));
    CHECK_OK(gloo_rs_unbound_buffer_send(source, 1, 2, 0, LARGE));
    CHECK_OK(gloo_rs_store_set(store, "go", "", 0));
    for (i = 0; i < WAITS; i++) CHECK_OK(waits[i].wait(GLOO_RS_TIMEOUT_INFINITE));
    for (i = 0; i < WAITS; i++)
      if (waits[i].stays) CHECK_OK(waits[i].wait(0));
  } else {
    wait_for_go();
    sleep_ms(50);
    CHECK_OK(gloo_rs_store_set(store, "late", "", 0));
    CHECK_OK(gloo_rs_unbound_buffer_send(target, 0, 1, 0, 8));
    CHECK_OK(gloo_rs_unbound_buffer_recv(source, 0, 2, 0, LARGE));
    CHECK_OK(gloo_rs_buffer_send(writes, 0, 8, 0));
    CHECK_OK(gloo_rs_unbound_buffer_wait_send(target, GLOO_RS_TIMEOUT_DEFAULT, NULL));
    CHECK_OK(gloo_rs_unbound_buffer_wait_recv(source, GLOO_RS_TIMEOUT_INFINITE, NULL, NULL));
    CHECK_OK(gloo_rs_buffer_wait_send(writes, GLOO_RS_TIMEOUT_INFINITE));
    CHECK_OK(call(GLOO_RS_TIMEOUT_DEFAULT));
  }
  tear_down();
}

/* A context's own timeout: for connecting, and for all that is not told another. */
static void contexts(void) {
  static const int64_t timeouts[] = {0, 1, 60000, INT64_MAX - 1, GLOO_RS_TIMEOUT_INFINITE};
  gloo_rs_device_t *device = create_device();
  gloo_rs_context_options_t options;
  gloo_rs_store_t *base = open_store();
  int64_t timeout_ms;
  size_t i;
  for (i = 0; i < sizeof timeouts / sizeof timeouts[0]; i++) {
    /* Times that do not end in 584 years do not end. */
    int64_t expected = timeouts[i] >= INT64_MAX - 1 ? GLOO_RS_TIMEOUT_INFINITE : timeouts[i];
    char prefix[32];
    float in = 3, out = 0;
    gloo_rs_context_options_init(&options, sizeof options);
    options.timeout_ms = timeouts[i];
    CHECK_OK(gloo_rs_context_create(device, 0, 1, &options, &context));
    CHECK_OK(gloo_rs_context_timeout(context, &timeout_ms));
    CHECK_INT(timeout_ms, expected);
    snprintf(prefix, sizeof prefix, "alone %d", (int)i);
    connect_context(context, base, prefix);
    CHECK_OK(gloo_rs_allreduce(context, &in, &out, 1, GLOO_RS_FLOAT32, GLOO_RS_SUM));
    CHECK(out == 3);
    CHECK_OK(gloo_rs_context_set_timeout(context, GLOO_RS_TIMEOUT_DEFAULT));
    CHECK_OK(gloo_rs_context_timeout(context, &timeout_ms));
    CHECK_INT(timeout_ms, 30000);
    CHECK_OK(gloo_rs_context_set_timeout(context, timeouts[i]));
    CHECK_OK(gloo_rs_context_timeout(context, &timeout_ms));
    CHECK_INT(timeout_ms, expected);
    CHECK_INVALID(gloo_rs_context_set_timeout(context, -2), "timeout_ms is -2");
    gloo_rs_context_destroy(context);
  }
  options.timeout_ms = -3;
  CHECK_INVALID(gloo_rs_context_create(device, 0, 1, &options, &context), "timeout_ms is -3");
  options.timeout_ms = 0;
  CHECK_OK(gloo_rs_context_create(device, 0, 2, &options, &context));
  CHECK_FAILS(gloo_rs_context_connect(context, base), GLOO_RS_ERROR_TIMEOUT,
              "without waiting (the timeout is 0), 1 of 2 ranks have not arrived: 1");
  gloo_rs_context_destroy(context);
  gloo_rs_store_destroy(base);
  gloo_rs_device_destroy(device);
}

/* Connecting can be asked for again and again. */
static void connecting_bit_by_bit(void) {
  gloo_rs_status_t status;
  gloo_rs_context_t *by_hand = create_context();
  char address[512], key[32];
  void *theirs = NULL;
  size_t bytes = 0;
  store = open_store();
  context = create_context();
  CHECK_OK(gloo_rs_context_set_timeout(context, 0));
  while ((status = gloo_rs_context_connect(context, store)) == GLOO_RS_ERROR_TIMEOUT) sleep_ms(1);
  CHECK_INT(status, GLOO_RS_OK);
  CHECK_OK(gloo_rs_context_set_timeout(context, test_timeout_ms()));
  barrier(context);

  CHECK_OK(gloo_rs_context_pair(by_hand, 1 - test_rank, &pair));
  CHECK_OK(gloo_rs_pair_address(pair, address, sizeof address, &bytes));
  snprintf(key, sizeof key, "address %d", test_rank);
  CHECK_OK(gloo_rs_store_set(store, key, address, bytes));
  snprintf(key, sizeof key, "address %d", 1 - test_rank);
  CHECK_OK(gloo_rs_store_get(store, key, test_timeout_ms(), &theirs, &bytes));
  CHECK_OK(gloo_rs_context_set_timeout(by_hand, 0));
  while ((status = gloo_rs_pair_connect(pair, theirs, bytes)) == GLOO_RS_ERROR_TIMEOUT) {
    CHECK_CONTAINS(gloo_rs_last_error_message(), "no connection to rank");
    CHECK_CONTAINS(gloo_rs_last_error_message(), "without waiting (the timeout is 0): not connected");
  }
  CHECK_INT(status, GLOO_RS_OK);
  barrier(context);
  gloo_rs_free(theirs);
  gloo_rs_pair_destroy(pair);
  gloo_rs_context_destroy(by_hand);
  gloo_rs_context_destroy(context);
  gloo_rs_store_destroy(store);
}

static gloo_rs_status_t open_tcp(int64_t timeout_ms, int there) {
  return gloo_rs_store_create_tcp("127.0.0.1", there ? test_port : 1, false, timeout_ms, &store);
}

static gloo_rs_status_t open_url(int64_t timeout_ms, int there) {
  char url[64];
  snprintf(url, sizeof url, "tcp://127.0.0.1:%d", there ? (int)test_port : 1);
  return gloo_rs_store_create_url(url, 1, timeout_ms, &store);
}

static gloo_rs_status_t open_launched(int64_t timeout_ms, int there) {
  char url[64];
  static int32_t turn = 0;
  int32_t rank, size;
  /* A rank is taken once. */
  char text[16];
  snprintf(text, sizeof text, "%d", ++turn);
  snprintf(url, sizeof url, "tcp://127.0.0.1:%d", there ? (int)test_port : 1);
  setenv("GLOO_RS_STORE", url, 1);
  setenv("RANK", text, 1);
  setenv("WORLD_SIZE", "100", 1);
  return gloo_rs_launch_from_env(timeout_ms, &store, &rank, &size);
}

static void opening_stores(void) {
  gloo_rs_status_t (*const opens[])(int64_t timeout_ms, int there) = {open_tcp, open_url, open_launched};
  size_t i;
  for (i = 0; i < sizeof opens / sizeof opens[0]; i++) {
    CHECK_INVALID(opens[i](-2, 1), "timeout_ms is -2");
    CHECK_FAILS(opens[i](0, 0), GLOO_RS_ERROR_TIMEOUT, "tcp://127.0.0.1:1: no store to connect to");
    CHECK_CONTAINS(gloo_rs_last_error_message(), "(1 try; ");
    CHECK_OK(opens[i](0, 1));
    gloo_rs_store_destroy(store);
    CHECK_OK(opens[i](GLOO_RS_TIMEOUT_INFINITE, 1));
    gloo_rs_store_destroy(store);
  }
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"zero_asks_once", 2, zero_asks_once, -1},       {"infinite_waits", 2, infinite_waits, -1},
      {"contexts", 1, contexts, -1},                   {"connecting_bit_by_bit", 2, connecting_bit_by_bit, -1},
      {"opening_stores", 1, opening_stores, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
