/* Persistent requests: every collective beside its plain call, in every form and by every algorithm; their states, and
 * what happens to contexts and peers between start and wait. */
#include "sums.h"

/* ---- every collective ---- */

/* The fields that a collective has. */
enum { ROOT = 1, SEND_COUNTS = 2, RECV_COUNTS = 4, COUNT = 8, DESTINATIONS = 16 };

struct collective {
  const char *name;
  gloo_rs_collective_t kind;
  int fields;
};

static const struct collective collectives[] = {
    {"allreduce", GLOO_RS_ALLREDUCE, COUNT},
    {"reduce", GLOO_RS_REDUCE, COUNT | ROOT},
    {"reduce_scatter", GLOO_RS_REDUCE_SCATTER, RECV_COUNTS},
    {"scan", GLOO_RS_SCAN, COUNT},
    {"exscan", GLOO_RS_EXSCAN, COUNT},
    {"broadcast", GLOO_RS_BROADCAST, COUNT | ROOT},
    {"gather", GLOO_RS_GATHER, COUNT | ROOT},
    {"gatherv", GLOO_RS_GATHERV, COUNT | ROOT | RECV_COUNTS},
    {"scatter", GLOO_RS_SCATTER, COUNT | ROOT},
    {"scatterv", GLOO_RS_SCATTERV, COUNT | ROOT | SEND_COUNTS},
    {"allgather", GLOO_RS_ALLGATHER, COUNT},
    {"allgatherv", GLOO_RS_ALLGATHERV, RECV_COUNTS},
    {"alltoall", GLOO_RS_ALLTOALL, COUNT},
    {"alltoallv", GLOO_RS_ALLTOALLV, SEND_COUNTS | RECV_COUNTS},
    {"pairwise_exchange", GLOO_RS_PAIRWISE_EXCHANGE, COUNT | DESTINATIONS},
    {"barrier", GLOO_RS_BARRIER, 0},
};

/* In place by no inputs; by the own block of the output as input; by the own block of the input as output. */
enum form { SEPARATE, NO_INPUT, OWN_INPUT, OWN_OUTPUT, FORMS };

/* The buffers of one call; its lists are copies of its own, so that they can be wiped. */
struct call {
  int64_t *in, *out;
  const void *inputs[1];
  void *outputs[1];
  size_t send_counts[MAX_RANKS], recv_counts[MAX_RANKS];
  char algorithm[40];
  gloo_rs_collective_options_t options;
};

static size_t most(size_t count) { return (size_t)test_size * (count + MAX_RANKS); }

static void prepare(struct call *call, const struct collective *collective, const char *algorithm, size_t count,
                    enum form form, int root) {
  int is_alltoallv = (collective->fields & SEND_COUNTS) && (collective->fields & RECV_COUNTS), rank;
  size_t before = 0;
  gloo_rs_collective_options_init(&call->options, sizeof call->options);
  snprintf(call->algorithm, sizeof call->algorithm, "%s", algorithm);
  call->options.algorithm = call->algorithm;
  call->options.timeout_ms = test_timeout_ms();
  for (rank = 0; rank < test_size; rank++) {
    size_t own = count + (size_t)rank;
    call->send_counts[rank] = is_alltoallv ? count + (size_t)(rank + test_rank) : own;
    call->recv_counts[rank] = is_alltoallv ? count + (size_t)(rank + test_rank) : own;
    if (rank < test_rank) before += collective->fields & (SEND_COUNTS | RECV_COUNTS) ? own : count;
  }
  if (collective->fields == 0) return;
  call->options.data_type = GLOO_RS_INT64;
  call->inputs[0] = form == OWN_INPUT ? call->out + before : call->in;
  call->outputs[0] = form == OWN_OUTPUT ? call->in + before : call->out;
  call->options.inputs = call->inputs;
  call->options.num_inputs = form != NO_INPUT;
  call->options.outputs = call->outputs;
  call->options.num_outputs = 1;
  if (collective->fields & ROOT) call->options.root = root;
  if (collective->fields & COUNT)
    call->options.count = collective->fields & (SEND_COUNTS | RECV_COUNTS) ? count + (size_t)test_rank : count;
  if (collective->fields & SEND_COUNTS) call->options.send_counts = call->send_counts;
  if (collective->fields & RECV_COUNTS) call->options.recv_counts = call->recv_counts;
  if (collective->fields & (SEND_COUNTS | RECV_COUNTS)) call->options.num_counts = (size_t)test_size;
  if (collective->fields & DESTINATIONS) call->options.destinations = test_size >= 4 ? 2 : test_size == 2;
}

