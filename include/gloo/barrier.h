/*
 * Waits for all ranks.
 */
#pragma once

#include <memory>

#include "gloo/algorithm.h"
#include "gloo/context.h"
#include "gloo/detail/collective.h"

namespace gloo {
inline namespace gloo_rs_api {

/// A barrier as an algorithm.
class Barrier : public Algorithm {
 public:
  explicit Barrier(const std::shared_ptr<Context>& context) : Algorithm(context) {}
  ~Barrier() noexcept(false) override {}
};

/// Options of barrier.
class BarrierOptions : public detail::CollectiveOptions {
 public:
  explicit BarrierOptions(const std::shared_ptr<Context>& context) : CollectiveOptions(context) {}

 protected:
  friend void barrier(BarrierOptions&);
};

/// Returns when all ranks have called it. Throws IoException if the timeout expires or a rank is lost.
inline void barrier(BarrierOptions& opts) {
  detail::Call call(*opts.context_, opts.tag_, opts.timeout_);
  call.data_type = GLOO_RS_DATA_TYPE_UNSET;
  call.run(GLOO_RS_BARRIER);
}

}  // namespace gloo_rs_api
}  // namespace gloo
