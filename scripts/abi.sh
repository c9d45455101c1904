#!/bin/bash
# Compares the C ABI with that of the last release, by abidiff: programs built against that release must run with this library.
# usage: scripts/abi.sh check    against abi/gloo_rs.abi
#        scripts/abi.sh write    writes abi/gloo_rs.abi: at a release, and when a break is meant
# The ABI is what C programs see of it, so it is taken from the header: a library of empty functions with its signatures.
# scripts/check-header.sh says that header and library agree.
set -euo pipefail
cd "$(dirname "$0")/.."
baseline=abi/gloo_rs.abi
at=$PWD/build/abi
fail() {
  echo "abi: $*" >&2
  exit 1
}

rm -rf "$at"
mkdir -p "$at"
# The version of the symbols is that of cmake/CargoBuild.cmake and build.rs.
abi=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1 | awk -F. '{ print $1 == 0 ? "0." $2 : $1 }')
sed "s/@gloo_rs_abi@/$abi/" cmake/gloo_rs.map.in >"$at/gloo_rs.map"
{
  echo '#include "gloo_rs.h"'
  # Declarations of functions become definitions: outside of braces, what ends by `);` and is no type.
  "${CC:-cc}" -E -P include/gloo_rs.h | tr '\n' ' ' | sed 's/__attribute__ *(([a-z_]*))//g' | awk 'BEGIN { RS = "" } {
    for (i = 1; i <= length($0); i++) {
      c = substr($0, i, 1)
      text = text c
      if (c == "{") depth++
      if (c == "}") depth--
      if (c != ";" || depth) continue
      if (text ~ /gloo_rs_[a-z0-9_]+ *\(.*\) *;$/ && text !~ /^ *typedef /) {
        sub(/;$/, " { __builtin_trap(); }", text)
        print text
      }
      text = ""
    }
  }'
} >"$at/gloo_rs.c"
"${CC:-cc}" -std=gnu11 -g -fPIC -shared -Iinclude "-Wl,-soname,libgloo_rs.so.$abi" "-Wl,--version-script=$at/gloo_rs.map" \
  "$at/gloo_rs.c" -o "$at/libgloo_rs.so"
functions=$(nm -D --defined-only "$at/libgloo_rs.so" | grep -c ' T ')
# After the preprocessor every function stands as `name(`; pointers to functions stand as `(*name)(`.
declared=$("${CC:-cc}" -E -P include/gloo_rs.h | grep -oE "\bgloo_rs_[a-z0-9_]+\(" | sort -u | wc -l)
[ "$functions" = "$declared" ] || fail "$declared functions are declared in the header, $functions were found"

case ${1:-} in
  write)
    mkdir -p "$(dirname "$baseline")"
    abidw --no-corpus-path --no-comp-dir-path --no-show-locs --no-architecture --drop-private-types \
      "$at/libgloo_rs.so" --out-file "$baseline"
    echo "abi: $baseline holds $functions functions of libgloo_rs.so.$abi"
    ;;
  check)
    [ -f "$baseline" ] || fail "there is no $baseline: make abi-baseline"
    released=$(sed -n "s/.* soname='libgloo_rs\.so\.\([^']*\)'.*/\1/p" "$baseline")
    [ -n "$released" ] || fail "$baseline names no soname"
    if [ "$released" != "$abi" ]; then
      echo "abi: libgloo_rs.so.$abi is another library than the released libgloo_rs.so.$released, and may differ from it; at the release: make abi-baseline"
      exit 0
    fi
    # What may be added: functions, enumerators, and fields at the end of options, which say how long they are (abi/gloo_rs.abignore).
    abidiff --no-added-syms --no-architecture --suppressions abi/gloo_rs.abignore "$baseline" "$at/libgloo_rs.so" ||
      fail "this library does not run programs that were built against the last release of libgloo_rs.so.$abi; if that is meant: another minor version, or make abi-baseline"
    echo "abi: $functions functions, compatible with the last release of libgloo_rs.so.$abi"
    ;;
  *) fail "no such command: ${1:-}" ;;
esac
