#!/bin/bash
# Builds the backend of torch.distributed, and tests it beside torch's own over Gloo.
# usage: scripts/test-torch.sh PREFIX    (where gloo_rs is installed)
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(realpath "$1")

# Debian's, whose torch it is; another one may come first on PATH.
python=/usr/bin/python3
csv=$(scripts/get-digits.sh)
log=build/torch.log
mkdir -p build
# What Torch's package and its link say of themselves is of no interest.
if ! { cmake -S examples/torch -B build/torch -DCMAKE_PREFIX_PATH="$prefix" -DPython_EXECUTABLE="$python" && cmake --build build/torch; } >"$log" 2>&1; then
  cat "$log"
  exit 1
fi

# torch's own backend looks for this host's name in DNS, unless it has an interface.
export GLOO_SOCKET_IFNAME=lo PYTHONPATH=build/torch PYTHONDONTWRITEBYTECODE=1
for test in calls failures "training $csv"; do
  read -r name arguments <<<"$test"
  echo "--- $name"
  # Some of these calls torch declares out of date.
  "$python" -W ignore "examples/torch/test_$name.py" ${arguments:+"$arguments"}
done
