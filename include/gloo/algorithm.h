/*
 * Collectives as objects that run any number of times, and their reduction functions.
 */
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "gloo/common/logging.h"
#include "gloo/context.h"
#include "gloo/math.h"

namespace gloo {
inline namespace gloo_rs_api {

/// Bytes from which Gloo reduces on a device instead of on the host.
inline constexpr size_t kOnDeviceThreshold = 256 * 1024;

/// A collective over buffers that are set once. Ranks construct their algorithms in the same order, because each takes
/// a slot of the context; `run` is a call of the collective, with the context's timeout. An object runs on one thread
/// at a time; different ones may run at the same time.
class Algorithm {
 public:
  explicit Algorithm(const std::shared_ptr<Context>& context)
      : context_(context), contextRank_(context_->rank), contextSize_(context_->size) {}
  virtual ~Algorithm() noexcept(false) = 0;

  virtual void run() = 0;

 protected:
  std::shared_ptr<Context> context_;
  const int contextRank_;
  const int contextSize_;

  std::unique_ptr<transport::Pair>& getPair(int i) {
    return context_->getPair(i);
  }

  /// The pair with the rank before this one; that of rank 0 is the last rank.
  std::unique_ptr<transport::Pair>& getLeftPair() {
    return neighbour(contextRank_ + contextSize_ - 1);
  }

  /// The pair with the rank behind this one; that of the last rank is rank 0.
  std::unique_ptr<transport::Pair>& getRightPair() {
    return neighbour(contextRank_ + 1);
  }

 private:
  std::unique_ptr<transport::Pair>& neighbour(int rank) {
    auto& pair = context_->getPair(rank % contextSize_);
    GLOO_ENFORCE(pair, "rank ", contextRank_, " has no pair with rank ", rank % contextSize_);
    return pair;
  }
};

inline Algorithm::~Algorithm() noexcept(false) {}

/// What a ReductionFunction computes.
enum ReductionType {
  SUM = 1,
  PRODUCT = 2,
  MAX = 3,
  MIN = 4,

  /// Something that only the function itself knows.
  CUSTOM = 1000,
};

/// A reduction function of algorithms: `x[i] = x[i] op y[i]` for `n` elements. Of a type other than CUSTOM, and of
/// elements for which the library has kernels, algorithms run the kernel instead of the function.
template <typename T>
class ReductionFunction {
 public:
  using Function = void(T*, const T*, size_t n);

  static const ReductionFunction<T>* sum;
  static const ReductionFunction<T>* product;
  static const ReductionFunction<T>* min;
  static const ReductionFunction<T>* max;

  constexpr ReductionFunction(ReductionType type, Function* fn) : type_(type), fn_(fn) {}

  ReductionType type() const {
    return type_;
  }

  void call(T* x, const T* y, size_t n) const {
    fn_(x, y, n);
  }

 protected:
  ReductionType type_;
  Function* fn_;
};

namespace detail {

// Initialised without code, so that static objects of programs can use them.
template <typename T>
inline constexpr ReductionFunction<T> kSum{SUM, &::gloo::sum<T>};
template <typename T>
inline constexpr ReductionFunction<T> kProduct{PRODUCT, &::gloo::product<T>};
template <typename T>
inline constexpr ReductionFunction<T> kMin{MIN, &::gloo::min<T>};
template <typename T>
inline constexpr ReductionFunction<T> kMax{MAX, &::gloo::max<T>};

}  // namespace detail

template <typename T>
const ReductionFunction<T>* ReductionFunction<T>::sum = &detail::kSum<T>;
template <typename T>
const ReductionFunction<T>* ReductionFunction<T>::product = &detail::kProduct<T>;
template <typename T>
const ReductionFunction<T>* ReductionFunction<T>::min = &detail::kMin<T>;
template <typename T>
const ReductionFunction<T>* ReductionFunction<T>::max = &detail::kMax<T>;

/// An operation on buffers of this rank.
template <typename T>
class LocalOp {
 public:
  virtual ~LocalOp() noexcept(false) {}
  virtual void runAsync() = 0;
  virtual void wait() = 0;

  void run() {
    runAsync();
    wait();
  }
};

}  // namespace gloo_rs_api
}  // namespace gloo
