/* Reductions in the order of ranks: the bits are those of additions from the left, whatever the algorithm. Reproducible ones: the bits are those of
 * the exact sum, rounded once, however many ranks and buffers the contributions come from. */
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
  CHECK_INVALID(gloo_rs_context_create(device, test_rank, test_size, &options, &context), "order is \"any\"; it must be \"ranks\", \"reproducible\", or NULL");
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

enum { CONTRIBUTIONS = 12 };

/* A contribution, which has 24 bits, in units of 2^-10. A sum of some is rounded as a float, but not as an integer. */
static int64_t units_of(int contribution, size_t i) {
  const int64_t bits = (int64_t)((i * 7919 + (size_t)contribution * 1048573) % 16777213) - 8388606;
  return bits * ((int64_t)1 << 10 * (((int)(i % 5) + contribution) % 4));
}

static float total(size_t i) {
  int64_t sum = 0;
  int contribution;
  for (contribution = 0; contribution < CONTRIBUTIONS; contribution++) sum += units_of(contribution, i);
  return (float)sum / 1024.0f;
}

/* Each rank has as many of the contributions as inputs. */
static void reproducible_by_each(gloo_rs_context_t *context, gloo_rs_collective_t kind, const char *name, size_t count, gloo_rs_op_t op) {
  const char *names = gloo_rs_algorithms(name);
  const int mine = CONTRIBUTIONS / test_size, root = test_size - 1;
  const size_t all = kind == GLOO_RS_REDUCE_SCATTER ? count * (size_t)test_size : count;
  const size_t first = kind == GLOO_RS_REDUCE_SCATTER ? count * (size_t)test_rank : 0;
  const int has_result = kind != GLOO_RS_REDUCE || test_rank == root;
  float *in = (float *)check_alloc(((size_t)mine * all + 1) * sizeof *in), *out = (float *)check_alloc((count + 1) * sizeof *out);
  const void *inputs[CONTRIBUTIONS];
  void *outputs[1] = {out};
  gloo_rs_collective_options_t options;
  int n, automatic = 1;
  size_t i;
  for (n = 0; n < mine; n++) {
    inputs[n] = in + (size_t)n * all;
    for (i = 0; i < all; i++) in[(size_t)n * all + i] = (float)units_of(test_rank * mine + n, i) / 1024.0f;
  }
  gloo_rs_collective_options_init(&options, sizeof options);
  options.data_type = GLOO_RS_FLOAT32;
  options.op = op;
  options.timeout_ms = test_timeout_ms();
  options.count = count;
  options.inputs = inputs;
  options.num_inputs = (size_t)mine;
  options.outputs = outputs;
  options.num_outputs = 1;
  options.order = "reproducible";
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
    snprintf(doing, sizeof doing, "reproducible %s by %s of %zu", name, algorithm, count);
    if (!automatic && !folds(algorithm)) {
      CHECK_INVALID(gloo_rs_collective(context, kind, &options), " is not reproducible; these are: ");
    } else if (strncmp(algorithm, "shared_", 7) == 0 && mine > 1 && test_size > 1) {
      CHECK_INVALID(gloo_rs_collective(context, kind, &options), " is not reproducible with several inputs on a rank; these are: ");
    } else {
      CHECK_OK(gloo_rs_collective(context, kind, &options));
      for (i = 0; i < count && has_result; i++) {
        CHECK(out[i] == (op == GLOO_RS_AVERAGE ? total(first + i) / CONTRIBUTIONS : total(first + i)));
      }
    }
    automatic = 0;
  }
  free(in);
  free(out);
}

static void reproducible_calls(void) {
  const size_t counts[] = {0, 1, 5, 1000, test_is_slow() ? 5000 : 70000};
  gloo_rs_context_t *context = connected_context();
  size_t c;
  for (c = 0; c < sizeof counts / sizeof *counts; c++) {
    const gloo_rs_op_t op = c % 2 == 0 ? GLOO_RS_SUM : GLOO_RS_AVERAGE;
    reproducible_by_each(context, GLOO_RS_ALLREDUCE, "allreduce", counts[c], op);
    reproducible_by_each(context, GLOO_RS_REDUCE, "reduce", counts[c], op);
    reproducible_by_each(context, GLOO_RS_REDUCE_SCATTER, "reduce_scatter", counts[c], op);
  }
  gloo_rs_context_destroy(context);
}

/* A rank for each contribution; and what is refused. */
static void reproducible_context(void) {
  enum { N = 3000 };
  gloo_rs_context_options_t options;
  gloo_rs_context_t *context = NULL;
  gloo_rs_device_t *device = create_device();
  float *values = (float *)check_alloc(N * sizeof *values);
  size_t i;
  gloo_rs_context_options_init(&options, sizeof options);
  options.timeout_ms = test_timeout_ms();
  options.order = "reproducible";
  CHECK_OK(gloo_rs_context_create(device, test_rank, test_size, &options, &context));
  gloo_rs_device_destroy(device);
  connect_context(context, NULL, "reproducible");
  for (i = 0; i < N; i++) values[i] = (float)units_of(test_rank, i) / 1024.0f;
  CHECK_OK(gloo_rs_allreduce(context, NULL, values, N, GLOO_RS_FLOAT32, GLOO_RS_SUM));
  for (i = 0; i < N; i++) CHECK(values[i] == total(i));
  CHECK_INVALID(gloo_rs_allreduce(context, NULL, values, N, GLOO_RS_FLOAT16, GLOO_RS_SUM), "order is \"reproducible\", but not the sum of float16; ");
  CHECK_INVALID(gloo_rs_allreduce(context, NULL, values, N, GLOO_RS_FLOAT32, GLOO_RS_PRODUCT), "but not the product of float32; reproducible are ");
  CHECK_OK(gloo_rs_allreduce(context, NULL, values, N, GLOO_RS_FLOAT16, GLOO_RS_MAX));
  CHECK_OK(gloo_rs_barrier(context));
  free(values);
  gloo_rs_context_destroy(context);
}

static const struct test tests[] = {
    {"calls_with_order", 3, calls_with_order, -1},
    {"reproducible_calls", 3, reproducible_calls, -1},
#define TESTS_UNDER_VALGRIND 2
    {"calls_with_order", 1, calls_with_order, -1},
    {"calls_with_order", 2, calls_with_order, -1},
    {"calls_with_order", 4, calls_with_order, -1},
    {"context_with_order", 4, context_with_order, -1},
    {"reproducible_calls", 1, reproducible_calls, -1},
    {"reproducible_calls", 2, reproducible_calls, -1},
    {"reproducible_calls", 4, reproducible_calls, -1},
    {"reproducible_context", 12, reproducible_context, -1},
};

int main(int argc, char **argv) {
  return run_tests(argc, argv, tests, test_is_slow() ? TESTS_UNDER_VALGRIND : sizeof tests / sizeof *tests);
}
