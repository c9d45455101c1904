#!/bin/bash
# Runs parts of the tests, which are targets of the Makefile, and ends with a table of the seconds that each has taken.
# usage: scripts/tier.sh PART... [-- PART...]
#   Parts after `--` run beside the others from the second one on, one after the other, at the lowest priority: parts whose result does not
#   depend on time.
# scripts/seconds.txt has what each part of each tier took when it was recorded: a part whose share of the whole is twice the recorded one is
# marked. RECORD_SECONDS=1 writes what this run took into that file.
set -euo pipefail
cd "$(dirname "$0")/.."
recorded=scripts/seconds.txt
TIER=${TIER:-check}
at=$PWD/build/tier
rm -rf "$at"
mkdir -p "$at"

parts=() beside=()
for part; do
  if [ "$part" = -- ]; then
    beside=("${@:$((${#parts[@]} + 2))}")
    break
  fi
  parts+=("$part")
done

took() { # PART: runs it, and writes how long it took
  local began=$SECONDS status=0
  make "$1" || status=$?
  echo "$1: $((SECONDS - began)) s"
  echo "$TIER.$1 $((SECONDS - began)) $2 $status" >>"$at/took"
  return "$status"
}
: >"$at/took"
began=$SECONDS

run_beside() {
  local part
  for part in "${beside[@]}"; do
    if ! took "$part" beside >>"$at/beside.log" 2>&1; then
      echo "$part" >>"$at/failed"
      return 1
    fi
  done
}
group=
start_beside() {
  # A process group of its own, so that it can be ended whole.
  set -m
  { renice -n 19 "$BASHPID" >/dev/null; run_beside; } </dev/null &
  group=$!
  set +m
}
end_beside() { [ -z "$group" ] || kill -- "-$group" 2>/dev/null || true; }
trap end_beside EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

for part in "${parts[@]}"; do
  if [ -e "$at/failed" ]; then break; fi
  if ! took "$part" in-turn; then
    echo "$part" >>"$at/failed"
    break
  fi
  # Not before set-up, which comes first: the parts beside need the compiler, too.
  if [ -z "$group" ] && ((${#beside[@]})); then start_beside; fi
done
if [ -n "$group" ] && [ ! -e "$at/failed" ]; then
  wait "$group" || true
  group=
fi
if [ -e "$at/beside.log" ]; then
  printf '\n==> Beside the others: %s\n' "${beside[*]}"
  cat "$at/beside.log"
fi
whole=$((SECONDS - began))

printf '\n==> Seconds of each part, slowest first\n'
# The recorded shares are of the same parts.
sort -k2,2nr "$at/took" | awk -v whole="$whole" '
  FILENAME != "-" { if (!/^#/) recorded[$1] = $2; next }
  { name[++n] = $1; took[n] = $2; lane[n] = $3; status[n] = $4; if ($1 in recorded) { sum += $2; before += recorded[$1] } }
  END {
    printf "%-18s %8s %8s\n", "part", "seconds", "recorded"
    for (i = 1; i <= n; i++) {
      was = name[i] in recorded ? recorded[name[i]] : "-"
      note = lane[i] == "beside" ? "  beside" : ""
      if (was != "-" && took[i] >= 10 && before && took[i] / sum > 2 * was / before) note = note "  <- twice its recorded share"
      if (status[i] != 0) note = note "  FAILED"
      printf "%-18s %8d %8s%s\n", name[i], took[i], was, note
    }
    printf "%-18s %8d\n", "all", whole
  }' "$recorded" -
passed=$(awk '$4 == 0' "$at/took" | wc -l)
if [ -e "$at/failed" ]; then
  printf '\nparts: %s passed, %s failed\n' "$passed" "$(wc -l <"$at/failed")"
  sed 's/^/A part that failed: make /' "$at/failed"
  exit 1
fi
if [ -n "${RECORD_SECONDS:-}" ]; then
  sort -k1,1 -o "$recorded.part" <(awk '{ print $1, $2 }' "$at/took") <(awk -v took="$at/took" 'BEGIN { while ((getline line < took) > 0) { split(line, f, " "); there[f[1]] = 1 } } !/^#/ && !($1 in there)' "$recorded")
  { echo "# Part, and the seconds that it took, as the last RECORD_SECONDS=1 on $(nproc) cores of $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1) found it."; cat "$recorded.part"; } >"$recorded.new"
  rm "$recorded.part"
  mv "$recorded.new" "$recorded"
fi
printf '\nparts: %s passed, 0 failed\n' "$passed"
