#!/bin/bash
# Counts the instructions from the call of a small allreduce to the first byte sent, and compares with the recorded number.
# usage: scripts/test-instructions.sh PREFIX [--write]    (where gloo_rs is installed; --write records the number)
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
mkdir -p "$at/store"
cc -std=gnu11 -O2 -Wall -Wextra -Werror -I"$prefix/include" benches/instructions.c -o "$at/instructions" \
  -L"$prefix/lib" -lgloo_rs -Wl,-rpath,"$prefix/lib"

timeout 120 "$at/instructions" 1 "$at/store" &
peer=$!
trap 'kill "$peer" 2>/dev/null || true' EXIT
timeout 120 valgrind --quiet --tool=callgrind --collect-atstart=no --callgrind-out-file="$at/callgrind" \
  "$at/instructions" 0 "$at/store" 2>"$at/valgrind.log" || { cat "$at/valgrind.log"; fail "rank 0 failed"; }
wait "$peer" || fail "rank 1 failed"
trap - EXIT

# A call that finds that the device's thread has taken the context over takes a few instructions more; the least is one that does not.
mapfile -t counts < <(sed -n 's/^totals: //p' "$at"/callgrind.* | sort -n)
((${#counts[@]} == 15)) || fail "${#counts[@]} calls were counted, not 15"
count=${counts[0]}
[ "$count" -gt 0 ] || fail "nothing was counted"
echo "instructions from the call to the first byte sent, 15 calls: $count to ${counts[14]}"

if [ "${2:-}" = --write ]; then
  dump=$(grep -lx "totals: $count" "$at"/callgrind.* | head -n 1)
  {
    cat <<TEXT
# Instructions from the call to the first byte sent

Allreduce of one float32 (4 bytes), two ranks over loopback TCP, after 100 calls of the same: from the call of
\`gloo_rs_allreduce\` to the library's call of \`send\`, in the release build that \`make install\` installs.

instructions: $count

Counted by callgrind: what the kernel does is not in it, and nothing in it depends on time. \`make test\` counts again
(\`make test-instructions\`) and fails if the number is more than $slack % above; after a change that is meant,
\`scripts/test-instructions.sh build/prefix --write\` writes this page anew.

Where they go, with what each function calls; one that is inlined counts for its caller:

| instructions | function |
|---:|---|
TEXT
    # Lines are `COUNT (SHARE) FILE:FUNCTION [OBJECT]`; a function has one for each file that was inlined into it.
    callgrind_annotate --auto=no --inclusive=yes --threshold=100 "$dump" 2>/dev/null |
      sed -nE 's/^ *([0-9,]+) \([^)]*\) +[^:]*:(.*gloo_rs.*|__mem.*)$/\1 \2/p' | sed -E 's/ \[[^]]*\]$//' |
      awk -v all="$count" '{ n = $1; gsub(",", "", n); n += 0; sub(/^[^ ]* /, ""); gsub("gloo_rs::", ""); gsub(/[|]/, "\\|") }
        n >= all * 0.04 && !seen[$0]++ { printf "| %d | `%s` |\n", n, $0 }'
    printf '\n%s, %s.\n' "$(rustc --version | cut -d' ' -f1,2)" "$(ldd --version | sed -n '1s/.* /glibc /p')"
  } >"$record"
  echo "test-instructions: wrote $record"
  exit 0
fi

recorded=$(sed -n 's/^instructions: //p' "$record")
[[ $recorded =~ ^[1-9][0-9]*$ ]] || fail "$record has no line \"instructions: NUMBER\""
update="scripts/test-instructions.sh $1 --write, and commit $record"
((count * 100 <= recorded * (100 + slack))) ||
  fail "$count instructions instead of $recorded, more than $slack % above; if that is meant: $update"
if ((count * 100 < recorded * (100 - slack))); then
  echo "test-instructions: $count instead of $recorded, more than $slack % below: to hold it there, $update"
fi
echo "test-instructions: $recorded are recorded, $slack % more would be allowed"
