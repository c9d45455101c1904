/* Groups of starts: collectives and messages that begin together, in whatever order each rank has named them, over shared
 * memory and TCP; and groups that are refused, given up or inherited, of which nothing begins. */
#include "sums.h"

enum { SEVERAL = 6, LONG_COUNT = 100000, SHORT_MS = 20 };

static gloo_rs_group_t *begin(gloo_rs_context_t *context) {
  gloo_rs_group_t *group = NULL;
  CHECK_OK(gloo_rs_group_begin(context, &group));
  return group;
}

/* Adds the sum of the numbers at `data` in place. */
static gloo_rs_request_t *add_sum(gloo_rs_group_t *group, int64_t *data, size_t count, uint64_t tag) {
  gloo_rs_collective_options_t options;
  gloo_rs_request_t *request = NULL;
  void *outputs[1];
  fill_sum(&options, outputs, data, count, tag);
  CHECK_OK(gloo_rs_group_collective_start(group, GLOO_RS_ALLREDUCE, &options, &request));
  CHECK(request != NULL);
  return request;
}

static gloo_rs_unbound_buffer_t *create_buffer(gloo_rs_context_t *context, void *data, size_t bytes) {
  gloo_rs_unbound_buffer_t *buffer = NULL;
  CHECK_OK(gloo_rs_unbound_buffer_create(context, data, bytes, &buffer));
  return buffer;
}

/* ---- what begins ---- */

/* Each rank names the sums of several tags and lengths in an order of its own, and those of one tag in one order. */
static void in_orders_of_their_own(void) {
  static int64_t data[SEVERAL][LONG_COUNT];
  gloo_rs_context_t *context = connected_context();
  int round, n;
  size_t i;
  for (round = 0; round < 5; round++) {
    gloo_rs_request_t *requests[SEVERAL];
    gloo_rs_group_t *group = begin(context);
    for (n = 0; n < SEVERAL; n++) {
      size_t count = n % 3 == 2 ? LONG_COUNT : 1 + 300 * (size_t)n;
      for (i = 0; i < count; i++) data[n][i] = n + test_rank;
    }
    /* Those of two tags each, from another one on at each rank. */
    for (n = 0; n < SEVERAL; n++) {
      int tag = (n / 2 + test_rank + round) % (SEVERAL / 2), at = 2 * tag + n % 2;
      requests[at] = add_sum(group, data[at], at % 3 == 2 ? LONG_COUNT : 1 + 300 * (size_t)at, (uint64_t)tag);
    }
    CHECK_OK(gloo_rs_group_end(group));
    CHECK_OK(gloo_rs_wait_all(requests, SEVERAL, GLOO_RS_TIMEOUT_DEFAULT, NULL));
    for (n = 0; n < SEVERAL; n++) {
      size_t count = n % 3 == 2 ? LONG_COUNT : 1 + 300 * (size_t)n;
      for (i = 0; i < count; i++) CHECK_INT(data[n][i], test_size * n + test_size * (test_size - 1) / 2);
      CHECK_OK(gloo_rs_request_free(requests[n]));
    }
  }
  gloo_rs_context_destroy(context);
}

static void in_orders_over_tcp(void) { without_shared_memory(in_orders_of_their_own); }

/* Many short sums, which are joined over TCP, and long ones between them; threads wait for them one by one. */
enum { FUSED = 24, WAITERS = 3 };
static gloo_rs_request_t *joined[FUSED];

static void *waits(void *first) {
  int n;
  for (n = *(int *)first; n < FUSED; n += WAITERS) {
    if (n % 2) CHECK_OK(gloo_rs_wait_for(joined[n], test_timeout_ms()));
    else CHECK_OK(gloo_rs_wait(joined[n]));
  }
  return NULL;
}

