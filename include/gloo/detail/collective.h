/*
 * What the headers of the collectives share: the memory of inputs and outputs, the common options, and the call itself.
 */
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "gloo/common/logging.h"
#include "gloo/context.h"
#include "gloo/detail/c_api.h"
#include "gloo/transport/unbound_buffer.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace detail {

/// Some memory for the C functions, to which NULL means that there is none, but not to Gloo's options.
inline void* not_null(void* pointer, size_t bytes) {
  alignas(16) static char empty[16];
  return pointer == nullptr && bytes == 0 ? empty : pointer;
}

/// A pointer out of a list of buffers: unlike a single one, it is needed on every rank. Throws EnforceNotMet if it is
/// NULL, unless `bytes` is 0; then it is replaced as not_null does.
inline void* listed(void* pointer, size_t bytes) {
  GLOO_ENFORCE(pointer != nullptr || bytes == 0, "a pointer in the list is NULL, but there are ", bytes, " bytes");
  return not_null(pointer, bytes);
}

/// The bytes of `elements` elements of `size` bytes. Throws EnforceNotMet if no memory can have so many.
inline size_t bytes_of(size_t elements, size_t size) {
  const bool fits = size == 0 || elements <= std::numeric_limits<size_t>::max() / size;
  GLOO_ENFORCE(fits, elements, " elements of ", size, " bytes exceed the address space");
  return elements * size;
}

template <typename T>
size_t bytes_of(size_t elements) {
  return bytes_of(elements, sizeof(T));
}

/// The pointer of a caller's input, which may be const: inputs are only read.
template <typename T>
void* untyped(T* pointer) {
  return const_cast<std::remove_const_t<T>*>(pointer);
}

/// The memory of one input or output. There is none by default.
class Memory {
 public:
  Memory() = default;

  template <typename T>
  Memory(T* pointer, size_t elements)
      : pointer_(not_null(untyped(pointer), bytes_of<T>(elements))), bytes_(elements * sizeof(T)) {}

  /// The memory of a buffer that the caller hands over; none if it is NULL.
  explicit Memory(std::unique_ptr<transport::UnboundBuffer> buffer) : buffer_(std::move(buffer)) {
    if (buffer_) {
      pointer_ = not_null(buffer_->ptr, buffer_->size);
      bytes_ = buffer_->size;
    }
  }

  explicit operator bool() const {
    return pointer_ != nullptr || bytes_ != 0;
  }

  char* pointer() const {
    return static_cast<char*>(pointer_);
  }

  size_t bytes() const {
    return bytes_;
  }

 private:
  void* pointer_ = nullptr;
  size_t bytes_ = 0;
  std::unique_ptr<transport::UnboundBuffer> buffer_;
};

/// The memory of several inputs or outputs of equal length. There is none by default.
class MemoryList {
 public:
  MemoryList() = default;

  template <typename T>
  MemoryList(T* const* pointers, size_t length, size_t elements) : bytes_(bytes_of<T>(elements)) {
    GLOO_ENFORCE(pointers != nullptr || length == 0, "the list of ", length, " pointers is NULL");
    pointers_.reserve(length);
    for (size_t i = 0; i < length; i++) {
      pointers_.push_back(listed(untyped(pointers[i]), bytes_));
    }
  }

  /// The memory of buffers that the caller hands over. Throws EnforceNotMet if one of them is NULL.
  explicit MemoryList(std::vector<std::unique_ptr<transport::UnboundBuffer>> buffers) : buffers_(std::move(buffers)) {
    pointers_.reserve(buffers_.size());
    for (const auto& buffer : buffers_) {
      GLOO_ENFORCE(buffer != nullptr, "a buffer in the list is NULL");
      pointers_.push_back(not_null(buffer->ptr, buffer->size));
    }
    bytes_ = buffers_.empty() ? 0 : buffers_[0]->size;
  }

  /// Throws EnforceNotMet unless each has `bytes` bytes.
  void enforce_bytes(size_t bytes) const {
    if (!pointers_.empty()) {
      GLOO_ENFORCE_EQ(bytes_, bytes);
    }
    for (const auto& buffer : buffers_) {
      GLOO_ENFORCE_EQ(buffer->size, bytes);
    }
  }

  /// Bytes of the first.
  size_t bytes() const {
    return bytes_;
  }

  const std::vector<void*>& pointers() const {
    return pointers_;
  }

  size_t size() const {
    return pointers_.size();
  }

