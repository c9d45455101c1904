/* Sums of numbers in place that tests start, and what they ask of them. */
#ifndef SUMS_H
#define SUMS_H

#include "harness.h"

/* Adds numbers, as a function of the caller. */
static inline int32_t add_numbers(void *into, const void *left, const void *right, size_t count, void *user) {
  size_t i;
  (void)user;
  for (i = 0; i < count; i++) ((int64_t *)into)[i] = ((const int64_t *)left)[i] + ((const int64_t *)right)[i];
  return 0;
}

/* The options of a sum of the numbers at `data`, whose address `outputs` keeps. */
static inline void fill_sum(gloo_rs_collective_options_t *options, void **outputs, int64_t *data, size_t count,
                            uint64_t tag) {
  gloo_rs_collective_options_init(options, sizeof *options);
  outputs[0] = data;
  options->data_type = GLOO_RS_INT64;
  options->outputs = outputs;
  options->num_outputs = 1;
  options->count = count;
  options->tag = tag;
  options->timeout_ms = test_timeout_ms();
}

/* Starts the sum of the numbers at `data` in place; by the function, if there is one. */
static inline gloo_rs_request_t *start_sum(gloo_rs_context_t *context, int64_t *data, size_t count, uint64_t tag,
                                           gloo_rs_reduce_fn_t function) {
  gloo_rs_collective_options_t options;
  gloo_rs_request_t *request = NULL;
  void *outputs[1];
  fill_sum(&options, outputs, data, count, tag);
  options.function = function;
  CHECK_OK(gloo_rs_collective_start(context, GLOO_RS_ALLREDUCE, &options, &request));
  return request;
}

/* Prepares the sum of the numbers at `data` in place, as a persistent request. */
static inline gloo_rs_request_t *prepare_sum(gloo_rs_context_t *context, int64_t *data, size_t count, uint64_t tag) {
  gloo_rs_collective_options_t options;
  gloo_rs_request_t *request = NULL;
  void *outputs[1];
  fill_sum(&options, outputs, data, count, tag);
  CHECK_OK(gloo_rs_collective_prepare(context, GLOO_RS_ALLREDUCE, &options, &request));
  return request;
}

static inline gloo_rs_request_state_t state_of(gloo_rs_request_t *request) {
  gloo_rs_request_info_t info;
  gloo_rs_request_info_init(&info, sizeof info);
  CHECK_OK(gloo_rs_request_query(request, &info));
  return info.state;
}

/* Runs a test on devices that share no memory. */
static inline void without_shared_memory(void (*test)(void)) {
  CHECK(setenv("GLOO_RS_SHM", "0", 1) == 0);
  test();
}

#endif
