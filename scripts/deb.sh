#!/bin/bash
# Makes a Debian package of library, header, CMake package and tool: build/gloo-rs_VERSION_ARCHITECTURE.deb.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in dpkg-deb dpkg-shlibdeps; do
  if ! type -P "$tool" >/dev/null; then
    echo "deb: there is no $tool, with which the package is made (Debian: dpkg-dev)" >&2
    exit 1
  fi
done
scripts/setup.sh build
scripts/build.sh
rm -f build/cmake/gloo-rs_*.deb build/gloo-rs_*.deb
(cd build/cmake && cpack -G DEB >../deb.log 2>&1) || { cat build/deb.log; exit 1; }
mv build/cmake/gloo-rs_*.deb build/
ls build/gloo-rs_*.deb
