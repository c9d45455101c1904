#!/bin/bash
# Builds library and tool into build/cmake.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
PATH=$(scripts/rust.sh path)
cmake -S . -B build/cmake -DGLOO_RS_CARGO="$(command -v cargo)" >build/cmake.log || { cat build/cmake.log; exit 1; }
# Library and tool at once: for most of the time each uses one core.
cmake --build build/cmake --parallel 2
touch build/cmake/built
