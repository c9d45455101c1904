#!/bin/bash
# setup.sh [bench]: installs what the build and its tests, and with `bench` the benchmarks, need and this machine lacks; a second run finds nothing to do.
# Rust must be there already. Debian's packages come by apt-get, cbindgen by cargo into .cache/.
set -euo pipefail
cd "$(dirname "$0")/.."

PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
if ! command -v cargo >/dev/null; then
  echo "setup: cargo is not on PATH; install Rust first: https://rustup.rs" >&2
  exit 1
fi
for part in fmt clippy; do
  if ! cargo "$part" --version >/dev/null 2>&1; then
    echo "setup: cargo $part is missing: rustup component add rustfmt clippy" >&2
    exit 1
  fi
done

missing=()
need() { # PACKAGE COMMAND...: the package, unless the command succeeds
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}
need g++ g++ --version
need make make --version
need cmake cmake --version
need ninja-build ninja --version
need pkg-config pkg-config --version
need valgrind valgrind --version
need python3 python3 --version
need python3-pip python3 -m pip --version
need redis-server redis-server --version
need openssl openssl version
need openmpi-bin mpirun.openmpi --version
need mpich mpiexec.mpich --version
need openssh-client ssh -V
need openssh-server test -x /usr/sbin/sshd
need iproute2 ip -V
need nftables /usr/sbin/nft --version
if [ "${1:-}" = bench ]; then # only `make bench` needs these
  need libgloo-dev test -e /usr/include/gloo/allreduce.h
  need libopenmpi-dev mpicxx.openmpi --version
fi

if ((${#missing[@]})); then
  as_root=()
  if ((EUID != 0)); then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
      as_root=(sudo -n)
    else
      echo "setup: missing packages, and no right to install them. Run as root:" >&2
      echo "  apt-get update && apt-get install --yes --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
  fi
  echo "setup: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  # RUNLEVEL=1: the tests start the servers that they need, on ports of their own; no service is to run for it.
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    RUNLEVEL=1 apt-get install --yes -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# Where `make test` finds the pinned cbindgen, whether it was installed here or was there. cbindgen.toml pins it.
cbindgen=.cache/cbindgen/bin/cbindgen
version=$(sed -n 's/^# cbindgen-version = //p' cbindgen.toml)
is_pinned() { [ "$("$1" --version 2>/dev/null)" = "cbindgen $version" ]; }
if ! is_pinned "$cbindgen"; then
  if there=$(command -v cbindgen) && is_pinned "$there"; then
    mkdir -p "$(dirname "$cbindgen")"
    ln -sf "$there" "$cbindgen"
  else
    echo "setup: installing cbindgen $version"
    cargo install --quiet --locked --version "$version" --root .cache/cbindgen --force cbindgen
  fi
fi
echo "setup: all is there"
