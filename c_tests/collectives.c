/* Every collective against values computed here: types, operations, algorithms, in place and not, several buffers. */
#include "harness.h"

/* ---- elements as two doubles; all values used are whole, small, and exact in every type ---- */

struct value {
  double re, im;
};

static int is_complex(gloo_rs_data_type_t type) { return type == GLOO_RS_COMPLEX64 || type == GLOO_RS_COMPLEX128; }

static int is_float(gloo_rs_data_type_t type) { return type >= GLOO_RS_FLOAT16 && type <= GLOO_RS_COMPLEX128; }

/* binary16 and bfloat16 by way of binary32; exact for the whole numbers up to 256 used here. */
static uint32_t float_bits(double value) {
  float single = (float)value;
  uint32_t bits;
  memcpy(&bits, &single, sizeof bits);
  return bits;
}

static double bits_float(uint32_t bits) {
  float single;
  memcpy(&single, &bits, sizeof single);
  return single;
}

static uint16_t to_half(double value) {
  uint32_t bits = float_bits(value);
  if (value == 0) return 0;
  return (uint16_t)((bits >> 16 & 0x8000u) | ((bits >> 13 & 0x3ffffu) - ((127u - 15u) << 10)));
}

static double from_half(uint16_t half) {
  if ((half & 0x7fffu) == 0) return 0;
  return bits_float((uint32_t)(half & 0x8000u) << 16 | (((uint32_t)half & 0x7fffu) + ((127u - 15u) << 10)) << 13);
}

#define INTEGER_TYPES(X) \
  X(GLOO_RS_INT8, int8_t) \
  X(GLOO_RS_UINT8, uint8_t) \
  X(GLOO_RS_INT16, int16_t) \
  X(GLOO_RS_UINT16, uint16_t) \
  X(GLOO_RS_INT32, int32_t) \
  X(GLOO_RS_UINT32, uint32_t) \
  X(GLOO_RS_INT64, int64_t) \
  X(GLOO_RS_UINT64, uint64_t) \
  X(GLOO_RS_FLOAT32, float) \
  X(GLOO_RS_FLOAT64, double) \
  X(GLOO_RS_BOOL, uint8_t)

static void put(gloo_rs_data_type_t type, void *buffer, size_t index, struct value value) {
  switch (type) {
#define PUT(number, c_type) \
  case number: \
    ((c_type *)buffer)[index] = (c_type)value.re; \
    break;
    INTEGER_TYPES(PUT)
    case GLOO_RS_FLOAT16:
      ((uint16_t *)buffer)[index] = to_half(value.re);
      break;
    case GLOO_RS_BFLOAT16:
      ((uint16_t *)buffer)[index] = (uint16_t)(float_bits(value.re) >> 16);
      break;
    case GLOO_RS_COMPLEX64:
      ((float *)buffer)[2 * index] = (float)value.re;
      ((float *)buffer)[2 * index + 1] = (float)value.im;
      break;
    case GLOO_RS_COMPLEX128:
      ((double *)buffer)[2 * index] = value.re;
      ((double *)buffer)[2 * index + 1] = value.im;
      break;
    default:
      CHECK(0);
  }
}

static struct value get(gloo_rs_data_type_t type, const void *buffer, size_t index) {
  struct value value = {0, 0};
  switch (type) {
#define GET(number, c_type) \
  case number: \
    value.re = (double)((const c_type *)buffer)[index]; \
    break;
    INTEGER_TYPES(GET)
    case GLOO_RS_FLOAT16:
      value.re = from_half(((const uint16_t *)buffer)[index]);
      break;
    case GLOO_RS_BFLOAT16:
      value.re = bits_float((uint32_t)((const uint16_t *)buffer)[index] << 16);
      break;
    case GLOO_RS_COMPLEX64:
      value.re = ((const float *)buffer)[2 * index];
      value.im = ((const float *)buffer)[2 * index + 1];
      break;
    case GLOO_RS_COMPLEX128:
      value.re = ((const double *)buffer)[2 * index];
      value.im = ((const double *)buffer)[2 * index + 1];
      break;
    default:
      CHECK(0);
  }
  return value;
}

static int supported(gloo_rs_data_type_t type, gloo_rs_op_t op) {
  if (op == GLOO_RS_MIN || op == GLOO_RS_MAX) return !is_complex(type);
  if (op == GLOO_RS_AVERAGE) return type != GLOO_RS_BOOL;
  if (op >= GLOO_RS_AND) return !is_float(type);
  return 1;
}

