/*
 * The name of this host, and of threads.
 */
#pragma once

#include <string>

#ifdef _WIN32
#include <cstdlib>
#else
#include <pthread.h>
#include <unistd.h>
#endif

#include "gloo/common/enforce.h"

namespace gloo {
inline namespace gloo_rs_api {

/// The name of this host.
inline std::string getHostname() {
#ifdef _WIN32
  const char* name = std::getenv("COMPUTERNAME");
  GLOO_ENFORCE(name != nullptr, "the environment variable COMPUTERNAME is not set");
  return name;
#else
  char name[257] = {};
  GLOO_ENFORCE_EQ(gethostname(name, sizeof name - 1), 0, "gethostname failed");
  return name;
#endif
}

/// Names the calling thread for debuggers, by the first 15 characters of `name`.
inline void setThreadName(const std::string& name) {
#if defined(__linux__)
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
#elif defined(__APPLE__)
  pthread_setname_np(name.substr(0, 15).c_str());
#else
  (void)name;
#endif
}

}  // namespace gloo_rs_api
}  // namespace gloo
