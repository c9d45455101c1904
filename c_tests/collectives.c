/* Every collective against values computed here: types, operations, algorithms, in place and not, several buffers. */
#include "calls.h"
#include "plain_calls.h"

/* ---- allreduce ---- */

static void allreduce_types(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_data_type_t type;
  gloo_rs_op_t op;
  for (type = GLOO_RS_INT8; type <= GLOO_RS_BOOL; type++)
    for (op = GLOO_RS_SUM; op <= GLOO_RS_XOR; op++) {
      if (!supported(type, op)) continue;
      allreduce(context, NULL, type, op, 37, 1, 1, 0);
      allreduce(context, "auto", type, op, 6, 0, 1, 0);
    }
  gloo_rs_context_destroy(context);
}

static void allreduce_algorithms(void) {
  static const char *const algorithms[] = {NULL,    "auto",           "ring_segmented", "ring_chunked", "halving_doubling",
                                           "bcube", "recursive_doubling"};
  /* With the last ones, every algorithm sends messages that wait for a grant. */
  const size_t counts[] = {0, 1, 3, 1000, test_is_slow() ? 17000 : 50000};
  gloo_rs_context_t *context = connected_context();
  size_t a, c;
  for (a = 0; a < sizeof algorithms / sizeof *algorithms; a++)
    for (c = 0; c < sizeof counts / sizeof *counts; c++) {
      allreduce(context, algorithms[a], GLOO_RS_FLOAT32, GLOO_RS_SUM, counts[c], 1, 1, 0);
      allreduce(context, algorithms[a], GLOO_RS_INT32, GLOO_RS_MAX, counts[c], 0, 1, 0);
      allreduce(context, algorithms[a], GLOO_RS_FLOAT64, GLOO_RS_SUM, counts[c], 0, 1, 1);
      if (counts[c] > 1000) continue;
      allreduce(context, algorithms[a], GLOO_RS_INT64, GLOO_RS_SUM, counts[c], 3, 2, 0);
      allreduce(context, algorithms[a], GLOO_RS_UINT16, GLOO_RS_SUM, counts[c], 0, 2, 1);
      allreduce(context, algorithms[a], GLOO_RS_FLOAT32, GLOO_RS_AVERAGE, counts[c], 0, 2, 0);
    }
  if (test_size == 1) allreduce(context, "local", GLOO_RS_INT32, GLOO_RS_SUM, 1000, 3, 1, 0);
  gloo_rs_context_destroy(context);
}

/* Ranks in groups and grids of all kinds; the group of rank r is r % groups, or its host if that is 0. */
static void allreduce_in(gloo_rs_context_t *context, const char *algorithm, unsigned groups, const size_t *dims,
                         size_t num_dims, size_t count) {
  struct buffers in, out;
  uint32_t *group = (uint32_t *)check_alloc((size_t)test_size * sizeof *group);
  size_t j;
  int rank;
  make(&in, GLOO_RS_INT32, count, 1);
  make(&out, GLOO_RS_INT32, count, 1);
  fill(&in, GLOO_RS_SUM, test_rank);
  for (rank = 0; rank < test_size; rank++) group[rank] = groups > 0 ? (uint32_t)rank % groups : 0;
  {
    INIT(allreduce, algorithm, GLOO_RS_INT32, &in, &out);
    options.count = count;
    options.groups = groups > 0 ? group : NULL;
    options.num_groups = groups > 0 ? (size_t)test_size : 0;
    options.dims = dims;
    options.num_dims = num_dims;
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));
  }
  for (j = 0; j < count; j++) expect(&out, 0, j, reduced(GLOO_RS_INT32, GLOO_RS_SUM, test_size, 1, j));
  free(group);
  drop(&in);
  drop(&out);
}

