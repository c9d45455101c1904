/* Reductions in the order of ranks: the bits are those of additions from the left, whatever the algorithm. */
#include "calls.h"

/* What `rank` contributes: numbers of many magnitudes, whose sums round differently in each order. */
static float element_of(int rank, size_t i) {
  const float scales[] = {1.0f, 1e-3f, 37.0f, 4096.5f, 1e5f};
  return (float)((i * 7919 + (size_t)rank * 104729) % 1000003) * 1e-5f * scales[(i + (size_t)rank) % 5] - 3.25f;
}

static float folded(size_t i) {
  volatile float sum = element_of(0, i);
  int rank;
  for (rank = 1; rank < test_size; rank++) sum = sum + element_of(rank, i);
  return sum;
}

/* Whether the algorithm, which these ranks can run, folds. */
static int folds(const char *name) {
  return strcmp(name, "bcube") == 0 || strcmp(name, "reduce_broadcast") == 0 || strcmp(name, "local") == 0 ||
         strcmp(name, "flat") == 0 || strcmp(name, "direct") == 0 || strcmp(name, "shared_flat") == 0 ||
         strcmp(name, "shared_slices") == 0;
}

static void by_each(gloo_rs_context_t *context, gloo_rs_collective_t kind, const char *name, size_t count, const char *order) {
  const char *names = gloo_rs_algorithms(name);
  const int root = test_size - 1;
  /* Every rank has one block of a reduce_scatter. */
  const size_t all = kind == GLOO_RS_REDUCE_SCATTER ? count * (size_t)test_size : count;
  const size_t first = kind == GLOO_RS_REDUCE_SCATTER ? count * (size_t)test_rank : 0;
  float *in = (float *)check_alloc((all + 1) * sizeof *in), *out = (float *)check_alloc((all + 1) * sizeof *out);
  const void *inputs[1] = {in};
  void *outputs[1] = {out};
  gloo_rs_collective_options_t options;
  int in_place, automatic = 1;
  size_t i;
  gloo_rs_collective_options_init(&options, sizeof options);
  CHECK(options.order == NULL);
  options.data_type = GLOO_RS_FLOAT32;
  options.timeout_ms = test_timeout_ms();
  options.count = count;
  options.outputs = outputs;
  options.num_outputs = 1;
  options.order = order;
  options.root = kind == GLOO_RS_REDUCE ? root : 0;
  while (automatic || *names != '\0') {
    char algorithm[64] = "auto";
    if (!automatic) {
      size_t length = strcspn(names, ",");
      memcpy(algorithm, names, length);
      algorithm[length] = '\0';
      names += length + (names[length] == ',');
      if (!can_run(context, algorithm)) continue;
    }
    options.algorithm = algorithm;
    snprintf(doing, sizeof doing, "%s by %s of %zu", name, algorithm, count);
    for (in_place = 0; in_place < 2; in_place++) {
      for (i = 0; i < all; i++) in[i] = out[i] = element_of(test_rank, i);
      options.inputs = in_place ? NULL : inputs;
      options.num_inputs = in_place ? 0 : 1;
      if (!automatic && !folds(algorithm)) {
        CHECK_INVALID(gloo_rs_collective(context, kind, &options), "does not combine in the order of ranks, from the left; these do: ");
        continue;
      }
      CHECK_OK(gloo_rs_collective(context, kind, &options));
      if (kind == GLOO_RS_REDUCE && test_rank != root) continue;
      for (i = 0; i < count; i++) CHECK(out[i] == folded(first + i));
    }
    automatic = 0;
  }
  free(in);
  free(out);
}

static void calls_with_order(void) {
  const size_t counts[] = {0, 1, 5, 1000, test_is_slow() ? 5000 : 70000};
  gloo_rs_context_t *context = connected_context();
  size_t c;
  for (c = 0; c < sizeof counts / sizeof *counts; c++) {
    by_each(context, GLOO_RS_ALLREDUCE, "allreduce", counts[c], "ranks");
    by_each(context, GLOO_RS_REDUCE, "reduce", counts[c], "ranks");
    by_each(context, GLOO_RS_REDUCE_SCATTER, "reduce_scatter", counts[c], "ranks");
  }
  gloo_rs_context_destroy(context);
}

/* The functions of single collectives are ordered, too. */
static void context_with_order(void) {
  enum { N = 3000 };
  gloo_rs_context_options_t options;
  gloo_rs_context_t *context = NULL;
  gloo_rs_device_t *device = create_device();
  float *values = (float *)check_alloc(N * sizeof *values);
  int round;
  size_t i;
  gloo_rs_context_options_init(&options, sizeof options);
  CHECK(options.order == NULL);
  options.timeout_ms = test_timeout_ms();
  options.order = "any";
  CHECK_INVALID(gloo_rs_context_create(device, test_rank, test_size, &options, &context), "order is \"any\"; it must be \"ranks\"");
  options.order = "ranks";
  CHECK_OK(gloo_rs_context_create(device, test_rank, test_size, &options, &context));
  gloo_rs_device_destroy(device);
  connect_context(context, NULL, "ordered");
  for (round = 0; round < 3; round++) {
    for (i = 0; i < N; i++) values[i] = element_of(test_rank, i);
    CHECK_OK(gloo_rs_allreduce(context, NULL, values, N, GLOO_RS_FLOAT32, GLOO_RS_SUM));
    for (i = 0; i < N; i++) CHECK(values[i] == folded(i));
  }
  by_each(context, GLOO_RS_ALLREDUCE, "allreduce", 300, NULL);
  CHECK_OK(gloo_rs_barrier(context));
  free(values);
  gloo_rs_context_destroy(context);
}

static const struct test tests[] = {
    {"calls_with_order", 3, calls_with_order, -1},
#define TESTS_UNDER_VALGRIND 1
    {"calls_with_order", 1, calls_with_order, -1},
    {"calls_with_order", 2, calls_with_order, -1},
    {"calls_with_order", 4, calls_with_order, -1},
    {"context_with_order", 4, context_with_order, -1},
};

int main(int argc, char **argv) {
  return run_tests(argc, argv, tests, test_is_slow() ? TESTS_UNDER_VALGRIND : sizeof tests / sizeof *tests);
}
