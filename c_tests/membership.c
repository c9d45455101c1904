/* Aborts, agreements and smaller contexts: on healthy contexts, and on such that have lost ranks. */
#include "members.h"

static bool is_aborted(const gloo_rs_context_t *context) {
  bool aborted = false;
  CHECK_OK(gloo_rs_context_is_aborted(context, &aborted));
  return aborted;
}

/* All calls of all ranks end, and later ones are refused. */
static void an_abort_ends_the_calls_of_all_ranks(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_unbound_buffer_t *buffer = NULL;
  int32_t cells[4] = {1, 2, 3, 4}, size = 0;
  bool broken = false;
  CHECK(!is_aborted(context));
  meet(context);
  CHECK_OK(gloo_rs_unbound_buffer_create(context, cells, sizeof cells, &buffer));
  if (test_rank == 0) {
    CHECK_OK(gloo_rs_context_abort(context, "the loss is not a number"));
    CHECK_OK(gloo_rs_context_abort(context, "a later one"));
  } else {
    CHECK_FAILS(sum(context, cells, 4), GLOO_RS_ERROR_ABORTED, "rank 0 has aborted this context: the loss is not a number");
    CHECK_ERROR(GLOO_RS_ERROR_ABORTED, 0, "allreduce");
  }
  CHECK(is_aborted(context));
  CHECK_FAILS(gloo_rs_barrier(context), GLOO_RS_ERROR_ABORTED, "rank 0 has aborted this context: the loss is not a number");
  CHECK_ERROR(GLOO_RS_ERROR_ABORTED, 0, "barrier");
  if (gloo_rs_unbound_buffer_recv(buffer, (test_rank + 1) % test_size, 1, 0, sizeof cells) == GLOO_RS_OK)
    CHECK_FAILS(gloo_rs_unbound_buffer_wait_recv(buffer, test_timeout_ms(), NULL, NULL), GLOO_RS_ERROR_ABORTED, "rank 0 has");
  CHECK_OK(gloo_rs_context_broken(context, &broken, NULL));
  CHECK(broken);
  CHECK_OK(gloo_rs_context_size(context, &size));
  gloo_rs_unbound_buffer_destroy(buffer);
  CHECK_OK(gloo_rs_context_close(context));
  CHECK(is_aborted(context));
  gloo_rs_context_destroy(context);
}

static void *abort_soon(void *context) {
  sleep_ms(50);
  CHECK_OK(gloo_rs_context_abort((gloo_rs_context_t *)context, NULL));
  return NULL;
}

/* Nobody else is there yet. */
static void an_abort_ends_connecting(void) {
  gloo_rs_device_t *device = create_device();
  gloo_rs_store_t *store = open_store();
  gloo_rs_context_t *context = NULL;
  pthread_t thread;
  CHECK_OK(gloo_rs_context_create(device, 0, 2, NULL, &context));
  thread = start_thread(abort_soon, context);
  CHECK_FAILS(gloo_rs_context_connect(context, store), GLOO_RS_ERROR_ABORTED, "rank 0 has aborted this context: no reason was given");
  CHECK_ERROR(GLOO_RS_ERROR_ABORTED, 0, "connect");
  join_thread(thread);
  gloo_rs_context_destroy(context);
  gloo_rs_store_destroy(store);
  gloo_rs_device_destroy(device);
}

/* The bits that all have, whatever the state of the context. */
static void ranks_agree(void) {
  gloo_rs_context_t *context = connected_context();
  uint64_t flags = ~(UINT64_C(1) << test_rank);
  size_t n = 9;
  CHECK_OK(gloo_rs_context_agree(context, &flags, test_timeout_ms()));
  CHECK(flags == UINT64_MAX << test_size);
  CHECK_OK(gloo_rs_context_lost_ranks(context, NULL, 0, &n));
  CHECK_INT(n, 0);
  if (test_rank == 1) CHECK_OK(gloo_rs_context_abort(context, "agreements go on"));
  flags = 6 + (uint64_t)(test_rank == 0);
  CHECK_OK(gloo_rs_context_agree(context, &flags, GLOO_RS_TIMEOUT_DEFAULT));
  CHECK_INT(flags, 6);
  gloo_rs_context_destroy(context);
}

