#!/bin/bash
# Builds library and tool into build/cmake.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
PATH=$(scripts/rust.sh path)
# With debug information, which valgrind and callgrind read in the tests; `make install` leaves it out.
cmake -S . -B build/cmake -DGLOO_RS_CARGO="$(command -v cargo)" -DGLOO_RS_DEBUG_INFO=ON >build/cmake.log || { cat build/cmake.log; exit 1; }
cmake --build build/cmake --parallel 2
touch build/cmake/built
