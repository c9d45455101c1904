/* Collectives on one buffer for each rank in place of one with a block for each: by every algorithm, in place and not. */
#include "calls.h"

enum { GUARD = 8 };

/* A collective, with blocks of equal lengths or not. */
struct kind {
  gloo_rs_collective_t number;
  const char *name;
  int uneven, lists_inputs, lists_outputs;
};

static const struct kind kinds[] = {
    {GLOO_RS_REDUCE_SCATTER, "reduce_scatter", 0, 1, 0}, {GLOO_RS_REDUCE_SCATTER, "reduce_scatter", 1, 1, 0},
    {GLOO_RS_ALLGATHER, "allgather", 0, 0, 1},           {GLOO_RS_ALLGATHERV, "allgatherv", 1, 0, 1},
    {GLOO_RS_GATHER, "gather", 0, 0, 1},                 {GLOO_RS_GATHERV, "gatherv", 1, 0, 1},
    {GLOO_RS_SCATTER, "scatter", 0, 1, 0},               {GLOO_RS_SCATTERV, "scatterv", 1, 1, 0},
    {GLOO_RS_ALLTOALL, "alltoall", 0, 1, 1},             {GLOO_RS_ALLTOALLV, "alltoallv", 1, 1, 1},
};

/* Whether a rank other than the root has no list. */
static int has_root(const struct kind *kind) {
  return kind->number == GLOO_RS_GATHER || kind->number == GLOO_RS_GATHERV || kind->number == GLOO_RS_SCATTER ||
         kind->number == GLOO_RS_SCATTERV;
}

/* Elements that one rank has for another. */
static size_t length(const struct kind *kind, size_t count, int from, int to) {
  if (!kind->uneven) return count;
  if (kind->number == GLOO_RS_ALLTOALLV) return count + (size_t)(from + 2 * to);
  return count + 3 * (size_t)(kind->lists_inputs ? to : from);
}

static int32_t value(const struct kind *kind, int from, int to, size_t i) {
  return (int32_t)(from * 10007 + (kind->lists_inputs ? to * 101 : 0) + (int)i);
}

static int32_t *make_block(size_t elements) {
  int32_t *block = (int32_t *)check_alloc((elements + GUARD) * sizeof *block);
  size_t i;
  for (i = 0; i < elements + GUARD; i++) block[i] = -1;
  return block;
}

static void fill_block(const struct kind *kind, int32_t *block, size_t count, int from, int to) {
  size_t i, elements = length(kind, count, from, to);
  for (i = 0; i < elements; i++) block[i] = value(kind, from, to, i);
}

/* Element i of what this rank gets from `from`, or from all. */
static int32_t expected(const struct kind *kind, int from, size_t i) {
  int32_t sum = 0;
  int rank;
  if (kind->number != GLOO_RS_REDUCE_SCATTER) return value(kind, from, test_rank, i);
  for (rank = 0; rank < test_size; rank++) sum += value(kind, rank, test_rank, i);
  return sum;
}

