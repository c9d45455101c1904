#!/bin/bash
# Fuzzes each target for a while, and then keeps in fuzz/corpus/ the fewest inputs that reach as much.
# usage: scripts/fuzz.sh SECONDS [TARGET...]    (default: all)
# Needs a nightly toolchain and cargo fuzz: rustup toolchain install nightly && cargo install cargo-fuzz
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shift
if (($# == 0)); then mapfile -t targets < <(cargo +nightly fuzz list); else targets=("$@"); fi
most=200 # files of a corpus, as the test that replays it demands

for target in "${targets[@]}"; do
  printf '\n--- %s\n' "$target"
  found=build/fuzz/$target
  mkdir -p "$found" fuzz/artifacts
  # What is found goes to the first folder; the second only begins it.
  cargo +nightly fuzz run "$target" "$found" "fuzz/corpus/$target" -- -max_total_time="$seconds" -timeout=20 \
    -rss_limit_mb=3000 -max_len=1024 -print_final_stats=1
  fewest=build/fuzz/$target.fewest
  rm -rf "$fewest"
  mkdir "$fewest"
  cargo +nightly fuzz run "$target" "$fewest" "fuzz/corpus/$target" "$found" -- -merge=1 -rss_limit_mb=3000 2>&1 | tail -n 1
  # Inputs with a name stay: somebody wrote them, or they were findings. Of the others, which are called by their digests, the
  # longest are dropped beyond the limit.
  find "fuzz/corpus/$target" -type f -regextype posix-extended -regex '.*/[0-9a-f]{40}' -delete
  left=$((most - $(ls "fuzz/corpus/$target" | wc -l)))
  find "$fewest" -type f -printf '%s %p\n' | sort -n | head -n "$left" | cut -d' ' -f2 | xargs -r -I{} cp {} "fuzz/corpus/$target/"
  ls "fuzz/corpus/$target" | wc -l | sed 's/$/ inputs are kept/'
done
