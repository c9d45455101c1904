/* Unbound buffers: messages, waits, aborts, puts and gets. */
#include "harness.h"

static gloo_rs_unbound_buffer_t *create_buffer(gloo_rs_context_t *context, void *data, size_t bytes) {
  gloo_rs_unbound_buffer_t *buffer = NULL;
  CHECK_OK(gloo_rs_unbound_buffer_create(context, data, bytes, &buffer));
  return buffer;
}

static void wait_send(gloo_rs_unbound_buffer_t *buffer, int times) {
  for (; times > 0; times--) CHECK_OK(gloo_rs_unbound_buffer_wait_send(buffer, GLOO_RS_TIMEOUT_DEFAULT, NULL));
}

static void wait_recv(gloo_rs_unbound_buffer_t *buffer, int times) {
  for (; times > 0; times--) CHECK_OK(gloo_rs_unbound_buffer_wait_recv(buffer, GLOO_RS_TIMEOUT_DEFAULT, NULL, NULL));
}

/* Every rank to every rank including itself, in parts of one buffer; eager messages, and ones that wait for a grant. */
static void messages(void) {
  gloo_rs_context_t *context = connected_context();
  size_t sizes[] = {1, 1000, 1 << 20}, round, i;
  for (round = 0; round < 3; round++) {
    size_t bytes = sizes[round];
    unsigned char *sent = (unsigned char *)check_alloc(bytes * (size_t)test_size);
    unsigned char *received = (unsigned char *)check_alloc(bytes * (size_t)test_size);
    gloo_rs_unbound_buffer_t *to = create_buffer(context, sent, bytes * (size_t)test_size);
    gloo_rs_unbound_buffer_t *from = create_buffer(context, received, bytes * (size_t)test_size);
    int rank;
    for (i = 0; i < bytes * (size_t)test_size; i++) {
      sent[i] = (unsigned char)((size_t)test_rank * 7 + i * 13);
      received[i] = 0;
    }
    for (rank = 0; rank < test_size; rank++) {
      size_t offset = bytes * (size_t)rank;
      CHECK_OK(gloo_rs_unbound_buffer_recv(from, rank, 100 + round, offset, bytes));
      CHECK_OK(gloo_rs_unbound_buffer_send(to, rank, 100 + round, offset, bytes));
    }
    wait_send(to, test_size);
    wait_recv(from, test_size);
    for (rank = 0; rank < test_size; rank++)
      for (i = 0; i < bytes; i++)
        CHECK_INT(received[bytes * (size_t)rank + i],
                  (unsigned char)((size_t)rank * 7 + (bytes * (size_t)test_rank + i) * 13));
    gloo_rs_unbound_buffer_destroy(to);
    gloo_rs_unbound_buffer_destroy(from);
    free(sent);
    free(received);
  }
  gloo_rs_context_destroy(context);
}

/* Messages of one slot keep their order; slots are independent; an unexpected message is queued. */
static void order_and_slots(void) {
  gloo_rs_context_t *context = connected_context();
  int cells[20], i;
  gloo_rs_unbound_buffer_t *buffer = create_buffer(context, cells, sizeof cells);
  if (test_rank == 0) {
    for (i = 0; i < 20; i++) {
      cells[i] = 500 + i;
      CHECK_OK(gloo_rs_unbound_buffer_send(buffer, 1, (uint64_t)(i % 2), (size_t)i * sizeof(int), sizeof(int)));
    }
    wait_send(buffer, 20);
    barrier(context);
  } else {
    barrier(context);
    for (i = 0; i < 20; i++) {
      /* The odd slot first. */
      uint64_t slot = i < 10 ? 1 : 0;
      CHECK_OK(gloo_rs_unbound_buffer_recv(buffer, 0, slot, (size_t)i * sizeof(int), sizeof(int)));
      wait_recv(buffer, 1);
      CHECK_INT(cells[i], i < 10 ? 501 + 2 * i : 500 + 2 * (i - 10));
    }
  }
  gloo_rs_unbound_buffer_destroy(buffer);
  gloo_rs_context_destroy(context);
}

