/* Factors of inputs, one for each rank; every sum is exact. */
#include "calls.h"

static int32_t add(void *into, const void *left, const void *right, size_t count, void *user) {
  size_t i;
  (void)user;
  for (i = 0; i < count; i++) ((double *)into)[i] = ((const double *)left)[i] + ((const double *)right)[i];
  return 0;
}

static void factors(void) {
  enum { N = 3000 };
  gloo_rs_context_t *context = connected_context();
  const float factor = (float)(test_rank + 2);
  const double half = 0.5;
  float *in = (float *)check_alloc(N * sizeof *in), *out = (float *)check_alloc(N * sizeof *out);
  float whole = 0;
  const void *inputs[1] = {in};
  void *outputs[1] = {out};
  const char *names = gloo_rs_algorithms("allreduce");
  gloo_rs_collective_options_t options;
  gloo_rs_request_t *request = NULL;
  int rank, i, in_place;
  for (rank = 0; rank < test_size; rank++) whole += (float)((rank + 1) * (rank + 2));
  gloo_rs_collective_options_init(&options, sizeof options);
  CHECK(options.factor == NULL);
  options.data_type = GLOO_RS_FLOAT32;
  options.outputs = outputs;
  options.num_outputs = 1;
  options.count = N;
  options.factor = &factor;
  while (*names != '\0') {
    char algorithm[64];
    size_t length = strcspn(names, ",");
    memcpy(algorithm, names, length);
    algorithm[length] = '\0';
    names += length + (names[length] == ',');
    if (!can_run(context, algorithm)) continue;
    options.algorithm = algorithm;
    for (in_place = 0; in_place < 2; in_place++) {
      for (i = 0; i < N; i++) in[i] = (float)((test_rank + 1) * (i % 100));
      if (in_place) memcpy(out, in, N * sizeof *out);
      options.inputs = in_place ? NULL : inputs;
      options.num_inputs = in_place ? 0 : 1;
      CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));
      for (i = 0; i < N; i++) CHECK(out[i] == whole * (float)(i % 100) && in[i] == (float)((test_rank + 1) * (i % 100)));
    }
  }
  options.algorithm = NULL;

  /* A request keeps the factor of its preparation. */
  {
    float mine = 2 * factor;
    options.factor = &mine;
    options.inputs = inputs;
    options.num_inputs = 1;
    CHECK_OK(gloo_rs_collective_prepare(context, GLOO_RS_ALLREDUCE, &options, &request));
    mine = 0;
    for (i = 0; i < 3; i++) {
      in[1] = (float)((test_rank + 1) * (i + 1));
      CHECK_OK(gloo_rs_start(request));
      CHECK_OK(gloo_rs_wait(request));
      CHECK(out[1] == 2 * whole * (float)(i + 1));
    }
    CHECK_OK(gloo_rs_request_free(request));
    options.factor = &factor;
  }

  for (i = 0; i < N; i++) in[i] = (float)(test_rank + 1), out[i] = -1;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_REDUCE, &options));
  CHECK(out[N - 1] == (test_rank == 0 ? whole : -1));
  options.count = N / 4;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_REDUCE_SCATTER, &options));
  CHECK(out[N / 4 - 1] == whole);
  for (whole = 0, rank = 0; rank <= test_rank; rank++) whole += (float)((rank + 1) * (rank + 2));
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_SCAN, &options));
  CHECK(out[0] == whole && in[0] == (float)(test_rank + 1));

  options.op = GLOO_RS_MAX;
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options), "factor: the operation is max; it must be sum");
  options.op = GLOO_RS_SUM;
  options.data_type = GLOO_RS_INT32;
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options),
                "factor: it is for elements of float16, bfloat16, float32 or float64, not for int32");
  options.data_type = GLOO_RS_COMPLEX64;
  options.factor = &half;
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options), "not for complex64");
  options.data_type = GLOO_RS_FLOAT64;
  options.function = add;
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options), "factor: function is set");
  options.function = NULL;
  options.num_inputs = 0;
  options.inputs = NULL;
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_BROADCAST, &options), "broadcast does not use factor");
  barrier(context);
  free(in);
  free(out);
  gloo_rs_context_destroy(context);
}

static const struct test tests[] = {
    {"factors", 3, factors, -1},
#define TESTS_UNDER_VALGRIND 1
    {"factors", 1, factors, -1},
    {"factors", 2, factors, -1},
    {"factors", 4, factors, -1},
};

int main(int argc, char **argv) {
  return run_tests(argc, argv, tests, test_is_slow() ? TESTS_UNDER_VALGRIND : sizeof tests / sizeof *tests);
}
