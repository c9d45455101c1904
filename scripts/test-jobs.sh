#!/bin/bash
# Integration tests of library and tool: the programs in tests/ and tool/tests/.
# usage: scripts/test-jobs.sh TIER [PATTERN]
#   TIER      check leaves out what needs more than cargo and a C compiler, and what takes long; test and more only `scale`, which needs the
#             machine for itself: make test-scale
#   PATTERN   only tests whose name holds it
set -euo pipefail
cd "$(dirname "$0")/.."
tier=$1
pattern=${2:-}
cargo_test=(cargo test --locked --workspace --no-default-features --features "$(scripts/features.sh)")
export GLOO_RS_TEST_TIER=$tier

if [ -n "$pattern" ]; then exec "${cargo_test[@]}" --test '*' -- "$pattern"; fi
"${cargo_test[@]}" --test '*' --no-run
if [ "$tier" = check ]; then
  exec "${cargo_test[@]}" --test allocations --test docs --test hygiene --test jobs --test tool -- \
    --skip hosts:: --skip links:: --skip scale:: --skip redis --skip failures:: --skip stores::
fi
"${cargo_test[@]}" --test allocations --test docs --test hostile --test hygiene --test recovery --test tool
exec "${cargo_test[@]}" --test jobs -- --skip scale::
