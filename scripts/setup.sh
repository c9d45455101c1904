#!/bin/bash
# Installs what is needed and this machine lacks; a second run finds nothing to do.
# usage: scripts/setup.sh [build | demo | bench | test | fresh]
#   build   for the library and the tool          demo   for the example besides
#   bench   for the benchmarks besides            test   for all of `make test` (the default)
#   fresh   for `make test-fresh`
# Rust must be there already. Debian's packages come by apt-get, cbindgen and cargo-deny by cargo into .cache/.
set -euo pipefail
cd "$(dirname "$0")/.."
level=${1:-test}

PATH=$(scripts/rust.sh path)
scripts/rust.sh check
if [ "$level" = test ]; then
  for part in fmt clippy; do
    if ! cargo "$part" --version >/dev/null 2>&1; then
      echo "setup: $(command -v cargo) has no $part: rustup component add rustfmt clippy" >&2
      exit 1
    fi
  done
fi

missing=()
need() { # LEVELS PACKAGE COMMAND...: at these levels the package, unless the command succeeds
  local levels=$1 package=$2
  shift 2
  [[ " $levels " == *" $level "* ]] || return 0
  "$@" >/dev/null 2>&1 || missing+=("$package")
}
# As bindgen finds it, with clang's own headers.
has_libclang() { compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' && compgen -G '/usr/lib/llvm-*/lib/clang/*/include/stddef.h'; }
has_static_busybox() { busybox depmod --help && ! ldd "$(type -P busybox)"; }
has_rxe_driver() { compgen -G '/usr/lib/*/libibverbs/librxe-rdmav*.so'; }
# Which the headers do not show: all of them come with libnl-3-dev.
has_libnl_route() { compgen -G '/usr/lib/*/libnl-route-3.so'; }
has_mpi_h() { echo '#include <mpi.h>' | "mpicxx.$1" -x c++ -fsyntax-only -; }

built="build demo bench test"
need "$built" g++ g++ --version
need "$built" make make --version
need "$built" cmake cmake --version
need "$built" libclang-dev has_libclang
# These, and python3, are what the crate ibverbs-sys builds rdma-core with, to read the verbs' header out of it.
need "$built" libibverbs-dev test -e /usr/include/infiniband/verbs.h
need "$built" libnl-3-dev test -e /usr/include/libnl3/netlink/netlink.h
need "$built" libnl-route-3-dev has_libnl_route
need "$built" pkg-config pkg-config --version
need "$built" python3 python3 --version
need "demo bench test" python3-pip python3 -m pip --version
need "demo bench test" ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
need "bench test" libgloo-dev test -e /usr/include/gloo/allreduce.h
# Debian's PyTorch: a backend of it is an example.
need "bench test" python3-torch test -d /usr/lib/python3/dist-packages/torch
need "bench test" libtorch-dev test -e /usr/include/torch/csrc/distributed/c10d/ProcessGroup.hpp
need "bench test" pybind11-dev test -e /usr/include/pybind11/pybind11.h
need test libgtest-dev test -e /usr/include/gtest/gtest.h
need test clang clang++ --version
need test openmpi-bin mpirun.openmpi --version
need test libopenmpi-dev has_mpi_h openmpi
need "bench test" iproute2 env PATH="$PATH:/usr/sbin:/sbin" sh -c 'ip -V && tc -V && rdma -V'
need test abigail-tools abidiff --version
need test ninja-build ninja --version
need test valgrind valgrind --version
need test redis-server redis-server --version
need test openssl openssl version
need test mpich mpiexec.mpich --version
need test libmpich-dev has_mpi_h mpich
need test openssh-client ssh -V
need test openssh-server test -x /usr/sbin/sshd
need test nftables /usr/sbin/nft --version
if [ "$(uname -m)" != aarch64 ]; then # which needs nothing for itself
  need test gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc --version
  need test libc6-dev-arm64-cross test -e /usr/aarch64-linux-gnu/lib/crt1.o
  need test qemu-user qemu-aarch64 --version
fi
need test gcc-mingw-w64-x86-64 x86_64-w64-mingw32-gcc --version
if [ "$(uname -m)" = x86_64 ]; then # whose programs it runs
  need test wine64 test -x /usr/lib/wine/wine64
  need test wine wine --version
  # For machines with software RoCE.
  need test qemu-system-x86 qemu-system-x86_64 --version
  need test busybox-static has_static_busybox
  need test cpio cpio --version
  need test xz-utils xz --version
  need test ibverbs-providers has_rxe_driver
  need test ibverbs-utils type -P ibv_devinfo
  need test strace strace --version
fi
need "bench test" util-linux unshare --version
need test mount mount --version
need fresh mmdebstrap mmdebstrap --version
# `make test` tries a fresh machine only if that has changed which sets one up.
scripts/test-fresh.sh is-current || need test mmdebstrap mmdebstrap --version

if ((${#missing[@]})); then
  if ((EUID == 0)); then
    scripts/apt-install.sh "${missing[@]}"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    sudo -n scripts/apt-install.sh "${missing[@]}"
  else
    echo "setup: missing packages, and no right to install them. Run as root:" >&2
    echo "  apt-get update && apt-get install --yes --no-install-recommends ${missing[*]}" >&2
    if [[ " ${missing[*]} " =~ " openssh-server "|" redis-server " ]]; then
      echo "setup: that starts services which the tests do not need; scripts/apt-install.sh with these packages, as root, does not." >&2
    fi
    exit 1
  fi
fi

# For this machine, whatever cargo's configuration builds for.
host=$(rustc --version --verbose | sed -n 's/^host: //p')
fetch=(cargo fetch --locked --target "$host")
if [ "$level" = test ]; then
  # For every target and configuration: cargo-deny reads all of them, and asks no network.
  fetch=(cargo fetch --locked)
fi
if ! "${fetch[@]}" --quiet --offline 2>/dev/null; then
  echo "setup: fetching the crates of Cargo.lock"
  if ! said=$("${fetch[@]}" 2>&1); then
    echo "setup: the crates could not be fetched; is there a network? $(tail -n 1 <<<"$said")" >&2
    exit 1
  fi
fi

# Where `make test` finds a pinned tool of cargo's, whether it was installed here or was there: .cache/NAME/bin/NAME.
pinned() { # NAME FILE ARGUMENTS OF cargo install...: FILE says the version
  local name=$1 tool=.cache/$1/bin/$1 there version
  version=$(sed -n "s/^# $1-version = //p" "$2")
  is_pinned() { [ "$("$1" --version 2>/dev/null)" = "$name $version" ]; }
  is_pinned "$tool" && return
  if there=$(command -v "$name") && is_pinned "$there"; then
    mkdir -p "$(dirname "$tool")"
    ln -sf "$there" "$tool"
  else
    echo "setup: building $name $version, which takes minutes"
    cargo install --quiet --locked --version "$version" --root ".cache/$name" --force --target "$host" "${@:3}" "$name"
  fi
}
if [ "$level" = test ]; then
  pinned cbindgen cbindgen.toml
  # How fast it is does not matter, how long it takes to build does.
  pinned cargo-deny deny.toml --debug
  scripts/miri.sh setup
  scripts/cross/setup.sh
  [ "$(uname -m)" != x86_64 ] || c_tests/rxe/base.sh >/dev/null
  # Which scripts build for what.
  declare -A targets=(
    [aarch64-unknown-linux-gnu]=scripts/test-aarch64.sh
    [aarch64-apple-darwin]=scripts/test-systems.sh
    [x86_64-pc-windows-gnu]=scripts/test-systems.sh
  )
  for target in "${!targets[@]}"; do
    if [ ! -d "$(rustc --print target-libdir --target "$target")" ]; then
      echo "setup: installing the standard library for $target"
      rustup target add "$target" || { echo "setup: ${targets[$target]} needs it: rustup target add $target" >&2; exit 1; }
    fi
  done
fi
echo "setup: all is there for: $level"