 private:
  std::vector<void*> pointers_;
  size_t bytes_ = 0;
  std::vector<std::unique_ptr<transport::UnboundBuffer>> buffers_;
};

/// The list of one buffer.
inline std::vector<std::unique_ptr<transport::UnboundBuffer>> list_of(std::unique_ptr<transport::UnboundBuffer> buffer) {
  std::vector<std::unique_ptr<transport::UnboundBuffer>> list;
  list.push_back(std::move(buffer));
  return list;
}

/// Whether a pointer is in both lists.
inline bool have_common(const std::vector<void*>& a, const std::vector<void*>& b) {
  return std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end();
}

/// Copies the memory of the first pointer to that of the others.
inline void copy_first(const std::vector<void*>& pointers, size_t bytes) {
  for (void* pointer : pointers) {
    if (pointer != pointers[0] && bytes > 0) {
      std::memcpy(pointer, pointers[0], bytes);
    }
  }
}

/// One call of a collective. It moves bytes, so that ranks agree about a call whatever the types of their elements are,
/// as in Gloo; reductions set their types.
class Call : public gloo_rs_collective_options_t {
 public:
  Call(const Context& context, uint64_t slot, std::chrono::milliseconds timeout) : context_(context) {
    gloo_rs_collective_options_init(this, sizeof(gloo_rs_collective_options_t));
    tag = slot;
    timeout_ms = detail::timeout_ms(timeout);
    data_type = GLOO_RS_UINT8;
  }

  // The lists of one buffer point into the object.
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// `memory` is the only input; there is no input if it is none.
  void set_input(const Memory& memory) {
    if (memory) {
      input_ = memory.pointer();
      inputs = &input_;
      num_inputs = 1;
    }
  }

  void set_inputs(const std::vector<void*>& pointers) {
    inputs = pointers.data();
    num_inputs = pointers.size();
  }

  /// `memory` is the only output; there is no output if it is none.
  void set_output(const Memory& memory) {
    if (memory) {
      output_ = memory.pointer();
      outputs = &output_;
      num_outputs = 1;
    }
  }

  void set_outputs(const std::vector<void*>& pointers) {
    outputs = pointers.data();
    num_outputs = pointers.size();
  }

  /// The status of the call.
  gloo_rs_status_t status(gloo_rs_collective_t kind) const {
    return gloo_rs_collective(handle(context_), kind, this);
  }

  /// Makes the call. Throws if it fails.
  void run(gloo_rs_collective_t kind) const {
    check(status(kind));
  }

  /// Makes a call in which the root only sends, and has the root wait until all ranks have called, as in Gloo, where a
  /// send waits for its receive. The other ranks do not wait. Throws if it fails.
  void run_until_all_called(gloo_rs_collective_t kind) const {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point began = Clock::now();
    run(kind);
    char called = 1;
    char all = 0;
    Call meeting(context_, kMeetingTags + tag, transport::kUnsetTimeout);
    // A timeout that the program has set counts for both calls, the default for each.
    meeting.timeout_ms = timeout_ms;
    if (timeout_ms > 0 && timeout_ms != GLOO_RS_TIMEOUT_INFINITE) {
      const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began).count();
      meeting.timeout_ms = std::max<int64_t>(timeout_ms - passed, 0);
    }
    meeting.root = root;
    meeting.op = GLOO_RS_MAX;
    meeting.count = 1;
    meeting.set_input(Memory(&called, 1));
    meeting.set_output(Memory(&all, 1));
    meeting.run(GLOO_RS_REDUCE);
  }

 private:
  /// Above the tags of options, and the slots of objects.
  static constexpr uint64_t kMeetingTags = uint64_t{1} << 33;

  const Context& context_;
  const void* input_ = nullptr;
  void* output_ = nullptr;
};

/// The limit on messages for the C functions: their default if the caller has not set one, and at least an element.
inline size_t segment_bytes(size_t limit, size_t unset, size_t element_size) {
  return limit == unset ? 0 : std::max(limit, element_size);
}

/// Throws EnforceNotMet unless `root` is a rank of `context`.
inline void enforce_root(int root, const Context& context) {
  GLOO_ENFORCE(root >= 0 && root < context.size, "root ", root, " is not one of the ", context.size, " ranks");
}

