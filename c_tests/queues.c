/* Completion queues: what is attached is reported once, to whichever thread or event loop, over shared memory and TCP,
 * also while no thread waits; and what happens to contexts, peers and processes meanwhile. */
#include "sums.h"

#include <fcntl.h>
#include <poll.h>

enum { SEVERAL = 6, THREADS = 3, COUNT = 1000 };

/* Longer messages are sent after the receiver's consent. */
static const size_t counts[] = {1, 300, 100000};

static gloo_rs_queue_t *create_queue(void) {
  gloo_rs_queue_t *queue = NULL;
  CHECK_OK(gloo_rs_queue_create(&queue));
  return queue;
}

static void expect_entry(gloo_rs_queue_t *queue, uint64_t expected) {
  uint64_t user = ~expected;
  gloo_rs_status_t status = GLOO_RS_ERROR_INTERNAL;
  CHECK_OK(gloo_rs_queue_wait(queue, GLOO_RS_TIMEOUT_INFINITE, &user, &status));
  CHECK_OK(status);
  CHECK_INT(user, expected);
}

static void expect_none(gloo_rs_queue_t *queue, int64_t timeout_ms) {
  uint64_t user = 77;
  gloo_rs_status_t status = GLOO_RS_ERROR_INTERNAL;
  CHECK_FAILS(gloo_rs_queue_wait(queue, timeout_ms, &user, &status), GLOO_RS_ERROR_TIMEOUT, "there is no entry");
  CHECK(user == 77 && status == GLOO_RS_ERROR_INTERNAL);
}

static int descriptor(gloo_rs_queue_t *queue) {
  int fd = -1, again = -1;
  CHECK_OK(gloo_rs_queue_fd(queue, &fd));
  CHECK_OK(gloo_rs_queue_fd(queue, &again));
  CHECK_INT(fd, again);
  CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
  return fd;
}

static int is_readable(int fd, int64_t timeout_ms) {
  struct pollfd entry;
  entry.fd = fd;
  entry.events = POLLIN;
  entry.revents = 0;
  CHECK(poll(&entry, 1, (int)timeout_ms) >= 0);
  return entry.revents == POLLIN;
}

/* The next entry by an event loop, which calls the library only when the descriptor is readable. */
static gloo_rs_status_t next_by_loop(gloo_rs_queue_t *queue, int fd, uint64_t *user) {
  gloo_rs_status_t status = GLOO_RS_ERROR_INTERNAL, found;
  do {
    CHECK(is_readable(fd, test_timeout_ms()));
    found = gloo_rs_queue_wait(queue, 0, user, &status);
  } while (found == GLOO_RS_ERROR_TIMEOUT);
  CHECK_OK(found);
  return status;
}

/* ---- who takes entries ---- */

static void one_thread(void) {
  static int64_t data[SEVERAL][100000];
  gloo_rs_context_t *context = connected_context();
  gloo_rs_queue_t *queue = create_queue();
  gloo_rs_request_t *requests[SEVERAL];
  size_t c, i, n;
  expect_none(queue, 0);
  for (c = 0; c < sizeof counts / sizeof *counts; c++) {
    int seen[SEVERAL] = {0};
    for (n = 0; n < SEVERAL; n++) {
      for (i = 0; i < counts[c]; i++) data[n][i] = (int64_t)n + test_rank;
      requests[n] = start_sum(context, data[n], counts[c], n, n % 3 == 2 ? add_numbers : NULL);
      CHECK_OK(gloo_rs_queue_attach(queue, requests[n], 10 + n));
    }
    for (n = 0; n < SEVERAL; n++) {
      uint64_t user = 0;
      gloo_rs_status_t status = GLOO_RS_ERROR_INTERNAL;
      CHECK_OK(gloo_rs_queue_wait(queue, GLOO_RS_TIMEOUT_DEFAULT, &user, &status));
      CHECK_OK(status);
      CHECK(user >= 10 && user < 10 + SEVERAL && !seen[user - 10]++);
      CHECK_INT(state_of(requests[user - 10]), GLOO_RS_REQUEST_INACTIVE);
      for (i = 0; i < counts[c]; i++)
        CHECK_INT(data[user - 10][i], (int64_t)test_size * (int64_t)(user - 10) + (int64_t)test_size * (test_size - 1) / 2);
      CHECK_OK(gloo_rs_request_free(requests[user - 10]));
    }
    expect_none(queue, 1);
  }
  CHECK_OK(gloo_rs_queue_destroy(queue));
  gloo_rs_context_destroy(context);
}

