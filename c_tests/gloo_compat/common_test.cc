// Checks, exceptions, log macros, allocator, references without ownership, and what Linux tells of devices.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "gloo/common/aligned_allocator.h"
#include "gloo/common/common.h"
#include "gloo/common/error.h"
#include "gloo/common/linux.h"
#include "gloo/common/linux_devices.h"
#include "gloo/common/log.h"
#include "gloo/common/logging.h"
#include "gloo/common/memory.h"
#include "gloo/common/string.h"
#include "gloo/common/utils.h"
#include "gloo/config.h"

namespace {

template <typename Exception>
std::string thrown(const std::function<void()>& body) {
  try {
    body();
  } catch (const Exception& exception) {
    return exception.what();
  }
  return "nothing was thrown";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Config, StatesTheVersionOfGlooAndWhatIsThere) {
  EXPECT_EQ(GLOO_VERSION, 500);
  EXPECT_EQ(GLOO_VERSION, GLOO_VERSION_MAJOR * 10000 + GLOO_VERSION_MINOR * 100 + GLOO_VERSION_PATCH);
  EXPECT_TRUE(GLOO_HAVE_TRANSPORT_TCP);
  EXPECT_FALSE(GLOO_USE_CUDA);
  EXPECT_EQ(GLOO_USE_LIBUV, GLOO_HAVE_TRANSPORT_UV);
}

TEST(Strings, JoinValuesAndItems) {
  const std::vector<int> items{1, 2, 3};
  std::stringstream stream;
  stream << "stream";
  EXPECT_EQ(gloo::MakeString(), "");
  EXPECT_EQ(gloo::MakeString("text"), "text");
  EXPECT_EQ(gloo::MakeString(std::string("text")), "text");
  EXPECT_EQ(gloo::MakeString("a", 1, ' ', 2.5, std::string("b"), stream), "a1 2.5bstream");
  EXPECT_EQ(gloo::MakeString(items), "1 2 3");
  EXPECT_EQ(gloo::MakeString(items, std::string(", ")), "1, 2, 3");
  EXPECT_EQ(gloo::MakeString<int>(items, ", "), "1, 2, 3");
  EXPECT_EQ(gloo::MakeString("items ", items), "items 1 2 3");
  EXPECT_EQ(gloo::MakeString(std::vector<bool>{true, false}), "1 0");
}

TEST(Enforce, NamesPlaceConditionValuesAndRemark) {
  const int one = 1;
  const size_t two = 2;
  EXPECT_NO_THROW(GLOO_ENFORCE(one == 1));
  EXPECT_NO_THROW(GLOO_ENFORCE(one == 1, "remark"));
  const std::string text = thrown<gloo::EnforceNotMet>([&] { GLOO_ENFORCE(one == 2, "rank ", 3); });
  EXPECT_TRUE(contains(text, "common_test.cc:")) << text;
  EXPECT_TRUE(contains(text, "one == 2. rank 3")) << text;

  EXPECT_NO_THROW(GLOO_ENFORCE_EQ(one, 1));
  EXPECT_NO_THROW(GLOO_ENFORCE_NE(one, two));
  EXPECT_NO_THROW(GLOO_ENFORCE_LT(one, two));
  EXPECT_NO_THROW(GLOO_ENFORCE_LE(one, 1u));
  EXPECT_NO_THROW(GLOO_ENFORCE_GT(two, one));
  EXPECT_NO_THROW(GLOO_ENFORCE_GE(two, 2));
  EXPECT_NO_THROW(GLOO_ENFORCE_NE(&one, nullptr));
  EXPECT_TRUE(contains(thrown<gloo::EnforceNotMet>([&] { GLOO_ENFORCE_EQ(one, two); }), "one == two. 1 vs 2"));
  EXPECT_TRUE(contains(thrown<gloo::EnforceNotMet>([&] { GLOO_ENFORCE_NE(one, 1); }), "one != 1. 1 vs 1"));
  EXPECT_TRUE(contains(thrown<gloo::EnforceNotMet>([&] { GLOO_ENFORCE_LT(two, one, "why ", 7); }), "2 vs 1. why 7"));
  EXPECT_TRUE(contains(thrown<gloo::EnforceNotMet>([&] { GLOO_ENFORCE_LE(two, one); }), "two <= one"));
  EXPECT_TRUE(contains(thrown<gloo::EnforceNotMet>([&] { GLOO_ENFORCE_GT(one, two); }), "one > two"));
  EXPECT_TRUE(contains(thrown<gloo::EnforceNotMet>([&] { GLOO_ENFORCE_GE(one, two); }), "one >= two"));
}

TEST(Enforce, EvaluatesItsArgumentsOnce) {
  int calls = 0;
  GLOO_ENFORCE_EQ(++calls, 1);
  EXPECT_THROW(GLOO_ENFORCE_EQ(++calls, 1), gloo::EnforceNotMet);
  EXPECT_EQ(calls, 2);
}

TEST(Enforce, TakesChecksOfTheProgram) {
  const auto even = [](int number) -> gloo::enforce_detail::EnforceFailMessage {
    if (number % 2 == 0) {
      return gloo::enforce_detail::EnforceOK();
    }
    return gloo::MakeString(number, " is odd");
  };
  EXPECT_NO_THROW(GLOO_ENFORCE_THAT(even(2)));
  EXPECT_TRUE(contains(thrown<gloo::EnforceNotMet>([&] { GLOO_ENFORCE_THAT(even(3), "remark"); }), "3 is odd. remark"));
}

TEST(Exceptions, AreCaughtAsTheirBase) {
  static_assert(std::is_base_of_v<std::runtime_error, gloo::Exception>);
  static_assert(std::is_base_of_v<gloo::Exception, gloo::IoException>);
  static_assert(std::is_base_of_v<gloo::Exception, gloo::InvalidOperationException>);
  static_assert(std::is_base_of_v<std::exception, gloo::EnforceNotMet>);
  static_assert(!std::is_base_of_v<gloo::Exception, gloo::EnforceNotMet>);
  EXPECT_TRUE(contains(thrown<gloo::Exception>([] { GLOO_THROW("a", 1); }), "] a1"));
  EXPECT_TRUE(contains(thrown<gloo::IoException>([] { GLOO_THROW_IO_EXCEPTION("b", 2); }), "] b2"));
  EXPECT_TRUE(contains(
      thrown<gloo::InvalidOperationException>([] { GLOO_THROW_INVALID_OPERATION_EXCEPTION("c", 3); }), "common_test.cc:"));
  EXPECT_EQ(gloo::kNoTimeout, std::chrono::milliseconds(0));
}

TEST(Logging, WritesWarningsAndErrorsToStderr) {
  if (std::getenv("GLOO_LOG_LEVEL") != nullptr) {
    GTEST_SKIP() << "GLOO_LOG_LEVEL is set";
  }
  testing::internal::CaptureStderr();
  GLOO_ERROR("error of rank ", 1);
  GLOO_WARN("rank {} of {}", 2, 3);
  GLOO_INFO("info");
  GLOO_DEBUG("debug");
  GLOO_TRACE("trace");
  GLOO_CRITICAL("critical");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(text, "common_test.cc:")) << text;
  EXPECT_TRUE(contains(text, "ERROR error of rank 1\n")) << text;
  EXPECT_TRUE(contains(text, "WARN rank 2 of 3\n")) << text;
  EXPECT_TRUE(contains(text, "CRITICAL critical\n")) << text;
  EXPECT_FALSE(contains(text, "info")) << text;
  EXPECT_FALSE(contains(text, "debug")) << text;
  EXPECT_FALSE(contains(text, "trace")) << text;
}

