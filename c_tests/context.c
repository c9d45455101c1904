/* Contexts: creating, connecting, closing, destroying. */
#include "harness.h"

static void creating(void) {
  gloo_rs_device_t *device = create_device();
  gloo_rs_context_t *context = NULL;
  gloo_rs_context_options_t options;
  int32_t number = -1;
  int64_t timeout = -1;
  CHECK_OK(gloo_rs_context_create(device, 2, 5, NULL, &context));
  CHECK_OK(gloo_rs_context_rank(context, &number));
  CHECK_INT(number, 2);
  CHECK_OK(gloo_rs_context_size(context, &number));
  CHECK_INT(number, 5);
  CHECK_OK(gloo_rs_context_timeout(context, &timeout));
  CHECK_INT(timeout, 30000);
  CHECK_OK(gloo_rs_context_set_timeout(context, 1234));
  CHECK_OK(gloo_rs_context_timeout(context, &timeout));
  CHECK_INT(timeout, 1234);
  CHECK_OK(gloo_rs_context_set_timeout(context, GLOO_RS_TIMEOUT_DEFAULT));
  CHECK_OK(gloo_rs_context_timeout(context, &timeout));
  CHECK_INT(timeout, 30000);
  gloo_rs_context_destroy(context);
  CHECK_OK(gloo_rs_timeout_from_env(&timeout));
  CHECK_INT(timeout, 30000);
  CHECK_INT(setenv("GLOO_RS_TIMEOUT", "2.5", 1), 0);
  CHECK_OK(gloo_rs_timeout_from_env(&timeout));
  CHECK_INT(timeout, 2500);
  CHECK_INT(setenv("GLOO_RS_TIMEOUT", "soon", 1), 0);
  CHECK_INVALID(gloo_rs_timeout_from_env(&timeout), "GLOO_RS_TIMEOUT is \"soon\"");
  CHECK_INT(unsetenv("GLOO_RS_TIMEOUT"), 0);

  gloo_rs_context_options_init(&options, sizeof options);
  CHECK_INT(options.connect, GLOO_RS_CONNECT_LAZY);
  options.timeout_ms = 77;
  CHECK_OK(gloo_rs_context_create(device, 0, 1, &options, &context));
  CHECK_OK(gloo_rs_context_timeout(context, &timeout));
  CHECK_INT(timeout, 77);
  gloo_rs_context_destroy(context);

  /* A caller of an older version, whose struct has only the timeout. */
  options.struct_size = offsetof(gloo_rs_context_options_t, connect);
  options.connect = 99;
  CHECK_OK(gloo_rs_context_create(device, 0, 1, &options, &context));
  CHECK_OK(gloo_rs_context_timeout(context, &timeout));
  CHECK_INT(timeout, 77);
  gloo_rs_context_destroy(context);
  gloo_rs_device_destroy(device);
}

