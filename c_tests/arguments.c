/* Arguments that collectives refuse before a byte is sent, in a context of one rank, or of two without a connection. */
#include "harness.h"

static gloo_rs_context_t *context;
static float x[16], y[16];
static const void *inputs[4];
static void *outputs[4];

static gloo_rs_context_t *unconnected(int rank, int size) {
  gloo_rs_device_t *device = create_device();
  gloo_rs_context_t *made = NULL;
  CHECK_OK(gloo_rs_context_create(device, rank, size, NULL, &made));
  gloo_rs_device_destroy(device);
  return made;
}

/* A valid allreduce from x to y. */
static gloo_rs_collective_options_t good(void) {
  gloo_rs_collective_options_t options;
  gloo_rs_collective_options_init(&options, sizeof options);
  inputs[0] = x;
  inputs[1] = x + 8;
  outputs[0] = y;
  outputs[1] = y + 8;
  options.data_type = GLOO_RS_FLOAT32;
  options.inputs = inputs;
  options.num_inputs = 1;
  options.outputs = outputs;
  options.num_outputs = 1;
  options.count = 8;
  return options;
}

#define REFUSED(part) CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options), part)

static void handles_and_options(void) {
  gloo_rs_collective_options_t options = good();
  gloo_rs_device_t *device = create_device();
  struct {
    gloo_rs_collective_options_t options;
    uint64_t more[4];
  } longer;
  gloo_rs_collective_options_t *shorter;
  size_t bytes = offsetof(gloo_rs_collective_options_t, base);
  context = unconnected(0, 1);
  x[0] = 3;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));
  CHECK(y[0] == 3);
  CHECK_INVALID(gloo_rs_collective(NULL, GLOO_RS_ALLREDUCE, &options), "context is NULL");
  CHECK_INVALID(gloo_rs_collective((gloo_rs_context_t *)device, GLOO_RS_ALLREDUCE, &options), "not a live gloo_rs_context_t");
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, NULL), "options is NULL");
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, (gloo_rs_collective_options_t *)((char *)&options + 1)),
                "not aligned to 8");
  options.struct_size = 0;
  REFUSED("gloo_rs_collective_options_t");
  options.struct_size = offsetof(gloo_rs_collective_options_t, count);
  REFUSED("gloo_rs_collective_options_t");
  options.struct_size = sizeof options - 1;
  REFUSED("gloo_rs_collective_options_t");

  /* A program of a later version: a field that is unknown here must be zero. */
  memset(&longer, 0xaa, sizeof longer);
  gloo_rs_collective_options_init(&longer.options, sizeof longer);
  CHECK_INT(longer.more[3], 0);
  longer.options = good();
  longer.options.struct_size = sizeof longer;
  x[0] = 4;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &longer.options));
  CHECK(y[0] == 4);
  longer.more[2] = 1;
  CHECK_FAILS(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &longer.options), GLOO_RS_ERROR_UNSUPPORTED,
              "header of a later version");

  /* A program of an earlier version, whose struct ended with the count. Valgrind sees if more is read. */
  shorter = (gloo_rs_collective_options_t *)check_alloc(bytes);
  gloo_rs_collective_options_init(shorter, bytes);
  options = good();
  memcpy(shorter, &options, bytes);
  shorter->struct_size = bytes;
  x[0] = 5;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, shorter));
  CHECK(y[0] == 5);
  free(shorter);
  gloo_rs_context_destroy(context);
  gloo_rs_device_destroy(device);
}

/* A field that the collective does not use is refused. */
static void unused_fields(void) {
  gloo_rs_collective_options_t options = good();
  size_t counts[1] = {8};
  context = unconnected(0, 1);
  options.root = 1;
  REFUSED("gloo_rs_collective(allreduce): allreduce does not use root");
  options = good();
  options.recv_counts = counts;
  REFUSED("allreduce does not use recv_counts");
  options = good();
  options.op = GLOO_RS_MAX;
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_BROADCAST, &options), "broadcast does not use op");
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLGATHER, &options), "allgather does not use op");
  options.op = GLOO_RS_SUM; /* the default, as the root is here */
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLGATHER, &options));
  options.recv_counts = counts;
  options.num_counts = 1;
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLGATHERV, &options), "allgatherv does not use count:");
  options.count = 0;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLGATHERV, &options));
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_BARRIER, NULL), "options is NULL");
  gloo_rs_context_destroy(context);
}

