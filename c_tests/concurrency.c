/* Several threads of one process, on one context and on several. */
#include "harness.h"

struct work {
  gloo_rs_context_t *context;
  uint64_t tag;
  size_t count;
  int rounds;
};

/* Returns the options of a call with one output and, unless in place, one input. */
static gloo_rs_collective_options_t work_options(const struct work *work, const void **inputs, void **outputs) {
  gloo_rs_collective_options_t options;
  gloo_rs_collective_options_init(&options, sizeof options);
  options.tag = work->tag;
  options.data_type = GLOO_RS_INT64;
  options.inputs = inputs;
  options.num_inputs = inputs != NULL;
  options.outputs = outputs;
  options.num_outputs = 1;
  options.count = work->count;
  return options;
}

/* Sums over ranks, with values that differ between tags and rounds. */
static void *sums(void *argument) {
  struct work *work = (struct work *)argument;
  int64_t *cells = (int64_t *)check_alloc(work->count * sizeof *cells);
  void *outputs[1];
  int round;
  size_t i;
  outputs[0] = cells;
  for (round = 0; round < work->rounds; round++) {
    gloo_rs_collective_options_t options = work_options(work, NULL, outputs);
    int64_t base = (int64_t)(work->tag % 1000) * 1000000 + round * 1000;
    for (i = 0; i < work->count; i++) cells[i] = base + test_rank + (int64_t)(i % 10);
    CHECK_OK(gloo_rs_collective(work->context, GLOO_RS_ALLREDUCE, &options));
    for (i = 0; i < work->count; i++)
      CHECK_INT(cells[i], test_size * (base + (int64_t)(i % 10)) + test_size * (test_size - 1) / 2);
  }
  free(cells);
  return NULL;
}

static void two_tags(void) {
  gloo_rs_context_t *context = connected_context();
  int rounds = test_is_slow() ? 5 : 100;
  struct work works[2] = {{context, 7, 3, rounds}, {context, 8, 40000, rounds}};
  pthread_t threads[2];
  int i;
  for (i = 0; i < 2; i++) threads[i] = start_thread(sums, &works[i]);
  for (i = 0; i < 2; i++) join_thread(threads[i]);
  gloo_rs_context_destroy(context);
}

/* Each thread has a tag of its own; counts below, at, and above the eager limit. */
static void eight_tags(void) {
  static const size_t counts[] = {1, 3, 100, 1000, 8191, 8192, 8193, 20000};
  enum { THREADS = sizeof counts / sizeof counts[0] };
  gloo_rs_context_t *context = connected_context();
  struct work works[THREADS];
  pthread_t threads[THREADS];
  uint64_t i;
  for (i = 0; i < THREADS; i++) {
    struct work work = {context, i, counts[i], test_is_slow() ? 3 : 50};
    works[i] = work;
    threads[i] = start_thread(sums, &works[i]);
  }
  for (i = 0; i < THREADS; i++) join_thread(threads[i]);
  gloo_rs_context_destroy(context);
}

/* Broadcasts from each rank in turn. */
static void *broadcasts(void *argument) {
  struct work *work = (struct work *)argument;
  int64_t *cells = (int64_t *)check_alloc(work->count * sizeof *cells);
  void *outputs[1];
  int round;
  size_t i;
  outputs[0] = cells;
  for (round = 0; round < work->rounds; round++) {
    gloo_rs_collective_options_t options = work_options(work, NULL, outputs);
    options.root = round % test_size;
    for (i = 0; i < work->count; i++) cells[i] = test_rank == options.root ? round * 1000 + (int64_t)(i % 10) : -1;
    CHECK_OK(gloo_rs_collective(work->context, GLOO_RS_BROADCAST, &options));
    for (i = 0; i < work->count; i++) CHECK_INT(cells[i], round * 1000 + (int64_t)(i % 10));
  }
  free(cells);
  return NULL;
}

/* Everyone sends everyone a block of its own. */
static void *exchanges(void *argument) {
  struct work *work = (struct work *)argument;
  size_t total = work->count * (size_t)test_size, i;
  int64_t *in = (int64_t *)check_alloc(total * sizeof *in), *out = (int64_t *)check_alloc(total * sizeof *out);
  const void *inputs[1];
  void *outputs[1];
  int round;
  inputs[0] = in;
  outputs[0] = out;
  for (round = 0; round < work->rounds; round++) {
    gloo_rs_collective_options_t options = work_options(work, inputs, outputs);
    for (i = 0; i < total; i++) in[i] = round * 10000 + test_rank * 100 + (int64_t)(i / work->count);
    CHECK_OK(gloo_rs_collective(work->context, GLOO_RS_ALLTOALL, &options));
    for (i = 0; i < total; i++) CHECK_INT(out[i], round * 10000 + (int64_t)(i / work->count) * 100 + test_rank);
  }
  free(in);
  free(out);
  return NULL;
}

