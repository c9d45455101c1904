#!/bin/bash
# Builds c_tests/ against the installed package, as a user would, and runs them.
# usage: scripts/test-c.sh PREFIX [valgrind]
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(realpath "$1")
kind=${2:-plain}
at=$PWD/build/c_tests/$kind

rm -rf "$at"
mkdir -p "$at/valgrind"
options=(-DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Debug)
if [ "$kind" = valgrind ]; then
  # CTest puts this before each test's program. A leak or a bad access fails the test.
  options+=("-DCMAKE_CROSSCOMPILING_EMULATOR=valgrind;--quiet;--error-exitcode=97;--leak-check=full;--errors-for-leak-kinds=definite,indirect;--trace-children=yes;--log-file=$at/valgrind/%p.log")
fi
cmake -S c_tests -B "$at" "${options[@]}" >/dev/null
cmake --build "$at" >/dev/null
if ! ctest --test-dir "$at" --output-on-failure --no-tests=error; then
  find "$at/valgrind" -name '*.log' -size +0 -exec sh -c 'echo "--- $1"; cat "$1"' _ {} \;
  exit 1
fi
if [ "$kind" = valgrind ]; then
  logs=("$at"/valgrind/*.log)
  [ -e "${logs[0]}" ] || { echo "test-c: no program ran under valgrind" >&2; exit 1; }
  echo "test-c: ${#logs[@]} processes ran under valgrind"
fi