static void fused(void) {
  static int64_t data[FUSED][2000];
  gloo_rs_context_t *context = connected_context();
  int round, n;
  size_t i;
  CHECK_INVALID(gloo_rs_group_fuse(NULL, 1000), "group is NULL");
  for (round = 0; round < 10; round++) {
    pthread_t threads[WAITERS];
    int firsts[WAITERS];
    gloo_rs_group_t *group = begin(context);
    CHECK_OK(gloo_rs_group_fuse(group, round % 3 == 0 ? 3000 : 1000000));
    for (n = 0; n < FUSED; n++) {
      size_t count = n % 7 == 6 ? 2000 : (size_t)n;
      for (i = 0; i < count; i++) data[n][i] = n + round + test_rank;
      joined[n] = add_sum(group, data[n], count, (uint64_t)n / 20);
    }
    CHECK_OK(gloo_rs_group_end(group));
    for (n = 0; n < WAITERS; n++) {
      firsts[n] = n;
      threads[n] = start_thread(waits, &firsts[n]);
    }
    for (n = 0; n < WAITERS; n++) join_thread(threads[n]);
    for (n = 0; n < FUSED; n++) {
      size_t count = n % 7 == 6 ? 2000 : (size_t)n;
      for (i = 0; i < count; i++) CHECK_INT(data[n][i], test_size * (n + round) + test_size * (test_size - 1) / 2);
      CHECK_OK(gloo_rs_request_free(joined[n]));
    }
  }
  gloo_rs_context_destroy(context);
}

static void fused_over_tcp(void) { without_shared_memory(fused); }

/* A rank that does not fuse, or another amount. */
static void fused_otherwise(void) {
  static int64_t data[4][100];
  gloo_rs_context_t *context = connected_context();
  gloo_rs_group_t *group = begin(context);
  gloo_rs_request_t *requests[4];
  gloo_rs_status_t statuses[4];
  int n;
  if (test_rank == 0) CHECK_OK(gloo_rs_group_fuse(group, 1000000));
  for (n = 0; n < 4; n++) requests[n] = add_sum(group, data[n], 100, 1);
  CHECK_OK(gloo_rs_group_end(group));
  CHECK(gloo_rs_wait_all(requests, 4, GLOO_RS_TIMEOUT_DEFAULT, statuses) != GLOO_RS_OK);
  for (n = 0; n < 4; n++) {
    CHECK(statuses[n] == GLOO_RS_ERROR_MISMATCH || statuses[n] == GLOO_RS_ERROR_CONNECTION_LOST);
    CHECK_OK(gloo_rs_request_free(requests[n]));
  }
  gloo_rs_context_destroy(context);
}

static void fused_otherwise_over_tcp(void) { without_shared_memory(fused_otherwise); }

/* Every rank sends to every other one and receives from it, one after the other as the stages of a pipeline do: with
 * blocking calls all would wait in their first send. */
static void exchanges(void) {
  static char sent[MAX_RANKS][200000], received[MAX_RANKS][200000];
  gloo_rs_context_t *context = connected_context();
  gloo_rs_unbound_buffer_t *from = create_buffer(context, sent, sizeof sent), *into = create_buffer(context, received, sizeof received);
  gloo_rs_group_t *group;
  size_t bytes = sizeof sent[0];
  int32_t peer;
  int round, n;
  for (round = 0; round < 3; round++) {
    memset(sent, 1 + round + 10 * test_rank, sizeof sent);
    group = begin(context);
    for (n = 1; n < test_size; n++) {
      peer = (test_rank + n) % test_size;
      CHECK_OK(gloo_rs_group_send(group, from, peer, 4, (size_t)peer * bytes, bytes));
      if (n % 2 == 1) CHECK_OK(gloo_rs_group_recv(group, into, peer, 4, (size_t)peer * bytes, bytes));
      else CHECK_OK(gloo_rs_group_recv_any(group, into, &peer, 1, 4, (size_t)peer * bytes, bytes));
    }
    CHECK_OK(gloo_rs_group_end(group));
    for (n = 1; n < test_size; n++) CHECK_OK(gloo_rs_unbound_buffer_wait_send(from, test_timeout_ms(), NULL));
    for (n = 1; n < test_size; n++) {
      int32_t rank = -1;
      size_t came = 0;
      CHECK_OK(gloo_rs_unbound_buffer_wait_recv(into, test_timeout_ms(), &rank, &came));
      CHECK_INT(came, bytes);
      CHECK(rank >= 0 && rank != test_rank && rank < test_size);
      CHECK_INT(received[rank][0], 1 + round + 10 * rank);
      CHECK_INT(received[rank][bytes - 1], 1 + round + 10 * rank);
    }
  }
  gloo_rs_unbound_buffer_destroy(from);
  gloo_rs_unbound_buffer_destroy(into);
  gloo_rs_context_destroy(context);
}