static void bad_arguments(void) {
  gloo_rs_device_t *device = create_device();
  gloo_rs_context_t *context = (gloo_rs_context_t *)device, *good = NULL;
  gloo_rs_store_t *store = NULL;
  gloo_rs_context_options_t options;
  int32_t number;
  uint64_t slot;
  bool shares;
  CHECK_INVALID(gloo_rs_context_create(NULL, 0, 1, NULL, &context), "device is NULL");
  CHECK(context == NULL);
  CHECK_INVALID(gloo_rs_context_create(device, 0, 1, NULL, NULL), "context is NULL");
  CHECK_INVALID(gloo_rs_context_create(device, 0, 0, NULL, &context), "size is 0");
  CHECK_INVALID(gloo_rs_context_create(device, 0, -3, NULL, &context), "size is -3");
  CHECK_INVALID(gloo_rs_context_create(device, 4, 4, NULL, &context), "rank is 4");
  CHECK_INVALID(gloo_rs_context_create(device, -1, 4, NULL, &context), "rank is -1");
  gloo_rs_context_options_init(&options, sizeof options);
  options.timeout_ms = -2;
  CHECK_INVALID(gloo_rs_context_create(device, 0, 1, &options, &context), "timeout_ms is -2");
  gloo_rs_context_options_init(&options, sizeof options);
  options.connect = 2;
  CHECK_INVALID(gloo_rs_context_create(device, 0, 1, &options, &context), "connect is 2");
  options.struct_size = 0;
  CHECK_INVALID(gloo_rs_context_create(device, 0, 1, &options, &context), "gloo_rs_context_options_t");

  CHECK_OK(gloo_rs_context_create(device, 0, 2, NULL, &good));
  CHECK_OK(gloo_rs_store_create_in_process("arguments", &store));
  CHECK_INVALID(gloo_rs_context_connect(good, NULL), "store is NULL");
  CHECK_INVALID(gloo_rs_context_connect(NULL, store), "context is NULL");
  CHECK_INVALID(gloo_rs_context_connect((gloo_rs_context_t *)store, store), "not a live gloo_rs_context_t");
  CHECK_INVALID(gloo_rs_context_connect_from(good, NULL, 0), "parent is NULL");
  CHECK_INVALID(gloo_rs_context_rank(good, NULL), "rank is NULL");
  CHECK_INVALID(gloo_rs_context_rank(good, (int32_t *)((char *)&number + 1)), "not aligned to 4");
  CHECK_INVALID(gloo_rs_context_rank((gloo_rs_context_t *)((char *)good + 1), &number), "not a live");
  CHECK_INVALID(gloo_rs_context_next_slot(good, 1, NULL), "slot is NULL");
  CHECK_INVALID(gloo_rs_context_set_timeout(good, -7), "timeout_ms is -7");
  CHECK_INVALID(gloo_rs_context_shares_host(good, 2, &shares), "rank is 2");
  CHECK_INVALID(gloo_rs_context_shares_host(good, -1, &shares), "rank is -1");
  CHECK(gloo_rs_context_shares_host(good, 1, &shares) != GLOO_RS_OK); /* not connected */
  CHECK_OK(gloo_rs_context_next_slot(good, 3, &slot));
  gloo_rs_context_destroy(good);
  gloo_rs_store_destroy(store);
  gloo_rs_device_destroy(device);
}

static void connecting(void) {
  gloo_rs_context_t *context = connected_context();
  uint64_t first = 0, second = 0;
  int round, rank;
  for (rank = 0; rank < test_size; rank++) {
    bool shares = false;
    CHECK_OK(gloo_rs_context_shares_host(context, rank, &shares));
    CHECK(shares);
  }
  CHECK_OK(gloo_rs_context_next_slot(context, 3, &first));
  CHECK_OK(gloo_rs_context_next_slot(context, 1, &second));
  CHECK(second >= first + 3);
  for (round = 0; round < 5; round++) barrier(context);
  gloo_rs_context_destroy(context);
}

static void connecting_fully(void) {
  gloo_rs_device_t *device = create_device();
  gloo_rs_context_t *context = NULL;
  gloo_rs_context_options_t options;
  int rank;
  gloo_rs_context_options_init(&options, sizeof options);
  options.connect = GLOO_RS_CONNECT_FULL;
  options.timeout_ms = test_timeout_ms();
  CHECK_OK(gloo_rs_context_create(device, test_rank, test_size, &options, &context));
  connect_context(context, NULL, "full");
  for (rank = 0; rank < test_size; rank++) {
    gloo_rs_pair_t *pair = NULL;
    bool connected = false;
    if (rank == test_rank) continue;
    CHECK_OK(gloo_rs_context_pair(context, rank, &pair));
    CHECK_OK(gloo_rs_pair_is_connected(pair, &connected));
    CHECK(connected);
    gloo_rs_pair_destroy(pair);
  }
  barrier(context);
  gloo_rs_context_destroy(context);
  gloo_rs_device_destroy(device);
}

