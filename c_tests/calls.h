/* A function for every collective fills its buffers, makes the call, and compares the result with its own values. */
#ifndef GLOO_RS_TESTS_CALLS_H
#define GLOO_RS_TESTS_CALLS_H

#include "harness.h"

/* ---- elements as two doubles; all values are small integers, exact in every type ---- */

struct value {
  double re, im;
};

static inline int is_complex(gloo_rs_data_type_t type) { return type == GLOO_RS_COMPLEX64 || type == GLOO_RS_COMPLEX128; }

static inline int is_float(gloo_rs_data_type_t type) { return type >= GLOO_RS_FLOAT16 && type <= GLOO_RS_COMPLEX128; }

/* binary16 and bfloat16 converted to and from binary32; exact for the integers up to 256 used here. */
static inline uint32_t float_bits(double value) {
  float single = (float)value;
  uint32_t bits;
  memcpy(&bits, &single, sizeof bits);
  return bits;
}

static inline double bits_float(uint32_t bits) {
  float single;
  memcpy(&single, &bits, sizeof single);
  return single;
}

static inline uint16_t to_half(double value) {
  uint32_t bits = float_bits(value);
  if (value == 0) return 0;
  return (uint16_t)((bits >> 16 & 0x8000u) | ((bits >> 13 & 0x3ffffu) - ((127u - 15u) << 10)));
}

static inline double from_half(uint16_t half) {
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

static inline void put(gloo_rs_data_type_t type, void *buffer, size_t index, struct value value) {
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

static inline struct value get(gloo_rs_data_type_t type, const void *buffer, size_t index) {
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

static inline int supported(gloo_rs_data_type_t type, gloo_rs_op_t op) {
  if (op == GLOO_RS_MIN || op == GLOO_RS_MAX) return !is_complex(type);
  if (op == GLOO_RS_AVERAGE) return type != GLOO_RS_BOOL;
  if (op >= GLOO_RS_AND) return !is_float(type);
  return 1;
}

/* The element `index` of buffer `buffer` of rank `rank`, small enough for every operation on every type. */
static inline struct value element(gloo_rs_data_type_t type, gloo_rs_op_t op, int rank, size_t buffer, size_t index) {
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

static inline struct value combine(gloo_rs_data_type_t type, gloo_rs_op_t op, struct value a, struct value b) {
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
static inline struct value reduced(gloo_rs_data_type_t type, gloo_rs_op_t op, int ranks, size_t buffers, size_t index) {
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

/* `count` buffers of `length` elements, each followed by guard bytes that must not change. */
struct buffers {
  gloo_rs_data_type_t type;
  size_t count;
  size_t length;
  void *memory[MAX_BUFFERS];
};

static inline void make(struct buffers *buffers, gloo_rs_data_type_t type, size_t length, size_t count) {
  size_t i, bytes = length * gloo_rs_data_type_size(type);
  buffers->type = type;
  buffers->count = count;
  buffers->length = length;
  for (i = 0; i < count; i++) {
    buffers->memory[i] = check_alloc(bytes + 8);
    memset(buffers->memory[i], MARK, bytes + 8);
  }
}

static inline void drop(struct buffers *buffers) {
  size_t i, j, bytes = buffers->length * gloo_rs_data_type_size(buffers->type);
  for (i = 0; i < buffers->count; i++) {
    for (j = 0; j < 8; j++) CHECK_INT(((unsigned char *)buffers->memory[i])[bytes + j], MARK);
    free(buffers->memory[i]);
  }
}

static inline void fill(struct buffers *buffers, gloo_rs_op_t op, int rank) {
  size_t i, j;
  for (i = 0; i < buffers->count; i++)
    for (j = 0; j < buffers->length; j++)
      put(buffers->type, buffers->memory[i], j, element(buffers->type, op, rank, i, j));
}

/* The current operation, for error messages. */
static char doing[160];

static inline void expect(const struct buffers *buffers, size_t buffer, size_t index, struct value expected) {
  struct value actual = get(buffers->type, buffers->memory[buffer], index);
  if (actual.re != expected.re || actual.im != expected.im)
    check_failed(__FILE__, __LINE__, "%s: element %zu of output %zu is (%g, %g), not (%g, %g)", doing, index, buffer,
                 actual.re, actual.im, expected.re, expected.im);
}

/* Inputs are only read. */
static inline void expect_unchanged(const struct buffers *buffers, gloo_rs_op_t op) {
  size_t i, j;
  for (i = 0; i < buffers->count; i++)
    for (j = 0; j < buffers->length; j++) expect(buffers, i, j, element(buffers->type, op, test_rank, i, j));
}

/* The segment size of all calls; 0 for the library's default. */
static size_t segment_bytes = 0;

#define INIT(name, name_of_algorithm, type_of_elements, in, out) \
  gloo_rs_collective_options_t options; \
  gloo_rs_collective_options_init(&options, sizeof options); \
  options.algorithm = (name_of_algorithm); \
  options.timeout_ms = test_timeout_ms(); \
  options.max_segment_bytes = segment_bytes; \
  options.data_type = (type_of_elements); \
  options.inputs = (const void *const *)(in)->memory; \
  options.num_inputs = (in)->count; \
  options.outputs = (out)->memory; \
  options.num_outputs = (out)->count; \
  snprintf(doing, sizeof doing, "%s by %s on type %u, %zu inputs, %zu outputs", #name, \
           options.algorithm == NULL ? "default" : options.algorithm, (unsigned)options.data_type, options.num_inputs, \
           options.num_outputs)

/* ---- allreduce ---- */

static inline void allreduce(gloo_rs_context_t *context, const char *algorithm, gloo_rs_data_type_t type, gloo_rs_op_t op,
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
    if (same) { /* in place, by passing the same pointers twice */
      options.inputs = (const void *const *)out.memory;
      options.num_inputs = outputs;
    }
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options));
  }
  expect_unchanged(&in, op);
  for (i = 0; i < outputs; i++)
    for (j = 0; j < count; j++) expect(&out, i, j, reduced(type, op, test_size, contributions, j));
  drop(&in);
  drop(&out);
}

/* ---- reduce, reduce_scatter, scan, exscan ---- */

static inline void reduce(gloo_rs_context_t *context, const char *algorithm, int root, size_t count, size_t inputs) {
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
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_REDUCE, &options));
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

static inline void reduce_scatter(gloo_rs_context_t *context, const char *algorithm, const size_t *counts, size_t inputs) {
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
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_REDUCE_SCATTER, &options));
  }
  expect_unchanged(&in, GLOO_RS_SUM);
  for (j = 0; j < counts[test_rank]; j++)
    expect(&out, 0, j, reduced(GLOO_RS_FLOAT32, GLOO_RS_SUM, test_size, inputs > 0 ? inputs : 1, before + j));
  drop(&in);
  drop(&out);
}

