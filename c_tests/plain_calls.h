/* Every collective by the function that takes its arguments one by one: out of place, and in place in each supported
 * way. */
#ifndef GLOO_RS_TESTS_PLAIN_CALLS_H
#define GLOO_RS_TESTS_PLAIN_CALLS_H

#include "harness.h"

#define INT GLOO_RS_INT64
#define PLAIN_BLOCK ((size_t)3)
#define PLAIN_MOST (MAX_RANKS * (PLAIN_BLOCK + MAX_RANKS))

/* Layout of the buffers: out of place; in place by NULL; in place by equal pointers, as with NCCL. */
enum plain_form { SEPARATE, BY_NULL, BY_POINTER, PLAIN_FORMS };

/* Element `index` of the contribution of `rank`, and its sum over the ranks below `ranks`. */
static inline int64_t of_rank(int rank, size_t index) { return (rank + 1) * 1000 + (int64_t)index * (rank + 2); }

static inline int64_t sum_below(int ranks, size_t index) {
  int64_t sum = 0;
  int rank;
  for (rank = 0; rank < ranks; rank++) sum += of_rank(rank, index);
  return sum;
}

static inline void fill_own(int64_t *cells, size_t count) {
  size_t i;
  for (i = 0; i < count; i++) cells[i] = of_rank(test_rank, i);
}

static inline void wipe(int64_t *cells) {
  size_t i;
  for (i = 0; i < PLAIN_MOST; i++) cells[i] = -1;
}

static inline void expect_wiped(const int64_t *cells, size_t from) {
  for (; from < PLAIN_MOST; from++) CHECK_INT(cells[from], -1);
}

static inline void plain_reductions(gloo_rs_context_t *context, enum plain_form form, int root) {
  int64_t in[PLAIN_MOST], out[PLAIN_MOST];
  const int64_t *input = form == SEPARATE ? in : form == BY_NULL ? NULL : out;
  size_t i;
  int which;
  for (which = 0; which < 4; which++) {
    int ranks = which < 2 ? test_size : which == 2 ? test_rank + 1 : test_rank;
    wipe(in);
    wipe(out);
    fill_own(in, PLAIN_BLOCK);
    if (form != SEPARATE) fill_own(out, PLAIN_BLOCK);
    switch (which) {
      case 0:
        CHECK_OK(gloo_rs_allreduce(context, input, out, PLAIN_BLOCK, INT, GLOO_RS_SUM));
        break;
      case 1:
        CHECK_OK(gloo_rs_reduce(context, input, out, PLAIN_BLOCK, INT, GLOO_RS_SUM, root));
        break;
      case 2:
        CHECK_OK(gloo_rs_scan(context, input, out, PLAIN_BLOCK, INT, GLOO_RS_SUM));
        break;
      default:
        CHECK_OK(gloo_rs_exscan(context, input, out, PLAIN_BLOCK, INT, GLOO_RS_SUM));
    }
    for (i = 0; i < PLAIN_BLOCK; i++) {
      int alone = (which == 1 && test_rank != root) || (which == 3 && test_rank == 0);
      CHECK_INT(in[i], of_rank(test_rank, i));
      CHECK_INT(out[i], alone ? (form == SEPARATE ? -1 : of_rank(test_rank, i)) : sum_below(ranks, i));
    }
    expect_wiped(out, PLAIN_BLOCK);
  }
}

/* Blocks of `counts` elements, which `plain` passes as one number. */
static inline void plain_reduce_scatters(gloo_rs_context_t *context, enum plain_form form, const size_t *counts,
                                         int plain) {
  int64_t in[PLAIN_MOST], out[PLAIN_MOST], *output = out;
  const int64_t *input = in;
  size_t total = 0, before = 0, i;
  int rank;
  for (rank = 0; rank < test_size; rank++) {
    if (rank == test_rank) before = total;
    total += counts[rank];
  }
  wipe(in);
  wipe(out);
  fill_own(in, total);
  if (form == BY_NULL) {
    fill_own(out, total);
    input = NULL;
  }
  if (form == BY_POINTER) output = in + before;
  if (plain)
    CHECK_OK(gloo_rs_reduce_scatter(context, input, output, counts[0], INT, GLOO_RS_SUM));
  else
    CHECK_OK(gloo_rs_reduce_scatterv(context, input, output, counts, INT, GLOO_RS_SUM));
  for (i = 0; i < counts[test_rank]; i++) CHECK_INT(output[i], sum_below(test_size, before + i));
  for (i = 0; i < total; i++)
    if (form != BY_POINTER || i < before || i >= before + counts[test_rank]) CHECK_INT(in[i], of_rank(test_rank, i));
  expect_wiped(in, total);
  expect_wiped(out, form == BY_NULL ? total : form == SEPARATE ? counts[test_rank] : 0);
}

