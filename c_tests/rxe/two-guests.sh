#!/bin/bash
# The tests that scripts/test-ibverbs.sh runs in two guests that are connected; this runs in both. The folder also has verbs_smoke.
# Each step has a port of its own, and those of guest 1 wait for guest 0 to listen there.
set -euo pipefail
. ./groups.sh

smoke() { # NAME DEVICE PORT BYTES ROUNDS
  if [ "$GUEST" = 0 ]; then
    try 60 "$1" ./verbs_smoke listen "$2" "$3" "$4" "$5"
  else
    try 60 "$1" ./verbs_smoke connect "$2" 10.77.0.1 "$3" "$4" "$5"
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
try_ranks() { # SECONDS NAME PORT VARIABLE=VALUE... COMMAND...
  local limit=$1 name=$2
  export -f ranks
  # shellcheck disable=SC2016 # its own arguments
  try "$limit" "$name" bash -c 'ranks "$@"' ranks "${@:2}"
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

if group ranks "two ranks in each guest, over $TRANSPORT"; then
  for collective in allreduce allgather broadcast; do
    port=$((${port:-7199} + 1))
    try_ranks 60 "$collective" "$port" "$TOOL" bench "$collective" --sizes 4,64Ki,1Mi --iterations 3 --warmup 1
  done
fi

end_of_groups
