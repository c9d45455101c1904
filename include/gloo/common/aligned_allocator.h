/*
 * An allocator of aligned memory for containers.
 */
#pragma once

#include <cstddef>
#include <limits>
#include <new>

namespace gloo {
inline namespace gloo_rs_api {

/// Bytes to which buffers are aligned, for vector instructions.
inline constexpr std::size_t kBufferAlignment = 32;

/// Memory that is aligned to `ALIGNMENT` bytes, a power of two.
template <typename T, int ALIGNMENT = kBufferAlignment>
class aligned_allocator {
  static_assert(ALIGNMENT > 0 && (ALIGNMENT & (ALIGNMENT - 1)) == 0, "the alignment is not a power of two");

 public:
  using value_type = T;
  using pointer = T*;
  using const_pointer = const T*;
  using reference = T&;
  using const_reference = const T&;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;

  template <typename Other>
  struct rebind {
    using other = aligned_allocator<Other, ALIGNMENT>;
  };

  aligned_allocator() noexcept = default;

  template <typename Other>
  aligned_allocator(const aligned_allocator<Other, ALIGNMENT>&) noexcept {}

  pointer allocate(size_type count) {
    if (count > std::numeric_limits<size_type>::max() / sizeof(T)) {
      throw std::bad_array_new_length();
    }
    return static_cast<pointer>(::operator new(count * sizeof(T), alignment));
  }

  void deallocate(pointer memory, size_type) noexcept {
    ::operator delete(memory, alignment);
  }

 private:
  static constexpr std::align_val_t alignment{ALIGNMENT < alignof(T) ? alignof(T) : std::size_t{ALIGNMENT}};
};

template <typename One, typename Other, int ALIGNMENT>
bool operator==(const aligned_allocator<One, ALIGNMENT>&, const aligned_allocator<Other, ALIGNMENT>&) noexcept {
  return true;
}

template <typename One, typename Other, int ALIGNMENT>
bool operator!=(const aligned_allocator<One, ALIGNMENT>&, const aligned_allocator<Other, ALIGNMENT>&) noexcept {
  return false;
}

}  // namespace gloo_rs_api
}  // namespace gloo
