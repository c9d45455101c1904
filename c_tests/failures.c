/* Ranks that die, hang, or disagree: the others get, in time, an error that names the rank. */
#include "harness.h"

#define COUNT 200000

static int calls;

/* On rank 1 the process ends in the middle of the reduction. */
static int32_t die_in_the_middle(void *into, const void *left, const void *right, size_t count, void *user) {
  size_t i;
  (void)user;
  if (test_rank == 1 && ++calls == 2) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
  for (i = 0; i < count; i++) ((int32_t *)into)[i] = ((const int32_t *)left)[i] + ((const int32_t *)right)[i];
  return 0;
}

static gloo_rs_status_t allreduce(gloo_rs_context_t *context, gloo_rs_reduce_fn_t function, size_t count,
                                  gloo_rs_data_type_t type, int64_t timeout_ms) {
  int32_t *cells = (int32_t *)check_alloc(COUNT * sizeof *cells);
  void *outputs[1];
  gloo_rs_collective_options_t options;
  gloo_rs_status_t status;
  size_t i;
  for (i = 0; i < COUNT; i++) cells[i] = test_rank + 1;
  outputs[0] = cells;
  gloo_rs_collective_options_init(&options, sizeof options);
  options.algorithm = "ring_segmented";
  options.max_segment_bytes = 16384;
  options.timeout_ms = timeout_ms;
  options.data_type = type;
  options.function = function;
  options.outputs = outputs;
  options.num_outputs = 1;
  options.count = count;
  status = gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options);
  free(cells);
  return status;
}

/* The context is broken and gives the reason; a new one of all ranks but `lost`, over the same store, works. */
static void continue_without(gloo_rs_context_t *context, int lost) {
  gloo_rs_context_options_t options;
  gloo_rs_context_t *next = NULL;
  gloo_rs_device_t *device = create_device();
  gloo_rs_error_t why;
  char part[16];
  const char *reason;
  bool broken = false;
  CHECK_OK(gloo_rs_context_broken(context, &broken, NULL));
  CHECK(broken);
  gloo_rs_error_init(&why, sizeof why);
  CHECK_OK(gloo_rs_context_broken(context, &broken, &why));
  snprintf(part, sizeof part, "rank %d", lost);
  CHECK_CONTAINS(why.message, part);
  CHECK_TEXT(why.message, gloo_rs_last_error_message());
  CHECK_INT(why.status, GLOO_RS_ERROR_CONNECTION_LOST);
  CHECK_INT(why.rank, lost);
  reason = strstr(why.message, "rank");
  CHECK(reason != NULL);
  reason = strdup(reason);
  CHECK_FAILS(gloo_rs_barrier(context), GLOO_RS_ERROR_CONNECTION_LOST, "the context is broken");
  CHECK_CONTAINS(gloo_rs_last_error_message(), reason);
  CHECK_ERROR(GLOO_RS_ERROR_CONNECTION_LOST, lost, "barrier");
  free((void *)reason);
  gloo_rs_context_destroy(context);
  gloo_rs_context_options_init(&options, sizeof options);
  options.timeout_ms = test_timeout_ms();
  CHECK_OK(gloo_rs_context_create(device, test_rank - (test_rank > lost), test_size - 1, &options, &next));
  connect_context(next, NULL, "go on");
  CHECK_OK(allreduce(next, NULL, COUNT, GLOO_RS_INT32, test_timeout_ms()));
  CHECK_OK(gloo_rs_context_broken(next, &broken, &why));
  CHECK(!broken && why.status == GLOO_RS_OK && why.rank == -1 && *why.message == '\0' && *why.operation == '\0');
  gloo_rs_context_destroy(next);
  gloo_rs_device_destroy(device);
}

static void a_rank_is_killed(void) {
  gloo_rs_context_t *context = connected_context();
  int64_t began;
  gloo_rs_status_t status;
  meet(context);
  began = now_ms();
  status = allreduce(context, die_in_the_middle, COUNT, GLOO_RS_INT32, test_timeout_ms());
  CHECK_INT(status, GLOO_RS_ERROR_CONNECTION_LOST);
  CHECK_CONTAINS(gloo_rs_last_error_message(), "rank 1");
  CHECK_CONTAINS(gloo_rs_last_error_message(), "allreduce");
  CHECK_ERROR(GLOO_RS_ERROR_CONNECTION_LOST, 1, "allreduce");
  CHECK(now_ms() - began < test_timeout_ms());
  continue_without(context, 1);
}

/* A rank that dies while it is idle is noticed by the next operation. */
static void a_rank_is_killed_between_operations(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_status_t status = GLOO_RS_OK;
  int round;
  meet(context);
  if (test_rank == 2) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
  for (round = 0; round < 3 && status == GLOO_RS_OK; round++)
    status = allreduce(context, NULL, 1000, GLOO_RS_INT32, test_timeout_ms());
  CHECK_INT(status, GLOO_RS_ERROR_CONNECTION_LOST);
  CHECK_CONTAINS(gloo_rs_last_error_message(), "rank 2");
  CHECK_ERROR(GLOO_RS_ERROR_CONNECTION_LOST, 2, "allreduce");
  gloo_rs_context_destroy(context);
}

