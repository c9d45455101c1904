#!/bin/bash
# Makes Python's package for Linux with glibc 2.17 and later: build/manylinux/ARCHITECTURE/wheel/gloo_rs-VERSION-cp311-abi3-manylinux_2_17_ARCHITECTURE.whl.
# Library, tool and module are linked by zig's C compiler, with the symbols of that glibc. Of another processor than this machine's the tool is
# started by qemu.
# usage: scripts/manylinux.sh x86_64|aarch64    (after scripts/setup.sh python, and for another processor aarch64)
set -euo pipefail
cd "$(dirname "$0")/.."
architecture=$1
target=$architecture-unknown-linux-gnu
at=$PWD/build/manylinux/$architecture
environment=$PWD/build/manylinux/environment
scripts/venv.sh "$environment" python/requirements-manylinux.txt
PATH=$(scripts/rust.sh path):$environment/bin
zig=$(echo "$environment"/lib/python3*/site-packages/ziglang)
export MANYLINUX_ARCHITECTURE=$architecture CARGO_ZIGBUILD_ZIG_PATH=$zig/zig
export ZIG_GLOBAL_CACHE_DIR=$PWD/build/manylinux/cache ZIG_LOCAL_CACHE_DIR=$PWD/build/manylinux/cache
compiler=$PWD/scripts/cross/manylinux-cc
archiver=$PWD/scripts/cross/manylinux-ar
name=${target//-/_}
export "CC_$name=$compiler" "AR_$name=$archiver" "CARGO_TARGET_${name^^}_LINKER=$compiler"

features="cuda;redis;tls;uv;ibverbs"
options=()
if [ "$architecture" != "$(uname -m)" ]; then
  # bindgen reads the headers of the other processor's glibc.
  export "BINDGEN_EXTRA_CLANG_ARGS_$name=--target=$architecture-linux-gnu -isystem /usr/$architecture-linux-gnu/include"
  for program in objcopy readelf strip; do options+=("-DCMAKE_${program^^}=$(type -P "$architecture-linux-gnu-$program")"); done
  options+=(-DCMAKE_SYSTEM_NAME=Linux "-DCMAKE_SYSTEM_PROCESSOR=$architecture" "-DGLOO_RS_CARGO_TARGET=$target")
  options+=("-DCMAKE_CROSSCOMPILING_EMULATOR=$(type -P "qemu-$architecture");-L;/usr/$architecture-linux-gnu")
  # Maturin builds the module for it, and this machine's strip and objdump may not know it.
  export CARGO_BUILD_TARGET=$target STRIP=$architecture-linux-gnu-strip OBJDUMP=$architecture-linux-gnu-objdump
fi
cmake -S . -B "$at/cmake" -DGLOO_RS_CARGO="$(command -v cargo)" "-DGLOO_RS_CARGO_FEATURES=$features" -DCMAKE_C_COMPILER="$compiler" \
  -DCMAKE_AR="$archiver" -DCMAKE_INSTALL_LIBDIR=lib "${options[@]}" >"$at.log" || { cat "$at.log"; exit 1; }
cmake --build "$at/cmake" --parallel 2
cmake --install "$at/cmake" --prefix "$at/prefix" >>"$at.log"
# The unwinder that zig has linked, which on other systems is GCC's, in a library of its own.
{
  cat "$at/cmake/THIRD-PARTY-LICENSES"
  printf '\n%s\nlibunwind of LLVM, as zig has it: Apache-2.0 WITH LLVM-exception\n\n' "$(printf -- '-%.0s' {1..100})"
  cat "$zig/lib/libunwind/LICENSE.TXT"
} >"$at/prefix/share/doc/gloo_rs/THIRD-PARTY-LICENSES"
WHEELS=$at/wheel scripts/wheel.sh "$at/prefix"
wheel=$(echo "$at"/wheel/*.whl)
[[ $wheel == *-cp311-abi3-manylinux_2_17_$architecture.whl ]] || { echo "manylinux: $wheel does not run with glibc 2.17" >&2; exit 1; }
# It also has the list of libraries that every system has.
said=$(auditwheel show "$wheel")
grep -qF "manylinux_2_17_$architecture" <<<"$said" || { echo "$said" >&2; exit 1; }