/* A request that was attached once has an entry for each start. */
static void started_again(void) {
  static int64_t data[COUNT];
  gloo_rs_context_t *context = connected_context();
  gloo_rs_queue_t *queue = create_queue();
  gloo_rs_request_t *request = prepare_sum(context, data, COUNT, 0);
  gloo_rs_status_t status;
  uint64_t user;
  int round, i;
  bool done = true;
  CHECK_OK(gloo_rs_queue_attach(queue, request, 5));
  expect_none(queue, 0);
  for (round = 0; round < 50; round++) {
    for (i = 0; i < COUNT; i++) data[i] = round;
    CHECK_INT(state_of(request), GLOO_RS_REQUEST_INACTIVE);
    CHECK_OK(gloo_rs_start(request));
    CHECK(state_of(request) != GLOO_RS_REQUEST_INACTIVE);
    if (round == 1) {
      CHECK_FAILS(gloo_rs_start(request), GLOO_RS_ERROR_INVALID_OPERATION, "take its entry from there first");
      CHECK_FAILS(gloo_rs_wait(request), GLOO_RS_ERROR_INVALID_OPERATION, "take its entry from there first");
      CHECK_FAILS(gloo_rs_test(request, &done), GLOO_RS_ERROR_INVALID_OPERATION, "take its entry from there first");
      CHECK_FAILS(gloo_rs_wait_all(&request, 1, 0, NULL), GLOO_RS_ERROR_INVALID_OPERATION, "take its entry");
    }
    expect_entry(queue, 5);
    for (i = 0; i < COUNT; i++) CHECK_INT(data[i], (int64_t)test_size * round);
  }
  CHECK_FAILS(gloo_rs_queue_wait(queue, 2, &user, &status), GLOO_RS_ERROR_TIMEOUT, "there is no entry after 2ms; 0 calls are in progress");
  CHECK_OK(gloo_rs_request_free(request));
  CHECK_OK(gloo_rs_queue_destroy(queue));
  gloo_rs_context_destroy(context);
}

struct taking {
  gloo_rs_queue_t *queue;
  int seen[2 * SEVERAL];
};

static void *takes(void *argument) {
  struct taking *taking = (struct taking *)argument;
  for (;;) {
    uint64_t user = 0;
    gloo_rs_status_t status = GLOO_RS_ERROR_INTERNAL, found;
    found = gloo_rs_queue_wait(taking->queue, GLOO_RS_TIMEOUT_INFINITE, &user, &status);
    if (found == GLOO_RS_ERROR_CLOSED) return NULL;
    CHECK_OK(found);
    CHECK_OK(status);
    CHECK(user < 2 * SEVERAL);
    __atomic_add_fetch(&taking->seen[user], 1, __ATOMIC_SEQ_CST);
  }
}

/* Requests of two contexts, started by this thread, whose entries other threads take. Closing the queue ends their waits; one
 * that has taken the last entry may be about to wait again, so the queue is destroyed when all have ended. */
static void several_threads_and_contexts(void) {
  static int64_t data[2][SEVERAL][COUNT];
  static struct taking taking;
  gloo_rs_context_t *contexts[2];
  gloo_rs_request_t *requests[2][SEVERAL];
  pthread_t threads[THREADS];
  int rounds = test_is_slow() ? 3 : 100, round, c, n, i;
  contexts[0] = connected_context();
  CHECK_OK(gloo_rs_context_split(contexts[0], 0, test_rank, &contexts[1]));
  taking.queue = create_queue();
  for (c = 0; c < 2; c++)
    for (n = 0; n < SEVERAL; n++) {
      requests[c][n] = prepare_sum(contexts[c], data[c][n], COUNT, (uint64_t)n);
      CHECK_OK(gloo_rs_queue_attach(taking.queue, requests[c][n], (uint64_t)(c * SEVERAL + n)));
    }
  for (i = 0; i < THREADS; i++) threads[i] = start_thread(takes, &taking);
  for (round = 1; round <= rounds; round++) {
    /* All on one context, then all on both, then one at a time. */
    for (c = 0; c < 2; c++)
      for (n = 0; n < SEVERAL; n++) {
        int used = round % 3 == 0 ? c == 0 : 1, *seen = &taking.seen[c * SEVERAL + n], before = *seen;
        if (!used) continue;
        for (i = 0; i < COUNT; i++) data[c][n][i] = round + test_rank;
        CHECK_OK(gloo_rs_start(requests[c][n]));
        while (round % 3 == 1 && __atomic_load_n(seen, __ATOMIC_SEQ_CST) == before) sched_yield();
      }
    for (c = 0; c < 2; c++)
      for (n = 0; n < SEVERAL; n++) {
        int starts = round - (c == 1 ? round / 3 : 0);
        while (__atomic_load_n(&taking.seen[c * SEVERAL + n], __ATOMIC_SEQ_CST) < starts) sched_yield();
        CHECK_INT(taking.seen[c * SEVERAL + n], starts);
        if (round % 3 != 0 || c == 0)
          CHECK_INT(data[c][n][COUNT - 1], (int64_t)test_size * round + (int64_t)test_size * (test_size - 1) / 2);
      }
  }
  CHECK_OK(gloo_rs_queue_close(taking.queue));
  for (i = 0; i < THREADS; i++) join_thread(threads[i]);
  CHECK_OK(gloo_rs_queue_destroy(taking.queue));
  for (c = 0; c < 2; c++) {
    for (n = 0; n < SEVERAL; n++) {
      /* An inactive request is attached no more. */
      if (n == 0) {
        CHECK_OK(gloo_rs_start(requests[c][n]));
        CHECK_OK(gloo_rs_wait(requests[c][n]));
      }
      CHECK_OK(gloo_rs_request_free(requests[c][n]));
    }
    gloo_rs_context_destroy(contexts[c]);
  }
}