/* Rank 0 receives from any rank: every message once, with the rank of its sender. */
static void from_any(void) {
  gloo_rs_context_t *context = connected_context();
  int32_t everyone[2 * MAX_RANKS], rank;
  int rounds = 30, i, counts[MAX_RANKS] = {0}, cell = 0;
  gloo_rs_unbound_buffer_t *buffer = create_buffer(context, &cell, sizeof cell);
  /* The list may contain this rank itself, and ranks repeatedly. */
  for (i = 0; i < 2 * test_size; i++) everyone[i] = i % test_size;
  if (test_rank == 0) {
    for (i = 0; i < rounds * (test_size - 1); i++) {
      CHECK_OK(gloo_rs_unbound_buffer_recv_any(buffer, everyone, (size_t)(2 * test_size), 3, 0, sizeof cell));
      CHECK_OK(gloo_rs_unbound_buffer_wait_recv(buffer, test_timeout_ms(), &rank, NULL));
      CHECK(rank > 0 && rank < test_size);
      CHECK_INT(cell, rank * 1000 + counts[rank]);
      counts[rank]++;
    }
    for (i = 1; i < test_size; i++) CHECK_INT(counts[i], rounds);
  } else {
    for (i = 0; i < rounds; i++) {
      cell = test_rank * 1000 + i;
      CHECK_OK(gloo_rs_unbound_buffer_send(buffer, 0, 3, 0, sizeof cell));
      CHECK_OK(gloo_rs_unbound_buffer_wait_send(buffer, test_timeout_ms(), &rank));
      CHECK_INT(rank, 0);
    }
  }
  barrier(context);
  gloo_rs_unbound_buffer_destroy(buffer);
  gloo_rs_context_destroy(context);
}

/* A receive of at most so many bytes tells how many came: posted before its message and after it, from one rank and
 * from any. */
static void shorter_messages(void) {
  enum { ROOM = 1 << 20 };
  static const size_t sizes[] = {0, 1, 1000, 65536, 65537, ROOM};
  enum { SIZES = sizeof sizes / sizeof sizes[0] };
  gloo_rs_context_t *context = connected_context();
  unsigned char *data = (unsigned char *)check_alloc(ROOM);
  gloo_rs_unbound_buffer_t *buffer = create_buffer(context, data, ROOM);
  int32_t ranks[] = {0, 1}, rank;
  size_t i, bytes;
  int unexpected;
  memset(data, test_rank == 0 ? 0x5a : 0, ROOM);
  for (unexpected = 0; unexpected < 2; unexpected++) {
    for (i = 0; i < SIZES; i++) {
      if (test_rank == 1 && unexpected == 0) CHECK_OK(gloo_rs_unbound_buffer_recv(buffer, 0, i, 0, ROOM));
      barrier(context);
      if (test_rank == 0) CHECK_OK(gloo_rs_unbound_buffer_send(buffer, 1, i, 0, sizes[i]));
      barrier(context);
      if (test_rank == 1 && unexpected == 1) CHECK_OK(gloo_rs_unbound_buffer_recv_any(buffer, ranks, 2, i, 0, ROOM));
      if (test_rank == 1) {
        rank = -1;
        bytes = SIZE_MAX;
        CHECK_OK(gloo_rs_unbound_buffer_wait_recv(buffer, test_timeout_ms(), &rank, &bytes));
        CHECK_INT(rank, 0);
        CHECK_INT(bytes, sizes[i]);
        CHECK(bytes == 0 || (data[0] == 0x5a && data[bytes - 1] == 0x5a));
        CHECK(bytes == ROOM || data[bytes] == 0);
        memset(data, 0, ROOM);
      } else {
        wait_send(buffer, 1);
      }
    }
  }
  if (test_rank == 1) {
    bytes = 5;
    CHECK_FAILS(gloo_rs_unbound_buffer_wait_recv(buffer, 0, NULL, &bytes), GLOO_RS_ERROR_TIMEOUT, "");
    CHECK_INT(bytes, 5);
  }
  gloo_rs_unbound_buffer_destroy(buffer);
  free(data);
  gloo_rs_context_destroy(context);
}