/* Three threads, each in another collective, with one tag. */
static void one_tag(void) {
  gloo_rs_context_t *context = connected_context();
  int rounds = test_is_slow() ? 20 : 300;
  struct work works[] = {
      {context, UINT64_MAX, 40, rounds}, {context, UINT64_MAX, 9000, rounds}, {context, UINT64_MAX, 3, rounds}};
  pthread_t threads[3];
  int i;
  threads[0] = start_thread(sums, &works[0]);
  threads[1] = start_thread(broadcasts, &works[1]);
  threads[2] = start_thread(exchanges, &works[2]);
  for (i = 0; i < 3; i++) join_thread(threads[i]);
  gloo_rs_context_destroy(context);
}

/* A thread waits for a message that comes late, while another runs collectives on the same context. */
static void *wait_for_message(void *argument) {
  int32_t rank = -1;
  CHECK_OK(gloo_rs_unbound_buffer_wait_recv((gloo_rs_unbound_buffer_t *)argument, test_timeout_ms(), &rank, NULL));
  CHECK_INT(rank, (test_rank + 1) % test_size);
  return NULL;
}

static void messages_beside_collectives(void) {
  gloo_rs_context_t *context = connected_context();
  struct work work = {context, 0, 1000, test_is_slow() ? 5 : 100};
  gloo_rs_unbound_buffer_t *from = NULL, *to = NULL;
  int cell = -1, sent = 1000 + test_rank;
  pthread_t thread;
  CHECK_OK(gloo_rs_unbound_buffer_create(context, &cell, sizeof cell, &from));
  CHECK_OK(gloo_rs_unbound_buffer_create(context, &sent, sizeof sent, &to));
  CHECK_OK(gloo_rs_unbound_buffer_recv(from, (test_rank + 1) % test_size, 7, 0, sizeof cell));
  thread = start_thread(wait_for_message, from);
  sums(&work);
  CHECK_OK(gloo_rs_unbound_buffer_send(to, (test_rank + test_size - 1) % test_size, 7, 0, sizeof sent));
  CHECK_OK(gloo_rs_unbound_buffer_wait_send(to, test_timeout_ms(), NULL));
  sums(&work);
  join_thread(thread);
  CHECK_INT(cell, 1000 + (test_rank + 1) % test_size);
  gloo_rs_unbound_buffer_destroy(from);
  gloo_rs_unbound_buffer_destroy(to);
  gloo_rs_context_destroy(context);
}

/* Bound buffers are destroyed while other threads wait on them. */
static void *wait_recv_until_destroyed(void *argument) {
  CHECK_FAILS(gloo_rs_buffer_wait_recv((gloo_rs_buffer_t *)argument, test_timeout_ms(), NULL, NULL),
              GLOO_RS_ERROR_CLOSED, "destroyed");
  return NULL;
}

static void *wait_send_until_destroyed(void *argument) {
  CHECK_FAILS(gloo_rs_buffer_wait_send((gloo_rs_buffer_t *)argument, test_timeout_ms()), GLOO_RS_ERROR_CLOSED,
              "destroyed");
  return NULL;
}

static void destroying_ends_waits(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_pair_t *pair = NULL;
  gloo_rs_buffer_t *from = NULL, *to = NULL;
  int cells[2] = {0, 0};
  pthread_t threads[3];
  int i;
  CHECK_OK(gloo_rs_context_pair(context, 1 - test_rank, &pair));
  CHECK_OK(gloo_rs_pair_create_recv_buffer(pair, 1, &cells[0], sizeof cells[0], &from));
  CHECK_OK(gloo_rs_pair_create_send_buffer(pair, 1, &cells[1], sizeof cells[1], &to));
  gloo_rs_pair_destroy(pair);
  threads[0] = start_thread(wait_recv_until_destroyed, from);
  threads[1] = start_thread(wait_recv_until_destroyed, from);
  threads[2] = start_thread(wait_send_until_destroyed, to);
  sleep_ms(test_is_slow() ? 2000 : 100);
  gloo_rs_buffer_destroy(from);
  gloo_rs_buffer_destroy(to);
  for (i = 0; i < 3; i++) join_thread(threads[i]);
  barrier(context);
  gloo_rs_context_destroy(context);
}

