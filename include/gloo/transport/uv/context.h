/*
 * All transports have the interface of gloo/transport/context.h; this header is there for programs that include it.
 */
#pragma once

#include "gloo/transport/context.h"