/* The element `index` of buffer `buffer` of rank `rank`, small enough for every operation on every type. */
static struct value element(gloo_rs_data_type_t type, gloo_rs_op_t op, int rank, size_t buffer, size_t index) {
  unsigned long mix = (unsigned long)rank * 3 + (unsigned long)buffer * 5 + (unsigned long)index * 7;
  struct value value = {0, 0};
  if (type == GLOO_RS_BOOL) {
    value.re = (double)(mix / 3 % 2);
  } else if (op == GLOO_RS_AVERAGE) {
    value.re = 12.0 * (double)(mix % 2);
  } else if (op == GLOO_RS_PRODUCT) {
    value.re = 1 + (double)(mix % 4 == 0);
  } else {
    value.re = (double)(mix % 5);
  }
  if (is_complex(type) && op != GLOO_RS_AVERAGE) value.im = (double)(mix % 3) - 1;
  return value;
}

static struct value combine(gloo_rs_data_type_t type, gloo_rs_op_t op, struct value a, struct value b) {
  struct value result = {0, 0};
  int logical = type == GLOO_RS_BOOL;
  switch (op) {
    case GLOO_RS_SUM:
    case GLOO_RS_AVERAGE:
      result.re = logical ? (a.re != 0 || b.re != 0) : a.re + b.re;
      result.im = a.im + b.im;
      break;
    case GLOO_RS_PRODUCT:
      result.re = a.re * b.re - a.im * b.im;
      result.im = a.re * b.im + a.im * b.re;
      break;
    case GLOO_RS_MIN:
      result.re = a.re < b.re ? a.re : b.re;
      break;
    case GLOO_RS_MAX:
      result.re = a.re > b.re ? a.re : b.re;
      break;
    case GLOO_RS_AND:
      result.re = (double)((long)a.re & (long)b.re);
      break;
    case GLOO_RS_OR:
      result.re = (double)((long)a.re | (long)b.re);
      break;
    case GLOO_RS_XOR:
      result.re = (double)((long)a.re ^ (long)b.re);
      break;
    default:
      CHECK(0);
  }
  return result;
}

/* Element `index` of `buffers` buffers of the ranks below `ranks`, combined. */
static struct value reduced(gloo_rs_data_type_t type, gloo_rs_op_t op, int ranks, size_t buffers, size_t index) {
  struct value result = element(type, op, 0, 0, index);
  int rank;
  size_t buffer;
  for (rank = 0; rank < ranks; rank++)
    for (buffer = rank == 0; buffer < buffers; buffer++)
      result = combine(type, op, result, element(type, op, rank, buffer, index));
  if (op == GLOO_RS_AVERAGE) {
    result.re /= (double)ranks * (double)buffers;
    result.im /= (double)ranks * (double)buffers;
  }
  return result;
}

/* ---- the caller's buffers ---- */

#define MAX_BUFFERS 4
#define MARK 0x5a

/* `count` buffers of `length` elements, each with marks behind it that must stay. */
struct buffers {
  gloo_rs_data_type_t type;
  size_t count;
  size_t length;
  void *memory[MAX_BUFFERS];
};

static void make(struct buffers *buffers, gloo_rs_data_type_t type, size_t length, size_t count) {
  size_t i, bytes = length * gloo_rs_data_type_size(type);
  buffers->type = type;
  buffers->count = count;
  buffers->length = length;
  for (i = 0; i < count; i++) {
    buffers->memory[i] = check_alloc(bytes + 8);
    memset(buffers->memory[i], MARK, bytes + 8);
  }
}

static void drop(struct buffers *buffers) {
  size_t i, j, bytes = buffers->length * gloo_rs_data_type_size(buffers->type);
  for (i = 0; i < buffers->count; i++) {
    for (j = 0; j < 8; j++) CHECK_INT(((unsigned char *)buffers->memory[i])[bytes + j], MARK);
    free(buffers->memory[i]);
  }
}

static void fill(struct buffers *buffers, gloo_rs_op_t op, int rank) {
  size_t i, j;
  for (i = 0; i < buffers->count; i++)
    for (j = 0; j < buffers->length; j++)
      put(buffers->type, buffers->memory[i], j, element(buffers->type, op, rank, i, j));
}

/* What was being done, for the message. */
static char doing[160];

