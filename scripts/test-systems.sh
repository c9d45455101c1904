#!/bin/bash
# macOS and Windows, from Debian: lints for both; library, tool and a C program linked for Windows, and run by wine.
# usage: scripts/test-systems.sh PREFIX [quick]    (where gloo_rs is installed: the tool prints there what it prints here)
#   quick   lints for macOS only, and one job
set -euo pipefail
cd "$(dirname "$0")/.."
quick=${2:-}
at=$PWD/build/systems
features=(--locked --workspace --exclude gloo-rs-python --no-default-features --features redis,tls,uv)
windows=x86_64-pc-windows-gnu
macos=aarch64-apple-darwin
sizes=4,64Ki,4Mi

fail() {
  echo "test-systems: $*" >&2
  exit 1
}

for target in "$macos" "$windows"; do
  [ "$quick" = quick ] && [ "$target" != "$macos" ] && continue
  echo "test-systems: lints for $target"
  # The tests start processes and look into /proc as Linux has it.
  scripts/cross/cargo.sh "$target" clippy "${features[@]}" --quiet --lib --bins -- -D warnings
done

echo "test-systems: building library and tool for $windows"
scripts/cross/cargo.sh "$windows" build "${features[@]}" --quiet --lib --bins

prefix=$(realpath "$1")
built=$(scripts/cross/cargo.sh "$windows" folder)/debug
rm -rf "$at"
mkdir -p "$at"
cp "$built"/gloo-rs.exe "$built"/gloo_rs.dll "$at"

exported() { grep -oE '\bgloo_rs_[a-z0-9_]+' | LC_ALL=C sort -u; }
nm --dynamic --defined-only "$prefix/lib/libgloo_rs.so" | exported >"$at/exported-here"
x86_64-w64-mingw32-objdump --private-headers "$at/gloo_rs.dll" | exported >"$at/exported-there"
[ -s "$at/exported-here" ] || fail "found no functions in $prefix/lib/libgloo_rs.so"
diff "$at/exported-here" "$at/exported-there" || fail "the functions of libgloo_rs.so (<) and of gloo_rs.dll (>) differ"
echo "ok: gloo_rs.dll exports all $(wc -l <"$at/exported-here") functions"

scripts/extract-examples.sh README.md "$at/examples"
x86_64-w64-mingw32-gcc -std=c11 -Wall -Wextra -Wpedantic -Werror -Iinclude "$at/examples/sum.c" "$built/libgloo_rs.dll.a" -o "$at/sum.exe"
echo "ok: README's C program is linked with gloo_rs.dll"

if [ "$(uname -m)" != x86_64 ]; then
  echo "test-systems: wine runs programs for this machine's processor only, so none of Windows was run"
  exit 0
fi
# wine finds it beside the program.
x86_64-w64-mingw32-gcc -std=c11 -Wall -Wextra -Werror -shared scripts/cross/prng.c -ladvapi32 -o "$at/bcryptprimitives.dll"

# wine says what it lacks only where asked, and does not offer to download browsers.
export WINEPREFIX=$at/wine WINEDEBUG=-all WINEDLLOVERRIDES="mscoree=;mshtml="
running=()
clean_up() {
  ((${#running[@]} == 0)) || kill "${running[@]}" 2>/dev/null || true
  # Ends what runs in this prefix, and nothing else.
  timeout 30 wineserver --kill 2>/dev/null || true
  rm -rf "$WINEPREFIX"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
limited() { timeout --kill-after=10 "$@" </dev/null; }
limited 300 wineboot --init >"$at/wineboot.log" 2>&1 || fail "wine does not start: $(tail -n 3 "$at/wineboot.log")"

same() { # ARGUMENTS: what the tool prints there is what it prints here
  "$prefix/bin/gloo-rs" "$@" >"$at/here"
  limited 120 wine "$at/gloo-rs.exe" "$@" >"$at/there" 2>"$at/error" || fail "gloo-rs.exe $*: status $?: $(tail -n 3 "$at/error")"
  tr -d '\r' <"$at/there" | diff "$at/here" - || fail "gloo-rs $* prints < here and > on Windows"
  echo "ok: gloo-rs.exe $*"
}

free_port() { # one that the system assigns to no connection
  python3 - <<'END'
import random, socket
while True:
    with socket.socket() as server:
        port = random.randrange(10000, 30000)
        if server.connect_ex(("127.0.0.1", port)) != 0:
            print(port)
            break
END
}
certificates=() # variables that name them
ranks() { # NAME PROGRAM ARGUMENTS...: two ranks of it; what they print lies in $at/NAME.0 and $at/NAME.1
  local name=$1 rank port status=0
  shift
  port=$(free_port)
  running=()
  for rank in 0 1; do
    env "${certificates[@]}" RANK="$rank" WORLD_SIZE=2 GLOO_RS_STORE="tcp://127.0.0.1:$port" GLOO_RS_TOKEN="$name-$port" \
      timeout --kill-after=10 180 wine "$at/$1" "${@:2}" </dev/null >"$at/$name.$rank" 2>"$at/$name.$rank.error" &
    running+=($!)
  done
  for rank in 0 1; do
    wait "${running[rank]}" || status=$?
  done
  running=()
  ((status == 0)) || fail "$*: status $status: $(tail -n 3 "$at/$name".?.error)"
}
bench() { # TRANSPORT COLLECTIVE
  local name=$1-$2 lines wanted
  ranks "$name" gloo-rs.exe bench "$2" --transport "$1" --sizes "$sizes" --iterations 5 --warmup 2 --json
  lines=$(grep -c "\"collective\":\"$2\",.*\"transport\":\"$1\",.*\"ranks\":2,.*\"verified\":true" "$at/$name.0" || true)
  wanted=$(tr ',' '\n' <<<"$sizes" | wc -l)
  ((lines == wanted)) || fail "$lines of $wanted results of $2 over $1 are verified: $(cat "$at/$name.0")"
  echo "ok: two ranks of gloo-rs.exe bench $2 --transport $1"
}

echo "test-systems: running by $(wine --version)"
same list
same simulate allreduce --algorithm ring_segmented --ranks 16 --bytes 4Mi --alpha 10us --bandwidth 12.5GB/s
if [ "$quick" = quick ]; then
  bench uv allreduce
  exit 0
fi
same list --json
same simulate alltoall --ranks 7 --bytes 64Ki --json
same simulate broadcast --ranks 4096 --bytes 1Mi --alpha 2us --bandwidth 25GB/s

limited 120 wine "$at/gloo-rs.exe" info | tr -d '\r' >"$at/info"
for transport in tcp tls uv; do
  sed -n '/^transports/,/^kernels/p' "$at/info" | grep -qw "$transport" || fail "gloo-rs.exe info does not list $transport: $(cat "$at/info")"
done
echo "ok: gloo-rs.exe info"

for transport in uv tcp tls; do
  if [ "$transport" = tls ]; then
    mapfile -t certificates < <(examples/tls/certificates.sh "$at/tls" 1 | sed -n 's/^export \(GLOO_RS_TLS_.*\)/\1/p')
    ((${#certificates[@]})) || fail "examples/tls/certificates.sh made no certificates"
  fi
  for collective in allreduce allgather broadcast alltoall; do
    bench "$transport" "$collective"
  done
done
certificates=()

ranks sum sum.exe
for rank in 0 1; do
  tr -d '\r' <"$at/sum.$rank" | diff <(echo "rank $rank of 2: 2 ranks, their numbers add up to 1") - || fail "rank $rank of README's C program printed >"
done
echo "ok: two ranks of README's C program"
