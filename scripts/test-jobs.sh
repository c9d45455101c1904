#!/bin/bash
# Integration tests of library, tool and header: the programs in tests/, tool/tests/ and c_tests/header/.
# usage: scripts/test-jobs.sh TIER [PATTERN]
#   TIER      check leaves out what needs more than cargo and a C compiler, and what takes long; test and more only `scale`, which needs the
#             machine for itself: make test-scale
#   PATTERN   only tests whose name holds it
set -euo pipefail
cd "$(dirname "$0")/.."
tier=$1
pattern=${2:-}
export GLOO_RS_TEST_TIER=$tier

if [ -n "$pattern" ]; then exec scripts/cargo.sh test --test '*' -- "$pattern"; fi
scripts/cargo.sh test --test '*' --no-run
if [ "$tier" = check ]; then
  exec scripts/cargo.sh test --test allocations --test docs --test exhaustion --test floors --test header --test hygiene --test jobs --test tool -- \
    --skip hosts:: --skip links:: --skip scale:: --skip redis --skip failures:: --skip stores::
fi
scripts/cargo.sh test --test allocations --test docs --test exhaustion --test floors --test header --test hostile --test hygiene --test recovery --test tool
exec scripts/cargo.sh test --test jobs -- --skip scale::
