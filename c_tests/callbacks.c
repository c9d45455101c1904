/* Callbacks of requests and of unbound buffers: each end is told once, over shared memory and TCP, while no thread of the
 * program is in the library; callbacks that wait for each other; and what they do to what they have ended for. */
#include "sums.h"

#include <dirent.h>

enum { SEVERAL = 8, COUNT = 1000 };

static int load(const int *value) { return __atomic_load_n(value, __ATOMIC_SEQ_CST); }
static int add(int *value) { return __atomic_add_fetch(value, 1, __ATOMIC_SEQ_CST); }

/* Waits until others have counted so far, without a call of the library. */
static void await(const int *value, int expected) {
  int64_t until = now_ms() + test_timeout_ms();
  while (load(value) < expected) {
    CHECK(now_ms() < until);
    sleep_ms(1);
  }
  CHECK_INT(load(value), expected);
}

/* What one request, or buffer, does in the tests. */
struct own {
  gloo_rs_request_t *request;
  gloo_rs_context_t *context;
  int64_t data[COUNT];
  int ended, destroyed;
  gloo_rs_status_t status;
  char why[300];
};

static void expect_request(const gloo_rs_queue_entry_t *entry) {
  CHECK_INT(entry->struct_size, sizeof *entry);
  CHECK_INT(entry->kind, GLOO_RS_ENTRY_REQUEST);
  CHECK(entry->user == 0 && entry->rank == -1 && entry->bytes == 0);
}

static void ends(const gloo_rs_queue_entry_t *entry, void *user) {
  struct own *own = (struct own *)user;
  expect_request(entry);
  own->status = entry->status;
  if (entry->status != GLOO_RS_OK) snprintf(own->why, sizeof own->why, "%s", gloo_rs_last_error_message());
  add(&own->ended);
}

static void destroys(void *user) { add(&((struct own *)user)->destroyed); }

static void call_back(struct own *own, gloo_rs_callback_fn_t callback) {
  CHECK_OK(gloo_rs_request_set_callback(own->request, callback, own, destroys));
}

/* ---- ends ---- */

/* Set before the start, or after it; with functions of the caller, which no thread of the program calls. */
static void each_end(void) {
  static struct own all[SEVERAL];
  gloo_rs_context_t *context = connected_context();
  int rounds = test_is_slow() ? 3 : 20, round, n, i;
  for (round = 1; round <= rounds; round++) {
    for (n = 0; n < SEVERAL; n++) {
      struct own *own = &all[n];
      size_t count = n % 2 ? 1 : COUNT;
      for (i = 0; i < COUNT; i++) own->data[i] = n + test_rank;
      if (n % 4 == 0) {
        own->request = prepare_sum(context, own->data, count, (uint64_t)n);
        call_back(own, ends);
        CHECK_OK(gloo_rs_start(own->request));
      } else {
        own->request = start_sum(context, own->data, count, (uint64_t)n, n % 4 == 2 ? add_numbers : NULL);
        call_back(own, ends);
      }
    }
    for (n = 0; n < SEVERAL; n++) {
      struct own *own = &all[n];
      await(&own->ended, round);
      CHECK_OK(own->status);
      CHECK_INT(own->data[0], (int64_t)test_size * n + (int64_t)test_size * (test_size - 1) / 2);
      CHECK_INT(state_of(own->request), GLOO_RS_REQUEST_INACTIVE);
      CHECK_INT(load(&own->destroyed), round - 1);
      CHECK_OK(gloo_rs_request_free(own->request));
      await(&own->destroyed, round);
    }
  }
  gloo_rs_context_destroy(context);
}

static void each_end_over_tcp(void) { without_shared_memory(each_end); }

/* A callback starts its own request again. */
enum { STARTS = 200 };

static void starts_again(const gloo_rs_queue_entry_t *entry, void *user) {
  struct own *own = (struct own *)user;
  int i;
  expect_request(entry);
  CHECK_OK(entry->status);
  for (i = 0; i < COUNT; i++) CHECK_INT(own->data[i], own->ended + (int64_t)test_size * (test_size - 1) / 2);
  for (i = 0; i < COUNT; i++) own->data[i] = test_rank + (test_rank == 0 ? own->ended + 1 : 0);
  if (add(&own->ended) < STARTS) CHECK_OK(gloo_rs_start(own->request));
}