static void expect(const struct buffers *buffers, size_t buffer, size_t index, struct value expected) {
  struct value actual = get(buffers->type, buffers->memory[buffer], index);
  if (actual.re != expected.re || actual.im != expected.im)
    check_failed(__FILE__, __LINE__, "%s: element %zu of output %zu is (%g, %g), not (%g, %g)", doing, index, buffer,
                 actual.re, actual.im, expected.re, expected.im);
}

/* Inputs are only read. */
static void expect_unchanged(const struct buffers *buffers, gloo_rs_op_t op) {
  size_t i, j;
  for (i = 0; i < buffers->count; i++)
    for (j = 0; j < buffers->length; j++) expect(buffers, i, j, element(buffers->type, op, test_rank, i, j));
}

#define INIT(name, name_of_algorithm, type_of_elements, in, out) \
  gloo_rs_##name##_options_t options; \
  gloo_rs_##name##_options_init(&options, sizeof options); \
  options.algorithm = (name_of_algorithm); \
  options.timeout_ms = test_timeout_ms(); \
  options.data_type = (type_of_elements); \
  options.inputs = (const void *const *)(in)->memory; \
  options.num_inputs = (in)->count; \
  options.outputs = (out)->memory; \
  options.num_outputs = (out)->count; \
  snprintf(doing, sizeof doing, "%s by %s on type %u, %zu inputs, %zu outputs", #name, \
           options.algorithm == NULL ? "default" : options.algorithm, (unsigned)options.data_type, options.num_inputs, \
           options.num_outputs)

/* ---- allreduce ---- */

static void allreduce(gloo_rs_context_t *context, const char *algorithm, gloo_rs_data_type_t type, gloo_rs_op_t op,
                      size_t count, size_t inputs, size_t outputs, int same) {
  struct buffers in, out;
  size_t i, j, contributions = inputs > 0 ? inputs : outputs;
  make(&in, type, count, inputs);
  make(&out, type, count, outputs);
  fill(&in, op, test_rank);
  if (inputs == 0) fill(&out, op, test_rank);
  {
    INIT(allreduce, algorithm, type, &in, &out);
    options.op = op;
    options.count = count;
    if (same) { /* in place, said with the same pointers twice */
      options.inputs = (const void *const *)out.memory;
      options.num_inputs = outputs;
    }
    CHECK_OK(gloo_rs_allreduce(context, &options));
  }
  expect_unchanged(&in, op);
  for (i = 0; i < outputs; i++)
    for (j = 0; j < count; j++) expect(&out, i, j, reduced(type, op, test_size, contributions, j));
  drop(&in);
  drop(&out);
}

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
  static const size_t counts[] = {0, 1, 3, 1000, 50000};
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
    CHECK_OK(gloo_rs_allreduce(context, &options));
  }
  for (j = 0; j < count; j++) expect(&out, 0, j, reduced(GLOO_RS_INT32, GLOO_RS_SUM, test_size, 1, j));
  free(group);
  drop(&in);
  drop(&out);
}

static void allreduce_places(void) {
  static const char *const algorithms[] = {"hierarchical", "torus_2d", "torus_nd", "mesh_2d", "spanning_trees"};
  static const size_t counts[] = {0, 3, 1001, 100000};
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
  gloo_rs_context_destroy(context);
}

/* ---- reduce, reduce_scatter, scan, exscan ---- */

static void reduce(gloo_rs_context_t *context, const char *algorithm, int root, size_t count, size_t inputs) {
  struct buffers in, out;
  size_t j, outputs = inputs == 0 || test_rank == root;
  make(&in, GLOO_RS_INT32, count, inputs);
  make(&out, GLOO_RS_INT32, count, outputs);
  fill(&in, GLOO_RS_SUM, test_rank);
  if (inputs == 0) fill(&out, GLOO_RS_SUM, test_rank);
  {
    INIT(reduce, algorithm, GLOO_RS_INT32, &in, &out);
    options.root = root;
    options.count = count;
    CHECK_OK(gloo_rs_reduce(context, &options));
  }
  expect_unchanged(&in, GLOO_RS_SUM);
  if (test_rank == root) {
    for (j = 0; j < count; j++)
      expect(&out, 0, j, reduced(GLOO_RS_INT32, GLOO_RS_SUM, test_size, inputs > 0 ? inputs : 1, j));
  } else {
    expect_unchanged(&out, GLOO_RS_SUM);
  }
  drop(&in);
  drop(&out);
}

