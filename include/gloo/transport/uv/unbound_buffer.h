/*
 * All transports have the interface of gloo/transport/unbound_buffer.h; this header is there for programs that include
 * it.
 */
#pragma once

#include "gloo/transport/unbound_buffer.h"
