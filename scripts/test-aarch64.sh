#!/bin/bash
# The library's own tests that depend on the processor or reach into memory, built for aarch64 and run by qemu.
# usage: scripts/test-aarch64.sh [ARGUMENTS OF THE TESTS...]
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(uname -m)" = aarch64 ]; then
  echo "test-aarch64: this machine is one, so all tests are"
  exit 0
fi
tests=("$@")
if ((${#tests[@]} == 0)); then
  # Filters are parts of names; those of collectives hold some of them.
  # qemu knows neither process_vm_readv nor MADV_POPULATE_WRITE, which the last two tests need that are left out.
  tests=(ffi:: messaging:: reduce::tests schedule:: engine::shared::tests::ranks publications:: transport::shm wire:: --skip collective::allreduce --skip collective::reduce --skip ranks_reduce_in_place_what --skip pages_are_taken_when)
fi
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
export CARGO_PROFILE_DEV_OPT_LEVEL=1
# A folder of its own, so that it can be built beside others.
cargo_test=(cargo test --locked -p gloo_rs --target aarch64-unknown-linux-gnu --target-dir "${CARGO_TARGET_DIR:-target}/aarch64" --no-default-features --lib)
exec "${cargo_test[@]}" -- "${tests[@]}"