static void fill(struct call *call, size_t cells, int round) {
  size_t i;
  for (i = 0; i < cells; i++) {
    call->in[i] = (int64_t)i * (test_rank + 2) + 1000 * round;
    call->out[i] = -(int64_t)i * (test_rank + 3) - 1000 * round;
  }
}

/* Before the first start, what it was made of is wiped. A plain call of the same with another tag is made between start
 * and wait, in the same form, so the two must leave the same bytes. */
static void beside_plain(gloo_rs_context_t *context, const struct collective *collective, const char *algorithm,
                         size_t count, enum form form, int root) {
  static struct call plain, other;
  gloo_rs_request_t *request = NULL;
  size_t cells = most(count), bytes = cells * sizeof(int64_t);
  gloo_rs_status_t status;
  int round;
  plain.in = (int64_t *)check_alloc(bytes);
  plain.out = (int64_t *)check_alloc(bytes);
  other.in = (int64_t *)check_alloc(bytes);
  other.out = (int64_t *)check_alloc(bytes);
  prepare(&plain, collective, algorithm, count, form, root);
  prepare(&other, collective, algorithm, count, form, root);
  other.options.tag = 77;
  status = gloo_rs_collective_prepare(context, collective->kind, &other.options, &request);
  CHECK((status == GLOO_RS_OK) == (request != NULL));
  if (status != GLOO_RS_OK) {
    /* An algorithm or a collective that does not serve so many ranks. */
    CHECK(strcmp(algorithm, "auto") != 0 || strcmp(collective->name, "pairwise_exchange") == 0);
    CHECK_INT(status, GLOO_RS_ERROR_INVALID_ARGUMENT);
    CHECK_INVALID(gloo_rs_collective(context, collective->kind, &plain.options), "");
  } else {
    memset(&other.options, 0xee, sizeof other.options);
    memset(other.inputs, 0xee, sizeof other.inputs);
    memset(other.outputs, 0xee, sizeof other.outputs);
    memset(other.send_counts, 0xee, sizeof other.send_counts);
    memset(other.recv_counts, 0xee, sizeof other.recv_counts);
    memset(other.algorithm, 0, sizeof other.algorithm);
  }
  for (round = 0; request != NULL && round < 3; round++) {
    fill(&plain, cells, round);
    fill(&other, cells, round);
    CHECK_OK(gloo_rs_start(request));
    CHECK_OK(gloo_rs_collective(context, collective->kind, &plain.options));
    CHECK_OK(gloo_rs_wait(request));
    if (memcmp(plain.in, other.in, bytes) != 0 || memcmp(plain.out, other.out, bytes) != 0)
      check_failed(__FILE__, __LINE__, "%s %s of %zu elements, form %d, round %d: not as the plain call", collective->name,
                   algorithm, count, (int)form, round);
  }
  CHECK_OK(gloo_rs_request_free(request));
  free(plain.in);
  free(plain.out);
  free(other.in);
  free(other.out);
}

/* Forms that only some ranks have are those of a root. */
static int all_have(const struct collective *collective, enum form form) {
  const char *name = collective->name;
  switch (form) {
    case NO_INPUT:
      return strcmp(name, "alltoallv") != 0 && strcmp(name, "pairwise_exchange") != 0 && !(collective->fields & ROOT);
    case OWN_INPUT:
      return strncmp(name, "allgather", 9) == 0;
    case OWN_OUTPUT:
      return strcmp(name, "reduce_scatter") == 0;
    default:
      return 1;
  }
}

static int root_has(const struct collective *collective, enum form form) {
  int gathers = strncmp(collective->name, "gather", 6) == 0, scatters = strncmp(collective->name, "scatter", 7) == 0;
  return (collective->fields & ROOT) && (form == NO_INPUT || (form == OWN_INPUT && gathers) || (form == OWN_OUTPUT && scatters));
}

