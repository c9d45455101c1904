#!/bin/bash
# Tries what users do with the installed package: find it, move it, link it both ways, with and without CMake.
# usage: scripts/test-package.sh PREFIX    (where gloo_rs is installed)
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
prefix=$(realpath "$1")
at=$root/build/package
export CTEST_OUTPUT_ON_FAILURE=1
export RANK=0 WORLD_SIZE=1 # a job of one

fail() {
  echo "test-package: $*" >&2
  exit 1
}
rm -rf "$at"
scripts/extract-examples.sh README.md "$at"
program=$at/sum.c
gloo_program=$root/c_tests/gloo_compat/program.cc

echo "--- the shared library: its name, and what it needs"
dynamic=$(readelf --dynamic --wide "$prefix/lib/libgloo_rs.so")
[[ $dynamic == *"Library soname: [libgloo_rs.so.0.2]"* ]] || fail "the soname is not libgloo_rs.so.0.2"
while read -r needed; do
  case $needed in
    libc.so.6 | libgcc_s.so.1 | libm.so.6 | ld-linux*) ;;
    *) fail "libgloo_rs.so needs $needed" ;;
  esac
done < <(sed -n 's/.*Shared library: \[\(.*\)\]/\1/p' <<<"$dynamic")
if readelf --dynamic --wide "$prefix/bin/gloo-rs" | grep -F '[libibverbs'; then fail "the tool needs libibverbs, which it should load where it is"; fi
if grep -rlF --include='*.cmake' --include='*.pc' ibverbs.so "$prefix/lib" || grep -rlwE --include='*.cmake' --include='*.pc' -e '-libverbs' "$prefix/lib"; then
  fail "these files make programs link libibverbs"
fi
[ "$(readlink "$prefix/lib/libgloo_rs.so")" = libgloo_rs.so.0.2 ] || fail "libgloo_rs.so is no link to libgloo_rs.so.0.2"

find_it() { # GENERATOR PREFIX: builds and runs the stranger's project
  cmake -S cmake/test/consumer -B "$at/$1" -G "$1" -DCMAKE_PREFIX_PATH="$2" -DPLACE="$2" -DSOURCE="$program" >/dev/null
  cmake --build "$at/$1" >/dev/null
  ctest --test-dir "$at/$1"
}
echo "--- find_package, where it was installed"
find_it "Unix Makefiles" "$prefix"

echo "--- find_package, moved to another place"
moved="$at/moved here"
mkdir -p "$at"
cp -a "$prefix" "$moved"
if grep -rlF --include='*.cmake' --include='*.pc' "$prefix" "$moved"; then fail "these files hold the path of the prefix"; fi
find_it Ninja "$moved"

echo "--- pkg-config, moved"
export PKG_CONFIG_PATH=$moved/lib/pkgconfig
for more in "" -Wl,--as-needed; do
  # Words for a shell, with spaces escaped.
  eval "cc $more -o \"\$at/by_pkg_config\" \"\$program\" $(pkg-config --cflags --libs gloo_rs)"
  LD_LIBRARY_PATH=$moved/lib "$at/by_pkg_config" | grep "rank 0 of 1"
  if ! ldd "$at/by_pkg_config" | grep gloo_rs >/dev/null; then fail "the program does not need the shared library"; fi
  eval "cc $more -o \"\$at/by_pkg_config_static\" \"\$program\" $(pkg-config --static --cflags --libs gloo_rs)"
  "$at/by_pkg_config_static" | grep "rank 0 of 1"
  if ldd "$at/by_pkg_config_static" | grep gloo_rs; then fail "the static program needs the shared library"; fi
done