/// Sets `own` to `size`, or throws EnforceNotMet if the other side of the call has elements of another size.
inline void set_element_size(size_t& own, size_t size) {
  if (own != 0) {
    GLOO_ENFORCE_EQ(own, size, "bytes of an element differ between input and output");
  }
  own = size;
}

/// The bytes of each rank's elements. Throws EnforceNotMet unless there is a number for each rank.
template <typename N>
std::vector<size_t> bytes_per_rank(const std::vector<N>& elements, size_t element_size, const Context& context) {
  GLOO_ENFORCE_EQ(elements.size(), static_cast<size_t>(context.size));
  std::vector<size_t> bytes;
  bytes.reserve(elements.size());
  for (const N n : elements) {
    if constexpr (std::is_signed<N>::value) {
      GLOO_ENFORCE_GE(n, 0, "elements of a rank");
    }
    bytes.push_back(bytes_of(static_cast<size_t>(n), element_size));
  }
  return bytes;
}

/// Throws EnforceNotMet if no memory can have so many bytes.
inline size_t total(const std::vector<size_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), size_t{0}, [](size_t sum, size_t number) {
    GLOO_ENFORCE_LE(number, std::numeric_limits<size_t>::max() - sum, "the elements of all ranks exceed the address space");
    return sum + number;
  });
}

/// Options that all collectives have.
class CollectiveOptions {
 public:
  /// Distinguishes calls of one collective that run at the same time; the same on all ranks.
  void setTag(uint32_t tag) {
    tag_ = tag;
  }

  /// The timeout of the whole call, instead of the context's; zero for none.
  void setTimeout(std::chrono::milliseconds timeout) {
    timeout_ = timeout;
  }

 protected:
  explicit CollectiveOptions(const std::shared_ptr<Context>& context) : context_(context), timeout_(chosen_timeout(*context)) {}

  std::shared_ptr<Context> context_;
  std::chrono::milliseconds timeout_;
  uint32_t tag_ = 0;
};

/// Options with one input and one output, of elements of type T.
class BufferOptions : public CollectiveOptions {
 public:
  template <typename T>
  void setInput(std::unique_ptr<transport::UnboundBuffer> buffer) {
    elementSize_ = sizeof(T);
    in_ = Memory(std::move(buffer));
  }

  template <typename T>
  void setInput(T* pointer, size_t elements) {
    elementSize_ = sizeof(T);
    in_ = Memory(pointer, elements);
  }

  template <typename T>
  void setOutput(std::unique_ptr<transport::UnboundBuffer> buffer) {
    elementSize_ = sizeof(T);
    out_ = Memory(std::move(buffer));
  }

  template <typename T>
  void setOutput(T* pointer, size_t elements) {
    elementSize_ = sizeof(T);
    out_ = Memory(pointer, elements);
  }

 protected:
  using CollectiveOptions::CollectiveOptions;

  Memory in_;
  Memory out_;
  size_t elementSize_ = 0;
};

/// Options with one input, and one output of a number of elements for each rank, in the order of ranks.
class CountedBufferOptions : public CollectiveOptions {
 public:
  template <typename T>
  void setInput(std::unique_ptr<transport::UnboundBuffer> buffer) {
    set_element_size(elementSize_, sizeof(T));
    in_ = Memory(std::move(buffer));
  }

  template <typename T>
  void setInput(T* pointer, size_t elements) {
    set_element_size(elementSize_, sizeof(T));
    in_ = Memory(pointer, elements);
  }

  template <typename T>
  void setOutput(std::unique_ptr<transport::UnboundBuffer> buffer, std::vector<size_t> elementsPerRank) {
    set_element_size(elementSize_, sizeof(T));
    bytesPerRank_ = bytes_per_rank(elementsPerRank, sizeof(T), *context_);
    out_ = Memory(std::move(buffer));
    GLOO_ENFORCE_EQ(total(bytesPerRank_), out_.bytes());
  }

  template <typename T>
  void setOutput(T* pointer, std::vector<size_t> elementsPerRank) {
    set_element_size(elementSize_, sizeof(T));
    bytesPerRank_ = bytes_per_rank(elementsPerRank, sizeof(T), *context_);
    out_ = Memory(pointer, total(bytesPerRank_) / sizeof(T));
  }

 protected:
  using CollectiveOptions::CollectiveOptions;

  Memory in_;
  Memory out_;
  std::vector<size_t> bytesPerRank_;
  size_t elementSize_ = 0;
};

}  // namespace detail
}  // namespace gloo_rs_api
}  // namespace gloo
