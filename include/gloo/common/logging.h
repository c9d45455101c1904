/*
 * Messages of a program to stderr. The library writes none of its own this way.
 */
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <type_traits>
#include <vector>

#include "gloo/common/enforce.h"
#include "gloo/common/error.h"
#include "gloo/common/string.h"

// Programs define these as macros, too.
#pragma push_macro("ERROR")
#pragma push_macro("DEBUG")
#undef ERROR
#undef DEBUG

namespace gloo {
inline namespace gloo_rs_api {

enum class LogLevel : std::int8_t {
  UNSET = -1,
  ERROR = 0,
  WARN = 1,
  INFO = 2,
  DEBUG = 3,
};

/// The least severe level that is written: what the environment variable GLOO_LOG_LEVEL (ERROR, WARN, INFO or DEBUG)
/// said at the first call; WARN if it is not set.
inline LogLevel logLevel() {
  static const LogLevel level = [] {
    const char* variable = std::getenv("GLOO_LOG_LEVEL");
    const std::string name = variable == nullptr ? "WARN" : variable;
    return name == "DEBUG" || name == "debug"  ? LogLevel::DEBUG
         : name == "INFO" || name == "info"    ? LogLevel::INFO
         : name == "ERROR" || name == "error"  ? LogLevel::ERROR
                                               : LogLevel::WARN;
  }();
  return level;
}

namespace detail {

constexpr LogLevel kLogError = LogLevel::ERROR;
constexpr LogLevel kLogDebug = LogLevel::DEBUG;

/// The text of a message: the values one after the other, or, if the first is a text with "{}" in it, that text with
/// the values in these places. Both styles are in use.
template <typename First, typename... Rest>
std::string log_text(const First& first, const Rest&... rest) {
  std::string text = MakeString(first);
  if constexpr (std::is_convertible_v<const First&, std::string>) {
    if (text.find("{}") != std::string::npos) {
      std::size_t at = 0;
      for (const std::string& value : std::vector<std::string>{MakeString(rest)...}) {
        at = text.find("{}", at);
        if (at == std::string::npos) {
          break;
        }
        text.replace(at, 2, value);
        at += value.size();
      }
      return text;
    }
  }
  return MakeString(text, rest...);
}

}  // namespace detail
}  // namespace gloo_rs_api
}  // namespace gloo

#pragma pop_macro("DEBUG")
#pragma pop_macro("ERROR")

#define GLOO_DETAIL_LOG(least, name, ...)                                                                               \
  do {                                                                                                                  \
    if (::gloo::logLevel() >= (least)) {                                                                                \
      std::cerr << ::gloo::MakeString(                                                                                  \
          "[", __FILE__, ":", __LINE__, "] ", name, " ", ::gloo::detail::log_text(__VA_ARGS__), "\n");                  \
    }                                                                                                                   \
  } while (false)

#define GLOO_ERROR(...) GLOO_DETAIL_LOG(::gloo::detail::kLogError, "ERROR", __VA_ARGS__)
#define GLOO_WARN(...) GLOO_DETAIL_LOG(::gloo::LogLevel::WARN, "WARN", __VA_ARGS__)
#define GLOO_INFO(...) GLOO_DETAIL_LOG(::gloo::LogLevel::INFO, "INFO", __VA_ARGS__)
#define GLOO_DEBUG(...) GLOO_DETAIL_LOG(::gloo::detail::kLogDebug, "DEBUG", __VA_ARGS__)
