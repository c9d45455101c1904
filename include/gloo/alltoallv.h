/*
 * Exchanges blocks of elements between each two ranks, with a number of elements for each block.
 */
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "gloo/context.h"
#include "gloo/detail/collective.h"
#include "gloo/transport/unbound_buffer.h"

namespace gloo {
inline namespace gloo_rs_api {

/// Options of alltoallv. Block j of rank i's input goes to block i of rank j's output. Blocks are in the order of
/// ranks, and `elementsPerRank[r]` is the length of block r. The numbers may be of any integer type.
class AlltoallvOptions : public detail::CollectiveOptions {
 public:
  explicit AlltoallvOptions(const std::shared_ptr<Context>& context) : CollectiveOptions(context) {}

  // The forms for int64_t also take lists in braces, from which the type of the numbers cannot be deduced.

  template <typename T>
  void setInput(std::unique_ptr<transport::UnboundBuffer> buffer, std::vector<int64_t> elementsPerRank) {
    set<T>(in_, inBytesPerRank_, std::move(buffer), elementsPerRank);
  }

  template <typename T, typename N, typename = std::enable_if_t<std::is_integral<N>::value>>
  void setInput(std::unique_ptr<transport::UnboundBuffer> buffer, std::vector<N> elementsPerRank) {
    set<T>(in_, inBytesPerRank_, std::move(buffer), elementsPerRank);
  }

  template <typename T>
  void setInput(T* pointer, std::vector<int64_t> elementsPerRank) {
    set<T>(in_, inBytesPerRank_, pointer, elementsPerRank);
  }

  template <typename T, typename N, typename = std::enable_if_t<std::is_integral<N>::value>>
  void setInput(T* pointer, std::vector<N> elementsPerRank) {
    set<T>(in_, inBytesPerRank_, pointer, elementsPerRank);
  }

  template <typename T>
  void setOutput(std::unique_ptr<transport::UnboundBuffer> buffer, std::vector<int64_t> elementsPerRank) {
    set<T>(out_, outBytesPerRank_, std::move(buffer), elementsPerRank);
  }

  template <typename T, typename N, typename = std::enable_if_t<std::is_integral<N>::value>>
  void setOutput(std::unique_ptr<transport::UnboundBuffer> buffer, std::vector<N> elementsPerRank) {
    set<T>(out_, outBytesPerRank_, std::move(buffer), elementsPerRank);
  }

  template <typename T>
  void setOutput(T* pointer, std::vector<int64_t> elementsPerRank) {
    set<T>(out_, outBytesPerRank_, pointer, elementsPerRank);
  }

  template <typename T, typename N, typename = std::enable_if_t<std::is_integral<N>::value>>
  void setOutput(T* pointer, std::vector<N> elementsPerRank) {
    set<T>(out_, outBytesPerRank_, pointer, elementsPerRank);
  }

  /// Throws EnforceNotMet for zero, as Gloo's does.
  void setTimeout(std::chrono::milliseconds timeout) {
    GLOO_ENFORCE_GT(timeout.count(), 0);
    CollectiveOptions::setTimeout(timeout);
  }

 protected:
  detail::Memory in_;
  detail::Memory out_;
  std::vector<size_t> inBytesPerRank_;
  std::vector<size_t> outBytesPerRank_;
  size_t elementSize_ = 0;

  friend void alltoallv(AlltoallvOptions&);

 private:
  template <typename T, typename N>
  void set(
      detail::Memory& memory,
      std::vector<size_t>& bytes,
      std::unique_ptr<transport::UnboundBuffer> buffer,
      const std::vector<N>& elements) {
    detail::set_element_size(elementSize_, sizeof(T));
    bytes = detail::bytes_per_rank(elements, sizeof(T), *context_);
    memory = detail::Memory(std::move(buffer));
    GLOO_ENFORCE_EQ(detail::total(bytes), memory.bytes());
  }

  template <typename T, typename N>
  void set(detail::Memory& memory, std::vector<size_t>& bytes, T* pointer, const std::vector<N>& elements) {
    detail::set_element_size(elementSize_, sizeof(T));
    bytes = detail::bytes_per_rank(elements, sizeof(T), *context_);
    memory = detail::Memory(pointer, detail::total(bytes) / sizeof(T));
  }
};

/// Throws EnforceNotMet if the options are wrong, IoException if the timeout expires or a rank is lost.
inline void alltoallv(AlltoallvOptions& opts) {
  GLOO_ENFORCE(opts.elementSize_ > 0, "alltoallv needs an input");
  GLOO_ENFORCE(opts.in_, "alltoallv needs an input");
  GLOO_ENFORCE(opts.out_, "alltoallv needs an output");
  const size_t rank = static_cast<size_t>(opts.context_->rank);
  GLOO_ENFORCE_EQ(opts.inBytesPerRank_[rank], opts.outBytesPerRank_[rank]);

  detail::Call call(*opts.context_, opts.tag_, opts.timeout_);
  call.send_counts = opts.inBytesPerRank_.data();
  call.recv_counts = opts.outBytesPerRank_.data();
  call.num_counts = opts.inBytesPerRank_.size();
  call.set_input(opts.in_);
  call.set_output(opts.out_);
  call.run(GLOO_RS_ALLTOALLV);
}

}  // namespace gloo_rs_api
}  // namespace gloo
