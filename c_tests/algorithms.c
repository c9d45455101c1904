/* Every algorithm that the library names, over TCP, for 1 to 9 ranks. What is added to the library is tested here. */
#include "calls.h"

/* Whole buffers and blocks: none, one, odd ones, and one of many segments. */
static const size_t counts[] = {0, 1, 7, 1001, 20011};
#define COUNTS (test_is_slow() ? 4 : sizeof counts / sizeof *counts)

/* Goes on to the next name of a list. Returns 0 after the last. */
static int next_name(const char **list, char *name, size_t size) {
  size_t length = strcspn(*list, ",");
  CHECK(length < size);
  memcpy(name, *list, length);
  name[length] = '\0';
  *list += length + ((*list)[length] == ',');
  return length > 0;
}

/* Makes calls of each algorithm of a collective: `run` with its name, a count, and a root that is another each time. */
static void sweep(gloo_rs_context_t *context, const char *collective,
                  void (*run)(gloo_rs_context_t *, const char *, size_t, int)) {
  const char *list = gloo_rs_algorithms(collective);
  char name[64];
  size_t c, calls = 0;
  CHECK(list != NULL);
  while (next_name(&list, name, sizeof name)) {
    if (strcmp(name, "local") == 0 && test_size > 1) continue;
    for (c = 0; c < COUNTS; c++) {
      segment_bytes = counts[c] > 1001 ? 4096 : 0;
      run(context, name, counts[c], (int)(calls++ % (size_t)test_size));
    }
  }
  CHECK(calls > 0);
}

static void run_allreduce(gloo_rs_context_t *context, const char *name, size_t count, int root) {
  (void)root;
  allreduce(context, name, GLOO_RS_FLOAT32, GLOO_RS_SUM, count, 1, 1, 0);
  allreduce(context, name, GLOO_RS_INT32, GLOO_RS_MAX, count, 0, 1, 0);
  allreduce(context, name, GLOO_RS_UINT8, GLOO_RS_XOR, count, 1, 1, 0);
  allreduce(context, name, GLOO_RS_COMPLEX64, GLOO_RS_SUM, count, 3, 2, 0);
  allreduce(context, name, GLOO_RS_FLOAT64, GLOO_RS_AVERAGE, count, 0, 2, 1);
}

static void run_reduce(gloo_rs_context_t *context, const char *name, size_t count, int root) {
  size_t inputs;
  for (inputs = 0; inputs <= 2; inputs++) reduce(context, name, root, count, inputs);
}

static void run_broadcast(gloo_rs_context_t *context, const char *name, size_t count, int root) {
  broadcast(context, name, root, count, 1, 1);
  broadcast(context, name, root, count, 0, 1);
  broadcast(context, name, root, count, 1, 3);
}

static void run_scan(gloo_rs_context_t *context, const char *name, size_t count, int root) {
  (void)root;
  scans(context, name, count, 0, 0);
  scans(context, name, count, 1, 0);
}

static void run_exscan(gloo_rs_context_t *context, const char *name, size_t count, int root) {
  (void)root;
  scans(context, name, count, 0, 1);
  scans(context, name, count, 1, 1);
}

/* Blocks that are alike, and blocks of which some are empty and one is longer. */
static void blocks(size_t count, size_t *even, size_t *uneven) {
  int rank;
  for (rank = 0; rank < test_size; rank++) {
    even[rank] = count;
    uneven[rank] = rank == test_size / 2 ? 2 * count + 1 : count * (size_t)(rank % 3) / 2;
  }
}

static void run_reduce_scatter(gloo_rs_context_t *context, const char *name, size_t count, int root) {
  size_t even[MAX_RANKS], uneven[MAX_RANKS], inputs;
  (void)root;
  blocks(count, even, uneven);
  reduce_scatter(context, name, even, 1);
  for (inputs = 0; inputs <= 2; inputs++) reduce_scatter(context, name, uneven, inputs);
}

static void run_allgather(gloo_rs_context_t *context, const char *name, size_t count, int root) {
  size_t inputs;
  (void)root;
  for (inputs = 0; inputs <= 2; inputs++) allgather(context, name, count, inputs);
}

static void run_allgatherv(gloo_rs_context_t *context, const char *name, size_t count, int root) {
  size_t even[MAX_RANKS], uneven[MAX_RANKS];
  (void)root;
  blocks(count, even, uneven);
  allgatherv(context, name, even, 1);
  allgatherv(context, name, uneven, 0);
  allgatherv(context, name, uneven, 1);
}

