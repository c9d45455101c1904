#!/bin/bash
# Compiles Gloo's headers without a warning: each alone, and all together in two files that are linked, by GCC and Clang, in C++17, 20
# and 23.
# usage: headers.sh INCLUDE-FOLDER SCRATCH-FOLDER
set -euo pipefail
include=$1
at=$2
rm -rf "$at"
mkdir -p "$at"
cd "$include"
# Needs the mpi.h of some MPI: c_tests/gloo_compat/mpi.sh compiles it.
mapfile -t headers < <(find gloo -name '*.h' ! -path gloo/mpi/context.h | LC_ALL=C sort)
((${#headers[@]})) || { echo "headers: $include has none" >&2; exit 1; }
cd "$at"
warnings=(-Wall -Wextra -Wpedantic -Werror)

# Each alone: one compiler, one standard; the other of each below, with all together.
for header in "${headers[@]}"; do
  printf '#include <%s>\n#include <%s>\n' "$header" "$header" >"alone-${header//\//-}.cc"
done
printf '%s\0' alone-*.cc | xargs -0 -n 4 -P "$(nproc)" g++ -std=c++17 "${warnings[@]}" -I"$include" -fsyntax-only

printf '#include <%s>\n' "${headers[@]}" >all.h
printf '#include "all.h"\n#include "all.h"\nvoid other();\nint main() { other(); }\n' >one.cc
{ tac all.h; echo 'void other() {}'; } >two.cc
for compiler in g++ clang++; do
  for standard in c++17 c++20 c++2b; do
    "$compiler" -std=$standard "${warnings[@]}" -I"$include" -c one.cc &
    "$compiler" -std=$standard "${warnings[@]}" -I"$include" -c two.cc
    wait $!
    "$compiler" one.o two.o -o program -L"$include/../lib" -lgloo -Wl,-rpath,"$include/../lib" -pthread
    ./program
  done
done
echo "headers: ${#headers[@]} compiled"
