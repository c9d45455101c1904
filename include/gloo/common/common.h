/*
 * std::make_unique under the name that it has in Gloo, which is older.
 */
#pragma once

#include <memory>

namespace gloo {
inline namespace gloo_rs_api {

using std::make_unique;

}  // namespace gloo_rs_api
}  // namespace gloo
