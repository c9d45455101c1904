/*
 * What all headers of gloo/ share: calls of the C functions, and how their failures become exceptions.
 */
#pragma once

#include <gloo_rs.h>

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "gloo/common/enforce.h"
#include "gloo/common/error.h"

namespace gloo {
inline namespace gloo_rs_api {

class Context;

namespace detail {

/// The exception of a callback that runs inside a C call of this thread. No exception may pass through the library, so
/// the callback keeps it here and returns GLOO_RS_ERROR_CALLBACK, and check() throws it when the C call has failed.
inline std::exception_ptr& kept_exception() {
  thread_local std::exception_ptr kept;
  return kept;
}

/// Runs `body`, which returns a status, in a callback of the library: an exception is kept for check(), unless an
/// earlier callback of this C call has already thrown one.
template <typename Body>
gloo_rs_status_t keep_exceptions(Body&& body) noexcept {
  // The body may make C calls of its own, whose check() must not find this one.
  std::exception_ptr earlier = std::exchange(kept_exception(), nullptr);
  gloo_rs_status_t status = GLOO_RS_ERROR_CALLBACK;
  try {
    status = body();
  } catch (...) {
    kept_exception() = std::current_exception();
  }
  if (earlier) {
    kept_exception() = std::move(earlier);
  }
  return status;
}

/// Throws `status` with `message`, as the exception that Gloo has for such a failure.
[[noreturn]] inline void throw_status(gloo_rs_status_t status, const std::string& message) {
  switch (status) {
    case GLOO_RS_ERROR_INVALID_ARGUMENT:
      throw EnforceNotMet(message);
    case GLOO_RS_ERROR_INVALID_OPERATION:
    case GLOO_RS_ERROR_MISMATCH:
    case GLOO_RS_ERROR_UNSUPPORTED:
      throw InvalidOperationException(message);
    case GLOO_RS_ERROR_TIMEOUT:
      // Programs look for these words of Gloo's.
      throw IoException("Timed out: " + message);
    case GLOO_RS_ERROR_IO:
    case GLOO_RS_ERROR_CONNECTION_LOST:
    case GLOO_RS_ERROR_ABORTED:
    case GLOO_RS_ERROR_CLOSED:
    case GLOO_RS_ERROR_NOT_FOUND:
    case GLOO_RS_ERROR_RESOURCE_EXHAUSTED:
      throw IoException(message);
    default:
      throw Exception(message);
  }
}

/// Does nothing for GLOO_RS_OK. After a failure of the last C call of this thread, throws the exception that a callback
/// kept during the call, unchanged; otherwise one with the text of gloo_rs_last_error_message(): IoException for a
/// timeout, a lost peer and a closed connection, EnforceNotMet for a wrong argument, InvalidOperationException for
/// other wrong use, and Exception for the rest.
inline void check(gloo_rs_status_t status) {
  // The exception is taken after success, too: what a callback threw there, and the library made up for, must not reach
  // a later failure.
  std::exception_ptr kept = std::exchange(kept_exception(), nullptr);
  if (status == GLOO_RS_OK) {
    return;
  }
  if (kept) {
    std::rethrow_exception(kept);
  }
  throw_status(status, gloo_rs_last_error_message());
}

/// The milliseconds of a timeout of Gloo for the C functions: in Gloo, zero is "for ever", and -1 the default. Time
/// that was over before the call began leaves none to wait.
inline int64_t timeout_ms(std::chrono::milliseconds timeout) {
  if (timeout == kNoTimeout) {
    return GLOO_RS_TIMEOUT_INFINITE;
  }
  if (timeout.count() == -1) {
    return GLOO_RS_TIMEOUT_DEFAULT;
  }
  return timeout < kNoTimeout ? 0 : timeout.count();
}

/// The timeout of whoever sets none: GLOO_RS_TIMEOUT, or 30 s as in Gloo. Throws EnforceNotMet if the variable is not a
/// number of seconds.
inline std::chrono::milliseconds default_timeout() {
  int64_t timeout = 0;
  check(gloo_rs_timeout_from_env(&timeout));
  return std::chrono::milliseconds(timeout);
}

/// Destroys a handle of the C functions, for std::unique_ptr.
struct Destroy {
  void operator()(gloo_rs_device_t* device) const { gloo_rs_device_destroy(device); }
  void operator()(gloo_rs_store_t* store) const { gloo_rs_store_destroy(store); }
  void operator()(gloo_rs_context_t* context) const { gloo_rs_context_destroy(context); }
  void operator()(gloo_rs_pair_t* pair) const { gloo_rs_pair_destroy(pair); }
  void operator()(gloo_rs_buffer_t* buffer) const { gloo_rs_buffer_destroy(buffer); }
  void operator()(gloo_rs_unbound_buffer_t* buffer) const { gloo_rs_unbound_buffer_destroy(buffer); }
};

/// A handle of the C functions, with its owner.
template <typename Handle>
using Owned = std::unique_ptr<Handle, Destroy>;

/// The C context of `context`, which keeps it alive. Throws EnforceNotMet if there is none yet; the library refuses
/// calls on one whose pairs are not connected. Defined in gloo/context.h.
gloo_rs_context_t* handle(const Context& context);

/// The timeout that the program has set for `context`; transport::kUnsetTimeout if it has set none, so that errors by
/// the default say what sets that. Defined in gloo/context.h.
std::chrono::milliseconds chosen_timeout(const Context& context);

}  // namespace detail
}  // namespace gloo_rs_api
}  // namespace gloo
