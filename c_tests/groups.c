/* Contexts that are connected by an allgather of the caller's, and contexts out of parts of others. */
#include "harness.h"

/* ---- gloo_rs_context_connect_oob ---- */

struct exchange {
  gloo_rs_store_t *store;
  int calls;
  /* What the last call returns. */
  int answer, at;
};

/* An allgather over a store. */
static gloo_rs_status_t allgather(const void *input, void *output, size_t bytes, void *user) {
  struct exchange *exchange = (struct exchange *)user;
  char key[32];
  int rank;
  exchange->calls++;
  snprintf(key, sizeof key, "%d/%d", exchange->calls, test_rank);
  CHECK_OK(gloo_rs_store_set(exchange->store, key, input, bytes));
  for (rank = 0; rank < test_size; rank++) {
    void *value = NULL;
    size_t length = 0;
    snprintf(key, sizeof key, "%d/%d", exchange->calls, rank);
    CHECK_OK(gloo_rs_store_get(exchange->store, key, test_timeout_ms(), &value, &length));
    CHECK_INT(length, bytes);
    memcpy((char *)output + (size_t)rank * bytes, value, bytes);
    gloo_rs_free(value);
  }
  return (gloo_rs_status_t)(exchange->calls == exchange->at ? exchange->answer : GLOO_RS_OK);
}

/* The ranks of `context`, and that it works. */
static void check_context(gloo_rs_context_t *context, int expected_rank, int expected_size) {
  int32_t rank = -1, size = -1, all[MAX_RANKS], i;
  CHECK_OK(gloo_rs_context_rank(context, &rank));
  CHECK_OK(gloo_rs_context_size(context, &size));
  CHECK_INT(rank, expected_rank);
  CHECK_INT(size, expected_size);
  CHECK_OK(gloo_rs_allgather(context, &rank, all, 1, GLOO_RS_INT32));
  for (i = 0; i < size; i++) CHECK_INT(all[i], i);
}

static void by_an_allgather(void) {
  struct exchange exchange;
  gloo_rs_context_t *context = create_context();
  memset(&exchange, 0, sizeof exchange);
  exchange.store = open_store();
  CHECK_INVALID(gloo_rs_context_connect_oob(context, NULL, &exchange), "allgather is NULL");
  CHECK_INVALID(gloo_rs_context_connect_oob(NULL, allgather, &exchange), "context is NULL");
  CHECK_INT(exchange.calls, 0);
  CHECK_OK(gloo_rs_context_connect_oob(context, allgather, &exchange));
  CHECK_INT(exchange.calls, 3);
  check_context(context, test_rank, test_size);
  barrier(context);
  gloo_rs_context_destroy(context);
  gloo_rs_store_destroy(exchange.store);
}

static void by_an_allgather_that_fails(void) {
  static const struct {
    int at, answer;
    gloo_rs_status_t status;
  } cases[] = {{1, GLOO_RS_ERROR_IO, GLOO_RS_ERROR_IO}, {2, 4711, GLOO_RS_ERROR_CALLBACK}};
  gloo_rs_store_t *store = open_store();
  size_t i;
  for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct exchange exchange;
    gloo_rs_context_t *context = create_context();
    char prefix[16], number[32];
    memset(&exchange, 0, sizeof exchange);
    exchange.at = cases[i].at;
    exchange.answer = cases[i].answer;
    snprintf(prefix, sizeof prefix, "case %d", (int)i);
    snprintf(number, sizeof number, "returned status %d", cases[i].answer);
    CHECK_OK(gloo_rs_store_create_prefix(prefix, store, &exchange.store));
    CHECK_FAILS(gloo_rs_context_connect_oob(context, allgather, &exchange), cases[i].status, number);
    CHECK_INT(exchange.calls, cases[i].at);
    gloo_rs_context_destroy(context);
    gloo_rs_store_destroy(exchange.store);
  }
  gloo_rs_store_destroy(store);
}

/* ---- gloo_rs_context_split ---- */

static void splitting(void) {
  gloo_rs_context_t *parent = connected_context(), *halves = NULL, *again = NULL, *alone = NULL, *none = parent;
  int half = test_rank / 2, in_half = test_size - 1 - test_rank - 2 * (1 - half);
  CHECK_INVALID(gloo_rs_context_split(parent, -2, 0, &none), "color is -2");
  CHECK(none == NULL);
  CHECK_INVALID(gloo_rs_context_split(parent, 0, 0, NULL), "split is NULL");
  CHECK_INVALID(gloo_rs_context_split(NULL, 0, 0, &none), "context is NULL");

  /* The later ranks first. */
  CHECK_OK(gloo_rs_context_split(parent, half, -test_rank, &halves));
  check_context(halves, in_half, 2);
  /* All without a color; then one alone, and the others in their order. */
  none = parent;
  CHECK_OK(gloo_rs_context_split(parent, GLOO_RS_COLOR_UNDEFINED, 0, &none));
  CHECK(none == NULL);
  CHECK_OK(gloo_rs_context_split(parent, test_rank == 1 ? GLOO_RS_COLOR_UNDEFINED : INT32_MAX, 7, &again));
  CHECK((again == NULL) == (test_rank == 1));
  if (again != NULL) check_context(again, test_rank == 0 ? 0 : test_rank - 1, 3);
  gloo_rs_context_destroy(parent);
  /* A part of a part, which needs neither. */
  CHECK_OK(gloo_rs_context_split(halves, in_half, 0, &alone));
  barrier(halves);
  gloo_rs_context_destroy(halves);
  check_context(alone, 0, 1);
  if (again != NULL) barrier(again);
  gloo_rs_context_destroy(again);
  gloo_rs_context_destroy(alone);
}

/* A rank is lost before it takes part: the others hear which. */
static void a_rank_is_lost(void) {
  gloo_rs_context_t *context = connected_context(), *part = context;
  gloo_rs_status_t status;
  meet(context);
  if (test_rank == 2) raise(SIGKILL);
  status = gloo_rs_context_split(context, 0, 0, &part);
  CHECK(status == GLOO_RS_ERROR_CONNECTION_LOST || status == GLOO_RS_ERROR_TIMEOUT);
  CHECK(part == NULL);
  CHECK_CONTAINS(gloo_rs_last_error_message(), "cannot split a context");
  CHECK_CONTAINS(gloo_rs_last_error_message(), "rank 2");
  gloo_rs_context_destroy(context);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"by_an_allgather", 1, by_an_allgather, -1},
      {"by_an_allgather", 4, by_an_allgather, -1},
      {"by_an_allgather_that_fails", 2, by_an_allgather_that_fails, -1},
      {"splitting", 4, splitting, -1},
      {"a_rank_is_lost", 4, a_rank_is_lost, 2},
  };
  return RUN_TESTS(argc, argv, tests);
}
