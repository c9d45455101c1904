#!/bin/bash
# Tests Python's package: clippy on the module, its declarations of the C ABI, and the tests of the wheel, which it installs.
# usage: scripts/test-python.sh [PATTERN]    (after scripts/wheel.sh; tests whose name contains the pattern)
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/build/python/bin:$(scripts/rust.sh path)
cargo clippy --locked --quiet -p gloo-rs-python -- -D warnings
scripts/bindgen.sh | cmp - python/src/abi.rs || { echo "test-python: run make python-abi" >&2; exit 1; }
pip install --quiet --disable-pip-version-check --no-deps --force-reinstall build/wheel/*.whl
python -m pytest --quiet -p no:cacheprovider ${1:+-k "$1"}
