/* Memberships that change while the processes live. */
#include <dirent.h>

#include "members.h"

#define HANDLE_BYTES 64
#define KEY_BYTES 64
/* For how long a process that does not come is waited for. */
static int64_t short_ms(void) { return test_is_slow() ? 30000 : 3000; }

/* A context without members. */
static gloo_rs_context_t *newcomer(void) {
  gloo_rs_context_t *context = NULL;
  gloo_rs_device_t *device = create_device();
  gloo_rs_context_options_t options;
  gloo_rs_context_options_init(&options, sizeof options);
  options.timeout_ms = test_timeout_ms();
  CHECK_OK(gloo_rs_context_create(device, -1, -1, &options, &context));
  gloo_rs_device_destroy(device);
  return context;
}

/* The handles of some processes, which all write theirs to the store first. */
struct members {
  char texts[MAX_RANKS][HANDLE_BYTES];
  const char *handles[MAX_RANKS];
  size_t n;
};

static void publish(gloo_rs_store_t *store, const gloo_rs_context_t *context, int round) {
  char key[32], handle[HANDLE_BYTES];
  size_t needed = 0;
  CHECK_OK(gloo_rs_context_handle(context, handle, sizeof handle, &needed));
  CHECK_INT(strlen(handle) + 1, needed);
  snprintf(key, sizeof key, "handle/%d/%d", round, test_rank);
  CHECK_OK(gloo_rs_store_set(store, key, handle, needed));
}

/* Those of the processes in `list`, a digit each. */
static void find(struct members *found, gloo_rs_store_t *store, const char *list, int round) {
  for (found->n = 0; list[found->n] != '\0'; found->n++) {
    char key[32];
    void *value = NULL;
    size_t bytes = 0;
    snprintf(key, sizeof key, "handle/%d/%c", round, list[found->n]);
    CHECK_OK(gloo_rs_store_get(store, key, test_timeout_ms(), &value, &bytes));
    CHECK(bytes <= HANDLE_BYTES);
    memcpy(found->texts[found->n], value, bytes);
    gloo_rs_free(value);
    found->handles[found->n] = found->texts[found->n];
  }
}

/* The processes in `list` get a membership of their own, with these ranks. Others only say their handle. */
static void change(gloo_rs_context_t *context, const char *list, int round) {
  gloo_rs_store_t *store = open_store();
  const char *own = strchr(list, '0' + test_rank);
  int32_t cells[3] = {1, test_rank, 7};
  char before[HANDLE_BYTES], after[HANDLE_BYTES];
  int32_t expected = 0;
  publish(store, context, round);
  if (own != NULL) {
    struct members members;
    find(&members, store, list, round);
    CHECK_OK(gloo_rs_context_handle(context, before, sizeof before, NULL));
    CHECK_OK(gloo_rs_context_reconfigure(context, store, round, members.handles, members.n, true, test_timeout_ms()));
    CHECK_INT(size_of(context), members.n);
    CHECK_INT(rank_of(context), own - list);
    CHECK_OK(gloo_rs_context_handle(context, after, sizeof after, NULL));
    CHECK(strcmp(before, after) != 0);
    for (const char *each = list; *each != '\0'; each++) expected += *each - '0';
    CHECK_OK(sum(context, cells, 3));
    CHECK(cells[0] == (int32_t)members.n && cells[1] == expected && cells[2] == 7 * (int32_t)members.n);
  }
  gloo_rs_store_destroy(store);
}

/* Down to one process, up again, in another order, and the same again. */
static void a_membership_shrinks_and_grows(void) {
  gloo_rs_context_t *context = connected_context();
  meet(context);
  change(context, "20", 1);
  if (test_rank == 1) CHECK_FAILS(gloo_rs_barrier(context), GLOO_RS_ERROR_ABORTED, "reconfigured");
  change(context, "2", 2);
  change(context, "012", 3);
  change(context, "012", 4);
  CHECK_OK(gloo_rs_barrier(context));
  gloo_rs_context_destroy(context);
}