static void exchanges_over_tcp(void) { without_shared_memory(exchanges); }

/* Requests that have ended start again in groups; one is attached to a queue. */
static void started_again(void) {
  static int64_t data[2][1000];
  gloo_rs_context_t *context = connected_context();
  gloo_rs_request_t *requests[2];
  gloo_rs_queue_t *queue = NULL;
  gloo_rs_group_t *group = begin(context);
  int round, n;
  for (n = 0; n < 2; n++) {
    data[n][0] = 1;
    requests[n] = add_sum(group, data[n], 1000, 7);
  }
  CHECK_OK(gloo_rs_group_end(group));
  CHECK_OK(gloo_rs_wait_all(requests, 2, GLOO_RS_TIMEOUT_DEFAULT, NULL));
  CHECK_OK(gloo_rs_queue_create(&queue));
  CHECK_OK(gloo_rs_queue_attach(queue, requests[1], 9));
  for (round = 0; round < 20; round++) {
    uint64_t user = 0;
    gloo_rs_status_t status = GLOO_RS_ERROR_INTERNAL;
    group = begin(context);
    for (n = 0; n < 2; n++) {
      data[n][0] = round + n;
      CHECK_OK(gloo_rs_group_start(group, requests[n]));
    }
    if (round == 3) {
      gloo_rs_group_cancel(group);
      continue;
    }
    CHECK_OK(gloo_rs_group_end(group));
    CHECK_OK(gloo_rs_wait(requests[0]));
    CHECK_OK(gloo_rs_queue_wait(queue, GLOO_RS_TIMEOUT_INFINITE, &user, &status));
    CHECK_OK(status);
    CHECK_INT(user, 9);
    for (n = 0; n < 2; n++) CHECK_INT(data[n][0], test_size * (round + n));
  }
  for (n = 0; n < 2; n++) CHECK_OK(gloo_rs_request_free(requests[n]));
  CHECK_OK(gloo_rs_queue_destroy(queue));
  gloo_rs_context_destroy(context);
}

/* ---- what does not begin ---- */

/* The last start of a group is refused: its message is not sent, and its first sum has not begun. */
static void refused_as_a_whole(void) {
  static int64_t data[3][1000];
  gloo_rs_context_t *context = connected_context();
  gloo_rs_request_t *requests[2], *plain = NULL;
  gloo_rs_collective_options_t options;
  void *outputs[1];
  gloo_rs_group_t *group;
  char cell = (char)('a' + test_rank);
  gloo_rs_unbound_buffer_t *buffer = create_buffer(context, &cell, 1);
  int attempt, n;
  for (n = 0; n < 3; n++) data[n][0] = n;
  fill_sum(&options, outputs, data[2], 1000, 1);
  CHECK_OK(gloo_rs_collective_prepare(context, GLOO_RS_ALLREDUCE, &options, &plain));
  if (test_rank == 1) CHECK_OK(gloo_rs_unbound_buffer_recv(buffer, 0, 5, 0, 1));
  for (attempt = 0; attempt < 2; attempt++) {
    group = begin(context);
    if (test_rank == 0 && attempt == 0) CHECK_OK(gloo_rs_start(plain));
    for (n = 0; n < 2; n++) requests[n] = add_sum(group, data[n], 1000, (uint64_t)n);
    if (test_rank == 0) CHECK_OK(gloo_rs_group_send(group, buffer, 1, 5, 0, 1));
    if (test_rank == 0 && attempt == 0) {
      bool broken = true;
      CHECK_FAILS(gloo_rs_group_end(group), GLOO_RS_ERROR_INVALID_OPERATION, "is running on this context already");
      CHECK_ERROR(GLOO_RS_ERROR_INVALID_OPERATION, -1, "allreduce");
      CHECK_OK(gloo_rs_context_broken(context, &broken, NULL));
      CHECK(!broken);
    } else if (attempt == 0) {
      CHECK_FAILS(gloo_rs_unbound_buffer_wait_recv(buffer, SHORT_MS, NULL, NULL), GLOO_RS_ERROR_TIMEOUT, "timed out");
      gloo_rs_group_cancel(group);
      CHECK_OK(gloo_rs_start(plain));
    } else {
      CHECK_OK(gloo_rs_group_end(group));
      CHECK_OK(gloo_rs_wait_all(requests, 2, GLOO_RS_TIMEOUT_DEFAULT, NULL));
    }
    for (n = 0; n < 2; n++) {
      CHECK_INT(state_of(requests[n]), GLOO_RS_REQUEST_INACTIVE);
      CHECK_OK(gloo_rs_request_free(requests[n]));
    }
    if (attempt == 0) CHECK_OK(gloo_rs_wait(plain));
  }
  if (test_rank == 1) {
    CHECK_OK(gloo_rs_unbound_buffer_wait_recv(buffer, test_timeout_ms(), NULL, NULL));
    CHECK_INT(cell, 'a');
  } else {
    CHECK_OK(gloo_rs_unbound_buffer_wait_send(buffer, test_timeout_ms(), NULL));
  }
  for (n = 0; n < 3; n++) CHECK_INT(data[n][0], test_size * n);
  CHECK_OK(gloo_rs_request_free(plain));
  gloo_rs_unbound_buffer_destroy(buffer);
  gloo_rs_context_destroy(context);
}