static void reduce_scatter(gloo_rs_context_t *context, const char *algorithm, const size_t *counts, size_t inputs) {
  struct buffers in, out;
  size_t total = 0, before = 0, j;
  int rank;
  for (rank = 0; rank < test_size; rank++) {
    if (rank < test_rank) before += counts[rank];
    total += counts[rank];
  }
  make(&in, GLOO_RS_FLOAT32, total, inputs);
  make(&out, GLOO_RS_FLOAT32, inputs > 0 ? counts[test_rank] : total, 1);
  fill(&in, GLOO_RS_SUM, test_rank);
  if (inputs == 0) fill(&out, GLOO_RS_SUM, test_rank);
  {
    INIT(reduce_scatter, algorithm, GLOO_RS_FLOAT32, &in, &out);
    options.recv_counts = counts;
    options.num_counts = (size_t)test_size;
    CHECK_OK(gloo_rs_reduce_scatter(context, &options));
  }
  expect_unchanged(&in, GLOO_RS_SUM);
  for (j = 0; j < counts[test_rank]; j++)
    expect(&out, 0, j, reduced(GLOO_RS_FLOAT32, GLOO_RS_SUM, test_size, inputs > 0 ? inputs : 1, before + j));
  drop(&in);
  drop(&out);
}

static void scans(gloo_rs_context_t *context, size_t count, size_t inputs, int exclusive) {
  struct buffers in, out;
  size_t j;
  make(&in, GLOO_RS_INT64, count, inputs);
  make(&out, GLOO_RS_INT64, count, 1);
  fill(&in, GLOO_RS_SUM, test_rank);
  fill(&out, GLOO_RS_SUM, test_rank);
  if (exclusive) {
    INIT(exscan, NULL, GLOO_RS_INT64, &in, &out);
    options.count = count;
    CHECK_OK(gloo_rs_exscan(context, &options));
  } else {
    INIT(scan, "recursive_doubling", GLOO_RS_INT64, &in, &out);
    options.count = count;
    CHECK_OK(gloo_rs_scan(context, &options));
  }
  expect_unchanged(&in, GLOO_RS_SUM);
  if (exclusive && test_rank == 0) {
    expect_unchanged(&out, GLOO_RS_SUM);
  } else {
    for (j = 0; j < count; j++)
      expect(&out, 0, j, reduced(GLOO_RS_INT64, GLOO_RS_SUM, exclusive ? test_rank : test_rank + 1, 1, j));
  }
  drop(&in);
  drop(&out);
}

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
    scans(context, 100, a, 0);
    scans(context, 100, a, 1);
  }
  gloo_rs_context_destroy(context);
}

/* ---- collectives that move elements: element j of what rank r sends is element(UINT16, SUM, r, 0, j) ---- */

#define MOVED GLOO_RS_UINT16

static struct value moved(int rank, size_t index) { return element(MOVED, GLOO_RS_SUM, rank, 0, index); }

static void broadcast(gloo_rs_context_t *context, const char *algorithm, int root, size_t count, int with_input,
                      size_t outputs) {
  struct buffers in, out;
  size_t i, j;
  int is_root = test_rank == root;
  make(&in, MOVED, count, is_root && with_input);
  make(&out, MOVED, count, outputs);
  fill(&in, GLOO_RS_SUM, root);
  if (is_root && !with_input)
    for (j = 0; j < count; j++) put(MOVED, out.memory[0], j, moved(root, j));
  {
    INIT(broadcast, algorithm, MOVED, &in, &out);
    options.root = root;
    options.count = count;
    CHECK_OK(gloo_rs_broadcast(context, &options));
  }
  for (i = 0; i < outputs; i++)
    for (j = 0; j < count; j++) expect(&out, i, j, moved(root, j));
  drop(&in);
  drop(&out);
}