TEST(AlignedAllocator, AlignsTheMemoryOfContainers) {
  EXPECT_EQ(gloo::kBufferAlignment, 32u);
  const std::vector<char, gloo::aligned_allocator<char>> bytes(3);
  const std::vector<float, gloo::aligned_allocator<float, 128>> floats(1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % 32, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(floats.data()) % 128, 0u);
  EXPECT_TRUE(bytes.get_allocator() == (gloo::aligned_allocator<float>()));
  std::vector<float, gloo::aligned_allocator<float>> list;
  EXPECT_THROW(list.get_allocator().allocate(SIZE_MAX / 2), std::bad_alloc);
}

TEST(NonOwningPointers, KeepTheDestructorWaitingWhileTheyAreUsed) {
  struct Object {
    int value = 7;
    gloo::ShareableNonOwningPtr<Object> root{this};
  };
  EXPECT_FALSE(gloo::WeakNonOwningPtr<Object>());
  EXPECT_FALSE(gloo::NonOwningPtr<Object>());
  auto object = gloo::make_unique<Object>();
  gloo::WeakNonOwningPtr<Object> weak(object->root);
  EXPECT_TRUE(weak);
  std::thread destroyer;
  {
    gloo::NonOwningPtr<Object> used(weak);
    ASSERT_TRUE(used);
    destroyer = std::thread([&] { object.reset(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(used->value, 7);
  }
  destroyer.join();
  EXPECT_FALSE(gloo::NonOwningPtr<Object>(weak));
  EXPECT_TRUE(weak);
}

TEST(Linux, TellsOfInterfacesAndDevices) {
  EXPECT_EQ(gloo::getInterfaceSpeedByName("lo"), 0);
  EXPECT_EQ(gloo::getInterfaceSpeedByName("there-is-none"), 0);
  EXPECT_EQ(gloo::interfaceToBusID("lo"), "");
  EXPECT_EQ(gloo::interfaceToBusID("there-is-none"), "");
  EXPECT_EQ(gloo::infinibandToBusID("there-is-none"), "");
  EXPECT_EQ(&gloo::interfaceToBusID("lo"), &gloo::interfaceToBusID("lo"));
  EXPECT_EQ(gloo::kernelModules().count(""), 0u);
  EXPECT_EQ(&gloo::kernelModules(), &gloo::kernelModules());
  EXPECT_THROW(gloo::pciDistance("there-is-none", "there-is-none"), gloo::EnforceNotMet);
  const auto all = gloo::pciDevices({0, 0});
  for (const auto& device : all) {
    EXPECT_EQ(gloo::pciDistance(device, device), 0);
    EXPECT_GE(gloo::pciDistance(all.front(), device), device == all.front() ? 0 : 1);
  }
  EXPECT_LE(gloo::pciDevices(gloo::kPCIClassNetwork).size(), all.size());
  EXPECT_LE(gloo::pciDevices(gloo::kPCIClass3D).size(), all.size());
}

TEST(Utils, NameHostAndThread) {
  EXPECT_FALSE(gloo::getHostname().empty());
  EXPECT_NO_THROW(gloo::setThreadName("a name that is longer than fifteen characters"));
}

}  // namespace
