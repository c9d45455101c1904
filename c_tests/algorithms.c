/* Every algorithm that the library lists, over TCP, for 1 to 9 ranks. Algorithms that are added to the library are
 * included. */
#include "calls.h"

/* Lengths of whole buffers and blocks: zero, one, odd ones, and one of many segments. */
static const size_t counts[] = {0, 1, 7, 1001, 20011};
#define COUNTS (test_is_slow() ? 4 : sizeof counts / sizeof *counts)

/* The arguments of a collective. */
struct call {
  gloo_rs_context_t *context;
  const char *name;
  size_t count;
  int root;
  /* By rank: blocks of equal length, and blocks of which some are empty and one is longer. */
  size_t even[MAX_RANKS], uneven[MAX_RANKS];
};

static void run_allreduce(const struct call *c) {
  allreduce(c->context, c->name, GLOO_RS_FLOAT32, GLOO_RS_SUM, c->count, 1, 1, 0);
  allreduce(c->context, c->name, GLOO_RS_INT32, GLOO_RS_MAX, c->count, 0, 1, 0);
  allreduce(c->context, c->name, GLOO_RS_UINT8, GLOO_RS_XOR, c->count, 1, 1, 0);
  allreduce(c->context, c->name, GLOO_RS_COMPLEX64, GLOO_RS_SUM, c->count, 3, 2, 0);
  allreduce(c->context, c->name, GLOO_RS_FLOAT64, GLOO_RS_AVERAGE, c->count, 0, 2, 1);
}

static void run_reduce(const struct call *c) {
  size_t inputs;
  for (inputs = 0; inputs <= 2; inputs++) reduce(c->context, c->name, c->root, c->count, inputs);
}

static void run_reduce_scatter(const struct call *c) {
  size_t inputs;
  reduce_scatter(c->context, c->name, c->even, 1);
  for (inputs = 0; inputs <= 2; inputs++) reduce_scatter(c->context, c->name, c->uneven, inputs);
}

static void run_broadcast(const struct call *c) {
  broadcast(c->context, c->name, c->root, c->count, 1, 1);
  broadcast(c->context, c->name, c->root, c->count, 0, 1);
  broadcast(c->context, c->name, c->root, c->count, 1, 3);
}

static void run_allgather(const struct call *c) {
  size_t inputs;
  for (inputs = 0; inputs <= 2; inputs++) allgather(c->context, c->name, c->count, inputs);
}

static void run_allgatherv(const struct call *c) {
  allgatherv(c->context, c->name, c->even, 1);
  allgatherv(c->context, c->name, c->uneven, 0);
  allgatherv(c->context, c->name, c->uneven, 1);
}

static void run_gather(const struct call *c) {
  gather(c->context, c->name, c->root, c->even, 0, 0);
  gather(c->context, c->name, c->root, c->even, 0, 1);
}

static void run_gatherv(const struct call *c) {
  gather(c->context, c->name, c->root, c->even, 1, 1);
  gather(c->context, c->name, c->root, c->uneven, 1, 0);
  gather(c->context, c->name, c->root, c->uneven, 1, 1);
}

static void run_scatter(const struct call *c) {
  scatter(c->context, c->name, c->root, c->even, 0, 0);
  if (test_size <= MAX_BUFFERS) scatter(c->context, c->name, c->root, c->even, 0, 1);
  scatter(c->context, c->name, c->root, c->even, 0, 2);
}

static void run_scatterv(const struct call *c) {
  scatter(c->context, c->name, c->root, c->even, 1, 2);
  scatter(c->context, c->name, c->root, c->uneven, 1, 0);
  scatter(c->context, c->name, c->root, c->uneven, 1, 2);
}

static void run_alltoall(const struct call *c) {
  int form;
  for (form = 0; form < 3; form++) alltoall(c->context, c->name, c->count, form);
}

static void run_alltoallv(const struct call *c) { alltoallv(c->context, c->name); }

static void run_barrier(const struct call *c) {
  gloo_rs_collective_options_t options;
  gloo_rs_collective_options_init(&options, sizeof options);
  options.algorithm = c->name;
  CHECK_OK(gloo_rs_collective(c->context, GLOO_RS_BARRIER, &options));
}

