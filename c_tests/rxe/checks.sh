#!/bin/bash
# Tests in a guest that take more than a command and its status: jobs that must fail, and what they must say. TOOL is the program gloo-rs.
# usage: ./checks.sh NAME [ARGUMENT...]
set -euo pipefail
said=$(mktemp -d)
pids=()
# A rank that is stopped ends only so.
trap 'for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done; rm -rf "$said"' EXIT
export GLOO_RS_TRANSPORT=ibverbs

fail() {
  echo "not as it should be: $*" >&2
  tail -n 5 "$said"/* >&2
  exit 1
}
now_ms() { awk '{ printf "%d", $1 * 1000 }' /proc/uptime; }
packets() { # DEVICE: how many it has sent and received
  awk '{ all += $1 } END { print all }' "/sys/class/infiniband/$1/ports/1/hw_counters/"{sent,rcvd}_pkts
}
says() { # RANK PATTERN
  grep -qE -- "$2" "$said/$1" || fail "rank $1 does not say: $2"
}
start() { # PORT SIZE FIRST COUNT COMMAND...: so many ranks, from FIRST on, of a job of SIZE, whose store is at PORT of guest 0
  local port=$1 size=$2 first=$3 count=$4 rank
  shift 4
  for ((rank = first; rank < first + count; rank++)); do
    env RANK="$rank" WORLD_SIZE="$size" LOCAL_RANK="$((rank - first))" LOCAL_WORLD_SIZE="$count" GLOO_RS_STORE="tcp://10.77.0.1:$port" \
      GLOO_RS_SOCKET_IFNAME=net0 "$@" >"$said/$rank" 2>&1 &
    pids[rank]=$!
  done
}
until_moved() { # DEVICE NUMBER: the job is at work once so many packets more have been sent and received
  local before moved=0 patience=300
  before=$(packets "$1")
  until moved=$(($(packets "$1") - before)) && ((moved >= $2)); do
    jobs -r | grep -q . || fail "no rank runs any more"
    ((patience-- > 0)) || fail "$1 has moved $moved packets, not $2"
    sleep 0.1
  done
}
ends() { # RANK STATUS MILLISECONDS: by then, counted from $began
  local status=0
  wait "${pids[$1]}" || status=$?
  local took=$(($(now_ms) - began))
  ((status == $2)) || fail "rank $1 has ended with status $status, not $2"
  ((took <= $3)) || fail "rank $1 has ended after $took ms"
  echo "rank $1 ended after $took ms: $(tail -n 1 "$said/$1")"
}
refused() { # PATTERN COMMAND...: it fails, and says why; its ranks need not agree who says it first
  local status=0
  "${@:2}" >"$said/refused" 2>&1 || status=$?
  ((status == 1)) || fail "status $status of ${*:2}"
  says refused "$1"
  grep -E -m 1 -- "$1" "$said/refused"
}
endless=(bench allreduce --sizes 64Ki --iterations 1000000)
lone=(bench allreduce -n 2 --sizes 4 --iterations 5 --warmup 1)

killed() { # the others notice at once, and name it
  start 7300 3 0 3 env GLOO_RS_SHM=0 "$TOOL" "${endless[@]}" --timeout 20
  until_moved rxe0 3000
  began=$(now_ms)
  kill -KILL "${pids[1]}"
  for rank in 0 2; do
    ends "$rank" 1 8000
    says "$rank" "rank $rank: (allreduce .* 16384 float32 \(65536 bytes\), .*|barrier .*): rank 1 at 10\.77\.0\.1:[0-9]+ is gone"
  done
}

stopped() { # its device goes on to acknowledge packets, so only the timeout tells
  start 7301 3 0 3 env GLOO_RS_SHM=0 "$TOOL" "${endless[@]}" --timeout 5
  until_moved rxe0 3000
  began=$(now_ms)
  kill -STOP "${pids[1]}"
  for rank in 0 2; do
    # Ended links wait 2 s for their peer.
    ends "$rank" 1 12000
    says "$rank" "(allreduce|barrier) .*: after [5-7]\.[0-9]+ s: timed out after 5s, .* from rank 1 at .* its process is stopped or hangs"
  done
}

locked() { # what a user may lock is too little for a connection
  local user=(setpriv --reuid user --regid user --clear-groups env GLOO_RS_SHM=0)
  # shellcheck disable=SC2016 # the shell's own arguments
  refused "cannot register 1048576 bytes of memory: .*; this process may lock 262144 bytes of memory: raise the limit \(ulimit -l unlimited" \
    "${user[@]}" bash -c 'ulimit -l 256; exec "$@"' bash "$TOOL" "${lone[@]}"
  # With a limit that is high enough nothing fails.
  # shellcheck disable=SC2016
  "${user[@]}" bash -c 'ulimit -l 16384; exec "$@"' bash "$TOOL" "${lone[@]}" >"$said/user" || fail "with 16 MiB"
}

names() { # ports and addresses that there are not
  refused "the GID with index 7 of rxe0:1 is empty; it has 0: fe80::[0-9a-f:]+ \(RoCE v2\), 1: ::ffff:10\.77\.0\.1 \(RoCE v2\)" \
    env GLOO_RS_IB_GID_INDEX=7 "$TOOL" "${lone[@]}"
  refused "no port of this host is called mlx5_0; it has rxe0:1, rxe1:1" env GLOO_RS_IB_HCA=mlx5_0 "$TOOL" "${lone[@]}"
  refused "no port of this host is called rxe0:2; it has rxe0:1, rxe1:1" env GLOO_RS_IB_HCA=rxe0:2 "$TOOL" "${lone[@]}"
  refused "GLOO_RS_IB_TIMEOUT is .*" env GLOO_RS_IB_TIMEOUT=32 "$TOOL" "${lone[@]}"
}

down() { # a port without carrier is not taken, and an error if it is named
  ip link set net1 down
  trap 'ip link set net1 up' RETURN
  refused "rxe1 cannot be used: rxe1:1 \(RoCE\): its state is down" env GLOO_RS_IB_HCA=rxe1 "$TOOL" "${lone[@]}"
  GLOO_RS_LOG=notice GLOO_RS_SHM=0 "$TOOL" "${lone[@]}" >"$said/other" 2>&1 || fail "the other port"
  says other "using rxe0:1"
  ! grep "using rxe1" "$said/other" || fail "it uses the port that is down"
}

absent() { # no device at all
  rdma link show >"$said/links"
  local device
  for device in rxe0 rxe1; do rdma link delete "$device"; done
  refused "this host has no InfiniBand or RoCE device" "$TOOL" "${lone[@]}"
  for device in 0 1; do rdma link add "rxe$device" type rxe netdev "net$device"; done
}

reported() { # ERROR PROGRAM: AddressSanitizer says that asan_smoke makes it
  local made=("$2" "$1")
  case $1 in
    program) refused "ERROR: AddressSanitizer: heap-buffer-overflow" "${made[@]}" && says refused "#0 .* in read_behind " ;;
    # In the library's own code, not in a function of libc that it calls.
    library) refused "ERROR: AddressSanitizer: heap-buffer-overflow" "${made[@]}" && says refused "#0 .* in .*gloo_rs::.* \(.*/libgloo_rs\.so" ;;
    leak) refused "ERROR: LeakSanitizer: detected memory leaks" "${made[@]}" && says refused "in gloo_rs_store_get " ;;
  esac
}

