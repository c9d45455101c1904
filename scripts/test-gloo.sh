#!/bin/bash
# Gloo's own tests, unchanged, built with the headers of the installed package and run over it. Their source is not ours to distribute with this
# library's: it is taken from a checkout of Gloo, or downloaded from Debian's archive.
# Needs curl, CMake, GoogleTest and openssl.
# usage: scripts/test-gloo.sh PREFIX [GLOO]
#   GLOO   a checkout of Gloo
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(realpath "$1")
gloo=${2:-}
at=$PWD/build/gloo_suite
# Most tests wait for a rank that is stopped, so more run at once than there are cores.
shards=6

# The source package that Debian's unstable has, of September 2025.
package=gloo_0.0~git20250912.d97133a.orig.tar.xz
sum=43d930375720059ac67b1619c7d020d5d2cee79757caf4e75a1bfedb8eeb2b42

rm -rf "$at"
mkdir -p "$at/sources/gloo"
if [ -n "$gloo" ]; then
  cp -r "$gloo/gloo/test" "$at/sources/gloo/"
else
  downloaded=.cache/gloo/$package
  mkdir -p .cache/gloo
  [ -e "$downloaded" ] || curl --fail --silent --show-error --location --output "$downloaded" "https://deb.debian.org/debian/pool/main/g/gloo/$package" ||
    { echo "test-gloo: Debian has another version now; name a checkout of Gloo" >&2; exit 1; }
  echo "$sum  $downloaded" | sha256sum --check --quiet || { rm "$downloaded"; exit 1; }
  tar --extract --file "$downloaded" --directory "$at/sources" --strip-components 1 --wildcards '*/gloo/test'
fi

echo "test-gloo: building"
cmake -S c_tests/gloo_suite -B "$at" -DCMAKE_PREFIX_PATH="$prefix" -DGLOO_TESTS="$at/sources" >/dev/null
cmake --build "$at" --parallel "$(nproc)" >"$at/build.log" 2>&1 || { cat "$at/build.log"; exit 1; }
echo "test-gloo: running"
running=()
for ((shard = 0; shard < shards; shard++)); do
  # The tests fork their ranks. A rank that throws an exception which its test does not expect would go on with the tests after it, and fork
  # ranks of its own: --gtest_fail_fast ends it. All shards take 6 minutes on two cores.
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard timeout --kill-after=10 1200 \
    "$at/gloo_suite" --gtest_fail_fast >"$at/$shard.log" 2>&1 &
  running+=($!)
done
failed=0
for ((shard = 0; shard < shards; shard++)); do
  wait "${running[shard]}" || { failed=1; tail -n 30 "$at/$shard.log"; }
done
total() { sed -n "s/^\[  $1 *\] \([0-9]*\) tests\?.*/\1/p" "$at"/?.log | awk '{ sum += $1 } END { print sum + 0 }'; }
echo "test-gloo: $(total PASSED) passed, $(total SKIPPED) skipped (transports that this machine does not have)"
((failed == 0)) || { echo "test-gloo: a test failed; all that was said is in $at/*.log" >&2; exit 1; }
