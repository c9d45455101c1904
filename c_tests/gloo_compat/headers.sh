#!/bin/bash
# Compiles Gloo's headers without a warning.
# usage: headers.sh together INCLUDE-FOLDER SCRATCH-FOLDER    all in two files that are linked, by GCC in C++17
#        headers.sh all INCLUDE-FOLDER SCRATCH-FOLDER         the same by GCC and Clang, in C++17, 20 and 23; each header alone, too
set -euo pipefail
which=$1
include=$2
at=$3
rm -rf "$at"
mkdir -p "$at"
cd "$include"
# All but the one that needs the mpi.h of some MPI.
mapfile -t headers < <(find gloo -name '*.h' ! -path gloo/mpi/context.h | LC_ALL=C sort)
((${#headers[@]})) || { echo "headers: $include has none" >&2; exit 1; }
# Those that programs include. One that is missing here would be taken from an installed Gloo, unnoticed.
for header in algorithm allgather{,_ring} allgatherv allreduce{,_bcube,_halving_doubling,_local,_ring,_ring_chunked} alltoall{,v} \
  barrier{,_all_to_all,_all_to_one} broadcast{,_one_to_all} config context gather{,v} math pairwise_exchange reduce{,_scatter} scatter \
  types common/{aligned_allocator,common,error,linux,linux_devices,logging,memory,store,string,utils} mpi/context \
  rendezvous/{context,store,file_store,hash_store,prefix_store,redis_store} transport/{tcp,uv}/device transport/tcp/{attr,tls/device} \
  transport/{address,buffer,context,device,pair,remote_key,unbound_buffer}; do
  [ -e "gloo/$header.h" ] || { echo "headers: gloo/$header.h is missing in $include" >&2; exit 1; }
done
has_verbs() { grep -q 'GLOO_HAVE_TRANSPORT_IBVERBS 1' gloo_rs_features.h; }
if has_verbs && [ ! -e gloo/transport/ibverbs/device.h ] || ! has_verbs && [ -e gloo/transport/ibverbs/device.h ]; then
  echo "headers: gloo/transport/ibverbs/device.h is there without the transport, or the transport without it" >&2
  exit 1
fi
cd "$at"
warnings=(-Wall -Wextra -Wpedantic -Werror)

# Each alone: one compiler, one standard; the other of each below, with all together.
for header in "${headers[@]}"; do
  printf '#include <%s>\n#include <%s>\n' "$header" "$header" >"alone-${header//\//-}.cc"
done
compilers=(g++) standards=(c++17)
if [ "$which" = all ]; then
  compilers+=(clang++) standards+=(c++20 c++2b)
  printf '%s\0' alone-*.cc | xargs -0 -n 4 -P "$(nproc)" g++ -std=c++17 "${warnings[@]}" -I"$include" -fsyntax-only
fi

printf '#include <%s>\n' "${headers[@]}" >all.h
printf '#include "all.h"\n#include "all.h"\nvoid other();\nint main() { other(); }\n' >one.cc
{ tac all.h; echo 'void other() {}'; } >two.cc
for compiler in "${compilers[@]}"; do
  for standard in "${standards[@]}"; do
    "$compiler" -std=$standard "${warnings[@]}" -I"$include" -c one.cc &
    "$compiler" -std=$standard "${warnings[@]}" -I"$include" -c two.cc
    wait $!
    "$compiler" one.o two.o -o program -L"$include/../lib" -lgloo -Wl,-rpath,"$include/../lib" -pthread
    ./program
  done
done
# All that these headers define has other names than what Gloo's own library defines: both may be in one program.
g++ -std=c++17 -fkeep-inline-functions -I"$include" -c one.cc -o kept.o
defined=$(nm --defined-only kept.o | awk '$3 ~ /[^0-9]4gloo/ { print $3 }')
grep -q 4gloo11gloo_rs_api <<<"$defined" || { echo "headers: $include defines nothing" >&2; exit 1; }
if grep -v 4gloo11gloo_rs_api <<<"$defined"; then
  echo "headers: Gloo's library may define these symbols, too" >&2
  exit 1
fi
echo "headers: ${#headers[@]} compiled"