static void started_again(void) {
  static struct own own;
  gloo_rs_context_t *context = connected_context();
  int i;
  own.request = prepare_sum(context, own.data, COUNT, 0);
  call_back(&own, starts_again);
  for (i = 0; i < COUNT; i++) own.data[i] = test_rank;
  CHECK_OK(gloo_rs_start(own.request));
  await(&own.ended, STARTS);
  CHECK_OK(gloo_rs_request_free(own.request));
  await(&own.destroyed, 1);
  gloo_rs_context_destroy(context);
}

static void started_again_over_tcp(void) { without_shared_memory(started_again); }

/* ---- callbacks that wait ---- */

static int threads(void) {
  DIR *tasks = opendir("/proc/self/task");
  int n = 0;
  CHECK(tasks != NULL);
  while (readdir(tasks) != NULL) n++;
  closedir(tasks);
  return n;
}

static int entered;

/* Returns when all callbacks are entered. */
static void meets(const gloo_rs_queue_entry_t *entry, void *user) {
  CHECK_OK(entry->status);
  add(&entered);
  await(&entered, SEVERAL);
  ends(entry, user);
}

static void waits_for_others(void) {
  static struct own all[SEVERAL];
  gloo_rs_context_t *context = connected_context();
  int64_t until = now_ms() + test_timeout_ms();
  int before, n;
  barrier(context);
  before = threads();
  for (n = 0; n < SEVERAL; n++) {
    all[n].request = start_sum(context, all[n].data, COUNT, (uint64_t)n, NULL);
    call_back(&all[n], meets);
  }
  for (n = 0; n < SEVERAL; n++) {
    await(&all[n].ended, 1);
    CHECK_OK(gloo_rs_request_free(all[n].request));
  }
  /* All but one of their threads end. */
  while (threads() > before + 1) {
    CHECK(now_ms() < until);
    sleep_ms(20);
  }
  gloo_rs_context_destroy(context);
}

/* A callback makes collective calls, and waits for a request and for a callback that comes after it. */
static void calls(const gloo_rs_queue_entry_t *entry, void *user) {
  struct own *own = (struct own *)user, *next = own + 1;
  gloo_rs_request_t *request;
  CHECK_OK(entry->status);
  barrier(own->context);
  own->data[1] = 2;
  request = start_sum(own->context, own->data + 1, 1, 77, NULL);
  CHECK_OK(gloo_rs_wait(request));
  CHECK_INT(own->data[1], 2 * test_size);
  CHECK_OK(gloo_rs_request_free(request));
  next->request = start_sum(own->context, next->data, COUNT, 78, add_numbers);
  call_back(next, ends);
  await(&next->ended, 1);
  CHECK_OK(next->status);
  CHECK_OK(gloo_rs_request_free(next->request));
  ends(entry, user);
}

static void calls_within(void) {
  static struct own all[2];
  all[0].context = connected_context();
  all[0].request = start_sum(all[0].context, all[0].data, COUNT, 0, NULL);
  call_back(&all[0], calls);
  await(&all[0].ended, 1);
  CHECK_OK(gloo_rs_request_free(all[0].request));
  gloo_rs_context_destroy(all[0].context);
}

static void calls_within_over_tcp(void) { without_shared_memory(calls_within); }

/* ---- ends of objects ---- */

/* The program destroys all it has while the call runs. */
static void freed_while_active(void) {
  static struct own own;
  gloo_rs_store_t *store = open_store();
  const char *key = "freed";
  own.context = connected_context();
  meet(own.context);
  if (test_rank == 1) CHECK_OK(gloo_rs_store_wait(store, &key, 1, test_timeout_ms()));
  own.data[0] = 1;
  own.request = start_sum(own.context, own.data, COUNT, 0, NULL);
  call_back(&own, ends);
  CHECK_OK(gloo_rs_request_free(own.request));
  gloo_rs_context_destroy(own.context);
  if (test_rank == 0) {
    CHECK_INT(load(&own.ended), 0);
    CHECK_OK(gloo_rs_store_set(store, key, "", 0));
  }
  await(&own.destroyed, 1);
  CHECK(own.ended == 1 && own.data[0] == test_size);
  CHECK_OK(own.status);
  gloo_rs_store_destroy(store);
}

