#!/bin/bash
# Starts a program under launchers of others, as they come, and looks at what it prints and how it ends.
# usage: launchers.sh PROGRAM
set -euo pipefail
program=$1
ranks=4
# This test may itself run within a job.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT GLOO_RS_STORE

fail() {
  printf 'launchers: %s\n' "$@" >&2
  exit 1
}

expected() { # TIMES: what each rank prints, so many times
  for ((rank = 0; rank < ranks; rank++)); do
    for ((time = 0; time < $1; time++)); do
      echo "rank $rank of $ranks, $rank of $ranks here: $((ranks * (ranks + 1) / 2))"
    done
  done
}

try() { # TIMES COMMAND...: it ends well, and prints what is expected
  local times=$1 printed
  shift
  printed=$(timeout 60 "$@" 2>&1 | sort) || fail "$* failed:" "$printed"
  [ "$printed" = "$(expected "$times")" ] || fail "$* printed" "$printed" "instead of" "$(expected "$times")"
  echo "ok: $*"
}

try_failing() { # COMMAND...: it fails, soon
  local status=0
  timeout 60 "$@" >/dev/null 2>&1 || status=$?
  # 124: timeout's own.
  if ((status == 0 || status == 124)); then fail "$* ended with status $status"; fi
  echo "ok: $* ended with status $status"
}

for launcher in "mpirun.openmpi --allow-run-as-root --oversubscribe" mpiexec.mpich; do
  # shellcheck disable=SC2206
  launch=($launcher -n "$ranks")
  try 1 "${launch[@]}" "$program"
  # Two programs one after the other, in the same processes of one job.
  # shellcheck disable=SC2016
  try 2 "${launch[@]}" sh -c '"$0" && exec "$0"' "$program"
  try_failing "${launch[@]}" "$program" fail
done
# A store that is named is used under any launcher.
store=$(mktemp -d)
trap 'rm -rf "$store"' EXIT
try 1 env GLOO_RS_STORE="file://$store" mpiexec.mpich -n "$ranks" "$program"
[ -n "$(ls "$store")" ] || fail "GLOO_RS_STORE was not used"
