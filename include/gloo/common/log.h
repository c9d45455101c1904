/*
 * The macros of gloo/common/logging.h, and the two that only newer versions of Gloo have.
 */
#pragma once

#include "gloo/common/logging.h"

#define GLOO_CRITICAL(...) GLOO_DETAIL_LOG(::gloo::detail::kLogError, "CRITICAL", __VA_ARGS__)
#define GLOO_TRACE(...) GLOO_DETAIL_LOG(::gloo::detail::kLogDebug, "TRACE", __VA_ARGS__)
