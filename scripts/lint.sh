#!/bin/bash
# Clippy, all warnings being errors: without features, tests and benchmarks too; library and tool with each feature of Cargo.toml alone.
# `make test-lint` has clippy with all features.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t features < <(sed -n '/^\[features\]$/,/^\[/s/^\([a-z0-9_-]*\) = .*/\1/p' Cargo.toml | grep -vx default)
((${#features[@]})) || { echo "lint: found no features in Cargo.toml" >&2; exit 1; }
lint() { # FEATURES TARGETS...
  echo "features: ${1:-none}"
  cargo clippy --locked --quiet --workspace --exclude gloo-rs-python --no-default-features --features "$1" "${@:2}" -- -D warnings
}
lint "" --all-targets
for feature in "${features[@]}"; do lint "$feature" --lib --bins; done