static void refused_over_tcp(void) { without_shared_memory(refused_as_a_whole); }

static void wrong_use(void) {
  static int64_t data[2][10];
  gloo_rs_context_t *context = connected_context(), *other = NULL;
  gloo_rs_collective_options_t options;
  gloo_rs_request_t *request, *second, *prepared = NULL;
  gloo_rs_group_t *group, *none = (gloo_rs_group_t *)&data;
  char cells[8] = {0};
  gloo_rs_unbound_buffer_t *buffer = create_buffer(context, cells, sizeof cells);
  void *outputs[1];
  bool done = false;
  int wrong;
  CHECK_INVALID(gloo_rs_group_begin(NULL, &none), "context is NULL");
  CHECK(none == NULL);
  CHECK_INVALID(gloo_rs_group_begin(context, NULL), "group is NULL");
  CHECK_INVALID(gloo_rs_group_end(NULL), "group is NULL");
  CHECK_INVALID(gloo_rs_group_end((gloo_rs_group_t *)(void *)context), "is not a live gloo_rs_group_t");
  CHECK_INVALID(gloo_rs_group_start(NULL, NULL), "group is NULL");
  CHECK_INVALID(gloo_rs_group_send(NULL, buffer, 0, 0, 0, 1), "group is NULL");
  CHECK_INVALID(gloo_rs_group_recv(NULL, buffer, 0, 0, 0, 1), "group is NULL");
  CHECK_INVALID(gloo_rs_group_recv_any(NULL, buffer, NULL, 0, 0, 0, 1), "group is NULL");
  gloo_rs_group_cancel(NULL);
  fill_sum(&options, outputs, data[0], 10, 0);
  request = (gloo_rs_request_t *)&data;
  CHECK_INVALID(gloo_rs_group_collective_start(NULL, GLOO_RS_ALLREDUCE, &options, &request), "group is NULL");
  CHECK(request == NULL);
  CHECK_OK(gloo_rs_group_end(begin(context)));
  CHECK_OK(gloo_rs_context_split(context, 0, 0, &other));
  CHECK_OK(gloo_rs_collective_prepare(context, GLOO_RS_ALLREDUCE, &options, &prepared));

  /* A call that names a group and fails is the end of that. */
  for (wrong = 0; wrong < 10; wrong++) {
    gloo_rs_status_t status = GLOO_RS_OK;
    group = begin(wrong == 8 ? other : context);
    request = add_sum(group, data[0], 10, 0);
    second = (gloo_rs_request_t *)&data;
    options.algorithm = wrong == 0 ? "no such algorithm" : NULL;
    switch (wrong) {
      case 0: status = gloo_rs_group_collective_start(group, GLOO_RS_ALLREDUCE, &options, &second); break;
      case 1: status = gloo_rs_group_collective_start(group, GLOO_RS_ALLREDUCE, NULL, &second); break;
      case 2: status = gloo_rs_group_collective_start(group, (gloo_rs_collective_t)77, &options, &second); break;
      case 3: status = gloo_rs_group_start(group, request); break;
      case 4: status = gloo_rs_group_start(group, prepared); break;
      case 5: status = gloo_rs_group_send(group, buffer, test_size, 0, 0, 1); break;
      case 6: status = gloo_rs_group_recv(group, buffer, 0, 0, 1, sizeof cells); break;
      case 9: status = gloo_rs_group_recv_any(group, buffer, NULL, 0, 0, 0, 1); break;
      case 7: status = gloo_rs_group_send(group, NULL, 0, 0, 0, 1); break;
      default: status = gloo_rs_group_send(group, buffer, 0, 0, 0, 1);
    }
    CHECK(status == (wrong == 3 || wrong == 4 ? GLOO_RS_ERROR_INVALID_OPERATION : GLOO_RS_ERROR_INVALID_ARGUMENT));
    if (wrong < 3) CHECK(second == NULL);
    CHECK_FAILS(gloo_rs_group_end(group), status, "a start of this group was refused, so none has begun");
    CHECK_INT(state_of(request), GLOO_RS_REQUEST_INACTIVE);
    CHECK_OK(gloo_rs_request_free(request));
  }
  options.algorithm = NULL;

  /* A request belongs to its group. */
  group = begin(context);
  request = add_sum(group, data[0], 10, 0);
  second = add_sum(group, data[1], 10, 0);
  CHECK_INT(state_of(request), GLOO_RS_REQUEST_ACTIVE);
  CHECK_FAILS(gloo_rs_start(request), GLOO_RS_ERROR_INVALID_OPERATION, "in a group: end the group first");
  CHECK_FAILS(gloo_rs_wait(request), GLOO_RS_ERROR_INVALID_OPERATION, "in a group: end the group first");
  CHECK_FAILS(gloo_rs_wait_for(request, 0), GLOO_RS_ERROR_INVALID_OPERATION, "in a group: end the group first");
  CHECK_FAILS(gloo_rs_test(request, &done), GLOO_RS_ERROR_INVALID_OPERATION, "in a group: end the group first");
  CHECK_FAILS(gloo_rs_wait_all(&request, 1, 0, NULL), GLOO_RS_ERROR_INVALID_OPERATION, "in a group: end the group");
  CHECK_OK(gloo_rs_request_free(second));
  CHECK_FAILS(gloo_rs_group_end(group), GLOO_RS_ERROR_INVALID_OPERATION, "a request of this group was freed");
  CHECK_OK(gloo_rs_request_free(request));

  /* A buffer in a group may be destroyed, which fails the group, as a freed request does. */
  group = begin(context);
  CHECK_OK(gloo_rs_group_send(group, buffer, 0, 0, 0, 1));
  gloo_rs_unbound_buffer_destroy(buffer);
  CHECK_FAILS(gloo_rs_group_end(group), GLOO_RS_ERROR_INVALID_OPERATION, "a buffer of this group was destroyed");

  /* A context that ends before its group. */
  group = begin(other);
  request = add_sum(group, data[0], 10, 0);
  CHECK_OK(gloo_rs_context_close(other));
  CHECK_FAILS(gloo_rs_group_end(group), GLOO_RS_ERROR_CLOSED, "has closed this context");
  CHECK_OK(gloo_rs_request_free(request));
  group = begin(other);
  gloo_rs_context_destroy(other);
  gloo_rs_group_cancel(group);

  CHECK_OK(gloo_rs_request_free(prepared));
  barrier(context);
  gloo_rs_context_destroy(context);
}

