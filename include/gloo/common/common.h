/*
 * std::make_unique under the name that it has in Gloo, which is older.
 */
#pragma once

#include <memory>

namespace gloo {

using std::make_unique;

}  // namespace gloo