static void timeouts(void) {
  gloo_rs_context_t *context = connected_context();
  int cell = 0, last = test_size - 1;
  gloo_rs_unbound_buffer_t *buffer = create_buffer(context, &cell, sizeof cell);
  char name[24];
  int64_t began;
  snprintf(name, sizeof name, "rank %d", last);
  barrier(context);
  if (test_rank == 0) {
    int32_t rank = -1;
    CHECK_OK(gloo_rs_unbound_buffer_recv(buffer, last, 8, 0, sizeof cell));
    began = now_ms();
    CHECK_FAILS(gloo_rs_unbound_buffer_wait_recv(buffer, 80, &rank, NULL), GLOO_RS_ERROR_TIMEOUT, name);
    CHECK(now_ms() - began >= 80);
    CHECK_INT(rank, -1);
    CHECK_FAILS(gloo_rs_unbound_buffer_wait_recv(buffer, 0, NULL, NULL), GLOO_RS_ERROR_TIMEOUT, name);
    CHECK_OK(gloo_rs_context_set_timeout(context, 50));
    CHECK_FAILS(gloo_rs_unbound_buffer_wait_recv(buffer, GLOO_RS_TIMEOUT_DEFAULT, NULL, NULL), GLOO_RS_ERROR_TIMEOUT, name);
    CHECK_OK(gloo_rs_context_set_timeout(context, test_timeout_ms()));
  }
  /* The others stay connected until then, but send nothing. */
  barrier(context);
  gloo_rs_unbound_buffer_destroy(buffer);
  gloo_rs_context_destroy(context);
}

/* ---- aborts ---- */

static void *wait_for_abort(void *argument) {
  CHECK_FAILS(gloo_rs_unbound_buffer_wait_recv((gloo_rs_unbound_buffer_t *)argument, test_timeout_ms(), NULL, NULL),
              GLOO_RS_ERROR_ABORTED, "gloo_rs_unbound_buffer_abort_wait_recv");
  return NULL;
}

static void aborts(void) {
  gloo_rs_context_t *context = connected_context();
  int cells[2] = {-1, -1}, peer = 1 - test_rank;
  gloo_rs_unbound_buffer_t *buffer = create_buffer(context, cells, sizeof cells);
  gloo_rs_unbound_buffer_t *source = create_buffer(context, &test_rank, sizeof test_rank);
  pthread_t thread;
  CHECK_OK(gloo_rs_unbound_buffer_recv(buffer, peer, 4, 0, sizeof(int)));
  thread = start_thread(wait_for_abort, buffer);
  sleep_ms(test_is_slow() ? 500 : 30);
  CHECK_OK(gloo_rs_unbound_buffer_abort_wait_recv(buffer));
  join_thread(thread);
  /* If no wait is running, the next one is aborted. */
  CHECK_OK(gloo_rs_unbound_buffer_abort_wait_recv(buffer));
  wait_for_abort(buffer);
  CHECK_OK(gloo_rs_unbound_buffer_abort_wait_send(source));
  CHECK_FAILS(gloo_rs_unbound_buffer_wait_send(source, test_timeout_ms(), NULL), GLOO_RS_ERROR_ABORTED,
              "gloo_rs_unbound_buffer_abort_wait_send");
  /* The receive is still posted. */
  barrier(context);
  CHECK_OK(gloo_rs_unbound_buffer_send(source, peer, 4, 0, sizeof(int)));
  wait_send(source, 1);
  wait_recv(buffer, 1);
  CHECK_INT(cells[0], peer);
  gloo_rs_unbound_buffer_destroy(source);
  gloo_rs_unbound_buffer_destroy(buffer);
  gloo_rs_context_destroy(context);
}

static void *wait_until_destroyed(void *argument) {
  CHECK_FAILS(gloo_rs_unbound_buffer_wait_recv((gloo_rs_unbound_buffer_t *)argument, test_timeout_ms(), NULL, NULL),
              GLOO_RS_ERROR_CLOSED, "destroyed");
  return NULL;
}