static void every_collective(void) {
  gloo_rs_context_t *context = connected_context();
  const size_t counts[] = {3, test_is_slow() ? 4000 : 12000};
  size_t c, n;
  int form;
  for (c = 0; c < sizeof collectives / sizeof *collectives; c++) {
    const struct collective *collective = &collectives[c];
    char names[512] = "auto,";
    char *name, *rest = NULL;
    snprintf(names + 5, sizeof names - 5, "%s", gloo_rs_algorithms(collective->name));
    for (name = strtok_r(names, ", ", &rest); name != NULL; name = strtok_r(NULL, ", ", &rest)) {
      if (strcmp(name, "local") != 0 && !can_run(context, name)) continue;
      for (n = 0; n < sizeof counts / sizeof *counts; n++)
        for (form = SEPARATE; form < FORMS; form++) {
          int root = test_size - 1, own = test_rank == root && root_has(collective, (enum form)form);
          if (!own && !root_has(collective, (enum form)form) && !all_have(collective, (enum form)form)) continue;
          beside_plain(context, collective, name, counts[n], own || all_have(collective, (enum form)form) ? (enum form)form : SEPARATE,
                       root);
        }
    }
  }
  gloo_rs_context_destroy(context);
}

/* ---- states and wrong use ---- */

static int64_t cells[2][1000];

/* A request of the sum of `count` of the cells, in place. */
static gloo_rs_request_t *sum(gloo_rs_context_t *context, int which, size_t count, uint64_t tag) {
  gloo_rs_collective_options_t options;
  gloo_rs_request_t *request = NULL;
  void *outputs[1];
  gloo_rs_collective_options_init(&options, sizeof options);
  outputs[0] = cells[which];
  options.algorithm = "ring";
  options.data_type = GLOO_RS_INT64;
  options.outputs = outputs;
  options.num_outputs = 1;
  options.count = count;
  options.tag = tag;
  CHECK_OK(gloo_rs_collective_prepare(context, GLOO_RS_ALLREDUCE, &options, &request));
  return request;
}

static void set(int which, int64_t value) {
  size_t i;
  for (i = 0; i < 1000; i++) cells[which][i] = value;
}

static void expect(int which, int64_t value) {
  size_t i;
  for (i = 0; i < 1000; i++) CHECK_INT(cells[which][i], value);
}

static void two_at_once(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_request_t *requests[2], *same;
  int round, first;
  requests[0] = sum(context, 0, 1000, 1);
  requests[1] = sum(context, 1, 1000, 2);
  same = sum(context, 1, 1000, 1);
  for (round = 0; round < 5; round++) {
    set(0, test_rank + round);
    set(1, 10 * test_rank);
    /* Ranks may start and wait in different orders. */
    first = (test_rank + round) % 2;
    CHECK_OK(gloo_rs_start(requests[first]));
    CHECK_OK(gloo_rs_start(requests[!first]));
    CHECK_FAILS(gloo_rs_start(same), GLOO_RS_ERROR_INVALID_OPERATION, "with tag 1 is running on this context already");
    CHECK_OK(gloo_rs_wait(requests[0]));
    CHECK_OK(gloo_rs_wait(requests[1]));
    expect(0, (int64_t)test_size * (test_size - 1) / 2 + (int64_t)test_size * round);
    expect(1, (int64_t)test_size * (test_size - 1) * 5);
    set(1, 1);
    CHECK_OK(gloo_rs_start(same));
    CHECK_OK(gloo_rs_wait(same));
    expect(1, test_size);
  }
  CHECK_OK(gloo_rs_request_free(requests[0]));
  CHECK_OK(gloo_rs_request_free(requests[1]));
  CHECK_OK(gloo_rs_request_free(same));
  gloo_rs_context_destroy(context);
}

static void tested_until_done(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_request_t *request = sum(context, 0, 1000, 0);
  bool done = true;
  int round;
  for (round = 0; round < 20; round++) {
    set(0, round);
    CHECK_OK(gloo_rs_start(request));
    do CHECK_OK(gloo_rs_test(request, &done));
    while (!done);
    expect(0, (int64_t)test_size * round);
    CHECK_FAILS(gloo_rs_test(request, &done), GLOO_RS_ERROR_INVALID_OPERATION, "the request is inactive");
  }
  CHECK_OK(gloo_rs_request_free(request));
  gloo_rs_context_destroy(context);
}

