/*
 * Slots of messages, and the 16-bit floating-point type.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "gloo/common/common.h"

namespace gloo {
inline namespace gloo_rs_api {

/// The first byte of the slots of each kind of collective. This library keeps the messages of collectives apart from
/// those of unbound buffers, so programs may use these prefixes for messages of their own.
constexpr uint8_t kGatherSlotPrefix = 1;
constexpr uint8_t kAllgatherSlotPrefix = 2;
constexpr uint8_t kReduceSlotPrefix = 3;
constexpr uint8_t kAllreduceSlotPrefix = 4;
constexpr uint8_t kScatterSlotPrefix = 5;
constexpr uint8_t kBroadcastSlotPrefix = 6;
constexpr uint8_t kBarrierSlotPrefix = 7;
constexpr uint8_t kAlltoallSlotPrefix = 8;

/// A slot of messages: from the highest bit on, 8 bits of prefix, 32 bits of tag, 16 unused bits, and 8 bits that `+`
/// counts in. Converts to the 64-bit number that buffers take.
class Slot {
 public:
  /// The first of the 256 slots of a prefix and a tag.
  static Slot build(uint8_t prefix, uint32_t tag) {
    return Slot(uint64_t{prefix} << 56 | uint64_t{tag} << 24, 0);
  }

  operator uint64_t() const {
    return base_ + delta_;
  }

  /// The slot that is `i` behind this one. Throws std::runtime_error if that is not one of the 256.
  Slot operator+(uint8_t i) const {
    const uint64_t delta = delta_ + i;
    if (delta > 0xff) {
      throw std::runtime_error("slot " + std::to_string(delta) + " of its prefix and tag: there are only 256");
    }
    return Slot(base_, delta);
  }

 protected:
  explicit Slot(uint64_t base, uint64_t delta) : base_(base), delta_(delta) {}

  const uint64_t base_;
  const uint64_t delta_;
};

struct float16;

/// Converts to binary16: to the nearest number, and of two to the one whose last bit is 0. Every NaN becomes 0x7fff.
float16 cpu_float2half_rn(float f);

/// Converts to binary32, which is exact.
float cpu_half2float(float16 h);

/// IEEE 754 binary16. Arithmetic converts to float and back. `==` compares the bits, as Gloo's does: NaN equals itself,
/// and 0 does not equal -0. The other comparisons compare the numbers.
struct alignas(2) float16 {
  /// The bits.
  uint16_t x;

  float16() : x(0) {}
  float16(const float16&) = default;
  float16& operator=(const float16&) = default;

  explicit float16(int value) : float16(fromFloat(static_cast<float>(value))) {}

  template <typename T, typename = std::enable_if_t<std::is_arithmetic<T>::value>>
  explicit float16(T value) : float16(fromFloat(static_cast<float>(value))) {}

  float16& operator=(const int& value) {
    return *this = float16(value);
  }

  template <typename T, typename = std::enable_if_t<std::is_arithmetic<T>::value>>
  float16& operator=(const T& value) {
    return *this = float16(value);
  }

  explicit operator float() const {
    return cpu_half2float(*this);
  }

  bool operator==(const float16& other) const {
    return x == other.x;
  }

  bool operator!=(const float16& other) const {
    return x != other.x;
  }

  template <typename T, typename = std::enable_if_t<std::is_arithmetic<T>::value>>
  bool operator==(const T& value) const {
    return x == float16(value).x;
  }

  template <typename T, typename = std::enable_if_t<std::is_arithmetic<T>::value>>
  bool operator!=(const T& value) const {
    return x != float16(value).x;
  }

  float16& operator+=(const float16& other) {
    return *this = cpu_float2half_rn(cpu_half2float(*this) + cpu_half2float(other));
  }

  float16& operator-=(const float16& other) {
    return *this = cpu_float2half_rn(cpu_half2float(*this) - cpu_half2float(other));
  }

  float16& operator*=(const float16& other) {
    return *this = cpu_float2half_rn(cpu_half2float(*this) * cpu_half2float(other));
  }

  float16& operator/=(const float16& other) {
    return *this = cpu_float2half_rn(cpu_half2float(*this) / cpu_half2float(other));
  }

 private:
  static float16 fromFloat(float value) {
    return cpu_float2half_rn(value);
  }
};

inline float16 operator+(const float16& a, const float16& b) {
  return float16(a) += b;
}

inline float16 operator-(const float16& a, const float16& b) {
  return float16(a) -= b;
}

inline float16 operator*(const float16& a, const float16& b) {
  return float16(a) *= b;
}

inline float16 operator/(const float16& a, const float16& b) {
  return float16(a) /= b;
}

inline bool operator<(const float16& a, const float16& b) {
  return cpu_half2float(a) < cpu_half2float(b);
}

inline bool operator<=(const float16& a, const float16& b) {
  return cpu_half2float(a) <= cpu_half2float(b);
}

inline bool operator>(const float16& a, const float16& b) {
  return cpu_half2float(a) > cpu_half2float(b);
}

inline bool operator>=(const float16& a, const float16& b) {
  return cpu_half2float(a) >= cpu_half2float(b);
}

inline std::ostream& operator<<(std::ostream& stream, const float16& value) {
  return stream << cpu_half2float(value);
}

inline float16 cpu_float2half_rn(float f) {
  static_assert(sizeof(float) == sizeof(uint32_t), "float is binary32");
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof(bits));
  const uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  float16 half;
  if (bits > 0x7f800000) {
    half.x = 0x7fff;
  } else if (bits >= 0x47800000) {
    // 2^16 and more.
    half.x = static_cast<uint16_t>(sign | 0x7c00);
  } else if (bits >= 0x38800000) {
    // 2^-14 and more. Rounding may carry into the exponent, and from the largest number to infinity.
    const uint32_t odd = bits >> 13 & 1;
    half.x = static_cast<uint16_t>(sign | (bits - 0x38000000 + 0xfff + odd) >> 13);
  } else if (bits >= 0x33000000) {
    // A subnormal number counts units of 2^-24.
    const uint32_t mantissa = (bits & 0x7fffff) | 0x800000;
    const uint32_t shift = 126 - (bits >> 23);
    const uint32_t units = mantissa >> shift;
    const uint32_t rest = mantissa - (units << shift);
    const uint32_t middle = uint32_t{1} << (shift - 1);
    const bool up = rest > middle || (rest == middle && units % 2 == 1);
    half.x = static_cast<uint16_t>(sign | (units + (up ? 1 : 0)));
  } else {
    half.x = static_cast<uint16_t>(sign);
  }
  return half;
}

inline float cpu_half2float(float16 h) {
  const uint32_t sign = uint32_t{h.x} << 16 & 0x80000000;
  const uint32_t exponent = h.x >> 10 & 0x1f;
  const uint32_t mantissa = h.x & 0x3ff;
  uint32_t bits;
  if (exponent == 0) {
    const float units = static_cast<float>(mantissa) / 16777216.0f;
    std::memcpy(&bits, &units, sizeof(bits));
  } else {
    bits = (exponent == 0x1f ? 0x7f800000 : (exponent + 112) << 23) | mantissa << 13;
  }
  bits |= sign;
  float f;
  std::memcpy(&f, &bits, sizeof(f));
  return f;
}

}  // namespace gloo_rs_api
}  // namespace gloo
