#!/bin/bash
# Builds the library with AddressSanitizer, and prints for the option GLOO_RS_TESTS_ASAN of c_tests/ where it and its runtime are.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(uname -m)-unknown-linux-gnu
built=${CARGO_TARGET_DIR:-target}/asan
PATH=$(scripts/rust.sh path)
# On a stable compiler the flag is unstable: nothing that is installed is built so.
CARGO_PROFILE_DEV_OPT_LEVEL=1 RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address -Cforce-frame-pointers=yes -Clto=off" \
  cargo rustc --locked -p gloo_rs --quiet --lib --crate-type cdylib --no-default-features --features ibverbs --target "$target" --target-dir "$built" >&2
runtime=("$(rustc --print target-libdir)"/librustc-*_rt.asan.a)
[ -e "${runtime[0]}" ] || { echo "asan: $(type -P rustc) has no runtime for AddressSanitizer; rustup's has" >&2; exit 1; }
echo "$(realpath "$built")/$target/debug/libgloo_rs.so;${runtime[0]}"
