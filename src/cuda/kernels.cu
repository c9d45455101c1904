// Reductions in the memory of a GPU. src/cuda/kernels.rs names the kernels and says how they are launched;
// scripts/ptx.sh compiles this file to kernels.ptx.
//
// The bits of a result are those of src/reduce, where the rules are written: additions and multiplications are rounded
// one by one (no fused multiply-add), 16-bit floats are computed in float32 and rounded after each operation, a NaN
// becomes the single quiet NaN of the library in sums, products and quotients, and keeps its bits in minimum and
// maximum.
//
// Each kernel has a loop over vectors of 16 bytes and one over single elements, in strides of the grid: a grid of any
// number of threads is right. The result may be in the place of inputs, but may not overlap them partially: a thread
// reads an element or a vector of all inputs before it writes the result there, and nothing else.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;

// The most inputs of a kernel, and the most threads of a block: those of kernels.rs.
enum : u32 { MAX_INPUTS = 8, BLOCK_THREADS = 256 };

enum : u32 { VECTOR_BYTES = 16 };

// What a launch is about, the only parameter of every kernel: `Arguments` of kernels.rs.
struct Arguments {
  void *into;
  const void *inputs[MAX_INPUTS]; // `number` of them, one at least
  u64 count;                      // elements
  u64 divisor;                    // of kernels that divide, not 0
  // Of means: the parts of the two operands of step `k` in its result, of what the inputs before `k` have given, and of
  // input `k`.
  float shares[MAX_INPUTS][2];
  u32 number;
};

#define DEVICE static __device__ __forceinline__

// Rounded to nearest, ties to even, and never fused.
DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
DEVICE double add(double a, double b) { return __dadd_rn(a, b); }
DEVICE float subtract(float a, float b) { return __fsub_rn(a, b); }
DEVICE double subtract(double a, double b) { return __dsub_rn(a, b); }
DEVICE float multiply(float a, float b) { return __fmul_rn(a, b); }
DEVICE double multiply(double a, double b) { return __dmul_rn(a, b); }
DEVICE float quotient(float a, float b) { return __fdiv_rn(a, b); }
DEVICE double quotient(double a, double b) { return __ddiv_rn(a, b); }

// Element types. Floats are their bits: `Wide` is the type of their arithmetic, `of` rounds and makes the single NaN of
// any NaN, and `order` are the bits as those of an integer of sign and magnitude, below it those of infinity.

struct Float16 {
  typedef float Wide;
  typedef i32 Key;
  enum : u32 { INFINITY_KEY = 0x7C000000 };
  u16 bits;

  __device__ __forceinline__ u32 order() const { return u32(bits) << 16; }
  __device__ __forceinline__ float wide() const {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
    return wide;
  }
  DEVICE Float16 of(float wide) {
    u16 rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(wide));
    return {wide != wide ? u16(0x7E00) : rounded};
  }
};

struct Bfloat16 {
  typedef float Wide;
  typedef i32 Key;
  enum : u32 { INFINITY_KEY = 0x7F800000 };
  u16 bits;

  __device__ __forceinline__ u32 order() const { return u32(bits) << 16; }
  __device__ __forceinline__ float wide() const { return __uint_as_float(u32(bits) << 16); }
  DEVICE Bfloat16 of(float wide) {
    u32 exact = __float_as_uint(wide);
    u32 rounded = (exact + 0x7FFF + (exact >> 16 & 1)) >> 16;
    return {wide != wide ? u16(0x7FC0) : u16(rounded)};
  }
};

struct Float32 {
  typedef float Wide;
  typedef i32 Key;
  enum : u32 { INFINITY_KEY = 0x7F800000 };
  u32 bits;

  __device__ __forceinline__ u32 order() const { return bits; }
  __device__ __forceinline__ float wide() const { return __uint_as_float(bits); }
  DEVICE Float32 of(float wide) { return {wide != wide ? 0x7FC00000 : __float_as_uint(wide)}; }
};

struct Float64 {
  typedef double Wide;
  typedef i64 Key;
  enum : u64 { INFINITY_KEY = 0x7FF0000000000000 };
  u64 bits;

  __device__ __forceinline__ u64 order() const { return bits; }
  __device__ __forceinline__ double wide() const { return __longlong_as_double(bits); }
  DEVICE Float64 of(double wide) { return {wide != wide ? 0x7FF8000000000000 : u64(__double_as_longlong(wide))}; }
};

template <class F>
struct Complex {
  F real, imaginary;
};

// A byte; zero means false.
struct Bool {
  u8 byte;

  __device__ __forceinline__ bool is() const { return byte != 0; }
};

// The operations. `apply` combines what inputs 0 to k - 1 have given with an element of input k; `last` is applied to
// the result.

struct Reduction {
  template <class T>
  __device__ __forceinline__ T last(T result) const {
    return result;
  }
};

struct Sum : Reduction {
  template <class T>
  __device__ __forceinline__ T apply(T a, T b, u32) const {
    return combine(a, b, 0);
  }

