/*
 * Classes of PCI devices.
 */
#pragma once

#include "gloo/common/linux.h"

namespace gloo {
inline namespace gloo_rs_api {

/// GPUs: 3D controllers.
inline constexpr PCIClassMatch kPCIClass3D{0x030200, 0xffff00};

/// Network controllers of all kinds.
inline constexpr PCIClassMatch kPCIClassNetwork{0x020000, 0xff0000};

}  // namespace gloo_rs_api
}  // namespace gloo
