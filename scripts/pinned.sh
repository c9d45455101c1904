#!/bin/bash
# Prints the path of a tool that cargo installs, in the version that a file of this repository pins; builds it first if it is not there.
# usage: scripts/pinned.sh bindgen | cargo-deny | cargo-fuzz
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1
crate=$name
case $name in
  bindgen) file=python/Cargo.toml crate=bindgen-cli ;;
  cargo-deny) file=deny.toml ;;
  cargo-fuzz) file=fuzz/Cargo.toml ;;
  *) echo "pinned: no such tool: $name" >&2 && exit 2 ;;
esac
version=$(sed -n "s/^# $name-version = //p" "$file")
tool=$PWD/.cache/$name/bin/$name
is_pinned() { [ "$("$1" --version 2>/dev/null)" = "$name $version" ]; }
mkdir -p ".cache/$name/bin"
# One that is needed may be under way in another process.
exec 9>".cache/$name/lock"
flock 9
if ! is_pinned "$tool"; then
  if there=$(command -v "$name") && is_pinned "$there"; then
    ln -sf "$there" "$tool"
  else
    echo "pinned: building $name $version" >&2
    host=$(rustc --version --verbose | sed -n 's/^host: //p')
    # How fast it is does not matter, how long it takes to build does.
    cargo install --quiet --locked --debug --version "$version" --root ".cache/$name" --force --target "$host" "$crate" >&2 9<&-
  fi
fi
echo "$tool"
