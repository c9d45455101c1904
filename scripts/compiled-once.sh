#!/bin/bash
# Fails if a part of `make test` would compile again what `make test-lint` has compiled. Which features and which link-time optimisation a dependency is
# compiled with may depend on what else a command needs, and then all that uses it is another crate.
set -euo pipefail
cd "$(dirname "$0")/.."
for targets in --lib "--lib --bins" "--lib --test jobs" "--test jobs" "--test *"; do
  set -f # no file names for the pattern
  # shellcheck disable=SC2086 # words
  again=$(scripts/cargo.sh test --no-run --quiet --message-format json $targets | sed -n '/"fresh":false/s/.*"package_id":"\([^"]*\)".*/\1/p' | sort -u)
  [ -z "$again" ] || { echo "compiled-once: cargo test $targets compiles again: $again" >&2; exit 1; }
done
