#!/bin/bash
# Does with the examples of README.md and docs/recovery.md what these say, and looks at what they print. Compiles the examples
# of docs/semantics.md. Runs the programs of examples/, which check their own results.
# usage: scripts/test-readme.sh PREFIX    (where gloo_rs is installed)
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(realpath "$1")
at=build/readme

rm -rf "$at"
scripts/extract-examples.sh README.md "$at"
cmake -S "$at" -B "$at/build" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_C_FLAGS="-std=c11 -Wall -Wextra -Wpedantic -Werror" -DCMAKE_CXX_FLAGS="-Wall -Wextra -Wpedantic -Werror" >/dev/null
cmake --build "$at/build" >/dev/null
scripts/extract-examples.sh docs/semantics.md "$at/semantics"
for example in "$at"/semantics/*.c; do
  cc -std=c11 -Wall -Wextra -Wpedantic -Werror -I"$prefix/include" -c "$example" -o "$example.o"
done

passed=0
expect() { # WANTED COMMAND...: what it prints, sorted, without the launcher's marks
  local wanted=$1 printed
  shift
  printed=$("$@" | sed 's/^.*\(rank [0-9]* of\)/\1/' | sort)
  if [ "$printed" != "$wanted" ]; then
    printf 'test-readme: %s printed\n%s\ninstead of\n%s\n' "$*" "$printed" "$wanted" >&2
    exit 1
  fi
  echo "ok: $*"
  passed=$((passed + 1))
}
expect "rank 0 of 1: 1 ranks, their numbers add up to 0" env RANK=0 WORLD_SIZE=1 "$at/build/sum"
expect "rank 0 of 2: 2 ranks, their numbers add up to 1
rank 1 of 2: 2 ranks, their numbers add up to 1" "$prefix/bin/gloo-rs" run -n 2 -- "$at/build/sum"
expect "rank 0 of 1: means 1 and 0" env RANK=0 WORLD_SIZE=1 "$at/build/average"
expect "rank 0 of 2: means 1 and 0.5
rank 1 of 2: means 1 and 0.5" "$prefix/bin/gloo-rs" run -n 2 -- "$at/build/average"

# A job that loses a process: no launcher, since launchers end the others then.
scripts/extract-examples.sh docs/recovery.md "$at"
cc -std=c11 -Wall -Wextra -Wpedantic -Werror -I"$prefix/include" -c "$at/shrink.c" -o "$at/shrink.o"
cc -std=c11 -Wall -Wextra -Wpedantic -Werror -I"$prefix/include" -c "$at/members.c" -o "$at/members.o"
cc -std=c11 -Wall -Wextra -Wpedantic -Werror "$at/elastic.c" -o "$at/elastic" -I"$prefix/include" -L"$prefix/lib" -lgloo_rs \
  -Wl,-rpath,"$prefix/lib"
lose_one() {
  export WORLD_SIZE=3 GLOO_RS_STORE=file://$PWD/$at/store
  RANK=0 timeout 60 "$at/elastic" 1000 &
  RANK=1 timeout 60 "$at/elastic" 1000 500 &
  RANK=2 timeout 60 "$at/elastic" 1000 &
  wait
}
expect "rank 0 of 2: 2500 after 1000 steps
rank 1 of 2: 2500 after 1000 steps" lose_one 2>"$at/elastic.log"
grep -q "^gloo_rs_allreduce: rank [0-2]: allreduce .* rank [0-2] at " "$at/elastic.log" || { cat "$at/elastic.log" >&2; exit 1; }
# With the strict warnings only here: users compile them with whatever they have.
cmake -S examples -B "$at/examples" -DCMAKE_PREFIX_PATH="$prefix" -DMPI_CXX_COMPILER=mpicxx.openmpi -DCMAKE_CXX_FLAGS=-Werror >/dev/null
cmake --build "$at/examples" --parallel "$(nproc)" >/dev/null
verified() { # NAME COMMAND...
  timeout 60 "${@:2}" "$at/examples/$1/$1" >"$at/$1.log" 2>&1 || { cat "$at/$1.log" >&2; echo "test-readme: examples/$1 failed" >&2; exit 1; }
  echo "ok: examples/$1"
  passed=$((passed + 1))
}
for example in alltoallv elastic halo overlap split; do verified "$example" "$prefix/bin/gloo-rs" run -n 4 --; done
verified mpi mpirun.openmpi --allow-run-as-root --oversubscribe -n 4
echo "test-readme: $passed passed"