/* A group before its context is connected. */
static void not_connected(void) {
  static int64_t data[10];
  gloo_rs_context_t *context = create_context();
  gloo_rs_group_t *group = begin(context);
  gloo_rs_unbound_buffer_t *buffer = create_buffer(context, data, sizeof data);
  CHECK_OK(gloo_rs_group_send(group, buffer, 0, 0, 0, 1));
  CHECK_FAILS(gloo_rs_group_end(group), GLOO_RS_ERROR_INVALID_OPERATION, "the context is not connected");
  gloo_rs_unbound_buffer_destroy(buffer);
  gloo_rs_context_destroy(context);
}

struct adding {
  gloo_rs_group_t *group;
  gloo_rs_request_t *request;
  int64_t data[100];
  uint64_t tag;
};

static void *adds(void *argument) {
  struct adding *adding = (struct adding *)argument;
  adding->request = add_sum(adding->group, adding->data, 100, adding->tag);
  return NULL;
}

/* Several threads add to one group. */
static void from_threads(void) {
  static struct adding adding[4];
  pthread_t threads[4];
  gloo_rs_context_t *context = connected_context();
  int round, n;
  for (round = 0; round < 20; round++) {
    gloo_rs_group_t *group = begin(context);
    for (n = 0; n < 4; n++) {
      adding[n].group = group;
      adding[n].tag = (uint64_t)n;
      adding[n].data[99] = n + test_rank;
      threads[n] = start_thread(adds, &adding[n]);
    }
    for (n = 0; n < 4; n++) join_thread(threads[n]);
    CHECK_OK(gloo_rs_group_end(group));
    for (n = 0; n < 4; n++) {
      CHECK_OK(gloo_rs_wait(adding[n].request));
      CHECK_INT(adding[n].data[99], test_size * n + test_size * (test_size - 1) / 2);
      CHECK_OK(gloo_rs_request_free(adding[n].request));
    }
  }
  gloo_rs_context_destroy(context);
}