 private:
  template <class F>
  static __device__ __forceinline__ auto combine(F a, F b, int) -> decltype(F::of(a.wide())) {
    return F::of(add(a.wide(), b.wide()));
  }
  template <class T>
  static __device__ __forceinline__ T combine(T a, T b, long) {
    return T(a + b);
  }
};

struct Product : Reduction {
  template <class T>
  __device__ __forceinline__ T apply(T a, T b, u32) const {
    return combine(a, b, 0);
  }

 private:
  template <class F>
  static __device__ __forceinline__ auto combine(F a, F b, int) -> decltype(F::of(a.wide())) {
    return F::of(multiply(a.wide(), b.wide()));
  }
  template <class F>
  static __device__ __forceinline__ Complex<F> combine(Complex<F> a, Complex<F> b, int) {
    auto real = subtract(multiply(a.real.wide(), b.real.wide()), multiply(a.imaginary.wide(), b.imaginary.wide()));
    auto imaginary = add(multiply(a.real.wide(), b.imaginary.wide()), multiply(a.imaginary.wide(), b.real.wide()));
    return {F::of(real), F::of(imaginary)};
  }
  template <class T>
  static __device__ __forceinline__ T combine(T a, T b, long) {
    return T(1u * a * b); // Two of 16 bits would be promoted to `int`, where overflow is undefined.
  }
};

// Minimum (`SIGN` 1) and maximum (-1). Floats by comparing their bits as integers: sign and magnitude become two's
// complement, so that -0 is below +0, and a wrapping addition joins the NaNs, which are at both ends, at the end that
// wins. Of two NaNs the left one wins.
template <int SIGN>
struct Extremum : Reduction {
  template <class T>
  __device__ __forceinline__ T apply(T left, T right, u32) const {
    return combine(left, right, 0);
  }

 private:
  template <class F, class Key = typename F::Key>
  static __device__ __forceinline__ F combine(F left, F right, int) {
    typedef decltype(left.order()) Bits;
    const Bits HIGHEST = ~Bits(0) >> 1;
    const Bits NANS = HIGHEST - F::INFINITY_KEY;
    auto key = [=](F value) {
      Bits bits = value.order();
      Bits twos_complement = bits ^ (Bits(Key(bits) >> (8 * sizeof bits - 1)) & HIGHEST);
      return Key(SIGN > 0 ? twos_complement + NANS : twos_complement - NANS);
    };
    Key first = key(left), second = key(right);
    bool is_number = SIGN > 0 ? first >= Key(HIGHEST + 1 + 2 * NANS) : first <= Key(HIGHEST - 2 * NANS);
    return is_number && (SIGN > 0 ? second < first : second > first) ? right : left;
  }
  template <class T>
  static __device__ __forceinline__ T combine(T left, T right, long) {
    return (SIGN > 0 ? right < left : right > left) ? right : left;
  }
};
typedef Extremum<1> Min;
typedef Extremum<-1> Max;

struct And : Reduction {
  template <class T>
  __device__ __forceinline__ T apply(T a, T b, u32) const {
    return T(a & b);
  }
  __device__ __forceinline__ Bool apply(Bool a, Bool b, u32) const { return {u8(a.is() & b.is())}; }
};

struct Or : Reduction {
  template <class T>
  __device__ __forceinline__ T apply(T a, T b, u32) const {
    return T(a | b);
  }
  __device__ __forceinline__ Bool apply(Bool a, Bool b, u32) const { return {u8(a.is() | b.is())}; }
};

struct Xor : Reduction {
  template <class T>
  __device__ __forceinline__ T apply(T a, T b, u32) const {
    return T(a ^ b);
  }
  __device__ __forceinline__ Bool apply(Bool a, Bool b, u32) const { return {u8(a.is() != b.is())}; }
};

// The mean of operands that are means themselves: src/reduce/mean.rs.
struct Mean : Reduction {
  const Arguments &arguments;

  __device__ __forceinline__ explicit Mean(const Arguments &arguments) : arguments(arguments) {}
  __device__ __forceinline__ Float16 apply(Float16 a, Float16 b, u32 k) const {
    const float *shares = arguments.shares[k];
    return Float16::of(add(multiply(a.wide(), shares[0]), multiply(b.wide(), shares[1])));
  }
};

// Division of a single input. Integers are truncated towards zero.
struct Divide {
  u64 divisor;

  template <class T>
  __device__ __forceinline__ T last(T value) const {
    return by(value, 0);
  }

 private:
  template <class F>
  __device__ __forceinline__ auto by(F value, int) const -> decltype(F::of(value.wide())) {
    return F::of(quotient(value.wide(), typename F::Wide(divisor)));
  }
  // Magnitudes, because the divisor may exceed the range of a signed type.
  template <class T>
  __device__ __forceinline__ T by(T value, long) const {
    constexpr bool IS_SIGNED = T(-1) < T(1);
    bool is_negative = IS_SIGNED && i64(value) < 0;
    u64 magnitude = is_negative ? 0 - u64(value) : u64(value);
    if constexpr (sizeof value == 8) {
      magnitude /= divisor;
    } else {
      magnitude = divisor >> 32 ? 0 : u32(magnitude) / u32(divisor);
    }
    return T(is_negative ? 0 - magnitude : magnitude);
  }
};