static void newcomers_join(void) {
  gloo_rs_context_t *context = newcomer(), *part = (gloo_rs_context_t *)&context;
  gloo_rs_store_t *store = open_store();
  bool broken = true;
  void *memory = NULL;
  CHECK(rank_of(context) == -1 && size_of(context) == -1);
  CHECK_FAILS(gloo_rs_barrier(context), GLOO_RS_ERROR_INVALID_OPERATION, "no members");
  CHECK_FAILS(gloo_rs_context_split(context, 0, 0, &part), GLOO_RS_ERROR_INVALID_OPERATION, "no members");
  CHECK(part == NULL);
  CHECK_FAILS(gloo_rs_alloc(context, 64, &memory), GLOO_RS_ERROR_INVALID_OPERATION, "no members");
  CHECK_FAILS(gloo_rs_context_connect(context, store), GLOO_RS_ERROR_INVALID_OPERATION, "no members");
  CHECK_FAILS(gloo_rs_context_abort(context, NULL), GLOO_RS_ERROR_INVALID_OPERATION, "no members");
  CHECK_OK(gloo_rs_context_broken(context, &broken, NULL));
  CHECK(!broken);
  change(context, "10", 1);
  change(context, "3012", 2);
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
  context = newcomer();
  CHECK_OK(gloo_rs_context_close(context));
  publish(store = open_store(), context, 3);
  struct members alone = {.n = 1};
  CHECK_OK(gloo_rs_context_handle(context, alone.texts[0], HANDLE_BYTES, NULL));
  alone.handles[0] = alone.texts[0];
  CHECK_FAILS(gloo_rs_context_reconfigure(context, store, 100 + test_rank, alone.handles, 1, true, short_ms()),
              GLOO_RS_ERROR_CLOSED, "closed");
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
}

static void a_lost_rank_is_left_behind(void) {
  gloo_rs_context_t *context = connected_context();
  int32_t cells[1000] = {0};
  meet(context);
  if (test_rank == 1) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
  CHECK_INT(sum(context, cells, 1000), GLOO_RS_ERROR_CONNECTION_LOST);
  change(context, "302", 1);
  CHECK_OK(gloo_rs_barrier(context));
  gloo_rs_context_destroy(context);
}

static void *wait_in_barrier(void *context) {
  CHECK_FAILS(gloo_rs_barrier((gloo_rs_context_t *)context), GLOO_RS_ERROR_ABORTED, "rank 0 has ended its operations");
  return NULL;
}

/* Sets `keys` to the remote keys of the buffers of both ranks. */
static void exchange_keys(gloo_rs_unbound_buffer_t *buffer, gloo_rs_store_t *store, char keys[2][KEY_BYTES]) {
  const char *const names[2] = {"key/0", "key/1"};
  void *value = NULL;
  size_t bytes = 0;
  CHECK_OK(gloo_rs_unbound_buffer_remote_key(buffer, keys[test_rank], KEY_BYTES, &bytes));
  CHECK_OK(gloo_rs_store_set(store, names[test_rank], keys[test_rank], bytes));
  CHECK_OK(gloo_rs_store_get(store, names[1 - test_rank], test_timeout_ms(), &value, &bytes));
  CHECK(bytes <= KEY_BYTES);
  memcpy(keys[1 - test_rank], value, bytes);
  gloo_rs_free(value);
}