/* Makes the call by each algorithm, once as a request. */
static void by_all(gloo_rs_context_t *context, const struct kind *kind, size_t count, int in_place) {
  const int root = test_size - 1, at_root = test_rank == root, mine = !has_root(kind) || at_root;
  const int lists_inputs = kind->lists_inputs && mine, lists_outputs = kind->lists_outputs && mine;
  const char *names = gloo_rs_algorithms(kind->name);
  const void *inputs[MAX_RANKS];
  int32_t *in[MAX_RANKS], *out[MAX_RANKS];
  void *outputs[MAX_RANKS];
  size_t send_counts[MAX_RANKS], recv_counts[MAX_RANKS], i;
  gloo_rs_collective_options_t options;
  int rank, by_request = 0;
  gloo_rs_collective_options_init(&options, sizeof options);
  options.timeout_ms = test_timeout_ms();
  options.data_type = GLOO_RS_INT32;
  options.blocks = 1;
  options.root = has_root(kind) ? root : 0;
  for (rank = 0; rank < test_size; rank++) {
    send_counts[rank] = length(kind, count, test_rank, rank);
    recv_counts[rank] = length(kind, count, kind->number == GLOO_RS_REDUCE_SCATTER ? 0 : rank,
                               kind->number == GLOO_RS_REDUCE_SCATTER ? rank : test_rank);
    in[rank] = make_block(send_counts[rank]);
    out[rank] = make_block(length(kind, count, rank, test_rank));
    inputs[rank] = in[rank];
    outputs[rank] = out[rank];
  }
  if (!kind->uneven) options.count = count;
  if (kind->number == GLOO_RS_GATHERV) options.count = send_counts[0];
  if (kind->number == GLOO_RS_SCATTERV) options.count = length(kind, count, root, test_rank);
  if (kind->uneven) {
    options.num_counts = (size_t)test_size;
    if (kind->lists_inputs && kind->number != GLOO_RS_REDUCE_SCATTER) options.send_counts = send_counts;
    if (kind->lists_outputs || kind->number == GLOO_RS_REDUCE_SCATTER) options.recv_counts = recv_counts;
  }
  options.inputs = inputs;
  options.num_inputs = lists_inputs ? (size_t)test_size : kind->lists_inputs ? 0 : 1;
  options.outputs = outputs;
  options.num_outputs = lists_outputs ? (size_t)test_size : kind->lists_outputs ? 0 : 1;
  if (in_place && mine) {
    if (kind->number == GLOO_RS_ALLTOALL) {
      options.num_inputs = 0;
    } else if (kind->lists_inputs) {
      outputs[0] = in[test_rank]; /* The own block of the input. */
    } else {
      inputs[0] = out[test_rank]; /* The own block of the output. */
    }
  }
  while (*names != '\0') {
    char algorithm[64];
    size_t part = strcspn(names, ",");
    memcpy(algorithm, names, part);
    algorithm[part] = '\0';
    names += part + (names[part] == ',');
    if (!can_run(context, algorithm)) continue;
    options.algorithm = algorithm;
    for (rank = 0; rank < test_size; rank++) {
      fill_block(kind, in[rank], count, test_rank, rank);
      for (i = 0; i < length(kind, count, rank, test_rank); i++) out[rank][i] = -2;
    }
    if (in_place && kind->number == GLOO_RS_ALLTOALL) {
      for (rank = 0; rank < test_size; rank++) fill_block(kind, out[rank], count, test_rank, rank);
    } else if (in_place && mine && !kind->lists_inputs) {
      fill_block(kind, out[test_rank], count, test_rank, 0);
    }
    if (by_request) {
      gloo_rs_request_t *request = NULL;
      CHECK_OK(gloo_rs_collective_start(context, kind->number, &options, &request));
      CHECK_OK(gloo_rs_wait(request));
      CHECK_OK(gloo_rs_request_free(request));
    } else {
      CHECK_OK(gloo_rs_collective(context, kind->number, &options));
    }
    by_request = !by_request;
    for (rank = 0; rank < (int)options.num_outputs; rank++) {
      const int from = lists_outputs ? rank : root;
      const int32_t *block = (const int32_t *)outputs[rank];
      const size_t elements = length(kind, count, from, test_rank);
      for (i = 0; i < elements; i++) CHECK_INT(block[i], expected(kind, from, i));
      for (i = 0; i < GUARD; i++) CHECK_INT(block[elements + i], -1);
    }
    for (rank = 0; rank < test_size; rank++)
      if ((const void *)in[rank] != outputs[0])
        for (i = 0; i < send_counts[rank]; i++) CHECK_INT(in[rank][i], value(kind, test_rank, rank, i));
  }
  for (rank = 0; rank < test_size; rank++) {
    free(in[rank]);
    free(out[rank]);
  }
}

static void every_collective(void) {
  const size_t counts[] = {0, 1, 700, test_is_slow() ? 3000 : 40000};
  gloo_rs_context_t *context = connected_context();
  size_t k, c;
  for (k = 0; k < sizeof kinds / sizeof *kinds; k++)
    for (c = 0; c < sizeof counts / sizeof *counts; c++) {
      snprintf(doing, sizeof doing, "%s of blocks of %zu", kinds[k].name, counts[c]);
      by_all(context, &kinds[k], counts[c], 0);
      if (kinds[k].number != GLOO_RS_ALLTOALLV) by_all(context, &kinds[k], counts[c], 1);
    }
  gloo_rs_context_destroy(context);
}