static void allreduce_places(void) {
  static const char *const algorithms[] = {"hierarchical", "hierarchical_direct", "torus_2d",
                                           "torus_nd",     "mesh_2d",             "spanning_trees"};
  const size_t counts[] = {0, 3, 1001, test_is_slow() ? 17000 : 100000};
  gloo_rs_context_t *context = connected_context();
  size_t a, c, dims[2];
  unsigned groups;
  for (a = 0; a < sizeof algorithms / sizeof *algorithms; a++)
    for (c = 0; c < sizeof counts / sizeof *counts; c++) {
      for (groups = 0; groups <= 3; groups++) allreduce_in(context, algorithms[a], groups, NULL, 0, counts[c]);
      for (dims[0] = 1; dims[0] <= (size_t)test_size; dims[0]++) {
        dims[1] = (size_t)test_size / dims[0];
        if (dims[0] * dims[1] == (size_t)test_size) allreduce_in(context, algorithms[a], 0, dims, 2, counts[c]);
      }
    }
  {
    /* Arguments that an algorithm does not support are refused before anything is sent: the context stays usable. */
    size_t three[] = {1, 1, 1};
    float value = 1;
    void *outputs[] = {&value};
    gloo_rs_collective_options_t options;
    three[0] = (size_t)test_size;
    gloo_rs_collective_options_init(&options, sizeof options);
    options.algorithm = "torus_2d";
    options.data_type = GLOO_RS_FLOAT32;
    options.outputs = outputs;
    options.num_outputs = 1;
    options.count = 1;
    options.dims = three;
    options.num_dims = 3;
    CHECK_FAILS(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options), GLOO_RS_ERROR_INVALID_ARGUMENT,
                "dims has 3 entries; it must have 2");
    options.dims = NULL;
    options.num_dims = 0;
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));
  }
  gloo_rs_context_destroy(context);
}

/* ---- the others ---- */

static void other_reductions(void) {
  static const char *const reduces[] = {NULL, "binomial", "ring"}, *const scatters[] = {NULL, "ring"};
  static const size_t even[] = {5, 5, 5, 5}, uneven[] = {3, 0, 1000, 1}, nothing[] = {0, 0, 0, 0};
  gloo_rs_context_t *context = connected_context();
  size_t a;
  int root;
  for (a = 0; a < 3; a++)
    for (root = 0; root < test_size; root++) {
      reduce(context, reduces[a], root, 1000, 1);
      reduce(context, reduces[a], root, 1, 0);
      reduce(context, reduces[a], root, 10, 2);
    }
  for (a = 0; a < 2; a++) {
    reduce_scatter(context, scatters[a], even, 1);
    reduce_scatter(context, scatters[a], uneven, 1);
    reduce_scatter(context, scatters[a], uneven, 0);
    reduce_scatter(context, scatters[a], nothing, 1);
    reduce_scatter(context, scatters[a], even, 2);
  }
  for (a = 0; a < 2; a++) {
    scans(context, NULL, 100, a, 0);
    scans(context, "recursive_doubling", 100, a, 1);
  }
  gloo_rs_context_destroy(context);
}

static void barriers(gloo_rs_context_t *context) {
  static const char *const algorithms[] = {NULL, "dissemination", "all_to_all", "all_to_one"};
  size_t a;
  int round;
  for (a = 0; a < 4; a++)
    for (round = 0; round < 3; round++) {
      gloo_rs_collective_options_t options;
      gloo_rs_collective_options_init(&options, sizeof options);
      options.algorithm = algorithms[a];
      CHECK_OK(gloo_rs_collective(context, GLOO_RS_BARRIER, &options));
    }
}

static void moving(void) {
  static const char *const broadcasts[] = {NULL, "one_to_all", "binomial"}, *const rings[] = {NULL, "ring"},
                          *const gather_of[] = {NULL, "direct", NULL};
  static const size_t even[] = {4, 4, 4, 4}, large[] = {3000, 3000, 3000, 3000}, uneven[] = {3, 0, 2000, 1};
  gloo_rs_context_t *context = connected_context();
  size_t a;
  int root, form;
  for (root = 0; root < test_size; root++) {
    for (a = 0; a < 3; a++) {
      broadcast(context, broadcasts[a], root, 1, 1, 1);
      broadcast(context, broadcasts[a], root, 70000, 0, 1);
      broadcast(context, broadcasts[a], root, 9, 0, 3);
      broadcast(context, broadcasts[a], root, 0, 1, 2);
    }
    for (form = 0; form < 2; form++) {
      gather(context, gather_of[form], root, even, 0, form);
      gather(context, gather_of[form], root, large, 0, form);
      gather(context, gather_of[!form], root, uneven, 1, form);
    }
    for (form = 0; form < 3; form++) {
      scatter(context, gather_of[form], root, even, 0, form);
      scatter(context, gather_of[form], root, large, 0, form);
      if (form != 1) scatter(context, gather_of[form], root, uneven, 1, form);
    }
  }
  for (a = 0; a < 2; a++) {
    allgather(context, rings[a], 5, 1);
    allgather(context, rings[a], 5000, 0);
    allgather(context, rings[a], 3, 2);
    allgather(context, rings[a], 0, 1);
    allgatherv(context, rings[a], uneven, 1);
    allgatherv(context, rings[a], uneven, 0);
  }
  for (form = 0; form < 3; form++) {
    alltoall(context, form == 0 ? "pairwise" : NULL, 6, form);
    alltoall(context, form == 0 ? "pairwise" : NULL, 4000, form);
    alltoall(context, form == 0 ? "pairwise" : NULL, 0, form);
  }
  alltoallv(context, NULL);
  if (test_size == 2 || test_size == 4) pairwise_exchange(context, NULL, 7, test_size == 4 ? 2 : 1);
  barriers(context);
  gloo_rs_context_destroy(context);
}

