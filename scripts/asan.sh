#!/bin/bash
# Builds the library with AddressSanitizer, and prints for the option GLOO_RS_TESTS_ASAN of c_tests/ where it and its runtime are.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(uname -m)-unknown-linux-gnu
built=${CARGO_TARGET_DIR:-target}/asan
PATH=$(scripts/rust.sh path)
# Where another build has made the declarations of this version of rdma-core, cargo takes them in place of the build script, for which it
# would compile bindgen once more.
version=$(sed -n '/^name = "ibverbs-sys"/{n;s/^version = "\(.*\)"/\1/p}' Cargo.lock)
made=$(grep -lF "ibverbs-sys-$version/" "${CARGO_TARGET_DIR:-target}"/debug/build/ibverbs-sys-*/output 2>/dev/null | head -n 1 || true)
results=()
if [ -n "$made" ] && [ -e "$(dirname "$made")/out/bindings.rs" ]; then
  script="target.$target.ibverbs"
  results=(--config "$script.rustc-link-lib=[\"ibverbs\"]" --config "$script.rustc-env.OUT_DIR=\"$(realpath "$(dirname "$made")")/out\"")
fi
# On a stable compiler the flag is unstable: nothing that is installed is built so.
CARGO_PROFILE_DEV_OPT_LEVEL=1 RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address -Cforce-frame-pointers=yes -Clto=off" \
  cargo rustc --locked -p gloo_rs --quiet --lib --crate-type cdylib --no-default-features --features ibverbs --target "$target" --target-dir "$built" "${results[@]}" >&2
runtime=("$(rustc --print target-libdir)"/librustc-*_rt.asan.a)
[ -e "${runtime[0]}" ] || { echo "asan: $(type -P rustc) has no runtime for AddressSanitizer; rustup's has" >&2; exit 1; }
echo "$(realpath "$built")/$target/debug/libgloo_rs.so;${runtime[0]}"
