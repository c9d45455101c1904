#!/bin/bash
# Runs cargo-deny on the default members of the workspace, and on Python's module, which is none of these.
# usage: scripts/deny.sh ARGUMENT...
set -euo pipefail
cd "$(dirname "$0")/.."
deny=$(scripts/pinned.sh cargo-deny)
for manifest in Cargo.toml python/Cargo.toml; do
  "$deny" --manifest-path "$manifest" --config "$PWD/deny.toml" --locked --all-features "$@"
done
