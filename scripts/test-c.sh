#!/bin/bash
# Builds c_tests/ against the installed package, as a user would, and runs them.
# usage: scripts/test-c.sh PREFIX [plain | valgrind | asan | endurance [ARGUMENTS OF ctest]]
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(realpath "$1")
kind=${2:-plain}
at=$PWD/build/c_tests/$kind

rm -rf "$at"
mkdir -p "$at"
options=(-DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Debug)
label=$kind
targets=()
case $kind in
  plain) label=native ;;
  valgrind) options+=(-DGLOO_RS_TESTS_VALGRIND=ON) ;;
  asan) options+=(-DGLOO_RS_TESTS_ASAN="$(scripts/asan.sh)") targets=(--target asan_tests) ;;
  endurance) targets=(--target endurance) ;;
  *) echo "test-c: no kind of tests is called $kind" >&2 && exit 2 ;;
esac
cmake -S c_tests -B "$at" "${options[@]}" >/dev/null
cmake --build "$at" --parallel "$(nproc)" "${targets[@]}" >/dev/null
if ! ctest --test-dir "$at" -L "$label" --parallel "$(nproc)" --output-on-failure --no-tests=error "${@:3}"; then
  [ "$kind" != valgrind ] ||
    find "$at/valgrind" -name '*.log' -size +0 -exec sh -c 'echo "--- $1"; cat "$1"' _ {} \;
  exit 1
fi
if [ "$kind" = valgrind ]; then
  logs=("$at"/valgrind/*.log)
  [ -e "${logs[0]}" ] || { echo "test-c: no program ran under valgrind" >&2; exit 1; }
  echo "test-c: ${#logs[@]} processes ran under valgrind"
fi
