#!/bin/bash
# Runs the tests with many threads under ThreadSanitizer.
# It sees only what is compiled for it, and without the standard library's locks it would see races that are none: so the
# standard library is compiled too, from the sources of a toolchain that has them (rustup component add rust-src).
# usage: scripts/tsan.sh [ARGUMENTS OF cargo test]
set -euo pipefail
cd "$(dirname "$0")/.."

toolchain=
for candidate in $(rustup show active-toolchain | cut -d' ' -f1) $(rustup toolchain list | cut -d' ' -f1); do
  if [ -d "$(rustc +"$candidate" --print sysroot)/lib/rustlib/src/rust/library" ]; then
    toolchain=$candidate
    break
  fi
done
if [ -z "$toolchain" ]; then
  echo "tsan: no toolchain has the standard library's sources: rustup component add rust-src" >&2
  exit 1
fi

tests=("$@")
if ((${#tests[@]} == 0)); then
  tests=(--lib --test stress --test failures -- engine:: context:: everything_at_once rank)
fi
# An unstable flag on a stable compiler: nothing that is installed is built so.
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="-Zsanitizer=thread"
export TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS:-}"
cargo "+$toolchain" test --locked --no-default-features -Zbuild-std --target "$(uname -m)-unknown-linux-gnu" \
  --target-dir "${CARGO_TARGET_DIR:-target}/tsan" "${tests[@]}"