static void run_gather(gloo_rs_context_t *context, const char *name, size_t count, int root) {
  size_t even[MAX_RANKS], uneven[MAX_RANKS];
  blocks(count, even, uneven);
  gather(context, name, root, even, 0, 0);
  gather(context, name, root, even, 0, 1);
}

static void run_gatherv(gloo_rs_context_t *context, const char *name, size_t count, int root) {
  size_t even[MAX_RANKS], uneven[MAX_RANKS];
  blocks(count, even, uneven);
  gather(context, name, root, even, 1, 1);
  gather(context, name, root, uneven, 1, 0);
  gather(context, name, root, uneven, 1, 1);
}

static void run_scatter(gloo_rs_context_t *context, const char *name, size_t count, int root) {
  size_t even[MAX_RANKS], uneven[MAX_RANKS];
  blocks(count, even, uneven);
  scatter(context, name, root, even, 0, 0);
  if (test_size <= MAX_BUFFERS) scatter(context, name, root, even, 0, 1);
  scatter(context, name, root, even, 0, 2);
}

static void run_scatterv(gloo_rs_context_t *context, const char *name, size_t count, int root) {
  size_t even[MAX_RANKS], uneven[MAX_RANKS];
  blocks(count, even, uneven);
  scatter(context, name, root, even, 1, 2);
  scatter(context, name, root, uneven, 1, 0);
  scatter(context, name, root, uneven, 1, 2);
}

static void run_alltoall(gloo_rs_context_t *context, const char *name, size_t count, int root) {
  int form;
  (void)root;
  for (form = 0; form < 3; form++) alltoall(context, name, count, form);
}

static void run_alltoallv(gloo_rs_context_t *context, const char *name, size_t count, int root) {
  (void)root;
  (void)count;
  alltoallv(context, name);
}

static void run_pairwise_exchange(gloo_rs_context_t *context, const char *name, size_t count, int root) {
  size_t destinations;
  (void)root;
  if ((test_size & (test_size - 1)) != 0) return;
  for (destinations = 0; 1 << destinations <= test_size; destinations++)
    pairwise_exchange(context, name, count, destinations);
}

static void run_barrier(gloo_rs_context_t *context, const char *name, size_t count, int root) {
  gloo_rs_barrier_options_t options;
  (void)count;
  (void)root;
  gloo_rs_barrier_options_init(&options, sizeof options);
  options.algorithm = name;
  CHECK_OK(gloo_rs_barrier(context, &options));
}

static void every_algorithm(void) {
  gloo_rs_context_t *context = connected_context();
  CHECK(gloo_rs_algorithms("none") == NULL);
  CHECK(gloo_rs_algorithms("") == NULL);
  CHECK(gloo_rs_algorithms(NULL) == NULL);
  CHECK_CONTAINS(gloo_rs_algorithms("allreduce"), "ring_segmented,");
  sweep(context, "allreduce", run_allreduce);
  sweep(context, "reduce", run_reduce);
  sweep(context, "reduce_scatter", run_reduce_scatter);
  sweep(context, "broadcast", run_broadcast);
  sweep(context, "allgather", run_allgather);
  sweep(context, "allgatherv", run_allgatherv);
  sweep(context, "gather", run_gather);
  sweep(context, "gatherv", run_gatherv);
  sweep(context, "scatter", run_scatter);
  sweep(context, "scatterv", run_scatterv);
  sweep(context, "alltoall", run_alltoall);
  sweep(context, "alltoallv", run_alltoallv);
  sweep(context, "barrier", run_barrier);
  sweep(context, "pairwise_exchange", run_pairwise_exchange);
  sweep(context, "scan", run_scan);
  sweep(context, "exscan", run_exscan);
  gloo_rs_context_destroy(context);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"every_algorithm", 1, every_algorithm, -1}, {"every_algorithm", 2, every_algorithm, -1},
      {"every_algorithm", 3, every_algorithm, -1}, {"every_algorithm", 5, every_algorithm, -1},
      {"every_algorithm", 4, every_algorithm, -1}, {"every_algorithm", 6, every_algorithm, -1},
      {"every_algorithm", 7, every_algorithm, -1}, {"every_algorithm", 8, every_algorithm, -1},
      {"every_algorithm", 9, every_algorithm, -1},
  };
  /* Valgrind takes minutes for what needs a second without; the first few have powers of two and others. */
  return run_tests(argc, argv, tests, test_is_slow() ? 4 : sizeof tests / sizeof *tests);
}
