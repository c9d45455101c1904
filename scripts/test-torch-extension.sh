#!/bin/bash
# Builds the backend of torch.distributed, and tests it beside torch's own over Gloo; and the headers of Gloo's API in a program that
# uses torch's own.
# usage: scripts/test-torch-extension.sh PREFIX    (where gloo_rs is installed)
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(realpath "$1")

# Debian's, whose torch it is; another one may come first on PATH.
python=/usr/bin/python3
csv=$(scripts/get-digits.sh)
log=build/torch.log
mkdir -p build
build() { # SOURCES FOLDER ARGUMENT...
  # What Torch's package and its link say of themselves is of no interest.
  if ! { cmake -S "$1" -B "$2" -DCMAKE_PREFIX_PATH="$prefix" "${@:3}" && cmake --build "$2"; } >"$log" 2>&1; then
    cat "$log"
    exit 1
  fi
}
build examples/torch build/torch -DPython_EXECUTABLE="$python"
build c_tests/gloo_compat/beside_torch build/beside_torch

# torch's own backend looks for this host's name in DNS, unless it has an interface.
export GLOO_SOCKET_IFNAME=lo PYTHONPATH=build/torch PYTHONDONTWRITEBYTECODE=1

echo "--- sum"
# In a network namespace: torch's store listens on all addresses, and on this port.
namespace=(unshare --user --map-root-user --net)
((EUID == 0)) && namespace=(unshare --net)
# shellcheck disable=SC2016 # the inner shell expands
sums=$(PATH="$PATH:/usr/sbin:/sbin" MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 "${namespace[@]}" bash -c 'ip link set lo up && exec "$@"' - \
  "$prefix/bin/gloo-rs" run -n 2 -- "$python" -W ignore examples/torch/sum.py)
wanted=$'[0] rank 0 of 2: [3.0, 3.0, 3.0]\n[1] rank 1 of 2: [3.0, 3.0, 3.0]'
if [ "$(sort <<<"$sums")" != "$wanted" ]; then
  printf 'test-torch: wrong sums:\n%s\n' "$sums"
  exit 1
fi
run() { # NAME ARGUMENT...
  echo "--- $1, GLOO_RS_SHM=$GLOO_RS_SHM"
  # Some of these calls torch declares out of date.
  "$python" -W ignore "examples/torch/test_$1.py" "${@:2}"
}
for GLOO_RS_SHM in 1 0; do
  export GLOO_RS_SHM
  run calls
  run failures
  run training "$csv"
done

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
