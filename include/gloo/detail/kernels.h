/*
 * The library's kernels for the element types that it knows.
 */
#pragma once

#include <algorithm>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "gloo/detail/c_api.h"
#include "gloo/types.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace detail {

/// The number of an element type in the C ABI: GLOO_RS_DATA_TYPE_UNSET for types that the library does not know.
template <typename T>
constexpr gloo_rs_data_type_t data_type() {
  using std::is_same;
  if constexpr (is_same<T, bool>::value) {
    return GLOO_RS_BOOL;
  } else if constexpr (std::is_integral<T>::value && sizeof(T) == 1) {
    return std::is_signed<T>::value ? GLOO_RS_INT8 : GLOO_RS_UINT8;
  } else if constexpr (std::is_integral<T>::value && sizeof(T) == 2) {
    return std::is_signed<T>::value ? GLOO_RS_INT16 : GLOO_RS_UINT16;
  } else if constexpr (std::is_integral<T>::value && sizeof(T) == 4) {
    return std::is_signed<T>::value ? GLOO_RS_INT32 : GLOO_RS_UINT32;
  } else if constexpr (std::is_integral<T>::value && sizeof(T) == 8) {
    return std::is_signed<T>::value ? GLOO_RS_INT64 : GLOO_RS_UINT64;
  } else if constexpr (is_same<T, float16>::value) {
    return GLOO_RS_FLOAT16;
  } else if constexpr (is_same<T, float>::value) {
    return GLOO_RS_FLOAT32;
  } else if constexpr (is_same<T, double>::value) {
    return GLOO_RS_FLOAT64;
  } else if constexpr (is_same<T, std::complex<float>>::value) {
    return GLOO_RS_COMPLEX64;
  } else if constexpr (is_same<T, std::complex<double>>::value) {
    return GLOO_RS_COMPLEX128;
  } else {
    return GLOO_RS_DATA_TYPE_UNSET;
  }
}

/// Whether the library has kernels for sums and products of a type.
template <typename T>
constexpr bool has_kernels = data_type<T>() != GLOO_RS_DATA_TYPE_UNSET;

/// Whether the library has kernels for minima and maxima of a type.
template <typename T>
constexpr bool has_order_kernels = has_kernels<T> && data_type<T>() != GLOO_RS_COMPLEX64 && data_type<T>() != GLOO_RS_COMPLEX128;

/// `c[i] = a[i] op b[i]` for `n` elements of `size` bytes, as in a loop from the first element on: the memory may have
/// any alignment, and `c` may begin at or before `a` and `b`, or be disjoint from them. `op` must be commutative.
inline void combine(
    gloo_rs_op_t op, gloo_rs_data_type_t type, size_t size, void* c, const void* a, const void* b, size_t n) {
  if (c == b) {
    std::swap(a, b);
  }
  const size_t bytes = n * size;
  const auto address = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
  const auto disjoint = [&](const void* from) {
    return address(from) + bytes <= address(c) || address(c) + bytes <= address(from);
  };
  // No element has more than 16 bytes, so this is never more than types need.
  const uintptr_t misaligned = (address(c) | address(b)) % (size < 8 ? size : 8);
  if (misaligned == 0 && c == a && (b == c || disjoint(b))) {
    check(gloo_rs_reduce_local(b, c, n, type, op));
    return;
  }
  // In blocks that the first level of cache holds.
  constexpr size_t kBlockBytes = 8192;
  const bool direct = misaligned == 0 && disjoint(a) && disjoint(b);
  alignas(16) char left[kBlockBytes];
  alignas(16) char right[kBlockBytes];
  for (size_t done = 0; done < bytes;) {
    const size_t block = std::min(kBlockBytes, bytes - done);
    char* into = static_cast<char*>(c) + done;
    const char* from = static_cast<const char*>(b) + done;
    char* inout = direct ? into : left;
    std::memcpy(inout, static_cast<const char*>(a) + done, block);
    if (!direct) {
      std::memcpy(right, from, block);
    }
    check(gloo_rs_reduce_local(direct ? from : right, inout, block / size, type, op));
    if (!direct) {
      std::memcpy(into, left, block);
    }
    done += block;
  }
}

}  // namespace detail
}  // namespace gloo_rs_api
}  // namespace gloo