/* Gathers to `root`, or to all if that is negative. */
static inline void plain_gathers(gloo_rs_context_t *context, enum plain_form form, int root, const size_t *counts,
                                 int plain) {
  int64_t in[PLAIN_MOST], out[PLAIN_MOST];
  const int64_t *input = in;
  size_t own = counts[test_rank], total = 0, before = 0, place = 0, i;
  int rank, gets = root < 0 || test_rank == root;
  for (rank = 0; rank < test_size; rank++) {
    if (rank == test_rank) before = total;
    total += counts[rank];
  }
  wipe(in);
  wipe(out);
  fill_own(in, own);
  if (form != SEPARATE && gets) {
    fill_own(out + before, own);
    input = form == BY_NULL ? NULL : out + before;
  }
  if (root < 0 && plain)
    CHECK_OK(gloo_rs_allgather(context, input, out, own, INT));
  else if (root < 0)
    CHECK_OK(gloo_rs_allgatherv(context, input, out, counts, INT));
  else if (plain)
    CHECK_OK(gloo_rs_gather(context, input, gets ? out : NULL, own, INT, root));
  else
    CHECK_OK(gloo_rs_gatherv(context, input, own, gets ? out : NULL, gets ? counts : NULL, INT, root));
  for (rank = 0; gets && rank < test_size; rank++)
    for (i = 0; i < counts[rank]; i++) CHECK_INT(out[place++], of_rank(rank, i));
  expect_wiped(out, place);
}

static inline void plain_scatters(gloo_rs_context_t *context, enum plain_form form, int root, const size_t *counts,
                                  int plain) {
  int64_t in[PLAIN_MOST], out[PLAIN_MOST], *output = out;
  const int64_t *input = in;
  size_t own = counts[test_rank], total = 0, before = 0, i;
  int rank, sends = test_rank == root;
  for (rank = 0; rank < test_size; rank++) {
    if (rank == test_rank) before = total;
    total += counts[rank];
  }
  wipe(in);
  wipe(out);
  if (sends) {
    fill_own(in, total);
    if (form == BY_NULL) {
      fill_own(out, total);
      input = NULL;
    }
    if (form == BY_POINTER) output = in + before;
  } else {
    input = NULL;
  }
  if (plain)
    CHECK_OK(gloo_rs_scatter(context, input, output, own, INT, root));
  else
    CHECK_OK(gloo_rs_scatterv(context, input, sends ? counts : NULL, output, own, INT, root));
  for (i = 0; i < own; i++) CHECK_INT(output[i], of_rank(root, before + i));
  for (i = 0; sends && i < total; i++) CHECK_INT(in[i], of_rank(root, i));
  if (!sends || form != BY_NULL) expect_wiped(out, output == out ? own : 0);
}

static inline void plain_alltoall(gloo_rs_context_t *context, enum plain_form form) {
  int64_t in[PLAIN_MOST], out[PLAIN_MOST];
  size_t total = PLAIN_BLOCK * (size_t)test_size, i;
  wipe(out);
  fill_own(in, total);
  if (form != SEPARATE) fill_own(out, total);
  CHECK_OK(gloo_rs_alltoall(context, form == SEPARATE ? in : form == BY_NULL ? NULL : out, out, PLAIN_BLOCK, INT));
  for (i = 0; i < total; i++)
    CHECK_INT(out[i], of_rank((int)(i / PLAIN_BLOCK), PLAIN_BLOCK * (size_t)test_rank + i % PLAIN_BLOCK));
  expect_wiped(out, total);
}

