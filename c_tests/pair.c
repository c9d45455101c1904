/* Pairs connected by hand, and bound buffers. */
#include "harness.h"

/* Passes each pair's address to the peer over the store, as a program with its own rendezvous would. */
static void connect_by_hand(gloo_rs_context_t *context, gloo_rs_pair_t *pairs[MAX_RANKS]) {
  gloo_rs_store_t *store = open_store();
  char key[32];
  int rank;
  for (rank = 0; rank < test_size; rank++) {
    unsigned char address[1024];
    size_t bytes = 0, needed = 0;
    pairs[rank] = NULL;
    if (rank == test_rank) continue;
    CHECK_OK(gloo_rs_context_pair(context, rank, &pairs[rank]));
    CHECK_OK(gloo_rs_pair_address(pairs[rank], NULL, 0, &needed));
    CHECK(needed > 0 && needed <= sizeof address);
    CHECK_OK(gloo_rs_pair_address(pairs[rank], address, sizeof address, &bytes));
    CHECK_INT(bytes, needed);
    snprintf(key, sizeof key, "%d to %d", test_rank, rank);
    CHECK_OK(gloo_rs_store_set(store, key, address, bytes));
  }
  for (rank = 0; rank < test_size; rank++) {
    void *address = NULL;
    size_t bytes = 0;
    bool connected = false;
    if (rank == test_rank) continue;
    snprintf(key, sizeof key, "%d to %d", rank, test_rank);
    CHECK_OK(gloo_rs_store_get(store, key, test_timeout_ms(), &address, &bytes));
    CHECK_OK(gloo_rs_pair_connect(pairs[rank], address, bytes));
    gloo_rs_free(address);
    CHECK_OK(gloo_rs_pair_is_connected(pairs[rank], &connected));
    CHECK(connected);
  }
  gloo_rs_store_destroy(store);
}

static void destroy_pairs(gloo_rs_pair_t *pairs[MAX_RANKS]) {
  int rank;
  for (rank = 0; rank < test_size; rank++) gloo_rs_pair_destroy(pairs[rank]);
}

static void connecting_by_hand(void) {
  gloo_rs_context_t *context = create_context();
  gloo_rs_pair_t *pairs[MAX_RANKS];
  int rank;
  connect_by_hand(context, pairs);
  for (rank = 0; rank < test_size; rank++) {
    int32_t peer = -1;
    if (rank == test_rank) continue;
    CHECK_OK(gloo_rs_pair_rank(pairs[rank], &peer));
    CHECK_INT(peer, rank);
  }
  barrier(context);
  destroy_pairs(pairs);
  barrier(context);
  gloo_rs_context_destroy(context);
}

#define CELLS 1024

/* Each rank writes to each other: the whole buffer, then a part at an offset. */
static void bound_buffers(void) {
  gloo_rs_context_t *context = create_context();
  gloo_rs_pair_t *pairs[MAX_RANKS];
  gloo_rs_buffer_t *from[MAX_RANKS] = {NULL}, *to[MAX_RANKS] = {NULL};
  static int sent[MAX_RANKS][CELLS], received[MAX_RANKS][CELLS];
  int rank, i;
  connect_by_hand(context, pairs);
  for (rank = 0; rank < test_size; rank++) {
    if (rank == test_rank) continue;
    for (i = 0; i < CELLS; i++) {
      sent[rank][i] = test_rank * 100000 + rank * 10000 + i;
      received[rank][i] = -1;
    }
    CHECK_OK(gloo_rs_pair_create_recv_buffer(pairs[rank], 5, received[rank], sizeof received[rank], &from[rank]));
    CHECK_OK(gloo_rs_pair_create_send_buffer(pairs[rank], 5, sent[rank], sizeof sent[rank], &to[rank]));
  }
  destroy_pairs(pairs);
  barrier(context);
  for (rank = 0; rank < test_size; rank++)
    if (rank != test_rank) CHECK_OK(gloo_rs_buffer_send(to[rank], 0, sizeof sent[rank], 0));
  for (rank = 0; rank < test_size; rank++) {
    size_t offset = 99, length = 99;
    if (rank == test_rank) continue;
    CHECK_OK(gloo_rs_buffer_wait_send(to[rank], GLOO_RS_TIMEOUT_DEFAULT));
    CHECK_OK(gloo_rs_buffer_wait_recv(from[rank], GLOO_RS_TIMEOUT_DEFAULT, &offset, &length));
    CHECK_INT(offset, 0);
    CHECK_INT(length, sizeof received[rank]);
    for (i = 0; i < CELLS; i++) CHECK_INT(received[rank][i], rank * 100000 + test_rank * 10000 + i);
    memset(received[rank], 0xff, sizeof received[rank]);
  }
  barrier(context);
  for (rank = 0; rank < test_size; rank++)
    if (rank != test_rank)
      CHECK_OK(gloo_rs_buffer_send(to[rank], 10 * sizeof(int), 3 * sizeof(int), 500 * sizeof(int)));
  for (rank = 0; rank < test_size; rank++) {
    size_t offset = 0, length = 0;
    if (rank == test_rank) continue;
    CHECK_OK(gloo_rs_buffer_wait_send(to[rank], test_timeout_ms()));
    CHECK_OK(gloo_rs_buffer_wait_recv(from[rank], test_timeout_ms(), &offset, &length));
    CHECK_INT(offset, 500 * sizeof(int));
    CHECK_INT(length, 3 * sizeof(int));
    for (i = 0; i < CELLS; i++) {
      int inside = i >= 500 && i < 503;
      CHECK_INT(received[rank][i], inside ? rank * 100000 + test_rank * 10000 + i - 490 : -1);
    }
  }
  barrier(context);
  for (rank = 0; rank < test_size; rank++) {
    gloo_rs_buffer_destroy(from[rank]);
    gloo_rs_buffer_destroy(to[rank]);
  }
  gloo_rs_context_destroy(context);
}

