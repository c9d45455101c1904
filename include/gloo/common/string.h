/*
 * Text from values, for messages.
 */
#pragma once

#include <sstream>
#include <string>
#include <vector>

namespace gloo {
inline namespace gloo_rs_api {

/// The items of a list with `separator` between them.
template <typename T>
std::string MakeString(const std::vector<T>& items, const std::string& separator = " ");

namespace detail {

inline void print(std::ostream& out, const std::stringstream& value) {
  out << value.str();
}

template <typename T>
void print(std::ostream& out, const std::vector<T>& items) {
  out << MakeString(items);
}

template <typename T>
void print(std::ostream& out, const T& value) {
  out << value;
}

}  // namespace detail

/// The values one after the other, as operator<< writes them.
template <typename... Values>
std::string MakeString(const Values&... values) {
  std::ostringstream out;
  (detail::print(out, values), ...);
  return out.str();
}

template <typename T>
std::string MakeString(const std::vector<T>& items, const std::string& separator) {
  std::ostringstream out;
  bool first = true;
  for (const auto& item : items) {
    if (!first) {
      out << separator;
    }
    first = false;
    detail::print(out, static_cast<const T&>(item));
  }
  return out.str();
}

inline std::string MakeString(const std::string& text) {
  return text;
}

inline std::string MakeString(const char* text) {
  return text;
}

}  // namespace gloo_rs_api
}  // namespace gloo