static inline void scans(gloo_rs_context_t *context, const char *algorithm, size_t count, size_t inputs, int exclusive) {
  struct buffers in, out;
  size_t j;
  make(&in, GLOO_RS_INT64, count, inputs);
  make(&out, GLOO_RS_INT64, count, 1);
  fill(&in, GLOO_RS_SUM, test_rank);
  fill(&out, GLOO_RS_SUM, test_rank);
  if (exclusive) {
    INIT(exscan, algorithm, GLOO_RS_INT64, &in, &out);
    options.count = count;
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_EXSCAN, &options));
  } else {
    INIT(scan, algorithm, GLOO_RS_INT64, &in, &out);
    options.count = count;
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_SCAN, &options));
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

/* ---- collectives that move elements: element j of what rank r sends is element(UINT16, SUM, r, 0, j) ---- */

#define MOVED GLOO_RS_UINT16

static inline struct value moved(int rank, size_t index) { return element(MOVED, GLOO_RS_SUM, rank, 0, index); }

static inline void broadcast(gloo_rs_context_t *context, const char *algorithm, int root, size_t count, int with_input,
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
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_BROADCAST, &options));
  }
  for (i = 0; i < outputs; i++)
    for (j = 0; j < count; j++) expect(&out, i, j, moved(root, j));
  drop(&in);
  drop(&out);
}

static inline void gather(gloo_rs_context_t *context, const char *algorithm, int root, const size_t *counts, int varied,
                   int in_place) {
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
    INIT(gatherv, algorithm, MOVED, &in, &out);
    options.root = root;
    options.count = counts[test_rank];
    if (is_root) {
      options.recv_counts = counts;
      options.num_counts = (size_t)test_size;
    }
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_GATHERV, &options));
  } else {
    INIT(gather, algorithm, MOVED, &in, &out);
    options.root = root;
    options.count = counts[0];
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_GATHER, &options));
  }
  expect_unchanged(&in, GLOO_RS_SUM);
  for (rank = 0; is_root && rank < test_size; rank++)
    for (j = 0; j < counts[rank]; j++) expect(&out, 0, place++, moved(rank, j));
  drop(&in);
  drop(&out);
}

