/*
 * The exceptions of gloo/.
 */
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>

#include "gloo/common/string.h"

/// A message with the file and line in front of the values.
#define GLOO_ERROR_MSG(...) ::gloo::MakeString("[", __FILE__, ":", __LINE__, "] ", __VA_ARGS__)

#define GLOO_THROW(...) throw ::gloo::Exception(GLOO_ERROR_MSG(__VA_ARGS__))

#define GLOO_THROW_INVALID_OPERATION_EXCEPTION(...) \
  throw ::gloo::InvalidOperationException(GLOO_ERROR_MSG(__VA_ARGS__))

#define GLOO_THROW_IO_EXCEPTION(...) throw ::gloo::IoException(GLOO_ERROR_MSG(__VA_ARGS__))

namespace gloo {
inline namespace gloo_rs_api {

/// The timeout of a call that waits for ever.
inline constexpr std::chrono::milliseconds kNoTimeout = std::chrono::milliseconds::zero();

/// What the functions of gloo/ throw, except EnforceNotMet, and what callbacks of the program throw.
struct Exception : public std::runtime_error {
  Exception() = delete;
  explicit Exception(const std::string& message) : std::runtime_error(message) {}
};

/// The call was wrong: its arguments, or the state of the object.
struct InvalidOperationException : public Exception {
  InvalidOperationException() = delete;
  explicit InvalidOperationException(const std::string& message) : Exception(message) {}
};

/// A peer, a connection, a file or the time was lost: the context cannot be used any more.
struct IoException : public Exception {
  IoException() = delete;
  explicit IoException(const std::string& message) : Exception(message) {}
};

}  // namespace gloo_rs_api
}  // namespace gloo