static void freed_while_active_over_tcp(void) { without_shared_memory(freed_while_active); }

static void destroys_all(const gloo_rs_queue_entry_t *entry, void *user) {
  struct own *own = (struct own *)user;
  CHECK_OK(gloo_rs_request_free(own->request));
  gloo_rs_context_destroy(own->context);
  CHECK_INT(load(&own->destroyed), 0);
  ends(entry, user);
}

/* The last context of its device, whose handle the harness has destroyed. */
static void destroyed_within(void) {
  static struct own own;
  gloo_rs_context_t *context = connected_context();
  int64_t until = now_ms() + test_timeout_ms();
  int before;
  meet(context);
  before = threads();
  own.context = context;
  own.request = start_sum(own.context, own.data, COUNT, 0, NULL);
  call_back(&own, destroys_all);
  await(&own.destroyed, 1);
  CHECK_INT(own.ended, 1);
  /* The threads of the device and of callbacks have ended, or are about to. */
  while (threads() >= before) {
    CHECK(now_ms() < until);
    sleep_ms(1);
  }
}

static void destroyed_within_over_tcp(void) { without_shared_memory(destroyed_within); }

static int may_end;

static void takes_long(const gloo_rs_queue_entry_t *entry, void *user) {
  struct own *own = (struct own *)user;
  add(&own->ended);
  await(&may_end, 1);
  ends(entry, user);
}

static void destroyed_meanwhile(void) {
  static struct own own;
  gloo_rs_context_t *context = connected_context();
  int64_t until = now_ms() + test_timeout_ms();
  int before;
  meet(context);
  before = threads();
  own.request = start_sum(context, own.data, COUNT, 0, NULL);
  call_back(&own, takes_long);
  await(&own.ended, 1);
  CHECK_OK(gloo_rs_request_free(own.request));
  gloo_rs_context_destroy(context);
  /* Nothing waits for the callback. */
  CHECK_INT(load(&own.ended), 1);
  add(&may_end);
  await(&own.destroyed, 1);
  CHECK_INT(own.ended, 2);
  while (threads() >= before) {
    CHECK(now_ms() < until);
    sleep_ms(1);
  }
}

/* If no callback runs, the threads have ended when the device is destroyed. */
static void destroyed_unused(void) {
  static struct own own;
  gloo_rs_context_t *context = connected_context();
  int before;
  meet(context);
  before = threads();
  own.request = prepare_sum(context, own.data, COUNT, 0);
  call_back(&own, ends);
  CHECK_INT(threads(), before + 1);
  CHECK_OK(gloo_rs_request_free(own.request));
  CHECK(own.ended == 0 && own.destroyed == 1);
  gloo_rs_context_destroy(context);
  CHECK_INT(threads(), before - 1);
}

/* ---- failures ---- */

static void closes(const gloo_rs_queue_entry_t *entry, void *user) {
  struct own *own = (struct own *)user;
  CHECK_OK(entry->status);
  CHECK_OK(gloo_rs_context_close(own->context));
  ends(entry, user);
}

