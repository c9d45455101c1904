/*
 * The address of one side of a pair.
 */
#pragma once

#include <string>
#include <vector>

namespace gloo {
inline namespace gloo_rs_api {
namespace transport {

class Address {
 public:
  /// Most bytes that bytes() returns.
  static constexpr auto kMaxByteSize = 192;

  virtual ~Address() = 0;

  /// A text for people.
  virtual std::string str() const = 0;

  /// What the peer has to pass to Pair::connect. All addresses have the same length.
  virtual std::vector<char> bytes() const = 0;
};

inline Address::~Address() = default;

}  // namespace transport
}  // namespace gloo_rs_api
}  // namespace gloo