static void wrong_use(void) {
  gloo_rs_context_t *context = connected_context(), *alone = create_context();
  gloo_rs_request_t *request = NULL, *none = (gloo_rs_request_t *)&request;
  gloo_rs_collective_options_t options;
  const void *inputs[1];
  void *outputs[1];
  bool done = true;
  gloo_rs_collective_options_init(&options, sizeof options);
  CHECK_INVALID(gloo_rs_collective_prepare(context, GLOO_RS_ALLREDUCE, &options, NULL),
                "gloo_rs_collective_prepare(allreduce): request is NULL");
  CHECK_INVALID(gloo_rs_collective_prepare(context, GLOO_RS_ALLREDUCE, NULL, &none), "options is NULL");
  CHECK(none == NULL);
  CHECK_INVALID(gloo_rs_collective_prepare(NULL, GLOO_RS_ALLREDUCE, &options, &none), "context is NULL");
  CHECK_INVALID(gloo_rs_collective_prepare(context, GLOO_RS_ALLREDUCE, &options, &none), "data_type is not set");
  outputs[0] = (char *)cells[0] + 1;
  options.data_type = GLOO_RS_INT64;
  options.outputs = outputs;
  options.num_outputs = 1;
  options.count = 2;
  CHECK_INVALID(gloo_rs_collective_prepare(context, GLOO_RS_BARRIER, &options, &none), "barrier does not use data_type");
  CHECK_INVALID(gloo_rs_collective_prepare(context, GLOO_RS_ALLREDUCE, &options, &none),
                "is not aligned to the 8 bytes of int64");
  outputs[0] = cells[0];
  inputs[0] = cells[0] + 1;
  options.inputs = inputs;
  options.num_inputs = 1;
  CHECK_INVALID(gloo_rs_collective_prepare(context, GLOO_RS_ALLREDUCE, &options, &none), "overlaps");
  options.num_inputs = 0;
  options.algorithm = "none";
  CHECK_INVALID(gloo_rs_collective_prepare(context, GLOO_RS_ALLREDUCE, &options, &none), "none");
  options.algorithm = NULL;
  CHECK_FAILS(gloo_rs_collective_prepare(alone, GLOO_RS_ALLREDUCE, &options, &none), GLOO_RS_ERROR_INVALID_OPERATION,
              "is not connected");
  CHECK(none == NULL);

  CHECK_INVALID(gloo_rs_start(NULL), "request is NULL");
  CHECK_INVALID(gloo_rs_wait(NULL), "request is NULL");
  CHECK_INVALID(gloo_rs_test(NULL, &done), "request is NULL");
  CHECK_OK(gloo_rs_request_free(NULL));
  CHECK_INVALID(gloo_rs_start((gloo_rs_request_t *)context), "not a live gloo_rs_request_t");
  CHECK_INVALID(gloo_rs_request_free((gloo_rs_request_t *)context), "not a live gloo_rs_request_t");

  request = sum(context, 0, 1000, 3);
  set(0, 1);
  CHECK_INVALID(gloo_rs_barrier((gloo_rs_context_t *)request), "not a live gloo_rs_context_t");
  CHECK_FAILS(gloo_rs_wait(request), GLOO_RS_ERROR_INVALID_OPERATION,
              "(8000 bytes), tag 3: cannot wait: the request is inactive: start it first");
  CHECK_ERROR(GLOO_RS_ERROR_INVALID_OPERATION, -1, "allreduce");
  CHECK_FAILS(gloo_rs_test(request, &done), GLOO_RS_ERROR_INVALID_OPERATION, "cannot test: the request is inactive");
  CHECK_INVALID(gloo_rs_test(request, NULL), "done is NULL");
  CHECK(done);
  CHECK_OK(gloo_rs_start(request));
  CHECK_FAILS(gloo_rs_start(request), GLOO_RS_ERROR_INVALID_OPERATION, "cannot start: the request is active: wait for it");
  CHECK_FAILS(gloo_rs_request_free(request), GLOO_RS_ERROR_INVALID_OPERATION, "cannot free: the request is active");
  CHECK_OK(gloo_rs_wait(request));
  expect(0, test_size);
  CHECK_OK(gloo_rs_request_free(request));
  gloo_rs_context_destroy(alone);
  gloo_rs_context_destroy(context);
}

/* ---- several that were started ---- */

enum { SEVERAL = 6 };

/* Several requests with one tag have different lengths. Half of them reduce by a function, which a rank calls also while it waits for another
 * request. */