/* A number of no collective. */
static void unknown_collectives(void) {
  static const unsigned numbers[] = {16, INT_MAX, UINT_MAX};
  gloo_rs_collective_options_t options = good();
  size_t i;
  context = unconnected(0, 1);
  for (i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    gloo_rs_request_t *request = (gloo_rs_request_t *)&options;
    char part[80];
    snprintf(part, sizeof part, "gloo_rs_collective: kind is %u,", numbers[i]);
    CHECK_INVALID(gloo_rs_collective(context, (gloo_rs_collective_t)numbers[i], &options), part);
    snprintf(part, sizeof part, "gloo_rs_collective_prepare: kind is %u,", numbers[i]);
    CHECK_INVALID(gloo_rs_collective_prepare(context, (gloo_rs_collective_t)numbers[i], &options, &request), part);
    CHECK(request == NULL);
  }
  gloo_rs_context_destroy(context);
}

static void numbers(void) {
  gloo_rs_collective_options_t options = good();
  context = unconnected(0, 1);
  options.data_type = GLOO_RS_DATA_TYPE_UNSET;
  REFUSED("data_type is not set");
  options.data_type = GLOO_RS_BOOL + 1;
  REFUSED("16");
  options = good();
  options.op = GLOO_RS_XOR + 1;
  REFUSED("8");
  options.op = GLOO_RS_XOR;
  CHECK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options) != GLOO_RS_OK); /* not on floats */
  CHECK_CONTAINS(gloo_rs_last_error_message(), "xor");
  CHECK_CONTAINS(gloo_rs_last_error_message(), "float32");
  options = good();
  options.timeout_ms = -2;
  REFUSED("timeout_ms is -2");
  options = good();
  options.algorithm = "no_such_algorithm";
  REFUSED("no_such_algorithm");
  CHECK_CONTAINS(gloo_rs_last_error_message(), "auto");
  options.algorithm = "\xc3\x28";
  REFUSED("algorithm is not UTF-8");
  options.algorithm = "auto";
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));
  gloo_rs_context_destroy(context);
}

/* Groups and dims: of the size of the context, and of the form that the algorithm takes. */
static void groups_and_dims(void) {
  static const uint32_t groups[] = {5, 5, 9, 9};
  static const size_t dims[] = {2, 2, 1}, zero[] = {4, 0}, huge[] = {SIZE_MAX, SIZE_MAX};
  gloo_rs_collective_options_t options = good();
  context = unconnected(0, 4);
  options.algorithm = "torus_2d";
  options.timeout_ms = 50;
  options.groups = groups;
  options.num_groups = 3;
  REFUSED("groups has 3 entries, but size is 4");
  options.num_groups = SIZE_MAX;
  REFUSED("groups");
  options.groups = (const uint32_t *)((const char *)groups + 1);
  options.num_groups = 3;
  REFUSED("groups");
  CHECK_CONTAINS(gloo_rs_last_error_message(), "not aligned to 4");
  options.groups = groups;
  options.num_groups = 4;
  CHECK_FAILS(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options), GLOO_RS_ERROR_INVALID_OPERATION,
              "the context is not connected");
  options.groups = NULL;
  REFUSED("groups is NULL");
  options.num_groups = 0;
  options.num_dims = 1;
  REFUSED("dims is NULL");
  options.dims = dims;
  REFUSED("dims is 2, that is 2 ranks, but size is 4");
  options.dims = zero;
  options.num_dims = 2;
  REFUSED("dims[1] is 0");
  options.dims = huge;
  REFUSED("dims is 18446744073709551615 x 18446744073709551615");
  options.dims = dims;
  options.num_dims = SIZE_MAX;
  REFUSED("dims");
  options.num_dims = 2;
  CHECK_FAILS(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options), GLOO_RS_ERROR_INVALID_OPERATION,
              "the context is not connected");
  options.algorithm = "torus_nd";
  options.num_dims = 3;
  CHECK_FAILS(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options), GLOO_RS_ERROR_INVALID_OPERATION,
              "the context is not connected");
  gloo_rs_context_destroy(context);
}