static void run_pairwise_exchange(const struct call *c) {
  size_t destinations;
  if ((test_size & (test_size - 1)) != 0) return;
  for (destinations = 0; 1 << destinations <= test_size; destinations++)
    pairwise_exchange(c->context, c->name, c->count, destinations);
}

static void run_scan(const struct call *c) {
  scans(c->context, c->name, c->count, 0, 0);
  scans(c->context, c->name, c->count, 1, 0);
}

static void run_exscan(const struct call *c) {
  scans(c->context, c->name, c->count, 0, 1);
  scans(c->context, c->name, c->count, 1, 1);
}

static const struct {
  const char *name;
  void (*run)(const struct call *);
} collectives[] = {
    {"allreduce", run_allreduce},
    {"reduce", run_reduce},
    {"reduce_scatter", run_reduce_scatter},
    {"broadcast", run_broadcast},
    {"allgather", run_allgather},
    {"allgatherv", run_allgatherv},
    {"gather", run_gather},
    {"gatherv", run_gatherv},
    {"scatter", run_scatter},
    {"scatterv", run_scatterv},
    {"alltoall", run_alltoall},
    {"alltoallv", run_alltoallv},
    {"barrier", run_barrier},
    {"pairwise_exchange", run_pairwise_exchange},
    {"scan", run_scan},
    {"exscan", run_exscan},
};

/* Advances to the next name of a list. Returns 0 after the last. */
static int next_name(const char **list, char *name, size_t size) {
  size_t length = strcspn(*list, ",");
  CHECK(length < size);
  memcpy(name, *list, length);
  name[length] = '\0';
  *list += length + ((*list)[length] == ',');
  return length > 0;
}

/* Calls each algorithm of a collective with every count and with changing roots. */
static void sweep(gloo_rs_context_t *context, const char *collective, void (*run)(const struct call *)) {
  const char *list = gloo_rs_algorithms(collective);
  char name[64];
  size_t n, calls = 0;
  CHECK(list != NULL);
  while (next_name(&list, name, sizeof name)) {
    if (!can_run(context, name)) continue;
    for (n = 0; n < COUNTS; n++) {
      struct call call = {context, name, counts[n], (int)(calls++ % (size_t)test_size), {0}, {0}};
      int rank;
      for (rank = 0; rank < test_size; rank++) {
        call.even[rank] = call.count;
        call.uneven[rank] = rank == test_size / 2 ? 2 * call.count + 1 : call.count * (size_t)(rank % 3) / 2;
      }
      segment_bytes = call.count > 1001 ? 4096 : 0;
      run(&call);
    }
  }
  CHECK(calls > 0);
}

static void every_algorithm(void) {
  gloo_rs_context_t *context = connected_context();
  size_t n;
  CHECK(gloo_rs_algorithms("none") == NULL);
  CHECK(gloo_rs_algorithms("") == NULL);
  CHECK(gloo_rs_algorithms(NULL) == NULL);
  CHECK_CONTAINS(gloo_rs_algorithms("allreduce"), "ring_segmented,");
  for (n = 0; n < sizeof collectives / sizeof *collectives; n++) sweep(context, collectives[n].name, collectives[n].run);
  gloo_rs_context_destroy(context);
}

int main(int argc, char **argv) {
  /* The first sizes run under valgrind: 1, a power of two, and a number that is not. */
  static const struct test tests[] = {
      {"every_algorithm", 1, every_algorithm, -1}, {"every_algorithm", 4, every_algorithm, -1},
      {"every_algorithm", 5, every_algorithm, -1}, {"every_algorithm", 2, every_algorithm, -1},
      {"every_algorithm", 3, every_algorithm, -1}, {"every_algorithm", 6, every_algorithm, -1},
      {"every_algorithm", 7, every_algorithm, -1}, {"every_algorithm", 8, every_algorithm, -1},
      {"every_algorithm", 9, every_algorithm, -1},
  };
  return run_tests(argc, argv, tests, test_is_slow() ? 3 : sizeof tests / sizeof *tests);
}