/* ---- the caller's operation ---- */

/* Composes a[i] = (scale, shift), read as x -> scale * x + shift, modulo 97: associative, not commutative. */
static int32_t compose(void *into, const void *left, const void *right, size_t count, void *user) {
  const uint16_t *a = (const uint16_t *)left, *b = (const uint16_t *)right;
  uint16_t *result = (uint16_t *)into;
  size_t i;
  ++*(int *)user;
  /* Elements are 32 bits: scale in the first half, shift in the second. */
  for (i = 0; i < count; i++) {
    unsigned scale = (unsigned)a[2 * i] * b[2 * i] % 97, shift = ((unsigned)a[2 * i + 1] * b[2 * i] + b[2 * i + 1]) % 97;
    result[2 * i] = (uint16_t)scale;
    result[2 * i + 1] = (uint16_t)shift;
  }
  return 0;
}

static int32_t wrapping_sum(void *into, const void *left, const void *right, size_t count, void *user) {
  size_t i;
  (void)user;
  for (i = 0; i < count; i++)
    ((uint32_t *)into)[i] = ((const uint32_t *)left)[i] + ((const uint32_t *)right)[i];
  return 0;
}

/* The collective that is calling, with its tag: refused, instead of waiting for itself. */
static int32_t call_back(void *into, const void *left, const void *right, size_t count, void *user) {
  int32_t cell = 1;
  CHECK_FAILS(gloo_rs_allreduce((gloo_rs_context_t *)user, &cell, &cell, 1, GLOO_RS_INT32, GLOO_RS_SUM),
              GLOO_RS_ERROR_INVALID_OPERATION,
              "allreduce ring_segmented of uint32 by a caller's function with tag 0 is running on this context already");
  return wrapping_sum(into, left, right, count, NULL);
}

static int32_t refuse(void *into, const void *left, const void *right, size_t count, void *user) {
  (void)into, (void)left, (void)right, (void)count, (void)user;
  return 33;
}

static void own_operation(void) {
  gloo_rs_context_t *context = connected_context();
  uint16_t in[8], out[8], expected[8];
  uint32_t cells[100], i;
  const void *inputs[1];
  void *outputs[1];
  int calls = 0, rank;
  gloo_rs_collective_options_t scan;
  gloo_rs_collective_options_t allreduce;
  for (i = 0; i < 8; i++) in[i] = (uint16_t)(test_rank * 11 + (int)i * 3 + 2);
  inputs[0] = in;
  outputs[0] = out;
  gloo_rs_collective_options_init(&scan, sizeof scan);
  scan.data_type = GLOO_RS_UINT32;
  scan.op = 4711; /* not looked at */
  scan.function = compose;
  scan.user = &calls;
  scan.inputs = inputs;
  scan.num_inputs = 1;
  scan.outputs = outputs;
  scan.num_outputs = 1;
  scan.count = 4;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_SCAN, &scan));
  for (i = 0; i < 8; i++) expected[i] = (uint16_t)(i * 3 + 2);
  for (rank = 1; rank <= test_rank; rank++) {
    uint16_t next[8];
    int unused = 0;
    for (i = 0; i < 8; i++) next[i] = (uint16_t)(rank * 11 + (int)i * 3 + 2);
    compose(expected, expected, next, 4, &unused);
  }
  for (i = 0; i < 8; i++) CHECK_INT(out[i], expected[i]);
  CHECK(test_rank == 0 || calls > 0);

  for (i = 0; i < 100; i++) cells[i] = i + (uint32_t)test_rank;
  outputs[0] = cells;
  gloo_rs_collective_options_init(&allreduce, sizeof allreduce);
  allreduce.data_type = GLOO_RS_UINT32;
  allreduce.function = wrapping_sum;
  allreduce.outputs = outputs;
  allreduce.num_outputs = 1;
  allreduce.count = 100;
  allreduce.algorithm = "ring_segmented";
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &allreduce));
  for (i = 0; i < 100; i++)
    CHECK_INT(cells[i], (uint32_t)test_size * i + (uint32_t)(test_size * (test_size - 1) / 2));
  allreduce.function = call_back;
  allreduce.user = context;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &allreduce));
  barrier(context);

  /* If the function returns anything but 0, the call fails, also on the other rank if it gets the reason first. */
  allreduce.function = refuse;
  allreduce.algorithm = "recursive_doubling";
  allreduce.timeout_ms = test_is_slow() ? 5000 : 1000;
  if (test_size == 2) {
    gloo_rs_status_t status = gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &allreduce);
    CHECK(status == GLOO_RS_ERROR_CALLBACK || status == GLOO_RS_ERROR_CONNECTION_LOST);
    CHECK_CONTAINS(gloo_rs_last_error_message(), "the caller's reduction function returned 33");
  }
  gloo_rs_context_destroy(context);
}

