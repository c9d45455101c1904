#!/bin/bash
# Makes the wheels for glibc 2.17 and later. Runs the tests of Python's package on that for this machine's processor; of the one for aarch64, two
# ranks of a C program by qemu, linked with its library.
# usage: scripts/test-manylinux.sh
set -euo pipefail
cd "$(dirname "$0")/.."
own=$(uname -m)
scripts/manylinux.sh "$own"
environment=build/manylinux/tests
scripts/venv.sh "$environment" python/requirements.txt
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall build/manylinux/"$own"/wheel/*.whl
"$environment/bin/python" -m pytest --quiet -p no:cacheprovider

other=aarch64
if [ "$own" = "$other" ]; then exit 0; fi
scripts/manylinux.sh "$other"
at=build/manylinux/$other
scripts/extract-examples.sh README.md "$at/examples"
"$other-linux-gnu-gcc" -std=c11 "$at/examples/sum.c" -o "$at/sum" -I"$at/prefix/include" -L"$at/prefix/lib" -lgloo_rs -Wl,-rpath,"$PWD/$at/prefix/lib"
store=$(mktemp -d)
trap 'rm -r "$store"' EXIT
export WORLD_SIZE=2 GLOO_RS_STORE=file://$store
ranks=()
for rank in 0 1; do
  RANK=$rank timeout 120 "qemu-$other" -L "/usr/$other-linux-gnu" "$at/sum" >"$at/rank$rank.log" &
  ranks+=($!)
done
for rank in 0 1; do
  wait "${ranks[$rank]}"
  grep -qx "rank $rank of 2: 2 ranks, their numbers add up to 1" "$at/rank$rank.log" || { cat "$at/rank$rank.log" >&2; exit 1; }
done
echo "ok: two ranks of $other, by qemu"
