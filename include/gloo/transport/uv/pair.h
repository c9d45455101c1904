/*
 * All transports have the interface of gloo/transport/pair.h; this header is there for programs that include it.
 */
#pragma once

#include "gloo/transport/pair.h"