/* Elements of a type of the caller's. */
struct sample { float sum; int32_t least; uint32_t calls; };

static int32_t add_samples(void *into, const void *left, const void *right, size_t count, void *user) {
  struct sample *to = (struct sample *)into;
  const struct sample *a = (const struct sample *)left, *b = (const struct sample *)right;
  size_t i;
  (void)user;
  for (i = 0; i < count; i++) {
    struct sample result = {a[i].sum + b[i].sum, a[i].least < b[i].least ? a[i].least : b[i].least, a[i].calls + b[i].calls};
    to[i] = result;
  }
  return 0;
}

static struct sample sample_of(int rank, size_t i) {
  struct sample sample = {(float)(rank + 1) * (float)(i % 100), (int32_t)i - rank, (uint32_t)i + (uint32_t)rank};
  return sample;
}

static void own_elements(void) {
  enum { SAMPLES = 3000 };
  gloo_rs_context_t *context = connected_context();
  const char *names = gloo_rs_algorithms("allreduce");
  struct sample *in = (struct sample *)check_alloc(SAMPLES * sizeof *in);
  struct sample *out = (struct sample *)check_alloc(SAMPLES * sizeof *out * (size_t)test_size);
  const void *inputs[1] = {in};
  void *outputs[1] = {out};
  gloo_rs_collective_options_t options;
  size_t i;
  int rank;
  gloo_rs_collective_options_init(&options, sizeof options);
  options.element_bytes = sizeof(struct sample);
  options.inputs = inputs;
  options.num_inputs = 1;
  options.outputs = outputs;
  options.num_outputs = 1;
  options.count = SAMPLES;
  for (i = 0; i < SAMPLES; i++) in[i] = sample_of(test_rank, i);

  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options),
                "the operation sum is not defined on elements of 12 bytes");
  options.data_type = GLOO_RS_FLOAT32;
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options), "data_type and element_bytes are both set");
  options.data_type = GLOO_RS_DATA_TYPE_UNSET;
  options.function = add_samples;
  /* No multiple of the size of an element, so that segments are rounded. */
  options.max_segment_bytes = 1000;
  while (*names != '\0') {
    char algorithm[64];
    size_t length = strcspn(names, ",");
    memcpy(algorithm, names, length);
    algorithm[length] = '\0';
    names += length + (names[length] == ',');
    if (!can_run(context, algorithm)) continue;
    options.algorithm = algorithm;
    memset(out, 0xaa, SAMPLES * sizeof *out);
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));
    for (i = 0; i < SAMPLES; i++) {
      struct sample expected = sample_of(0, i);
      for (rank = 1; rank < test_size; rank++) {
        struct sample next = sample_of(rank, i);
        add_samples(&expected, &expected, &next, 1, NULL);
      }
      CHECK(memcmp(&out[i], &expected, sizeof expected) == 0);
    }
  }

  options.algorithm = NULL;
  options.function = NULL;
  options.max_segment_bytes = 0;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLGATHER, &options));
  for (rank = 0; rank < test_size; rank++)
    for (i = 0; i < SAMPLES; i++) {
      struct sample expected = sample_of(rank, i);
      CHECK(memcmp(&out[(size_t)rank * SAMPLES + i], &expected, sizeof expected) == 0);
    }
  options.count = SIZE_MAX / 8;
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLGATHER, &options), "");
  barrier(context);

  /* Other sizes on other ranks are a disagreement. */
  if (test_size == 2) {
    options.element_bytes = test_rank == 0 ? 12 : 24;
    options.count = 10;
    options.timeout_ms = test_timeout_ms();
    CHECK_INT(gloo_rs_collective(context, GLOO_RS_ALLGATHER, &options), GLOO_RS_ERROR_MISMATCH);
    CHECK_CONTAINS(gloo_rs_last_error_message(), "allgather");
  }
  free(in);
  free(out);
  gloo_rs_context_destroy(context);
}