static void several_on_one_tag(void) {
  static int64_t data[SEVERAL][SEVERAL * 300];
  gloo_rs_context_t *context = connected_context();
  gloo_rs_request_t *requests[SEVERAL + 1];
  gloo_rs_status_t statuses[SEVERAL + 1], status;
  size_t n, i, index, left, round;
  for (round = 0; round < 6; round++) {
    for (n = 0; n < SEVERAL; n++) {
      for (i = 0; i < 300 * (n + 1); i++) data[n][i] = (int64_t)(n + round) + test_rank;
      requests[n] = start_sum(context, data[n], 300 * (n + 1), round < 3 ? 5 : n, n % 2 ? add_numbers : NULL);
    }
    requests[SEVERAL] = NULL;
    if (round % 3 == 0) {
      for (n = 0; n < SEVERAL; n++) {
        size_t which = test_rank % 2 ? n : SEVERAL - 1 - n;
        while ((status = gloo_rs_wait_for(requests[which], 1)) == GLOO_RS_ERROR_TIMEOUT) continue;
        CHECK_INT(status, GLOO_RS_OK);
      }
    } else if (round % 3 == 1) {
      for (left = SEVERAL; left > 0; left--) {
        CHECK_OK(gloo_rs_wait_any(requests, SEVERAL + 1, GLOO_RS_TIMEOUT_INFINITE, &index));
        CHECK(index < SEVERAL);
        CHECK_OK(gloo_rs_request_free(requests[index]));
        requests[index] = NULL;
      }
      CHECK_OK(gloo_rs_wait_any(requests, SEVERAL + 1, 0, &index));
      CHECK_INT(index, SEVERAL + 1);
    } else {
      CHECK_OK(gloo_rs_wait_all(requests, SEVERAL + 1, GLOO_RS_TIMEOUT_DEFAULT, statuses));
      for (n = 0; n <= SEVERAL; n++) CHECK_INT(statuses[n], GLOO_RS_OK);
      CHECK_OK(gloo_rs_wait_all(requests, SEVERAL + 1, 0, NULL));
    }
    for (n = 0; n < SEVERAL; n++) {
      for (i = 0; i < 300 * (n + 1); i++)
        CHECK_INT(data[n][i], (int64_t)test_size * (int64_t)(n + round) + (int64_t)test_size * (test_size - 1) / 2);
      CHECK_OK(gloo_rs_request_free(requests[n]));
    }
  }
  gloo_rs_context_destroy(context);
}

static void expect_state(gloo_rs_request_t *request, gloo_rs_request_state_t state, gloo_rs_status_t status, int32_t rank) {
  gloo_rs_request_info_t info;
  gloo_rs_request_info_init(&info, sizeof info);
  CHECK_OK(gloo_rs_request_query(request, &info));
  CHECK_INT(info.state, state);
  CHECK_INT(info.status, status);
  CHECK_INT(info.rank, rank);
  CHECK(info.created_ns > 0);
  CHECK(info.started_ns == 0 || info.started_ns >= info.created_ns);
  CHECK(info.ended_ns == 0 || info.ended_ns >= info.started_ns);
}

/* On two contexts. Rank 1 starts when rank 0 has waited in vain. */
static void waits_that_end_early(void) {
  gloo_rs_context_t *contexts[2];
  gloo_rs_store_t *store = open_store();
  const char *key = "waited";
  gloo_rs_request_t *requests[2];
  gloo_rs_status_t statuses[2];
  size_t index = 9;
  bool broken = true;
  int n;
  contexts[0] = connected_context();
  CHECK_OK(gloo_rs_context_split(contexts[0], 0, test_rank, &contexts[1]));
  set(0, test_rank);
  set(1, 1);
  meet(contexts[0]);
  if (test_rank == 1) CHECK_OK(gloo_rs_store_wait(store, &key, 1, test_timeout_ms()));
  for (n = 0; n < 2; n++) requests[n] = start_sum(contexts[n], cells[n], 1000, 0, add_numbers);
  if (test_rank == 0) {
    expect_state(requests[0], GLOO_RS_REQUEST_ACTIVE, GLOO_RS_OK, -1);
    CHECK_FAILS(gloo_rs_wait_for(requests[0], 3), GLOO_RS_ERROR_TIMEOUT, "(8000 bytes), tag 0: 1 request has not ended after 3ms");
    CHECK_ERROR(GLOO_RS_ERROR_TIMEOUT, -1, "allreduce");
    CHECK_FAILS(gloo_rs_wait_any(requests, 2, 3, &index), GLOO_RS_ERROR_TIMEOUT, "2 requests have not ended after 3ms");
    CHECK_INT(index, 2);
    CHECK_FAILS(gloo_rs_wait_all(requests, 2, 0, statuses), GLOO_RS_ERROR_TIMEOUT, "2 requests have not ended");
    CHECK(statuses[0] == GLOO_RS_ERROR_TIMEOUT && statuses[1] == GLOO_RS_ERROR_TIMEOUT);
    expect_state(requests[1], GLOO_RS_REQUEST_ACTIVE, GLOO_RS_OK, -1);
    for (n = 0; n < 2; n++) {
      CHECK_OK(gloo_rs_context_broken(contexts[n], &broken, NULL));
      CHECK(!broken);
    }
    CHECK_OK(gloo_rs_store_set(store, key, "", 0));
  }
  CHECK_OK(gloo_rs_wait_all(requests, 2, GLOO_RS_TIMEOUT_INFINITE, statuses));
  CHECK(statuses[0] == GLOO_RS_OK && statuses[1] == GLOO_RS_OK);
  expect_state(requests[0], GLOO_RS_REQUEST_INACTIVE, GLOO_RS_OK, -1);
  expect(0, (int64_t)test_size * (test_size - 1) / 2);
  expect(1, test_size);
  for (n = 0; n < 2; n++) {
    CHECK_OK(gloo_rs_request_free(requests[n]));
    gloo_rs_context_destroy(contexts[n]);
  }
  gloo_rs_store_destroy(store);
}

