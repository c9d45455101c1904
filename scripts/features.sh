#!/bin/bash
# The library's cargo features that this machine can build: cuda, which needs nothing, redis and tls, which need a C compiler, and uv and ibverbs where what they need is
# there. To be sourced, for its functions; or run:
#   scripts/features.sh          prints the features, separated by commas
#   scripts/features.sh say      prints in a sentence which are left out, and why

# bindgen finds libclang there, and needs clang's own headers.
has_libclang() { compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' && compgen -G '/usr/lib/llvm-*/lib/clang/*/include/stddef.h'; }
# Which the headers do not show: all of them come with libnl-3-dev.
has_libnl_route() { compgen -G '/usr/lib/*/libnl-route-3.so'; }
# What the crate ibverbs-sys configures rdma-core with, to read the verbs' header out of it.
has_rdma_core_needs() {
  has_libclang && has_libnl_route && [ -e /usr/include/libnl3/netlink/netlink.h ] && type -P pkg-config python3 cmake
}
[ "${BASH_SOURCE[0]}" = "$0" ] || return 0

set -euo pipefail
features=cuda,redis,tls
left_out=()
if has_libclang >/dev/null; then features+=,uv; else left_out+=("uv, which needs libclang-dev"); fi
if [ "$(uname -s)" = Linux ] && has_rdma_core_needs >/dev/null; then
  features+=,ibverbs
else
  left_out+=("ibverbs, which needs libclang-dev, libnl-3-dev, libnl-route-3-dev, pkg-config, python3 and cmake")
fi
if [ "${1:-}" != say ]; then
  echo "$features"
elif ((${#left_out[@]})); then
  echo "NOT TESTED: the features $(printf '%s; ' "${left_out[@]}" | sed 's/; $//'). scripts/setup.sh installs these."
else
  echo "All features are tested: $features."
fi