/* A thread that polls without end, as was set for its pair, lets another one's wait end. */
static void *wait_until_aborted(void *argument) {
  CHECK_FAILS(gloo_rs_unbound_buffer_wait_recv((gloo_rs_unbound_buffer_t *)argument, test_timeout_ms(), NULL, NULL),
              GLOO_RS_ERROR_ABORTED, "gloo_rs_unbound_buffer_abort_wait_recv");
  return NULL;
}

static void busy_polling(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_pair_t *pair = NULL;
  gloo_rs_buffer_t *from = NULL;
  gloo_rs_unbound_buffer_t *buffer = NULL;
  int cells[2] = {0, 0};
  pthread_t polls, waits;
  barrier(context);
  CHECK_OK(gloo_rs_context_pair(context, 1 - test_rank, &pair));
  CHECK_OK(gloo_rs_pair_set_sync(pair, false, true));
  CHECK_OK(gloo_rs_pair_create_recv_buffer(pair, 1, &cells[0], sizeof cells[0], &from));
  CHECK_OK(gloo_rs_unbound_buffer_create(context, &cells[1], sizeof cells[1], &buffer));
  polls = start_thread(wait_recv_until_destroyed, from);
  sleep_ms(test_is_slow() ? 1000 : 50);
  waits = start_thread(wait_until_aborted, buffer);
  sleep_ms(test_is_slow() ? 1000 : 50);
  CHECK_OK(gloo_rs_unbound_buffer_abort_wait_recv(buffer));
  join_thread(waits);
  gloo_rs_buffer_destroy(from);
  join_thread(polls);
  CHECK_OK(gloo_rs_pair_set_sync(pair, false, false));
  barrier(context);
  gloo_rs_unbound_buffer_destroy(buffer);
  gloo_rs_pair_destroy(pair);
  gloo_rs_context_destroy(context);
}

/* Ranks as threads of one process, over an in-process store and one device. */
struct thread_rank {
  gloo_rs_device_t *device;
  int rank;
};

#define THREAD_RANKS 3

static void *as_a_rank(void *argument) {
  struct thread_rank *self = (struct thread_rank *)argument;
  gloo_rs_store_t *store = NULL;
  gloo_rs_context_t *context = NULL;
  int32_t cell = 1 << self->rank;
  CHECK_OK(gloo_rs_store_create_in_process("threads", &store));
  CHECK_OK(gloo_rs_context_create(self->device, self->rank, THREAD_RANKS, NULL, &context));
  CHECK_OK(gloo_rs_context_set_timeout(context, test_timeout_ms()));
  CHECK_OK(gloo_rs_context_connect(context, store));
  CHECK_OK(gloo_rs_allreduce(context, &cell, &cell, 1, GLOO_RS_INT32, GLOO_RS_SUM));
  CHECK_INT(cell, (1 << THREAD_RANKS) - 1);
  barrier(context);
  gloo_rs_context_destroy(context);
  gloo_rs_store_destroy(store);
  return NULL;
}

static void ranks_as_threads(void) {
  struct thread_rank ranks[THREAD_RANKS];
  pthread_t threads[THREAD_RANKS];
  gloo_rs_device_t *device = create_device();
  gloo_rs_store_t *store = NULL;
  int i;
  /* Keeps the store alive after the first rank is done. */
  CHECK_OK(gloo_rs_store_create_in_process("threads", &store));
  for (i = 0; i < THREAD_RANKS; i++) {
    ranks[i].device = device;
    ranks[i].rank = i;
    threads[i] = start_thread(as_a_rank, &ranks[i]);
  }
  for (i = 0; i < THREAD_RANKS; i++) join_thread(threads[i]);
  gloo_rs_store_destroy(store);
  gloo_rs_device_destroy(device);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"two_tags", 2, two_tags, -1},
      {"two_tags", 3, two_tags, -1},
      {"eight_tags", 2, eight_tags, -1},
      {"one_tag", 2, one_tag, -1},
      {"one_tag", 3, one_tag, -1},
      {"messages_beside_collectives", 3, messages_beside_collectives, -1},
      {"destroying_ends_waits", 2, destroying_ends_waits, -1},
      {"busy_polling", 2, busy_polling, -1},
      {"ranks_as_threads", 1, ranks_as_threads, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