/* Rank i sends i + j elements to rank j. */
static inline void plain_alltoallv(gloo_rs_context_t *context) {
  int64_t in[PLAIN_MOST], out[PLAIN_MOST];
  size_t counts[MAX_RANKS], total = 0, place = 0, i;
  int rank, to;
  for (rank = 0; rank < test_size; rank++) total += counts[rank] = (size_t)(rank + test_rank);
  wipe(out);
  fill_own(in, total);
  CHECK_OK(gloo_rs_alltoallv(context, in, counts, out, counts, INT));
  for (rank = 0; rank < test_size; rank++) {
    size_t before = 0;
    for (to = 0; to < test_rank; to++) before += (size_t)(rank + to);
    for (i = 0; i < counts[rank]; i++) CHECK_INT(out[place++], of_rank(rank, before + i));
  }
  expect_wiped(out, place);
}

static inline void plain_others(gloo_rs_context_t *context, int root) {
  int64_t in[PLAIN_MOST], out[PLAIN_MOST];
  size_t destinations = test_size == 4 ? 2 : test_size == 2, i;
  wipe(out);
  if (test_rank == root) fill_own(out, PLAIN_BLOCK);
  CHECK_OK(gloo_rs_broadcast(context, out, PLAIN_BLOCK, INT, root));
  for (i = 0; i < PLAIN_BLOCK; i++) CHECK_INT(out[i], of_rank(root, i));
  expect_wiped(out, PLAIN_BLOCK);
  if ((test_size & (test_size - 1)) == 0) {
    wipe(out);
    fill_own(in, PLAIN_BLOCK * destinations);
    CHECK_OK(gloo_rs_pairwise_exchange(context, in, out, PLAIN_BLOCK, destinations, INT));
    for (i = 0; i < PLAIN_BLOCK * destinations; i++)
      CHECK_INT(out[i], of_rank(test_rank ^ 1 << i / PLAIN_BLOCK, i));
    expect_wiped(out, PLAIN_BLOCK * destinations);
  }
  CHECK_OK(gloo_rs_barrier(context));
}

