#!/bin/bash
# Builds c_tests/ against the installed package, as a user would, and runs them.
# usage: scripts/test-c.sh PREFIX [valgrind]
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(realpath "$1")
kind=${2:-plain}
at=$PWD/build/c_tests/$kind

rm -rf "$at"
mkdir -p "$at"
options=(-DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Debug)
label=native
if [ "$kind" = valgrind ]; then
  options+=(-DGLOO_RS_TESTS_VALGRIND=ON)
  label=valgrind
fi
cmake -S c_tests -B "$at" "${options[@]}" >/dev/null
cmake --build "$at" >/dev/null
if ! ctest --test-dir "$at" -L "$label" --output-on-failure --no-tests=error; then
  find "$at/valgrind" -name '*.log' -size +0 -exec sh -c 'echo "--- $1"; cat "$1"' _ {} \;
  exit 1
fi
if [ "$kind" = valgrind ]; then
  logs=("$at"/valgrind/*.log)
  [ -e "${logs[0]}" ] || { echo "test-c: no program ran under valgrind" >&2; exit 1; }
  echo "test-c: ${#logs[@]} processes ran under valgrind"
fi