static void destroying_ends_waits(void) {
  gloo_rs_context_t *context = connected_context();
  int cell = 0;
  gloo_rs_unbound_buffer_t *buffer = create_buffer(context, &cell, sizeof cell);
  pthread_t thread;
  CHECK_OK(gloo_rs_unbound_buffer_recv(buffer, 1 - test_rank, 4, 0, sizeof cell));
  thread = start_thread(wait_until_destroyed, buffer);
  sleep_ms(test_is_slow() ? 2000 : 100);
  gloo_rs_unbound_buffer_destroy(buffer);
  join_thread(thread);
  barrier(context);
  /* The buffer is destroyed: its memory is not written by a message that arrives later. */
  buffer = create_buffer(context, &cell, sizeof cell);
  cell = 77;
  CHECK_OK(gloo_rs_unbound_buffer_send(buffer, 1 - test_rank, 4, 0, sizeof cell));
  wait_send(buffer, 1);
  barrier(context);
  CHECK_INT(cell, 77);
  gloo_rs_unbound_buffer_destroy(buffer);
  gloo_rs_context_destroy(context);
}

/* ---- one-sided ---- */

static void puts_and_gets(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_store_t *store = open_store();
  int memory[64], own[64], i, peer = (test_rank + 1) % test_size;
  gloo_rs_unbound_buffer_t *shared = create_buffer(context, memory, sizeof memory);
  gloo_rs_unbound_buffer_t *buffer = create_buffer(context, own, sizeof own);
  char key[64];
  char *theirs = NULL;
  void *value = NULL;
  size_t bytes = 0, needed = 0, their_bytes = 0, size = 0;
  char name[24];
  int32_t rank = -1;
  for (i = 0; i < 64; i++) memory[i] = test_rank * 1000 + i;
  for (i = 0; i < 64; i++) own[i] = -1;
  CHECK_OK(gloo_rs_unbound_buffer_remote_key(shared, NULL, 0, &needed));
  CHECK_OK(gloo_rs_unbound_buffer_remote_key(shared, key, sizeof key, &bytes));
  CHECK_INT(bytes, needed);
  CHECK_INT(bytes, strlen(key) + 1);
  CHECK_INVALID(gloo_rs_unbound_buffer_remote_key(shared, key, bytes - 1, NULL), "needed");
  snprintf(name, sizeof name, "key%d", test_rank);
  CHECK_OK(gloo_rs_store_set(store, name, key, bytes));
  snprintf(name, sizeof name, "key%d", peer);
  CHECK_OK(gloo_rs_store_get(store, name, test_timeout_ms(), &value, &their_bytes));
  theirs = (char *)value;
  CHECK_OK(gloo_rs_remote_key_parse(theirs, &rank, &size));
  CHECK_INT(rank, peer);
  CHECK_INT(size, sizeof memory);
  rank = -1;

  CHECK_OK(gloo_rs_unbound_buffer_get(buffer, theirs, 1, 4 * sizeof(int), 10 * sizeof(int), 5 * sizeof(int)));
  CHECK_OK(gloo_rs_unbound_buffer_wait_send(buffer, test_timeout_ms(), &rank));
  CHECK_INT(rank, peer);
  for (i = 0; i < 64; i++) CHECK_INT(own[i], i >= 4 && i < 9 ? peer * 1000 + i + 6 : -1);
  barrier(context);

  for (i = 0; i < 64; i++) own[i] = 500000 + test_rank * 1000 + i;
  CHECK_OK(gloo_rs_unbound_buffer_put(buffer, theirs, 1, 2 * sizeof(int), 50 * sizeof(int), 3 * sizeof(int)));
  rank = -1;
  CHECK_OK(gloo_rs_unbound_buffer_wait_send(buffer, test_timeout_ms(), &rank));
  CHECK_INT(rank, peer);
  barrier(context);
  for (i = 0; i < 64; i++) {
    int from = (test_rank + test_size - 1) % test_size, inside = i >= 50 && i < 53;
    CHECK_INT(memory[i], inside ? 500000 + from * 1000 + i - 48 : test_rank * 1000 + i);
  }

  /* Beyond the end of either buffer, or with an invalid key. */
  CHECK_INVALID(gloo_rs_unbound_buffer_put(buffer, theirs, 1, 63 * sizeof(int), 0, 8), "");
  CHECK_INVALID(gloo_rs_unbound_buffer_put(buffer, theirs, 1, 0, 63 * sizeof(int), 8), "");
  CHECK_INVALID(gloo_rs_unbound_buffer_get(buffer, theirs, 1, 0, SIZE_MAX - 3, 8), "");
  CHECK_INVALID(gloo_rs_unbound_buffer_get(buffer, theirs, 1, SIZE_MAX - 3, 0, 8), "");
  CHECK_INVALID(gloo_rs_unbound_buffer_get(buffer, "no key", 1, 0, 0, 8), "\"no key\" is not a remote key");
  CHECK_INVALID(gloo_rs_unbound_buffer_put(buffer, "", 1, 0, 0, 8), "\"\" is not a remote key");
  snprintf(key, sizeof key, "rkey2:%d:256:77%s", test_size, strrchr(theirs, ':'));
  CHECK_FAILS(gloo_rs_unbound_buffer_get(buffer, key, 1, 0, 0, 8), GLOO_RS_ERROR_INVALID_OPERATION, "is of another context");
  snprintf(key, sizeof key, "rkey2:%d:256:77%s", peer, strrchr(theirs, ':'));
  CHECK_OK(gloo_rs_unbound_buffer_get(buffer, key, 1, 0, 0, 8));
  CHECK_INVALID(gloo_rs_unbound_buffer_wait_send(buffer, test_timeout_ms(), NULL), "no such region");
  CHECK_INVALID(gloo_rs_unbound_buffer_get(buffer, NULL, 1, 0, 0, 8), "key is NULL");
  CHECK_INVALID(gloo_rs_unbound_buffer_put(NULL, theirs, 1, 0, 0, 8), "buffer is NULL");
  barrier(context);
  gloo_rs_free(value);
  gloo_rs_unbound_buffer_destroy(buffer);
  gloo_rs_unbound_buffer_destroy(shared);
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
}

