#!/bin/bash
# Installs what is built into build/prefix, with debug information beside it, where valgrind and callgrind find the names of functions. Files that are
# as they were stay untouched, so that nothing has to be built again for them; others that lie there are removed.
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$PWD/build/prefix
cmake --install build/cmake --prefix "$prefix" >build/install.log || { cat build/install.log; exit 1; }
find "$prefix" ! -type d | LC_ALL=C sort | LC_ALL=C comm -23 - <(LC_ALL=C sort build/cmake/install_manifest.txt) | xargs -r -d '\n' rm --