static void gather(gloo_rs_context_t *context, int root, const size_t *counts, int varied, int in_place) {
  struct buffers in, out;
  size_t total = 0, before = 0, place = 0, j;
  int rank, is_root = test_rank == root;
  for (rank = 0; rank < test_size; rank++) {
    if (rank == test_rank) before = total;
    total += counts[rank];
  }
  make(&in, MOVED, counts[test_rank], !(is_root && in_place));
  make(&out, MOVED, total, (size_t)is_root);
  fill(&in, GLOO_RS_SUM, test_rank);
  if (is_root && in_place)
    for (j = 0; j < counts[test_rank]; j++) put(MOVED, out.memory[0], before + j, moved(test_rank, j));
  if (varied) {
    INIT(gatherv, "direct", MOVED, &in, &out);
    options.root = root;
    options.count = counts[test_rank];
    if (is_root) {
      options.recv_counts = counts;
      options.num_counts = (size_t)test_size;
    }
    CHECK_OK(gloo_rs_gatherv(context, &options));
  } else {
    INIT(gather, NULL, MOVED, &in, &out);
    options.root = root;
    options.count = counts[0];
    CHECK_OK(gloo_rs_gather(context, &options));
  }
  expect_unchanged(&in, GLOO_RS_SUM);
  for (rank = 0; is_root && rank < test_size; rank++)
    for (j = 0; j < counts[rank]; j++) expect(&out, 0, place++, moved(rank, j));
  drop(&in);
  drop(&out);
}

/* `form` 0: one input; 1: an input for each rank; 2: in place. */
static void scatter(gloo_rs_context_t *context, int root, const size_t *counts, int varied, int form) {
  struct buffers in, out;
  size_t total = 0, before = 0, inputs, j;
  int rank, is_root = test_rank == root, place_holds_all = is_root && form == 2;
  for (rank = 0; rank < test_size; rank++) {
    if (rank == test_rank) before = total;
    total += counts[rank];
  }
  inputs = !is_root || form == 2 ? 0 : form == 1 ? (size_t)test_size : 1;
  make(&in, MOVED, form == 1 ? counts[0] : total, inputs);
  make(&out, MOVED, place_holds_all ? total : counts[test_rank], 1);
  for (j = 0; j < total; j++) {
    if (inputs == 1) put(MOVED, in.memory[0], j, moved(root, j));
    if (inputs > 1) put(MOVED, in.memory[j / counts[0]], j % counts[0], moved(root, j));
    if (place_holds_all) put(MOVED, out.memory[0], j, moved(root, j));
  }
  if (varied) {
    INIT(scatterv, NULL, MOVED, &in, &out);
    options.root = root;
    options.count = counts[test_rank];
    if (is_root) {
      options.send_counts = counts;
      options.num_counts = (size_t)test_size;
    }
    CHECK_OK(gloo_rs_scatterv(context, &options));
  } else {
    INIT(scatter, "direct", MOVED, &in, &out);
    options.root = root;
    options.count = counts[0];
    CHECK_OK(gloo_rs_scatter(context, &options));
  }
  for (j = 0; j < counts[test_rank]; j++) expect(&out, 0, j, moved(root, before + j));
  drop(&in);
  drop(&out);
}

static void allgather(gloo_rs_context_t *context, const char *algorithm, size_t count, size_t inputs) {
  struct buffers in, out;
  size_t i, j, blocks = inputs > 0 ? inputs : 1, place = 0;
  int rank;
  make(&in, MOVED, count, inputs);
  make(&out, MOVED, count * blocks * (size_t)test_size, 1);
  fill(&in, GLOO_RS_SUM, test_rank);
  if (inputs == 0)
    for (j = 0; j < count; j++) put(MOVED, out.memory[0], count * (size_t)test_rank + j, moved(test_rank, j));
  {
    INIT(allgather, algorithm, MOVED, &in, &out);
    options.count = count;
    CHECK_OK(gloo_rs_allgather(context, &options));
  }
  expect_unchanged(&in, GLOO_RS_SUM);
  for (rank = 0; rank < test_size; rank++)
    for (i = 0; i < blocks; i++)
      for (j = 0; j < count; j++) expect(&out, 0, place++, element(MOVED, GLOO_RS_SUM, rank, i, j));
  drop(&in);
  drop(&out);
}

static void allgatherv(gloo_rs_context_t *context, const char *algorithm, const size_t *counts, size_t inputs) {
  struct buffers in, out;
  size_t total = 0, before = 0, place = 0, j;
  int rank;
  for (rank = 0; rank < test_size; rank++) {
    if (rank == test_rank) before = total;
    total += counts[rank];
  }
  make(&in, MOVED, counts[test_rank], inputs);
  make(&out, MOVED, total, 1);
  fill(&in, GLOO_RS_SUM, test_rank);
  if (inputs == 0)
    for (j = 0; j < counts[test_rank]; j++) put(MOVED, out.memory[0], before + j, moved(test_rank, j));
  {
    INIT(allgatherv, algorithm, MOVED, &in, &out);
    options.recv_counts = counts;
    options.num_counts = (size_t)test_size;
    CHECK_OK(gloo_rs_allgatherv(context, &options));
  }
  expect_unchanged(&in, GLOO_RS_SUM);
  for (rank = 0; rank < test_size; rank++)
    for (j = 0; j < counts[rank]; j++) expect(&out, 0, place++, moved(rank, j));
  drop(&in);
  drop(&out);
}