/* Many writes in flight at the same time: each wait completes one. */
static void many_sends(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_pair_t *pair = NULL;
  gloo_rs_buffer_t *from = NULL, *to = NULL;
  int cells[64], i, peer = 1 - test_rank;
  uint64_t seen = 0;
  for (i = 0; i < 64; i++) cells[i] = test_rank == 0 ? 1000 + i : -1;
  CHECK_OK(gloo_rs_context_pair(context, peer, &pair));
  CHECK_OK(gloo_rs_pair_set_sync(pair, false, true));
  if (test_rank == 0) {
    CHECK_OK(gloo_rs_pair_create_send_buffer(pair, 1, cells, sizeof cells, &to));
  } else {
    CHECK_OK(gloo_rs_pair_create_recv_buffer(pair, 1, cells, sizeof cells, &from));
  }
  barrier(context);
  if (test_rank == 0) {
    for (i = 0; i < 64; i++) CHECK_OK(gloo_rs_buffer_send(to, (size_t)i * sizeof(int), sizeof(int), (size_t)i * sizeof(int)));
    CHECK_OK(gloo_rs_pair_set_sync(pair, true, false));
    for (i = 0; i < 64; i++) CHECK_OK(gloo_rs_buffer_wait_send(to, test_timeout_ms()));
  } else {
    for (i = 0; i < 64; i++) {
      size_t offset = 0, length = 0;
      CHECK_OK(gloo_rs_buffer_wait_recv(from, test_timeout_ms(), &offset, &length));
      CHECK_INT(length, sizeof(int));
      CHECK_INT(cells[offset / sizeof(int)], 1000 + (int)(offset / sizeof(int)));
      seen |= (uint64_t)1 << (offset / sizeof(int));
    }
    CHECK(seen == UINT64_MAX);
  }
  barrier(context);
  gloo_rs_buffer_destroy(to);
  gloo_rs_buffer_destroy(from);
  gloo_rs_pair_destroy(pair);
  gloo_rs_context_destroy(context);
}

static void timeouts(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_pair_t *pair = NULL;
  gloo_rs_buffer_t *from = NULL;
  int cell = 0;
  char name[24];
  snprintf(name, sizeof name, "rank %d", 1 - test_rank);
  barrier(context);
  CHECK_OK(gloo_rs_context_pair(context, 1 - test_rank, &pair));
  CHECK_OK(gloo_rs_pair_create_recv_buffer(pair, 1, &cell, sizeof cell, &from));
  CHECK_FAILS(gloo_rs_buffer_wait_recv(from, 50, NULL, NULL), GLOO_RS_ERROR_TIMEOUT, name);
  CHECK_FAILS(gloo_rs_buffer_wait_recv(from, 0, NULL, NULL), GLOO_RS_ERROR_TIMEOUT, name);
  gloo_rs_buffer_destroy(from);
  gloo_rs_pair_destroy(pair);
  barrier(context);
  gloo_rs_context_destroy(context);
}

static void *wait_in_vain(void *argument) {
  CHECK_FAILS(gloo_rs_buffer_wait_recv((gloo_rs_buffer_t *)argument, test_timeout_ms(), NULL, NULL),
              GLOO_RS_ERROR_CLOSED, "closed");
  return NULL;
}

