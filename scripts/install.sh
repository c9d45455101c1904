#!/bin/bash
# Builds what is not built yet, and installs it. Root builds nothing in a folder of somebody else's: it would leave files there
# that the owner cannot change, and sudo's root has no Rust.
# usage: scripts/install.sh PREFIX    (DESTDIR in the environment is respected)
set -euo pipefail
prefix=$(realpath --canonicalize-missing "$1")
cd "$(dirname "$0")/.."
built=build/cmake/built
owner=$(stat --format=%U .)

if ((EUID == 0)) && [ "$owner" != root ]; then
  if [ ! -e "$built" ]; then
    echo "install: nothing is built yet, and root does not build in $owner's folder: run \`make build\` as $owner first" >&2
    exit 1
  fi
  newer=$(find CMakeLists.txt cmake Cargo.toml Cargo.lock .cargo build.rs include src tool/Cargo.toml tool/src -type f -newer "$built" -print -quit)
  if [ -n "$newer" ]; then
    echo "install: $newer is newer than what was built, and root does not build in $owner's folder: run \`make build\` as $owner first" >&2
    exit 1
  fi
else
  scripts/setup.sh build
  scripts/build.sh
fi
# The component without debug information.
cmake --install build/cmake --prefix "$prefix" --component gloo_rs
manifest=build/cmake/install_manifest_gloo_rs.txt
chown --reference=build/cmake "$manifest"

if [ -z "${DESTDIR:-}" ]; then
  lib=$(dirname "$(grep -m 1 'libgloo_rs\.so$' "$manifest")")
  if PATH=$PATH:/usr/sbin:/sbin ldconfig -vN 2>/dev/null | cut -d: -f1 | grep -xF "$lib" >/dev/null; then
    echo "install: the dynamic linker looks into $lib; run \`ldconfig\` as root once, and it finds the library."
  else
    echo "install: the dynamic linker does not look into $lib: link programs with -Wl,-rpath,$lib (CMake does), or set LD_LIBRARY_PATH."
  fi
fi