/* What runs is aborted, what is old is refused, and what does not depend on the membership stays. */
static void what_runs_ends_and_what_is_old_is_refused(void) {
  gloo_rs_context_t *context = connected_context(), *part = NULL;
  gloo_rs_collective_options_t options;
  gloo_rs_request_t *started = NULL, *prepared = NULL;
  gloo_rs_unbound_buffer_t *buffer = NULL;
  gloo_rs_pair_t *pair = NULL;
  gloo_rs_store_t *store = open_store();
  char other[256], keys[2][KEY_BYTES];
  size_t needed = 0;
  int32_t *memory = NULL, cell = 1;
  const void *inputs[1] = {&cell};
  void *outputs[1] = {&cell};
  void *allocated = NULL;
  CHECK_OK(gloo_rs_context_split(context, 0, 0, &part));
  CHECK_OK(gloo_rs_alloc(context, 1 << 20, &allocated));
  memory = (int32_t *)allocated;
  memory[0] = memory[(1 << 18) - 1] = 77 + test_rank;
  CHECK_OK(gloo_rs_unbound_buffer_create(context, &cell, sizeof cell, &buffer));
  exchange_keys(buffer, store, keys);
  CHECK_OK(gloo_rs_context_pair(context, 1 - test_rank, &pair));
  CHECK_OK(gloo_rs_pair_address(pair, other, sizeof other, &needed));
  gloo_rs_collective_options_init(&options, sizeof options);
  options.inputs = inputs, options.num_inputs = 1, options.outputs = outputs, options.num_outputs = 1;
  options.count = 1, options.data_type = GLOO_RS_INT32, options.tag = 5;
  CHECK_OK(gloo_rs_collective_prepare(context, GLOO_RS_ALLREDUCE, &options, &prepared));
  meet(context);
  if (test_rank == 0) {
    /* Rank 1 is in neither. */
    pthread_t thread = start_thread(wait_in_barrier, context);
    CHECK_OK(gloo_rs_collective_start(context, GLOO_RS_ALLREDUCE, &options, &started));
    sleep_ms(50);
    change(context, "01", 1);
    CHECK_FAILS(gloo_rs_wait(started), GLOO_RS_ERROR_ABORTED, "rank 0 has ended its operations: it reconfigures the context");
    CHECK_OK(gloo_rs_request_free(started));
    join_thread(thread);
  } else {
    change(context, "01", 1);
  }
  CHECK_FAILS(gloo_rs_start(prepared), GLOO_RS_ERROR_INVALID_OPERATION, "earlier membership");
  CHECK_OK(gloo_rs_request_free(prepared));
  if (gloo_rs_unbound_buffer_send(buffer, 1 - test_rank, 1, 0, sizeof cell) == GLOO_RS_OK)
    CHECK_FAILS(gloo_rs_unbound_buffer_wait_send(buffer, test_timeout_ms(), NULL), GLOO_RS_ERROR_INVALID_OPERATION, "earlier membership");
  gloo_rs_unbound_buffer_destroy(buffer);
  CHECK_OK(gloo_rs_unbound_buffer_create(context, &cell, sizeof cell, &buffer));
  for (int i = 0; i < 2; i++) {
    CHECK_FAILS(gloo_rs_unbound_buffer_put(buffer, keys[i], 1, 0, 0, sizeof cell), GLOO_RS_ERROR_INVALID_OPERATION, "earlier membership");
    CHECK_FAILS(gloo_rs_unbound_buffer_get(buffer, keys[i], 1, 0, 0, sizeof cell), GLOO_RS_ERROR_INVALID_OPERATION, "earlier membership");
  }
  gloo_rs_unbound_buffer_destroy(buffer);
  CHECK_FAILS(gloo_rs_pair_connect(pair, other, needed), GLOO_RS_ERROR_INVALID_OPERATION, "earlier membership");
  gloo_rs_pair_destroy(pair);
  /* Memory is read in place in the new membership as in the first. */
  CHECK(memory[0] == 77 + test_rank && memory[(1 << 18) - 1] == 77 + test_rank);
  CHECK_OK(sum(context, memory, 1 << 18));
  CHECK(memory[0] == 155 && memory[(1 << 18) - 1] == 155);
  CHECK_OK(gloo_rs_barrier(part));
  CHECK_OK(gloo_rs_dealloc(context, allocated));
  CHECK_FAILS(gloo_rs_dealloc(context, allocated), GLOO_RS_ERROR_INVALID_ARGUMENT, "freed");
  gloo_rs_context_destroy(part);
  gloo_rs_context_destroy(context);
  gloo_rs_store_destroy(store);
}

/* All have what they had. */
static void a_process_that_does_not_come_is_named(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_store_t *store = open_store();
  publish(store, context, 1);
  meet(context);
  if (test_rank != 2) {
    struct members members;
    find(&members, store, "210", 1);
    CHECK_FAILS(gloo_rs_context_reconfigure(context, store, 1, members.handles, members.n, true, short_ms()),
                GLOO_RS_ERROR_TIMEOUT, "rank 0");
    CHECK_ERROR(GLOO_RS_ERROR_TIMEOUT, 0, "reconfigure");
    find(&members, store, "012", 1);
    CHECK_FAILS(gloo_rs_context_reconfigure(context, store, 2, members.handles, members.n, true, short_ms()),
                GLOO_RS_ERROR_TIMEOUT, "2");
    CHECK_ERROR(GLOO_RS_ERROR_TIMEOUT, 2, "reconfigure");
  }
  CHECK_OK(gloo_rs_barrier(context));
  change(context, "012", 3);
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
}

