#!/bin/bash
# The tests that scripts/test-ibverbs.sh runs in two guests that are connected; this runs in both. The folder also has verbs_smoke.
# Each step has a port of its own, and those of guest 1 wait for guest 0 to listen there. TRANSPORT_TESTS is the program of tests/jobs/.
set -euo pipefail
. ./groups.sh

smoke() { # NAME DEVICE PORT BYTES ROUNDS
  if [ "$GUEST" = 0 ]; then
    try "$1" ./verbs_smoke listen "$2" "$3" "$4" "$5"
  else
    try "$1" ./verbs_smoke connect "$2" 10.77.0.1 "$3" "$4" "$5"
  fi
}
ranks() { # NAME PORT VARIABLE=VALUE... COMMAND...: two ranks in each guest, of one job
  local name=$1 port=$2 rank began=$((GUEST * 2)) pids=() failed=0
  shift 2
  for rank in $began $((began + 1)); do
    env RANK="$rank" WORLD_SIZE=4 LOCAL_RANK="$((rank - began))" LOCAL_WORLD_SIZE=2 GLOO_RS_STORE="tcp://10.77.0.1:$port" \
      GLOO_RS_TRANSPORT="$TRANSPORT" GLOO_RS_SOCKET_IFNAME=net0 "$@" &
    pids+=($!)
  done
  for rank in "${pids[@]}"; do wait "$rank" || failed=1; done
  return "$failed"
}
try_ranks() { # NAME PORT VARIABLE=VALUE... COMMAND...
  export -f ranks
  # shellcheck disable=SC2016 # its own arguments
  try "$1" bash -c 'ranks "$@"' ranks "$@"
}

if group verbs "the guests' devices reach each other, without gloo_rs"; then
  smoke "RDMA WRITE with immediate" rxe0 7000 4000 10
  smoke "of many packets, on the other device" rxe1 7001 1000000 2
fi

if group loss "packets are lost between the guests, without gloo_rs"; then
  tc qdisc add dev net0 root netem loss 2%
  smoke "RDMA WRITE with immediate" rxe0 7100 100000 10
  tc qdisc delete dev net0 root
fi

bench() { # COLLECTIVE PORT ARGUMENTS...
  try_ranks "$1" "$2" "$TOOL" bench "$1" "${@:3}"
}
if group ranks "two ranks in each guest, over $TRANSPORT and shared memory"; then
  bench allreduce 7200 --sizes 4,64Ki,1Mi --iterations 3 --warmup 1
  bench alltoall 7201 --sizes 4,64Ki,1Mi --iterations 3 --warmup 1
  bench broadcast 7202 --sizes 4,64Ki,1Mi --iterations 3 --warmup 1
  try_ranks "messages from any rank" 7203 bash -c 'rust_test "$@"' - "$TRANSPORT_TESTS" ibverbs::one_rank_of_four
fi

if group lossy "5 % of all packets are lost between the guests, over $TRANSPORT and shared memory"; then
  tc qdisc add dev net0 root netem loss 5%
  # With this timeout it takes less than a second until a packet is sent again.
  export GLOO_RS_IB_TIMEOUT=15 GLOO_RS_IB_HCA=rxe0
  bench allreduce 7300 --sizes 4,64Ki,256Ki --iterations 10 --warmup 1
  try_ranks "messages from any rank" 7301 bash -c 'rust_test "$@"' - "$TRANSPORT_TESTS" ibverbs::one_rank_of_four
  unset GLOO_RS_IB_TIMEOUT GLOO_RS_IB_HCA
  tc qdisc delete dev net0 root
fi

# What follows is about ibverbs, whatever TRANSPORT is.
if group ports "shared memory inside, two ports between"; then
  try mixed ./checks.sh mixed 7400
  try striped ./checks.sh striped 7401
fi

if group ends "one of two ports loses its network"; then
  port=7402
  for check in cut unplugged; do
    try "$check" ./checks.sh "$check" "$port"
    port=$((port + 1))
  done
fi

end_of_groups
