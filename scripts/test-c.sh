#!/bin/bash
# Builds c_tests/ against the installed package, as a user would, and runs some of them. What is built is kept in two folders, one of them for
# AddressSanitizer.
# usage: scripts/test-c.sh KIND [PATTERN]
#   KIND      native, more, valgrind, endurance, asan: tests with this label, against build/prefix
#             core: a few programs against the library that `cargo test` has built, without anything that must be installed
#   PATTERN   a regular expression for the names of tests
set -euo pipefail
cd "$(dirname "$0")/.."
kind=$1
pattern=${2:-}
prefix=$PWD/build/prefix
at=$PWD/build/c_tests/plain
options=(-DCMAKE_BUILD_TYPE=Debug -DCMAKE_PREFIX_PATH="$prefix")
targets=()
selected=(-L "^$kind\$")
case $kind in
  native | more | valgrind) options+=(-DGLOO_RS_TESTS_VALGRIND=ON) ;;
  endurance) options+=(-DGLOO_RS_TESTS_VALGRIND=ON) targets=(--target endurance) ;;
  asan)
    at=$PWD/build/c_tests/asan
    options+=(-DGLOO_RS_TESTS_ASAN="$(scripts/asan.sh)")
    targets=(--target asan_tests)
    ;;
  core)
    at=$PWD/build/c_tests/core
    names=(basics errors pair collectives requests queues)
    scripts/cargo.sh build --lib --quiet
    library=$(realpath "${CARGO_TARGET_DIR:-target}")/debug/libgloo_rs.so
    options=(-DCMAKE_BUILD_TYPE=Debug -DGLOO_RS_TESTS_LIBRARY="$library" -DGLOO_RS_TESTS_MPI=OFF -DGLOO_RS_TESTS_GLOO=OFF)
    targets=(--target "${names[@]}")
    selected=(-R "^($(IFS='|'; echo "${names[*]}"))\$")
    ;;
  *) echo "test-c: no kind of tests is called $kind" >&2 && exit 2 ;;
esac
if [ -n "$pattern" ]; then selected+=(-R "$pattern"); fi

mkdir -p "$at"
cmake -S c_tests -B "$at" "${options[@]}" >"$at/configure.log" || { cat "$at/configure.log"; exit 1; }
cmake --build "$at" --parallel "$(nproc)" "${targets[@]}" >"$at/build.log" 2>&1 || { cat "$at/build.log"; exit 1; }
rm -rf "$at/valgrind"
mkdir -p "$at/valgrind"
if ! ctest --test-dir "$at" "${selected[@]}" --parallel "$(nproc)" --output-on-failure --no-tests=error; then
  find "$at/valgrind" -name '*.log' -size +0 -exec sh -c 'echo "--- $1"; cat "$1"' _ {} \;
  exit 1
fi
if [ "$kind" = valgrind ]; then
  logs=("$at"/valgrind/*.log)
  [ -e "${logs[0]}" ] || { echo "test-c: no program ran under valgrind" >&2; exit 1; }
  echo "test-c: ${#logs[@]} processes ran under valgrind"
fi
