#!/bin/bash
# Tests the headers of Gloo's API in programs that use PyTorch's own Gloo: Debian's PyTorch, in C++ and in Python.
# usage: scripts/test-beside-torch.sh PREFIX    (where gloo_rs is installed)
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(realpath "$1")

# Debian's, whose torch it is; another one may come first on PATH.
python=/usr/bin/python3
log=build/beside_torch.log
mkdir -p build
# What Torch's package and its link say of themselves is of no interest.
cmake -S c_tests/gloo_compat/beside_torch -B build/beside_torch -DCMAKE_PREFIX_PATH="$prefix" >"$log" 2>&1 &&
  cmake --build build/beside_torch >>"$log" 2>&1 || { cat "$log"; exit 1; }

# torch's own backend looks for this host's name in DNS, unless it has an interface.
export GLOO_SOCKET_IFNAME=lo PYTHONDONTWRITEBYTECODE=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
both() { # COMMAND...
  echo "--- both: $*"
  mkdir "$folder/job"
  timeout 120 "$prefix/bin/gloo-rs" run -n 2 -- "${@/FOLDER/$folder/job}"
  rm -r "$folder/job"
}
headers=c_tests/gloo_compat/beside_torch/beside_torch.py
both build/beside_torch/beside_torch FOLDER torch headers
both build/beside_torch/beside_torch FOLDER headers torch
both "$python" -W ignore "$headers" FOLDER build/beside_torch/libbeside.so torch headers
both "$python" -W ignore "$headers" FOLDER build/beside_torch/libbeside.so headers torch
