#!/bin/bash
# The transport ibverbs over software RoCE, in emulated machines (c_tests/rxe): in one, then in two that are connected.
# usage: scripts/test-ibverbs.sh PREFIX [one | two [GROUP...]]    (where gloo_rs is installed)
#   GROUP   those of c_tests/rxe/one-guest.sh or two-guests.sh; all, if none is named
# TRANSPORT names another transport, for comparison.
set -euo pipefail
cd "$(dirname "$0")/.."
which=${2:-"one two"}
wanted=("${@:3}")
rxe=c_tests/rxe
at=$PWD/build/ibverbs
export TRANSPORT=${TRANSPORT:-ibverbs}
# How many times as long as elsewhere a test may take in a guest, emulated and with the other's work on its processors.
slower=3

if [ "$(uname -m)" != x86_64 ]; then
  echo "test-ibverbs: the emulated machines are x86_64, as the programs would have to be, so nothing is tested here"
  exit 0
fi
prefix=$(realpath "$1")
case $which in
  one | two | "one two") ;;
  *) echo "test-ibverbs: one or two guests, not $which" >&2 && exit 2 ;;
esac

rm -rf "$at"
mkdir -p "$at"
cp "$rxe"/{groups,checks,one-guest,two-guests}.sh "$at"
cc -std=c11 -D_POSIX_C_SOURCE=200809L -g -O1 -Wall -Wextra -Wpedantic -Werror "$rxe/verbs_smoke.c" -o "$at/verbs_smoke" -libverbs
copies=(--copy "$at")
for file in "$prefix"/lib/libgloo_rs.so* "$prefix/bin/gloo-rs"; do copies+=(--copy "$file"); done

# ctest is not there, so the tests with the label ibverbs become a script, c-tests-KIND.sh, and their programs go to the same paths.
list_c_tests() { # KIND OPTION OF cmake...: built in build/c_tests/KIND
  local kind=$1 build=build/c_tests/$1 programs
  cmake -S c_tests -B "$build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Debug "${@:2}" >/dev/null
  cmake --build "$build" --parallel "$(nproc)" --target ibverbs_tests >/dev/null
  ctest --test-dir "$build" -L '^ibverbs$' --show-only=json-v1 >"$at/c-tests.json"
  python3 - "$slower" "$at" "$kind" <<'PYTHON'
import json, os, shlex, sys

slower, at, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
tests = json.load(open(f"{at}/c-tests.json"))["tests"]
if not tests:
    sys.exit("test-ibverbs: no C test has the label ibverbs")
programs = set()
with open(f"{at}/c-tests-{kind}.sh", "w") as script:
    for test in tests:
        properties = {each["name"]: each["value"] for each in test["properties"]}
        programs.update(word for word in test["command"] if os.path.isfile(word))
        words = ["env", f"GLOO_RS_TRANSPORT={os.environ['TRANSPORT']}", *properties.get("ENVIRONMENT", []), *test["command"]]
        print("try", int(properties["TIMEOUT"]) * slower, test["name"], shlex.join(words), file=script)
with open(f"{at}/programs", "w") as names:
    names.writelines(f"{program}\n" for program in sorted(programs))
PYTHON
  mapfile -t programs <"$at/programs"
  for program in "${programs[@]}"; do copies+=(--copy "$program"); done
}
# The same with AddressSanitizer, and the library below them.
list_c_tests_with_asan() {
  local built file
  built=$(scripts/asan.sh)
  list_c_tests asan -DGLOO_RS_TESTS_ASAN="$built"
  export ASAN_SMOKE=$PWD/build/c_tests/asan/asan_smoke
  copies+=(--copy "$ASAN_SMOKE")
  # Names the functions in reports.
  for file in "$(type -P addr2line)" "$(realpath "$(type -P addr2line)")"; do copies+=(--copy "$file"); done
}
# The library's own tests, and those of tests/jobs/ibverbs.rs, as `make test-rust` and `make test-jobs` build them.
build_rust_tests() {
  scripts/cargo.sh test --no-run --quiet \
    --message-format=json --lib --test jobs >"$at/built.json" 2>"$at/cargo.log" || { cat "$at/cargo.log" >&2; exit 1; }
  python3 - "$at/built.json" >"$at/rust-tests" <<'PYTHON'
import json, sys

programs = {}
for line in open(sys.argv[1]):
    built = json.loads(line)
    if built["reason"] == "compiler-artifact" and built["profile"]["test"] and built["executable"]:
        programs[built["target"]["name"]] = built["executable"]
print(programs["gloo_rs"], programs["jobs"], sep="\n")
PYTHON
  local built
  mapfile -t built <"$at/rust-tests"
  export LIBRARY_TESTS=${built[0]} TRANSPORT_TESTS=${built[1]}
  copies+=(--copy "$LIBRARY_TESTS" --copy "$TRANSPORT_TESTS")
}
# The digits example, as scripts/demo.sh builds it.
build_digits() {
  DIGITS_DATA=$(realpath "$(scripts/get-digits.sh)")
  cmake -S examples/digits -B build/digits -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
  cmake --build build/digits >/dev/null
  export DIGITS=$PWD/build/digits/digits DIGITS_DATA
  copies+=(--copy "$DIGITS" --copy "$DIGITS_DATA")
}
in_guests() { # NUMBER SECONDS SCRIPT
  "$rxe/guest.sh" --guests "$1" --devices 2 --memory 2048 --seconds "$2" --log "$at/console" "${copies[@]}" --folder "$at" \
    env GROUPS_WANTED="${wanted[*]}" TRANSPORT="$TRANSPORT" TOOL="$prefix/bin/gloo-rs" LIBRARY_TESTS="$LIBRARY_TESTS" \
    TRANSPORT_TESTS="$TRANSPORT_TESTS" ASAN_SMOKE="${ASAN_SMOKE:-}" DIGITS="${DIGITS:-}" DIGITS_DATA="${DIGITS_DATA:-}" bash "./$3"
}

failed=()
build_rust_tests
if [[ $which == one* ]]; then
  list_c_tests plain
  if ((${#wanted[@]} == 0)) || [[ " ${wanted[*]} " == *" asan "* ]]; then list_c_tests_with_asan; fi
  build_digits
  echo "test-ibverbs: in one guest"
  in_guests 1 1800 one-guest.sh || failed+=("one guest")
fi
if [[ $which == *two ]]; then
  echo "test-ibverbs: in two guests"
  in_guests 2 600 two-guests.sh || failed+=("two guests")
fi
if ((${#failed[@]})); then
  echo "test-ibverbs: failed: ${failed[*]}; the kernels' messages are in $at/console.*" >&2
  exit 1
fi
