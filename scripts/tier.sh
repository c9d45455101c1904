#!/bin/bash
# Runs parts of the tests, which are targets of the Makefile, and ends with a table of the seconds that each has taken.
# usage: scripts/tier.sh PART... [-- PART...]...
#   The parts up to the first `--` run one after the other. Then each group between two `--` is a lane: its parts run one after the other, and
#   the lanes side by side. What a part of a lane prints is shown as a whole when the part has ended. The lanes from number LOW on run at a
#   low priority: their results do not depend on time. At the lowest one, Miri, which has one thread, would go on for minutes when the others have ended.
# scripts/seconds.txt has the processor time of each part of each tier when it was recorded, which lanes beside it change little: a part whose share
# of the whole is twice the recorded one is marked. RECORD_SECONDS=1 writes what this run took into that file.
set -euo pipefail
cd "$(dirname "$0")/.."
recorded=scripts/seconds.txt
TIER=${TIER:-check}
LOW=${LOW:-0}
at=$PWD/build/tier
rm -rf "$at"
mkdir -p "$at"
: >"$at/took"
began=$SECONDS

lanes=("")
for part; do
  if [ "$part" = -- ]; then lanes+=(""); else lanes[-1]+=" $part"; fi
done

took() { # PART LANE: runs it, and writes how long it took, by the clock and of the processors
  local part=$1 lane=$2 since=$SECONDS status=0 log=$at/$1.log
  local TIMEFORMAT='%U %S'
  if ((lane)); then
    echo "==> make $part begins at $((SECONDS - began)) s; its output: ${log#"$PWD/"}"
    { time make "$part" >"$log" 2>&1; } 2>"$at/$part.cpu" || status=$?
  else
    { time make "$part" 2>&3; } 3>&2 2>"$at/$part.cpu" || status=$?
  fi
  {
    flock 9
    if ((lane)); then cat "$log"; fi
    echo "$part: $((SECONDS - since)) s"
    echo "$TIER.$part $((SECONDS - since)) $lane $status $(awk '{ printf "%.0f", $1 + $2 }' "$at/$part.cpu")" >&9
    if ((status)); then echo "$part" >>"$at/failed"; fi
  } 9>>"$at/took"
  return "$status"
}
run_lane() { # LANE
  local part
  for part in ${lanes[$1]}; do
    took "$part" "$1" || return 1
  done
}

groups=()
end_lanes() {
  local group
  for group in "${groups[@]}"; do kill -- "-$group" 2>/dev/null || true; done
}
trap end_lanes EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

if run_lane 0 && ((${#lanes[@]} > 1)); then
  # A process group for each lane, so that it can be ended whole.
  set -m
  for ((lane = 1; lane < ${#lanes[@]}; lane++)); do
    {
      if ((LOW && lane >= LOW)); then renice -n 10 "$BASHPID" >/dev/null; fi
      run_lane "$lane"
    } </dev/null &
    groups+=($!)
  done
  set +m
  # The first part that fails ends all.
  for _ in "${groups[@]}"; do wait -n || break; done
  end_lanes
  wait || true
  groups=()
fi
whole=$((SECONDS - began))

printf '\n==> Seconds of each part, by the clock and of the processors, most of these first\n'
# The recorded shares are of the same parts.
sort -k5,5nr "$at/took" | awk -v whole="$whole" '
  FILENAME != "-" { if (!/^#/) recorded[$1] = $2; next }
  { name[++n] = $1; took[n] = $2; lane[n] = $3; status[n] = $4; cpu[n] = $5; all += $5; if ($1 in recorded) { sum += $5; before += recorded[$1] } }
  END {
    printf "%-18s %4s %8s %8s %8s\n", "part", "lane", "seconds", "CPU", "recorded"
    for (i = 1; i <= n; i++) {
      was = name[i] in recorded ? recorded[name[i]] : "-"
      note = ""
      if (was != "-" && cpu[i] >= 10 && before && cpu[i] / sum > 2 * was / before) note = note "  <- twice its recorded share"
      if (status[i] != 0) note = note "  FAILED"
      printf "%-18s %4d %8d %8d %8s%s\n", name[i], lane[i], took[i], cpu[i], was, note
    }
    printf "%-18s %4s %8d %8d\n", "all", "", whole, all
  }' "$recorded" -
passed=$(awk '$4 == 0' "$at/took" | wc -l)
if [ -e "$at/failed" ]; then
  printf '\nparts: %s passed, %s failed\n' "$passed" "$(wc -l <"$at/failed")"
  sed 's/^/A part that failed: make /' "$at/failed"
  exit 1
fi
if [ -n "${RECORD_SECONDS:-}" ]; then
  sort -k1,1 -o "$recorded.part" <(awk '{ print $1, $5 }' "$at/took") <(awk -v took="$at/took" 'BEGIN { while ((getline line < took) > 0) { split(line, f, " "); there[f[1]] = 1 } } !/^#/ && !($1 in there)' "$recorded")
  { echo "# Tier and part, and its processor time in seconds, as the last RECORD_SECONDS=1 on $(nproc) cores of $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1) found it."; cat "$recorded.part"; } >"$recorded.new"
  rm "$recorded.part"
  mv "$recorded.new" "$recorded"
fi
printf '\nparts: %s passed, 0 failed\n' "$passed"