/* Rank 0 starts two calls that the others do not start, and closes its context within a callback. */
static void closed_within(void) {
  static struct own all[3];
  gloo_rs_store_t *store = open_store();
  const char *key = "closed";
  gloo_rs_context_t *context = connected_context();
  int n;
  meet(context);
  all[0].context = context;
  if (test_rank == 0)
    for (n = 1; n < 3; n++) {
      all[n].request = start_sum(context, all[n].data, COUNT, (uint64_t)n, n == 2 ? add_numbers : NULL);
      call_back(&all[n], ends);
    }
  all[0].request = start_sum(context, all[0].data, COUNT, 0, NULL);
  call_back(&all[0], test_rank == 0 ? closes : ends);
  await(&all[0].ended, 1);
  CHECK_OK(gloo_rs_request_free(all[0].request));
  if (test_rank == 0) {
    for (n = 1; n < 3; n++) {
      await(&all[n].ended, 1);
      CHECK_INT(all[n].status, GLOO_RS_ERROR_CLOSED);
      CHECK_CONTAINS(all[n].why, "callback: ");
      CHECK_CONTAINS(all[n].why, "rank 0 has closed this context");
      CHECK_FAILS(gloo_rs_start(all[n].request), GLOO_RS_ERROR_CLOSED, "closed");
      CHECK_OK(gloo_rs_request_free(all[n].request));
    }
    CHECK_OK(gloo_rs_store_set(store, key, "", 0));
  } else {
    CHECK_OK(gloo_rs_store_wait(store, &key, 1, test_timeout_ms()));
  }
  gloo_rs_context_destroy(context);
  gloo_rs_store_destroy(store);
}

static void closed_within_over_tcp(void) { without_shared_memory(closed_within); }

static void aborts(const gloo_rs_queue_entry_t *entry, void *user) {
  CHECK_OK(entry->status);
  CHECK_OK(gloo_rs_context_abort(((struct own *)user)->context, "enough"));
  ends(entry, user);
}

/* Rank 0 aborts in a callback; the last rank does not start the call that is aborted. */
static void aborted_within(void) {
  static struct own all[2];
  gloo_rs_context_t *context = connected_context();
  int64_t until = now_ms() + test_timeout_ms();
  bool is_aborted = false;
  meet(context);
  all[0].context = context;
  if (test_rank + 1 < test_size) {
    all[1].request = start_sum(context, all[1].data, COUNT, 1, NULL);
    call_back(&all[1], ends);
  }
  all[0].request = start_sum(context, all[0].data, COUNT, 0, NULL);
  call_back(&all[0], test_rank == 0 ? aborts : ends);
  await(&all[0].ended, 1);
  while (!is_aborted) {
    CHECK(now_ms() < until);
    CHECK_OK(gloo_rs_context_is_aborted(context, &is_aborted));
  }
  if (all[1].request != NULL) {
    await(&all[1].ended, 1);
    CHECK_INT(all[1].status, GLOO_RS_ERROR_ABORTED);
    CHECK_CONTAINS(all[1].why, "enough");
    CHECK_OK(gloo_rs_request_free(all[1].request));
  }
  CHECK_OK(gloo_rs_request_free(all[0].request));
  gloo_rs_context_destroy(context);
}

static void aborted_within_over_tcp(void) { without_shared_memory(aborted_within); }

/* Nobody but the pool knows of the timeout of the call. */
static void timed_out(void) {
  static struct own own;
  gloo_rs_context_t *context = connected_context();
  gloo_rs_store_t *store = open_store();
  const char *key = "timed out";
  meet(context);
  if (test_rank == 0) {
    gloo_rs_collective_options_t options;
    void *outputs[1];
    int64_t begin = now_ms();
    fill_sum(&options, outputs, own.data, COUNT, 4);
    options.timeout_ms = 300;
    CHECK_OK(gloo_rs_collective_start(context, GLOO_RS_ALLREDUCE, &options, &own.request));
    call_back(&own, ends);
    await(&own.ended, 1);
    CHECK(now_ms() - begin >= 300);
    CHECK_INT(own.status, GLOO_RS_ERROR_TIMEOUT);
    CHECK_CONTAINS(own.why, "tag 4");
    CHECK_CONTAINS(own.why, "timed out after 300ms");
    CHECK_OK(gloo_rs_request_free(own.request));
    CHECK_OK(gloo_rs_store_set(store, key, "", 0));
  } else {
    CHECK_OK(gloo_rs_store_wait(store, &key, 1, test_timeout_ms()));
  }
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
}

static void timed_out_over_tcp(void) { without_shared_memory(timed_out); }

