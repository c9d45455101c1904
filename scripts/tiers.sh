#!/bin/bash
# The tiers of tests, and which parts each has. A part is a target of the Makefile.
# usage: scripts/tiers.sh check
#        scripts/tiers.sh test
#        scripts/tiers.sh more [K/N]    shard K of the N below; all, if none is named
#        scripts/tiers.sh ci            `test`, and then the shard that `scripts/tiers.sh shard` names
#        scripts/tiers.sh shard         prints which shard fits what has changed, and why
set -euo pipefail
cd "$(dirname "$0")/.."

# Some tests wait for most of their time, which the other lane uses.
check_first=(test-format test-lint)
check_library=(test-rust)
check_jobs=(test-jobs test-c-core)

# Set-up comes first. Then lanes run side by side: Rust's tests; what is built with the installed package; and at a low priority two of
# what does not depend on time. A compiler often has work for one core only, so that each lane uses what the others leave.
first=(setup test-format)
rust=(test-lint test-seeds test-rust test-jobs)
package=(prefix test-instructions test-c test-valgrind test-asan test-package test-readme test-demo test-header test-abi test-ibverbs)
miri=(test-miri)
models=(test-loom)

# NAME: PARTS | PATHS. A change below one of the paths asks for the shard, and of several for the first.
shards=(
  "pytorch: test-torch | python/gloo_rs/torch python/gloo_rs_autoload python/tests/pytorch python/requirements-torch.txt scripts/test-torch.sh scripts/venv.sh"
  "python: test-python test-manylinux | python pyproject.toml include/gloo_rs.h examples/python scripts/bindgen.sh scripts/test-python.sh scripts/wheel.sh scripts/manylinux.sh scripts/test-manylinux.sh scripts/venv.sh"
  "fresh-more: test-fresh-more test-deb | Dockerfile scripts/container.sh scripts/cross scripts/deb.sh scripts/cuda.txt scripts/fuzz.sh scripts/pinned.sh scripts/ptx.sh
    scripts/test-aarch64.sh scripts/test-deb.sh scripts/test-systems.sh scripts/test-beside-torch.sh scripts/tsan.sh"
  "fresh: test-fresh | .cargo .ci CMakeLists.txt Makefile c_tests/CMakeLists.txt c_tests/gloo_compat/CMakeLists.txt c_tests/gloo_compat/headers.sh
    c_tests/gloo_compat/mpi.sh c_tests/launchers.sh c_tests/rxe c_tests/with_tls.sh c_tests/with_redis.sh cmake examples/tls scripts"
  "systems: test-systems test-features test-doc test-deny test-ptx | src/sys src/cuda Cargo.lock Cargo.toml tool/Cargo.toml deny.toml"
  "pytorch-gloo: test-torch-gloo |"
  "bench: test-beside-torch test-bench | include/gloo benches"
  "links: setup test-ibverbs-two test-ibverbs-more test-c-more | src/transport/ibverbs c_tests"
  "threads: setup test-threads test-loom test-aarch64 test-endurance | src/engine src/publications src/transport src/reduce"
  "depth: setup test-seeds test-sweep test-recovery test-scale test-fuzz | src/collective src/schedule src/messaging src/testing fuzz"
)
number=${#shards[@]}
name_of() { local row=${shards[$1 - 1]}; echo "${row%%:*}"; }
parts_of() { local row=${shards[$1 - 1]#*: }; echo "${row%% |*}"; }
paths_of() { local row=${shards[$1 - 1]#* | }; echo "${row//$'\n'/ }"; }

# The files that have changed since the last landing. Nothing in the history tells a landing: LANDED names its commit, or else all commits of the
# last three hours count, which is how long work goes on before it lands.
changed_files() {
  local since=${LANDED:-}
  if [ -z "$since" ]; then
    since=$(git rev-list -n 1 --first-parent --before="$(($(git log -1 --format=%ct) - 3 * 3600))" HEAD)
  fi
  git diff --name-only --no-renames "${since:-$(git hash-object -t tree /dev/null)}" HEAD
}
choose_shard() { # sets k and why
  local paths path file
  mapfile -t files < <(changed_files)
  for ((k = 1; k <= number; k++)); do
    read -ra paths <<<"$(paths_of "$k")"
    for path in "${paths[@]}"; do
      for file in "${files[@]}"; do
        if [[ $file == "$path" || $file == "$path"/* ]]; then
          why="$file has changed"
          return
        fi
      done
    done
  done
  local commits
  commits=$(git rev-list --count --first-parent HEAD)
  k=$((commits % number + 1))
  why="no path of a shard has changed; $commits commits, modulo $number"
}
shard() { # K
  local parts
  read -ra parts <<<"$(parts_of "$1")"
  printf '\n==> Shard %s of %s of make test-more: %s\n' "$1" "$number" "$(name_of "$1")"
  TIER=more scripts/tier.sh "${parts[@]}"
}
run_test() {
  TIER=test LOW=3 scripts/tier.sh "${first[@]}" -- "${rust[@]}" -- "${package[@]}" -- "${miri[@]}" -- "${models[@]}"
  echo "NOT TESTED: GPUs. Their driver was simulated, and kernels for them were interpreted on the CPU; nothing was run on a GPU."
}

case ${1:-} in
  check)
    TIER=check scripts/tier.sh "${check_first[@]}" -- "${check_library[@]}" -- "${check_jobs[@]}"
    scripts/features.sh say
    ;;
  test) run_test ;;
  more)
    if [ -n "${2:-}" ]; then
      [[ $2 =~ ^([0-9]+)/$number$ ]] && ((BASH_REMATCH[1] >= 1 && BASH_REMATCH[1] <= number)) ||
        { echo "tiers: SHARD=$2, but there are $number shards: 1/$number to $number/$number" >&2; exit 2; }
      shard "${BASH_REMATCH[1]}"
    else
      for ((k = 1; k <= number; k++)); do shard "$k"; done
    fi
    ;;
  ci)
    run_test
    choose_shard
    printf '\n==> Shard %s/%s, %s: %s\n' "$k" "$number" "$(name_of "$k")" "$why"
    shard "$k"
    ;;
  shard)
    choose_shard
    echo "$k/$number $(name_of "$k"): $why"
    ;;
  *) echo "tiers: no such tier: ${1:-}" >&2 && exit 2 ;;
esac