static void over_a_directory(void) {
  gloo_rs_context_t *context = create_context();
  gloo_rs_store_t *parent = open_store(), *store = NULL;
  char directory[] = "/tmp/gloo_rs_context_XXXXXX", command[64];
  void *name = NULL;
  size_t bytes = 0;
  if (test_rank == 0) {
    CHECK(mkdtemp(directory) != NULL);
    CHECK_OK(gloo_rs_store_set(parent, "directory", directory, sizeof directory));
  }
  CHECK_OK(gloo_rs_store_get(parent, "directory", test_timeout_ms(), &name, &bytes));
  CHECK_OK(gloo_rs_store_create_file((const char *)name, &store));
  connect_context(context, store, "directory");
  barrier(context);
  gloo_rs_store_destroy(store);
  barrier(context);
  if (test_rank == 0) {
    snprintf(command, sizeof command, "rm -r %s", directory);
    CHECK_INT(system(command), 0);
  }
  gloo_rs_free(name);
  gloo_rs_store_destroy(parent);
  gloo_rs_context_destroy(context);
}

static void out_of_a_context(void) {
  gloo_rs_context_t *parent = connected_context(), *children[2], *loose = create_context();
  int i;
  for (i = 0; i < 2; i++) {
    children[i] = create_context();
    CHECK_OK(gloo_rs_context_connect_from(children[i], parent, (uint32_t)i));
  }
  barrier(parent);
  gloo_rs_context_destroy(parent);
  for (i = 0; i < 2; i++) barrier(children[i]);
  gloo_rs_context_destroy(children[0]);
  barrier(children[1]);
  /* A parent that is not connected cannot be used. */
  if (test_size > 1) {
    gloo_rs_context_t *child = create_context();
    CHECK_OK(gloo_rs_context_set_timeout(child, 100));
    CHECK_FAILS(gloo_rs_context_connect_from(child, loose, 0), GLOO_RS_ERROR_INVALID_OPERATION, "not connected");
    gloo_rs_context_destroy(child);
  }
  gloo_rs_context_destroy(loose);
  gloo_rs_context_destroy(children[1]);
}

/* One rank does not come: the errors on the others name it. */
static void a_rank_does_not_come(void) {
  gloo_rs_context_t *context = create_context();
  gloo_rs_store_t *store = open_store();
  int64_t limit = test_is_slow() ? 6000 : 300;
  if (test_rank != 2) {
    CHECK_OK(gloo_rs_context_set_timeout(context, limit));
    CHECK_FAILS(gloo_rs_context_connect(context, store), GLOO_RS_ERROR_TIMEOUT, "2");
    CHECK_CONTAINS(gloo_rs_last_error_message(), "rank");
  }
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
}

/* ---- closing and destroying while another thread waits ---- */

struct waiter {
  gloo_rs_context_t *context;
  gloo_rs_status_t status;
  char message[256];
};

static void *wait_in_barrier(void *argument) {
  struct waiter *waiter = (struct waiter *)argument;
  waiter->status = gloo_rs_barrier(waiter->context);
  snprintf(waiter->message, sizeof waiter->message, "%s", gloo_rs_last_error_message());
  return NULL;
}

/* Rank 0 waits for rank 1, which does not come before `end` has ended rank 0's wait. */
static void end_a_wait(void (*end)(gloo_rs_context_t *), int gone) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_store_t *store = open_store();
  static const char *const over = "over";
  barrier(context);
  if (test_rank == 0) {
    struct waiter waiter = {context, GLOO_RS_OK, ""};
    pthread_t thread = start_thread(wait_in_barrier, &waiter);
    int64_t began = now_ms();
    sleep_ms(test_is_slow() ? 2000 : 100);
    end(context);
    join_thread(thread);
    CHECK(now_ms() - began < test_timeout_ms());
    CHECK_INT(waiter.status, GLOO_RS_ERROR_CLOSED);
    CHECK_CONTAINS(waiter.message, "barrier");
    CHECK_OK(gloo_rs_store_set(store, over, "", 0));
    if (!gone) {
      CHECK_FAILS(gloo_rs_barrier(context), GLOO_RS_ERROR_CLOSED, "closed");
    }
  } else {
    CHECK_OK(gloo_rs_store_wait(store, &over, 1, test_timeout_ms()));
    gone = 0;
  }
  gloo_rs_store_destroy(store);
  if (!gone) gloo_rs_context_destroy(context);
}

