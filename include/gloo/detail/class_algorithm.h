/*
 * What the collectives in the form of objects share.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gloo/algorithm.h"
#include "gloo/context.h"
#include "gloo/detail/collective.h"
#include "gloo/detail/reduction.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace detail {

/// A tag for the calls of an algorithm, that no options have: those are 32-bit numbers.
inline uint64_t next_tag(Context& context) {
  return (uint64_t{1} << 32) + static_cast<uint64_t>(context.nextSlot());
}

/// The pointers for the C functions.
template <typename T>
std::vector<void*> untyped_list(const std::vector<T*>& pointers, size_t count) {
  std::vector<void*> list;
  list.reserve(pointers.size());
  for (T* pointer : pointers) {
    list.push_back(listed(untyped(pointer), bytes_of<T>(count)));
  }
  return list;
}

/// A reduction over the `count` elements at each of this rank's pointers.
template <typename T>
class ReducingAlgorithm : public Algorithm {
 protected:
  /// Throws EnforceNotMet if there are no pointers, one of them is NULL, there is no function, or a count is negative.
  ReducingAlgorithm(
      const std::shared_ptr<Context>& context,
      const std::vector<T*>& pointers,
      int count,
      const ReductionFunction<T>* function)
      : Algorithm(context), kernel_(kernel_of(existing(function))), function_(untyped_function(*function)) {
    GLOO_ENFORCE_GE(count, 0);
    GLOO_ENFORCE(!pointers.empty(), "an algorithm needs a pointer to the elements");
    count_ = static_cast<size_t>(count);
    pointers_ = untyped_list(pointers, count_);
  }

  /// Combines the elements of all pointers into those of the first.
  void reduce_pointers() const {
    reduce_locally(pointers_[0], pointers_, count_, sizeof(T), function_);
  }

  static const ReductionFunction<T>& existing(const ReductionFunction<T>* function) {
    GLOO_ENFORCE(function != nullptr, "an algorithm needs a reduction function");
    return *function;
  }

  size_t count_;
  std::vector<void*> pointers_;
  const Kernel kernel_;
  const ReduceFunction function_;
};

/// An allreduce by the algorithm `name` of the library. All pointers, of all ranks, get the result.
template <typename T>
class AllreduceAlgorithm : public ReducingAlgorithm<T> {
 public:
  void run() override {
    if (this->count_ == 0) {
      return;
    }
    Call call(*this->context_, tag_, chosen_timeout(*this->context_));
    call.algorithm = name_;
    call.base = base_;
    call.count = this->count_;
    call.set_outputs(this->pointers_);
    run_reduction(call, GLOO_RS_ALLREDUCE, sizeof(T), this->kernel_, this->function_);
  }

 protected:
  AllreduceAlgorithm(
      const std::shared_ptr<Context>& context,
      const std::vector<T*>& pointers,
      int count,
      const ReductionFunction<T>* function,
      const char* name,
      size_t base = 0)
      : ReducingAlgorithm<T>(context, pointers, count, function), name_(name), base_(base), tag_(next_tag(*context)) {}

 private:
  const char* name_;
  const size_t base_;
  const uint64_t tag_;
};

}  // namespace detail
}  // namespace gloo_rs_api
}  // namespace gloo