/* No thread is in a call of the library when a call ends. */
static void an_event_loop(void) {
  static int64_t data[2][100000];
  gloo_rs_context_t *contexts[2];
  gloo_rs_queue_t *queue = create_queue();
  int fd = -1, round, n;
  size_t c, i;
  contexts[0] = connected_context();
  CHECK_OK(gloo_rs_context_split(contexts[0], 0, test_rank, &contexts[1]));
  for (round = 0; round < 20; round++)
    for (c = 0; c < sizeof counts / sizeof *counts; c++) {
      gloo_rs_request_t *requests[2];
      uint64_t user, seen = 0;
      for (n = 0; n < 2; n++) {
        for (i = 0; i < counts[c]; i++) data[n][i] = test_rank + n;
        requests[n] = start_sum(contexts[n], data[n], counts[c], 0, NULL);
        CHECK_OK(gloo_rs_queue_attach(queue, requests[n], (uint64_t)n + 1));
      }
      if (round == 0 && c == 0) {
        /* What was there before the descriptor. */
        sleep_ms(20);
        fd = descriptor(queue);
      }
      for (n = 0; n < 2; n++) {
        CHECK_OK(next_by_loop(queue, fd, &user));
        seen += user;
      }
      CHECK_INT(seen, 3);
      CHECK(!is_readable(fd, 0));
      for (n = 0; n < 2; n++) {
        for (i = 0; i < counts[c]; i++)
          CHECK_INT(data[n][i], (int64_t)test_size * n + (int64_t)test_size * (test_size - 1) / 2);
        CHECK_OK(gloo_rs_request_free(requests[n]));
      }
    }
  CHECK_OK(gloo_rs_queue_destroy(queue));
  CHECK(fcntl(fd, F_GETFD) == -1);
  for (n = 0; n < 2; n++) gloo_rs_context_destroy(contexts[n]);
}

static void one_thread_over_tcp(void) { without_shared_memory(one_thread); }
static void threads_over_tcp(void) { without_shared_memory(several_threads_and_contexts); }
static void loop_over_tcp(void) { without_shared_memory(an_event_loop); }

/* ---- threads that are lent ---- */

struct lending {
  gloo_rs_context_t *context;
  int64_t timeout_ms;
  /* What the last call has returned, and for which reason. */
  gloo_rs_status_t ended;
  char why[200];
};

static void *lends(void *argument) {
  struct lending *lending = (struct lending *)argument;
  do lending->ended = gloo_rs_progress(lending->context, lending->timeout_ms);
  while (lending->ended == GLOO_RS_OK);
  snprintf(lending->why, sizeof lending->why, "%s", gloo_rs_last_error_message());
  return NULL;
}

/* The program's own thread only looks at its requests. Threads that are lent call their functions, some of them for a
 * millisecond at a time, until the end of the context. */
static void lent_threads(void) {
  static int64_t data[SEVERAL][COUNT];
  static struct lending lending[THREADS];
  pthread_t threads[THREADS];
  gloo_rs_context_t *context = connected_context();
  gloo_rs_request_t *requests[SEVERAL];
  int round, n;
  for (n = 0; n < THREADS; n++) {
    lending[n].context = context;
    lending[n].timeout_ms = n == 0 ? GLOO_RS_TIMEOUT_INFINITE : n;
    threads[n] = start_thread(lends, &lending[n]);
  }
  for (round = 0; round < 10; round++) {
    int64_t until = now_ms() + test_timeout_ms();
    for (n = 0; n < SEVERAL; n++) {
      data[n][COUNT - 1] = n + test_rank;
      requests[n] = start_sum(context, data[n], COUNT, (uint64_t)n, add_numbers);
    }
    for (n = 0; n < SEVERAL; n++) {
      while (state_of(requests[n]) != GLOO_RS_REQUEST_ENDED) {
        CHECK(now_ms() < until);
        sleep_ms(1);
      }
      CHECK_OK(gloo_rs_wait(requests[n]));
      CHECK_INT(data[n][COUNT - 1], (int64_t)test_size * n + (int64_t)test_size * (test_size - 1) / 2);
      CHECK_OK(gloo_rs_request_free(requests[n]));
    }
  }
  meet(context);
  CHECK_OK(gloo_rs_context_close(context));
  for (n = 0; n < THREADS; n++) {
    join_thread(threads[n]);
    CHECK_CONTAINS(lending[n].why, "gloo_rs_progress: rank");
    CHECK_CONTAINS(lending[n].why, "closed");
  }
  CHECK(gloo_rs_progress(context, 0) == lending[0].ended);
  gloo_rs_context_destroy(context);
}

static void lent_over_tcp(void) { without_shared_memory(lent_threads); }

