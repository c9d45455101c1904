#!/bin/sh
# Copies a static library without debug information and without the bitcode of Rust's standard library, which only rustc reads, and gives names of its own to what it contains of other projects: libuv, ring, the
# exception handling of Rust. Another archive of a program may contain these too, in another version.
# usage: cmake/archive.sh OBJCOPY READELF FROM TO
set -eu
objcopy=$1 readelf=$2 from=$3 to=$4
names=$to.names

# Left as they are: what gloo_rs.h declares; names that a compiler mangled, which no two versions share; those that begin with two underscores,
# which compilers call by name; weak ones, of which a program may have several. DW.ref.rust_eh_personality is weak, but refers to one of these.
"$readelf" --symbols --wide "$from" | awk '
  $7 == "UND" || NF != 8 { next }
  $8 == "DW.ref.rust_eh_personality" || $5 == "GLOBAL" && $8 !~ /^(gloo_rs_|_R|_ZN|__|anon\.)/ { print $8, "gloo_rs_private_" $8 }
' | sort -u >"$names"
[ -s "$names" ] || { echo "archive: $readelf finds no names in $from" >&2; exit 1; }
"$objcopy" --strip-debug --remove-section=.llvmbc --remove-section=.llvmcmd --redefine-syms="$names" "$from" "$to"
