#!/bin/bash
# Makes a bare Debian 12 one that has gloo_rs in /usr/local, as root. The steps of the Dockerfile, which also pass without Docker.
# usage: scripts/container.sh            all of these, in this order
#        scripts/container.sh rust       Rust by rustup, unless there is one that is new enough
#        scripts/container.sh install    what the build needs; builds and installs library and tool
#        scripts/container.sh check      what is installed runs; reads no other file of the repository
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=/usr/local

fail() {
  echo "container: $*" >&2
  exit 1
}
((EUID == 0)) || fail "it installs packages and writes into $prefix: run it as root"

get_rust() {
  if scripts/rust.sh check 2>/dev/null; then return; fi
  # The oldest that Cargo.toml allows, so that another day's image is made by the same compiler.
  local version at
  version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
  scripts/apt-install.sh ca-certificates curl
  at=$(mktemp -d)
  curl --proto '=https' --tlsv1.2 --silent --show-error --fail --output "$at/rustup-init" \
    "https://static.rust-lang.org/rustup/dist/$(uname -m)-unknown-linux-gnu/rustup-init"
  chmod +x "$at/rustup-init"
  "$at/rustup-init" -y --quiet --no-modify-path --profile minimal --default-toolchain "$version" >/dev/null
  rm -r "$at"
  scripts/rust.sh check
}

check() {
  # The linker's cache lies outside of the prefix, and is not copied with it.
  /sbin/ldconfig
  /sbin/ldconfig -p | grep "libgloo_rs\.so\..* => $prefix/lib/" >/dev/null || fail "the dynamic linker does not find libgloo_rs in $prefix/lib"
  "$prefix/bin/gloo-rs" info
  # Fails if a result is wrong.
  "$prefix/bin/gloo-rs" bench allreduce --ranks 2 --sizes 4,1Mi
  # Where there is a compiler, a program of a user's.
  if command -v cc >/dev/null; then
    local at
    at=$(mktemp -d)
    printf '#include <gloo_rs.h>\n#include <stdio.h>\nint main(void) { return puts(gloo_rs_version()) < 0; }\n' >"$at/version.c"
    cc "$at/version.c" -o "$at/version" -lgloo_rs
    "$at/version"
    rm -r "$at"
  fi
  echo "container: gloo_rs is in $prefix, and runs"
}

case ${1:-all} in
  rust) get_rust ;;
  install) scripts/install.sh "$prefix" ;;
  check) check ;;
  all)
    get_rust
    scripts/install.sh "$prefix"
    check
    ;;
  *) fail "no such step: $1" ;;
esac