static void close_twice(gloo_rs_context_t *context) {
  CHECK_OK(gloo_rs_context_close(context));
  CHECK_OK(gloo_rs_context_close(context));
}

static void closing_ends_waits(void) { end_a_wait(close_twice, 0); }

static void destroying_ends_waits(void) { end_a_wait(gloo_rs_context_destroy, 1); }

static void *connect_in_vain(void *argument) {
  struct waiter *waiter = (struct waiter *)argument;
  gloo_rs_store_t *store = open_store();
  waiter->status = gloo_rs_context_connect(waiter->context, store);
  gloo_rs_store_destroy(store);
  return NULL;
}

static void closing_a_context_that_connects(void) {
  struct waiter waiter = {NULL, GLOO_RS_OK, ""};
  gloo_rs_device_t *device = create_device();
  pthread_t thread;
  int64_t began = now_ms();
  CHECK_OK(gloo_rs_context_create(device, 0, 2, NULL, &waiter.context));
  CHECK_OK(gloo_rs_context_set_timeout(waiter.context, 1000));
  thread = start_thread(connect_in_vain, &waiter);
  sleep_ms(100);
  CHECK_OK(gloo_rs_context_close(waiter.context));
  join_thread(thread);
  /* A wait for the store ends only by its own timeout. */
  CHECK(waiter.status == GLOO_RS_ERROR_CLOSED || waiter.status == GLOO_RS_ERROR_TIMEOUT);
  CHECK(now_ms() - began < test_timeout_ms());
  gloo_rs_context_destroy(waiter.context);
  gloo_rs_device_destroy(device);
}

/* Handles destroyed in every order: each keeps alive what it needs. */
static void destroying_in_any_order(void) {
  gloo_rs_device_t *device = create_device();
  gloo_rs_context_t *context = NULL;
  gloo_rs_pair_t *pair = NULL;
  gloo_rs_unbound_buffer_t *buffer = NULL;
  int peer = 1 - test_rank, data[2];
  int32_t rank = -1;
  CHECK_OK(gloo_rs_context_create(device, test_rank, test_size, NULL, &context));
  gloo_rs_device_destroy(device);
  connect_context(context, NULL, "order");
  CHECK_OK(gloo_rs_context_pair(context, peer, &pair));
  CHECK_OK(gloo_rs_unbound_buffer_create(context, data, sizeof data, &buffer));
  barrier(context);
  gloo_rs_context_destroy(context);
  gloo_rs_pair_destroy(pair);
  data[0] = test_rank + 40;
  data[1] = -1;
  CHECK_OK(gloo_rs_unbound_buffer_send(buffer, peer, 9, 0, sizeof data[0]));
  CHECK_OK(gloo_rs_unbound_buffer_recv(buffer, peer, 9, sizeof data[0], sizeof data[0]));
  CHECK_OK(gloo_rs_unbound_buffer_wait_send(buffer, test_timeout_ms(), &rank));
  CHECK_INT(rank, peer);
  CHECK_OK(gloo_rs_unbound_buffer_wait_recv(buffer, test_timeout_ms(), &rank, NULL));
  CHECK_INT(rank, peer);
  CHECK_INT(data[1], peer + 40);
  gloo_rs_unbound_buffer_destroy(buffer);
}