static void lent_in_vain(void) {
  gloo_rs_context_t *context = connected_context();
  int64_t began = now_ms();
  pid_t child;
  int status;
  CHECK_INVALID(gloo_rs_progress(NULL, 0), "context is NULL");
  CHECK_INVALID(gloo_rs_progress(context, -7), "timeout_ms is -7");
  CHECK_OK(gloo_rs_progress(context, 0));
  CHECK_OK(gloo_rs_progress(context, 30));
  CHECK(now_ms() - began >= 30);
  child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK_FAILS(gloo_rs_progress(context, 0), GLOO_RS_ERROR_INVALID_OPERATION, "a child by fork");
    gloo_rs_context_destroy(context);
    /* Another program, for which valgrind makes its own account. */
    execlp("true", "true", (char *)NULL);
    _exit(127);
  }
  CHECK_INT(waitpid(child, &status, 0), child);
  CHECK_INT(status, 0);
  gloo_rs_context_destroy(context);
}

/* ---- requests that are freed ---- */

static void freed_while_active(void) {
  static int64_t data[2][COUNT];
  gloo_rs_context_t *context = connected_context();
  gloo_rs_queue_t *queue = create_queue();
  gloo_rs_request_t *request;
  gloo_rs_store_t *store = open_store();
  const char *key = "freed";
  meet(context);
  if (test_rank == 1) CHECK_OK(gloo_rs_store_wait(store, &key, 1, test_timeout_ms()));
  data[0][0] = 1;
  request = start_sum(context, data[0], COUNT, 0, NULL);
  CHECK_OK(gloo_rs_queue_attach(queue, request, 8));
  CHECK_OK(gloo_rs_request_free(request));
  if (test_rank == 0) {
    CHECK_INVALID(gloo_rs_start(request), "not a live gloo_rs_request_t");
    CHECK_FAILS(gloo_rs_queue_destroy(queue), GLOO_RS_ERROR_INVALID_OPERATION, "1 request is active that it reports");
    expect_none(queue, 0);
    CHECK_OK(gloo_rs_store_set(store, key, "", 0));
  }
  /* The request keeps the connections. */
  gloo_rs_context_destroy(context);
  expect_entry(queue, 8);
  CHECK_INT(data[0][0], test_size);
  expect_none(queue, 0);
  CHECK_OK(gloo_rs_queue_destroy(queue));
  gloo_rs_store_destroy(store);
}

/* A request may be freed that nobody has started, or whose entry nobody has taken. */
static void freed_otherwise(void) {
  static int64_t data[2][COUNT];
  gloo_rs_context_t *context = connected_context();
  gloo_rs_queue_t *queue = create_queue();
  gloo_rs_request_t *requests[2];
  int fd = descriptor(queue);
  requests[0] = prepare_sum(context, data[0], COUNT, 0);
  requests[1] = prepare_sum(context, data[1], COUNT, 1);
  CHECK_OK(gloo_rs_queue_attach(queue, requests[0], 0));
  CHECK_OK(gloo_rs_queue_attach(queue, requests[1], 1));
  CHECK_OK(gloo_rs_start(requests[1]));
  CHECK(is_readable(fd, test_timeout_ms()));
  CHECK_OK(gloo_rs_request_free(requests[0]));
  CHECK_OK(gloo_rs_request_free(requests[1]));
  expect_entry(queue, 1);
  CHECK_OK(gloo_rs_queue_destroy(queue));
  gloo_rs_context_destroy(context);
}

/* ---- failures ---- */

/* No other rank starts the call. */
static void closed(void) {
  static int64_t data[2][COUNT];
  gloo_rs_context_t *context = connected_context();
  gloo_rs_queue_t *queue = create_queue();
  gloo_rs_store_t *store = open_store();
  const char *key = "closed";
  meet(context);
  if (test_rank == 0) {
    gloo_rs_request_t *requests[2];
    uint64_t user, seen = 0;
    int fd = descriptor(queue), n;
    for (n = 0; n < 2; n++) {
      requests[n] = start_sum(context, data[n], COUNT, (uint64_t)n, n ? add_numbers : NULL);
      CHECK_OK(gloo_rs_queue_attach(queue, requests[n], (uint64_t)n + 1));
    }
    /* Until the next look at the calls is far away. */
    for (n = 0; n < 4; n++) {
      sleep_ms(30);
      expect_none(queue, 0);
    }
    CHECK_OK(gloo_rs_context_close(context));
    CHECK(is_readable(fd, 0));
    for (n = 0; n < 2; n++) {
      CHECK_INT(next_by_loop(queue, fd, &user), GLOO_RS_ERROR_CLOSED);
      CHECK_CONTAINS(gloo_rs_last_error_message(), "rank 0 has closed this context");
      CHECK_ERROR(GLOO_RS_ERROR_CLOSED, -1, "allreduce");
      seen += user;
    }
    CHECK_INT(seen, 3);
    for (n = 0; n < 2; n++) CHECK_OK(gloo_rs_request_free(requests[n]));
    CHECK_OK(gloo_rs_store_set(store, key, "", 0));
  } else {
    CHECK_OK(gloo_rs_store_wait(store, &key, 1, test_timeout_ms()));
  }
  CHECK_OK(gloo_rs_queue_destroy(queue));
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
}