static void wrong_use_of_several(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_request_t *twice[2], *none = (gloo_rs_request_t *)&twice;
  gloo_rs_collective_options_t options;
  gloo_rs_request_info_t info;
  size_t index = 0;
  gloo_rs_collective_options_init(&options, sizeof options);
  CHECK_INVALID(gloo_rs_collective_start(context, GLOO_RS_ALLREDUCE, &options, &none), "data_type is not set");
  CHECK(none == NULL);
  CHECK_INVALID(gloo_rs_collective_start(context, GLOO_RS_ALLREDUCE, &options, NULL), "request is NULL");
  CHECK_INVALID(gloo_rs_wait_for(NULL, 0), "request is NULL");
  CHECK_INVALID(gloo_rs_wait_any(NULL, 1, 0, &index), "requests is NULL");
  CHECK_INVALID(gloo_rs_wait_any(&none, 1, 0, NULL), "index is NULL");
  CHECK_INVALID(gloo_rs_wait_any(&none, 1, -2, &index), "timeout_ms is -2");
  CHECK_INVALID(gloo_rs_wait_all(NULL, 1, 0, NULL), "requests is NULL");
  CHECK_OK(gloo_rs_wait_all(NULL, 0, 0, NULL));
  CHECK_INVALID(gloo_rs_request_query(NULL, &info), "request is NULL");
  set(0, 1);
  twice[0] = twice[1] = start_sum(context, cells[0], 1000, 0, add_numbers);
  CHECK_INVALID(gloo_rs_request_query(twice[0], NULL), "info is NULL");
  CHECK_INVALID(gloo_rs_wait_for(twice[0], -2), "timeout_ms is -2");
  if (test_size > 1)
    CHECK_FAILS(gloo_rs_wait_any(twice, 2, 0, &index), GLOO_RS_ERROR_INVALID_OPERATION, "another thread is in a call on the request");
  CHECK_OK(gloo_rs_wait(twice[0]));
  CHECK_FAILS(gloo_rs_wait_for(twice[0], 0), GLOO_RS_ERROR_INVALID_OPERATION, "the request is inactive");
  expect(0, test_size);
  CHECK_OK(gloo_rs_request_free(twice[0]));
  gloo_rs_context_destroy(context);
}

static void failures_of_several(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_request_t *requests[2];
  gloo_rs_status_t statuses[2];
  gloo_rs_store_t *store = open_store();
  const char *key = "closed";
  meet(context);
  if (test_rank == 0) {
    requests[0] = start_sum(context, cells[0], 1000, 0, NULL);
    requests[1] = start_sum(context, cells[1], 1000, 0, add_numbers);
    CHECK_OK(gloo_rs_context_close(context));
    CHECK_FAILS(gloo_rs_wait_all(requests, 2, GLOO_RS_TIMEOUT_INFINITE, statuses), GLOO_RS_ERROR_CLOSED, "rank 0 has closed this context");
    CHECK(statuses[0] == GLOO_RS_ERROR_CLOSED && statuses[1] == GLOO_RS_ERROR_CLOSED);
    expect_state(requests[0], GLOO_RS_REQUEST_INACTIVE, GLOO_RS_ERROR_CLOSED, -1);
    CHECK_OK(gloo_rs_request_free(requests[0]));
    CHECK_OK(gloo_rs_request_free(requests[1]));
    CHECK_OK(gloo_rs_store_set(store, key, "", 0));
  } else {
    CHECK_OK(gloo_rs_store_wait(store, &key, 1, test_timeout_ms()));
  }
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
}

