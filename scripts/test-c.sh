#!/bin/bash
# Builds c_tests/ against the installed package, as a user would, and runs them.
# usage: scripts/test-c.sh PREFIX [valgrind]
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(realpath "$1")
kind=${2:-plain}
at=build/c_tests/$kind

options=(-DCMAKE_PREFIX_PATH="$prefix")
if [ "$kind" = valgrind ]; then
  # CTest puts this before each program that it runs. A leak or a bad access is a failure like any other.
  options+=("-DCMAKE_CROSSCOMPILING_EMULATOR=valgrind;--quiet;--error-exitcode=97;--leak-check=full;--errors-for-leak-kinds=definite,indirect;--trace-children=yes;--log-file=$PWD/$at/valgrind.%p.log")
fi
rm -rf "$at"
cmake -S c_tests -B "$at" "${options[@]}" >/dev/null
cmake --build "$at" >/dev/null
ctest --test-dir "$at" --output-on-failure --no-tests=error
