#!/bin/bash
# Tests gloo_rs.torch, of the wheel, with the PyTorch of python/requirements-torch.txt in a virtual environment.
# usage: scripts/test-torch.sh own [PATTERN]    our tests (those whose name contains the pattern), and torch's own as the backend gloo_rs
#        scripts/test-torch.sh gloo             torch's own tests as the backend gloo
#        scripts/test-torch.sh bench ARGUMENT...    times it beside torch's own: benches/peers/pytorch.py
set -euo pipefail
cd "$(dirname "$0")/.."
environment=build/pytorch
# Gigabytes, which pip would keep twice.
PIP_NO_CACHE_DIR=1 scripts/venv.sh "$environment" python/requirements-torch.txt
python=$environment/bin/python
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall build/wheel/*.whl
# What torch declares out of date, and what it says of GPUs that are not there, is of no interest.
export PYTHONWARNINGS=ignore PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
accept() { # BACKEND RANKS
  local log=build/torch-$1-$2.log
  "$python" python/tests/pytorch/acceptance.py "$1" "$2" 2>"$log" && return
  grep -E '^(ERROR|FAIL): ' "$log" >&2
  echo "test-torch: see $log" >&2
  exit 1
}
case ${1:-} in
  own)
    "$python" -m pytest --quiet -p no:cacheprovider python/tests/pytorch ${2:+-k "$2"}
    [ -z "${2:-}" ] || exit 0
    for ranks in 2 3; do accept gloo_rs "$ranks"; done
    "$python" benches/peers/pytorch.py --quick >build/torch-bench.log
    ;;
  gloo) for ranks in 2 3; do accept gloo "$ranks"; done ;;
  bench) "$python" benches/peers/pytorch.py "${@:2}" ;;
  *) echo "test-torch: own, gloo or bench?" >&2 && exit 2 ;;
esac