/* `form` 0: input and output; 1: in place; 2: in place, said with the same pointer twice. */
static void alltoall(gloo_rs_context_t *context, size_t count, int form) {
  struct buffers in, out;
  size_t total = count * (size_t)test_size, j;
  int rank;
  make(&in, MOVED, total, form == 0);
  make(&out, MOVED, total, 1);
  fill(&in, GLOO_RS_SUM, test_rank);
  if (form > 0) fill(&out, GLOO_RS_SUM, test_rank);
  {
    INIT(alltoall, form == 0 ? "pairwise" : NULL, MOVED, &in, &out);
    options.count = count;
    if (form == 2) {
      options.inputs = (const void *const *)out.memory;
      options.num_inputs = 1;
    }
    CHECK_OK(gloo_rs_alltoall(context, &options));
  }
  expect_unchanged(&in, GLOO_RS_SUM);
  for (rank = 0; rank < test_size; rank++)
    for (j = 0; j < count; j++)
      expect(&out, 0, count * (size_t)rank + j, moved(rank, count * (size_t)test_rank + j));
  drop(&in);
  drop(&out);
}

/* Rank i sends i * 3 + j elements to rank j. */
static size_t between(int from, int to) { return (size_t)(from * 3 + to); }

static void alltoallv(gloo_rs_context_t *context) {
  struct buffers in, out;
  size_t send_counts[MAX_RANKS], recv_counts[MAX_RANKS], sent = 0, received = 0, place = 0, j;
  int rank, to;
  for (rank = 0; rank < test_size; rank++) {
    sent += send_counts[rank] = between(test_rank, rank);
    received += recv_counts[rank] = between(rank, test_rank);
  }
  make(&in, MOVED, sent, 1);
  make(&out, MOVED, received, 1);
  fill(&in, GLOO_RS_SUM, test_rank);
  {
    INIT(alltoallv, NULL, MOVED, &in, &out);
    options.send_counts = send_counts;
    options.recv_counts = recv_counts;
    options.num_counts = (size_t)test_size;
    CHECK_OK(gloo_rs_alltoallv(context, &options));
  }
  expect_unchanged(&in, GLOO_RS_SUM);
  for (rank = 0; rank < test_size; rank++) {
    size_t before = 0;
    for (to = 0; to < test_rank; to++) before += between(rank, to);
    for (j = 0; j < between(rank, test_rank); j++) expect(&out, 0, place++, moved(rank, before + j));
  }
  drop(&in);
  drop(&out);
}

static void pairwise_exchange(gloo_rs_context_t *context, size_t count, size_t destinations) {
  struct buffers in, out;
  size_t i, j;
  make(&in, MOVED, count * destinations, 1);
  make(&out, MOVED, count * destinations, 1);
  fill(&in, GLOO_RS_SUM, test_rank);
  {
    INIT(pairwise_exchange, "pairwise_exchange", MOVED, &in, &out);
    options.count = count;
    options.destinations = destinations;
    CHECK_OK(gloo_rs_pairwise_exchange(context, &options));
  }
  expect_unchanged(&in, GLOO_RS_SUM);
  for (i = 0; i < destinations; i++)
    for (j = 0; j < count; j++) expect(&out, 0, i * count + j, moved(test_rank ^ 1 << i, i * count + j));
  drop(&in);
  drop(&out);
}

static void barriers(gloo_rs_context_t *context) {
  static const char *const algorithms[] = {NULL, "dissemination", "all_to_all", "all_to_one"};
  size_t a;
  int round;
  for (a = 0; a < 4; a++)
    for (round = 0; round < 3; round++) {
      gloo_rs_barrier_options_t options;
      gloo_rs_barrier_options_init(&options, sizeof options);
      options.algorithm = algorithms[a];
      CHECK_OK(gloo_rs_barrier(context, &options));
    }
}

