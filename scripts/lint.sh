#!/bin/bash
# Clippy without features, tests and benchmarks too; the compiler's warnings with each feature of Cargo.toml alone. All of them being errors.
# `make test-lint` has clippy with all features.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t features < <(sed -n '/^\[features\]$/,/^\[/s/^\([a-z0-9_-]*\) = .*/\1/p' Cargo.toml | grep -vx default)
((${#features[@]})) || { echo "lint: found no features in Cargo.toml" >&2; exit 1; }
echo "features: none"
cargo clippy --locked --quiet --workspace --no-default-features --all-targets -- -D warnings
for feature in "${features[@]}"; do
  echo "features: $feature"
  # Not by RUSTFLAGS, for which all that this crate depends on would be compiled again.
  cargo --config 'build.warnings = "deny"' check --locked --quiet --workspace --no-default-features --features "$feature" --lib --bins
done