/* Nobody but the event loop knows of the timeout of the call; then a thread that waits does. */
static void timed_out(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_queue_t *queue = create_queue();
  gloo_rs_store_t *store = open_store();
  const char *key = "timed out";
  meet(context);
  if (test_rank == 0) {
    static int64_t data[COUNT];
    gloo_rs_collective_options_t options;
    gloo_rs_request_t *request = NULL;
    gloo_rs_error_t error;
    void *outputs[1];
    int64_t begin = now_ms();
    uint64_t user = 0;
    int fd = descriptor(queue);
    fill_sum(&options, outputs, data, COUNT, 4);
    options.timeout_ms = 300;
    CHECK_OK(gloo_rs_collective_start(context, GLOO_RS_ALLREDUCE, &options, &request));
    CHECK_OK(gloo_rs_queue_attach(queue, request, 6));
    CHECK_INT(next_by_loop(queue, fd, &user), GLOO_RS_ERROR_TIMEOUT);
    CHECK(now_ms() - begin >= 300);
    CHECK_INT(user, 6);
    CHECK_CONTAINS(gloo_rs_last_error_message(), "allreduce");
    CHECK_CONTAINS(gloo_rs_last_error_message(), "tag 4");
    CHECK_CONTAINS(gloo_rs_last_error_message(), "timed out after 300ms");
    CHECK_ERROR(GLOO_RS_ERROR_TIMEOUT, 1, "allreduce");
    error = last_error();
    CHECK(error.bytes_wanted > 0);
    CHECK_OK(gloo_rs_request_free(request));
    CHECK_OK(gloo_rs_store_set(store, key, "", 0));
  } else {
    CHECK_OK(gloo_rs_store_wait(store, &key, 1, test_timeout_ms()));
  }
  CHECK_OK(gloo_rs_queue_destroy(queue));
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
}

static void timed_out_over_tcp(void) { without_shared_memory(timed_out); }
static void closed_over_tcp(void) { without_shared_memory(closed); }

/* Rank 1 is killed, while rank 0 waits in a loop or by a thread. */
static void a_peer_dies(int by_loop) {
  static int64_t data[COUNT];
  gloo_rs_context_t *context = connected_context();
  gloo_rs_queue_t *queue = create_queue();
  gloo_rs_store_t *store = open_store();
  const char *key = "started";
  gloo_rs_status_t status = GLOO_RS_OK;
  uint64_t user = 0;
  meet(context);
  if (test_rank == 1) {
    CHECK_OK(gloo_rs_store_wait(store, &key, 1, test_timeout_ms()));
    kill(getpid(), SIGKILL);
    for (;;) pause();
  } else {
    gloo_rs_request_t *request = start_sum(context, data, COUNT, 0, NULL);
    int fd = by_loop ? descriptor(queue) : -1;
    CHECK_OK(gloo_rs_queue_attach(queue, request, 3));
    CHECK_OK(gloo_rs_store_set(store, key, "", 0));
    if (by_loop) {
      status = next_by_loop(queue, fd, &user);
    } else {
      CHECK_OK(gloo_rs_queue_wait(queue, GLOO_RS_TIMEOUT_INFINITE, &user, &status));
    }
    CHECK_INT(status, GLOO_RS_ERROR_CONNECTION_LOST);
    CHECK_ERROR(GLOO_RS_ERROR_CONNECTION_LOST, 1, "allreduce");
    CHECK_INT(user, 3);
    /* A start that fails has no entry. */
    CHECK_FAILS(gloo_rs_start(request), GLOO_RS_ERROR_CONNECTION_LOST, "the context is broken");
    CHECK_FAILS(gloo_rs_wait(request), GLOO_RS_ERROR_INVALID_OPERATION, "the request is inactive");
    expect_none(queue, 0);
    CHECK_OK(gloo_rs_request_free(request));
  }
  CHECK_OK(gloo_rs_queue_destroy(queue));
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
}

static void a_peer_dies_for_a_loop(void) { a_peer_dies(1); }
static void a_peer_dies_for_a_thread(void) { a_peer_dies(0); }

/* ---- messages of unbound buffers ---- */

static gloo_rs_queue_entry_t next_entry(gloo_rs_queue_t *queue) {
  gloo_rs_queue_entry_t entry;
  gloo_rs_queue_entry_init(&entry, sizeof entry);
  CHECK_INT(entry.rank, -1);
  CHECK_OK(gloo_rs_queue_wait_entry(queue, GLOO_RS_TIMEOUT_INFINITE, &entry));
  return entry;
}

static gloo_rs_unbound_buffer_t *unbound(gloo_rs_context_t *context, void *data, size_t bytes) {
  gloo_rs_unbound_buffer_t *buffer = NULL;
  CHECK_OK(gloo_rs_unbound_buffer_create(context, data, bytes, &buffer));
  return buffer;
}

