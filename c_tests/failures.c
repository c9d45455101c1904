/* Ranks that die, hang, or disagree: the others get an error that says which, in time. */
#include "harness.h"

#define COUNT 200000

static int calls;

/* Connects all ranks, and returns once all have come so far: a failure that follows hits nobody in the barrier. */
static void meet(gloo_rs_context_t *context) {
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
  gloo_rs_allreduce_options_t options;
  gloo_rs_status_t status;
  size_t i;
  for (i = 0; i < COUNT; i++) cells[i] = test_rank + 1;
  outputs[0] = cells;
  gloo_rs_allreduce_options_init(&options, sizeof options);
  options.algorithm = "ring_segmented";
  options.max_segment_bytes = 16384;
  options.timeout_ms = timeout_ms;
  options.data_type = type;
  options.function = function;
  options.outputs = outputs;
  options.num_outputs = 1;
  options.count = count;
  status = gloo_rs_allreduce(context, &options);
  free(cells);
  return status;
}

static void a_rank_is_killed(void) {
  gloo_rs_context_t *context = connected_context();
  int64_t began;
  gloo_rs_status_t status;
  meet(context);
  began = now_ms();
  status = allreduce(context, die_in_the_middle, COUNT, GLOO_RS_INT32, test_timeout_ms());
  CHECK(status == GLOO_RS_ERROR_CONNECTION_LOST || status == GLOO_RS_ERROR_ABORTED);
  CHECK_CONTAINS(gloo_rs_last_error_message(), "rank 1");
  CHECK_CONTAINS(gloo_rs_last_error_message(), "allreduce");
  CHECK(now_ms() - began < test_timeout_ms());
  gloo_rs_context_destroy(context);
}

/* A rank that dies while nobody talks to it is noticed by the next operation. */
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
  CHECK(status == GLOO_RS_ERROR_CONNECTION_LOST || status == GLOO_RS_ERROR_ABORTED);
  CHECK_CONTAINS(gloo_rs_last_error_message(), "rank 2");
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
  if (status == GLOO_RS_OK) status = gloo_rs_unbound_buffer_wait_recv(buffer, test_timeout_ms(), NULL);
  CHECK_INT(status, GLOO_RS_ERROR_CONNECTION_LOST);
  CHECK_CONTAINS(gloo_rs_last_error_message(), "rank 1");
  gloo_rs_unbound_buffer_destroy(buffer);
  gloo_rs_context_destroy(context);
}

/* Rank 1 does not take part: the others say whom they wait for. */
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
    /* Whoever gives up first tells the others. In a ring of three, rank 2 waits for rank 1, and rank 0 for rank 2. */
    if (status != GLOO_RS_ERROR_TIMEOUT) CHECK_FAILS(status, GLOO_RS_ERROR_CONNECTION_LOST, "gave up");
    CHECK_CONTAINS(gloo_rs_last_error_message(), test_size == 2 ? "from rank 1" : "from rank");
    CHECK_CONTAINS(gloo_rs_last_error_message(), "allreduce");
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
    CHECK(status == GLOO_RS_ERROR_MISMATCH || status == GLOO_RS_ERROR_ABORTED);
    CHECK_CONTAINS(gloo_rs_last_error_message(), "rank");
    gloo_rs_context_destroy(context);
  }
  gloo_rs_store_destroy(base);
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
  };
  return RUN_TESTS(argc, argv, tests);
}