static void moving(void) {
  static const char *const broadcasts[] = {NULL, "one_to_all", "binomial"}, *const rings[] = {NULL, "ring"};
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
      gather(context, root, even, 0, form);
      gather(context, root, large, 0, form);
      gather(context, root, uneven, 1, form);
    }
    for (form = 0; form < 3; form++) {
      scatter(context, root, even, 0, form);
      scatter(context, root, large, 0, form);
      if (form != 1) scatter(context, root, uneven, 1, form);
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
    alltoall(context, 6, form);
    alltoall(context, 4000, form);
    alltoall(context, 0, form);
  }
  alltoallv(context);
  if (test_size == 2 || test_size == 4) pairwise_exchange(context, 7, test_size == 4 ? 2 : 1);
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

/* A call on the context that is calling: refused, instead of waiting for itself. */
static int32_t call_back(void *into, const void *left, const void *right, size_t count, void *user) {
  gloo_rs_barrier_options_t options;
  gloo_rs_barrier_options_init(&options, sizeof options);
  CHECK_FAILS(gloo_rs_barrier((gloo_rs_context_t *)user, &options), GLOO_RS_ERROR_INVALID_OPERATION,
              "reduction function");
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
  gloo_rs_scan_options_t scan;
  gloo_rs_allreduce_options_t allreduce;
  for (i = 0; i < 8; i++) in[i] = (uint16_t)(test_rank * 11 + (int)i * 3 + 2);
  inputs[0] = in;
  outputs[0] = out;
  gloo_rs_scan_options_init(&scan, sizeof scan);
  scan.data_type = GLOO_RS_UINT32;
  scan.op = 4711; /* not looked at */
  scan.function = compose;
  scan.user = &calls;
  scan.inputs = inputs;
  scan.num_inputs = 1;
  scan.outputs = outputs;
  scan.num_outputs = 1;
  scan.count = 4;
  CHECK_OK(gloo_rs_scan(context, &scan));
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
  gloo_rs_allreduce_options_init(&allreduce, sizeof allreduce);
  allreduce.data_type = GLOO_RS_UINT32;
  allreduce.function = wrapping_sum;
  allreduce.outputs = outputs;
  allreduce.num_outputs = 1;
  allreduce.count = 100;
  allreduce.algorithm = "ring_segmented";
  CHECK_OK(gloo_rs_allreduce(context, &allreduce));
  for (i = 0; i < 100; i++)
    CHECK_INT(cells[i], (uint32_t)test_size * i + (uint32_t)(test_size * (test_size - 1) / 2));
  allreduce.function = call_back;
  allreduce.user = context;
  CHECK_OK(gloo_rs_allreduce(context, &allreduce));
  barrier(context);

  /* What the function returns other than 0 fails the call, and the other rank's too if that hears of it first. */
  allreduce.function = refuse;
  allreduce.algorithm = "recursive_doubling";
  allreduce.timeout_ms = test_is_slow() ? 5000 : 1000;
  if (test_size == 2) {
    gloo_rs_status_t status = gloo_rs_allreduce(context, &allreduce);
    CHECK(status == GLOO_RS_ERROR_CALLBACK || status == GLOO_RS_ERROR_CONNECTION_LOST);
    CHECK_CONTAINS(gloo_rs_last_error_message(), "the caller's reduction function returned 33");
  }
  gloo_rs_context_destroy(context);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"allreduce_types", 1, allreduce_types, -1},
      {"allreduce_types", 2, allreduce_types, -1},
      {"allreduce_types", 3, allreduce_types, -1},
      {"allreduce_types", 4, allreduce_types, -1},
      {"allreduce_algorithms", 1, allreduce_algorithms, -1},
      {"allreduce_algorithms", 2, allreduce_algorithms, -1},
      {"allreduce_algorithms", 3, allreduce_algorithms, -1},
      {"allreduce_algorithms", 4, allreduce_algorithms, -1},
      {"allreduce_places", 3, allreduce_places, -1},
      {"allreduce_places", 4, allreduce_places, -1},
      {"other_reductions", 1, other_reductions, -1},
      {"other_reductions", 2, other_reductions, -1},
      {"other_reductions", 3, other_reductions, -1},
      {"other_reductions", 4, other_reductions, -1},
      {"moving", 1, moving, -1},
      {"moving", 2, moving, -1},
      {"moving", 3, moving, -1},
      {"moving", 4, moving, -1},
      {"own_operation", 1, own_operation, -1},
      {"own_operation", 2, own_operation, -1},
      {"own_operation", 4, own_operation, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