echo "--- where there is no libibverbs, and where there is no device"
# A root of what the programs need and nothing else; /proc and /dev are this machine's.
bare=$at/bare
. c_tests/rxe/image.sh
mkdir -p "$bare"/{dev,proc,sys,tmp}
skeleton "$bare"
in_bare() { # COMMAND...
  # shellcheck disable=SC2016 # the inner shell's arguments
  unshare --user --map-root-user --mount bash -c '
    mount --rbind /proc "$0/proc"
    mount --rbind /dev "$0/dev"
    exec chroot "$0" "$@"' "$bare" "$@"
}
says_in_bare() { # PATTERN COMMAND...: it fails, and says so
  if in_bare "${@:2}" >"$at/bare.log" 2>&1; then fail "${*:2} works without libibverbs or a device"; fi
  grep -o -m 1 -- "$1" "$at/bare.log" || { cat "$at/bare.log"; fail "${*:2}: does not say $1"; }
}
place_at() { # FILE PATH: with what it loads
  mkdir -p "$bare${2%/*}"
  cp -L "$1" "$bare$2"
  mapfile -t needed < <(libraries "$1" | grep -v libgloo_rs)
  place "$bare" "${needed[@]}"
}
place_at "$moved/bin/gloo-rs" /bin/gloo-rs
place_at "$moved/lib/libgloo_rs.so.0.2" /lib/libgloo_rs.so.0.2
place_at "$at/by_pkg_config" /bin/sum
place_at "$(type -P env)" /bin/env
over=(env -u RANK -u WORLD_SIZE)
two=(gloo-rs run -n 2 -- env LD_LIBRARY_PATH=/lib sum)
for way in shm tcp; do
  in_bare "${over[@]}" /bin/gloo-rs bench allreduce -n 2 --transport "$way" --sizes 4,64Ki --iterations 5 | grep -F 64Ki
done
for shared in 0 1; do in_bare "${over[@]}" GLOO_RS_SHM=$shared "${two[@]}" | grep "rank 1 of 2"; done
in_bare gloo-rs info | grep "libibverbs.so.1"
no_library="the transport ibverbs needs libibverbs.so.1, which cannot be loaded: libibverbs.so.1: cannot open shared object file"
says_in_bare "$no_library" "${over[@]}" /bin/gloo-rs bench allreduce -n 2 --transport ibverbs
says_in_bare "$no_library" "${over[@]}" GLOO_RS_TRANSPORT=ibverbs "${two[@]}"
verbs=$(ldconfig -p | sed -n 's/^\tlibibverbs.so.1 (.*) => //p' | head -n 1)
[ -n "$verbs" ] || fail "this machine has no libibverbs.so.1: scripts/setup.sh"
place_at "$verbs" /lib/libibverbs.so.1
says_in_bare "this host has no InfiniBand or RoCE device" "${over[@]}" GLOO_RS_TRANSPORT=ibverbs "${two[@]}"

find_gloo() { # NAME CMAKE-ARGUMENTS...: builds and runs the project that was written for Gloo
  cmake -S cmake/test/gloo -B "$at/$1" -DCMAKE_PREFIX_PATH="$moved/lib/gloo_rs/gloo" -DPLACE="$moved" -DSOURCE="$gloo_program" "${@:2}" >/dev/null
  cmake --build "$at/$1" >/dev/null
  ctest --test-dir "$at/$1"
}
echo "--- find_package(Gloo), shared and static, moved"
find_gloo gloo
ldd "$at/gloo/program" | grep -F libgloo_rs.so.0.2 >/dev/null || fail "the program does not need libgloo_rs.so.0.2"
find_gloo gloo_static -DGLOO_STATIC_OR_SHARED=STATIC
for built in gloo/program gloo_static/program; do
  if readelf --dynamic --wide "$at/$built" | grep -F '[libgloo.so'; then fail "$built needs another Gloo"; fi
done
if ldd "$at/gloo_static/program" | grep gloo_rs; then fail "the static program needs the shared library"; fi

echo "--- Gloo's headers and library by path, moved"
like_gloo="$moved/lib/gloo_rs/gloo"
c++ -std=c++17 -I"$like_gloo/include" -o "$at/by_path" "$gloo_program" -L"$like_gloo/lib" -lgloo -Wl,-rpath,"$like_gloo/lib"
"$at/by_path"

