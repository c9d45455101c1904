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
# With which CMake's default build calls cargo. With others, what cargo has built would be built once more below.
features=cuda,redis,tls,uv,ibverbs

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

echo "--- man pages, and completion for shells"
for file in man/man1/gloo-rs.1 man/man1/gloo-rs-run.1 bash-completion/completions/gloo-rs zsh/site-functions/_gloo-rs \
  fish/vendor_completions.d/gloo-rs.fish; do
  [ -s "$prefix/share/$file" ] || fail "share/$file is missing"
done

echo "--- sizes, symbols, debug information in files of their own"
bytes=$(find "$prefix" -name .debug -prune -o -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
# The limit holds for what is released, and only that has debug information. scripts/fresh-machine.sh builds with other options, to be fast.
hurried=${CARGO_PROFILE_RELEASE_OPT_LEVEL:-}${CARGO_PROFILE_RELEASE_DEBUG:-}
((bytes <= 50 << 20)) || [ -n "$hurried" ] || fail "$((bytes >> 20)) MiB are installed, more than 50"
for file in lib/libgloo_rs.a lib/libgloo_rs.so bin/gloo-rs; do
  if readelf --sections --wide "$prefix/$file" | grep -F .debug_info >/dev/null; then fail "$file has debug information"; fi
done
# SYMBOL FILE SOURCE: where the symbol is defined
finds_line() {
  local address
  address=$(nm "$prefix/$2" | awk -v symbol="$1" '$3 ~ symbol && !seen++ { print $1 }')
  [ -n "$address" ] || fail "$2 has no symbol $1"
  addr2line --exe "$prefix/$2" "$address" | grep -E "/$3:[0-9]+" || fail "addr2line finds no line of $1 in $2"
}
if [ -z "$hurried" ]; then
  finds_line '^gloo_rs_version$' lib/libgloo_rs.so 'src/ffi/.*\.rs'
  finds_line '^_ZN7gloo_rs4main17h' bin/gloo-rs 'tool/src/main\.rs'
fi

echo "--- licences of what is linked, and of nothing else"
licences=$prefix/share/doc/gloo_rs
for name in LICENSE-MIT LICENSE-APACHE; do cmp "$name" "$licences/$name"; done
for name in rustls ring libuv-sys2 clap 'libuv project contributors'; do
  grep -m 1 -- "$name" "$licences/THIRD-PARTY-LICENSES" >/dev/null || fail "THIRD-PARTY-LICENSES does not name $name"
done
if grep -E '^  (bindgen|syn|proc-macro2|proptest|divan) ' "$licences/THIRD-PARTY-LICENSES"; then fail "that is not linked"; fi
if grep -F 'do not contain the text' "$licences/THIRD-PARTY-LICENSES" | grep -vF ': MIT OR Apache-2.0 '; then fail "those texts are missing"; fi

echo "--- no crate is compiled twice"
# Which crates cargo has compiled, by the call that CMake makes. It compiles nothing now: else the call is another one.
host=$(rustc --version --verbose | sed -n 's/^host: //p')
artifacts=$(CMAKE="$root/cmake/rdma-core.sh" cargo build --quiet --release --locked --target "$host" --target-dir build/cmake/cargo \
  -p gloo_rs -p gloo-rs-tool --no-default-features "--features=$features" --message-format json | grep '^{"reason":"compiler-artifact"')
if grep -m 1 -F '"fresh":false' <<<"$artifacts"; then fail "cargo had to compile that again"; fi
twice=$(grep -vF '"kind":["custom-build"]' <<<"$artifacts" | sed -E 's/.*"package_id":"([^"]*)".*"kind":\[("[^]]*)\].*/\1 \2/' | sort | uniq -d | sed -E 's/.*#([a-z0-9_-]+)@.*/\1/')
# Which build scripts use, too: for those they are compiled without optimisation.
twice=$(grep -vxE 'bitflags|cfg-if|libc|memchr' <<<"$twice" || true)
[ -z "$twice" ] || fail "compiled twice: $twice"

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

echo "--- beside an archive with names that the static library has of other projects"
printf 'int %s(void) { return 1; }\n' rust_eh_personality uv_version uv_run >"$at/stranger.c"
cc -c "$at/stranger.c" -o "$at/stranger.o"
eval "cc -o \"\$at/strangers\" \"\$program\" \"\$at/stranger.o\" $(pkg-config --static --cflags --libs gloo_rs)"
"$at/strangers" | grep "rank 0 of 1"

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
within=() # in which surroundings
refused() { # PATTERN CMAKE-ARGUMENTS...
  rm -rf "$at/refused"
  if "${within[@]}" cmake -S . -B "$at/refused" "${@:2}" >"$at/refused.log" 2>&1; then fail "taken: ${*:2}"; fi
  tr -s ' \n' ' ' <"$at/refused.log" | grep -o -- "$1" || { cat "$at/refused.log"; fail "${*:2}: does not say $1"; }
}
echo "--- Gloo's options that cannot be honoured"
refused "USE_CUDA is ON, but gloo_rs [0-9.]* has no collectives on memory of a GPU" -DUSE_CUDA=ON
refused "GLOO_STATIC_OR_SHARED is shared, but must be STATIC, SHARED or empty" -DGLOO_STATIC_OR_SHARED=shared

echo "--- what the build needs is missing: all of it is named, and how to go without"
# lacking PROGRAM... -- COMMAND...: where nobody may execute these programs, and clang's headers are not to be found
lacking() {
  # shellcheck disable=SC2016 # the inner shell's arguments
  unshare --user --map-root-user --mount bash -euc '
    while [ "$1" != -- ]; do
      type -aP "$1" | while read -r program; do mount --bind /dev/null "$program"; done
      shift
    done
    for llvm in /usr/lib/llvm-*; do mount -t tmpfs tmpfs "$llvm"; done
    exec "${@:2}"' bash "$@"
}
lacks_libnl="libnl-3.0, for ibverbs (Debian: libnl-3-dev) libnl-route-3.0, for ibverbs (Debian: libnl-route-3-dev)"
within=(env PKG_CONFIG_LIBDIR=/nowhere)
refused "lacks: $lacks_libnl Or do without: -DGLOO_RS_CARGO_FEATURES=\"cuda;redis;tls;uv\""
within=(lacking python3 pkg-config --)
refused "lacks: libclang with clang's headers, or its folder in the variable LIBCLANG_PATH, for uv and ibverbs (Debian: libclang-dev)\
 python3, for ibverbs (Debian: python3) pkg-config, for ibverbs (Debian: pkg-config) Or do without: -DGLOO_RS_CARGO_FEATURES=\"cuda;redis;tls\""
lacking python3 pkg-config -- cmake -S . -B "$at/refused" -DGLOO_RS_CARGO_FEATURES="redis;tls" >/dev/null
within=(lacking cc gcc clang --)
refused "lacks: a C compiler, for everything (Debian: gcc, libc6-dev)"
within=()

echo "--- make install, with spaces in PREFIX"
make install PREFIX="$at/installed here" >"$at/install.log" || { cat "$at/install.log"; fail "make install failed"; }
"$at/installed here/bin/gloo-rs" --version
[ -z "$(find "$at/installed here" -name .debug)" ] || fail "debug information was installed"

echo "--- a cargo that is too old"
printf '#!/bin/sh\necho "cargo 1.63.0"\n' >"$at/old-cargo"
chmod +x "$at/old-cargo"
if cmake -S . -B "$at/too-old" -DGLOO_RS_CARGO="$at/old-cargo" >"$at/too-old.log" 2>&1; then fail "cargo 1.63 is taken"; fi
tr -s ' \n' ' ' <"$at/too-old.log" | grep -o "old-cargo is 1.63.0: get Rust [0-9.]* or newer" || fail "it does not say that cargo is too old"

# What cargo has built for `make build` takes minutes. It is up to date here if features and packages are the same, as cargo sees by itself.
mkdir -p "$at/subdirectory/gloo_rs"
cp -a build/cmake/cargo "$at/subdirectory/gloo_rs/"
# Cargo looks for its configuration in the folders above the one it is called in. No toolchain has that target.
mkdir "$at/.cargo"
printf '[build]\ntarget = "mips-unknown-none"\n' >"$at/.cargo/config.toml"
export CARGO_BUILD_TARGET=mips-unknown-none
echo "--- add_subdirectory, with Ninja, where cargo's configuration builds for another machine, and installed with DESTDIR into a multi-architecture folder"
cmake -S cmake/test/subdirectory -B "$at/subdirectory" -G Ninja -DGLOO_RS="$root" -DGLOO_RS_BUILD_TOOL=ON "-DGLOO_RS_CARGO_FEATURES=${features//,/;}" -DSOURCE="$program" -DGLOO_SOURCE="$gloo_program" \
  -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_INSTALL_LIBDIR=lib/some-machine >/dev/null
cmake --build "$at/subdirectory"
ctest --test-dir "$at/subdirectory"
DESTDIR=$at/staged cmake --install "$at/subdirectory" >/dev/null
for file in lib/some-machine/libgloo_rs.{a,so,so.0.2,so.0.2.0} include/gloo_rs.{h,hpp} lib/some-machine/cmake/gloo_rs/gloo_rsConfig.cmake \
  lib/some-machine/gloo_rs/gloo/{include/{gloo/config.h,gloo_rs.h},lib/libgloo.{so,a},lib/cmake/Gloo/GlooConfig.cmake}; do
  [ -e "$at/staged/usr/$file" ] || fail "/usr/$file was not installed"
done
# Written for a shell: a space has a backslash.
staged=$(PKG_CONFIG_PATH=$at/staged/usr/lib/some-machine/pkgconfig pkg-config --variable=libdir gloo_rs | xargs printf '%s')
[ "$(realpath "$staged")" = "$at/staged/usr/lib/some-machine" ] || fail "pkg-config says that the library lies in $staged"

echo "--- add_subdirectory, by default: no tool, and the features that need a C compiler only"
calls_cargo_for() { # BUILD ARGUMENTS
  grep -F -- "$2" "$at/$1/gloo_rs/CMakeFiles/gloo_rs_cargo.dir/build.make" >/dev/null || fail "cargo is not called with $2"
}
cmake -S cmake/test/subdirectory -B "$at/default" -DGLOO_RS="$root" -DSOURCE="$program" -DGLOO_SOURCE="$gloo_program" >/dev/null
if cmake --build "$at/default" --target help | grep -w gloo_rs_tool; then fail "the tool is built although nobody asked for it"; fi
calls_cargo_for default "-p gloo_rs --no-default-features --features=cuda,redis,tls "

echo "--- projects that export what links gloo_rs, and others that find it"
mkdir -p "$at/export/gloo_rs"
mv "$at/subdirectory/gloo_rs/cargo" "$at/export/gloo_rs/"
export_it() { # ON-OR-OFF PREFIX-OF-GLOO_RS: gloo_rs is installed with the project or not
  local installed="$at/exported $1"
  cmake -S cmake/test/export -B "$at/export" -DGLOO_RS="$root" -DGLOO_RS_INSTALL="$1" >/dev/null
  calls_cargo_for export "-p gloo_rs -p gloo-rs-tool --no-default-features --features=$features "
  cmake --build "$at/export" >"$at/export.log" || { cat "$at/export.log"; fail "it could not be built"; }
  cmake --install "$at/export" --prefix "$installed" >/dev/null
  if grep -rF "$at/export/" --include='*.cmake' "$installed"; then fail "that holds a path of the build"; fi
  cmake -S cmake/test/exported -B "$at/exported-$1" "-DCMAKE_PREFIX_PATH=$installed;$2" -DPLACE="$2" >/dev/null
  cmake --build "$at/exported-$1" >"$at/exported.log" || { cat "$at/exported.log"; fail "it could not be built"; }
  ctest --test-dir "$at/exported-$1"
}
export_it ON "$at/exported ON"
export_it OFF "$moved"
if [ -e "$at/exported OFF/lib/libgloo_rs.a" ] || [ -e "$at/exported OFF/include" ]; then fail "gloo_rs was installed although GLOO_RS_INSTALL is OFF"; fi
if [ -e "$at/exported ON/lib/libgloo.a" ]; then fail "the archive of the target gloo was installed"; fi
echo "test-package: all passed"
