#!/bin/bash
# Trains the digits example with one rank, with four, and with ranks that are killed and replaced, and checks that all end at the same loss.
# usage: scripts/demo.sh PREFIX    (where gloo_rs is installed)
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(realpath "$1")

# Sums of floating-point numbers depend on their order, and the order on the number of ranks. Over the 920 steps the
# difference stays below one part in a million; a gradient that is lost or counted twice changes the first digit.
tolerance=1e-4

csv=$(scripts/get-digits.sh)
cmake -S examples/digits -B build/digits -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build build/digits >/dev/null

loss() { sed -n 's/.*final loss \([0-9.]*\)$/\1/p' "$1"; }
for ranks in 1 4; do
  printf '\n--- %s rank(s)\n' "$ranks"
  "$prefix/bin/gloo-rs" run -n "$ranks" -- build/digits/digits "$csv" | tee "build/digits/$ranks.txt"
done
one=$(loss build/digits/1.txt)
four=$(loss build/digits/4.txt)
same() { # what it is with, and its loss
  awk -v one="$one" -v what="$1" -v other="$2" -v tolerance="$tolerance" 'BEGIN {
    if (one !~ /^[0-9]+\.[0-9]+$/ || other !~ /^[0-9]+\.[0-9]+$/ || one <= 0) {
      print "demo: no final loss to compare: \"" one "\" and \"" other "\""
      exit 1
    }
    difference = (other - one) / one
    if (difference < 0) difference = -difference
    printf "final loss with 1 rank %s, with %s %s: they differ by %.1e of it (%s is allowed)\n", one, what, other, difference, tolerance
    if (difference > tolerance) {
      print "demo: one rank and " what " did not compute the same"
      exit 1
    }
  }'
}
printf '\n'
same '4 ranks' "$four"

printf '\n--- ranks that are killed and replaced, every 0.3 s\n'
timeout 120 build/digits/digits_elastic "$csv" 300 | tee build/digits/elastic.txt
mapfile -t losses < <(loss build/digits/elastic.txt)
[ "${#losses[@]}" -gt 0 ] || { echo "demo: no process has ended the training" >&2; exit 1; }
for each in "${losses[@]}"; do same 'changing ranks' "$each"; done