static void remote_keys(void) {
  gloo_rs_context_t *context = create_context();
  char data[24], key[64];
  gloo_rs_unbound_buffer_t *buffer = create_buffer(context, data, sizeof data);
  int32_t rank = -1;
  size_t bytes = 0, needed = 0, i;
  CHECK_OK(gloo_rs_unbound_buffer_remote_key(buffer, key, sizeof key, NULL));
  for (i = 0; key[i] != '\0'; i++) CHECK(key[i] > ' ' && key[i] <= '~');
  CHECK_OK(gloo_rs_unbound_buffer_remote_key(buffer, NULL, 0, &needed));
  CHECK_INT(needed, i + 1);
  CHECK_INVALID(gloo_rs_unbound_buffer_remote_key(buffer, key, needed - 1, NULL), "needed");
  CHECK_OK(gloo_rs_remote_key_parse(key, &rank, &bytes));
  CHECK_INT(rank, 0);
  CHECK_INT(bytes, sizeof data);
  CHECK_OK(gloo_rs_remote_key_parse(key, NULL, NULL));
  CHECK_OK(gloo_rs_remote_key_parse("rkey2:2147483647:5:4294967295:4294967295", &rank, &bytes));
  CHECK_INT(rank, INT32_MAX);
  CHECK_INT(bytes, 5);
  CHECK_INVALID(gloo_rs_remote_key_parse(NULL, &rank, &bytes), "key is NULL");
  CHECK_INVALID(gloo_rs_remote_key_parse("", &rank, &bytes), "\"\" is not a remote key");
  CHECK_INVALID(gloo_rs_remote_key_parse("rkey2:3:4:5", &rank, &bytes), "\"rkey2:3:4:5\" is not a remote key");
  CHECK_INVALID(gloo_rs_remote_key_parse("rkey2:2147483648:5:0:0", &rank, &bytes), "is not a remote key");
  CHECK_INVALID(gloo_rs_remote_key_parse("\xff\x80", &rank, &bytes), "key is not UTF-8");
  CHECK_INT(rank, INT32_MAX);
  CHECK_INT(bytes, 5);
  gloo_rs_unbound_buffer_destroy(buffer);
  gloo_rs_context_destroy(context);
}

