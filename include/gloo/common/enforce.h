/*
 * Checks that throw EnforceNotMet.
 */
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gloo/common/string.h"

namespace gloo {
inline namespace gloo_rs_api {

/// A condition that the program has to meet, or an argument, does not hold.
class EnforceNotMet : public std::exception {
 public:
  EnforceNotMet(const char* file, const int line, const char* condition, const std::string& message)
      : EnforceNotMet(MakeString("[enforce fail at ", file, ":", line, "] ", condition, ". ", message)) {}

  explicit EnforceNotMet(std::string message) : messages_{std::move(message)} {}

  std::string msg() const {
    return MakeString(messages_, "");
  }

  const std::vector<std::string>& msg_stack() const {
    return messages_;
  }

  const char* what() const noexcept override {
    return messages_.front().c_str();
  }

 private:
  std::vector<std::string> messages_;
};

/// The checks of GLOO_ENFORCE_THAT, to which a program can add its own: functions that return EnforceOK() or a message.
namespace enforce_detail {

struct EnforceOK {};

/// What a check has found.
class EnforceFailMessage {
 public:
  EnforceFailMessage(EnforceOK) {}
  EnforceFailMessage(std::string message) : message_(std::move(message)) {}

  bool bad() const {
    return message_.has_value();
  }

  /// What was wrong, and then what the caller has to say about it.
  std::string message(const std::string& remark) const {
    return remark.empty() ? *message_ : MakeString(*message_, ". ", remark);
  }

 private:
  std::optional<std::string> message_;
};

// The two sides may be signed and unsigned; Gloo's users compare sizes with ranks.
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#endif

#define GLOO_DETAIL_COMPARISON(name, operation)                      \
  template <typename Left, typename Right>                           \
  EnforceFailMessage name(const Left& left, const Right& right) {    \
    if (left operation right) {                                      \
      return EnforceOK();                                            \
    }                                                                \
    return ::gloo::MakeString(left, " vs ", right);                  \
  }

GLOO_DETAIL_COMPARISON(Equals, ==)
GLOO_DETAIL_COMPARISON(NotEquals, !=)
GLOO_DETAIL_COMPARISON(Less, <)
GLOO_DETAIL_COMPARISON(LessEquals, <=)
GLOO_DETAIL_COMPARISON(Greater, >)
GLOO_DETAIL_COMPARISON(GreaterEquals, >=)

#undef GLOO_DETAIL_COMPARISON

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

}  // namespace enforce_detail
}  // namespace gloo_rs_api
}  // namespace gloo

// The public macros pass an empty remark on, because ISO C++17 wants at least one argument for the dots.

#define GLOO_DETAIL_ENFORCE(condition, ...)                                                                \
  do {                                                                                                     \
    if (!(condition)) {                                                                                    \
      throw ::gloo::EnforceNotMet(__FILE__, __LINE__, #condition, ::gloo::MakeString(__VA_ARGS__));        \
    }                                                                                                      \
  } while (false)

#define GLOO_DETAIL_ENFORCE_THAT(text, check, ...)                                                         \
  do {                                                                                                     \
    using namespace ::gloo::enforce_detail;                                                                \
    const ::gloo::enforce_detail::EnforceFailMessage gloo_enforce_found = (check);                         \
    if (gloo_enforce_found.bad()) {                                                                        \
      throw ::gloo::EnforceNotMet(                                                                         \
          __FILE__, __LINE__, text, gloo_enforce_found.message(::gloo::MakeString(__VA_ARGS__)));          \
    }                                                                                                      \
  } while (false)

#define GLOO_DETAIL_ENFORCE_CHECK(check, ...) GLOO_DETAIL_ENFORCE_THAT(#check, check, __VA_ARGS__)
#define GLOO_DETAIL_ENFORCE_EQ(x, y, ...) GLOO_DETAIL_ENFORCE_THAT(#x " == " #y, ::gloo::enforce_detail::Equals((x), (y)), __VA_ARGS__)
#define GLOO_DETAIL_ENFORCE_NE(x, y, ...) GLOO_DETAIL_ENFORCE_THAT(#x " != " #y, ::gloo::enforce_detail::NotEquals((x), (y)), __VA_ARGS__)
#define GLOO_DETAIL_ENFORCE_LT(x, y, ...) GLOO_DETAIL_ENFORCE_THAT(#x " < " #y, ::gloo::enforce_detail::Less((x), (y)), __VA_ARGS__)
#define GLOO_DETAIL_ENFORCE_LE(x, y, ...) GLOO_DETAIL_ENFORCE_THAT(#x " <= " #y, ::gloo::enforce_detail::LessEquals((x), (y)), __VA_ARGS__)
#define GLOO_DETAIL_ENFORCE_GT(x, y, ...) GLOO_DETAIL_ENFORCE_THAT(#x " > " #y, ::gloo::enforce_detail::Greater((x), (y)), __VA_ARGS__)
#define GLOO_DETAIL_ENFORCE_GE(x, y, ...) GLOO_DETAIL_ENFORCE_THAT(#x " >= " #y, ::gloo::enforce_detail::GreaterEquals((x), (y)), __VA_ARGS__)

/// GLOO_ENFORCE(condition, ...): throws EnforceNotMet, with the rest of the arguments as a message, unless `condition`
/// holds.
#define GLOO_ENFORCE(...) GLOO_DETAIL_ENFORCE(__VA_ARGS__, "")

/// GLOO_ENFORCE_THAT(check, ...): the same for a check of enforce_detail, whose message is thrown, too.
#define GLOO_ENFORCE_THAT(...) GLOO_DETAIL_ENFORCE_CHECK(__VA_ARGS__, "")

/// GLOO_ENFORCE_EQ(x, y, ...) and so on: the same for two values, which are evaluated once and appear in the message.
#define GLOO_ENFORCE_EQ(...) GLOO_DETAIL_ENFORCE_EQ(__VA_ARGS__, "")
#define GLOO_ENFORCE_NE(...) GLOO_DETAIL_ENFORCE_NE(__VA_ARGS__, "")
#define GLOO_ENFORCE_LT(...) GLOO_DETAIL_ENFORCE_LT(__VA_ARGS__, "")
#define GLOO_ENFORCE_LE(...) GLOO_DETAIL_ENFORCE_LE(__VA_ARGS__, "")
#define GLOO_ENFORCE_GT(...) GLOO_DETAIL_ENFORCE_GT(__VA_ARGS__, "")
#define GLOO_ENFORCE_GE(...) GLOO_DETAIL_ENFORCE_GE(__VA_ARGS__, "")
