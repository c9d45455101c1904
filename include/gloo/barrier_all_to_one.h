/*
 * Barrier in which one rank waits for all others, and then sends to them, as an algorithm.
 */
#pragma once

#include <cstdint>
#include <memory>

#include "gloo/barrier.h"
#include "gloo/context.h"
#include "gloo/detail/class_algorithm.h"
#include "gloo/detail/collective.h"

namespace gloo {
inline namespace gloo_rs_api {

/// `run` returns when all ranks have called it. The library's barrier waits at rank 0, whichever root is given: ranks
/// see no difference. Throws EnforceNotMet if `rootRank` is no rank.
class BarrierAllToOne : public Barrier {
 public:
  explicit BarrierAllToOne(const std::shared_ptr<Context>& context, int rootRank = 0)
      : Barrier(context), tag_(detail::next_tag(*context)) {
    detail::enforce_root(rootRank, *context);
  }

  void run() override {
    detail::Call call(*context_, tag_, detail::chosen_timeout(*context_));
    call.data_type = GLOO_RS_DATA_TYPE_UNSET;
    call.algorithm = "all_to_one";
    call.run(GLOO_RS_BARRIER);
  }

 private:
  const uint64_t tag_;
};

}  // namespace gloo_rs_api
}  // namespace gloo
