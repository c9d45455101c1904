#!/bin/bash
# Installs what is needed and this machine lacks; a second run finds nothing to do.
# usage: scripts/setup.sh [LEVEL...]
#   build   for the library and the tool              demo    for the example besides
#   test    for all of `make test` (the default)      bench   for the benchmarks
#   torch, python, systems, aarch64, threads, fuzz, deny, fresh       for the parts of `make test-more` that need more
#   test-more                                         for all of these
# Rust must be there already. Debian's packages come by apt-get, what cargo installs goes into .cache/.
set -euo pipefail
cd "$(dirname "$0")/.."
levels=("${@:-test}")
[[ " ${levels[*]} " != *" test-more "* ]] || levels=(test bench torch python systems aarch64 threads fuzz deny fresh)
for level in "${levels[@]}"; do
  case $level in
    build | demo | test | bench | torch | python | systems | aarch64 | threads | fuzz | deny | fresh) ;;
    *) echo "setup: no such level: $level" >&2 && exit 2 ;;
  esac
done
wants() { # LEVEL...: whether one of these is wanted
  local level
  for level; do [[ " ${levels[*]} " != *" $level "* ]] || return 0; done
  return 1
}

PATH=$(scripts/rust.sh path)
scripts/rust.sh check
if wants test; then
  for part in fmt clippy; do
    if ! cargo "$part" --version >/dev/null 2>&1; then
      echo "setup: $(command -v cargo) has no $part: rustup component add rustfmt clippy" >&2
      exit 1
    fi
  done
fi
. scripts/features.sh

missing=()
need() { # LEVELS PACKAGE COMMAND...: at these levels the package, unless the command succeeds
  local names=$1 package=$2
  shift 2
  # shellcheck disable=SC2086 # several levels
  wants $names || return 0
  "$@" >/dev/null 2>&1 || missing+=("$package")
}
has_static_busybox() { busybox depmod --help && ! ldd "$(type -P busybox)"; }
has_rxe_driver() { compgen -G '/usr/lib/*/libibverbs/librxe-rdmav*.so'; }
has_mpi_h() { echo '#include <mpi.h>' | "mpicxx.$1" -x c++ -fsyntax-only -; }

all="build demo test bench torch python systems aarch64 threads fuzz deny fresh"
built="build demo test bench torch python systems"
need "$all" g++ g++ --version
need "$all" make make --version
need "$built" cmake cmake --version
need "$built" libclang-dev has_libclang
# These, pkg-config and python3 are what the crate ibverbs-sys builds rdma-core with, to read the verbs' header out of it.
need "$built" libnl-3-dev test -e /usr/include/libnl3/netlink/netlink.h
need "$built" libnl-route-3-dev has_libnl_route
need "$built" pkg-config pkg-config --version
need "$built" python3 python3 --version
need "demo test bench torch systems" python3-pip python3 -m pip --version
need "demo test bench torch python systems" ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
need python python3-venv python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))'
need "bench test" libgloo-dev test -e /usr/include/gloo/allreduce.h
# Debian's PyTorch, for programs in C++ that use its Gloo.
need torch python3-torch test -d /usr/lib/python3/dist-packages/torch
need torch libtorch-dev test -e /usr/include/torch/csrc/distributed/c10d/ProcessGroup.hpp
need test libgtest-dev test -e /usr/include/gtest/gtest.h
need test clang clang++ --version
need test openmpi-bin mpirun.openmpi --version
need test libopenmpi-dev has_mpi_h openmpi
need "bench test torch" iproute2 env PATH="$PATH:/usr/sbin:/sbin" sh -c 'ip -V && tc -V && rdma -V'
# A program of the tests is built with it; the library loads libibverbs at run time.
need test libibverbs-dev test -e /usr/include/infiniband/verbs.h
need test abigail-tools abidiff --version
need test ninja-build ninja --version
need test valgrind valgrind --version
need test redis-server redis-server --version
need "test systems" openssl openssl version
need test mpich mpiexec.mpich --version
need test libmpich-dev has_mpi_h mpich
need test openssh-client ssh -V
need test openssh-server test -x /usr/sbin/sshd
need test nftables /usr/sbin/nft --version
if [ "$(uname -m)" = x86_64 ]; then # for machines with software RoCE
  need test qemu-system-x86 qemu-system-x86_64 --version
  need test busybox-static has_static_busybox
  need test cpio cpio --version
  need test xz-utils xz --version
  need test ibverbs-providers has_rxe_driver
  need test ibverbs-utils type -P ibv_devinfo
  need test strace strace --version
fi
need "bench test torch" util-linux unshare --version
need test mount mount --version
if [ "$(uname -m)" != aarch64 ]; then # which needs nothing for itself
  need aarch64 gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc --version
  need aarch64 libc6-dev-arm64-cross test -e /usr/aarch64-linux-gnu/lib/crt1.o
  need aarch64 qemu-user qemu-aarch64 --version
fi
need systems gcc-mingw-w64-x86-64 x86_64-w64-mingw32-gcc --version
if [ "$(uname -m)" = x86_64 ]; then # whose programs it runs
  need systems wine64 test -x /usr/lib/wine/wine64
  need systems wine wine --version
fi
need fresh mmdebstrap mmdebstrap --version
need fresh dpkg-dev type -P dpkg-shlibdeps

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

# Crates are fetched for this machine, whatever cargo's configuration builds for.
host=$(rustc --version --verbose | sed -n 's/^host: //p')
fetch=(cargo fetch --locked --target "$host")
# cargo-deny reads the crates of all targets, and asks no network.
if wants deny systems; then fetch=(cargo fetch --locked); fi
if ! "${fetch[@]}" --quiet --offline 2>/dev/null; then
  echo "setup: fetching the crates of Cargo.lock"
  if ! said=$("${fetch[@]}" 2>&1); then
    echo "setup: the crates could not be fetched; is there a network? $(tail -n 1 <<<"$said")" >&2
    exit 1
  fi
fi

target() { # TARGET FOR: its standard library
  [ ! -d "$(rustc --print target-libdir --target "$1")" ] || return 0
  echo "setup: installing the standard library for $1"
  rustup target add "$1" || { echo "setup: make test-$2 needs it: rustup target add $1" >&2; exit 1; }
}
if wants test; then
  [ "$(uname -m)" != x86_64 ] || c_tests/rxe/base.sh >/dev/null
fi
if wants systems; then
  scripts/cross/setup.sh
  target aarch64-apple-darwin systems
  target x86_64-pc-windows-gnu systems
fi
if wants aarch64; then target aarch64-unknown-linux-gnu aarch64; fi
echo "setup: all is there for: ${levels[*]}"