static void buffers(void) {
  gloo_rs_collective_options_t options = good();
  uint16_t halves[8] = {0};
  context = unconnected(0, 1);
  options.inputs = NULL;
  REFUSED("inputs is NULL");
  options = good();
  options.outputs = NULL;
  REFUSED("outputs is NULL");
  options = good();
  options.num_outputs = 0;
  REFUSED("outputs is 0");
  options = good();
  inputs[0] = NULL;
  REFUSED("input 0 is NULL");
  options = good();
  outputs[1] = NULL;
  options.num_outputs = 2;
  REFUSED("output 1 is NULL");
  options = good();
  options.num_inputs = SIZE_MAX;
  REFUSED("inputs");
  options = good();
  options.outputs = (void *const *)((char *)outputs + 1);
  REFUSED("outputs");

  /* Alignment is the type's. */
  options = good();
  inputs[0] = (char *)x + 2;
  REFUSED("input 0");
  CHECK_CONTAINS(gloo_rs_last_error_message(), "not aligned to the 4 bytes of float32");
  options = good();
  outputs[0] = (char *)y + 1;
  REFUSED("output 0");
  options.data_type = GLOO_RS_INT16;
  REFUSED("not aligned to the 2 bytes of int16");
  options.data_type = GLOO_RS_INT8;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));
  options.data_type = GLOO_RS_FLOAT16;
  inputs[0] = halves;
  outputs[0] = (char *)y + 2;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));

  /* Overlap: outputs overlap nothing, but for calls in place. */
  options = good();
  outputs[0] = x + 7;
  REFUSED("overlaps");
  outputs[0] = x + 8;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));
  options.num_inputs = 0;
  options.num_outputs = 2;
  outputs[0] = y;
  outputs[1] = y + 4;
  REFUSED("output 0");
  CHECK_CONTAINS(gloo_rs_last_error_message(), "overlaps output 1");
  outputs[1] = y;
  REFUSED("overlaps");
  options = good();
  options.num_inputs = options.num_outputs = 2;
  outputs[0] = x + 8;
  outputs[1] = x;
  REFUSED("overlaps");
  outputs[0] = x;
  outputs[1] = x + 8;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));
  options = good();
  options.num_inputs = 2;
  inputs[1] = x + 4;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));

  /* Sizes that exceed the address space. */
  options = good();
  options.count = SIZE_MAX;
  REFUSED("");
  options.count = SIZE_MAX / 4 + 1;
  REFUSED("");
  options.count = SIZE_MAX / 8 + 1;
  REFUSED("");

  /* A call with no elements needs no memory. */
  options = good();
  options.count = 0;
  inputs[0] = NULL;
  outputs[0] = NULL;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));
  gloo_rs_context_destroy(context);
}

