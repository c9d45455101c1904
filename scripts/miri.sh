#!/bin/bash
# Runs under Miri, which finds undefined behaviour, the library's own tests of what has unsafe code and needs no system: the C ABI's
# pointers, options and handles, messages, the wire, reductions of several inputs, publication tables and rings in ordinary memory. Tests that it cannot run, or not in minutes, say so themselves.
# usage: scripts/miri.sh [ARGUMENTS OF THE TESTS...]
# Installs Miri, if it is not there.
set -euo pipefail
cd "$(dirname "$0")/.."
# Pinned: another day's may have no Miri, or find something else.
toolchain=nightly-2026-05-20

# What it says when all is there is of no use.
if ! said=$(cargo "+$toolchain" miri setup 2>&1); then
  command -v rustup >/dev/null || { echo "miri: it comes by rustup, which is missing: https://rustup.rs" >&2; exit 1; }
  echo "miri: installing $toolchain"
  rustup toolchain install "$toolchain" --profile minimal --component miri,rust-src
  said=$(cargo "+$toolchain" miri setup 2>&1) || { echo "miri: its standard library could not be built: $said" >&2; exit 1; }
fi
tests=("$@")
if ((${#tests[@]} == 0)); then
  tests=(ffi:: messaging:: reduce::tests::several schedule::builder publications:: transport::shm::ring wire::)
fi
# Few cases of random tests, and no files that remember failures: Miri keeps files and clocks of this machine from the tests.
export MIRIFLAGS="-Zmiri-env-set=PROPTEST_CASES=8 -Zmiri-env-set=PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 ${MIRIFLAGS:-}"
# Miri does not use what an optimised build would give it.
export CARGO_PROFILE_TEST_OPT_LEVEL=0
exec cargo "+$toolchain" miri test --locked -p gloo_rs --no-default-features --lib --target-dir "${CARGO_TARGET_DIR:-target}/miri" -- "${tests[@]}"
