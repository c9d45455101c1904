#!/bin/bash
# Clippy, all warnings being errors: without features, with each of Cargo.toml's alone, and with all.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t features < <(sed -n '/^\[features\]$/,/^\[/s/^\([a-z0-9_-]*\) = .*/\1/p' Cargo.toml | grep -vx default)
((${#features[@]})) || { echo "lint: found no features in Cargo.toml" >&2; exit 1; }
for chosen in "" "${features[@]}" "$(IFS=,; echo "${features[*]}")"; do
  echo "features: ${chosen:-none}"
  cargo clippy --locked --quiet --all-targets --no-default-features --features "$chosen" -- -D warnings
done