/* The ranks have different tokens: both get an error that says so. */
static void tokens(void) {
  gloo_rs_device_t *device = create_device();
  gloo_rs_store_t *store = open_store();
  gloo_rs_context_t *context = NULL;
  gloo_rs_context_options_t options;
  gloo_rs_context_options_init(&options, sizeof options);
  CHECK(options.token == NULL);
  options.timeout_ms = test_timeout_ms();
  options.connect = GLOO_RS_CONNECT_FULL;
  options.token = test_rank == 0 ? "swordfish" : "herring";
  CHECK_OK(gloo_rs_context_create(device, test_rank, test_size, &options, &context));
  CHECK_FAILS(gloo_rs_context_connect(context, store), GLOO_RS_ERROR_MISMATCH, "GLOO_RS_TOKEN");
  CHECK(strstr(gloo_rs_last_error_message(), "swordfish") == NULL);
  CHECK(strstr(gloo_rs_last_error_message(), "herring") == NULL);
  /* Until the other rank has the error, too. */
  if (test_rank == 0) {
    CHECK_OK(gloo_rs_store_wait(store, (const char *const[]){"told"}, 1, test_timeout_ms()));
  } else {
    CHECK_OK(gloo_rs_store_set(store, "told", "", 0));
  }
  gloo_rs_context_destroy(context);
  gloo_rs_store_destroy(store);
  gloo_rs_device_destroy(device);
}

/* ---- tuning: only rank 0's is used, and its errors are reported on all ranks ---- */

static void tuned(void) {
  gloo_rs_device_t *device = create_device();
  gloo_rs_context_t *context = NULL;
  gloo_rs_store_t *store = open_store(), *own = NULL;
  gloo_rs_context_options_t options;
  gloo_rs_context_options_init(&options, sizeof options);
  CHECK(options.tuning == NULL);
  options.timeout_ms = test_timeout_ms();
  options.tuning = test_rank == 0 ? "/no/such/tuning.toml" : "default";
  CHECK_OK(gloo_rs_context_create(device, test_rank, test_size, &options, &context));
  CHECK_OK(gloo_rs_store_create_prefix("wrong", store, &own));
  CHECK(gloo_rs_context_connect(context, own) != GLOO_RS_OK);
  CHECK_CONTAINS(gloo_rs_last_error_message(), "/no/such/tuning.toml");
  if (test_rank != 0) CHECK_CONTAINS(gloo_rs_last_error_message(), "rank 0: ");
  gloo_rs_context_destroy(context);
  gloo_rs_store_destroy(own);
  gloo_rs_store_destroy(store);

  /* Only rank 0's is read. */
  options.tuning = test_rank == 0 ? "default" : "/no/such/tuning.toml";
  CHECK_OK(gloo_rs_context_create(device, test_rank, test_size, &options, &context));
  connect_context(context, NULL, "right");
  barrier(context);
  gloo_rs_context_destroy(context);

  CHECK_INT(setenv("GLOO_RS_ALGORITHM", "broadcast:binomial,allreduce:rong", 1), 0);
  CHECK_INVALID(gloo_rs_context_create(device, test_rank, test_size, &options, &context),
                "GLOO_RS_ALGORITHM: \"allreduce:rong\"");
  CHECK_INT(unsetenv("GLOO_RS_ALGORITHM"), 0);
  gloo_rs_device_destroy(device);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"creating", 1, creating, -1},
      {"bad_arguments", 1, bad_arguments, -1},
      {"connecting", 1, connecting, -1},
      {"connecting", 2, connecting, -1},
      {"connecting", 4, connecting, -1},
      {"connecting_fully", 4, connecting_fully, -1},
      {"tokens", 2, tokens, -1},
      {"tuned", 3, tuned, -1},
      {"over_a_directory", 3, over_a_directory, -1},
      {"out_of_a_context", 3, out_of_a_context, -1},
      {"a_rank_does_not_come", 3, a_rank_does_not_come, -1},
      {"closing_ends_waits", 2, closing_ends_waits, -1},
      {"destroying_ends_waits", 2, destroying_ends_waits, -1},
      {"closing_a_context_that_connects", 1, closing_a_context_that_connects, -1},
      {"destroying_in_any_order", 2, destroying_in_any_order, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