info() { # the tool shows the devices
  "$TOOL" info >"$said/info"
  says info "^ibverbs +rxe0:1 +RoCE, active, .* messages up to 8Mi"
  says info "^ +rxe1:1 +RoCE, active"
  says info "^ +GID 1: ::ffff:10\.77\.0\.1 on net0, RoCE v2, taken"
  says info "^rails +rxe0:1, rxe1:1"
}

digits() { # PROGRAM DATA: four ranks learn the same over this transport as over TCP
  local transport
  for transport in tcp ibverbs; do
    GLOO_RS_TRANSPORT=$transport GLOO_RS_SHM=0 GLOO_RS_TUNING=default "$TOOL" run -n 4 -- "$1" "$2" >"$said/$transport" 2>&1 || fail "over $transport"
    says "$transport" "final loss [0-9.]+$"
    grep -o "final loss .*" "$said/$transport" >"$said/loss.$transport"
  done
  cmp "$said/loss.tcp" "$said/loss.ibverbs" || fail "the losses differ: $(cat "$said"/loss.*)"
  cat "$said/loss.ibverbs"
}

# A user's ranks, where Yama lets none read another. Root may read all.
user=(setpriv --reuid user --regid user --clear-groups env -u GLOO_RS_TRANSPORT)
measured() { # HOW COMMAND...: memory goes by HOW, reads or copies, and all results are right
  local how=$1 single=false
  [ "$how" = copies ] || single=true
  "${@:2}" >"$said/measured" 2>&1 || fail "status $? of ${*:2}"
  (($(grep -cE "\"single_copy\":$single.*\"verified\":true" "$said/measured") == 3)) || fail "not by $how: ${*:2}"
}
tracer() { # what GLOO_RS_PTRACER opens
  local bench=("$TOOL" bench allreduce -n 2 --sizes 4,64Ki,256Ki --iterations 2 --warmup 1 --json) other
  # shellcheck disable=SC2016 # the shell's own variables
  local by_hand=(bash -c 'export GLOO_RS_PTRACER=${GLOO_RS_PTRACER:-$$} WORLD_SIZE=2 GLOO_RS_STORE=tcp://127.0.0.1:7302
    RANK=1 "$@" & RANK=0 "$@" && wait $!' bash "${bench[@]}")
  echo 1 >/proc/sys/kernel/yama/ptrace_scope
  trap 'echo 0 >/proc/sys/kernel/yama/ptrace_scope' RETURN
  # A launcher's ranks, and those of a shell that gives its own number.
  measured copies "${user[@]}" GLOO_RS_PTRACER=0 "${bench[@]}"
  measured reads "${user[@]}" "${bench[@]}"
  measured reads "${user[@]}" "${by_hand[@]}"
  # The number of a process of the same user from which they do not descend.
  "${user[@]}" sleep 600 &
  other=$!
  pids+=("$other")
  measured copies "${user[@]}" GLOO_RS_LOG=notice GLOO_RS_PTRACER="$other" "${by_hand[@]}"
  says measured "GLOO_RS_PTRACER has no effect: this process does not descend from process $other"
  measured reads "${user[@]}" GLOO_RS_LOG=notice GLOO_RS_PTRACER=any "${by_hand[@]}"
  says measured "all processes of this user may read the memory of this process, and trace it .GLOO_RS_PTRACER"
  "${user[@]}" "$TOOL" info >"$said/info"
  says info "^links here  shm, without reads .* kernel.yama.ptrace_scope is 1; GLOO_RS_PTRACER on all ranks permits it"
  "${user[@]}" GLOO_RS_PTRACER=any "$TOOL" info >"$said/info"
  says info "^links here  shm: a process here can map another's memory, and read it; all processes of this user may"
}

# ---- In two guests, both of which run these.

mixed() { # PORT: in each guest two ranks share memory, and between the guests they use verbs
  start "$1" 4 "$((GUEST * 2))" 2 env GLOO_RS_LOG=detail "$TOOL" bench alltoall --sizes 64Ki --iterations 5 --warmup 1
  local rank
  began=$(now_ms)
  for rank in $((GUEST * 2)) $((GUEST * 2 + 1)); do
    ends "$rank" 0 60000
    says "$rank" "using rxe0:1 .RoCE"
    says "$rank" "rank $rank: memory is shared with 1 ranks of this host"
  done
  (($(packets rxe0) > 100)) || fail "the device has sent and received nothing"
}

striped() { # PORT: large messages go by both devices
  local rank=$GUEST device
  local -A before
  for device in rxe0 rxe1; do before[$device]=$(packets "$device"); done
  start "$1" 2 "$rank" 1 env GLOO_RS_LOG=notice GLOO_RS_IB_HCA=rxe0,rxe1 "$TOOL" bench allreduce --sizes 4Mi --iterations 3 --warmup 1
  began=$(now_ms)
  ends "$rank" 0 60000
  says "$rank" "using rxe1:1"
  for device in rxe0 rxe1; do
    # Packets have 4096 bytes; each device takes part of 4 MiB, five times.
    (($(packets "$device") - before[$device] > 1000)) || fail "$device has moved $(packets "$device") packets, ${before[$device]} before"
  done
}

# One of two devices loses its network, and the ranks fail and name it. To the driver 7 retries are endless, so there are fewer.
two_devices=(env GLOO_RS_IB_HCA=rxe0,rxe1 GLOO_RS_IB_TIMEOUT=16 GLOO_RS_IB_RETRY_COUNT=6)

cut() { # PORT: the wire loses all
  local rank=$GUEST
  start "$1" 2 "$rank" 1 "${two_devices[@]}" "$TOOL" bench allreduce --sizes 4Mi --iterations 1000000 --timeout 40
  until_moved rxe1 1000
  began=$(now_ms)
  tc qdisc add dev net1 root netem loss 100%
  ends "$rank" 1 35000
  tc qdisc delete dev net1 root
  says "$rank" "rank $((1 - rank)) at 10\.77\.0\.[12]:.*rxe1:1"
}

unplugged() { # PORT: the sender's interface is down. The other guest sends little there, or its packets would wait for this one for ever
  local rank=$GUEST
  start "$1" 2 "$rank" 1 "${two_devices[@]}" "$TOOL" bench broadcast --root 1 --algorithm one_to_all --sizes 2Mi --iterations 1000000 --timeout 40
  until_moved rxe1 300
  began=$(now_ms)
  if [ "$GUEST" = 1 ]; then ip link set net1 down; fi
  ends "$rank" 1 35000
  [ "$GUEST" != 1 ] || ip link set net1 up
  says "$rank" "rank $((1 - rank)) at 10\.77\.0\.[12]:.*rxe1:1"
}

"$@"