/* The others learn which ranks are lost, and go on without them. */
static void continue_without(int lost) {
  gloo_rs_context_t *context = connected_context(), *smaller = NULL, *again = NULL;
  int32_t cells[1000], ranks[2] = {-1, -1};
  uint64_t flags = 3;
  size_t i, n = 0;
  meet(context);
  if (test_rank == lost) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
  for (i = 0; i < 1000; i++) cells[i] = 1;
  CHECK_INT(sum(context, cells, 1000), GLOO_RS_ERROR_CONNECTION_LOST);
  CHECK_FAILS(gloo_rs_context_agree(context, &flags, test_timeout_ms()), GLOO_RS_ERROR_CONNECTION_LOST, "is lost");
  CHECK_ERROR(GLOO_RS_ERROR_CONNECTION_LOST, lost, "agree");
  CHECK_INT(flags, 3);
  CHECK_OK(gloo_rs_context_lost_ranks(context, ranks, 2, &n));
  CHECK(n == 1 && ranks[0] == lost && ranks[1] == -1);
  CHECK_OK(gloo_rs_context_lost_ranks(context, NULL, 0, &n));
  CHECK_INT(n, 1);
  /* They know by now. */
  CHECK_OK(gloo_rs_context_agree(context, &flags, test_timeout_ms()));
  CHECK_OK(gloo_rs_context_shrink(context, test_timeout_ms(), &smaller));
  CHECK_INT(size_of(smaller), test_size - 1);
  CHECK_INT(rank_of(smaller), test_rank - (test_rank > lost));
  gloo_rs_context_destroy(context);
  for (i = 0; i < 1000; i++) cells[i] = (int32_t)i;
  CHECK_OK(sum(smaller, cells, 1000));
  for (i = 0; i < 1000; i++) CHECK_INT(cells[i], (int32_t)i * (test_size - 1));
  CHECK_OK(gloo_rs_context_shrink(smaller, GLOO_RS_TIMEOUT_DEFAULT, &again));
  CHECK_OK(gloo_rs_barrier(again));
  gloo_rs_context_destroy(smaller);
  CHECK_OK(gloo_rs_barrier(again));
  gloo_rs_context_destroy(again);
}

/* The lost rank has led the agreements, or not. */
static void the_first_rank_is_killed(void) { continue_without(0); }
static void the_last_rank_is_killed(void) { continue_without(test_size - 1); }

static void invalid_arguments(void) {
  gloo_rs_context_t *context = create_context(), *smaller = (gloo_rs_context_t *)&context;
  uint64_t flags = 5;
  bool aborted = false;
  size_t n = 0;
  CHECK_INVALID(gloo_rs_context_abort(NULL, ""), "context");
  CHECK_INVALID(gloo_rs_context_abort(context, "\xff"), "reason");
  CHECK(!is_aborted(context));
  CHECK_INVALID(gloo_rs_context_is_aborted(NULL, &aborted), "context");
  CHECK_INVALID(gloo_rs_context_is_aborted(context, NULL), "aborted");
  CHECK_INVALID(gloo_rs_context_agree(NULL, &flags, 0), "context");
  CHECK_INVALID(gloo_rs_context_agree(context, NULL, 0), "flags");
  CHECK_INVALID(gloo_rs_context_agree(context, &flags, -2), "timeout");
  CHECK_INVALID(gloo_rs_context_lost_ranks(NULL, NULL, 0, &n), "context");
  CHECK_INVALID(gloo_rs_context_lost_ranks(context, NULL, 0, NULL), "n is NULL");
  CHECK_INVALID(gloo_rs_context_shrink(NULL, 0, &smaller), "context");
  CHECK(smaller == NULL);
  CHECK_INVALID(gloo_rs_context_shrink(context, 0, NULL), "smaller");
  CHECK_FAILS(gloo_rs_context_agree(context, &flags, 0), GLOO_RS_ERROR_INVALID_OPERATION, "not connected");
  CHECK_FAILS(gloo_rs_context_shrink(context, 0, &smaller), GLOO_RS_ERROR_INVALID_OPERATION, "not connected");
  CHECK_INT(flags, 5);
  gloo_rs_context_destroy(context);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"an_abort_ends_the_calls_of_all_ranks", 2, an_abort_ends_the_calls_of_all_ranks, -1},
      {"an_abort_ends_the_calls_of_all_ranks", 5, an_abort_ends_the_calls_of_all_ranks, -1},
      {"an_abort_ends_connecting", 1, an_abort_ends_connecting, -1},
      {"ranks_agree", 2, ranks_agree, -1},
      {"ranks_agree", 5, ranks_agree, -1},
      {"the_first_rank_is_killed", 3, the_first_rank_is_killed, 0},
      {"the_last_rank_is_killed", 4, the_last_rank_is_killed, 3},
      {"invalid_arguments", 2, invalid_arguments, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
