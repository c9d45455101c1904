/* What tests of memberships ask of a context. */
#ifndef MEMBERS_H
#define MEMBERS_H

#include "harness.h"

static inline gloo_rs_status_t sum(gloo_rs_context_t *context, int32_t *cells, size_t count) {
  return gloo_rs_allreduce(context, cells, cells, count, GLOO_RS_INT32, GLOO_RS_SUM);
}

static inline int size_of(const gloo_rs_context_t *context) {
  int32_t size = 0;
  CHECK_OK(gloo_rs_context_size(context, &size));
  return size;
}

static inline int rank_of(const gloo_rs_context_t *context) {
  int32_t rank = 0;
  CHECK_OK(gloo_rs_context_rank(context, &rank));
  return rank;
}

#endif
