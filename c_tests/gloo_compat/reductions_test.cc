// float16, the reduction functions of gloo/math.h, and functions of the caller in collectives.

#include <array>
#include <atomic>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "gloo/allreduce.h"
#include "gloo/allreduce_ring.h"
#include "gloo/math.h"
#include "gloo/reduce.h"
#include "gloo/reduce_scatter.h"
#include "gloo/types.h"
#include "ranks.h"

namespace {

using gloo::float16;
using Pointer = std::shared_ptr<gloo::Context>;
using Function = void (*)(void*, const void*, const void*, size_t);

float16 half(uint16_t bits) {
  float16 value;
  value.x = bits;
  return value;
}

TEST(Float16, ConvertsExactlyAndBack) {
  const auto value = [](uint16_t bits) { return gloo::cpu_half2float(half(bits)); };
  EXPECT_EQ(value(0x0000), 0.0f);
  EXPECT_TRUE(std::signbit(value(0x8000)));
  EXPECT_EQ(value(0x3c00), 1.0f);
  EXPECT_EQ(value(0xc000), -2.0f);
  EXPECT_EQ(value(0x7bff), 65504.0f);
  EXPECT_EQ(value(0x0400), std::ldexp(1.0f, -14));
  EXPECT_EQ(value(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(value(0x83ff), -std::ldexp(1023.0f, -24));
  EXPECT_EQ(value(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(value(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(value(0x7c01)));
  for (uint32_t bits = 0; bits <= 0xffff; bits++) {
    const float f = value(static_cast<uint16_t>(bits));
    if (!std::isnan(f)) {
      ASSERT_EQ(gloo::cpu_float2half_rn(f).x, bits);
    }
  }
}

TEST(Float16, RoundsToTheNearestAndToEven) {
  const auto bits = [](float f) { return gloo::cpu_float2half_rn(f).x; };
  // Between each two neighbours: the middle goes to the even one, all else to the nearest.
  for (uint32_t low = 0; low < 0x7c00; low++) {
    const uint16_t even = static_cast<uint16_t>(low % 2 == 0 ? low : low + 1);
    const float a = gloo::cpu_half2float(half(static_cast<uint16_t>(low)));
    // Above the largest number is what the next exponent would begin with.
    const float b = low == 0x7bff ? 65536.0f : gloo::cpu_half2float(half(static_cast<uint16_t>(low + 1)));
    const float middle = a + (b - a) / 2;
    ASSERT_EQ(bits(middle), even);
    ASSERT_EQ(bits(-middle), even | 0x8000);
    ASSERT_EQ(bits(std::nextafter(middle, a)), low);
    ASSERT_EQ(bits(std::nextafter(middle, b)), low + 1);
  }
  EXPECT_EQ(bits(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(bits(-std::numeric_limits<float>::max()), 0xfc00);
  EXPECT_EQ(bits(std::numeric_limits<float>::quiet_NaN()), 0x7fff);
}

TEST(Float16, Operators) {
  enum Number { kSeven = 7 };
  EXPECT_EQ(sizeof(float16), 2u);
  EXPECT_EQ(alignof(float16), 2u);
  EXPECT_TRUE(std::is_trivially_copyable<float16>::value);
  EXPECT_EQ(float16().x, 0);
  EXPECT_EQ(float16(2).x, 0x4000);
  EXPECT_EQ(float16(2ul).x, 0x4000);
  EXPECT_EQ(float16(2ull).x, 0x4000);
  EXPECT_EQ(float16(2.0).x, 0x4000);
  EXPECT_EQ(float16(2.0f).x, 0x4000);
  EXPECT_EQ(float16(2l).x, 0x4000);
  EXPECT_EQ(float16(kSeven), 7);
  float16 a(6), b(4);
  EXPECT_EQ(a + b, 10);
  EXPECT_EQ(a - b, 2);
  EXPECT_EQ(a * b, 24);
  EXPECT_EQ(a / b, 1.5);
  a += b;
  a -= float16(1);
  a *= float16(2);
  a /= float16(3);
  EXPECT_EQ(a, 6ul);
  EXPECT_EQ(static_cast<float>(a), 6.0f);
  a = 5;
  EXPECT_EQ(a, 5);
  EXPECT_TRUE(a != b);
  EXPECT_TRUE(a != 4);
  EXPECT_TRUE(b < a);
  EXPECT_TRUE(b <= a);
  EXPECT_TRUE(a > b);
  EXPECT_TRUE(a >= b);
  EXPECT_FALSE(half(0x7fff) < a);
  EXPECT_EQ(std::max(a, b), a);
  std::ostringstream stream;
  stream << float16(-1.5);
  EXPECT_EQ(stream.str(), "-1.5");
}

TEST(Slot, HasAPrefixATagAndACount) {
  const gloo::Slot slot = gloo::Slot::build(gloo::kAlltoallSlotPrefix, 0xfedcba98);
  EXPECT_EQ(static_cast<uint64_t>(slot), 0x08fedcba98000000u);
  EXPECT_EQ(static_cast<uint64_t>(slot + uint8_t{255}), 0x08fedcba980000ffu);
  EXPECT_EQ(static_cast<uint64_t>(slot + uint8_t{1} + uint8_t{2}), 0x08fedcba98000003u);
  EXPECT_THROW(slot + uint8_t{255} + uint8_t{1}, std::runtime_error);
}

TEST(Math, Sizes) {
  EXPECT_EQ(gloo::roundUp(0, 8), 0);
  EXPECT_EQ(gloo::roundUp(1, 8), 8);
  EXPECT_EQ(gloo::roundUp(size_t{16}, size_t{8}), 16u);
  const std::vector<uint32_t> expected{0, 0, 1, 2, 2, 3, 3, 3, 3, 4};
  for (uint32_t value = 0; value < expected.size(); value++) {
    EXPECT_EQ(gloo::log2ceil(value), expected[value]);
  }
  EXPECT_EQ(gloo::log2ceil(0x80000000), 31u);
  EXPECT_EQ(gloo::log2ceil(0x80000001), 32u);
}

template <typename T>
class Math : public testing::Test {};

using Ordered = testing::Types<
    char, signed char, unsigned char, short, unsigned short, int, unsigned, long, unsigned long, long long, unsigned long long,
    float, double, float16>;
TYPED_TEST_SUITE(Math, Ordered);

TYPED_TEST(Math, CombinesInEveryPositionOfMemory) {
  using T = TypeParam;
  struct Operation {
    Function function;
    void (*inPlace)(T*, const T*, size_t);
    T (*expected)(T, T);
  };
  const std::vector<Operation> operations{
      {&gloo::sum<T>, &gloo::sum<T>, [](T a, T b) { return static_cast<T>(a + b); }},
      {&gloo::product<T>, &gloo::product<T>, [](T a, T b) { return static_cast<T>(a * b); }},
      {&gloo::max<T>, &gloo::max<T>, [](T a, T b) { return a < b ? b : a; }},
      {&gloo::min<T>, &gloo::min<T>, [](T a, T b) { return b < a ? b : a; }},
  };
  for (const Operation& operation : operations) {
    for (size_t n : {0, 1, 3, 17, 1000, 20000}) {
      std::vector<T> a(n), b(n), expected(n);
      for (size_t i = 0; i < n; i++) {
        a[i] = T(static_cast<double>(i % 7));
        b[i] = T(static_cast<double>(i % 5));
        expected[i] = operation.expected(a[i], b[i]);
      }
      std::vector<T> c(n);
      operation.function(c.data(), a.data(), b.data(), n);
      ASSERT_EQ(c, expected);
      c = a;
      operation.function(c.data(), c.data(), b.data(), n);
      ASSERT_EQ(c, expected) << "over the left operand";
      c = b;
      operation.function(c.data(), a.data(), c.data(), n);
      ASSERT_EQ(c, expected) << "over the right operand";
      c = a;
      operation.inPlace(c.data(), b.data(), n);
      ASSERT_EQ(c, expected) << "with typed pointers";
      // The operands are not aligned, and the result overlaps them from below.
      std::vector<unsigned char> bytes(2 * n * sizeof(T) + 2);
      unsigned char* left = bytes.data() + 1;
      unsigned char* right = left + n * sizeof(T);
      if (n > 0) {
        std::memcpy(left, a.data(), n * sizeof(T));
        std::memcpy(right, b.data(), n * sizeof(T));
        operation.function(left - 1, left, right, n);
        std::memcpy(c.data(), left - 1, n * sizeof(T));
        ASSERT_EQ(c, expected) << "not aligned";
      }
    }
  }
}

TEST(Math, BoolStaysTrueOrFalse) {
  const bool a[] = {false, false, true, true};
  const bool b[] = {false, true, false, true};
  bool c[4];
  gloo::sum<bool>(c, a, b, 4);
  EXPECT_EQ((std::vector<bool>(c, c + 4)), (std::vector<bool>{false, true, true, true}));
  gloo::product<bool>(c, a, b, 4);
  EXPECT_EQ((std::vector<bool>(c, c + 4)), (std::vector<bool>{false, false, false, true}));
  gloo::max<bool>(c, a, b, 4);
  EXPECT_EQ((std::vector<bool>(c, c + 4)), (std::vector<bool>{false, true, true, true}));
  gloo::min<bool>(c, a, b, 4);
  EXPECT_EQ((std::vector<bool>(c, c + 4)), (std::vector<bool>{false, false, false, true}));
}

TEST(Math, Complex) {
  const std::complex<double> a[] = {{1, 2}, {3, -4}};
  const std::complex<double> b[] = {{5, 6}, {0, 1}};
  std::complex<double> c[2];
  gloo::sum<std::complex<double>>(c, a, b, 2);
  EXPECT_EQ(c[0], std::complex<double>(6, 8));
  gloo::product<std::complex<double>>(c, a, b, 2);
  EXPECT_EQ(c[0], std::complex<double>(-7, 16));
  EXPECT_EQ(c[1], std::complex<double>(4, 3));
}

/// A bfloat16 of a program, as frameworks have them.
struct Brain {
  uint16_t bits = 0;
  Brain() = default;
  explicit Brain(float f) {
    uint32_t all;
    std::memcpy(&all, &f, sizeof(all));
    bits = static_cast<uint16_t>(all >> 16);
  }
  explicit operator float() const {
    const uint32_t all = uint32_t{bits} << 16;
    float f;
    std::memcpy(&f, &all, sizeof(f));
    return f;
  }
};
Brain operator+(Brain a, Brain b) {
  return Brain(static_cast<float>(a) + static_cast<float>(b));
}
Brain operator*(Brain a, Brain b) {
  return Brain(static_cast<float>(a) * static_cast<float>(b));
}
bool operator<(Brain a, Brain b) {
  return static_cast<float>(a) < static_cast<float>(b);
}

TEST(Math, TypesOfTheProgram) {
  const Brain a[] = {Brain(1), Brain(5)};
  const Brain b[] = {Brain(3), Brain(2)};
  Brain c[2];
  gloo::sum<Brain>(c, a, b, 2);
  EXPECT_EQ(static_cast<float>(c[0]), 4.0f);
  gloo::product<Brain>(c, a, b, 2);
  EXPECT_EQ(static_cast<float>(c[1]), 10.0f);
  gloo::max<Brain>(c, a, b, 2);
  EXPECT_EQ(static_cast<float>(c[0]), 3.0f);
  gloo::min<Brain>(c, a, b, 2);
  EXPECT_EQ(static_cast<float>(c[0]), 1.0f);
}

/// The sum over 3 ranks of `rank + 1`, by each collective that reduces, with a function of options for T.
template <typename T>
void check_reduced(const gloo::AllreduceOptions::Func& function, size_t count) {
  run_ranks(3, [&](const Pointer& context) {
    std::vector<T> data(count, T(static_cast<float>(context->rank + 1)));
    const auto all_six = [](const std::vector<T>& list) {
      for (const T& value : list) {
        ASSERT_EQ(static_cast<float>(value), 6.0f);
      }
    };
    std::vector<T> out(count);
    {
      gloo::AllreduceOptions opts(context);
      opts.setInput(data.data(), count);
      opts.setOutput(out.data(), count);
      opts.setReduceFunction(function);
      gloo::allreduce(opts);
    }
    all_six(out);
    std::vector<T> reduced(count);
    {
      gloo::ReduceOptions opts(context);
      opts.setInput(data.data(), count);
      opts.setOutput(reduced.data(), count);
      opts.setRoot(1);
      opts.setReduceFunction(function);
      gloo::reduce(opts);
    }
    if (context->rank == 1) {
      all_six(reduced);
    }
    std::vector<T> part(count / 3);
    {
      gloo::ReduceScatterOptions opts(context);
      opts.setInput(data.data(), count);
      opts.setOutput(part.data(), count / 3);
      opts.setReduceFunction(function);
      gloo::reduce_scatter(opts);
    }
    all_six(part);
  });
}

TEST(ReduceFunction, OfATypeOfTheProgram) {
  for (size_t count : {3, 3000, 300000}) {
    check_reduced<Brain>(static_cast<Function>(&gloo::sum<Brain>), count);
  }
}

TEST(ReduceFunction, OfTheProgram) {
  // Called with many elements at a time, so that the calls cost nothing.
  std::atomic<size_t> calls{0}, elements{0};
  check_reduced<float>(
      [&](void* c, const void* a, const void* b, size_t n) {
        calls++;
        elements += n;
        for (size_t i = 0; i < n; i++) {
          static_cast<float*>(c)[i] = static_cast<const float*>(a)[i] + static_cast<const float*>(b)[i];
        }
      },
      3000000);
  EXPECT_GE(elements.load(), 3u * 2 * 3000000);
  EXPECT_GE(elements.load() / calls.load(), 4096u);
}

TEST(ReduceFunction, ThatIsBuiltInIsRecognised) {
  using gloo::detail::kernel_of;
  const auto of = [](Function function, size_t size) { return kernel_of(gloo::AllreduceOptions::Func(function), size); };
  EXPECT_EQ(of(&gloo::sum<float>, 4).type, GLOO_RS_FLOAT32);
  EXPECT_EQ(of(&gloo::sum<float>, 4).op, GLOO_RS_SUM);
  EXPECT_EQ(of(&gloo::max<long>, 8).type, GLOO_RS_INT64);
  EXPECT_EQ(of(&gloo::max<long long>, 8).op, GLOO_RS_MAX);
  EXPECT_EQ(of(&gloo::min<float16>, 2).type, GLOO_RS_FLOAT16);
  EXPECT_EQ(of(&gloo::min<float16>, 2).op, GLOO_RS_MIN);
  EXPECT_EQ(of(&gloo::product<std::complex<double>>, 16).type, GLOO_RS_COMPLEX128);
  EXPECT_EQ(of(&gloo::product<bool>, 1).type, GLOO_RS_BOOL);
  // Elements of another size, types without kernels, and functions of the program.
  EXPECT_FALSE(of(&gloo::sum<float>, 1));
  EXPECT_FALSE(of(&gloo::sum<Brain>, 2));
  EXPECT_FALSE(kernel_of([](void*, const void*, const void*, size_t) {}, 4));
  EXPECT_FALSE(kernel_of(gloo::AllreduceOptions::Func(), 4));
}

/// An exception of a program.
struct Broken : std::runtime_error {
  explicit Broken(int number) : std::runtime_error("broken"), number(number) {}
  int number;
};

TEST(ReduceFunction, MayThrow) {
  std::atomic<int> thrown{0}, others{0};
  MeetingPoint connected(3);
  run_ranks(3, [&](const Pointer& context) {
    connected.wait();
    std::vector<float> data(1000);
    gloo::AllreduceOptions opts(context);
    opts.setOutput(data.data(), data.size());
    opts.setReduceFunction([](void*, const void*, const void*, size_t) { throw Broken(42); });
    try {
      gloo::allreduce(opts);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Broken& broken) {
      EXPECT_EQ(broken.number, 42);
      thrown++;
    } catch (const gloo::Exception&) {
      // A rank may hear of another one's failure before it calls its own function.
      others++;
    }
  });
  EXPECT_GE(thrown.load(), 1);
  EXPECT_EQ(thrown.load() + others.load(), 3);
}

TEST(ReduceFunction, OfAnAlgorithmMayThrow) {
  static const gloo::ReductionFunction<int32_t> function(
      gloo::CUSTOM, [](int32_t*, const int32_t*, size_t) { throw std::string("not even an exception"); });
  std::atomic<int> thrown{0};
  MeetingPoint connected(2);
  run_ranks(2, [&](const Pointer& context) {
    connected.wait();
    int32_t value = 1;
    gloo::AllreduceRing<int32_t> algorithm(context, {&value}, 1, &function);
    try {
      algorithm.run();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::string& text) {
      EXPECT_EQ(text, "not even an exception");
      thrown++;
    } catch (const gloo::Exception&) {
    }
  });
  EXPECT_GE(thrown.load(), 1);
}

}  // namespace