/* These are refused before anything is sent: the context stays usable. */
static inline void plain_refusals(gloo_rs_context_t *context) {
  int64_t in[PLAIN_MOST], out[PLAIN_MOST];
  const size_t n = PLAIN_BLOCK;
  size_t counts[MAX_RANKS] = {1, 1, 1, 1};
  fill_own(in, PLAIN_MOST);
  CHECK_INVALID(gloo_rs_allreduce(NULL, in, out, n, INT, GLOO_RS_SUM), "gloo_rs_allreduce: context is NULL");
  CHECK_INVALID(gloo_rs_barrier(NULL), "gloo_rs_barrier: context is NULL");
  CHECK_INVALID(gloo_rs_allreduce(context, in, NULL, n, INT, GLOO_RS_SUM), "output 0 is NULL");
  CHECK_INVALID(gloo_rs_allreduce(context, in, out, n, GLOO_RS_DATA_TYPE_UNSET, GLOO_RS_SUM), "data_type is not set");
  CHECK_INVALID(gloo_rs_allreduce(context, in, out, n, GLOO_RS_BOOL + 1, GLOO_RS_SUM), "16");
  CHECK_INVALID(gloo_rs_allreduce(context, in, out, n, INT, GLOO_RS_XOR + 1), "8");
  CHECK_INVALID(gloo_rs_allreduce(context, in, in + 1, n, INT, GLOO_RS_SUM), "overlaps");
  CHECK_INVALID(gloo_rs_allreduce(context, in, (char *)out + 1, n, INT, GLOO_RS_SUM), "not aligned");
  CHECK_INVALID(gloo_rs_allreduce(context, in, out, SIZE_MAX, INT, GLOO_RS_SUM), "");
  CHECK_INVALID(gloo_rs_reduce(context, in, out, n, INT, GLOO_RS_SUM, test_size), "gloo_rs_reduce: root is");
  CHECK_INVALID(gloo_rs_reduce(context, in, NULL, n, INT, GLOO_RS_SUM, test_rank), "output 0 is NULL");
  CHECK_INVALID(gloo_rs_reduce_scatter(context, in, in + 1 + (size_t)test_rank * n, n, INT, GLOO_RS_SUM), "overlaps");
  CHECK_INVALID(gloo_rs_reduce_scatter(context, in, out, SIZE_MAX / 2, INT, GLOO_RS_SUM), "");
  CHECK_INVALID(gloo_rs_reduce_scatterv(context, in, NULL, counts, INT, GLOO_RS_SUM), "output 0 is NULL");
  CHECK_INVALID(gloo_rs_scan(context, in, out, n, INT, GLOO_RS_AVERAGE), "average");
  CHECK_INVALID(gloo_rs_exscan(context, in, in + 1, n, INT, GLOO_RS_SUM), "overlaps");
  CHECK_INVALID(gloo_rs_broadcast(context, NULL, n, INT, 0), "output 0 is NULL");
  CHECK_INVALID(gloo_rs_broadcast(context, out, n, INT, -1), "root is -1");
  CHECK_INVALID(gloo_rs_gather(context, in, NULL, n, INT, test_rank), "output 0 is NULL");
  CHECK_INVALID(gloo_rs_gather(context, out + 1 + (size_t)test_rank * n, out, n, INT, test_rank), "overlaps");
  CHECK_INVALID(gloo_rs_gatherv(context, in, 1, out, NULL, INT, test_rank), "recv_counts has 0 entries");
  CHECK_INVALID(gloo_rs_scatter(context, in, NULL, n, INT, test_rank), "output 0 is NULL");
  CHECK_INVALID(gloo_rs_scatterv(context, in, NULL, out, 1, INT, test_rank), "send_counts has 0 entries");
  CHECK_INVALID(gloo_rs_allgather(context, in, NULL, n, INT), "output 0 is NULL");
  CHECK_INVALID(gloo_rs_allgather(context, out + 1 + (size_t)test_rank * n, out, n, INT), "overlaps");
  CHECK_INVALID(gloo_rs_allgatherv(context, in, out, NULL, INT), "recv_counts has 0 entries");
  CHECK_INVALID(gloo_rs_alltoall(context, in, in + 1, n, INT), "overlaps");
  CHECK_INVALID(gloo_rs_alltoallv(context, in, counts, out, NULL, INT), "recv_counts has 0 entries");
  CHECK_INVALID(gloo_rs_alltoallv(context, NULL, counts, out, counts, INT), "input 0 is NULL");
  CHECK_INVALID(gloo_rs_pairwise_exchange(context, in, out, n, 64, INT), "gloo_rs_pairwise_exchange: ");
  if (test_size > 1) {
    int other = (test_rank + 1) % test_size;
    CHECK_INVALID(gloo_rs_gather(context, NULL, out, n, INT, other), "input 0 is NULL");
    CHECK_INVALID(gloo_rs_reduce(context, NULL, NULL, n, INT, GLOO_RS_SUM, other), "output 0 is NULL");
  }
  CHECK_OK(gloo_rs_barrier(context));
}

static inline void plain_calls(void) {
  static const size_t even[MAX_RANKS] = {PLAIN_BLOCK, PLAIN_BLOCK, PLAIN_BLOCK, PLAIN_BLOCK};
  static const size_t uneven[MAX_RANKS] = {2, 0, 5, 1}, none[MAX_RANKS] = {0};
  gloo_rs_context_t *context = connected_context();
  int form, root;
  plain_refusals(context);
  for (form = SEPARATE; form < PLAIN_FORMS; form++) {
    plain_reduce_scatters(context, (enum plain_form)form, even, 1);
    plain_reduce_scatters(context, (enum plain_form)form, even, 0);
    plain_reduce_scatters(context, (enum plain_form)form, uneven, 0);
    plain_reduce_scatters(context, (enum plain_form)form, none, 1);
    plain_gathers(context, (enum plain_form)form, -1, even, 1);
    plain_gathers(context, (enum plain_form)form, -1, uneven, 0);
    plain_alltoall(context, (enum plain_form)form);
    for (root = 0; root < test_size; root++) {
      plain_reductions(context, (enum plain_form)form, root);
      plain_gathers(context, (enum plain_form)form, root, even, 1);
      plain_gathers(context, (enum plain_form)form, root, uneven, 0);
      plain_scatters(context, (enum plain_form)form, root, even, 1);
      plain_scatters(context, (enum plain_form)form, root, uneven, 0);
    }
  }
  plain_alltoallv(context);
  for (root = 0; root < test_size; root++) plain_others(context, root);
  gloo_rs_context_destroy(context);
}

#endif
