#!/bin/bash
# Counts the instructions of a small allreduce over TCP and in shared memory, by a plain call and by a request, to what the other
# rank can see first and to the end, and compares with the recorded numbers.
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

cases=(plain-tcp-first request-tcp-first plain-tcp-whole request-tcp-whole
  plain-shm-first request-shm-first plain-shm-whole request-shm-whole)
declare -A counts dumps said=(
  [plain-tcp-first]="gloo_rs_allreduce over TCP, to the first byte sent"
  [request-tcp-first]="gloo_rs_start over TCP, to the first byte sent"
  [plain-tcp-whole]="gloo_rs_allreduce over TCP"
  [request-tcp-whole]="gloo_rs_start and gloo_rs_wait over TCP"
  [plain-shm-first]="gloo_rs_allreduce in shared memory, to the first store"
  [request-shm-first]="gloo_rs_start in shared memory, to the first store"
  [plain-shm-whole]="gloo_rs_allreduce in shared memory"
  [request-shm-whole]="gloo_rs_start and gloo_rs_wait in shared memory"
)
# The instructions in a dump, without those of the program itself. The line after `calls=` repeats what the callee has.
count() {
  awk '/^ob=/ { is_own = /\/instructions$/ } /^calls=/ { getline; next } /^[0-9]+ [0-9]+$/ && !is_own { sum += $2 }
    END { print sum + 0 }' "$1"
}
# measure CASE
measure() {
  local case=$1 here=$at/$1 call link until all options=() shm=0
  IFS=- read -r call link until <<<"$case"
  [ "$link" = tcp ] || shm=1
  # Otherwise collection stops only at the end of a block of instructions.
  [ "$until" = whole ] || options=(--vex-guest-max-insns=1)
  mkdir -p "$here/store"
  mkfifo "$here/go" "$here/ready"
  local arguments=("$here/store" "$here/go" "$here/ready" "$call" "$until")
  GLOO_RS_SHM=$shm timeout 120 "$at/instructions" 1 "${arguments[@]}" &
  peer=$!
  trap 'kill "$peer" 2>/dev/null || true' EXIT
  GLOO_RS_SHM=$shm timeout 120 valgrind --quiet --tool=callgrind --collect-atstart=no --compress-strings=no --compress-pos=no \
    "${options[@]}" --callgrind-out-file="$here/callgrind" "$at/instructions" 0 "${arguments[@]}" 2>"$here/valgrind.log" ||
    { cat "$here/valgrind.log"; fail "rank 0 failed"; }
  wait "$peer" || fail "rank 1 failed"
  trap - EXIT
  mapfile -t all < <(for dump in "$here"/callgrind.*; do echo "$(count "$dump") $dump"; done | sed '/^0 /d' | sort -n)
  ((${#all[@]} == 15)) || fail "${#all[@]} calls were counted, not 15"
  # All are equal, unless there is a cause that is not known yet.
  read -r counts[$case] dumps[$case] <<<"${all[7]}"
  echo "instructions of ${said[$case]}, 15 calls: ${all[0]%% *} to ${all[14]%% *}"
}
for case in "${cases[@]}"; do
  measure "$case"
done
# Over TCP a start and a wait take the lock once each, and a call takes it once for both.
for until in tcp-first shm-first shm-whole; do
  ((counts[request-$until] < counts[plain-$until])) || fail "a request costs more than a plain call ($until)"
done
# Whatever is recorded.
((counts[plain-shm-first] <= 250 && counts[plain-shm-whole] <= 632)) ||
  fail "a plain call in shared memory needs more than 250 instructions to its first store, or more than 632 to its end"
# A compiler has made reductions of 8-byte elements out of them: four times as slow.
gathers=$(objdump -d --no-show-raw-insn "$prefix/lib/libgloo_rs.so" | grep -cE '\sv(p?gather|p?scatter)[dq]' || true)
((gathers == 0)) || fail "the library has $gathers gathers or scatters; see one_block_at_a_time in src/reduce/fused.rs"

if [ "${2:-}" = --write ]; then
  {
    cat <<TEXT
# Instructions of a small allreduce

Allreduce of one float32 (4 bytes) between two ranks of one host, after 100 calls of the same, by a plain call and by a
[persistent request](../semantics.md#persistent-requests), in the release build that \`make install\` installs. Over TCP the first
byte is sent at the library's call of \`send\`. In shared memory the first store is the first one into memory that the other rank can
read. The other rank's part has arrived before the call, and nothing else, so nothing waits.

TEXT
    for name in "${cases[@]}"; do
      echo "- ${said[$name]}: ${counts[$name]}"
    done
    cat <<TEXT

Counted by callgrind: neither the kernel nor the program that calls is in it, and nothing in it depends on time: all 15 calls that are
counted need the same number, also on a busy machine. \`make test\` counts again (\`make test-instructions\`) and fails if a number is
more than $slack % above, if a request costs as much as a plain call to the first byte or in shared memory, or if a plain call in shared memory needs more than 250 to the first
store, or 632 to its end, of which the [flight recorder](../recorder.md) takes 32. After a change that is meant, \`scripts/test-instructions.sh build/prefix --write\` writes this page anew.
TEXT
    for name in plain-tcp-first request-tcp-whole plain-shm-whole; do
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
for name in "${cases[@]}"; do
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