static void an_id_is_used_once(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_store_t *store = open_store();
  struct members members;
  meet(context);
  change(context, "01", 1);
  publish(store, context, 2);
  find(&members, store, "01", 2);
  CHECK_FAILS(gloo_rs_context_reconfigure(context, store, 1, members.handles, members.n, true, test_timeout_ms()),
              GLOO_RS_ERROR_MISMATCH, test_rank == 0 ? "the id 1 was used before" : "the id 1 is that of another change");
  CHECK_ERROR(GLOO_RS_ERROR_MISMATCH, test_rank == 0 ? -1 : 0, "reconfigure");
  CHECK_OK(gloo_rs_barrier(context));
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
}

static void *abort_soon(void *context) {
  sleep_ms(300);
  CHECK_OK(gloo_rs_context_abort((gloo_rs_context_t *)context, "too late"));
  return NULL;
}

static void an_abort_ends_a_reconfigure(void) {
  gloo_rs_context_t *context = newcomer();
  gloo_rs_store_t *store = open_store();
  struct members members;
  publish(store, context, 1);
  find(&members, store, "012", 1);
  if (test_rank < 2) {
    pthread_t thread = 0;
    if (test_rank == 0) thread = start_thread(abort_soon, context);
    CHECK_FAILS(gloo_rs_context_reconfigure(context, store, 1, members.handles, members.n, true, test_timeout_ms()),
                GLOO_RS_ERROR_ABORTED, "rank 0 has aborted this context: too late");
    if (test_rank == 0) join_thread(thread);
  }
  change(context, "012", 2);
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
}

/* Nothing is committed then, and the membership works. */
static void a_store_that_has_ended_is_named(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_store_t *store = NULL, *common = open_store();
  struct members members;
  meet(context);
  publish(common, context, 1);
  find(&members, common, "01", 1);
  if (test_rank == 0) {
    gloo_rs_store_t *server = NULL;
    uint16_t port = 0;
    CHECK_OK(gloo_rs_store_create_tcp("127.0.0.1", 0, true, test_timeout_ms(), &server));
    CHECK_OK(gloo_rs_store_port(server, &port));
    CHECK_OK(gloo_rs_store_create_tcp("127.0.0.1", port, false, test_timeout_ms(), &store));
    gloo_rs_store_destroy(server);
    gloo_rs_status_t status = gloo_rs_context_reconfigure(context, store, 1, members.handles, members.n, true, short_ms());
    CHECK_TEXT(gloo_rs_status_name(status), "GLOO_RS_ERROR_IO");
    CHECK_CONTAINS(gloo_rs_last_error_message(), "tcp://127.0.0.1:");
    gloo_rs_store_destroy(store);
  }
  CHECK_OK(gloo_rs_barrier(context));
  change(context, "10", 2);
  gloo_rs_store_destroy(common);
  gloo_rs_context_destroy(context);
}

static int open_descriptors(void) {
  int n = 0;
  DIR *directory = opendir("/proc/self/fd");
  if (directory == NULL) return 0;
  while (readdir(directory) != NULL) n++;
  closedir(directory);
  return n;
}

struct caller {
  gloo_rs_context_t *context;
  int stop;
};

/* Makes calls that may end at any moment. */
static void *call_on(void *argument) {
  struct caller *caller = (struct caller *)argument;
  while (!__atomic_load_n(&caller->stop, __ATOMIC_ACQUIRE)) {
    int32_t cell = 1, rank = 0, size = 0;
    gloo_rs_status_t status = sum(caller->context, &cell, 1);
    CHECK(status == GLOO_RS_OK || status == GLOO_RS_ERROR_ABORTED || status == GLOO_RS_ERROR_INVALID_OPERATION);
    CHECK_OK(gloo_rs_context_rank(caller->context, &rank));
    CHECK_OK(gloo_rs_context_size(caller->context, &size));
    CHECK(rank < 3 && size <= 3);
  }
  return NULL;
}

