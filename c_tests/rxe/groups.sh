# Groups of tests, for scripts that run in a guest. To be sourced.
# GROUPS_WANTED names the groups to run, separated by blanks; if it is empty, all are.

# A test that takes longer hangs: the slowest takes two minutes where others use the processors, too.
limit_seconds=400

groups_run=0
tests_failed=()
group() { # NAME WHAT IT SHOWS: whether the group is to be run; if so, its heading
  [ -z "${GROUPS_WANTED:-}" ] || [[ " $GROUPS_WANTED " == *" $1 "* ]] || return 1
  groups_run=$((groups_run + 1))
  [ "${GUEST:-0}" != 0 ] || printf -- '--- %s: %s\n' "$1" "$2"
}

try() { # NAME COMMAND...: says how it ended and how long it took; what it has printed only if it failed
  local name=$1 status=0 began took
  shift
  began=$(cut -d' ' -f1 /proc/uptime)
  # Killed if it does not end soon after it was told to.
  timeout -k 5 "$limit_seconds" "$@" >/tmp/said 2>&1 </dev/null || status=$?
  took="$(awk -v began="$began" '{ printf "%.1f", $1 - began }' /proc/uptime) s"
  if [ "$status" = 0 ]; then
    echo "ok      $name ($took)"
    return
  fi
  cat /tmp/said
  if [ "$status" = 124 ]; then took="$took, its limit"; fi
  echo "FAILED  $name: status $status after $took"
  tests_failed+=("$name")
}

rust_test() { # PROGRAM NAME: one of its ignored tests; a name that no test has would run none, and pass
  "$1" --ignored --exact "$2" | tee -a /dev/stderr | grep -q "1 passed"
}
export -f rust_test

end_of_groups() { # the status of all
  ((groups_run)) || { echo "no such group: $GROUPS_WANTED" >&2; exit 2; }
  ((${#tests_failed[@]} == 0)) || { echo "failed in guest ${GUEST:-0}: ${tests_failed[*]}" >&2; exit 1; }
}