/* Roots, counts and numbers of buffers, for a rank of two. */
static void shapes(void) {
  size_t counts[3] = {2, 2, 2};
  context = unconnected(1, 2);
  (void)good();
#define START \
  gloo_rs_collective_options_t options; \
  gloo_rs_collective_options_init(&options, sizeof options); \
  options.data_type = GLOO_RS_FLOAT32; \
  options.inputs = inputs; \
  options.num_inputs = 1; \
  options.outputs = outputs; \
  options.num_outputs = 1
  {
    START;
    options.num_inputs = 0;
    options.root = 2;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_BROADCAST, &options), "root is 2");
    options.root = -1;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_BROADCAST, &options), "root is -1");
    options.root = 1;
    options.num_inputs = 2;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_BROADCAST, &options), "inputs is 2");
    options.root = 0;
    options.num_inputs = options.num_outputs = 0;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_BROADCAST, &options), "outputs is 0");
  }
  {
    START;
    options.root = 7;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_REDUCE, &options), "root is 7");
  }
  {
    START;
    options.root = 1;
    options.count = SIZE_MAX / 2 + 1;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_GATHER, &options), "");
    options.num_outputs = 0;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_GATHER, &options), "outputs is 0");
  }
  {
    START;
    options.root = 1;
    options.num_inputs = 3;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_SCATTER, &options), "inputs is 3");
  }
  {
    START;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLGATHERV, &options), "recv_counts has 0 entries");
    options.recv_counts = counts;
    options.num_counts = 3;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLGATHERV, &options), "recv_counts has 3 entries");
    options.num_counts = 2;
    options.recv_counts = (const size_t *)((char *)counts + 4);
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLGATHERV, &options), "recv_counts");
    options.recv_counts = counts;
    counts[0] = SIZE_MAX;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLGATHERV, &options), "");
    counts[0] = 2;
  }
  {
    START;
    options.recv_counts = counts;
    options.num_counts = 1;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_REDUCE_SCATTER, &options), "recv_counts has 1 entries");
    options.num_counts = 2;
    options.count = 1;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_REDUCE_SCATTER, &options), "both count and recv_counts");
    options.count = 0;
    outputs[0] = x;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_REDUCE_SCATTER, &options), "overlaps");
    outputs[0] = y;
  }
  {
    START;
    options.root = 1;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_GATHERV, &options), "recv_counts has 0 entries");
  }
  {
    START;
    options.root = 1;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_SCATTERV, &options), "send_counts has 0 entries");
  }
  {
    START;
    options.send_counts = counts;
    options.recv_counts = counts;
    options.num_counts = 2;
    outputs[0] = x;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLTOALLV, &options), "overlaps");
    outputs[0] = y;
    options.num_inputs = 0;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLTOALLV, &options), "inputs is 0");
  }
  {
    START;
    options.destinations = 2;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_PAIRWISE_EXCHANGE, &options), "destinations is 2");
  }
  {
    START;
    options.op = GLOO_RS_AVERAGE;
    options.count = 1;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_SCAN, &options), "average");
    options.num_inputs = 2;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_SCAN, &options), "inputs is 2");
  }
  {
    START;
    options.num_outputs = 2;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_EXSCAN, &options), "outputs is 2");
  }
  {
    START;
    options.num_outputs = 2;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLGATHER, &options), "outputs is 2");
  }
  {
    START;
    options.data_type = GLOO_RS_DATA_TYPE_UNSET;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLTOALL, &options), "data_type");
  }
  {
    gloo_rs_collective_options_t options;
    gloo_rs_collective_options_init(&options, sizeof options);
    options.data_type = GLOO_RS_FLOAT32;
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_BARRIER, &options),
                  "gloo_rs_collective(barrier): barrier does not use data_type");
    options.data_type = GLOO_RS_DATA_TYPE_UNSET;
    options.algorithm = "ring";
    CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_BARRIER, &options), "dissemination");
    options.algorithm = NULL;
    options.timeout_ms = 50;
    CHECK_FAILS(gloo_rs_collective(context, GLOO_RS_BARRIER, &options), GLOO_RS_ERROR_INVALID_OPERATION,
                "the context is not connected");
  }
  gloo_rs_context_destroy(context);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"handles_and_options", 1, handles_and_options, -1},
      {"unused_fields", 1, unused_fields, -1},
      {"unknown_collectives", 1, unknown_collectives, -1},
      {"numbers", 1, numbers, -1},
      {"groups_and_dims", 1, groups_and_dims, -1},
      {"buffers", 1, buffers, -1},
      {"shapes", 1, shapes, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