/* Closing one pair ends the waits on it, on both ranks, and leaves the others. */
static void closing(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_pair_t *pair = NULL;
  gloo_rs_buffer_t *from = NULL;
  int cell = 0;
  bool connected = true;
  barrier(context);
  if (test_rank < 2) {
    CHECK_OK(gloo_rs_context_pair(context, 1 - test_rank, &pair));
    CHECK_OK(gloo_rs_pair_create_recv_buffer(pair, 1, &cell, sizeof cell, &from));
  }
  barrier(context);
  if (test_rank == 0) {
    pthread_t thread = start_thread(wait_in_vain, from);
    sleep_ms(test_is_slow() ? 1000 : 50);
    CHECK_OK(gloo_rs_pair_close(pair));
    CHECK_OK(gloo_rs_pair_close(pair));
    join_thread(thread);
    CHECK_OK(gloo_rs_pair_is_connected(pair, &connected));
    CHECK(!connected);
  } else if (test_rank == 1) {
    gloo_rs_status_t status = gloo_rs_buffer_wait_recv(from, test_timeout_ms(), NULL, NULL);
    CHECK_INT(status, GLOO_RS_ERROR_CONNECTION_LOST);
    CHECK_CONTAINS(gloo_rs_last_error_message(), "rank 0");
  }
  gloo_rs_buffer_destroy(from);
  gloo_rs_pair_destroy(pair);
  gloo_rs_context_destroy(context);
}

static void bad_arguments(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_pair_t *pair = NULL;
  gloo_rs_buffer_t *from = NULL, *to = NULL;
  char data[16] = {0};
  int32_t rank;
  size_t needed;
  bool connected;
  int peer = 1 - test_rank;
  CHECK_INVALID(gloo_rs_context_pair(NULL, peer, &pair), "context is NULL");
  CHECK_INVALID(gloo_rs_context_pair(context, 2, &pair), "rank is 2");
  CHECK_INVALID(gloo_rs_context_pair(context, -1, &pair), "rank is -1");
  CHECK_INVALID(gloo_rs_context_pair(context, test_rank, &pair), "");
  CHECK_INVALID(gloo_rs_context_pair(context, peer, NULL), "pair is NULL");
  CHECK_OK(gloo_rs_context_pair(context, peer, &pair));
  CHECK_INVALID(gloo_rs_pair_rank(NULL, &rank), "pair is NULL");
  CHECK_INVALID(gloo_rs_pair_rank((gloo_rs_pair_t *)context, &rank), "not a live gloo_rs_pair_t");
  CHECK_INVALID(gloo_rs_pair_address(pair, data, 0, &needed), "needed");
  CHECK_INVALID(gloo_rs_pair_is_connected(pair, NULL), "connected is NULL");
  CHECK_INVALID(gloo_rs_pair_is_connected(NULL, &connected), "pair is NULL");
  CHECK_INVALID(gloo_rs_pair_connect(pair, NULL, 3), "address is NULL");
  CHECK(gloo_rs_pair_connect(pair, "no address", 10) != GLOO_RS_OK);
  CHECK_INVALID(gloo_rs_pair_create_send_buffer(pair, 1, NULL, 3, &to), "data is NULL");
  CHECK_INVALID(gloo_rs_pair_create_recv_buffer(pair, 1, NULL, 3, &to), "data is NULL");
  CHECK_INVALID(gloo_rs_pair_create_send_buffer(pair, 1, data, SIZE_MAX, &to), "data");
  CHECK_INVALID(gloo_rs_pair_create_send_buffer(pair, 1, data, 3, NULL), "buffer is NULL");
  CHECK_INVALID(gloo_rs_pair_create_send_buffer(NULL, 1, data, 3, &to), "pair is NULL");
  CHECK_OK(gloo_rs_pair_create_send_buffer(pair, 1, data, sizeof data, &to));
  CHECK_OK(gloo_rs_pair_create_recv_buffer(pair, 1, data, sizeof data, &from));
  CHECK_INVALID(gloo_rs_buffer_send(NULL, 0, 1, 0), "buffer is NULL");
  CHECK_INVALID(gloo_rs_buffer_send(to, 0, 17, 0), "17");
  CHECK_INVALID(gloo_rs_buffer_send(to, 16, 1, 0), "16");
  CHECK_INVALID(gloo_rs_buffer_send(to, SIZE_MAX, 2, 0), "");
  CHECK_INVALID(gloo_rs_buffer_send(to, 2, SIZE_MAX, 0), "");
  CHECK(gloo_rs_buffer_send(from, 0, 1, 0) != GLOO_RS_OK);
  CHECK(gloo_rs_buffer_wait_recv(to, 0, NULL, NULL) != GLOO_RS_OK);
  CHECK_INVALID(gloo_rs_buffer_wait_recv(from, -5, NULL, NULL), "timeout_ms is -5");
  CHECK_INVALID(gloo_rs_buffer_wait_send(to, -5), "timeout_ms is -5");
  CHECK_INVALID(gloo_rs_buffer_wait_recv(NULL, 0, NULL, NULL), "buffer is NULL");
  gloo_rs_buffer_destroy(to);
  gloo_rs_buffer_destroy(from);
  gloo_rs_pair_destroy(pair);
  barrier(context);
  gloo_rs_context_destroy(context);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"connecting_by_hand", 3, connecting_by_hand, -1},
      {"bound_buffers", 3, bound_buffers, -1},
      {"many_sends", 2, many_sends, -1},
      {"timeouts", 2, timeouts, -1},
      {"closing", 3, closing, -1},
      {"bad_arguments", 2, bad_arguments, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