/* ---- contexts and peers between start and wait ---- */

static void any_order_of_ends(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_request_t *inactive = sum(context, 0, 1000, 1), *active = sum(context, 1, 1000, 2);
  set(0, 1);
  set(1, 2);
  CHECK_OK(gloo_rs_start(active));
  gloo_rs_context_destroy(context);
  CHECK_OK(gloo_rs_start(inactive));
  CHECK_OK(gloo_rs_wait(active));
  CHECK_OK(gloo_rs_request_free(active));
  CHECK_OK(gloo_rs_wait(inactive));
  expect(0, test_size);
  expect(1, 2 * test_size);
  CHECK_OK(gloo_rs_start(inactive));
  CHECK_OK(gloo_rs_wait(inactive));
  expect(0, (int64_t)test_size * test_size);
  CHECK_OK(gloo_rs_request_free(inactive));
}

/* Rank 1 does not start; its part comes when rank 0 has closed. */
static void closed_between(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_store_t *store = open_store();
  const char *key = "closed";
  gloo_rs_request_t *request = sum(context, 0, 1000, 0), *other = sum(context, 1, 1000, 1);
  meet(context);
  if (test_rank == 0) {
    CHECK_OK(gloo_rs_start(request));
    CHECK_OK(gloo_rs_context_close(context));
    CHECK_FAILS(gloo_rs_request_free(request), GLOO_RS_ERROR_INVALID_OPERATION, "the request is active");
    CHECK_FAILS(gloo_rs_wait(request), GLOO_RS_ERROR_CLOSED, "rank 0 has closed this context");
    CHECK_FAILS(gloo_rs_start(request), GLOO_RS_ERROR_CLOSED, "the context is broken");
    CHECK_OK(gloo_rs_store_set(store, key, "", 0));
  } else {
    /* If its peer is gone, rank 0 may find that before it closes. */
    CHECK_OK(gloo_rs_store_wait(store, &key, 1, test_timeout_ms()));
  }
  gloo_rs_store_destroy(store);
  gloo_rs_context_destroy(context);
  CHECK_OK(gloo_rs_request_free(other));
  CHECK_OK(gloo_rs_request_free(request));
}

static int entered[2];

/* The reduction of a call with two inputs by "ring", which calls it in the wait, before anything is sent. */
static int32_t tells_and_adds(void *into, const void *left, const void *right, size_t count, void *user) {
  size_t i;
  (void)user;
  CHECK(write(entered[1], "", 1) == 1);
  for (i = 0; i < count; i++) ((int64_t *)into)[i] = ((const int64_t *)left)[i] + ((const int64_t *)right)[i];
  return 0;
}

static void *waits_in_vain(void *request) {
  CHECK_FAILS(gloo_rs_wait((gloo_rs_request_t *)request), GLOO_RS_ERROR_CLOSED, "rank 0 has closed this context");
  return NULL;
}

/* Rank 1 does not start. */
static void destroyed_while_a_thread_waits(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_store_t *store = open_store();
  const char *key = "ended";
  meet(context);
  if (test_rank == 0) {
    gloo_rs_collective_options_t options;
    gloo_rs_request_t *request = NULL;
    const void *inputs[2];
    int64_t result;
    void *outputs[1];
    pthread_t thread;
    char byte;
    inputs[0] = cells[0];
    inputs[1] = cells[1];
    outputs[0] = &result;
    CHECK(pipe(entered) == 0);
    gloo_rs_collective_options_init(&options, sizeof options);
    options.data_type = GLOO_RS_INT64;
    options.function = tells_and_adds;
    options.algorithm = "ring";
    options.inputs = inputs;
    options.num_inputs = 2;
    options.outputs = outputs;
    options.num_outputs = 1;
    options.count = 1;
    CHECK_OK(gloo_rs_collective_prepare(context, GLOO_RS_ALLREDUCE, &options, &request));
    CHECK_OK(gloo_rs_start(request));
    thread = start_thread(waits_in_vain, request);
    CHECK(read(entered[0], &byte, 1) == 1);
    gloo_rs_context_destroy(context);
    join_thread(thread);
    CHECK_OK(gloo_rs_request_free(request));
    CHECK_OK(gloo_rs_store_set(store, key, "", 0));
    close(entered[0]);
    close(entered[1]);
  } else {
    CHECK_OK(gloo_rs_store_wait(store, &key, 1, test_timeout_ms()));
    gloo_rs_context_destroy(context);
  }
  gloo_rs_store_destroy(store);
}