static void bad_arguments(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_unbound_buffer_t *buffer = NULL;
  char data[16] = {0};
  int32_t ranks[2] = {0, 2};
  CHECK_INVALID(gloo_rs_unbound_buffer_create(NULL, data, 16, &buffer), "context is NULL");
  CHECK_INVALID(gloo_rs_unbound_buffer_create(context, NULL, 16, &buffer), "data is NULL");
  CHECK_INVALID(gloo_rs_unbound_buffer_create(context, data, SIZE_MAX, &buffer), "data");
  CHECK_INVALID(gloo_rs_unbound_buffer_create(context, data, 16, NULL), "buffer is NULL");
  CHECK_OK(gloo_rs_unbound_buffer_create(context, NULL, 0, &buffer));
  gloo_rs_unbound_buffer_destroy(buffer);
  buffer = create_buffer(context, data, sizeof data);
  CHECK_INVALID(gloo_rs_unbound_buffer_send(NULL, 0, 1, 0, 1), "buffer is NULL");
  CHECK_INVALID(gloo_rs_unbound_buffer_send((gloo_rs_unbound_buffer_t *)context, 0, 1, 0, 1), "not a live");
  CHECK_INVALID(gloo_rs_unbound_buffer_send(buffer, 2, 1, 0, 1), "to is 2");
  CHECK_INVALID(gloo_rs_unbound_buffer_send(buffer, -1, 1, 0, 1), "to is -1");
  CHECK_INVALID(gloo_rs_unbound_buffer_send(buffer, 0, 1, 0, 17), "17");
  CHECK_INVALID(gloo_rs_unbound_buffer_send(buffer, 0, 1, 17, 0), "17");
  CHECK_INVALID(gloo_rs_unbound_buffer_send(buffer, 0, 1, SIZE_MAX, 2), "");
  CHECK_INVALID(gloo_rs_unbound_buffer_recv(buffer, 2, 1, 0, 1), "from is 2");
  CHECK_INVALID(gloo_rs_unbound_buffer_recv(buffer, 0, 1, 8, 9), "9");
  CHECK_INVALID(gloo_rs_unbound_buffer_recv(buffer, 0, 1, 2, SIZE_MAX), "");
  CHECK_INVALID(gloo_rs_unbound_buffer_recv_any(buffer, ranks, 0, 1, 0, 1), "empty");
  CHECK_INVALID(gloo_rs_unbound_buffer_recv_any(buffer, NULL, 1, 1, 0, 1), "from is NULL");
  CHECK_INVALID(gloo_rs_unbound_buffer_recv_any(buffer, ranks, 2, 1, 0, 1), "a rank in from is 2");
  CHECK_INVALID(gloo_rs_unbound_buffer_recv_any(buffer, ranks, 1, 1, 0, 17), "17");
  CHECK_INVALID(gloo_rs_unbound_buffer_wait_recv(buffer, -9, NULL, NULL), "timeout_ms is -9");
  CHECK_INVALID(gloo_rs_unbound_buffer_wait_send(buffer, -9, NULL), "timeout_ms is -9");
  CHECK_INVALID(gloo_rs_unbound_buffer_abort_wait_recv(NULL), "buffer is NULL");
  CHECK_INVALID(gloo_rs_unbound_buffer_abort_wait_send(NULL), "buffer is NULL");
  barrier(context);
  gloo_rs_unbound_buffer_destroy(buffer);
  gloo_rs_context_destroy(context);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"messages", 1, messages, -1},
      {"messages", 4, messages, -1},
      {"order_and_slots", 2, order_and_slots, -1},
      {"from_any", 4, from_any, -1},
      {"shorter_messages", 2, shorter_messages, -1},
      {"timeouts", 3, timeouts, -1},
      {"aborts", 2, aborts, -1},
      {"destroying_ends_waits", 2, destroying_ends_waits, -1},
      {"puts_and_gets", 2, puts_and_gets, -1},
      {"puts_and_gets", 3, puts_and_gets, -1},
      {"remote_keys", 1, remote_keys, -1},
      {"bad_arguments", 2, bad_arguments, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
