#!/bin/bash
# Runs a command in a guest, or in two: emulated machines with devices of software RoCE (rdma_rxe). Hands on what the command prints and its
# status. With two guests each line begins with the guest's number, and the status is the first that is not 0. A guest without
# a status, since it has crashed, counts as 125; one that has not ended in time, or 60 s after the other failed, as 124.
# usage: c_tests/rxe/guest.sh [OPTION...] COMMAND [ARGUMENT...]
#   --guests 1|2      how many (1); in the command's environment GUEST is 0 or 1
#   --devices 0|1|2   devices of each (1): rxe0 of the interface net0, rxe1 of net1. Device D has 10.77.D.1 in guest 0, 10.77.D.2 in guest 1.
#                     Two guests are connected by these interfaces; those of one guest alone lead nowhere
#   --copy PATH       a file or folder, with the libraries that programs there need, which goes to the same path; may be repeated
#   --folder PATH     where the command runs (the path of the current folder)
#   --mtu BYTES       of the interfaces (4500)
#   --cpus N, --memory MIB   of each guest (2, 1024)
#   --seconds N       after which the guests end, whatever they do (300)
#   --log FILE        the console of each guest: FILE.0, FILE.1
#   --shell           a shell on this terminal in place of a command; Ctrl-A X ends it
# GUEST_ACCEL=kvm runs them by KVM; not set, they are emulated (tcg), which needs no rights.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/image.sh"

fail() {
  echo "guest: $*" >&2
  exit 2
}

guests=1 devices=1 copies=() folder=$PWD mtu=4500 cpus=2 memory=1024 seconds=300 patience=60 log='' shell=''
while (($#)); do
  case $1 in
    --guests) guests=$2 ;;
    --devices) devices=$2 ;;
    --copy) copies+=("$(realpath --no-symlinks "$2")") ;;
    --folder) folder=$(realpath --no-symlinks --canonicalize-missing "$2") ;;
    --mtu) mtu=$2 ;;
    --cpus) cpus=$2 ;;
    --memory) memory=$2 ;;
    --seconds) seconds=$2 ;;
    --log) log=$(realpath --canonicalize-missing "$2") ;;
    --shell)
      shell=1
      shift
      continue
      ;;
    -*) fail "no such option: $1" ;;
    *) break ;;
  esac
  shift 2
