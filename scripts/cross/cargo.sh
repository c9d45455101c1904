#!/bin/bash
# Runs cargo on Debian for another system. scripts/setup.sh installs what it takes.
# usage: scripts/cross/cargo.sh x86_64-pc-windows-gnu ARGUMENTS OF cargo...
#        scripts/cross/cargo.sh aarch64-apple-darwin ARGUMENTS OF cargo...    which links nothing: check, clippy, build of an rlib
#        scripts/cross/cargo.sh TARGET folder                                 prints where that target's programs go
set -euo pipefail
here=$(realpath "$(dirname "$0")")
root=$(dirname "$(dirname "$here")")
target=$1
shift
export CARGO_BUILD_TARGET=$target
# Folders of their own: build scripts of libuv-sys2 that are compiled by rustc.sh must not be taken for this system's.
CARGO_TARGET_DIR=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-$root/target}")/cross-$target
export CARGO_TARGET_DIR
case $target in
  x86_64-pc-windows-gnu)
    # C compiler, linker and headers are mingw-w64's, which cc, rustc and clang find by themselves.
    export RUSTC_WRAPPER=$here/rustc.sh
    # Encoded, since the path may have spaces.
    export CARGO_ENCODED_RUSTFLAGS=-Cdlltool=$here/dlltool
    ;;
  aarch64-apple-darwin)
    export CC_aarch64_apple_darwin=$here/macos-cc AR_aarch64_apple_darwin=$here/macos-ar
    # bindgen reads macOS's headers, and none of this system's.
    export BINDGEN_EXTRA_CLANG_ARGS_aarch64_apple_darwin="-nostdlibinc -isystem \"$root/.cache/zig/ziglang/lib/libc/include/any-macos-any\""
    ;;
  *)
    echo "cross: no such target: $target" >&2
    exit 2
    ;;
esac
if [ "${1:-}" = folder ]; then
  echo "$CARGO_TARGET_DIR/$target"
else
  exec cargo "$@"
fi