static void a_peer_dies_between(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_request_t *request = sum(context, 0, 1000, 0);
  gloo_rs_store_t *store = open_store();
  char names[MAX_RANKS][24], part[24];
  const char *keys[MAX_RANKS];
  bool broken = false;
  int dying = test_size - 1, rank;
  set(0, 1);
  for (rank = 0; rank < test_size; rank++) {
    snprintf(names[rank], sizeof names[rank], "started%d", rank);
    keys[rank] = names[rank];
  }
  meet(context);
  if (test_rank == dying) {
    CHECK_OK(gloo_rs_store_wait(store, keys, (size_t)dying, test_timeout_ms()));
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
  CHECK_OK(gloo_rs_start(request));
  CHECK_OK(gloo_rs_store_set(store, keys[test_rank], "", 0));
  gloo_rs_store_destroy(store);
  snprintf(part, sizeof part, "rank %d", dying);
  CHECK_FAILS(gloo_rs_wait(request), GLOO_RS_ERROR_CONNECTION_LOST, part);
  CHECK_ERROR(GLOO_RS_ERROR_CONNECTION_LOST, dying, "allreduce");
  CHECK_OK(gloo_rs_context_broken(context, &broken, NULL));
  CHECK(broken);
  CHECK_FAILS(gloo_rs_start(request), GLOO_RS_ERROR_CONNECTION_LOST, "the context is broken");
  CHECK_FAILS(gloo_rs_wait(request), GLOO_RS_ERROR_INVALID_OPERATION, "the request is inactive");
  CHECK_OK(gloo_rs_request_free(request));
  gloo_rs_context_destroy(context);
}

/* A child may free what the parent has started, and nothing else; this does not affect the parent. */
static void a_rank_forks(void) {
  gloo_rs_context_t *context = connected_context();
  gloo_rs_request_t *request = sum(context, 0, 1000, 0);
  int round, status;
  for (round = 0; round < 2; round++) {
    pid_t child;
    set(0, 3);
    CHECK_OK(gloo_rs_start(request));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      CHECK_FAILS(gloo_rs_wait(request), GLOO_RS_ERROR_INVALID_OPERATION, "a child by fork");
      CHECK_OK(gloo_rs_request_free(request));
      gloo_rs_context_destroy(context);
      /* Another program, for which valgrind makes its own account. */
      execlp("true", "true", (char *)NULL);
      _exit(127);
    }
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
    CHECK_OK(gloo_rs_wait(request));
    expect(0, 3 * test_size);
  }
  CHECK_OK(gloo_rs_request_free(request));
  gloo_rs_context_destroy(context);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"every_collective", 1, every_collective, -1},
      {"every_collective", 3, every_collective, -1},
      {"every_collective", 4, every_collective, -1},
      {"two_at_once", 2, two_at_once, -1},
      {"two_at_once", 4, two_at_once, -1},
      {"tested_until_done", 3, tested_until_done, -1},
      {"wrong_use", 2, wrong_use, -1},
      {"several_on_one_tag", 1, several_on_one_tag, -1},
      {"several_on_one_tag", 3, several_on_one_tag, -1},
      {"several_on_one_tag", 4, several_on_one_tag, -1},
      {"waits_that_end_early", 2, waits_that_end_early, -1},
      {"wrong_use_of_several", 2, wrong_use_of_several, -1},
      {"failures_of_several", 2, failures_of_several, -1},
      {"any_order_of_ends", 1, any_order_of_ends, -1},
      {"any_order_of_ends", 3, any_order_of_ends, -1},
      {"closed_between", 2, closed_between, -1},
      {"destroyed_while_a_thread_waits", 2, destroyed_while_a_thread_waits, -1},
      {"a_peer_dies_between", 2, a_peer_dies_between, 1},
      {"a_peer_dies_between", 4, a_peer_dies_between, 3},
      {"a_rank_forks", 2, a_rank_forks, -1},
  };
  return RUN_TESTS(argc, argv, tests);
}
