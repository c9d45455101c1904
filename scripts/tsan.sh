#!/bin/bash
# Runs tests with many threads under ThreadSanitizer, which sees only what is compiled for it: so the library, the standard
# library below it, whose locks it would not understand otherwise, and the C programs above it are. That takes the standard
# library's sources, which are installed if no toolchain has them.
# usage: scripts/tsan.sh                                 C programs with many threads, and a part of tests/jobs/stress.rs
#        scripts/tsan.sh PROGRAM...                      programs of c_tests/
#        scripts/tsan.sh rust [ARGUMENTS OF cargo test]  the Rust tests with many threads
set -euo pipefail
cd "$(dirname "$0")/.."
at=$PWD/build/tsan
programs=(concurrency unbound_buffer callbacks queues)
if (($#)) && [ "$1" != rust ]; then programs=("$@"); fi
target=$(uname -m)-unknown-linux-gnu

command -v rustup >/dev/null || { echo "tsan: the standard library's sources come by rustup, which is missing: https://rustup.rs" >&2; exit 1; }
with_sources() { # the first toolchain that has the standard library's sources, and that Cargo.toml allows
  local candidate
  for candidate in $(rustup show active-toolchain | cut -d' ' -f1) $(rustup toolchain list | cut -d' ' -f1); do
    if scripts/rust.sh allows rustc "+$candidate" && [ -d "$(rustc "+$candidate" --print sysroot)/lib/rustlib/src/rust/library" ]; then
      echo "$candidate"
      return
    fi
  done
}
toolchain=$(with_sources)
if [ -z "$toolchain" ]; then
  echo "tsan: installing the standard library's sources"
  rustup component add rust-src || { echo "tsan: ThreadSanitizer needs them: rustup component add rust-src" >&2; exit 1; }
  toolchain=$(with_sources)
fi

echo "tsan: ThreadSanitizer, with the sources of $toolchain"
# Unstable flags on a stable compiler: nothing that is installed is built so.
export RUSTC_BOOTSTRAP=1 CARGO_PROFILE_DEV_OPT_LEVEL=1
export RUSTFLAGS="-Zsanitizer=thread"
export TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS:-}"
# A fifth of its rounds.
export GLOO_RS_TEST_STRESS_PART=5
built=${CARGO_TARGET_DIR:-target}/tsan
for_tsan=(--locked -p gloo_rs --no-default-features -Zbuild-std --target "$target" --target-dir "$built")

if [ "${1:-}" = rust ]; then
  shift
  tests=("$@")
  if ((${#tests[@]} == 0)); then
    tests=(--lib --test jobs -- engine:: context:: publications:: transport::shm stress:: failures::)
  fi
  exec cargo "+$toolchain" test "${for_tsan[@]}" "${tests[@]}"
fi

echo "tsan: building the library and the standard library below it, which takes minutes"
cargo "+$toolchain" build "${for_tsan[@]}" --lib
rm -rf "$at"
mkdir -p "$at"
runtime=("$(rustc "+$toolchain" --print target-libdir)"/librustc-*_rt.tsan.a)
for name in "${programs[@]}"; do
  cc -std=c11 -D_POSIX_C_SOURCE=200809L -g -O1 -fsanitize=thread -Iinclude -c "c_tests/$name.c" -o "$at/$name.o"
  # The C compiler's own runtime, of another version, stays out.
  cc "$at/$name.o" "$built/$target/debug/libgloo_rs.a" -Wl,--whole-archive "${runtime[@]}" -Wl,--no-whole-archive \
    -lstdc++ -lpthread -ldl -lm -o "$at/$name"
  echo "tsan: running $name"
  timeout 300 "$at/$name"
done
if (($# == 0)); then
  echo "tsan: running tests/jobs/stress.rs"
  cargo "+$toolchain" test "${for_tsan[@]}" --test jobs stress::
fi
