#!/bin/bash
# Counts the instructions of a small allreduce, by a plain call and by a request, to the first byte sent and to the end, and
# compares with the recorded numbers.
# usage: scripts/test-instructions.sh PREFIX [--write]    (where gloo_rs is installed; --write records the numbers)
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(realpath "$1")
record=docs/benchmarks/instructions.md
at=$PWD/build/instructions
slack=10 # per cent, either way

fail() {
  echo "test-instructions: $*" >&2
  exit 1
}
rm -rf "$at"
mkdir -p "$at"
cc -std=gnu11 -O2 -Wall -Wextra -Werror -I"$prefix/include" benches/instructions.c -o "$at/instructions" \
  -L"$prefix/lib" -lgloo_rs -Wl,-rpath,"$prefix/lib"

# Over TCP, also between ranks that could share memory.
export GLOO_RS_SHM=0
declare -A counts dumps
# measure plain|request first|whole
measure() {
  local name=$1-$2 here=$at/$1-$2 all
  mkdir -p "$here/store"
  mkfifo "$here/ready"
  timeout 120 "$at/instructions" 1 "$here/store" "$here/ready" "$1" "$2" &
  peer=$!
  trap 'kill "$peer" 2>/dev/null || true' EXIT
  timeout 120 valgrind --quiet --tool=callgrind --collect-atstart=no --callgrind-out-file="$here/callgrind" \
    "$at/instructions" 0 "$here/store" "$here/ready" "$1" "$2" 2>"$here/valgrind.log" ||
    { cat "$here/valgrind.log"; fail "rank 0 failed"; }
  wait "$peer" || fail "rank 1 failed"
  trap - EXIT
  # A call that finds that the device's thread has taken the context over takes a few instructions more; the least is one that
  # does not.
  mapfile -t all < <(sed -n 's/^totals: //p' "$here"/callgrind.* | sort -n)
  ((${#all[@]} == 15)) || fail "${#all[@]} calls were counted, not 15"
  [ "${all[0]}" -gt 0 ] || fail "nothing was counted"
  counts[$name]=${all[0]}
  dumps[$name]=$(grep -lx "totals: ${all[0]}" "$here"/callgrind.* | head -n 1)
  echo "instructions of ${said[$name]}, 15 calls: ${all[0]} to ${all[14]}"
}
declare -A said=(
  [plain-first]="gloo_rs_allreduce to the first byte sent"
  [request-first]="gloo_rs_start to the first byte sent"
  [plain-whole]="gloo_rs_allreduce"
  [request-whole]="gloo_rs_start and gloo_rs_wait"
)
for until in first whole; do
  measure plain "$until"
  measure request "$until"
  ((counts[request-$until] < counts[plain-$until])) || fail "a request costs more than a plain call"
done

if [ "${2:-}" = --write ]; then
  {
    cat <<TEXT
# Instructions of a small allreduce

Allreduce of one float32 (4 bytes), two ranks over loopback TCP, after 100 calls of the same, by a plain call and by a
[persistent request](../semantics.md#persistent-requests), in the release build that \`make install\` installs. The first byte is
sent at the library's call of \`send\`. In whole calls the other rank has sent its part before, so nothing waits.

TEXT
    for name in plain-first request-first plain-whole request-whole; do
      echo "- ${said[$name]}: ${counts[$name]}"
    done
    cat <<TEXT

Counted by callgrind: what the kernel does is not in it, and nothing in it depends on time. \`make test\` counts again
(\`make test-instructions\`) and fails if a number is more than $slack % above, or if a request costs more than a plain call; after
a change that is meant, \`scripts/test-instructions.sh build/prefix --write\` writes this page anew.
TEXT
    for name in plain-first request-whole; do
      cat <<TEXT

## ${said[$name]}

With what each function calls; one that is inlined counts for its caller:

| instructions | function |
|---:|---|
TEXT
      # Lines are `COUNT (SHARE) FILE:FUNCTION [OBJECT]`; a function has one for each file that was inlined into it.
      callgrind_annotate --auto=no --inclusive=yes --threshold=100 "${dumps[$name]}" 2>/dev/null |
        sed -nE 's/^ *([0-9,]+) \([^)]*\) +[^:]*:(.*gloo_rs.*|__mem.*)$/\1 \2/p' | sed -E 's/ \[[^]]*\]$//' |
        awk -v all="${counts[$name]}" '{ n = $1; gsub(",", "", n); n += 0; sub(/^[^ ]* /, ""); gsub("gloo_rs::", ""); gsub(/[|]/, "\\|") }
          n >= all * 0.04 && !seen[$0]++ { printf "| %d | `%s` |\n", n, $0 }'
    done
    printf '\n%s, %s.\n' "$(rustc --version | cut -d' ' -f1,2)" "$(ldd --version | sed -n '1s/.* /glibc /p')"
  } >"$record"
  echo "test-instructions: wrote $record"
  exit 0
fi

update="scripts/test-instructions.sh $1 --write, and commit $record"
for name in plain-first request-first plain-whole request-whole; do
  count=${counts[$name]}
  recorded=$(sed -n "s/^- ${said[$name]}: //p" "$record")
  [[ $recorded =~ ^[1-9][0-9]*$ ]] || fail "$record has no line \"- ${said[$name]}: NUMBER\""
  ((count * 100 <= recorded * (100 + slack))) ||
    fail "${said[$name]}: $count instructions instead of $recorded, more than $slack % above; if that is meant: $update"
  if ((count * 100 < recorded * (100 - slack))); then
    echo "test-instructions: ${said[$name]}: $count instead of $recorded, more than $slack % below: to hold it there, $update"
  fi
done
echo "test-instructions: all are recorded, $slack % more would be allowed"
