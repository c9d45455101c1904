/*
 * An exchange between pairs of ranks, to measure networks.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gloo/algorithm.h"
#include "gloo/context.h"
#include "gloo/detail/class_algorithm.h"
#include "gloo/detail/collective.h"
#include "gloo/math.h"

namespace gloo {
inline namespace gloo_rs_api {

/// Each rank exchanges `numBytes / numDestinations` bytes of its own memory with rank XOR 1, then with rank XOR 2, rank
/// XOR 4 and so on: `numDestinations` partners. Throws EnforceNotMet unless the number of ranks is a power of two that
/// has so many partners, and there is a byte for each.
class PairwiseExchange : public Algorithm {
 public:
  explicit PairwiseExchange(const std::shared_ptr<Context>& context, const int numBytes, const int numDestinations)
      : Algorithm(context), destinations_(static_cast<size_t>(numDestinations)) {
    GLOO_ENFORCE_GT(numDestinations, 0);
    GLOO_ENFORCE_GE(numBytes, numDestinations);
    const uint32_t size = static_cast<uint32_t>(context->size);
    GLOO_ENFORCE_EQ(uint32_t{1} << log2ceil(size), size, "the number of ranks is not a power of two");
    GLOO_ENFORCE_LE(static_cast<uint32_t>(numDestinations), log2ceil(size));
    bytes_ = static_cast<size_t>(numBytes / numDestinations);
    sent_.resize(bytes_ * destinations_);
    received_.resize(bytes_ * destinations_);
    tag_ = detail::next_tag(*context);
  }

  void run() override {
    detail::Call call(*context_, tag_, detail::chosen_timeout(*context_));
    call.count = bytes_;
    call.destinations = destinations_;
    const detail::Memory input(sent_.data(), sent_.size());
    const detail::Memory output(received_.data(), received_.size());
    call.set_input(input);
    call.set_output(output);
    call.run(GLOO_RS_PAIRWISE_EXCHANGE);
  }

 private:
  const size_t destinations_;
  size_t bytes_;
  uint64_t tag_;
  std::vector<char> sent_;
  std::vector<char> received_;
};

}  // namespace gloo_rs_api
}  // namespace gloo