/* `form` 0: one input; 1: an input for each rank; 2: in place. */
static inline void scatter(gloo_rs_context_t *context, const char *algorithm, int root, const size_t *counts, int varied,
                    int form) {
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
    INIT(scatterv, algorithm, MOVED, &in, &out);
    options.root = root;
    options.count = counts[test_rank];
    if (is_root) {
      options.send_counts = counts;
      options.num_counts = (size_t)test_size;
    }
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_SCATTERV, &options));
  } else {
    INIT(scatter, algorithm, MOVED, &in, &out);
    options.root = root;
    options.count = counts[0];
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_SCATTER, &options));
  }
  for (j = 0; j < counts[test_rank]; j++) expect(&out, 0, j, moved(root, before + j));
  drop(&in);
  drop(&out);
}

static inline void allgather(gloo_rs_context_t *context, const char *algorithm, size_t count, size_t inputs) {
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
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLGATHER, &options));
  }
  expect_unchanged(&in, GLOO_RS_SUM);
  for (rank = 0; rank < test_size; rank++)
    for (i = 0; i < blocks; i++)
      for (j = 0; j < count; j++) expect(&out, 0, place++, element(MOVED, GLOO_RS_SUM, rank, i, j));
  drop(&in);
  drop(&out);
}

static inline void allgatherv(gloo_rs_context_t *context, const char *algorithm, const size_t *counts, size_t inputs) {
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
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLGATHERV, &options));
  }
  expect_unchanged(&in, GLOO_RS_SUM);
  for (rank = 0; rank < test_size; rank++)
    for (j = 0; j < counts[rank]; j++) expect(&out, 0, place++, moved(rank, j));
  drop(&in);
  drop(&out);
}

/* `form` 0: input and output; 1: in place; 2: in place, by passing the same pointer twice. */
static inline void alltoall(gloo_rs_context_t *context, const char *algorithm, size_t count, int form) {
  struct buffers in, out;
  size_t total = count * (size_t)test_size, j;
  int rank;
  make(&in, MOVED, total, form == 0);
  make(&out, MOVED, total, 1);
  fill(&in, GLOO_RS_SUM, test_rank);
  if (form > 0) fill(&out, GLOO_RS_SUM, test_rank);
  {
    INIT(alltoall, algorithm, MOVED, &in, &out);
    options.count = count;
    if (form == 2) {
      options.inputs = (const void *const *)out.memory;
      options.num_inputs = 1;
    }
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLTOALL, &options));
  }
  expect_unchanged(&in, GLOO_RS_SUM);
  for (rank = 0; rank < test_size; rank++)
    for (j = 0; j < count; j++)
      expect(&out, 0, count * (size_t)rank + j, moved(rank, count * (size_t)test_rank + j));
  drop(&in);
  drop(&out);
}

/* Rank i sends i * 3 + j elements to rank j. */
static inline size_t between(int from, int to) { return (size_t)(from * 3 + to); }

static inline void alltoallv(gloo_rs_context_t *context, const char *algorithm) {
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
    INIT(alltoallv, algorithm, MOVED, &in, &out);
    options.send_counts = send_counts;
    options.recv_counts = recv_counts;
    options.num_counts = (size_t)test_size;
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLTOALLV, &options));
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

static inline void pairwise_exchange(gloo_rs_context_t *context, const char *algorithm, size_t count, size_t destinations) {
  struct buffers in, out;
  size_t i, j;
  make(&in, MOVED, count * destinations, 1);
  make(&out, MOVED, count * destinations, 1);
  fill(&in, GLOO_RS_SUM, test_rank);
  {
    INIT(pairwise_exchange, algorithm, MOVED, &in, &out);
    options.count = count;
    options.destinations = destinations;
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_PAIRWISE_EXCHANGE, &options));
  }
  expect_unchanged(&in, GLOO_RS_SUM);
  for (i = 0; i < destinations; i++)
    for (j = 0; j < count; j++) expect(&out, 0, i * count + j, moved(test_rank ^ 1 << i, i * count + j));
  drop(&in);
  drop(&out);
}

#endif