/* A receive from a rank that dies. */
static void the_sender_is_killed(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_unbound_buffer_t *buffer = NULL;
  int cell = 0;
  gloo_rs_status_t status;
  meet(context);
  if (test_rank == 1) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
  CHECK_OK(gloo_rs_unbound_buffer_create(context, &cell, sizeof cell, &buffer));
  status = gloo_rs_unbound_buffer_recv(buffer, 1, 2, 0, sizeof cell);
  if (status == GLOO_RS_OK) status = gloo_rs_unbound_buffer_wait_recv(buffer, test_timeout_ms(), NULL, NULL);
  CHECK_INT(status, GLOO_RS_ERROR_CONNECTION_LOST);
  CHECK_CONTAINS(gloo_rs_last_error_message(), "rank 1");
  CHECK_ERROR(GLOO_RS_ERROR_CONNECTION_LOST, 1, "recv");
  gloo_rs_unbound_buffer_destroy(buffer);
  gloo_rs_context_destroy(context);
}

/* Rank 1 does not take part: the errors of the others name the rank that they wait for. */
static void a_rank_hangs(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_store_t *store = open_store();
  static const char *const done[] = {"done0", "done2"};
  int64_t limit = test_is_slow() ? 6000 : 300, began;
  gloo_rs_status_t status;
  meet(context);
  if (test_rank == 1) {
    CHECK_OK(gloo_rs_store_wait(store, done, (size_t)test_size - 1, test_timeout_ms()));
  } else {
    began = now_ms();
    status = allreduce(context, NULL, COUNT, GLOO_RS_INT32, limit);
    /* The rank that fails first sends its reason. Rank 2 of a ring of three waits for rank 1, rank 0 for rank 2. */
    if (status != GLOO_RS_ERROR_TIMEOUT) CHECK_FAILS(status, GLOO_RS_ERROR_CONNECTION_LOST, "gave up");
    CHECK_CONTAINS(gloo_rs_last_error_message(), test_size == 2 ? "from rank 1" : "from rank");
    CHECK_CONTAINS(gloo_rs_last_error_message(), "allreduce");
    if (test_size == 2) CHECK_ERROR(GLOO_RS_ERROR_TIMEOUT, 1, "allreduce");
    CHECK(now_ms() - began < test_timeout_ms());
    CHECK_OK(gloo_rs_store_set(store, done[test_rank / 2], "", 0));
  }
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
}

/* Ranks disagree about the count, or about the type. */
static void ranks_disagree(void) {
  size_t counts[2] = {1000, 1001};
  gloo_rs_data_type_t types[2] = {GLOO_RS_INT32, GLOO_RS_UINT32};
  gloo_rs_store_t *base = open_store();
  int what;
  for (what = 0; what < 2; what++) {
    gloo_rs_context_t *context = create_context();
    gloo_rs_status_t status;
    connect_context(context, base, what == 0 ? "counts" : "types");
    status = allreduce(context, NULL, counts[what == 0 ? test_rank : 0], types[what == 0 ? 0 : test_rank],
                       test_timeout_ms());
    CHECK_INT(status, GLOO_RS_ERROR_MISMATCH);
    CHECK_CONTAINS(gloo_rs_last_error_message(), "rank");
    gloo_rs_context_destroy(context);
  }
  gloo_rs_store_destroy(base);
}

/* With check_calls all ranks get an error that names all calls, and the context stays usable. */
static void calls_are_compared(void) {
  int by_environment;
  for (by_environment = 0; by_environment < 2; by_environment++) {
    gloo_rs_context_t *context = NULL;
    gloo_rs_device_t *device = create_device();
    gloo_rs_context_options_t options;
    bool broken = true;
    gloo_rs_context_options_init(&options, sizeof options);
    CHECK_INT(options.check_calls, GLOO_RS_CHECK_CALLS_DEFAULT);
    options.timeout_ms = test_timeout_ms();
    options.check_calls = 3;
    CHECK_INVALID(gloo_rs_context_create(device, 0, 1, &options, &context), "check_calls is 3");
    options.check_calls = by_environment ? GLOO_RS_CHECK_CALLS_DEFAULT : GLOO_RS_CHECK_CALLS_ON;
    if (by_environment) setenv("GLOO_RS_CHECK_CALLS", "1", 1);
    CHECK_OK(gloo_rs_context_create(device, test_rank, test_size, &options, &context));
    gloo_rs_device_destroy(device);
    connect_context(context, NULL, by_environment ? "by environment" : "by option");
    CHECK_FAILS(allreduce(context, NULL, test_rank == 2 ? 999 : 1000, GLOO_RS_INT32, test_timeout_ms()),
                GLOO_RS_ERROR_MISMATCH,
                ": ranks disagree about this call: rank 2 calls allreduce ring_segmented of 999 int32 by sum; "
                "ranks 0, 1, 3 call allreduce ring_segmented of 1000 int32 by sum");
    CHECK_ERROR(GLOO_RS_ERROR_MISMATCH, 2, "allreduce");
    CHECK_OK(gloo_rs_context_broken(context, &broken, NULL));
    CHECK(!broken);
    CHECK_OK(allreduce(context, NULL, 1000, GLOO_RS_INT32, test_timeout_ms()));
    barrier(context);
    gloo_rs_context_destroy(context);
  }
  setenv("GLOO_RS_CHECK_CALLS", "yes", 1);
  {
    gloo_rs_context_t *context = NULL;
    gloo_rs_device_t *device = create_device();
    CHECK_INVALID(gloo_rs_context_create(device, 0, 1, NULL, &context), "GLOO_RS_CHECK_CALLS is \"yes\"; it must be 0 or 1");
    gloo_rs_device_destroy(device);
  }
}

