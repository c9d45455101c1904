/*
 * Barrier in which each rank sends to all others, as an algorithm.
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

/// `run` returns when all ranks have called it.
class BarrierAllToAll : public Barrier {
 public:
  explicit BarrierAllToAll(const std::shared_ptr<Context>& context) : Barrier(context), tag_(detail::next_tag(*context)) {}

  void run() override {
    detail::Call call(*context_, tag_, detail::chosen_timeout(*context_));
    call.data_type = GLOO_RS_DATA_TYPE_UNSET;
    call.algorithm = "all_to_all";
    call.run(GLOO_RS_BARRIER);
  }

 private:
  const uint64_t tag_;
};

}  // namespace gloo_rs_api
}  // namespace gloo