echo "--- Gloo's headers are in nobody's way"
if [ -e "$moved/include/gloo" ] || [ -e "$moved/lib/cmake/Gloo" ]; then fail "they lie where those of another Gloo would"; fi
refused() { # PATTERN CMAKE-ARGUMENTS...
  rm -rf "$at/refused"
  if cmake -S . -B "$at/refused" "${@:2}" >"$at/refused.log" 2>&1; then fail "taken: ${*:2}"; fi
  tr -s ' \n' ' ' <"$at/refused.log" | grep -o "$1" || fail "${*:2}: does not say $1"
}
echo "--- Gloo's options that cannot be honoured"
refused "USE_CUDA is ON, but gloo_rs [0-9.]* has no collectives on memory of a GPU" -DUSE_CUDA=ON
refused "GLOO_STATIC_OR_SHARED is shared, but must be STATIC, SHARED or empty" -DGLOO_STATIC_OR_SHARED=shared

echo "--- make install, with spaces in PREFIX"
make install PREFIX="$at/installed here" >"$at/install.log" || { cat "$at/install.log"; fail "make install failed"; }
"$at/installed here/bin/gloo-rs" --version

echo "--- a cargo that is too old"
printf '#!/bin/sh\necho "cargo 1.63.0"\n' >"$at/old-cargo"
chmod +x "$at/old-cargo"
if cmake -S . -B "$at/too-old" -DGLOO_RS_CARGO="$at/old-cargo" >"$at/too-old.log" 2>&1; then fail "cargo 1.63 is taken"; fi
tr -s ' \n' ' ' <"$at/too-old.log" | grep -o "old-cargo is 1.63.0: get Rust [0-9.]* or newer" || fail "it does not say that cargo is too old"

# What cargo has built of the library for `make build` is the same, and takes minutes. Cargo looks whether it is up to date.
mkdir -p "$at/subdirectory/gloo_rs/cargo"
cp -a build/cmake/cargo/library "$at/subdirectory/gloo_rs/cargo/"
# Cargo looks for its configuration in the folders above the one it is called in. No toolchain has that target.
mkdir "$at/.cargo"
printf '[build]\ntarget = "mips-unknown-none"\n' >"$at/.cargo/config.toml"
export CARGO_BUILD_TARGET=mips-unknown-none
echo "--- add_subdirectory, with Ninja, where cargo's configuration builds for another machine, and installed with DESTDIR into a multi-architecture folder"
cmake -S cmake/test/subdirectory -B "$at/subdirectory" -G Ninja -DGLOO_RS="$root" -DSOURCE="$program" -DGLOO_SOURCE="$gloo_program" \
  -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_INSTALL_LIBDIR=lib/some-machine >/dev/null
cmake --build "$at/subdirectory"
ctest --test-dir "$at/subdirectory"
DESTDIR=$at/staged cmake --install "$at/subdirectory" >/dev/null
for file in lib/some-machine/libgloo_rs.{a,so,so.0.2,so.0.2.0} include/gloo_rs.h lib/some-machine/cmake/gloo_rs/gloo_rsConfig.cmake \
  lib/some-machine/gloo_rs/gloo/{include/{gloo/config.h,gloo_rs.h},lib/libgloo.{so,a},lib/cmake/Gloo/GlooConfig.cmake}; do
  [ -e "$at/staged/usr/$file" ] || fail "/usr/$file was not installed"
done
# Written for a shell: a space has a backslash.
staged=$(PKG_CONFIG_PATH=$at/staged/usr/lib/some-machine/pkgconfig pkg-config --variable=libdir gloo_rs | xargs printf '%s')
[ "$(realpath "$staged")" = "$at/staged/usr/lib/some-machine" ] || fail "pkg-config says that the library lies in $staged"
echo "test-package: all passed"