static void a_rank_forks(void) {
  static int64_t data[10];
  gloo_rs_context_t *context = connected_context();
  gloo_rs_group_t *group = begin(context), *child_group = NULL;
  gloo_rs_request_t *request = add_sum(group, data, 10, 0);
  pid_t child = fork();
  int status;
  CHECK(child >= 0);
  if (child == 0) {
    CHECK_FAILS(gloo_rs_group_begin(context, &child_group), GLOO_RS_ERROR_INVALID_OPERATION, "a child by fork");
    CHECK_FAILS(gloo_rs_group_end(group), GLOO_RS_ERROR_INVALID_OPERATION, "a child by fork");
    CHECK_OK(gloo_rs_request_free(request));
    gloo_rs_context_destroy(context);
    /* Another program, for which valgrind makes its own account. */
    execlp("true", "true", (char *)NULL);
    _exit(127);
  }
  CHECK_INT(waitpid(child, &status, 0), child);
  CHECK_INT(status, 0);
  data[0] = 3;
  CHECK_OK(gloo_rs_group_end(group));
  CHECK_OK(gloo_rs_wait(request));
  CHECK_INT(data[0], 3 * test_size);
  CHECK_OK(gloo_rs_request_free(request));
  gloo_rs_context_destroy(context);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"in_orders_of_their_own", 1, in_orders_of_their_own, -1},
      {"in_orders_of_their_own", 4, in_orders_of_their_own, -1},
      {"in_orders_over_tcp", 3, in_orders_over_tcp, -1},
      {"fused", 3, fused, -1},
      {"fused_over_tcp", 2, fused_over_tcp, -1},
      {"fused_over_tcp", 3, fused_over_tcp, -1},
      {"fused_otherwise_over_tcp", 2, fused_otherwise_over_tcp, -1},
      {"exchanges", 2, exchanges, -1},
      {"exchanges", 4, exchanges, -1},
      {"exchanges_over_tcp", 3, exchanges_over_tcp, -1},
      {"started_again", 1, started_again, -1},
      {"started_again", 3, started_again, -1},
      {"refused_as_a_whole", 2, refused_as_a_whole, -1},
      {"refused_over_tcp", 2, refused_over_tcp, -1},
      {"wrong_use", 2, wrong_use, -1},
      {"not_connected", 2, not_connected, -1},
      {"from_threads", 2, from_threads, -1},
      {"a_rank_forks", 2, a_rank_forks, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
