#!/bin/bash
# Runs cargo on all packages of the workspace but Python's module (scripts/test-python.sh), with all features that this machine can build
# (scripts/features.sh). What is compiled for tests is compiled by clippy's compiler (scripts/clippy-driver.sh), which finds what
# `cargo clippy` finds besides: a run of that would compile all dependencies once more.
# usage: scripts/cargo.sh COMMAND [ARGUMENT...]    as after `cargo`
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$(scripts/rust.sh path)
export RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/clippy-driver.sh
exec cargo "$1" --locked --workspace --exclude gloo-rs-python --no-default-features --features "$(scripts/features.sh)" "${@:2}"