/* Messages from the left and to the right, short and long, some begun before the buffers are attached; and a request. */
static void messages(void) {
  static char outgoing[SEVERAL][100000], incoming[SEVERAL][100000];
  static int64_t data[COUNT];
  gloo_rs_context_t *context = connected_context();
  gloo_rs_queue_t *queue = create_queue();
  gloo_rs_unbound_buffer_t *send = unbound(context, outgoing, sizeof outgoing), *recv = unbound(context, incoming, sizeof incoming);
  int left = (test_rank + test_size - 1) % test_size, right = (test_rank + 1) % test_size, round, n, ended[3];
  int32_t all[MAX_RANKS], rank;
  size_t bytes;
  for (rank = 0; rank < test_size; rank++) all[rank] = rank;
  for (round = 0; round < 10; round++) {
    const size_t length = round % 2 ? sizeof *outgoing : 100;
    gloo_rs_request_t *request;
    memset(ended, 0, sizeof ended);
    memset(incoming, 0, sizeof incoming);
    for (n = 0; n < SEVERAL; n++) {
      memset(outgoing[n], 1 + test_rank + n + round, length);
      if (n % 2)
        CHECK_OK(gloo_rs_unbound_buffer_recv_any(recv, all, (size_t)test_size, (uint64_t)n, (size_t)n * sizeof *incoming, sizeof *incoming));
      else
        CHECK_OK(gloo_rs_unbound_buffer_recv(recv, left, (uint64_t)n, (size_t)n * sizeof *incoming, sizeof *incoming));
      CHECK_OK(gloo_rs_unbound_buffer_send(send, right, (uint64_t)n, (size_t)n * sizeof *outgoing, length));
      if (round == 0 && n == SEVERAL / 2) {
        CHECK_OK(gloo_rs_queue_attach_buffer(queue, send, 7));
        CHECK_OK(gloo_rs_queue_attach_buffer(queue, recv, 8));
        CHECK_FAILS(gloo_rs_queue_attach_buffer(queue, recv, 8), GLOO_RS_ERROR_INVALID_OPERATION, "attached to a queue already");
      }
    }
    request = start_sum(context, data, COUNT, 0, NULL);
    CHECK_OK(gloo_rs_queue_attach(queue, request, 9));
    for (n = 0; n < 2 * SEVERAL + 1; n++) {
      gloo_rs_queue_entry_t entry = next_entry(queue);
      CHECK_OK(entry.status);
      ended[entry.kind]++;
      CHECK_INT(entry.user, entry.kind == GLOO_RS_ENTRY_REQUEST ? 9 : entry.kind == GLOO_RS_ENTRY_SEND ? 7 : 8);
      CHECK_INT(entry.rank, entry.kind == GLOO_RS_ENTRY_REQUEST ? -1 : entry.kind == GLOO_RS_ENTRY_SEND ? right : left);
      CHECK_INT(entry.bytes, entry.kind == GLOO_RS_ENTRY_REQUEST ? 0 : length);
    }
    CHECK(ended[GLOO_RS_ENTRY_REQUEST] == 1 && ended[GLOO_RS_ENTRY_SEND] == SEVERAL && ended[GLOO_RS_ENTRY_RECV] == SEVERAL);
    expect_none(queue, 0);
    for (n = 0; n < SEVERAL; n++)
      CHECK(incoming[n][0] == 1 + left + n + round && incoming[n][length - 1] == 1 + left + n + round);
    CHECK_OK(gloo_rs_request_free(request));
  }
  CHECK_FAILS(gloo_rs_unbound_buffer_wait_send(send, 0, &rank), GLOO_RS_ERROR_INVALID_OPERATION, "is attached to a queue");
  CHECK_FAILS(gloo_rs_unbound_buffer_wait_recv(recv, 0, &rank, &bytes), GLOO_RS_ERROR_INVALID_OPERATION, "is attached to a queue");
  /* What a queue that is closed has not reported, waits do. */
  CHECK_OK(gloo_rs_unbound_buffer_recv(recv, left, 99, 0, 8));
  CHECK_OK(gloo_rs_unbound_buffer_send(send, right, 99, 0, 8));
  barrier(context);
  CHECK_OK(gloo_rs_queue_destroy(queue));
  CHECK_OK(gloo_rs_unbound_buffer_wait_send(send, test_timeout_ms(), &rank));
  CHECK_INT(rank, right);
  CHECK_OK(gloo_rs_unbound_buffer_wait_recv(recv, test_timeout_ms(), &rank, &bytes));
  CHECK(rank == left && bytes == 8);
  gloo_rs_unbound_buffer_destroy(send);
  gloo_rs_unbound_buffer_destroy(recv);
  gloo_rs_context_destroy(context);
}

