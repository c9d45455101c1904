#!/bin/bash
# Compiles mpi.cc with the compiler wrapper of an MPI, and runs it with four ranks.
# usage: mpi.sh openmpi|mpich INCLUDE_DIRECTORIES LIBRARY FOLDER
# The directories are a list of CMake; FOLDER is for the program.
set -euo pipefail
mpi=$1 library=$3 folder=$4
IFS=';' read -ra directories <<<"$2"
mkdir -p "$folder"
program=$folder/$mpi
"mpicxx.$mpi" -std=c++17 -Wall -Wextra -Wpedantic -Werror "${directories[@]/#/-I}" "$(dirname "$0")/mpi.cc" -o "$program" \
  "$library" "-Wl,-rpath,$(dirname "$library")"
case $mpi in
  openmpi) launcher=(mpirun.openmpi --allow-run-as-root --oversubscribe) ;;
  mpich) launcher=(mpirun.mpich) ;;
esac
for kind in managed unmanaged; do
  timeout 100 "${launcher[@]}" -n 4 "$program" "$kind" 4
  echo "ok: $mpi, $kind"
done