/* Calls in a child by fork are refused; it may destroy the inherited handles, and does not affect the parent. */
static void a_rank_forks(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_device_t *device = create_device();
  gloo_rs_unbound_buffer_t *buffer = NULL;
  int cell = 0, status = -1;
  barrier(context);
  CHECK_OK(gloo_rs_unbound_buffer_create(context, &cell, sizeof cell, &buffer));
  if (test_rank == 0) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      gloo_rs_context_t *other = NULL;
      bool broken;
      CHECK_FAILS(allreduce(context, NULL, 10, GLOO_RS_INT32, 1000), GLOO_RS_ERROR_INVALID_OPERATION, "a child by fork");
      CHECK_FAILS(gloo_rs_context_broken(context, &broken, NULL), GLOO_RS_ERROR_INVALID_OPERATION, "a child by fork");
      CHECK_FAILS(gloo_rs_context_create(device, 0, 1, NULL, &other), GLOO_RS_ERROR_INVALID_OPERATION, "a child by fork");
      CHECK_FAILS(gloo_rs_unbound_buffer_send(buffer, 1, 0, 0, sizeof cell), GLOO_RS_ERROR_INVALID_OPERATION, "a child by fork");
      gloo_rs_unbound_buffer_destroy(buffer);
      gloo_rs_context_destroy(context);
      gloo_rs_device_destroy(device);
      /* Another program, for which valgrind makes its own account: here it would miss what the device's thread holds,
       * which is the parent's. */
      execlp("true", "true", (char *)NULL);
      _exit(127);
    }
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
  }
  CHECK_OK(allreduce(context, NULL, COUNT, GLOO_RS_INT32, test_timeout_ms()));
  barrier(context);
  gloo_rs_unbound_buffer_destroy(buffer);
  gloo_rs_context_destroy(context);
  gloo_rs_device_destroy(device);
}

static void *connect_in_vain(void *context) {
  gloo_rs_store_t *base = open_store(), *store = NULL;
  char prefix[16];
  int32_t rank = 0;
  /* The other one's says that it was closed. */
  CHECK_OK(gloo_rs_context_rank((gloo_rs_context_t *)context, &rank));
  snprintf(prefix, sizeof prefix, "of rank %d", (int)rank);
  CHECK_OK(gloo_rs_store_create_prefix(prefix, base, &store));
  CHECK_FAILS(gloo_rs_context_connect((gloo_rs_context_t *)context, store), GLOO_RS_ERROR_CLOSED, "has closed this context");
  gloo_rs_store_destroy(store);
  gloo_rs_store_destroy(base);
  return NULL;
}

/* A thread waits for a rank that does not come; another closes the context. */
static void connecting_ends_when_the_context_is_closed(void) {
  int how;
  for (how = 0; how < 2; how++) {
    gloo_rs_context_t *context = NULL;
    gloo_rs_device_t *device = create_device();
    gloo_rs_context_options_t options;
    pthread_t thread;
    int64_t began;
    gloo_rs_context_options_init(&options, sizeof options);
    options.timeout_ms = test_timeout_ms();
    /* Rank 0 waits for the others' addresses, rank 1 for the list. */
    CHECK_OK(gloo_rs_context_create(device, how, 2 + how, &options, &context));
    gloo_rs_device_destroy(device);
    thread = start_thread(connect_in_vain, context);
    sleep_ms(200);
    began = now_ms();
    if (how == 0) CHECK_OK(gloo_rs_context_close(context));
    if (how == 1) gloo_rs_context_destroy(context);
    join_thread(thread);
    CHECK(now_ms() - began < test_timeout_ms() / 2);
    if (how == 0) gloo_rs_context_destroy(context);
  }
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"a_rank_is_killed", 2, a_rank_is_killed, 1},
      {"a_rank_is_killed", 4, a_rank_is_killed, 1},
      {"a_rank_is_killed_between_operations", 4, a_rank_is_killed_between_operations, 2},
      {"the_sender_is_killed", 2, the_sender_is_killed, 1},
      {"a_rank_hangs", 2, a_rank_hangs, -1},
      {"a_rank_hangs", 3, a_rank_hangs, -1},
      {"ranks_disagree", 2, ranks_disagree, -1},
      {"calls_are_compared", 4, calls_are_compared, -1},
      {"a_rank_forks", 2, a_rank_forks, -1},
      {"connecting_ends_when_the_context_is_closed", 1, connecting_ends_when_the_context_is_closed, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