/* A loop receives, and nobody waits. Then a buffer is destroyed with entries that nobody has taken, and the context closed. */
static void messages_for_a_loop(void) {
  static char outgoing[100000], incoming[100000];
  gloo_rs_context_t *context = connected_context();
  gloo_rs_queue_t *queue = create_queue();
  gloo_rs_unbound_buffer_t *send = unbound(context, outgoing, sizeof outgoing), *recv = unbound(context, incoming, sizeof incoming);
  int fd = descriptor(queue), peer = 1 - test_rank, round;
  uint64_t user, seen;
  CHECK_OK(gloo_rs_queue_attach_buffer(queue, send, 1));
  CHECK_OK(gloo_rs_queue_attach_buffer(queue, recv, 2));
  for (round = 0; round < 20; round++) {
    size_t length = round % 2 ? sizeof outgoing : 1;
    memset(outgoing, round + test_rank, length);
    CHECK_OK(gloo_rs_unbound_buffer_recv(recv, peer, 0, 0, sizeof incoming));
    CHECK_OK(gloo_rs_unbound_buffer_send(send, peer, 0, 0, length));
    CHECK_OK(next_by_loop(queue, fd, &seen));
    CHECK_OK(next_by_loop(queue, fd, &user));
    CHECK_INT(seen + user, 3);
    CHECK(incoming[length - 1] == round + peer);
    CHECK(!is_readable(fd, 0));
  }
  CHECK_OK(gloo_rs_unbound_buffer_send(send, peer, 1, 0, 1));
  CHECK(is_readable(fd, test_timeout_ms()));
  gloo_rs_unbound_buffer_destroy(send);
  CHECK(!is_readable(fd, 0));
  expect_none(queue, 0);
  CHECK_OK(gloo_rs_unbound_buffer_recv(recv, peer, 2, 0, 1));
  CHECK_OK(gloo_rs_context_close(context));
  CHECK(next_by_loop(queue, fd, &user) != GLOO_RS_OK);
  CHECK_CONTAINS(gloo_rs_last_error_message(), "wait for a receive of a buffer of 100000 bytes");
  CHECK_TEXT(last_error().operation, "recv");
  CHECK_INT(user, 2);
  gloo_rs_unbound_buffer_destroy(recv);
  CHECK_OK(gloo_rs_queue_destroy(queue));
  gloo_rs_context_destroy(context);
}

static void messages_over_tcp(void) { without_shared_memory(messages); }
static void messages_for_a_loop_over_tcp(void) { without_shared_memory(messages_for_a_loop); }

/* ---- wrong use, and processes ---- */

static void wrong_use(void) {
  static int64_t data[COUNT];
  gloo_rs_context_t *context = connected_context();
  gloo_rs_queue_t *queue = create_queue(), *other = create_queue();
  gloo_rs_request_t *request = prepare_sum(context, data, COUNT, 0);
  gloo_rs_queue_entry_t entry;
  gloo_rs_status_t status;
  uint64_t user;
  int fd;
  CHECK_INVALID(gloo_rs_queue_create(NULL), "queue is NULL");
  CHECK_INVALID(gloo_rs_queue_attach(NULL, request, 0), "queue is NULL");
  CHECK_INVALID(gloo_rs_queue_attach(queue, NULL, 0), "request is NULL");
  CHECK_INVALID(gloo_rs_queue_attach(queue, (gloo_rs_request_t *)context, 0), "not a live gloo_rs_request_t");
  CHECK_INVALID(gloo_rs_queue_attach((gloo_rs_queue_t *)request, request, 0), "not a live gloo_rs_queue_t");
  CHECK_INVALID(gloo_rs_queue_wait(NULL, 0, &user, &status), "queue is NULL");
  CHECK_INVALID(gloo_rs_queue_wait(queue, 0, NULL, &status), "user is NULL");
  CHECK_INVALID(gloo_rs_queue_wait(queue, 0, &user, NULL), "status is NULL");
  CHECK_INVALID(gloo_rs_queue_wait(queue, -2, &user, &status), "timeout_ms is -2");
  gloo_rs_queue_entry_init(&entry, sizeof entry);
  CHECK_INVALID(gloo_rs_queue_wait_entry(NULL, 0, &entry), "queue is NULL");
  CHECK_INVALID(gloo_rs_queue_wait_entry(queue, 0, NULL), "entry is NULL");
  CHECK_FAILS(gloo_rs_queue_wait_entry(queue, 0, &entry), GLOO_RS_ERROR_TIMEOUT, "there is no entry");
  entry.struct_size = 0;
  CHECK_INVALID(gloo_rs_queue_wait_entry(queue, 0, &entry), "struct_size");
  CHECK_INVALID(gloo_rs_queue_attach_buffer(NULL, NULL, 0), "queue is NULL");
  CHECK_INVALID(gloo_rs_queue_attach_buffer(queue, NULL, 0), "buffer is NULL");
  CHECK_INVALID(gloo_rs_queue_attach_buffer(queue, (gloo_rs_unbound_buffer_t *)request, 0), "not a live gloo_rs_unbound_buffer_t");
  CHECK_INVALID(gloo_rs_queue_close(NULL), "queue is NULL");
  CHECK_INVALID(gloo_rs_queue_fd(NULL, &fd), "queue is NULL");
  CHECK_INVALID(gloo_rs_queue_fd(queue, NULL), "fd is NULL");
  CHECK_OK(gloo_rs_queue_destroy(NULL));
  CHECK_INVALID(gloo_rs_queue_destroy((gloo_rs_queue_t *)request), "not a live gloo_rs_queue_t");
  CHECK_OK(gloo_rs_queue_attach(queue, request, 1));
  CHECK_FAILS(gloo_rs_queue_attach(queue, request, 2), GLOO_RS_ERROR_INVALID_OPERATION, "is attached to a queue already");
  CHECK_FAILS(gloo_rs_queue_attach(other, request, 2), GLOO_RS_ERROR_INVALID_OPERATION, "is attached to a queue already");
  CHECK_FAILS(gloo_rs_wait(request), GLOO_RS_ERROR_INVALID_OPERATION, "the request is inactive: start it first");
  CHECK_OK(gloo_rs_start(request));
  CHECK_FAILS(gloo_rs_queue_attach(other, request, 2), GLOO_RS_ERROR_INVALID_OPERATION, "is attached to a queue already");
  CHECK_FAILS(gloo_rs_queue_destroy(queue), GLOO_RS_ERROR_INVALID_OPERATION, "take their entries first");
  expect_entry(queue, 1);
  expect_none(other, 2);
  CHECK_OK(gloo_rs_queue_close(queue));
  CHECK_OK(gloo_rs_queue_close(queue));
  CHECK_FAILS(gloo_rs_queue_wait(queue, 0, &user, &status), GLOO_RS_ERROR_CLOSED, "the queue is closed");
  CHECK_FAILS(gloo_rs_queue_attach(queue, request, 0), GLOO_RS_ERROR_CLOSED, "the queue is closed");
  CHECK_FAILS(gloo_rs_queue_fd(queue, &fd), GLOO_RS_ERROR_CLOSED, "the queue is closed");
  CHECK_OK(gloo_rs_queue_destroy(queue));
  CHECK_OK(gloo_rs_queue_attach(other, request, 2));
  CHECK_OK(gloo_rs_start(request));
  expect_entry(other, 2);
  CHECK_OK(gloo_rs_request_free(request));
  CHECK_OK(gloo_rs_queue_destroy(other));
  gloo_rs_context_destroy(context);
}

