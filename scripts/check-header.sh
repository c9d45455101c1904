#!/bin/sh
# Checks include/gloo_rs.h: that C11 and C++17 compilers take it without a warning, and that the functions it declares are exactly the symbols
# that the shared library exports, each with the version of the soname, and that the static library defines no name of another project. That it is what cbindgen makes of src/ffi is tested by
# c_tests/header. Checks include/gloo_rs.hpp with a program that uses all of it: that the compilers of C++ here take it without a warning, and
# that it defines no symbol that a second file with it would clash with.
# usage: scripts/check-header.sh [path/to/libgloo_rs.so]    (default: what `make prefix` installed)
set -eu
cd "$(dirname "$0")/.."

fail() { echo "check-header: $*" >&2; exit 1; }

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
header=include/gloo_rs.h
strays=$(grep -E '^#define ' "$header" | grep -vE '^#define GLOO_RS_' || true)
[ -z "$strays" ] || fail "names without the prefix: $strays"

printf '#include "gloo_rs.h"\nint main(void) { return gloo_rs_version() == NULL; }\n' > "$tmp/use.c"
cp "$tmp/use.c" "$tmp/use.cpp"
warnings="-Wall -Wextra -Wpedantic -Werror"
# shellcheck disable=SC2086
"${CC:-cc}" -std=c11 $warnings -Wstrict-prototypes -Iinclude -fsyntax-only "$tmp/use.c"
# shellcheck disable=SC2086
"${CXX:-c++}" -std=c++17 $warnings -Iinclude -fsyntax-only "$tmp/use.cpp"

strays=$(grep -E '^#define ' include/gloo_rs.hpp | grep -vE '^#define GLOO_RS_' || true)
[ -z "$strays" ] || fail "names without the prefix: $strays"
for compiler in "${CXX:-c++}" clang++; do
  command -v "$compiler" >/dev/null || continue
  for standard in 17 20; do
    # shellcheck disable=SC2086
    "$compiler" -std=c++$standard $warnings -Wconversion -Wshadow -D_POSIX_C_SOURCE=200809L -Iinclude -c c_tests/handles.cpp -o "$tmp/handles.o"
    strong=$(nm --defined-only "$tmp/handles.o" | awk '$2 ~ /^[A-TX-Z]$/ && $3 != "main"')
    [ -z "$strong" ] || fail "gloo_rs.hpp defines symbols that are not weak: $strong"
  done
done

library=${1:-build/prefix/lib/libgloo_rs.so}
[ -f "$library" ] || fail "no $library: make prefix"
abi=$(readelf --dynamic --wide "$library" | sed -n 's/.*Library soname: \[libgloo_rs\.so\.\(.*\)\]/\1/p')
[ -n "$abi" ] || fail "$library has no soname"
# NAME@@VERSION; the version itself is an absolute symbol.
nm -D --defined-only --with-symbol-versions "$library" | awk '$2 != "A" { print $3 }' | sort > "$tmp/versioned"
grep -v "^[^@]*@@GLOO_RS_$abi\$" "$tmp/versioned" > "$tmp/unversioned" &&
  fail "$library exports symbols without the version GLOO_RS_$abi: $(tr '\n' ' ' < "$tmp/unversioned")"
sed 's/@.*//' "$tmp/versioned" > "$tmp/exported"
# After the preprocessor every function stands as `name(`; pointers to functions stand as `(*name)(`.
"${CC:-cc}" -E -P "$header" | grep -oE "\bgloo_rs_[a-z0-9_]+\(" | tr -d "(" | sort -u > "$tmp/declared"
[ -s "$tmp/declared" ] || fail "found no function in $header"
diff "$tmp/declared" "$tmp/exported" > "$tmp/difference" ||
  fail "declared (<) and exported (>) functions differ:
$(cat "$tmp/difference")"

archive=${library%.so}.a
readelf --symbols --wide "$archive" | awk 'NF == 8 && $5 == "GLOBAL" && $7 != "UND" { print $8 }' | sort -u >"$tmp/archived"
grep -x gloo_rs_version "$tmp/archived" >/dev/null || fail "$archive does not define gloo_rs_version"
strays=$(grep -vE '^(gloo_rs_|_R|_ZN|__|anon\.)' "$tmp/archived" | head -n 5 || true)
[ -z "$strays" ] || fail "$archive defines names that are not its own, such as $strays"
echo "check-header: $(wc -l < "$tmp/declared") functions, header and library agree"
