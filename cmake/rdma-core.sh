#!/bin/sh
# In the place of CMake for the crate ibverbs-sys, which builds all of rdma-core for the sake of its headers: those are there once it is
# configured. Its libraries are not linked with anything here, take a minute to build, and cannot be built in a path with spaces, for
# which its test of the linker fails, too.
# usage: CMAKE=cmake/rdma-core.sh cargo build ...    (.cargo/config.toml says so for builds in this folder)
#        GLOO_RS_CMAKE names the CMake to run
set -eu
cmake=${GLOO_RS_CMAKE:-cmake}
for argument; do
  case $argument in
    */vendor/rdma-core)
      # CMake does not take another compiler than the one with which the folder was configured before.
      for option; do
        case $option in
          -DCMAKE_C_COMPILER=*) grep -qsxE "CMAKE_C_COMPILER:[A-Z]+=${option#*=}" CMakeCache.txt || rm -rf CMakeCache.txt CMakeFiles ;;
        esac
      done
      "$cmake" "$@" -DLDSYMVER_MODE=GNU
      # Where the crate looks for them: otherwise those of the system would be taken, or none found.
      ln -sfn "${PWD##*/}/include" ../include
      exit
      ;;
  esac
done
if [ "${1:-}" = --build ] && grep -q '^CMAKE_PROJECT_NAME:STATIC=rdma-core$' "$2/CMakeCache.txt"; then exit 0; fi
exec "$cmake" "$@"