done
(($#)) || [ -n "$shell" ] || fail "no command; usage: $(sed -n '2,/^set/s/^# //p' "$0")"
[ -z "$shell" ] || ((guests == 1)) || fail "a shell needs the terminal for itself: --guests 1"
base=$("$here/base.sh")

runs=$here/../../build/rxe
mkdir -p "$runs"
runs=$(realpath "$runs")
# Those of scripts that were killed before they could clean up.
for old in "$runs"/run.*; do
  pid=${old##*/run.} pid=${pid%.*}
  [ ! -d "$old" ] || kill -0 "$pid" 2>/dev/null || rm -rf "$old"
done
work=$(mktemp -d "$runs/run.$$.XXXXXX")
machines=() readers=()
end() {
  local machine
  for machine in "${machines[@]}"; do kill "$machine" 2>/dev/null || true; done
  # A reader waits for somebody to open its pipe for writing, or for the last to close it.
  for pipe in "$work"/*.pipe; do [ ! -p "$pipe" ] || : <>"$pipe"; done
  wait
  rm -rf "$work"
}
trap end EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# What the guests have beyond the base, and each for itself.
root=$work/root
skeleton "$root"
for copy in "${copies[@]}"; do
  mkdir -p "$root${copy%/*}"
  cp -a "$copy" "$root${copy%/*}/"
done
mkdir -p "$root/$folder" "$root/job"
if ((${#copies[@]})); then
  mapfile -d '' -t programs < <(find "${copies[@]}" -type f -size +0 \( -perm /111 -o -name '*.so*' \) -print0)
  mapfile -t needed < <(libraries "${programs[@]}")
  for library in "${needed[@]}"; do
    [ -e "$base/root$library" ] || place "$root" "$library"
  done
  # The guest takes its time to unpack what nobody reads there.
  for program in "${programs[@]}"; do
    [ "$(head -c 4 "$program" | tr -d '\0')" != $'\x7fELF' ] || strip --strip-debug "$root$program" 2>/dev/null || true
  done
fi
(($# == 0)) || printf '%q ' "$@" >"$root/job/command"
pack "$root" "$work/common"
rm -rf "$root"
for ((guest = 0; guest < guests; guest++)); do
  skeleton "$root"
  mkdir "$root/job"
  printf '%s=%q\n' GUEST "$guest" GUESTS "$guests" DEVICES "$devices" MTU "$mtu" FOLDER "$folder" SHELL_WANTED "$shell" >"$root/job/settings"
  echo 'export GUEST' >>"$root/job/settings"
  cat "$base/initrd" "$work/common" >"$work/$guest.initrd"
  pack "$root" "$work/$guest.initrd"
  rm -rf "$root"
done

accel=tcg,thread=multi
[ "${GUEST_ACCEL:-tcg}" = tcg ] || accel=$GUEST_ACCEL
# The guest's counter is this machine's. The guest would measure how fast it counts while other work interrupts the measuring, and its
# clock would sometimes go several times as fast as it should.
khz=$("$base/tsc_khz")
# Sockets are named by paths from here: the name of a socket has at most 107 bytes.
cd "$work"
for ((guest = 0; guest < guests; guest++)); do
  log_of=${log:+$log.$guest}
  options=(-M q35 -accel "$accel" -cpu max -smp "$cpus" -m "$memory" -display none -nodefaults -no-reboot -monitor none
    -kernel "$base/vmlinux" -initrd "$guest.initrd" -device virtio-rng-pci -device virtio-serial-pci
    -append "console=ttyS0 quiet loglevel=6 panic=-1 oops=panic mitigations=off random.trust_cpu=on tsc=reliable tsc_early_khz=$khz")
  for port in out err; do
    mkfifo "$guest.$port.pipe"
    if ((guests == 1)); then prefix=''; else prefix="$guest: "; fi
    exec 8>&1
    [ "$port" = out ] || exec 8>&2
    if [ -n "$prefix" ]; then
      sed -u "s/^/$prefix/" <"$guest.$port.pipe" >&8 8>&- &
    else
      cat <"$guest.$port.pipe" >&8 8>&- &
    fi
    readers+=($!)
    exec 8>&-
    options+=(-chardev "file,id=$port,path=$guest.$port.pipe" -device "virtserialport,chardev=$port,name=$port")
  done
  : >"$guest.status"
  options+=(-chardev "file,id=status,path=$guest.status" -device "virtserialport,chardev=status,name=status")
  if ((guests > 1)); then
    for ((device = 0; device < devices; device++)); do
      options+=(-netdev "dgram,id=net$device,local.type=unix,local.path=$guest.$device.net,remote.type=unix,remote.path=$((1 - guest)).$device.net"
        -device "virtio-net-pci,netdev=net$device,romfile=,mac=52:54:00:77:0$device:0$guest")
    done
  fi
  # By timeout, so that it ends even if this script is killed without ending it.
  if [ -n "$shell" ]; then
    timeout --foreground --kill-after 5 "$((seconds + 30))" qemu-system-x86_64 "${options[@]}" -serial mon:stdio <&0 2>"$guest.qemu" &
  else
    ln -s "${log_of:-$work/$guest.console}" "$guest.log"
    timeout --foreground --kill-after 5 "$((seconds + 30))" qemu-system-x86_64 "${options[@]}" -serial "file:$guest.log" </dev/null 2>"$guest.qemu" &
  fi
  machines+=($!)
done

# Until each guest has a status or is gone. One that is done waits for the other, which may have something to ask of it; but after a
# failure not for the whole time.
deadline=$((SECONDS + seconds)) left=$guests
while ((left > 0 && SECONDS < deadline)); do
  sleep 0.1
  left=0 failed=0
  for ((guest = 0; guest < guests; guest++)); do
    if [ -s "$guest.status" ]; then
      [ "$(cat "$guest.status")" = 0 ] || failed=1
    elif kill -0 "${machines[guest]}" 2>/dev/null; then
      left=$((left + 1))
    else
      failed=1
    fi
  done
  ((!failed || SECONDS + patience >= deadline)) || deadline=$((SECONDS + patience))
done

result=0
for ((guest = 0; guest < guests; guest++)); do
  status=$(cat "$guest.status") reason="QEMU has ended"
  if [ -z "$status" ]; then
    status=125
    if kill -0 "${machines[guest]}" 2>/dev/null; then status=124 reason="it has not ended after $SECONDS s"; fi
  fi
  kill "${machines[guest]}" 2>/dev/null || true
  wait "${machines[guest]}" 2>/dev/null || true
  if [ ! -s "$guest.status" ] && [ -z "$shell" ]; then
    echo "guest: guest $guest gave no status: $reason; the end of its console:"
    tail -n 40 "$guest.log"
    cat "$guest.qemu"
  fi >&2
  ((guests == 1)) || echo "guest: the command in guest $guest ended with status $status" >&2
  ((result)) || result=$status
done
for pipe in *.pipe; do : <>"$pipe"; done
wait "${readers[@]}"
exit "$result"
