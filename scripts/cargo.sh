#!/bin/bash
# Runs cargo on library and tool, with all features that this machine can build (scripts/features.sh): the same for clippy and tests, so that
# nothing is compiled twice.
# usage: scripts/cargo.sh COMMAND [ARGUMENT...]    as after `cargo`
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$(scripts/rust.sh path)
exec cargo "$1" --locked --workspace --no-default-features --features "$(scripts/features.sh)" "${@:2}"