/* A rank may have blocks where another has one buffer: it is the same call. */
static void some_ranks(void) {
  gloo_rs_context_t *context = connected_context();
  float mine = (float)test_rank, all[4] = {-1, -1, -1, -1};
  const void *inputs[1] = {&mine};
  void *outputs[MAX_RANKS] = {&all[3], &all[1], &all[2], &all[0]};
  gloo_rs_collective_options_t options;
  int rank;
  gloo_rs_collective_options_init(&options, sizeof options);
  CHECK(options.blocks == 0);
  options.data_type = GLOO_RS_FLOAT32;
  options.count = 1;
  options.inputs = inputs;
  options.num_inputs = 1;
  options.outputs = outputs;
  if (test_rank % 2 == 0) outputs[0] = all;
  options.blocks = test_rank % 2 == 1;
  options.num_outputs = options.blocks ? (size_t)test_size : 1;
  CHECK_OK(gloo_rs_collective(context, GLOO_RS_ALLGATHER, &options));
  for (rank = 0; rank < test_size; rank++) CHECK(*(options.blocks ? (float *)outputs[rank] : &all[rank]) == (float)rank);

  /* The products of a factor are blocks, too. */
  {
    const float two = 2;
    const void *blocks[MAX_RANKS] = {&all[0], &all[1], &all[2], &all[3]};
    float result;
    outputs[0] = &result;
    options.inputs = blocks;
    options.num_inputs = (size_t)test_size;
    options.num_outputs = 1;
    options.blocks = 1;
    options.factor = &two;
    for (rank = 0; rank < 4; rank++) all[rank] = (float)(1 + rank);
    CHECK_OK(gloo_rs_collective(context, GLOO_RS_REDUCE_SCATTER, &options));
    CHECK(result == (float)(2 * test_size * (1 + test_rank)));
  }
  gloo_rs_context_destroy(context);
}

static void wrong_blocks(void) {
  gloo_rs_context_t *context = connected_context();
  int32_t memory[8] = {0};
  const void *inputs[MAX_RANKS] = {&memory[0], &memory[1]};
  void *outputs[MAX_RANKS] = {&memory[4], &memory[5]};
  gloo_rs_collective_options_t options;
  gloo_rs_collective_options_init(&options, sizeof options);
  options.data_type = GLOO_RS_INT32;
  options.count = 1;
  options.inputs = inputs;
  options.outputs = outputs;
  options.num_inputs = 1;
  options.num_outputs = 1;
  options.blocks = 1;
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options), "allreduce does not use blocks");
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLGATHER, &options), "outputs is 1; with blocks it must be 2");
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_REDUCE_SCATTER, &options), "inputs is 1; with blocks it must be 2");
  options.num_inputs = 0;
  options.inputs = NULL;
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_REDUCE_SCATTER, &options), "inputs is 0; with blocks it must be 2");
  options.inputs = inputs;
  options.num_inputs = 1;
  options.num_outputs = 2;
  options.blocks = 2;
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLGATHER, &options), "blocks is 2; it must be 0 or 1");
  options.blocks = 1;
  outputs[1] = NULL;
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLGATHER, &options), "output 1 is NULL");
  outputs[1] = &memory[4];
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLGATHER, &options), "output 1");
  options.count = 2;
  outputs[1] = &memory[1];
  CHECK_INVALID(gloo_rs_collective(context, GLOO_RS_ALLGATHER, &options), "overlaps");
  gloo_rs_context_destroy(context);
}

static const struct test tests[] = {
    {"every_collective", 3, every_collective, -1},
    {"wrong_blocks", 2, wrong_blocks, -1},
#define TESTS_UNDER_VALGRIND 2
    {"every_collective", 1, every_collective, -1},
    {"every_collective", 2, every_collective, -1},
    {"every_collective", 4, every_collective, -1},
    {"some_ranks", 2, some_ranks, -1},
    {"some_ranks", 4, some_ranks, -1},
};

int main(int argc, char **argv) {
  return run_tests(argc, argv, tests, test_is_slow() ? TESTS_UNDER_VALGRIND : sizeof tests / sizeof *tests);
}
