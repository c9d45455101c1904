/*
 * Reduction functions, and arithmetic on sizes.
 *
 * `sum`, `product`, `max` and `min` combine `n` elements: `c[i] = a[i] op b[i]`, or `a[i] = a[i] op b[i]` in the form
 * with typed pointers. For bool, integers, float16, float, double and complex numbers, the library's vector kernels do
 * it: integers wrap, a NaN takes precedence over numbers, and bool stays true or false. Other types need `+`, `*` or
 * `<`. A collective that gets one of these functions for a type with kernels, also inside a std::function, runs as fast
 * as with the library's own operation.
 */
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gloo/detail/kernels.h"
#include "gloo/types.h"

namespace gloo {
inline namespace gloo_rs_api {

template <typename T>
void sum(void* c, const void* a, const void* b, size_t n) {
  if constexpr (detail::has_kernels<T>) {
    detail::combine(GLOO_RS_SUM, detail::data_type<T>(), sizeof(T), c, a, b, n);
  } else {
    T* into = static_cast<T*>(c);
    const T* left = static_cast<const T*>(a);
    const T* right = static_cast<const T*>(b);
    for (size_t i = 0; i < n; i++) {
      into[i] = static_cast<T>(left[i] + right[i]);
    }
  }
}

template <typename T>
void sum(T* a, const T* b, size_t n) {
  sum<T>(a, a, b, n);
}

template <typename T>
void product(void* c, const void* a, const void* b, size_t n) {
  if constexpr (detail::has_kernels<T>) {
    detail::combine(GLOO_RS_PRODUCT, detail::data_type<T>(), sizeof(T), c, a, b, n);
  } else {
    T* into = static_cast<T*>(c);
    const T* left = static_cast<const T*>(a);
    const T* right = static_cast<const T*>(b);
    for (size_t i = 0; i < n; i++) {
      into[i] = static_cast<T>(left[i] * right[i]);
    }
  }
}

template <typename T>
void product(T* a, const T* b, size_t n) {
  product<T>(a, a, b, n);
}

template <typename T>
void max(void* c, const void* a, const void* b, size_t n) {
  if constexpr (detail::has_order_kernels<T>) {
    detail::combine(GLOO_RS_MAX, detail::data_type<T>(), sizeof(T), c, a, b, n);
  } else {
    T* into = static_cast<T*>(c);
    const T* left = static_cast<const T*>(a);
    const T* right = static_cast<const T*>(b);
    for (size_t i = 0; i < n; i++) {
      into[i] = std::max(left[i], right[i]);
    }
  }
}

template <typename T>
void max(T* a, const T* b, size_t n) {
  max<T>(a, a, b, n);
}

template <typename T>
void min(void* c, const void* a, const void* b, size_t n) {
  if constexpr (detail::has_order_kernels<T>) {
    detail::combine(GLOO_RS_MIN, detail::data_type<T>(), sizeof(T), c, a, b, n);
  } else {
    T* into = static_cast<T*>(c);
    const T* left = static_cast<const T*>(a);
    const T* right = static_cast<const T*>(b);
    for (size_t i = 0; i < n; i++) {
      into[i] = std::min(left[i], right[i]);
    }
  }
}

template <typename T>
void min(T* a, const T* b, size_t n) {
  min<T>(a, a, b, n);
}

/// The least multiple of `multiple` that is at least `value`.
template <typename T>
T roundUp(T value, T multiple) {
  const T rest = static_cast<T>(value % multiple);
  return rest == 0 ? value : static_cast<T>(value + multiple - rest);
}

/// The least `n` with `2^n >= value`; 0 for 0.
inline uint32_t log2ceil(uint32_t value) {
  uint32_t n = 0;
  while (uint64_t{1} << n < value) {
    n++;
  }
  return n;
}

}  // namespace gloo_rs_api
}  // namespace gloo
