#!/bin/bash
# Runs the models in src/engine/, src/publications/ and src/transport/shm/ through every order of events, by loom.
# usage: scripts/loom.sh [ARGUMENTS OF cargo test...]
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTFLAGS="--cfg loom ${RUSTFLAGS:-}"
# The models take moments; what takes time is to optimise.
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_TEST_OPT_LEVEL=0 CARGO_PROFILE_TEST_DEBUG=false
# A folder of its own: other flags, other artifacts.
exec cargo test -p gloo_rs --locked --no-default-features --lib --target-dir "${CARGO_TARGET_DIR:-target}/loom" "${@:-::model::}"
