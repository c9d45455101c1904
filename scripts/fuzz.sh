#!/bin/bash
# Fuzzes each target for a while.
# usage: scripts/fuzz.sh run SECONDS [TARGET...]         (default: all)
#        scripts/fuzz.sh minimize SECONDS [TARGET...]    and then keeps in fuzz/corpus/ the fewest inputs that reach as much
set -euo pipefail
cd "$(dirname "$0")/.."
task=$1
seconds=$2
shift 2
case $task in
  run | minimize) ;;
  *) echo "fuzz: no such task: $task" >&2 && exit 2 ;;
esac
PATH=$(scripts/rust.sh path)
tool=$(scripts/pinned.sh cargo-fuzz)
# On a stable compiler the flags that cargo-fuzz passes are unstable: nothing that is installed is built so.
export RUSTC_BOOTSTRAP=1
if (($# == 0)); then mapfile -t targets < <("$tool" fuzz list); else targets=("$@"); fi
((${#targets[@]})) || { echo "fuzz: there are no targets" >&2; exit 1; }
most=200 # files of a corpus, as the test that replays it demands
# A target triple of its own: cargo-fuzz was perhaps built for another C library than the one here.
host=$(rustc --version --verbose | sed -n 's/^host: //p')
fuzz() { "$tool" fuzz run --target "$host" "$@"; }

for target in "${targets[@]}"; do
  printf '\n--- %s\n' "$target"
  found=build/fuzz/$target
  mkdir -p "$found" fuzz/artifacts
  # What is found goes to the first folder; the second only begins it.
  fuzz "$target" "$found" "fuzz/corpus/$target" -- -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3000 -max_len=1024 -print_final_stats=1 \
    >"$found.log" 2>&1 || { tail -n 60 "$found.log"; exit 1; }
  sed -n 's/^stat::number_of_executed_units: */inputs: /p' "$found.log" | grep .
  [ "$task" = minimize ] || continue
  fewest=build/fuzz/$target.fewest
  rm -rf "$fewest"
  mkdir "$fewest"
  fuzz "$target" "$fewest" "fuzz/corpus/$target" "$found" -- -merge=1 -rss_limit_mb=3000 2>&1 | tail -n 1
  # Inputs with a name stay: somebody wrote them, or they were findings. Of the others, which are called by their digests, the
  # longest are dropped beyond the limit.
  find "fuzz/corpus/$target" -type f -regextype posix-extended -regex '.*/[0-9a-f]{40}' -delete
  left=$((most - $(ls "fuzz/corpus/$target" | wc -l)))
  find "$fewest" -type f -printf '%s %p\n' | sort -n | head -n "$left" | cut -d' ' -f2 | xargs -r -I{} cp {} "fuzz/corpus/$target/"
  ls "fuzz/corpus/$target" | wc -l | sed 's/$/ inputs are kept/'
done
