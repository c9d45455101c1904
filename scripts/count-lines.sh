#!/bin/bash
# Counts the lines of Rust that a user links: those of library and tool, by folder.
# usage: scripts/count-lines.sh [COMMIT]    default: what lies here
# What counts is decided as the compiler decides it, by following `mod` from src/lib.rs and tool/src/main.rs with nothing set of test, fuzzing,
# loom, miri and doc: so no tests, fakes, fuzz bodies, models and simulation, whether in files of their own or as items within a file. What is for
# another system or a feature counts. `lines` are all lines, `code` those that are neither empty nor comments alone.
set -euo pipefail
cd "$(dirname "$0")/.."
at=$(mktemp -d)
trap 'rm -rf "$at"' EXIT
rustc --edition 2024 -O -A dead_code -o "$at/count" tests/floors/count.rs
if [ -n "${1:-}" ]; then
  git archive "$1" src tool/src | tar -x -C "$at"
  "$at/count" "$at"
else
  "$at/count" .
fi