/* A child has neither the queue nor its descriptor. */
static void a_rank_forks(void) {
  static int64_t data[COUNT];
  gloo_rs_context_t *context = connected_context();
  gloo_rs_queue_t *queue = create_queue();
  gloo_rs_request_t *request = prepare_sum(context, data, COUNT, 0);
  int fd = descriptor(queue), round, status;
  CHECK_OK(gloo_rs_queue_attach(queue, request, 1));
  for (round = 0; round < 2; round++) {
    pid_t child;
    data[0] = 3;
    CHECK_OK(gloo_rs_start(request));
    CHECK(is_readable(fd, test_timeout_ms()));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      uint64_t user;
      gloo_rs_status_t ended;
      CHECK(!is_readable(fd, 0));
      CHECK_FAILS(gloo_rs_queue_wait(queue, 0, &user, &ended), GLOO_RS_ERROR_INVALID_OPERATION, "a child by fork");
      CHECK_OK(gloo_rs_request_free(request));
      CHECK_OK(gloo_rs_queue_destroy(queue));
      gloo_rs_context_destroy(context);
      /* Another program, for which valgrind makes its own account. */
      execlp("true", "true", (char *)NULL);
      _exit(127);
    }
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
    expect_entry(queue, 1);
    CHECK_INT(data[0], 3 * test_size);
  }
  CHECK_OK(gloo_rs_request_free(request));
  CHECK_OK(gloo_rs_queue_destroy(queue));
  gloo_rs_context_destroy(context);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"one_thread", 1, one_thread, -1},
      {"one_thread", 3, one_thread, -1},
      {"one_thread_over_tcp", 3, one_thread_over_tcp, -1},
      {"started_again", 1, started_again, -1},
      {"started_again", 2, started_again, -1},
      {"started_again", 4, started_again, -1},
      {"several_threads_and_contexts", 1, several_threads_and_contexts, -1},
      {"several_threads_and_contexts", 3, several_threads_and_contexts, -1},
      {"threads_over_tcp", 3, threads_over_tcp, -1},
      {"an_event_loop", 1, an_event_loop, -1},
      {"an_event_loop", 2, an_event_loop, -1},
      {"loop_over_tcp", 3, loop_over_tcp, -1},
      {"lent_threads", 1, lent_threads, -1},
      {"lent_threads", 3, lent_threads, -1},
      {"lent_over_tcp", 2, lent_over_tcp, -1},
      {"lent_in_vain", 2, lent_in_vain, -1},
      {"freed_while_active", 2, freed_while_active, -1},
      {"freed_otherwise", 2, freed_otherwise, -1},
      {"closed", 2, closed, -1},
      {"closed_over_tcp", 2, closed_over_tcp, -1},
      {"timed_out", 2, timed_out, -1},
      {"timed_out_over_tcp", 2, timed_out_over_tcp, -1},
      {"a_peer_dies_for_a_loop", 2, a_peer_dies_for_a_loop, 1},
      {"a_peer_dies_for_a_thread", 2, a_peer_dies_for_a_thread, 1},
      {"messages", 1, messages, -1},
      {"messages", 3, messages, -1},
      {"messages_over_tcp", 3, messages_over_tcp, -1},
      {"messages_for_a_loop", 2, messages_for_a_loop, -1},
      {"messages_for_a_loop_over_tcp", 2, messages_for_a_loop_over_tcp, -1},
      {"wrong_use", 2, wrong_use, -1},
      {"a_rank_forks", 2, a_rank_forks, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