// `into[i] = (inputs[0][i] op inputs[1][i]) op ...`; a single input is copied, or divided.
template <class T, u32 MOST = MAX_INPUTS, class Op>
DEVICE void reduce(const Op &op, const Arguments &arguments) {
  constexpr u32 LANES = VECTOR_BYTES / sizeof(T);
  union Vector {
    uint4 words;
    T at[LANES];
  };
  T *into = (T *)arguments.into;
  auto input = [&](u32 k) { return (const T *)arguments.inputs[k]; };
  u32 number = MOST == 1 ? 1 : arguments.number;
  u64 count = arguments.count;
  u64 first = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  u64 stride = u64(gridDim.x) * blockDim.x;

  // Vectors begin at a multiple of their bytes in the result, and must do so in all inputs.
  u64 differences = 0;
#pragma unroll 1
  for (u32 k = 0; k < number; k++) differences |= u64(input(k)) ^ u64(into);
  u32 before = (0 - u32(u64(into))) % VECTOR_BYTES;
  u64 head = before / sizeof(T);
  u64 vectors = 0;
  if (differences % VECTOR_BYTES == 0 && before % sizeof(T) == 0 && head < count) vectors = (count - head) / LANES;

  for (u64 i = first; i < vectors; i += stride) {
    Vector result;
    result.words = ((const uint4 *)(input(0) + head))[i];
    if constexpr (MOST > 1) {
#pragma unroll 1
      for (u32 k = 1; k < number; k++) {
        Vector next;
        next.words = ((const uint4 *)(input(k) + head))[i];
#pragma unroll
        for (u32 lane = 0; lane < LANES; lane++) result.at[lane] = op.apply(result.at[lane], next.at[lane], k);
      }
    }
#pragma unroll
    for (u32 lane = 0; lane < LANES; lane++) result.at[lane] = op.last(result.at[lane]);
    ((uint4 *)(into + head))[i] = result.words;
  }
  // What is before and behind the vectors.
  for (u64 i = first; i < count - vectors * LANES; i += stride) {
    u64 at = i < head ? i : i + vectors * LANES;
    T result = input(0)[at];
    if constexpr (MOST > 1) {
#pragma unroll 1
      for (u32 k = 1; k < number; k++) result = op.apply(result, input(k)[at], k);
    }
    into[at] = op.last(result);
  }
}

#define KERNEL(NAME)                                          \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) \
  gloo_rs_##NAME(const __grid_constant__ Arguments arguments)
#define REDUCE(NAME, TYPE, OP) \
  KERNEL(reduce_##NAME) { reduce<TYPE>(OP(), arguments); }
#define DIVIDE(NAME, TYPE) \
  KERNEL(divide_##NAME) { reduce<TYPE, 1>(Divide{arguments.divisor}, arguments); }
#define EXTREMA(NAME, TYPE)     \
  REDUCE(NAME##_min, TYPE, Min) \
  REDUCE(NAME##_max, TYPE, Max)
#define FLOAT(NAME, TYPE)               \
  REDUCE(NAME##_sum, TYPE, Sum)         \
  REDUCE(NAME##_product, TYPE, Product) \
  EXTREMA(NAME, TYPE)                   \
  DIVIDE(NAME, TYPE)
// Sums, products and bits do not depend on the signedness.
#define INTEGERS(BITS)                           \
  REDUCE(uint##BITS##_sum, u##BITS, Sum)         \
  REDUCE(uint##BITS##_product, u##BITS, Product) \
  REDUCE(uint##BITS##_and, u##BITS, And)         \
  REDUCE(uint##BITS##_or, u##BITS, Or)           \
  REDUCE(uint##BITS##_xor, u##BITS, Xor)         \
  EXTREMA(uint##BITS, u##BITS)                   \
  EXTREMA(int##BITS, i##BITS)                    \
  DIVIDE(uint##BITS, u##BITS)                    \
  DIVIDE(int##BITS, i##BITS)

INTEGERS(8)
INTEGERS(16)
INTEGERS(32)
INTEGERS(64)
FLOAT(float16, Float16)
FLOAT(bfloat16, Bfloat16)
FLOAT(float32, Float32)
FLOAT(float64, Float64)
// Sums and quotients of complex numbers are those of their parts.
REDUCE(complex64_product, Complex<Float32>, Product)
REDUCE(complex128_product, Complex<Float64>, Product)
REDUCE(bool_and, Bool, And)
REDUCE(bool_or, Bool, Or)
REDUCE(bool_xor, Bool, Xor)
KERNEL(mean_float16) { reduce<Float16>(Mean(arguments), arguments); }
