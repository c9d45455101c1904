/*
 * How collectives combine elements: by a kernel of the library, or by a function of the caller.
 */
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gloo/algorithm.h"
#include "gloo/detail/collective.h"
#include "gloo/detail/kernels.h"
#include "gloo/math.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace detail {

/// `c[i] = a[i] op b[i]` for `n` elements; `c` may be `a` or `b`.
using ReduceFunction = std::function<void(void* c, const void* a, const void* b, size_t n)>;
using ReducePointer = void (*)(void*, const void*, const void*, size_t);

/// A kernel of the library; none by default.
struct Kernel {
  gloo_rs_data_type_t type = GLOO_RS_DATA_TYPE_UNSET;
  gloo_rs_op_t op = GLOO_RS_SUM;

  explicit operator bool() const {
    return type != GLOO_RS_DATA_TYPE_UNSET;
  }
};

template <typename T>
bool find_kernel(ReducePointer function, Kernel& kernel) {
  const auto is = [&](ReducePointer known, gloo_rs_op_t op) {
    if (function == known) {
      kernel = {data_type<T>(), op};
    }
    return function == known;
  };
  if constexpr (has_order_kernels<T>) {
    if (is(&::gloo::max<T>, GLOO_RS_MAX) || is(&::gloo::min<T>, GLOO_RS_MIN)) {
      return true;
    }
  }
  return is(&::gloo::sum<T>, GLOO_RS_SUM) || is(&::gloo::product<T>, GLOO_RS_PRODUCT);
}

/// Compares only with the functions of types of `element_size` bytes.
template <typename... Types>
Kernel find_kernel_of(ReducePointer function, size_t element_size) {
  Kernel kernel;
  (void)((sizeof(Types) == element_size && find_kernel<Types>(function, kernel)) || ...);
  return kernel;
}

/// The kernel for what `function` holds, if that is a reduction function of gloo/math.h for a type with kernels.
inline Kernel kernel_of(const ReduceFunction& function, size_t element_size) {
  const ReducePointer* pointer = function.target<ReducePointer>();
  if (pointer == nullptr) {
    return {};
  }
  return find_kernel_of<
      float, double, int, long, float16, unsigned char, signed char, long long, unsigned, unsigned long, unsigned long long,
      short, unsigned short, char, bool, std::complex<float>, std::complex<double>>(*pointer, element_size);
}

/// The kernel for `function`, if its elements have kernels and it is none of the caller's own.
template <typename T>
Kernel kernel_of(const ReductionFunction<T>& function) {
  if constexpr (has_kernels<T>) {
    switch (function.type()) {
      case SUM:
        return {data_type<T>(), GLOO_RS_SUM};
      case PRODUCT:
        return {data_type<T>(), GLOO_RS_PRODUCT};
      case MAX:
        return has_order_kernels<T> ? Kernel{data_type<T>(), GLOO_RS_MAX} : Kernel{};
      case MIN:
        return has_order_kernels<T> ? Kernel{data_type<T>(), GLOO_RS_MIN} : Kernel{};
      case CUSTOM:
        break;
    }
  }
  return {};
}

/// The function for options that does what `function` does.
template <typename T>
ReduceFunction untyped_function(const ReductionFunction<T>& function) {
  return [&function](void* into, const void* left, const void* right, size_t n) {
    // The operation commutes, as all that algorithms take.
    if (into == right) {
      std::swap(left, right);
    }
    if (into != left) {
      std::memcpy(into, left, n * sizeof(T));
    }
    function.call(static_cast<T*>(into), static_cast<const T*>(right), n);
  };
}

/// Callback of the C ABI for the ReduceFunction at `user`.
inline int32_t call_function(void* c, const void* a, const void* b, size_t n, void* user) noexcept {
  return keep_exceptions([&] {
    (*static_cast<const ReduceFunction*>(user))(c, a, b, n);
    return GLOO_RS_OK;
  });
}

/// Makes a call that combines elements of `element_size` bytes by `kernel`, or by `function` if there is no kernel. An
/// exception of the function comes out unchanged.
inline void run_reduction(
    Call& call, gloo_rs_collective_t kind, size_t element_size, Kernel kernel, const ReduceFunction& function) {
  if (kernel) {
    call.data_type = kernel.type;
    call.op = kernel.op;
  } else {
    call.data_type = GLOO_RS_DATA_TYPE_UNSET;
    call.element_bytes = element_size;
    call.function = call_function;
    call.user = const_cast<ReduceFunction*>(&function);
  }
  call.run(kind);
}

/// Combines `inputs` into `output`, of `elements` elements each, on this rank alone. `output` may be one of them.
inline void reduce_locally(
    void* output, const std::vector<void*>& inputs, size_t elements, size_t element_size, const ReduceFunction& function) {
  bool started = false;
  for (void* input : inputs) {
    started = started || input == output;
  }
  bool own = started;
  for (void* input : inputs) {
    if (own && input == output) {
      own = false;
    } else if (started) {
      function(output, output, input, elements);
    } else {
      std::memcpy(output, input, elements * element_size);
      started = true;
    }
  }
}

}  // namespace detail
}  // namespace gloo_rs_api
}  // namespace gloo
