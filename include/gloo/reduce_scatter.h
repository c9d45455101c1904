/*
 * Combines the elements of all ranks; each rank gets a part of the result.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gloo/context.h"
#include "gloo/detail/class_algorithm.h"
#include "gloo/detail/collective.h"
#include "gloo/detail/reduction.h"
#include "gloo/transport/unbound_buffer.h"

namespace gloo {
inline namespace gloo_rs_api {

/// Options of reduce_scatter, which Gloo does not have in this form. Every input has the elements of all ranks, in the
/// order of ranks: as many for each, unless setElementsPerRank gives numbers. The output has the elements of this rank.
/// The inputs of a rank are combined first. Without inputs, the output is the input; the result is written to its
/// start, and the rest is unspecified.
class ReduceScatterOptions : public detail::CollectiveOptions {
 public:
  /// `c[i] = a[i] op b[i]` for `n` elements; `c` may be `a` or `b`. The operation must be associative and commutative.
  using Func = detail::ReduceFunction;

  explicit ReduceScatterOptions(const std::shared_ptr<Context>& context) : CollectiveOptions(context) {}

  template <typename T>
  void setInput(std::unique_ptr<transport::UnboundBuffer> buffer) {
    setInputs<T>(detail::list_of(std::move(buffer)));
  }

  template <typename T>
  void setInputs(std::vector<std::unique_ptr<transport::UnboundBuffer>> buffers) {
    detail::set_element_size(elementSize_, sizeof(T));
    in_ = detail::MemoryList(std::move(buffers));
  }

  template <typename T>
  void setInput(T* pointer, size_t elements) {
    setInputs(&pointer, 1, elements);
  }

  template <typename T>
  void setInputs(std::vector<T*> pointers, size_t elements) {
    setInputs(pointers.data(), pointers.size(), elements);
  }

  template <typename T>
  void setInputs(T** pointers, size_t length, size_t elements) {
    detail::set_element_size(elementSize_, sizeof(T));
    in_ = detail::MemoryList(pointers, length, elements);
  }

  template <typename T>
  void setOutput(std::unique_ptr<transport::UnboundBuffer> buffer) {
    detail::set_element_size(elementSize_, sizeof(T));
    out_ = detail::Memory(std::move(buffer));
  }

  template <typename T>
  void setOutput(T* pointer, size_t elements) {
    detail::set_element_size(elementSize_, sizeof(T));
    out_ = detail::Memory(pointer, elements);
  }

  /// The number of elements of the result for each rank, in the order of ranks; the same on all ranks.
  void setElementsPerRank(std::vector<size_t> elementsPerRank) {
    GLOO_ENFORCE_EQ(elementsPerRank.size(), static_cast<size_t>(context_->size));
    elementsPerRank_ = std::move(elementsPerRank);
  }

  void setReduceFunction(Func fn) {
    reduce_ = std::move(fn);
  }

  /// The most bytes of a message; the same on all ranks.
  void setMaxSegmentSize(size_t maxSegmentSize) {
    maxSegmentSize_ = maxSegmentSize;
  }

 protected:
  /// Bytes of a message, unless the caller sets a limit.
  static constexpr size_t kMaxSegmentSize = 1024 * 1024;

  detail::MemoryList in_;
  detail::Memory out_;
  std::vector<size_t> elementsPerRank_;
  size_t elementSize_ = 0;
  Func reduce_;
  size_t maxSegmentSize_ = kMaxSegmentSize;

  friend void reduce_scatter(ReduceScatterOptions&);
};

/// Throws EnforceNotMet if the options are wrong, IoException if the timeout expires or a rank is lost, and what the
/// reduction function throws.
inline void reduce_scatter(ReduceScatterOptions& opts) {
  GLOO_ENFORCE(opts.elementSize_ > 0, "reduce_scatter needs an output");
  GLOO_ENFORCE(opts.reduce_ != nullptr, "reduce_scatter needs a reduction function");
  GLOO_ENFORCE(opts.out_, "reduce_scatter needs an output");
  const size_t size = static_cast<size_t>(opts.context_->size);
  const bool inPlace = opts.in_.size() == 0;
  const size_t elements = (inPlace ? opts.out_.bytes() : opts.in_.bytes()) / opts.elementSize_;
  std::vector<size_t> counts = opts.elementsPerRank_;
  if (counts.empty()) {
    GLOO_ENFORCE_EQ(elements % size, size_t{0});
    counts.assign(size, elements / size);
  }
  GLOO_ENFORCE_EQ(detail::total(counts), elements);
  opts.in_.enforce_bytes(elements * opts.elementSize_);
  if (!inPlace) {
    GLOO_ENFORCE_EQ(opts.out_.bytes(), counts[static_cast<size_t>(opts.context_->rank)] * opts.elementSize_);
  }

  detail::Call call(*opts.context_, opts.tag_, opts.timeout_);
  call.recv_counts = counts.data();
  call.num_counts = counts.size();
  call.max_segment_bytes = detail::segment_bytes(opts.maxSegmentSize_, opts.kMaxSegmentSize, opts.elementSize_);
  call.set_inputs(opts.in_.pointers());
  call.set_output(opts.out_);
  const detail::Kernel kernel = detail::kernel_of(opts.reduce_, opts.elementSize_);
  detail::run_reduction(call, GLOO_RS_REDUCE_SCATTER, opts.elementSize_, kernel, opts.reduce_);
}

/// Combines the `count` elements at all pointers of all ranks, as an algorithm. `recvElems` has the number of elements
/// of the result for each rank, in the order of ranks; their sum is at most `count`. All pointers of a rank get its
/// elements at their start; the rest of them is unspecified. `fn` must commute, and outlive the object.
template <typename T>
class ReduceScatterHalvingDoubling : public detail::ReducingAlgorithm<T> {
 public:
  ReduceScatterHalvingDoubling(
      const std::shared_ptr<Context>& context,
      const std::vector<T*>& ptrs,
      const int count,
      const std::vector<int>& recvElems,
      const ReductionFunction<T>* fn = ReductionFunction<T>::sum)
      : detail::ReducingAlgorithm<T>(context, ptrs, count, fn),
        counts_(detail::bytes_per_rank(recvElems, 1, *context)),
        tag_(detail::next_tag(*context)) {
    GLOO_ENFORCE_LE(detail::total(counts_), this->count_);
  }

  void run() override {
    if (this->count_ == 0) {
      return;
    }
    this->reduce_pointers();
    detail::Call call(*this->context_, tag_, detail::chosen_timeout(*this->context_));
    call.algorithm = "halving_doubling";
    call.recv_counts = counts_.data();
    call.num_counts = counts_.size();
    const std::vector<void*> first{this->pointers_[0]};
    call.set_outputs(first);
    detail::run_reduction(call, GLOO_RS_REDUCE_SCATTER, sizeof(T), this->kernel_, this->function_);
    detail::copy_first(this->pointers_, counts_[static_cast<size_t>(this->contextRank_)] * sizeof(T));
  }

 private:
  const std::vector<size_t> counts_;
  const uint64_t tag_;
};

}  // namespace gloo_rs_api
}  // namespace gloo
