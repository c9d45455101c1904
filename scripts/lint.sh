#!/bin/bash
# Clippy, all warnings being errors: without features, with each of Cargo.toml's alone, and with all. Tests and benchmarks, which take most of
# the time, without features and with all.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t features < <(sed -n '/^\[features\]$/,/^\[/s/^\([a-z0-9_-]*\) = .*/\1/p' Cargo.toml | grep -vx default)
((${#features[@]})) || { echo "lint: found no features in Cargo.toml" >&2; exit 1; }
lint() { # FEATURES TARGETS...
  echo "features: ${1:-none}"
  cargo clippy --locked --quiet --no-default-features --features "$1" "${@:2}" -- -D warnings
}
lint "" --all-targets
for feature in "${features[@]}"; do lint "$feature" --lib --bins; done
lint "$(IFS=,; echo "${features[*]}")" --all-targets
