#!/bin/bash
# Installs into .cache/zig the C compiler for macOS, which is zig's as a wheel, unless it is there.
set -euo pipefail
cd "$(dirname "$0")/../.."
zig=.cache/zig
version=$(sed -n 's/^ziglang==\([0-9.]*\) .*/\1/p' scripts/cross/zig.txt)
[ "$("$zig/ziglang/zig" version 2>/dev/null)" != "$version" ] || exit 0
echo "cross: fetching zig $version, 81 MB"
rm -rf "$zig"
if ! said=$(python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-compile --no-deps --only-binary=:all: \
  --require-hashes --requirement scripts/cross/zig.txt --target "$zig" 2>&1); then
  echo "cross: zig could not be installed; is there a network? $(tail -n 1 <<<"$said")" >&2
  exit 1
fi