/* Rank 1 is killed. */
static void a_peer_dies(void) {
  static struct own own;
  gloo_rs_context_t *context = connected_context();
  gloo_rs_store_t *store = open_store();
  const char *key = "started";
  meet(context);
  if (test_rank == 1) {
    CHECK_OK(gloo_rs_store_wait(store, &key, 1, test_timeout_ms()));
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
  own.request = start_sum(context, own.data, COUNT, 0, NULL);
  call_back(&own, ends);
  CHECK_OK(gloo_rs_store_set(store, key, "", 0));
  await(&own.ended, 1);
  CHECK_INT(own.status, GLOO_RS_ERROR_CONNECTION_LOST);
  CHECK_CONTAINS(own.why, "rank 1");
  /* A start that fails has no callback. */
  CHECK_FAILS(gloo_rs_start(own.request), GLOO_RS_ERROR_CONNECTION_LOST, "the context is broken");
  CHECK_OK(gloo_rs_request_free(own.request));
  await(&own.destroyed, 1);
  CHECK_INT(own.ended, 1);
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
}

static void a_peer_dies_over_tcp(void) { without_shared_memory(a_peer_dies); }

/* ---- messages of unbound buffers ---- */

enum { MESSAGES = 6 };

struct messages {
  gloo_rs_unbound_buffer_t *buffer;
  char data[MESSAGES][100000];
  int ended[3], failed, destroyed, peer;
  size_t bytes;
};

static void message_ends(const gloo_rs_queue_entry_t *entry, void *user) {
  struct messages *messages = (struct messages *)user;
  if (entry->status != GLOO_RS_OK) {
    CHECK_CONTAINS(gloo_rs_last_error_message(), "wait for a receive of a buffer of");
    add(&messages->failed);
    return;
  }
  CHECK_INT(entry->rank, messages->peer);
  CHECK_INT(entry->bytes, messages->bytes);
  add(&messages->ended[entry->kind]);
}

static void message_destroys(void *user) { add(&((struct messages *)user)->destroyed); }

/* Messages to the right and from the left, short and long, some begun before the callbacks are set. */
static void messages(void) {
  static struct messages sends, receives;
  gloo_rs_context_t *context = connected_context();
  int left = (test_rank + test_size - 1) % test_size, right = (test_rank + 1) % test_size, round, n;
  int32_t rank;
  size_t bytes;
  CHECK_OK(gloo_rs_unbound_buffer_create(context, sends.data, sizeof sends.data, &sends.buffer));
  CHECK_OK(gloo_rs_unbound_buffer_create(context, receives.data, sizeof receives.data, &receives.buffer));
  sends.peer = right;
  receives.peer = left;
  for (round = 0; round < 10; round++) {
    const size_t length = round % 2 ? sizeof *sends.data : 100;
    sends.bytes = receives.bytes = length;
    for (n = 0; n < MESSAGES; n++) {
      const size_t offset = (size_t)n * sizeof *sends.data;
      memset(sends.data[n], 1 + test_rank + n + round, length);
      CHECK_OK(gloo_rs_unbound_buffer_recv(receives.buffer, left, (uint64_t)n, offset, sizeof *receives.data));
      CHECK_OK(gloo_rs_unbound_buffer_send(sends.buffer, right, (uint64_t)n, offset, length));
      if (round == 0 && n == MESSAGES / 2) {
        CHECK_OK(gloo_rs_unbound_buffer_set_callback(sends.buffer, message_ends, &sends, message_destroys));
        CHECK_OK(gloo_rs_unbound_buffer_set_callback(receives.buffer, message_ends, &receives, message_destroys));
      }
    }
    await(&sends.ended[GLOO_RS_ENTRY_SEND], MESSAGES * (round + 1));
    await(&receives.ended[GLOO_RS_ENTRY_RECV], MESSAGES * (round + 1));
    for (n = 0; n < MESSAGES; n++)
      CHECK(receives.data[n][0] == 1 + left + n + round && receives.data[n][length - 1] == 1 + left + n + round);
  }
  CHECK_FAILS(gloo_rs_unbound_buffer_wait_send(sends.buffer, 0, &rank), GLOO_RS_ERROR_INVALID_OPERATION,
              "the buffer has a callback, which is called instead");
  CHECK_FAILS(gloo_rs_unbound_buffer_wait_recv(receives.buffer, 0, &rank, &bytes), GLOO_RS_ERROR_INVALID_OPERATION,
              "the buffer has a callback");
  CHECK_FAILS(gloo_rs_unbound_buffer_set_callback(sends.buffer, message_ends, NULL, NULL), GLOO_RS_ERROR_INVALID_OPERATION,
              "the buffer has a callback already");
  CHECK_OK(gloo_rs_unbound_buffer_recv(receives.buffer, left, 99, 0, 8));
  CHECK_OK(gloo_rs_unbound_buffer_recv(receives.buffer, left, 98, 8, 8));
  gloo_rs_unbound_buffer_destroy(sends.buffer);
  await(&sends.destroyed, 1);
  CHECK_OK(gloo_rs_context_close(context));
  await(&receives.failed, 2);
  CHECK_INT(receives.destroyed, 0);
  gloo_rs_unbound_buffer_destroy(receives.buffer);
  await(&receives.destroyed, 1);
  gloo_rs_context_destroy(context);
}

static void messages_over_tcp(void) { without_shared_memory(messages); }

/* ---- wrong use, and processes ---- */

static void wrong_use(void) {
  static struct own own, other;
  gloo_rs_queue_t *queue = NULL;
  gloo_rs_unbound_buffer_t *buffer = NULL;
  gloo_rs_context_t *context = connected_context();
  bool done = false;
  CHECK_OK(gloo_rs_queue_create(&queue));
  own.request = prepare_sum(context, own.data, COUNT, 0);
  other.request = prepare_sum(context, other.data, COUNT, 1);
  CHECK_INVALID(gloo_rs_request_set_callback(NULL, ends, &own, destroys), "request is NULL");
  CHECK_INVALID(gloo_rs_request_set_callback((gloo_rs_request_t *)context, ends, &own, destroys), "not a live gloo_rs_request_t");
  CHECK_INVALID(gloo_rs_request_set_callback(own.request, NULL, &own, destroys), "callback is NULL");
  CHECK_INVALID(gloo_rs_unbound_buffer_set_callback(NULL, message_ends, NULL, NULL), "buffer is NULL");
  CHECK_OK(gloo_rs_unbound_buffer_create(context, own.data, sizeof own.data, &buffer));
  CHECK_INVALID(gloo_rs_unbound_buffer_set_callback(buffer, NULL, NULL, NULL), "callback is NULL");
  CHECK_OK(gloo_rs_queue_attach_buffer(queue, buffer, 0));
  CHECK_FAILS(gloo_rs_unbound_buffer_set_callback(buffer, message_ends, NULL, NULL), GLOO_RS_ERROR_INVALID_OPERATION,
              "the buffer is attached to a queue already");
  gloo_rs_unbound_buffer_destroy(buffer);
  CHECK_OK(gloo_rs_queue_attach(queue, other.request, 0));
  CHECK_FAILS(gloo_rs_request_set_callback(other.request, ends, &other, destroys), GLOO_RS_ERROR_INVALID_OPERATION,
              "cannot set a callback: the request is attached to a queue already");
  call_back(&own, ends);
  CHECK_FAILS(gloo_rs_request_set_callback(own.request, ends, &own, destroys), GLOO_RS_ERROR_INVALID_OPERATION,
              "cannot set a callback: the request has a callback already");
  CHECK_FAILS(gloo_rs_queue_attach(queue, own.request, 0), GLOO_RS_ERROR_INVALID_OPERATION,
              "cannot attach: the request has a callback already");
  CHECK_FAILS(gloo_rs_wait(own.request), GLOO_RS_ERROR_INVALID_OPERATION, "the request is inactive: start it first");
  if (test_rank == 0) {
    CHECK_OK(gloo_rs_start(own.request));
    /* Rank 1 has not started it. */
    CHECK_FAILS(gloo_rs_start(own.request), GLOO_RS_ERROR_INVALID_OPERATION, "the request is active: its callback is called");
    CHECK_FAILS(gloo_rs_wait(own.request), GLOO_RS_ERROR_INVALID_OPERATION, "the request is active: its callback is called");
    CHECK_FAILS(gloo_rs_test(own.request, &done), GLOO_RS_ERROR_INVALID_OPERATION, "its callback is called");
    CHECK_FAILS(gloo_rs_wait_all(&own.request, 1, 0, NULL), GLOO_RS_ERROR_INVALID_OPERATION, "its callback is called");
    barrier(context);
  } else {
    barrier(context);
    CHECK_OK(gloo_rs_start(own.request));
  }
  await(&own.ended, 1);
  CHECK_OK(gloo_rs_request_free(own.request));
  CHECK_OK(gloo_rs_request_free(other.request));
  CHECK_INT(other.destroyed, 0);
  CHECK_OK(gloo_rs_queue_destroy(queue));
  gloo_rs_context_destroy(context);
}

static void forks(const gloo_rs_queue_entry_t *entry, void *user) {
  pid_t child = fork();
  int status;
  CHECK(child >= 0);
  if (child == 0) {
    execlp("true", "true", (char *)NULL);
    _exit(127);
  }
  CHECK_INT(waitpid(child, &status, 0), child);
  CHECK_INT(status, 0);
  ends(entry, user);
}

/* A child has no callbacks. */
static void a_rank_forks(void) {
  static struct own own, other;
  gloo_rs_context_t *context = connected_context();
  int round, status;
  own.request = prepare_sum(context, own.data, COUNT, 0);
  other.request = prepare_sum(context, other.data, COUNT, 1);
  call_back(&own, forks);
  for (round = 1; round <= 2; round++) {
    pid_t child;
    CHECK_OK(gloo_rs_start(own.request));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      CHECK_FAILS(gloo_rs_request_set_callback(other.request, ends, &other, destroys), GLOO_RS_ERROR_INVALID_OPERATION,
                  "a child by fork");
      CHECK_OK(gloo_rs_request_free(own.request));
      CHECK_OK(gloo_rs_request_free(other.request));
      gloo_rs_context_destroy(context);
      /* Another program, for which valgrind makes its own account. */
      execlp("true", "true", (char *)NULL);
      _exit(127);
    }
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
    await(&own.ended, round);
  }
  CHECK_OK(gloo_rs_request_free(own.request));
  CHECK_OK(gloo_rs_request_free(other.request));
  gloo_rs_context_destroy(context);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"each_end", 1, each_end, -1},
      {"each_end", 3, each_end, -1},
      {"each_end_over_tcp", 3, each_end_over_tcp, -1},
      {"started_again", 1, started_again, -1},
      {"started_again", 2, started_again, -1},
      {"started_again_over_tcp", 3, started_again_over_tcp, -1},
      {"waits_for_others", 2, waits_for_others, -1},
      {"calls_within", 1, calls_within, -1},
      {"calls_within", 3, calls_within, -1},
      {"calls_within_over_tcp", 2, calls_within_over_tcp, -1},
      {"freed_while_active", 2, freed_while_active, -1},
      {"freed_while_active_over_tcp", 2, freed_while_active_over_tcp, -1},
      {"destroyed_within", 2, destroyed_within, -1},
      {"destroyed_within_over_tcp", 2, destroyed_within_over_tcp, -1},
      {"destroyed_meanwhile", 2, destroyed_meanwhile, -1},
      {"destroyed_unused", 2, destroyed_unused, -1},
      {"closed_within", 2, closed_within, -1},
      {"closed_within_over_tcp", 2, closed_within_over_tcp, -1},
      {"aborted_within", 3, aborted_within, -1},
      {"aborted_within_over_tcp", 3, aborted_within_over_tcp, -1},
      {"timed_out", 2, timed_out, -1},
      {"timed_out_over_tcp", 2, timed_out_over_tcp, -1},
      {"a_peer_dies", 2, a_peer_dies, 1},
      {"a_peer_dies_over_tcp", 2, a_peer_dies_over_tcp, 1},
      {"messages", 1, messages, -1},
      {"messages", 3, messages, -1},
      {"messages_over_tcp", 3, messages_over_tcp, -1},
      {"wrong_use", 2, wrong_use, -1},
      {"a_rank_forks", 2, a_rank_forks, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
