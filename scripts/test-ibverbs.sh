#!/bin/bash
# The transport ibverbs over software RoCE, in emulated machines (c_tests/rxe): in one, then in two that are connected.
# usage: scripts/test-ibverbs.sh PREFIX [one | more | two [GROUP...]]    (where gloo_rs is installed)
#   one     in one guest, what `make test` needs
#   more    in one guest, the tests of what has no code of its own for ibverbs, and of what needs a kernel of its own
#   two     in two guests
#   GROUP   those of c_tests/rxe/one-guest.sh or two-guests.sh
# TRANSPORT names another transport, for comparison.
set -euo pipefail
cd "$(dirname "$0")/.."
which=${2:-"one more two"}
wanted=("${@:3}")
rxe=c_tests/rxe
at=$PWD/build/ibverbs
export TRANSPORT=${TRANSPORT:-ibverbs}

if [ "$(uname -m)" != x86_64 ]; then
  echo "test-ibverbs: the emulated machines are x86_64, as the programs would have to be, so nothing is tested here"
  exit 0
fi
prefix=$(realpath "$1")
case $which in
  one | more | two | "one more two") ;;
  *) echo "test-ibverbs: one, more or two, not $which" >&2 && exit 2 ;;
esac

rm -rf "$at"
mkdir -p "$at"
cp "$rxe"/{groups,checks,one-guest,two-guests}.sh "$at"
cc -std=c11 -D_POSIX_C_SOURCE=200809L -g -O1 -Wall -Wextra -Wpedantic -Werror "$rxe/verbs_smoke.c" -o "$at/verbs_smoke" -libverbs
copies=(--copy "$at")
for file in "$prefix"/lib/libgloo_rs.so* "$prefix/bin/gloo-rs"; do copies+=(--copy "$file"); done

# ctest is not there, so the tests with the label LABEL become a script, c-tests-LABEL-KIND.sh, and their programs go to the same paths.
list_c_tests() { # LABEL KIND OPTION OF cmake...: built in build/c_tests/KIND
  local label=$1 kind=$2 build=build/c_tests/$2 programs
  cmake -S c_tests -B "$build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Debug "${@:3}" >/dev/null
  cmake --build "$build" --parallel "$(nproc)" --target ibverbs_tests >/dev/null
  ctest --test-dir "$build" -L "^$label\$" --show-only=json-v1 >"$at/c-tests.json"
  python3 - "$at" "$label" "$kind" <<'PYTHON'
import json, os, shlex, sys

at, label, kind = sys.argv[1:]
tests = json.load(open(f"{at}/c-tests.json"))["tests"]
if not tests:
    sys.exit(f"test-ibverbs: no C test has the label {label}")
programs = set()
with open(f"{at}/c-tests-{label}-{kind}.sh", "w") as script:
    for test in tests:
        properties = {each["name"]: each["value"] for each in test["properties"]}
        programs.update(word for word in test["command"] if os.path.isfile(word))
        words = ["env", f"GLOO_RS_TRANSPORT={os.environ['TRANSPORT']}", *properties.get("ENVIRONMENT", []), *test["command"]]
        print("try", test["name"], shlex.join(words), file=script)
with open(f"{at}/programs", "w") as names:
    names.writelines(f"{program}\n" for program in sorted(programs))
PYTHON
  mapfile -t programs <"$at/programs"
  for program in "${programs[@]}"; do copies+=(--copy "$program"); done
}
# Lists C tests that are compiled with AddressSanitizer, as the library below them is.
list_c_tests_with_asan() { # LABEL
  local built file
  built=$(scripts/asan.sh)
  list_c_tests "$1" asan -DGLOO_RS_TESTS_ASAN="$built"
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
    env GROUPS_WANTED="${groups[*]}" TRANSPORT="$TRANSPORT" TOOL="$prefix/bin/gloo-rs" LIBRARY_TESTS="$LIBRARY_TESTS" \
    TRANSPORT_TESTS="$TRANSPORT_TESTS" ASAN_SMOKE="${ASAN_SMOKE:-}" DIGITS="${DIGITS:-}" DIGITS_DATA="${DIGITS_DATA:-}" bash "./$3"
}

failed=()
build_rust_tests
in_one_guest() { # LABEL SECONDS GROUP...: these groups, of those that are wanted
  local groups=("${@:3}") group
  ((${#wanted[@]} == 0)) || groups=("${wanted[@]}")
  list_c_tests "$1" plain
  for group in "${groups[@]}"; do
    if [[ $group == asan* ]]; then list_c_tests_with_asan "$1"; fi
    if [ "$group" = example ]; then build_digits; fi
  done
  echo "test-ibverbs: in one guest: ${groups[*]}"
  in_guests 1 "$2" one-guest.sh || failed+=("one guest: ${groups[*]}")
}
if [[ $which == one* ]]; then in_one_guest ibverbs 1500 verbs plain links rust failures asan tool; fi
if [[ $which == *more* ]]; then in_one_guest ibverbs-more 1500 yama links-more plain-more asan-more example; fi
if [[ $which == *two ]]; then
  echo "test-ibverbs: in two guests"
  groups=("${wanted[@]}")
  in_guests 2 600 two-guests.sh || failed+=("two guests")
fi
if ((${#failed[@]})); then
  echo "test-ibverbs: failed: ${failed[*]}; the kernels' messages are in $at/console.*" >&2
  exit 1
fi