/* Reductions on one rank. */
static void reduce_local(void) {
  float in[5] = {1, 2, 3, 4, 5}, inout[5] = {10, 20, 30, 40, 50};
  uint8_t bytes[40];
  int i;
  memset(bytes, 0, sizeof bytes);
  CHECK_OK(gloo_rs_reduce_local(in, inout, 5, GLOO_RS_FLOAT32, GLOO_RS_SUM));
  for (i = 0; i < 5; i++) CHECK(inout[i] == (float)(11 * (i + 1)) && in[i] == (float)(i + 1));
  CHECK_OK(gloo_rs_reduce_local(inout, inout, 5, GLOO_RS_FLOAT32, GLOO_RS_PRODUCT));
  for (i = 0; i < 5; i++) CHECK(inout[i] == (float)(121 * (i + 1) * (i + 1)));
  CHECK_OK(gloo_rs_reduce_local(NULL, NULL, 0, GLOO_RS_INT32, GLOO_RS_MAX));
  CHECK_INVALID(gloo_rs_reduce_local(NULL, inout, 5, GLOO_RS_FLOAT32, GLOO_RS_SUM), "input 0 is NULL");
  CHECK_INVALID(gloo_rs_reduce_local(in, NULL, 5, GLOO_RS_FLOAT32, GLOO_RS_SUM), "output 0 is NULL");
  CHECK_INVALID(gloo_rs_reduce_local(inout, inout + 1, 4, GLOO_RS_FLOAT32, GLOO_RS_SUM), "overlaps");
  CHECK_INVALID(gloo_rs_reduce_local(bytes + 1, inout, 1, GLOO_RS_FLOAT32, GLOO_RS_SUM), "not aligned");
  CHECK_INVALID(gloo_rs_reduce_local(in, inout, SIZE_MAX, GLOO_RS_FLOAT32, GLOO_RS_SUM), "exceeds the address space");
  CHECK_INVALID(gloo_rs_reduce_local(in, inout, 5, GLOO_RS_FLOAT32, GLOO_RS_AVERAGE), "average is not defined");
  CHECK_INVALID(gloo_rs_reduce_local(in, inout, 5, GLOO_RS_FLOAT32, GLOO_RS_XOR), "xor is not defined on float32");
  CHECK_INVALID(gloo_rs_reduce_local(in, inout, 5, GLOO_RS_DATA_TYPE_UNSET, GLOO_RS_SUM), "data_type is not set");
}

/* The tests that run under valgrind come first: every test, with numbers of ranks that cover all code paths. */
static const struct test tests[] = {
    {"allreduce_types", 3, allreduce_types, -1},
    {"allreduce_algorithms", 1, allreduce_algorithms, -1},
    {"allreduce_algorithms", 3, allreduce_algorithms, -1},
    {"allreduce_places", 4, allreduce_places, -1},
    {"other_reductions", 3, other_reductions, -1},
    {"moving", 4, moving, -1},
    {"own_operation", 2, own_operation, -1},
    {"plain_calls", 4, plain_calls, -1},
    {"own_elements", 3, own_elements, -1},
    {"reduce_local", 1, reduce_local, -1},
#define TESTS_UNDER_VALGRIND 10
    {"allreduce_types", 1, allreduce_types, -1},
    {"allreduce_types", 2, allreduce_types, -1},
    {"allreduce_types", 4, allreduce_types, -1},
    {"allreduce_algorithms", 2, allreduce_algorithms, -1},
    {"allreduce_algorithms", 4, allreduce_algorithms, -1},
    {"allreduce_places", 3, allreduce_places, -1},
    {"other_reductions", 1, other_reductions, -1},
    {"other_reductions", 2, other_reductions, -1},
    {"other_reductions", 4, other_reductions, -1},
    {"moving", 1, moving, -1},
    {"moving", 2, moving, -1},
    {"moving", 3, moving, -1},
    {"own_operation", 1, own_operation, -1},
    {"own_operation", 4, own_operation, -1},
    {"own_elements", 1, own_elements, -1},
    {"own_elements", 2, own_elements, -1},
    {"own_elements", 4, own_elements, -1},
    {"plain_calls", 1, plain_calls, -1},
    {"plain_calls", 2, plain_calls, -1},
    {"plain_calls", 3, plain_calls, -1},
};

int main(int argc, char **argv) {
  return run_tests(argc, argv, tests, test_is_slow() ? TESTS_UNDER_VALGRIND : sizeof tests / sizeof *tests);
}