/* Other threads use the context all the time, and nothing is left of earlier memberships. */
static void memberships_change_under_calls(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_store_t *store = open_store();
  struct caller caller = {context, 0};
  pthread_t thread;
  int round, before = 0, rounds = test_is_slow() ? 5 : 40;
  meet(context);
  thread = start_thread(call_on, &caller);
  for (round = 1; round <= rounds; round++) {
    struct members members;
    publish(store, context, round);
    find(&members, store, round % 2 == 0 ? "012" : "210", round);
    CHECK_OK(gloo_rs_context_reconfigure(context, store, round, members.handles, members.n, round % 3 != 0, test_timeout_ms()));
    if (round == 5) before = open_descriptors();
  }
  /* Not before all have the last one. */
  publish(store, context, round);
  find(&(struct members){.n = 0}, store, "012", round);
  CHECK_OK(gloo_rs_context_abort(context, "the end"));
  __atomic_store_n(&caller.stop, 1, __ATOMIC_RELEASE);
  join_thread(thread);
  /* Connections come and go. */
  CHECK(open_descriptors() < before + 16);
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
}

static void invalid_arguments(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_store_t *store = open_store();
  struct members members;
  const char *wrong[3] = {NULL, NULL, NULL};
  char text[HANDLE_BYTES];
  size_t needed = 0;
  CHECK_INVALID(gloo_rs_context_handle(NULL, text, sizeof text, NULL), "context");
  CHECK_INVALID(gloo_rs_context_handle(context, text, 3, &needed), "3 bytes");
  CHECK(needed > 3 && needed <= HANDLE_BYTES);
  CHECK_INVALID(gloo_rs_context_handle(context, NULL, 0, NULL), "both NULL");
  publish(store, context, 1);
  find(&members, store, "01", 1);
  wrong[0] = wrong[1] = members.handles[test_rank];
  CHECK_INVALID(gloo_rs_context_reconfigure(NULL, store, 1, members.handles, 2, true, 0), "context");
  CHECK_INVALID(gloo_rs_context_reconfigure(context, NULL, 1, members.handles, 2, true, 0), "store");
  CHECK_INVALID(gloo_rs_context_reconfigure(context, store, 1, NULL, 2, true, 0), "handles");
  CHECK_INVALID(gloo_rs_context_reconfigure(context, store, 1, members.handles, 0, true, 0), "is not among the 0");
  CHECK_INVALID(gloo_rs_context_reconfigure(context, store, 1, members.handles + 1 - test_rank, 1, true, 0), "is not among the 1");
  CHECK_INVALID(gloo_rs_context_reconfigure(context, store, 1, wrong, 2, true, 0), "is twice among the handles");
  CHECK_INVALID(gloo_rs_context_reconfigure(context, store, 1, wrong, 3, true, 0), "handles[2]");
  wrong[1] = "member1:";
  CHECK_INVALID(gloo_rs_context_reconfigure(context, store, 1, wrong, 2, false, 0), "handles[1] is not the handle of a context");
  CHECK_INVALID(gloo_rs_context_reconfigure(context, store, 1, members.handles, 2, true, -3), "timeout");
  CHECK_OK(gloo_rs_barrier(context));
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"a_membership_shrinks_and_grows", 3, a_membership_shrinks_and_grows, -1},
      {"newcomers_join", 4, newcomers_join, -1},
      {"a_lost_rank_is_left_behind", 4, a_lost_rank_is_left_behind, 1},
      {"what_runs_ends_and_what_is_old_is_refused", 2, what_runs_ends_and_what_is_old_is_refused, -1},
      {"a_process_that_does_not_come_is_named", 3, a_process_that_does_not_come_is_named, -1},
      {"an_id_is_used_once", 2, an_id_is_used_once, -1},
      {"an_abort_ends_a_reconfigure", 3, an_abort_ends_a_reconfigure, -1},
      {"a_store_that_has_ended_is_named", 2, a_store_that_has_ended_is_named, -1},
      {"memberships_change_under_calls", 3, memberships_change_under_calls, -1},
      {"invalid_arguments", 2, invalid_arguments, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
